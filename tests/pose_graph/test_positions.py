"""Position averaging: known answers, the exact optimum of a linear programme, and certificates that hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linprog
from scipy.sparse import csr_array, eye_array, hstack

from anchor3r.geometry import SE3
from anchor3r.pose_graph.averaging.positions import PositionConfig, average_positions
from anchor3r.pose_graph.edges import Edges
from anchor3r.pose_graph.report import Status
from anchor3r.pose_graph.topology import topology_of
from measured_graphs import measure, random_pairs, random_poses, window_pairs

EXACT = PositionConfig(gap=1e-10)


def noisy_windows(count: int, seed: int, **noise: float) -> tuple[SE3, Edges]:
    rng = np.random.default_rng(seed)
    poses = random_poses(count, rng)
    i, t = window_pairs(count, 5)
    return poses, measure(poses, i, t, rng, **noise)


def rough(poses: SE3, seed: int, noise: float = 0.5) -> np.ndarray:
    center = poses.center() + noise * np.random.default_rng(seed).normal(size=(len(poses), 3))
    center[0] = poses.center()[0]
    return center


def optimum(edges: Edges, rotation: np.ndarray) -> float:
    """Σ √w ‖·‖₁ at its minimum, as three linear programmes."""
    i, t = edges.frame_i, edges.frame_t
    m, num_frames = len(i), len(rotation)
    moved = (np.swapaxes(rotation[i], 1, 2) @ edges.translation[..., None])[..., 0]
    rows = np.concatenate([np.arange(m), np.arange(m)])
    signs = np.concatenate([np.ones(m), -np.ones(m)])
    incidence = csr_array((signs, (rows, np.concatenate([i, t]))), shape=(m, num_frames))[:, 1:]
    system = hstack([incidence, -eye_array(m), eye_array(m)])
    weight = np.sqrt(edges.weight)
    cost = np.concatenate([np.zeros(num_frames - 1), weight, weight])
    bounds = [(None, None)] * (num_frames - 1) + [(0, None)] * (2 * m)
    return sum(linprog(cost, A_eq=system, b_eq=-moved[:, k], bounds=bounds).fun for k in range(3))


def test_exact_measurements_give_exact_centres() -> None:
    poses, edges = noisy_windows(60, 0)
    center, report = average_positions(edges, poses.rotation, rough(poses, 1))
    assert_allclose(center, poses.center(), atol=1e-5)
    assert report.status is Status.CONVERGED
    assert report.cost < 1e-4 < report.initial_cost


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(2, 12), st.integers(0, 25), st.integers(0, 2**32 - 1))
def test_reaches_the_optimum_of_the_linear_programme(count: int, extra: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    poses = random_poses(count, rng)
    i, t = random_pairs(count, extra, rng)
    weight = rng.uniform(0.1, 4, len(i))
    edges = measure(poses, i, t, rng, translation_noise=0.1, outliers=0.2, weight=weight)
    center, report = average_positions(edges, poses.rotation, rough(poses, seed), EXACT)
    best = optimum(edges, poses.rotation)
    scale = float(np.abs(edges.translation).sum())
    assert report.status is Status.CONVERGED
    assert abs(report.cost - best) <= 1e-8 * best + 1e-9 * scale
    moved = (np.swapaxes(poses.rotation[i], 1, 2) @ edges.translation[..., None])[..., 0]
    actual = np.sum(np.sqrt(weight)[:, None] * np.abs(center[i] - center[t] + moved))
    assert report.cost == pytest.approx(actual, rel=1e-9, abs=1e-12 * scale)


@pytest.mark.parametrize("method", ["exact", "admm"])
def test_the_certificate_holds(method: str) -> None:
    poses, edges = noisy_windows(150, 2, translation_noise=0.05, outliers=0.1)
    best = optimum(edges, poses.rotation)
    for gap in (0.05, 1e-3):
        config = PositionConfig(method=method, gap=gap, max_iterations=500)
        _, report = average_positions(edges, poses.rotation, rough(poses, 3), config)
        assert report.status is Status.CONVERGED
        assert report.gap <= gap
        assert -1e-9 * best <= report.cost - best <= report.gap * report.cost * (1 + 1e-9)


def test_the_default_is_exact_to_a_millionth() -> None:
    poses, edges = noisy_windows(300, 4, translation_noise=0.05, outliers=0.1)
    center, report = average_positions(edges, poses.rotation, rough(poses, 5))
    assert report.gap <= 1e-6
    assert report.cost <= optimum(edges, poses.rotation) * (1 + 1e-6)
    assert np.median(np.linalg.norm(np.diff(center - poses.center(), axis=0), axis=1)) < 0.1


def test_a_moved_world_moves_the_answer_and_the_first_frame_stays() -> None:
    poses, edges = noisy_windows(40, 6, translation_noise=0.05)
    start, shift = rough(poses, 7), np.array([100.0, -20.0, 3.0])
    center, _ = average_positions(edges, poses.rotation, start, EXACT)
    moved, _ = average_positions(edges, poses.rotation, start + shift, EXACT)
    assert_allclose(moved, center + shift, atol=1e-5)
    assert_allclose(center[0], start[0], atol=1e-12)


def test_the_order_of_edges_does_not_matter_and_four_times_the_weight_is_twice_the_edge() -> None:
    poses, edges = noisy_windows(40, 8, translation_noise=0.05)
    start = rough(poses, 9)
    _, report = average_positions(edges, poses.rotation, start, EXACT)
    shuffled = edges.select(np.random.default_rng(0).permutation(len(edges)))
    _, shuffled_report = average_positions(shuffled, poses.rotation, start, EXACT)
    assert shuffled_report.cost == pytest.approx(report.cost, rel=1e-9)
    half = np.arange(len(edges)) % 2 == 0
    repeated = edges.select(np.concatenate([np.arange(len(edges)), np.flatnonzero(half)]))
    weighed = replace(edges, weight=np.where(half, 4.0, 1.0))
    costs = [average_positions(e, poses.rotation, start, EXACT)[1].cost for e in (repeated, weighed)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-9)


def test_edge_scales_bring_windows_to_one_scale() -> None:
    poses, edges = noisy_windows(40, 10)
    scale = np.exp(0.05 * edges.frame_t)
    shrunk = replace(edges, translation=edges.translation / scale[:, None])
    center, report = average_positions(shrunk, poses.rotation, rough(poses, 11), EXACT, edge_scale=scale)
    assert_allclose(center, poses.center(), atol=1e-5)
    _, without = average_positions(shrunk, poses.rotation, rough(poses, 11), EXACT)
    assert without.cost > 1 > report.cost


@pytest.mark.parametrize("method", ["exact", "admm"])
def test_one_frame_and_two_frames(method: str) -> None:
    rng = np.random.default_rng(12)
    poses = random_poses(2, rng)
    none = measure(poses, np.empty(0, np.int64), np.empty(0, np.int64), rng)
    lonely = topology_of(none, np.array([3]))
    config = PositionConfig(method=method, max_iterations=2000)
    center, report = average_positions(none, poses.rotation[:1], np.ones((1, 3)), config, topology=lonely)
    assert_array_equal(center, np.ones((1, 3)))
    assert (report.status, report.cost, report.gap) == (Status.TRIVIAL, 0.0, 0.0)
    pair = measure(poses, np.array([0]), np.array([1]), rng)
    center, report = average_positions(pair, poses.rotation, np.zeros((2, 3)), config)
    assert report.status is Status.CONVERGED
    assert_allclose(center, poses.center(), atol=1e-5)


@pytest.mark.parametrize("method", ["exact", "admm"])
def test_components_and_frames_without_weight_stay_finite(method: str) -> None:
    poses, edges = noisy_windows(40, 13, translation_noise=0.02)
    lost = (edges.frame_i < 20) & (edges.frame_t >= 20)
    alone = (edges.frame_i == 30) | (edges.frame_t == 30)
    edges = replace(edges, weight=np.where(lost | alone, 0.0, 1.0))
    start = rough(poses, 14)
    config = PositionConfig(method=method, gap=1e-3, max_iterations=2000)
    center, report = average_positions(edges, poses.rotation, start, config)
    assert report.num_components == 3
    assert report.status is Status.CONVERGED
    assert_allclose(center[[0, 20, 30]], start[[0, 20, 30]], atol=1e-12)
    for part in (slice(0, 20), slice(20, 30), slice(31, 40)):
        error = center[part] - poses.center()[part]
        assert np.abs(error - error.mean(0)).max() < 0.2


def test_a_frame_of_which_every_edge_is_wrong_harms_nobody_else() -> None:
    poses, edges = noisy_windows(40, 15, translation_noise=0.01)
    wrong = (edges.frame_i == 20) | (edges.frame_t == 20)
    translation = edges.translation.copy()
    translation[wrong] = 10 * np.random.default_rng(15).normal(size=(wrong.sum(), 3))
    center, report = average_positions(
        replace(edges, translation=translation), poses.rotation, rough(poses, 16), EXACT
    )
    assert report.status is Status.CONVERGED
    others = np.arange(40) != 20
    assert np.abs(center - poses.center())[others].max() < 0.3


def test_says_when_iterations_run_out_and_keeps_the_best() -> None:
    poses, edges = noisy_windows(100, 17, translation_noise=0.05, outliers=0.1)
    for method in ("exact", "admm"):
        config = PositionConfig(method=method, gap=1e-9, max_iterations=2)
        _, report = average_positions(edges, poses.rotation, poses.center(), config)
        assert report.status is Status.MAX_ITERATIONS
        assert report.gap > 1e-9
    assert np.isfinite(report.gap)


def test_refuses_misuse() -> None:
    poses, edges = noisy_windows(10, 18)
    with pytest.raises(ValueError, match="initial_centers should be"):
        average_positions(edges, poses.rotation, np.zeros((3, 3)))
    with pytest.raises(ValueError, match="rotations should be"):
        average_positions(edges, poses.rotation[:4], poses.center())
    for bad in ({"method": "simplex"}, {"gap": 0.0}, {"max_iterations": 0}):
        with pytest.raises(ValueError, match="must be"):
            PositionConfig(**bad)
