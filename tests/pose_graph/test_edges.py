"""Edges: their columns, and what cannot be solved is refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from anchor3r.errors import Anchor3RError
from anchor3r.pose_graph.edges import EdgeKind, Edges, MotionGraph, check_edges
from measured_graphs import measure, random_poses, window_pairs


def some_edges(count: int = 12) -> Edges:
    rng = np.random.default_rng(0)
    i, t = window_pairs(count, 4)
    return measure(random_poses(count, rng), i, t, rng, rotation_noise_rad=0.01)


def test_columns_are_what_was_given_and_defaults_elsewhere() -> None:
    rotation, translation = np.tile(np.eye(3), (5, 1, 1)), np.arange(15.0).reshape(5, 3)
    edges = Edges.of(
        [2, 3, 4, 1, 2], [5, 5, 5, 20, 20], rotation, translation, kind=[0, 0, 0, 1, 1],
        group=[0, 0, 0, 1, 1], weight=[1, 1, 1, 0.5, 2.0],
        log_scale_sigma=[np.nan, np.nan, np.nan, 0.01, 0.02],
    )  # fmt: skip
    graph = MotionGraph(edges)
    assert (graph.num_groups, len(graph)) == (2, 5)
    assert_array_equal(graph.frames(), [1, 2, 3, 4, 5, 20])
    assert_array_equal(edges.translation, translation)
    assert_array_equal(edges.weight, [1, 1, 1, 0.5, 2])
    assert np.isnan(edges.log_scale_ratio).all()
    assert not edges.has_information().any()


def test_one_value_serves_all_edges() -> None:
    edges = Edges.of([0, 1], 2, np.eye(3), [1.0, 0, 0], kind=EdgeKind.LOOP, information=np.eye(6))
    assert_array_equal(edges.frame_t, [2, 2])
    assert_array_equal(edges.kind, [EdgeKind.LOOP] * 2)
    assert edges.rotation.shape == (2, 3, 3)
    assert edges.has_information().all()
    chosen = edges.select(np.array([False, True]))
    assert_array_equal(chosen.frame_i, [1])
    assert_array_equal(chosen.information, np.eye(6)[None])


def test_each_edge_may_have_information_of_its_own() -> None:
    information = np.stack([np.eye(6), np.full((6, 6), np.nan), 3 * np.eye(6)])
    edges = Edges.of([0, 1, 2], 3, np.eye(3), [1.0, 0, 0], information=information)
    assert_array_equal(edges.has_information(), [True, False, True])
    chosen = edges.select(np.array([2, 1]))
    assert_array_equal(chosen.information, information[[2, 1]])
    assert_array_equal(chosen.has_information(), [True, False])
    assert edges.select(np.zeros(3, bool)).has_information().shape == (0,)


def spoiled(name: str, value: object) -> Edges:
    edges = some_edges()
    column = getattr(edges, name).copy()
    column[7] = value
    return replace(edges, **{name: column})


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("rotation", np.nan, "rotation that is not finite"),
        ("rotation", 2 * np.eye(3), "not a rotation"),
        ("rotation", np.diag([1.0, 1.0, -1.0]), "not a rotation"),
        ("translation", np.inf, "translation that is not finite"),
        ("translation", 1e200, "translation beyond"),
        ("information", 1e200 * np.eye(6), "information matrix with entries beyond"),
        ("weight", -1.0, "weight"),
        ("weight", np.nan, "weight"),
        ("frame_i", -3, "negative frame index"),
        ("kind", 9, "unknown kind"),
    ],
)
def test_refuses_edges_that_cannot_be_solved(name: str, value: object, reason: str) -> None:
    edges = spoiled(name, value)
    with pytest.raises(Anchor3RError, match=f"here: edge 7 .*{reason}"):
        check_edges(edges, "here")


def test_refuses_loops_of_one_frame_and_no_edges_at_all() -> None:
    edges = some_edges()
    with pytest.raises(Anchor3RError, match="joined to itself"):
        check_edges(replace(edges, frame_i=edges.frame_t), "here")
    with pytest.raises(Anchor3RError, match="no edges"):
        check_edges(edges.select(slice(0)), "here")
    check_edges(edges, "here")
