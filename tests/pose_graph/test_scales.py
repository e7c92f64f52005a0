"""Units: ratios between windows, carried ratios, drift, walk, robustness."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from anchor3r.pose_graph.averaging.scales import (
    ScaleConfig,
    average_scales,
    in_one_scale,
    measured_ties,
    steady_drift,
)
from anchor3r.pose_graph.edges import Edges, MotionGraph
from anchor3r.pose_graph.report import Status
from anchor3r.pose_graph.topology import topology_of
from generated_graphs import SyntheticConfig, synthetic_graph
from measured_graphs import measure, random_poses, window_pairs


def test_exact_windows_tell_their_units() -> None:
    rng = np.random.default_rng(0)
    poses = random_poses(40, rng)
    edges = measure(poses, *window_pairs(40, 6), rng)
    truth = np.cumsum(0.1 * rng.normal(size=40))
    truth -= truth[0]
    topology = topology_of(edges)
    scaled = in_one_scale(edges, -truth, topology)  # each window in its own scale
    log_scale, report = average_scales(MotionGraph(scaled), ScaleConfig(walk_sigma=10.0))
    assert report.status is Status.CONVERGED
    # Windows of the first frames have too few members in common to tell.
    assert_allclose(log_scale[4:] - log_scale[4], truth[4:] - truth[4], atol=1e-6)
    assert_allclose(in_one_scale(scaled, truth, topology).translation, edges.translation, atol=1e-12)


def test_carried_ratios_alone() -> None:
    """Pairs share too little to be compared, but carry log_scale[t] - log_scale[i]."""
    edges = Edges.of(
        [0, 1, 2], [1, 2, 3], np.eye(3), [1.0, 0, 0], group=[0, 1, 2],
        log_scale_ratio=[0.5, -0.2, 0.1], log_scale_sigma=0.01,
    )  # fmt: skip
    log_scale, _ = average_scales(MotionGraph(edges), ScaleConfig(walk_sigma=10.0))
    assert_allclose(log_scale, [0, 0.5, 0.3, 0.4], atol=1e-5)


def test_windows_are_not_compared_better_than_their_predictor_says() -> None:
    """Windows cut from one local map agree exactly, and yet their common scale may drift."""
    rng = np.random.default_rng(0)
    edges = measure(random_poses(40, rng), *window_pairs(40, 6), rng)
    topology = topology_of(edges)
    told = replace(
        edges,
        log_scale_sigma=np.full(len(edges), 0.02),
        log_scale_ratio=np.full(len(edges), np.nan),
    )
    assert measured_ties(edges, topology).weight.max() > 1e6
    assert_allclose(measured_ties(told, topology).weight, 0.02**-2)


@pytest.mark.parametrize("drift", [1.0, 5.0])
def test_steady_drift(drift: float) -> None:
    route = synthetic_graph(SyntheticConfig(num_frames=1500, scale_drift=drift))
    log_scale, report = average_scales(route.graph)
    assert np.abs(log_scale - route.log_scale).max() < (0.003 if drift == 1 else 0.03)
    assert report.details["steady_drift"] is (drift > 1)


def test_random_walk() -> None:
    route = synthetic_graph(SyntheticConfig(num_frames=3000, scale_walk=3e-3))
    log_scale, report = average_scales(route.graph)
    assert np.ptp(route.log_scale) > 0.1
    assert np.std(log_scale - route.log_scale) < 0.02
    assert 3e-4 < report.details["walk_sigma"] < 6e-3


def test_outliers_and_false_loops_do_not_tell_units() -> None:
    faulty = synthetic_graph(
        SyntheticConfig(num_frames=1500, scale_drift=2.0, outlier_edges=0.15, false_events=0.2)
    )
    log_scale, _ = average_scales(faulty.graph)
    assert np.abs(log_scale - faulty.log_scale).max() < 0.06


def test_components_have_their_own_unit_and_weightless_edges_no_say() -> None:
    route = synthetic_graph(SyntheticConfig(num_frames=60, scale_drift=2.0))
    edges = route.graph.edges
    bridge = (edges.frame_i < 30) != (edges.frame_t < 30)
    cut = replace(edges, weight=np.where(bridge, 0.0, edges.weight))
    log_scale, report = average_scales(MotionGraph(cut))
    assert report.num_components == 2
    assert log_scale[0] == log_scale[30] == 0


def test_nothing_to_compare() -> None:
    log_scale, report = average_scales(MotionGraph(Edges.of([], 0, np.eye(3), 0.0)))
    assert len(log_scale) == 0
    assert report.status is Status.TRIVIAL
    i, t = window_pairs(8, 8)
    still = Edges.of(i, t, np.eye(3), 0.0, group=t)  # a camera that does not move measures no ratio
    assert len(measured_ties(still, topology_of(still)).a) == 0
    assert_allclose(average_scales(MotionGraph(still))[0], 0)


def test_trend_keeps_straight_lines() -> None:
    line = 0.01 * np.arange(1000) - 3
    assert_allclose(steady_drift(line, np.zeros(len(line), np.int64)), line, atol=1e-9)


def test_bad_config() -> None:
    with pytest.raises(ValueError, match="positive"):
        ScaleConfig(walk_sigma=-1.0)
    with pytest.raises(ValueError, match="max_iterations"):
        ScaleConfig(max_iterations=0)
