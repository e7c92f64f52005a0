"""Frames to rows, and what hangs together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from anchor3r.pose_graph.topology import topology_of
from measured_graphs import measure, random_poses


def edges_of(pairs: list[tuple[int, int]]):
    poses = random_poses(200, np.random.default_rng(0))
    i, t = (np.array([p[k] for p in pairs], np.int64) for k in (0, 1))
    return measure(poses, i, t, np.random.default_rng(0))


def test_gaps_in_the_frames_leave_no_gap_in_the_rows() -> None:
    topology = topology_of(edges_of([(100, 7), (7, 3)]))
    assert_array_equal(topology.frames, [3, 7, 100])
    assert_array_equal(topology.i, [2, 1])
    assert_array_equal(topology.t, [1, 0])
    assert topology.num_components == 1


def test_components_are_numbered_by_their_first_frame() -> None:
    topology = topology_of(edges_of([(9, 8), (1, 5), (8, 2), (5, 7)]))
    assert_array_equal(topology.frames, [1, 2, 5, 7, 8, 9])
    assert_array_equal(topology.component, [0, 1, 0, 0, 1, 1])
    assert_array_equal(topology.gauge, [0, 1])


def test_a_frame_without_edges_is_a_component() -> None:
    topology = topology_of(edges_of([(0, 1), (3, 4)]), np.arange(6))
    assert_array_equal(topology.component, [0, 0, 1, 2, 2, 3])
    assert_array_equal(topology.gauge, [0, 2, 3, 5])


def test_an_edge_of_weight_zero_joins_nothing() -> None:
    edges = edges_of([(0, 1), (1, 2)])
    topology = topology_of(replace(edges, weight=np.array([1.0, 0.0])))
    assert_array_equal(topology.component, [0, 0, 1])


def test_no_frames_at_all() -> None:
    topology = topology_of(edges_of([]))
    assert topology.num_components == 0
    assert len(topology.frames) == 0


def test_given_frames_must_include_those_of_edges() -> None:
    with pytest.raises(ValueError, match="not among the given"):
        topology_of(edges_of([(0, 3)]), np.array([0, 1, 2]))
