"""Rotation averaging: known answers, optimality against a dense solver, and graphs with something missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import least_squares

from anchor3r.geometry import rotation_angle, so3_exp, so3_log
from anchor3r.pose_graph.averaging.rotations import RotationConfig, average_rotations
from anchor3r.pose_graph.edges import Edges
from anchor3r.pose_graph.report import Status
from anchor3r.pose_graph.topology import topology_of
from measured_graphs import measure, random_pairs, random_poses, window_pairs

TIGHT = RotationConfig(tolerance_deg=1e-9, max_iterations=500)
SIGMA = np.radians(5.0)


def angles_deg(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.degrees(rotation_angle(a @ np.swapaxes(b, -1, -2)))


def scaled_residuals(edges: Edges, rotation: np.ndarray) -> np.ndarray:
    """(m, 3) whose half squared sum is the Geman–McClure cost at the last width."""
    i, t = edges.frame_i, edges.frame_t
    r = so3_log(np.swapaxes(rotation[i], 1, 2) @ edges.rotation @ rotation[t])
    return np.sqrt(edges.weight)[:, None] * r / np.sqrt(SIGMA**2 + np.sum(r * r, 1, keepdims=True))


def noisy_windows(count: int, seed: int, **noise: float) -> tuple[np.ndarray, Edges]:
    rng = np.random.default_rng(seed)
    poses = random_poses(count, rng)
    i, t = window_pairs(count, 5)
    return poses.rotation, measure(poses, i, t, rng, **noise)


def perturbed(rotation: np.ndarray, noise_rad: float, seed: int) -> np.ndarray:
    turn = so3_exp(noise_rad * np.random.default_rng(seed).normal(size=(len(rotation), 3)))
    turn[0] = np.eye(3)
    return rotation @ turn


def test_exact_measurements_give_exact_rotations() -> None:
    truth, edges = noisy_windows(50, 0)
    rotation, report = average_rotations(edges, perturbed(truth, 0.3, 1), TIGHT)
    assert_allclose(rotation, truth, atol=1e-9)
    assert report.status is Status.CONVERGED
    assert report.cost < 1e-12 < report.initial_cost
    assert (report.num_frames, report.num_edges, report.num_components) == (50, len(edges), 1)


def test_outliers_are_outvoted() -> None:
    truth, edges = noisy_windows(200, 1, rotation_noise_rad=0.002, outliers=0.08)
    rotation, report = average_rotations(edges, perturbed(truth, 0.2, 2))
    assert report.status is Status.CONVERGED
    assert angles_deg(rotation, truth).max() < 3


def test_narrowing_saves_a_frame_that_starts_wrong() -> None:
    """Where three of eight edges agree with a wrong start, the last width alone never sees the others."""
    truth, edges = noisy_windows(60, 2, rotation_noise_rad=0.002)
    start = truth.copy()
    start[20] = truth[20] @ so3_exp([2.5, 0.0, 0.0])
    wrong = np.flatnonzero((edges.frame_i == 20) | (edges.frame_t == 20))[:3]
    edges.rotation[wrong] = start[edges.frame_i[wrong]] @ np.swapaxes(start[edges.frame_t[wrong]], 1, 2)
    narrow, _ = average_rotations(edges, start, RotationConfig(sigmas_deg=(5.0,)))
    graduated, _ = average_rotations(edges, start)
    assert angles_deg(narrow, truth).max() > 30
    assert angles_deg(graduated, truth).max() < 3


def test_the_fixed_point_has_no_gradient() -> None:
    _, edges = noisy_windows(12, 3, rotation_noise_rad=0.02, outliers=0.1)
    edges = replace(edges, weight=np.random.default_rng(3).uniform(0.2, 3, len(edges)))
    rotation, report = average_rotations(edges, np.tile(np.eye(3), (12, 1, 1)), TIGHT)
    assert report.status is Status.CONVERGED
    assert report.cost == pytest.approx(0.5 * np.sum(scaled_residuals(edges, rotation) ** 2))
    step = 1e-5
    for frame in range(1, 12):
        for axis in step * np.eye(3):
            cost = []
            for sign in (1, -1):
                moved = rotation.copy()
                moved[frame] = moved[frame] @ so3_exp(sign * axis)
                cost.append(0.5 * np.sum(scaled_residuals(edges, moved) ** 2))
            assert abs(cost[0] - cost[1]) / (2 * step) < 1e-5 * max(1, report.cost)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(2, 9), st.integers(0, 15), st.integers(0, 2**32 - 1))
def test_a_dense_solver_finds_nothing_better_nearby(count: int, extra: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    poses = random_poses(count, rng)
    i, t = random_pairs(count, extra, rng)
    weight = rng.uniform(0.1, 4, len(i))
    edges = measure(poses, i, t, rng, rotation_noise_rad=0.03, weight=weight)
    rotation, report = average_rotations(edges, poses.rotation, TIGHT)

    def dense(x: np.ndarray) -> np.ndarray:
        turn = so3_exp(np.concatenate([np.zeros((1, 3)), x.reshape(-1, 3)]))
        return scaled_residuals(edges, rotation @ turn).ravel()

    better = least_squares(dense, np.zeros(3 * (count - 1)), xtol=1e-14, ftol=1e-14, gtol=1e-14)
    assert report.cost <= better.cost + 1e-9 * max(1, better.cost)
    assert np.abs(better.x).max() < 1e-4


def test_a_turned_world_turns_the_answer() -> None:
    truth, edges = noisy_windows(40, 4, rotation_noise_rad=0.01, outliers=0.05)
    start, turn = perturbed(truth, 0.1, 5), so3_exp([1.0, -0.5, 2.0])
    rotation, report = average_rotations(edges, start, TIGHT)
    turned, turned_report = average_rotations(edges, start @ turn, TIGHT)
    assert_allclose(turned, rotation @ turn, atol=1e-7)
    assert turned_report.cost == pytest.approx(report.cost)
    assert_allclose(rotation[0], start[0], atol=1e-14)


def test_the_order_of_edges_does_not_matter_and_repeating_is_weighing() -> None:
    truth, edges = noisy_windows(40, 6, rotation_noise_rad=0.02)
    start = perturbed(truth, 0.1, 7)
    rotation, _ = average_rotations(edges, start, TIGHT)
    shuffled, _ = average_rotations(
        edges.select(np.random.default_rng(8).permutation(len(edges))), start, TIGHT
    )
    assert_allclose(shuffled, rotation, atol=1e-7)
    half = np.arange(len(edges)) % 2 == 0
    repeated = edges.select(np.concatenate([np.arange(len(edges)), np.flatnonzero(half)]))
    weighed = replace(edges, weight=np.where(half, 2.0, 1.0))
    assert_allclose(
        average_rotations(repeated, start, TIGHT)[0], average_rotations(weighed, start, TIGHT)[0], atol=1e-7
    )


def test_one_frame_and_two_frames() -> None:
    rng = np.random.default_rng(9)
    poses = random_poses(2, rng)
    none = measure(poses, np.empty(0, np.int64), np.empty(0, np.int64), rng)
    lonely = topology_of(none, np.array([7]))
    rotation, report = average_rotations(none, poses.rotation[1:], topology=lonely)
    assert_array_equal(rotation, poses.rotation[1:])
    assert report.status is Status.TRIVIAL
    pair = measure(poses, np.array([1]), np.array([0]), rng)
    rotation, report = average_rotations(pair, np.tile(np.eye(3), (2, 1, 1)), TIGHT)
    assert_allclose(rotation, poses.rotation, atol=1e-9)
    assert report.status is Status.CONVERGED


def test_a_frame_of_which_every_edge_is_wrong_harms_nobody_else() -> None:
    truth, edges = noisy_windows(40, 10, rotation_noise_rad=0.002)
    wrong = (edges.frame_i == 20) | (edges.frame_t == 20)
    rotation = edges.rotation.copy()
    rotation[wrong] = so3_exp(2 * np.random.default_rng(10).normal(size=(wrong.sum(), 3)))
    averaged, report = average_rotations(replace(edges, rotation=rotation), perturbed(truth, 0.1, 11))
    assert report.status is Status.CONVERGED
    assert np.isfinite(averaged).all()
    others = np.arange(40) != 20
    assert angles_deg(averaged, truth)[others].max() < 3


def test_each_component_has_its_own_gauge() -> None:
    truth, edges = noisy_windows(40, 12)
    broken = edges.select((edges.frame_i >= 20) | (edges.frame_t < 20))
    start = perturbed(truth, 0.2, 13)
    start[20:] = start[20:] @ so3_exp([0.0, 2.0, 0.0])
    rotation, report = average_rotations(broken, start, TIGHT)
    assert report.num_components == 2
    assert_allclose(rotation[[0, 20]], start[[0, 20]], atol=1e-12)
    assert_allclose(rotation[20:], truth[20:] @ truth[20].T @ start[20], atol=1e-9)
    assert_allclose(rotation[:20], truth[:20], atol=1e-9)


def test_an_edge_of_weight_zero_says_nothing() -> None:
    truth, edges = noisy_windows(20, 14)
    rotation, weight = edges.rotation.copy(), edges.weight.copy()
    rotation[::3], weight[::3] = so3_exp([1.0, 1.0, 1.0]), 0.0
    averaged, _ = average_rotations(replace(edges, rotation=rotation, weight=weight), truth, TIGHT)
    assert_allclose(averaged, truth, atol=1e-9)


def test_says_when_iterations_run_out() -> None:
    truth, edges = noisy_windows(40, 15, rotation_noise_rad=0.02)
    _, report = average_rotations(edges, perturbed(truth, 0.5, 16), RotationConfig(max_iterations=2))
    assert (report.status, report.iterations) == (Status.MAX_ITERATIONS, 2)


def test_refuses_misuse() -> None:
    truth, edges = noisy_windows(10, 17)
    with pytest.raises(ValueError, match="initial should be"):
        average_rotations(edges, truth[:-1])
    for bad in (
        {"sigmas_deg": ()},
        {"sigmas_deg": (5.0, 0.0)},
        {"tolerance_deg": 0.0},
        {"max_iterations": 0},
    ):
        with pytest.raises(ValueError, match="must be positive"):
            RotationConfig(**bad)
