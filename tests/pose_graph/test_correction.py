"""Corrections of odometry, and poses that are moved by the mean of what their neighbours are moved by."""

from __future__ import annotations

import numpy as np

from anchor3r.geometry import SE3, so3_exp
from anchor3r.pose_graph.correction import OnlineCorrection, smoothly_moved
from anchor3r.pose_graph.edges import EdgeKind, Edges, MotionGraph
from anchor3r.pose_graph.joint import RefineConfig, refine_poses
from anchor3r.pose_graph.pose_system import PoseState
from anchor3r.trajectory import Trajectory
from measured_graphs import random_poses, window_pairs


def similar(state: PoseState, seed: int) -> PoseState:
    """The same poses in another world."""
    rng = np.random.default_rng(seed)
    turn, move, growth = so3_exp(rng.normal(size=3)), rng.normal(size=3), float(rng.normal())
    return PoseState(
        state.rotation @ turn.T, np.exp(growth) * state.center @ turn.T + move, state.log_scale + growth
    )


def trajectory_of(state: PoseState, frames: np.ndarray, component: np.ndarray) -> Trajectory:
    return Trajectory(
        frames=frames, rotation=state.rotation, center=state.center, component=component,
        log_scale=state.log_scale,
    )  # fmt: skip


def test_a_correction_between_two_trajectories_takes_one_to_the_other() -> None:
    """Frames in between move with their neighbours, and tracks that were joined are one component."""
    rng = np.random.default_rng(1)
    before, after = PoseState.of(random_poses(30, rng)), similar(PoseState.of(random_poses(30, rng)), 2)
    track = np.repeat([3, 5, 8], 10)
    odometry = trajectory_of(before, np.arange(0, 60, 2), track)
    corrected = trajectory_of(after, odometry.frames, np.repeat([0, 1, 0], 10))
    found = OnlineCorrection.between(odometry, corrected)
    moved = OnlineCorrection.from_bytes(found.to_bytes()).apply(odometry)
    for name in ("rotation", "center", "log_scale"):
        np.testing.assert_allclose(getattr(moved, name), getattr(corrected, name), atol=1e-9)
    np.testing.assert_array_equal(moved.component, np.repeat([3, 5, 3], 10))
    turned = similar(before, 4)
    rigid = OnlineCorrection.between(odometry, trajectory_of(turned, odometry.frames, track))
    between = trajectory_of(before, odometry.frames + (np.arange(30) % 10 < 9), track)
    np.testing.assert_allclose(rigid.apply(between).center, turned.center, atol=1e-9)


def test_tracks_take_the_similarities_that_move_them() -> None:
    poses = PoseState.of(random_poses(40, np.random.default_rng(0)))
    track = np.repeat([0, 1], 20)
    first, second = similar(poses, 1), similar(poses, 2)
    target = PoseState(*(np.concatenate([a[:20], b[20:]]) for a, b in zip(first, second, strict=True)))
    moved = smoothly_moved(poses, target, track, 7)
    for found, expected in zip(moved, target, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_frame_that_is_torn_out_of_line_goes_back() -> None:
    poses = PoseState.of(random_poses(60, np.random.default_rng(3)))
    target = PoseState(poses.rotation.copy(), poses.center.copy(), poses.log_scale)
    target.center[::5] += 0.1
    off = np.abs(smoothly_moved(poses, target, np.zeros(60, int), 10).center - poses.center)
    assert off.max() < 0.05
    jumps = np.abs(np.diff(off, axis=0))
    assert jumps.max() < 0.01


def drive_and_return(rng: np.random.Generator) -> tuple[SE3, MotionGraph]:
    """A circle driven one and a quarter times, in windows that copy the errors of the same steps.

    Every fifth frame of the end has a loop event with the beginning, each with an error of its own.
    """
    angle = 2 * np.pi * np.arange(250) / 200
    center = 20 * np.stack([np.cos(angle), np.zeros(250), np.sin(angle)], 1)
    rotation = so3_exp(np.stack([np.zeros(250), angle, np.zeros(250)], 1))
    true = SE3(rotation, -(rotation @ center[..., None])[..., 0])
    erring = [true[0]]
    for k in range(1, 250):
        step = true[k] @ true[k - 1].inverse()
        turned = step.rotation @ so3_exp(2e-3 * rng.normal(size=3))
        erring.append(SE3(turned, step.translation + 1e-3 * rng.normal(size=3)) @ erring[-1])
    odometry = SE3(np.stack([p.rotation for p in erring]), np.stack([p.translation for p in erring]))
    i, t = window_pairs(250, 10)
    anchors = np.arange(205, 250, 5)
    loop_i, loop_t = (anchors[:, None] - 200 + np.arange(-2, 3)).ravel(), np.repeat(anchors, 5)
    windows, loops = odometry[i] @ odometry[t].inverse(), true[loop_i] @ true[loop_t].inverse()
    own = np.repeat(0.02 * rng.normal(size=(len(anchors), 3)), 5, 0)
    sigma = np.repeat([[5e-4] * 3 + [1e-3] * 3, [1e-3] * 3 + [2e-3] * 3], [len(i), len(loop_i)], 0)
    edges = Edges.of(
        np.append(i, loop_i), np.append(t, loop_t),
        np.concatenate([windows.rotation, loops.rotation]),
        np.concatenate([windows.translation, loops.translation + own]),
        kind=np.repeat([EdgeKind.WINDOW, EdgeKind.LOOP], [len(i), len(loop_i)]).astype(np.int8),
        group=np.append(t, loop_t + 250),
        information=np.eye(6) * sigma[:, None, :] ** -2.0,
    )  # fmt: skip
    return odometry, MotionGraph(edges)


def roughness(poses: SE3) -> float:
    """Of the part with loops: third differences, which a smooth path has none of."""
    return float(np.linalg.norm(np.diff(poses.center()[200:], 3, axis=0), axis=1).max())


def test_loops_do_not_tear_single_frames_out_of_the_shape_of_windows() -> None:
    odometry, graph = drive_and_return(np.random.default_rng(5))
    refined, report = refine_poses(graph, odometry, RefineConfig())
    assert report.details["window_inflation"] > 2
    assert report.details["events_cut"] == 0
    gaps = [poses.center()[205:] - poses.center()[5:50] for poses in (refined.camera_from_world, odometry)]
    assert np.linalg.norm(gaps[0]) < 0.3 * np.linalg.norm(gaps[1])
    assert roughness(refined.camera_from_world) < 1.2 * roughness(odometry)
