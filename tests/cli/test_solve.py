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
from anchor3r.geometry import SE3, so3_exp, umeyama
from anchor3r.io.g2o import write_g2o
from anchor3r.io.graph_files import load_graph, save_graph
from anchor3r.io.trajectories import read_kitti, read_tum
from anchor3r.pose_graph.edges import Edges, MotionGraph
from anchor3r.pose_graph.joint import refine_poses
from anchor3r.pose_graph.online import estimate_trajectory
from generated_graphs import SyntheticConfig, synthetic_graph
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


@pytest.mark.parametrize("method", ["paper", "decoupled", "joint"])
@pytest.mark.parametrize("kind", ["npz", "g2o"])
def test_writes_poses_and_a_report(
    method: str, kind: str, truth: SE3, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    graph: Path = request.getfixturevalue(kind)
    out, report = tmp_path / "poses.txt", tmp_path / "report.json"
    assert solve(graph, "--method", method, "--out", out, "--report", report) == 0
    assert np.abs(read_kitti(out).center - truth.center()).max() < 0.05
    summary = json.loads(report.read_text())
    # ADMM's step follows from the start: from vertices far off for so little noise it needs longer.
    slow = method == "paper" and kind == "g2o"
    assert summary["status"] == ("max_iterations" if slow else "converged")
    assert summary["iterations"] >= 1
    assert 0 <= summary["cost"] < np.inf
    if method == "paper":  # the joint solve measures the noise anew at its end, so costs are not comparable
        assert summary["cost"] <= summary["initial_cost"]
    assert 0 < summary["cpu_seconds"] < 60
    assert summary["start"] == ("vertices" if kind == "g2o" else "online medians")
    assert (summary["num_frames"], summary["num_components"], summary["method"]) == (30, 1, method)


def test_least_squares_without_a_robust_loss(g2o: Path, truth: SE3, tmp_path: Path) -> None:
    out = tmp_path / "poses.tum"
    assert solve(g2o, "--loss", "none", "--out", out) == 0
    trajectory = read_tum(out)
    assert_allclose(trajectory.timestamps_s, np.arange(30))
    assert np.abs(trajectory.center - truth.center()).max() < 0.05


def test_says_how_many_matrices_were_replaced(
    g2o: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = g2o.read_text().splitlines()
    edges = [k for k, line in enumerate(lines) if line.startswith("EDGE")]
    for k in edges[::3]:
        words = lines[k].split()
        words[10] = "-1e-3"
        lines[k] = " ".join(words)
    (tmp_path / "graph.g2o").write_text("\n".join(lines))
    assert solve(tmp_path / "graph.g2o") == 0
    assert f"{len(edges[::3])} of {len(edges)} information matrices" in capsys.readouterr().err


@pytest.mark.parametrize("information", ["true", "identity"])
def test_a_route_without_kinds_and_groups_is_solved_as_well_as_with(tmp_path: Path, information: str) -> None:
    """Outlier edges and false loops in a file of another program, from online medians."""
    route = synthetic_graph(SyntheticConfig(num_frames=600, seed=1, false_events=0.05))
    edges, start = route.graph.edges, estimate_trajectory(route.graph.edges)
    matrices = np.broadcast_to(np.eye(6), (len(edges), 6, 6))
    if information == "true":
        length = np.maximum(np.linalg.norm(edges.translation, axis=1), 0.1)
        sigma = np.stack([np.full(len(edges), np.radians(0.2)), 0.02 * length], 1).repeat(3, 1)
        matrices = sigma[:, :, None] ** -2 * np.eye(6)
    path, out = tmp_path / "route.g2o", tmp_path / "poses.txt"
    write_g2o(path, MotionGraph(replace(edges, information=matrices)), np.arange(600), start)
    path.write_text("".join(line for line in path.read_text().splitlines(True) if line[0] != "#"))
    assert solve(path, "--out", out) == 0
    truth = route.camera_from_world.center()
    found = [read_kitti(out).center, refine_poses(route.graph, start)[0].camera_from_world.center()]
    ours, with_groups = (np.linalg.norm(umeyama(c, truth).apply(c) - truth, axis=1).mean() for c in found)
    assert ours < 1.1 * with_groups < 0.1


def test_loops_survive_noise_as_large_as_it_is_told(tmp_path: Path) -> None:
    """Rings joined edge by edge, much noise and no outlier: the robust loss ends near plain least squares."""
    rng = np.random.default_rng(0)
    i, t = np.concatenate([[np.arange(299), np.arange(1, 300)], [np.arange(280), np.arange(20, 300)]], 1)
    angle = 2 * np.pi * np.arange(300) / 20
    center = 10 * np.stack([np.cos(angle), np.sin(angle), np.arange(300) / 60], 1)
    poses = SE3.from_center(so3_exp(np.outer(angle, [0.0, 0, -1])), center)
    edges = measure(poses, i, t, rng, rotation_noise_rad=0.1, translation_noise=0.5)
    information = np.diag(np.repeat([0.1**-2, 0.5**-2], 3))
    odometry = [SE3.identity()]
    for k in range(299):
        odometry.append(SE3(edges.rotation[k], edges.translation[k]).inverse() @ odometry[-1])
    start = SE3(np.stack([p.rotation for p in odometry]), np.stack([p.translation for p in odometry]))
    graph = MotionGraph(Edges.of(i, t, edges.rotation, edges.translation, information=information))
    write_g2o(tmp_path / "rings.g2o", graph, np.arange(300), start)
    costs = []
    for loss in ("none", "gm"):
        out = tmp_path / f"{loss}.txt"
        assert solve(tmp_path / "rings.g2o", "--loss", loss, "--out", out) == 0
        found = read_kitti(out).camera_from_world
        measured = SE3(edges.rotation, edges.translation)
        error = (measured.inverse() @ found[i] @ found[t].inverse()).log()
        costs.append(np.einsum("ei,ij,ej", error, information, error))
    assert costs[1] < 1.05 * costs[0]


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
        "nan.npz": "edge 3 .* not finite", "absent.npz": "cannot read", "absent.g2o": "cannot read",
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
