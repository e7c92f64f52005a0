"""`anchor3r merge`: two maps of a room become one; a map of another room stays apart; bad input and kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anchor3r import load_map, map_source, open_source
from anchor3r.cli.main import main
from anchor3r.geometry import SE3, umeyama
from anchor3r.pipeline.settings import MapSettings
from anchor3r.store import ONLINE, Map, MapWriter
from anchor3r.trajectory import Trajectory

ROOM = "world:7?kind=room&width=320&height=240&frames=80&horizontal_fov_deg=70"
OTHER = ROOM.replace("world:7", "world:8")
EXACT = "ground-truth:0.05,0.01"


def make(out: Path, uri: str, start: int, stop: int, **settings: Any) -> Path:
    with open_source(uri, start=start, stop=stop, stride=2) as source:
        map_source(source, out, MapSettings(predictor=settings.pop("predictor", EXACT), **settings))
    return out


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """first and second: two halves of a walk through a room, the second in a scale of its own."""
    folder = tmp_path_factory.mktemp("merging")
    return {
        "first": make(folder / "first", ROOM, 0, 44),
        "second": make(folder / "second", ROOM, 35, 80, seed=3),
        "other": make(folder / "other", OTHER, 0, 44),
    }


@pytest.fixture(scope="module")
def merged(maps: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("merged") / "map"
    assert main(["merge", str(maps["first"]), str(maps["second"]), "--out", str(out)]) == 0
    return out


def error_of(trajectory: Trajectory, scene_map: Map) -> float:
    """Root mean square distance to the true centres, as a part of the length of the path."""
    truth = scene_map.true_trajectory()
    assert truth is not None
    _, a, b = np.intersect1d(trajectory.frames, truth.frames, return_indices=True)
    moved = umeyama(trajectory.center[a], truth.center[b]).apply(trajectory.center[a])
    length = np.linalg.norm(np.diff(truth.center[b], axis=0), axis=1).sum()
    return float(np.sqrt(((moved - truth.center[b]) ** 2).sum(1).mean()) / length)


def test_two_maps_of_a_room_become_one(maps: dict[str, Path], merged: Path) -> None:
    with load_map(merged) as scene_map, load_map(maps["second"]) as second:
        first, other = scene_map.parts()
        assert (first.first_frame, other.first_frame) == (0, 1000)
        offline = scene_map.trajectory("offline")
        assert offline.component is not None
        assert len(offline) == first.num_frames + other.num_frames == 45
        assert len(np.unique(offline.component)) == 1
        assert error_of(offline, scene_map) < 0.01
        online = scene_map.trajectory(ONLINE)
        assert online.component is not None
        assert np.unique(online.component).tolist() == [0, 1], "each map in its own world"
        assert error_of(online, scene_map) > 0.05
        # What the maps hold of their frames is all there.
        frames = second.frames().index
        np.testing.assert_array_equal(scene_map.frames().index[first.num_frames :], frames + 1000)
        frame = int(frames[3])
        assert scene_map.jpeg(frame + 1000) == second.jpeg(frame)
        mine, theirs = scene_map.points(frame + 1000), second.points(frame)
        assert mine is not None
        assert theirs is not None
        np.testing.assert_array_equal(mine.points_in_camera, theirs.points_in_camera)
        with scene_map.original_source() as source:
            assert source is not None
            assert scene_map.shows(source.read(frame + 1000))
            assert not scene_map.shows(source.read(frame + 1001))
        times = scene_map.frames().timestamp_s
        assert np.all(np.diff(times) > 0)
        assert len(scene_map.place_frames()) == 5 + 5
        between = [loop for loop in scene_map.loops() if loop.query >= 1000 > loop.match]
        assert sum(loop.accepted for loop in between) >= 3


def test_maps_in_scales_of_their_own_become_one(maps: dict[str, Path], tmp_path: Path) -> None:
    with open_source(ROOM, start=35, stop=80, stride=2) as source:
        frames = list(source)
    grown = []
    for frame in frames:
        assert frame.camera_from_world is not None
        assert frame.depth_m is not None
        pose = frame.camera_from_world
        pose = SE3(pose.rotation, 3.0 * np.asarray(pose.translation))
        grown.append(replace(frame, camera_from_world=pose, depth_m=3 * frame.depth_m))
    map_source(open_source(grown), tmp_path / "grown", MapSettings(predictor=EXACT))
    # The map that is not joined lies between the two that are.
    names = [str(folder) for folder in (maps["first"], maps["other"], tmp_path / "grown")]
    assert main(["merge", *names, "--out", str(tmp_path / "m")]) == 0
    with load_map(tmp_path / "m") as scene_map:
        offline, truth = scene_map.trajectory("offline"), scene_map.true_trajectory()
        assert truth is not None
        part = scene_map.part_of(offline.frames)
        center = np.where((part == 2)[:, None], truth.center / 3.0, truth.center)
        joined = part != 1
        error = umeyama(offline.center[joined], center[joined]).apply(offline.center[joined])
        assert np.abs(error - center[joined]).max() < 0.05
        assert offline.log_scale is not None
        assert abs(np.median(offline.log_scale[part == 2]) + np.log(3.0)) < 0.05


def test_what_reads_maps_reads_a_merged_one(merged: Path, tmp_path: Path) -> None:
    for command in (
        ["refine", str(merged), "--no-loops", "--name", "again"],
        ["render", str(merged), "--out", str(tmp_path / "map.png"), "--size", "200", "200"],
        ["report", str(merged), "--out", str(tmp_path / "report.html")],
        ["view", str(merged), "--save", str(tmp_path / "page")],
        ["export", str(merged), "--format", "tum", "--out", str(tmp_path / "poses.tum")],
        ["export", str(merged), "--format", "nerfstudio", "--out", str(tmp_path / "nerf")],
        ["evaluate", "map", str(merged), "--poses", "offline", "--out", str(tmp_path / "evaluation")],
        ["localise", str(merged), ROOM, "--start", "4", "--stride", "30", "--out", str(tmp_path / "at.tum")],
        ["densify", str(merged), "--every", "15", "--size", "160", "--no-fuse"],
        ["fuse", str(merged), "--depths", "predicted", "--min-views", "1"],
    ):
        assert main(command) == 0, command
    with load_map(merged) as scene_map:
        offline, again = scene_map.trajectory("offline"), scene_map.trajectory("again")
        np.testing.assert_allclose(again.center, offline.center, atol=1e-6)
        assert scene_map.densification().summary["images"] == "source"  # type: ignore[union-attr]
    assert len((tmp_path / "at.tum").read_text().splitlines()) >= 3
    assert "tracking broke" not in (tmp_path / "report.html").read_text()


def test_a_later_refinement_keeps_what_joins_the_parts(merged: Path) -> None:
    assert main(["refine", str(merged), "--name", "searched"]) == 0
    with load_map(merged) as scene_map:
        component = scene_map.trajectory("searched").component
        assert component is not None
        assert len(np.unique(component)) == 1
        joining = {(loop.query, loop.match) for loop in scene_map.loops("offline") if loop.accepted}
        kept = {(loop.query, loop.match) for loop in scene_map.loops("searched")}
        assert joining
        assert joining <= kept


def test_a_merged_map_is_merged_again_and_another_room_stays_apart(
    maps: dict[str, Path], merged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all"
    assert main(["merge", str(maps["other"]), str(merged), "--out", str(out), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [part["first_frame"] for part in summary["parts"]] == [0, 1000, 2000]
    assert summary["not_joined"] == [0]
    assert sorted(component["parts"] for component in summary["components"]) == [[0], [1, 2]]
    with load_map(out) as scene_map:
        assert len(scene_map.parts()) == 3
        joined = scene_map.trajectory("offline")
        assert error_of(joined.select(joined.frames >= 1000), scene_map) < 0.01
    assert main(["merge", str(maps["first"]), str(out), "--out", str(tmp_path / "twice")]) == 1
    assert "same map twice" in capsys.readouterr().err


def test_maps_that_share_nothing_are_said_so(
    maps: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["merge", str(maps["first"]), str(maps["other"]), "--out", str(tmp_path / "m")]) == 0
    assert capsys.readouterr().out.count("not joined") == 2
    with load_map(tmp_path / "m") as scene_map:
        component = scene_map.trajectory("offline").component
        assert component is not None
        assert len(np.unique(component)) == 2


def test_bad_input_is_refused_and_leaves_nothing(
    maps: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, out = str(maps["first"]), tmp_path / "m"
    small = make(tmp_path / "small", ROOM.replace("320", "160").replace("240", "120"), 0, 20)
    wide = make(tmp_path / "wide", ROOM.replace("deg=70", "deg=99"), 0, 20)
    others = make(tmp_path / "tiny", ROOM, 0, 20, predictor="tiny")
    blind = make(tmp_path / "blind", ROOM, 20, 40, keep_images=False)
    for second, message in (
        (first, "same map twice"),
        (str(small), "different cameras"),
        (str(wide), "focal lengths"),
        (str(others), "made by the predictor"),
        (str(blind), "keeps no images"),
        (str(tmp_path / "nowhere"), "holds no map"),
    ):
        assert main(["merge", first, second, "--out", str(out)]) == 1
        assert message in capsys.readouterr().err
    assert main(["merge", first, "--out", str(out)]) == 1
    assert "two maps" in capsys.readouterr().err
    assert main(["merge", first, str(maps["second"]), "--out", str(small)]) == 1
    assert "not empty" in capsys.readouterr().err
    assert not out.exists()
    assert not any(path.name.startswith(".m") for path in tmp_path.iterdir())


def test_parts_that_cannot_be_are_refused(
    merged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "foreign"
    shutil.copytree(merged, folder)
    with load_map(folder) as scene_map:
        parts = [asdict(part) for part in scene_map.parts()]
    for wrong in (
        [],
        [{"map": "a"}],
        [parts[1], parts[0]],
        [parts[0] | {"stride": 0}],
        [parts[0] | {"first_frame": -1}],
        [parts[0] | {"time_shift_s": "soon"}],
        [parts[0] | {"source": "rtsp://nowhere/live"}, 3],
    ):
        with MapWriter.open(folder) as writer:
            writer.write_meta(parts=wrong)
        assert main(["render", str(folder), "--out", str(tmp_path / "map.png")]) == 1
        assert str(folder) in capsys.readouterr().err


def test_a_merge_that_is_killed_leaves_no_map_and_can_be_repeated(
    maps: dict[str, Path], tmp_path: Path
) -> None:
    out, unfinished = tmp_path / "m", tmp_path / ".m.unfinished"
    command = ["merge", str(maps["first"]), str(maps["second"]), "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "anchor3r", *command], stderr=subprocess.DEVNULL)
    while not (unfinished / "map.sqlite").exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    assert main(command) == 0
    assert not unfinished.exists()
    with load_map(out) as scene_map:
        assert scene_map.num_frames == 45
