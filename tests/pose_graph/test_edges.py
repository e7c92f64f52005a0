"""The edge store: what goes in comes out, on disk too, and what cannot be solved is refused by name."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

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


def assert_same(a: Edges, b: Edges) -> None:
    for field in fields(Edges):
        assert_array_equal(getattr(a, field.name), getattr(b, field.name), err_msg=field.name)


def test_groups_keep_what_they_were_given() -> None:
    graph = MotionGraph()
    rotations, translations = np.tile(np.eye(3), (3, 1, 1)), np.arange(9.0).reshape(3, 3)
    assert graph.add_group(5, [2, 3, 4], rotations, translations) == 0
    loop = graph.add_group(
        [20, 20], [1, 2], rotations[:2], translations[:2], kind=EdgeKind.LOOP, weight=[0.5, 2.0],
        log_scale_ratio=0.1, log_scale_sigma=[0.01, 0.02],
    )  # fmt: skip
    assert (loop, graph.num_groups, len(graph)) == (1, 2, 5)
    edges = graph.edges
    assert_array_equal(edges.frame_t, [5, 5, 5, 20, 20])
    assert_array_equal(edges.frame_i, [2, 3, 4, 1, 2])
    assert_array_equal(edges.group, [0, 0, 0, 1, 1])
    assert_array_equal(edges.kind, [0, 0, 0, 1, 1])
    assert_array_equal(edges.weight, [1, 1, 1, 0.5, 2])
    assert_array_equal(edges.log_scale_sigma, [np.nan, np.nan, np.nan, 0.01, 0.02])
    assert_array_equal(edges.translation, np.concatenate([translations, translations[:2]]))
    assert_array_equal(graph.frames(), [1, 2, 3, 4, 5, 20])


def test_grows_without_losing_edges() -> None:
    graph = MotionGraph()
    for anchor in range(1, 500):
        graph.add_group(anchor, [anchor - 1], np.eye(3)[None], np.full((1, 3), anchor))
    assert_array_equal(graph.edges.frame_t, np.arange(1, 500))
    assert_array_equal(graph.edges.translation[:, 0], np.arange(1, 500))


def test_information_is_unknown_until_an_edge_brings_it() -> None:
    graph = MotionGraph()
    graph.add_group(1, [0], np.eye(3)[None], np.zeros((1, 3)))
    assert not graph.has_information
    assert np.isnan(graph.edges.information).all()
    graph.add_group(
        2, [0, 1], np.tile(np.eye(3), (2, 1, 1)), np.zeros((2, 3)), information=np.tile(np.eye(6), (2, 1, 1))
    )
    graph.add_group(3, [2], np.eye(3)[None], np.zeros((1, 3)))
    known = np.isfinite(graph.edges.information).all((1, 2))
    assert_array_equal(known, [False, True, True, False])


def test_columns_are_read_only() -> None:
    graph = MotionGraph.from_edges(some_edges())
    with pytest.raises(ValueError, match="read-only"):
        graph.edges.weight[0] = 3


@pytest.mark.parametrize("with_information", [False, True])
def test_comes_back_from_disk(tmp_path: Path, with_information: bool) -> None:
    edges = some_edges()
    if with_information:
        edges = replace(edges, information=np.tile(np.diag(np.arange(1.0, 7)), (len(edges), 1, 1)))
    MotionGraph.from_edges(edges).save(tmp_path / "graph.npz")
    loaded = MotionGraph.load(tmp_path / "graph.npz")
    assert_same(loaded.edges, edges)
    assert loaded.has_information == with_information
    assert loaded.num_groups == edges.group.max() + 1


def test_an_empty_graph_comes_back_from_disk(tmp_path: Path) -> None:
    MotionGraph().save(tmp_path / "graph.npz")
    assert len(MotionGraph.load(tmp_path / "graph.npz")) == 0


def test_refuses_files_that_are_no_graph(tmp_path: Path) -> None:
    cases = {"absent.npz": None, "text.npz": b"hello", "cut.npz": b"", "other.npz": b""}
    MotionGraph.from_edges(some_edges()).save(tmp_path / "cut.npz")
    cases["cut.npz"] = (tmp_path / "cut.npz").read_bytes()[:500]
    np.savez(tmp_path / "other.npz", points=np.zeros(3))
    cases["other.npz"] = (tmp_path / "other.npz").read_bytes()
    for name, content in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(Anchor3RError, match=name):
            MotionGraph.load(tmp_path / name)


def test_refuses_a_file_with_a_column_of_the_wrong_shape(tmp_path: Path) -> None:
    MotionGraph.from_edges(some_edges()).save(tmp_path / "graph.npz")
    with np.load(tmp_path / "graph.npz") as archive:
        columns = dict(archive)
    np.savez(tmp_path / "bad.npz", **columns | {"weight": np.ones(3)})
    with pytest.raises(Anchor3RError, match="weight"):
        MotionGraph.load(tmp_path / "bad.npz")


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
        ("weight", -1.0, "weight"),
        ("weight", np.nan, "weight"),
        ("frame_i", -3, "negative frame index"),
        ("kind", 9, "unknown kind"),
    ],
)
def test_refuses_edges_that_cannot_be_solved(tmp_path: Path, name: str, value: object, reason: str) -> None:
    edges = spoiled(name, value)
    with pytest.raises(Anchor3RError, match=f"here: edge 7 .*{reason}"):
        check_edges(edges, "here")
    MotionGraph.from_edges(edges).save(tmp_path / "graph.npz")
    with pytest.raises(Anchor3RError, match=reason):
        MotionGraph.load(tmp_path / "graph.npz")


def test_refuses_loops_of_one_frame_and_no_edges_at_all() -> None:
    edges = some_edges()
    with pytest.raises(Anchor3RError, match="joined to itself"):
        check_edges(replace(edges, frame_i=edges.frame_t), "here")
    with pytest.raises(Anchor3RError, match="no edges"):
        check_edges(edges.select(slice(0)), "here")
    check_edges(edges, "here")
