"""Drift: what windows promise, the shortest way through closed loops, and what it does at its end."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from anchor3r.pose_graph.drift import WayFinder, window_noise
from anchor3r.pose_graph.topology import topology_of
from drifting_graphs import DriftConfig, drifting_graph
from measured_graphs import measure, random_poses, window_pairs


def chain(count: int, spacing: int = 10) -> WayFinder:
    return WayFinder(spacing * np.arange(count), np.arange(count - 1), np.arange(1, count))


def test_the_way_is_the_shortest_one_through_closed_loops() -> None:
    center = np.random.default_rng(0).normal(size=(30, 3))
    ways = chain(30)
    start, end, target = np.array([2, 2, 5]), np.array([28, 4, 5]), np.zeros((3, 3))
    assert_allclose(ways.find(start, end, target, center).num_frames, [260, 20, 0])
    ways.open((np.array([3, 10, 25]), np.array([25, 12, 3])))
    assert_allclose(ways.find(start, end, target, center).num_frames, [40, 20, 0])
    assert_allclose(ways.num_frames(start, end, 40.0), [40, 20, 0])
    assert_allclose(ways.num_frames(start, end, 39.0), [np.inf, 20, 0])
    ways.open((np.array([10]), np.array([12])))
    assert_allclose(ways.find(start, end, target, center).num_frames, [240, 20, 0])


def test_tracks_that_nothing_joins_have_no_way() -> None:
    ways = WayFinder(10 * np.arange(4), np.array([0, 2]), np.array([1, 3]))
    found = ways.find(np.array([0]), np.array([3]), np.zeros((1, 3)), np.zeros((4, 3)))
    assert np.isinf(found.num_frames[0])


def test_errors_along_the_way_add_up_as_in_a_simulation() -> None:
    """Second way: turn and stretch a chain of nodes at random, step by step, and look at its end."""
    rng = np.random.default_rng(1)
    center = np.cumsum(rng.normal(size=(12, 3)), axis=0)
    found = chain(12).find(np.array([0]), np.array([11]), center[11:], center)
    turn, stretch = 1e-3 * rng.normal(size=(2, 20000, 11, 3)) * np.sqrt(10)
    middle = 0.5 * (center[1:] + center[:-1])
    lever = center[11] - middle
    moved = np.cross(turn, lever[None]).sum(1)
    samples = np.concatenate([turn.sum(1), moved], 1)
    assert_allclose(np.cov(samples.T) / 1e-6, found.covariance_rate[0, 0, :6, :6], rtol=0.1, atol=60)
    grown = stretch[..., :1]
    samples = np.concatenate([(grown * lever[None]).sum(1), grown.sum(1)], 1)
    expected = found.covariance_rate[0, 1, 3:, 3:]
    within = 10 * (np.diff(center, axis=0) ** 2).sum() / 12  # along each axis, of the steps themselves
    assert_allclose(np.cov(samples.T) / 1e-6 + within * np.diag([1, 1, 1, 0]), expected, rtol=0.1, atol=60)


def test_noise_is_what_windows_promise_or_what_odometry_misses() -> None:
    drive = drifting_graph(DriftConfig(num_frames=300, scale_drifts=False, promised=2.0))
    edges = drive.graph.edges
    noise = window_noise(edges, topology_of(edges), drive.camera_from_world, is_free=True)
    assert_allclose(
        [noise.rotation_rad, noise.relative, noise.num_frames], [np.radians(0.04), 0.004, 9], rtol=0.05
    )
    rng = np.random.default_rng(3)
    poses = random_poses(400, rng)
    measured = measure(poses, *window_pairs(400, 10), rng, rotation_noise_rad=0.01, translation_noise=0.0)
    found = window_noise(measured, topology_of(measured), poses)
    assert_allclose(found.rotation_rad, 0.01, rtol=0.15)
    assert_allclose(found.rotation_rate, found.rotation_rad / 9)
