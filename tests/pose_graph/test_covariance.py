"""Covariances of refined poses: against a dense inverse, and against the scatter of repeated solves."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from anchor3r.evaluation.metrics import aligned_pose_errors, ellipsoid_shares
from anchor3r.geometry import SE3, align_poses, so3_exp, so3_log
from anchor3r.pose_graph.covariance import pose_covariances
from anchor3r.pose_graph.edges import EdgeKind, Edges, MotionGraph
from anchor3r.pose_graph.gauss_newton import ErrorModel, PoseProblem
from anchor3r.pose_graph.joint import RefineConfig, refine_poses
from anchor3r.pose_graph.linalg.step_solvers import NO_TIES, ScaleTies
from anchor3r.pose_graph.pose_system import PoseEdges, PoseState, apply_matrix
from measured_graphs import measure, random_poses, window_pairs

ROTATION_SIGMA, TRANSLATION_SIGMA = 2e-3, 1e-2


def chain_with_a_loop(num_frames: int) -> tuple[SE3, NDArray[np.int64], NDArray[np.int64]]:
    """Poses on a circle, and pairs: windows of three, and one loop."""
    angle = 2 * np.pi * np.arange(num_frames) / num_frames
    center = np.stack([np.cos(angle), np.zeros(num_frames), np.sin(angle)], 1) * num_frames / 6
    poses = SE3.from_center(so3_exp(np.stack([0 * angle, angle, 0 * angle], 1)), center)
    i, t = window_pairs(num_frames, 3)
    return poses, np.append(i, 0), np.append(t, num_frames - 1)


@pytest.mark.parametrize("is_free", [False, True])
def test_equal_to_a_dense_inverse_after_alignment(is_free: bool) -> None:
    rng = np.random.default_rng(0)
    n, block = 24, 7 if is_free else 6
    poses, i, t = chain_with_a_loop(n)
    measured = poses[i] @ poses[t].inverse()
    edges = PoseEdges(i, t, measured.rotation, measured.translation)
    ties = NO_TIES
    if is_free:
        ties = ScaleTies(np.arange(n - 1), np.arange(1, n), np.zeros(n - 1), np.full(n - 1, 1e4))
    information = rng.uniform(1e3, 1e5, (len(i), 2))
    problem = PoseProblem(edges, np.ones(len(i), bool), ties, np.array([0]), is_free)
    state = PoseState.of(poses)
    found = pose_covariances(
        problem, state, ErrorModel(information, np.inf), np.zeros(n, np.int64), inflation=2.0
    )
    assert found is not None
    dense = np.zeros((n * block, n * block))
    for column in range(n * block):
        x, image = np.zeros((n, block)), np.zeros((n, block))
        x.flat[column] = 1
        apply_matrix(edges, state, information, x, image)
        if is_free:
            pull = ties.weight * (x[ties.a, 6] - x[ties.b, 6])
            np.add.at(image[:, 6], ties.a, pull)
            np.add.at(image[:, 6], ties.b, -pull)
        dense[:, column] = image.ravel()
    inverse = np.zeros((n * block, n * block))
    inverse[block:, block:] = 2.0 * np.linalg.inv(dense[block:, block:])
    poses_only = (np.arange(n)[:, None] * block + np.arange(6)).ravel()
    aligned = numerical_alignment(poses)
    inverse = aligned @ inverse[np.ix_(poses_only, poses_only)] @ aligned.T
    for frame in range(n):
        own = slice(6 * frame, 6 * frame + 6)
        axes = np.eye(6)
        axes[:3, :3] = poses.rotation[frame]
        expected = axes @ inverse[own, own] @ axes.T
        assert_allclose(found[frame], expected, atol=1e-5 * np.abs(expected).max())


def numerical_alignment(poses: SE3) -> NDArray[np.float64]:
    """(6 n, 6 n) how errors of poses camera_from_world, in world axes, are left over by `align_poses`."""
    n, step = len(poses), 1e-6
    truth = poses.inverse()
    out = np.empty((6 * n, 6 * n))
    for column in range(6 * n):
        ends = []
        for sign in (1, -1):
            x = np.zeros((n, 6))
            x.flat[column] = sign * step
            estimated = SE3(np.swapaxes(poses.rotation @ so3_exp(x[:, :3]), 1, 2), poses.center() + x[:, 3:])
            motion = align_poses(truth, estimated)
            rotation = motion.rotation @ truth.rotation
            turned = so3_log(np.swapaxes(rotation @ np.swapaxes(estimated.rotation, 1, 2), 1, 2))
            ends.append(np.concatenate([-turned, estimated.translation - motion.apply(truth.translation)], 1))
        out[:, column] = (ends[0] - ends[1]).ravel() / (2 * step)
    return out


@pytest.mark.parametrize("loss", ["none", "gm"])
def test_poses_scatter_as_their_covariance_says(loss: Literal["none", "gm"]) -> None:
    """Monte Carlo: independent edges of known noise, refined again and again."""
    rng = np.random.default_rng(1)
    poses, i, t = chain_with_a_loop(30)
    truth = poses[i] @ poses[t].inverse()
    information = np.diag([ROTATION_SIGMA**-2.0] * 3 + [TRANSLATION_SIGMA**-2.0] * 3)
    squares = []
    for _ in range(40):
        turn = ROTATION_SIGMA * rng.normal(size=(len(i), 3))
        shift = TRANSLATION_SIGMA * rng.normal(size=(len(i), 3))
        edges = Edges.of(
            i, t, truth.rotation @ so3_exp(turn), truth.translation + shift, information=information
        )
        refined, _ = refine_poses(MotionGraph(edges), poses, RefineConfig(loss=loss), with_covariance=True)
        assert refined.covariance is not None
        error = aligned_pose_errors(refined.camera_from_world.inverse(), poses.inverse())
        solved = np.linalg.solve(refined.covariance, error[..., None])[..., 0]
        squares.append((error * solved).sum(1))
    assert np.mean(squares) == pytest.approx(6.0, rel=0.15)
    assert np.mean(np.array(squares) < 12.59) == pytest.approx(0.95, abs=0.03)


def walked(poses: SE3, sigma: NDArray[np.float64], rng: np.random.Generator) -> SE3:
    """The poses as steps with independent errors (right perturbations) lead to them."""
    steps = sigma * rng.normal(size=(len(poses), 6))
    erring = [poses[0]]
    for k in range(1, len(poses)):
        step = poses[k] @ poses[k - 1].inverse()
        step = SE3(step.rotation @ so3_exp(steps[k, :3]), step.translation + steps[k, 3:])
        erring.append(step @ erring[-1])
    return SE3(np.stack([p.rotation for p in erring]), np.stack([p.translation for p in erring]))


@pytest.mark.parametrize("is_shared", [True, False])
def test_windows_that_copy_their_errors_are_known_by_their_residuals(is_shared: bool) -> None:
    """Edges over k frames have the variance of k steps: of the same steps in all windows, or of their own."""
    rng = np.random.default_rng(2)
    poses = chain_with_a_loop(60)[0]
    i, t = window_pairs(60, 6)
    span = np.abs(t - i)
    sigma = np.array([0.1 * ROTATION_SIGMA] * 3 + [TRANSLATION_SIGMA] * 3)
    information = np.diag(sigma**-2.0) / span[:, None, None]
    within = []
    for _ in range(20):
        noise = sigma * np.sqrt(span)[:, None] * rng.normal(size=(len(i), 6))
        measured = poses[i] @ poses[t].inverse()
        if is_shared:
            noise[:] = 0
            wrong = walked(poses, sigma, rng)
            measured = wrong[i] @ wrong[t].inverse()
        edges = Edges.of(
            i, t, measured.rotation @ so3_exp(noise[:, :3]), measured.translation + noise[:, 3:],
            information=information, group=t,
        )  # fmt: skip
        refined, _ = refine_poses(MotionGraph(edges), poses, with_covariance=True)
        assert refined.covariance is not None
        errors = aligned_pose_errors(refined.camera_from_world.inverse(), poses.inverse())
        within.append(list(ellipsoid_shares(errors, refined.covariance).values()))
    half, most = np.mean(within, 0)
    assert 40 < half < 75
    assert 92 < most < 99.5


def test_not_asked_for_not_there() -> None:
    rng = np.random.default_rng(3)
    poses = random_poses(10, rng)
    graph = MotionGraph(measure(poses, *window_pairs(10, 4), rng))
    assert refine_poses(graph, poses)[0].covariance is None


def test_loops_that_bend_windows_do_not_make_them_independent() -> None:
    """Windows copy the errors of their steps; loops, whose edges have one error each, close the circle."""
    rng = np.random.default_rng(3)
    poses = chain_with_a_loop(60)[0]
    i, t = window_pairs(60, 6)
    sigma = np.array([ROTATION_SIGMA] * 3 + [TRANSLATION_SIGMA] * 3)
    first, last = np.meshgrid(np.arange(5), np.arange(56, 60))
    loop_i, loop_t = first.ravel(), last.ravel()
    kind = np.repeat([EdgeKind.WINDOW, EdgeKind.LOOP], [len(i), len(loop_i)]).astype(np.int8)
    information = np.diag(sigma**-2.0) / np.append(np.abs(t - i), np.ones(len(loop_i)))[:, None, None]
    within = []
    for _ in range(20):
        wrong = walked(poses, sigma, rng)
        told = SE3(poses.rotation.copy(), poses.translation.copy())
        for anchor in range(56, 60):  # a loop event tells one wrong pose of its anchor
            error = sigma * rng.normal(size=6)
            told.rotation[anchor] = so3_exp(error[:3]) @ told.rotation[anchor]
            told.translation[anchor] += error[3:]
        measured, loops = wrong[i] @ wrong[t].inverse(), poses[loop_i] @ told[loop_t].inverse()
        edges = Edges.of(
            np.append(i, loop_i), np.append(t, loop_t),
            np.concatenate([measured.rotation, loops.rotation]),
            np.concatenate([measured.translation, loops.translation]),
            kind=kind, information=information, group=np.append(t, 60 + loop_t),
        )  # fmt: skip
        refined, _ = refine_poses(MotionGraph(edges), wrong, with_covariance=True)
        assert refined.events is not None
        assert refined.events.accepted.all()
        assert refined.covariance is not None
        errors = aligned_pose_errors(refined.camera_from_world.inverse(), poses.inverse())
        within.append(list(ellipsoid_shares(errors, refined.covariance).values()))
    half, most = np.mean(within, 0)
    assert 30 < half < 75
    assert 90 < most < 99.5
