"""Where down is, and headings, as priors: less tilt drift, wrong ones cut and named, bad files refused."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from anchor3r import load_map, map_source, refine_map
from anchor3r.cli.main import main
from anchor3r.geometry import so3_exp
from anchor3r.pipeline.knowledge import PriorSettings
from anchor3r.pipeline.settings import MapSettings, RefineSettings
from anchor3r.trajectory import Trajectory

NOISE_DEG = 1.0
TURN = so3_exp([0.0, 0.7, 0.0])
"""North of the compass in the world: east, down and north of it are other axes than those of the map."""


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("directions") / "map"
    source = "world:5?motion=grid&frames=240&width=64&height=48"
    map_source(source, folder, MapSettings(predictor="ground-truth:2,0.02", keep_images=False))
    return folder


@pytest.fixture
def folder(drive: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(drive, tmp_path / "map"))


def truth(folder: Path) -> Trajectory:
    with load_map(folder) as scene_map:
        true = scene_map.true_trajectory()
    assert true is not None
    return true


def write_directions(
    path: Path, true: Trajectory, *, compass: bool = False, wrong: int = 0, every: int = 2, sigma: bool = True
) -> np.ndarray:
    """Noisy directions of every second frame, each ninth wrong by 20 to 60 degrees if so; which are wrong."""
    rng = np.random.default_rng(4)
    rows = np.arange(0, len(true), every)
    tilt = np.radians(NOISE_DEG) * rng.normal(size=(len(rows), 3))
    is_wrong = np.zeros(len(rows), bool)
    if wrong:
        is_wrong[5::wrong] = True
        axis = rng.normal(size=(int(is_wrong.sum()), 3)) * [1, 0, 1]
        axis /= np.linalg.norm(axis, axis=1, keepdims=True)
        tilt[is_wrong] = axis * np.radians(rng.uniform(20, 60, len(axis)))[:, None]
    down = (true.rotation[rows] @ (so3_exp(tilt) @ [0.0, 1.0, 0.0])[..., None])[..., 0]
    ahead = true.rotation[rows, 2] @ TURN.T
    heading = np.degrees(np.arctan2(ahead[:, 0], ahead[:, 2])) + 2 * rng.normal(size=len(rows))
    heading[::11] += 70
    assert true.timestamps_s is not None
    lines = ["time,down_x,down_y,down_z,sigma,heading,heading_sigma"]
    for k, row in enumerate(rows):
        spread, turned = (NOISE_DEG, 2.0) if sigma else ("", "")
        told = f"{heading[k]:.3f},{turned}" if compass else ","
        x, y, z = 9.81 * down[k]
        lines.append(f"{true.timestamps_s[row] + 0.004:.5f},{x:.5f},{y:.5f},{z:.5f},{spread},{told}")
    path.write_text("\n".join(lines))
    return is_wrong


def downs(found: Trajectory, true: Trajectory) -> np.ndarray:
    """(n, 3) where each frame's true down is by the found rotations."""
    return np.einsum("kji,kj->ki", found.rotation, true.rotation[:, :, 1])


def tilt_drift_deg(folder: Path, name: str, true: Trajectory) -> float:
    """RMS angle of those to their mean direction."""
    with load_map(folder) as scene_map:
        down = downs(scene_map.trajectory(name), true)
    mean = down.mean(0) / np.linalg.norm(down.mean(0))
    return float(np.degrees(np.sqrt(np.mean(((down - mean) ** 2).sum(1)))))


@pytest.mark.parametrize("wrong", [0, 9])
@pytest.mark.parametrize("sigma", [True, False])
def test_down_takes_out_the_drift_of_tilt(folder: Path, tmp_path: Path, wrong: int, sigma: bool) -> None:
    true = truth(folder)
    is_wrong = write_directions(tmp_path / "down.csv", true, wrong=wrong, sigma=sigma)
    refine_map(folder, RefineSettings(loops=False), name="plain")
    priors = PriorSettings(directions=str(tmp_path / "down.csv"))
    summary = refine_map(folder, RefineSettings(loops=False, priors=priors))
    assert summary["units"] == "units"
    assert "scale_sigma" not in summary
    plain, refined = (tilt_drift_deg(folder, name, true) for name in ("plain", "offline"))
    assert plain > 0.8
    assert refined < 0.5 * plain
    with load_map(folder) as scene_map:
        down = downs(scene_map.trajectory("offline"), true)
    assert np.degrees(np.linalg.norm(down.mean(0) - [0, 1, 0])) < 0.3  # the world is level
    (kind,) = summary["priors"]
    assert kind["kind"] == "direction"
    stated = 1.0 if sigma else 0.5  # of a sigma of two degrees where none is stated
    assert 0.6 * stated < kind["spread"] < 1.4 * stated
    with open(folder / "priors.csv") as file:
        table = list(csv.DictReader(file))
    cut = np.array([row["accepted"] == "no" for row in table])
    assert cut[is_wrong].all()
    assert cut[~is_wrong].sum() <= 2
    assert table[5]["entry"] == "line 7"
    assert {row["reason"] for row, was_cut in zip(table, cut, strict=True) if was_cut} <= {
        "the map contradicts it"
    }


def test_headings_turn_the_map_to_the_north(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    true = truth(folder)
    write_directions(tmp_path / "both.csv", true, compass=True)
    options = ["--directions", str(tmp_path / "both.csv"), "--distance", "3", "200"]
    metres = 3 * float(np.linalg.norm(true.center[3] - true.center[200]))
    assert main(["refine", str(folder), "--no-loops", *options, f"{metres:.3f}", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["units"] == "m"
    kinds = {kind["kind"]: kind for kind in summary["priors"]}
    assert set(kinds) == {"distance", "direction", "heading"}
    assert 8 <= kinds["heading"]["cut"] <= 14  # each eleventh of 120 is off by 70 degrees
    with load_map(folder) as scene_map:
        found = scene_map.trajectory("offline")
    expected = true.rotation @ TURN.T
    error = np.einsum("kij,kij->k", found.rotation, expected)
    assert np.degrees(np.arccos(np.clip((error - 1) / 2, -1, 1))).mean() < 1.5
    assert main(["report", str(folder), "--out", str(tmp_path / "r.html")]) == 0
    assert "residual of each heading" in (tmp_path / "r.html").read_text()


def test_headings_alone_and_frames_instead_of_times(folder: Path, tmp_path: Path) -> None:
    true = truth(folder)
    ahead = true.rotation[:, 2] @ TURN.T
    heading = np.degrees(np.arctan2(ahead[:, 0], ahead[:, 2]))
    lines = [f"{frame},{heading[frame]:.3f}" for frame in range(0, 240, 5)]
    (tmp_path / "compass.csv").write_text("\n".join(["frame,heading", *lines]))
    priors = PriorSettings(directions=str(tmp_path / "compass.csv"))
    refine_map(folder, RefineSettings(loops=False, priors=priors))
    with load_map(folder) as scene_map:
        found = scene_map.trajectory("offline").rotation[:, 2]
    away = np.degrees(np.arctan2(found[:, 0], found[:, 2])) - heading
    assert np.abs((away + 180) % 360 - 180).mean() < 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has to name the columns time or frame"),
        ("time,sigma\n0,1", "has to name the columns time or frame"),
        ("time,down_x,down_y,down_z\n0.1,0,0,0", "are no direction"),
        ("time,down_x,down_y,down_z\n0.1,0,,1", "are no direction"),
        ("time,down_x,down_y,down_z\n0.1,0,nan,1", "not a number"),
        ("time,heading\n0.1,north", "is damaged"),
        ("time,heading,heading_sigma\n0.1,10,-1", "must be positive"),
        ("time,heading\n1000,10", "none of its 1 lines is of a frame"),
        ("frame,heading\n9999,10", "none of its 1 lines is of a frame"),
    ],
)
def test_what_is_no_direction_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, complaint: str
) -> None:
    (tmp_path / "d.csv").write_text(text)
    assert main(["refine", str(folder), "--no-loops", "--directions", str(tmp_path / "d.csv")]) == 1
    assert complaint in capsys.readouterr().err
    with load_map(folder) as scene_map:
        assert scene_map.trajectory_names() == ["online"]
