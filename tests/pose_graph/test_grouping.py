"""Kinds and groups that are inferred from which frames edges join."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_array_equal

from anchor3r.pose_graph.edges import EdgeKind
from anchor3r.pose_graph.grouping import infer_groups
from generated_graphs import SyntheticConfig, synthetic_graph
from measured_graphs import window_pairs


def test_windows_of_any_width_are_odometry() -> None:
    i, t = window_pairs(200, 12)
    kind, group = infer_groups(i, t)
    assert (kind == EdgeKind.WINDOW).all()
    assert_array_equal(group, t - 1)  # one for each anchor


def test_windows_that_reach_back_over_keyframes_are_odometry() -> None:
    rng = np.random.default_rng(0)
    t = np.repeat(np.arange(1, 500), 9)
    i = t - rng.integers(1, 40, len(t))
    kind, _ = infer_groups(i[i >= 0], t[i >= 0])
    assert (kind == EdgeKind.WINDOW).all()


def test_rings_are_joined_by_loops() -> None:
    """Edges to the frame one round earlier are as many as those to the last frame, but not close in time."""
    i = np.concatenate([np.arange(199), np.arange(150)])
    t = np.concatenate([np.arange(1, 200), np.arange(50, 200)])
    kind, group = infer_groups(i, t)
    assert_array_equal(kind, np.repeat([EdgeKind.WINDOW, EdgeKind.LOOP], [199, 150]))
    assert len(np.unique(group)) == 349


def test_loop_edges_of_one_place_are_one_event() -> None:
    i, t = window_pairs(300, 5)
    loop_i = np.array([20, 21, 22, 90, 91, 40, 41])
    loop_t = np.array([200, 200, 200, 200, 200, 201, 201])
    kind, group = infer_groups(np.concatenate([loop_i, i]), np.concatenate([loop_t, t]))
    assert_array_equal(kind == EdgeKind.LOOP, np.arange(len(kind)) < 7)
    assert_array_equal(group[:7] - group[0], [0, 0, 0, 1, 1, 2, 2])


def test_indices_may_have_gaps_and_edges_any_order() -> None:
    i, t = window_pairs(100, 4)
    order = np.random.default_rng(1).permutation(len(i))
    kind, group = infer_groups(10 * t[order] + 3, 10 * i[order] + 3)
    assert (kind == EdgeKind.WINDOW).all()
    assert len(np.unique(group)) == len(np.unique(i))


def test_a_route_is_told_apart_as_it_was_made() -> None:
    route = synthetic_graph(SyntheticConfig(num_frames=1500, seed=2))
    edges = route.graph.edges
    kind, group = infer_groups(edges.frame_i, edges.frame_t)
    assert_array_equal(kind, edges.kind)
    # Events of one anchor that look at the same place are one; none is torn apart.
    for told in np.unique(edges.group[edges.kind == EdgeKind.LOOP]):
        assert len(np.unique(group[edges.group == told])) == 1
