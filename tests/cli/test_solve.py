"""`anchor3r solve` as a user runs it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from anchor3r.cli import main as cli
from anchor3r.geometry import SE3
from anchor3r.io.g2o import write_g2o
from anchor3r.io.graph_files import load_graph, save_graph
from anchor3r.io.trajectories import read_kitti, read_tum
from anchor3r.pose_graph.edges import Edges, MotionGraph
from measured_graphs import measure, random_poses, window_pairs


def solve(*arguments: object) -> int:
    return cli.main(["solve", *map(str, arguments)])


@pytest.fixture(scope="module")
def truth() -> SE3:
    return random_poses(30, np.random.default_rng(0))


@pytest.fixture(scope="module")
def npz(truth: SE3, tmp_path_factory: pytest.TempPathFactory) -> Path:
    i, t = window_pairs(30, 5)
    edges = measure(truth, i, t, np.random.default_rng(1), rotation_noise_rad=1e-4, translation_noise=1e-3)
    path = tmp_path_factory.mktemp("graph") / "graph.npz"
    save_graph(path, MotionGraph(edges))
    return path


@pytest.fixture(scope="module")
def g2o(truth: SE3, npz: Path) -> Path:
    """The same graph, with vertices that are a little off."""
    rng = np.random.default_rng(2)
    start = SE3.exp(np.concatenate([np.zeros((1, 6)), 0.05 * rng.normal(size=(29, 6))])) @ truth
    path = npz.with_suffix(".g2o")
    write_g2o(path, load_graph(npz), np.arange(30), start)
    return path


@pytest.mark.parametrize("method", ["paper", "joint"])
@pytest.mark.parametrize("kind", ["npz", "g2o"])
def test_writes_poses_and_a_report(
    method: str, kind: str, truth: SE3, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    graph: Path = request.getfixturevalue(kind)
    out, report = tmp_path / "poses.txt", tmp_path / "report.json"
    assert solve(graph, "--method", method, "--out", out, "--report", report) == 0
    assert np.abs(read_kitti(out).center - truth.center()).max() < 0.05
    summary = json.loads(report.read_text())
    assert summary["status"] == "converged"
    assert summary["iterations"] >= 1
    assert 0 <= summary["cost"] <= summary["initial_cost"]
    assert 0 < summary["cpu_seconds"] < 60
    assert summary["start"] == ("vertices" if kind == "g2o" else "online medians")
    assert (summary["num_frames"], summary["num_components"], summary["method"]) == (30, 1, method)


def test_least_squares_without_a_robust_loss(g2o: Path, truth: SE3, tmp_path: Path) -> None:
    out = tmp_path / "poses.tum"
    assert solve(g2o, "--loss", "none", "--out", out) == 0
    trajectory = read_tum(out)
    assert_allclose(trajectory.timestamps_s, np.arange(30))
    assert np.abs(trajectory.center - truth.center()).max() < 0.05


def test_says_when_the_graph_is_broken(npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edges = load_graph(npz).edges
    broken = edges.select((edges.frame_i >= 15) | (edges.frame_t < 15))
    save_graph(tmp_path / "broken.npz", MotionGraph(broken))
    for method in ("paper", "joint"):
        out = tmp_path / "poses.txt"
        assert solve(tmp_path / "broken.npz", "--method", method, "--out", out) == 0
        assert "2 components" in capsys.readouterr().err
        assert np.isfinite(read_kitti(out).center).all()


def test_bad_input_is_explained(npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_graph(tmp_path / "empty.npz", MotionGraph(Edges.of([], 0, np.eye(3), 0.0)))
    (tmp_path / "empty.g2o").write_text("")
    (tmp_path / "graph.csv").write_text("1,2,3")
    edges = load_graph(npz).edges
    rotation = edges.rotation.copy()
    rotation[3] *= np.nan
    save_graph(tmp_path / "nan.npz", MotionGraph(replace(edges, rotation=rotation)))
    cases = {
        "empty.npz": "no edges", "empty.g2o": "no EDGE_SE3:QUAT", "graph.csv": ".npz or .g2o",
        "nan.npz": "edge 3 .* not finite", "absent.npz": "not a readable", "absent.g2o": "cannot read",
    }  # fmt: skip
    for name, reason in cases.items():
        assert solve(tmp_path / name) == 1
        message = capsys.readouterr().err
        assert name in message
        assert re.search(reason, message), message


def test_wrong_options_are_explained(npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert solve(npz, "--out", tmp_path / "poses.csv") == 1
    assert ".txt for KITTI or .tum for TUM" in capsys.readouterr().err
    assert solve(npz, "--method", "paper", "--loss", "none") == 1
    assert "--method joint" in capsys.readouterr().err
    assert solve(npz, "--method", "magic") == 2
