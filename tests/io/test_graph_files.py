"""Motion graphs on disk: what goes in comes out, and files that are none are refused by name."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from anchor3r.errors import Anchor3RError
from anchor3r.io.graph_files import load_graph, save_graph
from anchor3r.pose_graph.edges import Edges, MotionGraph
from measured_graphs import measure, random_poses, window_pairs


def some_edges(count: int = 12) -> Edges:
    rng = np.random.default_rng(0)
    i, t = window_pairs(count, 4)
    return measure(random_poses(count, rng), i, t, rng, rotation_noise_rad=0.01)


@pytest.mark.parametrize("with_information", [False, True])
def test_comes_back_from_disk(tmp_path: Path, with_information: bool) -> None:
    edges = some_edges()
    if with_information:
        edges = replace(edges, information=np.tile(np.diag(np.arange(1.0, 7)), (len(edges), 1, 1)))
    save_graph(tmp_path / "graph.npz", MotionGraph(edges))
    loaded = load_graph(tmp_path / "graph.npz")
    for field in fields(Edges):
        assert_array_equal(getattr(loaded.edges, field.name), getattr(edges, field.name), err_msg=field.name)
    assert loaded.edges.has_information().all() == with_information
    assert loaded.num_groups == edges.group.max() + 1


def test_an_empty_graph_comes_back_from_disk(tmp_path: Path) -> None:
    save_graph(tmp_path / "graph.npz", MotionGraph(Edges.of([], 0, np.eye(3), 0.0)))
    assert len(load_graph(tmp_path / "graph.npz")) == 0


def test_refuses_files_that_are_no_graph(tmp_path: Path) -> None:
    cases = {"absent.npz": None, "text.npz": b"hello", "cut.npz": b"", "other.npz": b""}
    save_graph(tmp_path / "cut.npz", MotionGraph(some_edges()))
    cases["cut.npz"] = (tmp_path / "cut.npz").read_bytes()[:500]
    np.savez(tmp_path / "other.npz", points=np.zeros(3))
    cases["other.npz"] = (tmp_path / "other.npz").read_bytes()
    for name, content in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(Anchor3RError, match=name):
            load_graph(tmp_path / name)


def test_refuses_a_file_with_a_column_of_the_wrong_shape(tmp_path: Path) -> None:
    save_graph(tmp_path / "graph.npz", MotionGraph(some_edges()))
    with np.load(tmp_path / "graph.npz") as archive:
        columns = dict(archive)
    np.savez(tmp_path / "bad.npz", **columns | {"weight": np.ones(3)})
    with pytest.raises(Anchor3RError, match="weight"):
        load_graph(tmp_path / "bad.npz")


def test_refuses_a_file_whose_edges_cannot_be_solved(tmp_path: Path) -> None:
    edges = some_edges()
    weight = edges.weight.copy()
    weight[7] = np.nan
    save_graph(tmp_path / "graph.npz", MotionGraph(replace(edges, weight=weight)))
    with pytest.raises(Anchor3RError, match=r"graph.npz: edge 7 .*weight"):
        load_graph(tmp_path / "graph.npz")
