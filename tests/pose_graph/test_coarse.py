"""The coarse graph: where nodes are, and loops closed on it from scratch."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from anchor3r.geometry import SE3, so3_exp
from anchor3r.pose_graph.coarse import (
    Claims,
    ClosedOdometry,
    Corrections,
    Sigmas,
    close_loops,
    make_coarse_graph,
)
from anchor3r.pose_graph.topology import topology_of
from measured_graphs import measure, random_poses, window_pairs


def test_nodes_stand_at_regular_frames_and_where_tracks_begin() -> None:
    rng = np.random.default_rng(0)
    edges = measure(random_poses(35, rng), *window_pairs(35, 4), rng)
    edges = edges.select((edges.frame_i < 17) == (edges.frame_t < 17))
    coarse = make_coarse_graph(edges, topology_of(edges), 10)
    assert_array_equal(coarse.row, [0, 10, 17, 20, 30])
    assert_array_equal(coarse.node[[0, 9, 10, 16, 17, 19, 20, 34]], [0, 0, 1, 1, 2, 2, 3, 4])
    assert {(int(a), int(b)) for a, b in zip(coarse.earlier, coarse.later, strict=True)} == {
        (0, 1),
        (2, 3),
        (3, 4),
    }


def circle(count: int, turn_error_rad: float) -> SE3:
    """A drive around a circle, each step turned a little too far."""
    step = SE3(so3_exp([0.0, 2 * np.pi / count + turn_error_rad, 0.0]), np.array([0.0, 0.0, -1.0]))
    poses = [SE3.identity()]
    for _ in range(count - 1):
        poses.append(step @ poses[-1])
    return SE3(np.stack([p.rotation for p in poses]), np.stack([p.translation for p in poses]))


def test_a_loop_is_closed_and_the_error_spread() -> None:
    truth, odometry = circle(200, 0.0), circle(200, 0.002)
    rng = np.random.default_rng(1)
    edges = measure(odometry, *window_pairs(200, 4), rng)
    coarse = make_coarse_graph(edges, topology_of(edges), 10)
    # Both start at the same pose, so the truth at the end is what odometry at the end has to be moved to.
    turn = truth.rotation[199].T @ odometry.rotation[199]
    correction = Corrections(turn[None], odometry.center()[199][None], truth.center()[199][None], np.zeros(1))
    claims = Claims(np.array([0]), np.array([199]), correction)
    ones = np.ones(len(coarse.earlier))
    sigmas = Sigmas(0.03 * ones, 0.3 * ones, ones), Sigmas(np.array([1e-3]), np.array([1e-2]), np.ones(1))
    closing = close_loops(coarse, odometry, claims, *sigmas)
    closed, growth = closing.frames()
    assert_array_equal(growth, 0)
    before = np.linalg.norm(odometry.center() - truth.center(), axis=-1)
    after = np.linalg.norm(closed.center() - truth.center(), axis=-1)
    assert before.max() > 5
    assert after.max() < 0.12 * before.max()
    assert_allclose(closed[0].matrix(), odometry[0].matrix(), atol=1e-9)
    stretch = np.linalg.norm(np.diff(closed.center(), axis=0), axis=-1)
    assert_allclose(stretch, stretch.mean(), rtol=0.1)  # no step takes it all
    from_odometry = ClosedOdometry.unmoved(coarse, odometry).nodes
    again = close_loops(coarse, odometry, claims, *sigmas, start=from_odometry).frames()[0]
    assert_allclose(again.center(), closed.center(), atol=0.02)
    some = closing.corrections(np.array([3, 57, 199]))
    assert_allclose(some.apply(odometry.center()[[3, 57, 199]]), closed.center()[[3, 57, 199]], atol=1e-12)


def test_a_loop_that_has_shrunk_grows_back() -> None:
    truth = circle(200, 0.0)
    rng = np.random.default_rng(1)
    shrunk = np.exp(-0.2 * np.arange(200) / 199)  # steps get shorter on the way round
    steps = np.diff(truth.center(), axis=0) * shrunk[1:, None]
    center = truth.center()[0] + np.concatenate([np.zeros((1, 3)), np.cumsum(steps, axis=0)])
    odometry = SE3.from_center(truth.rotation, center)
    edges = measure(odometry, *window_pairs(200, 4), rng)
    coarse = make_coarse_graph(edges, topology_of(edges), 10)
    correction = Corrections(np.eye(3)[None], center[199:], truth.center()[199:], np.array([0.2]))
    ones = np.ones(len(coarse.earlier))
    sharp = np.array([1e-3])
    closed = close_loops(
        coarse, odometry, Claims(np.array([0]), np.array([199]), correction),
        Sigmas(0.01 * ones, 0.05 * ones, 0.03 * ones), Sigmas(sharp, 10 * sharp, sharp), is_free=True,
    )  # fmt: skip
    poses, growth = closed.frames()
    assert_allclose(growth, -np.log(shrunk), atol=0.03)
    before, after = (np.linalg.norm(c - truth.center(), axis=-1).max() for c in (center, poses.center()))
    assert before > 5
    assert after < 0.15 * before


def test_without_claims_odometry_stands() -> None:
    rng = np.random.default_rng(2)
    poses = random_poses(30, rng)
    edges = measure(poses, *window_pairs(30, 4), rng)
    nobody, empty = np.zeros(0, np.int64), np.zeros(0)
    none = Claims(nobody, nobody, Corrections(np.zeros((0, 3, 3)), np.zeros((0, 3)), np.zeros((0, 3)), empty))
    coarse = make_coarse_graph(edges, topology_of(edges), 10)
    sigmas = Sigmas(empty, empty, empty)
    closed, growth = close_loops(coarse, poses, none, sigmas, sigmas).frames()
    assert_allclose(closed.matrix(), poses.matrix(), atol=1e-12)
    assert_array_equal(growth, 0)
