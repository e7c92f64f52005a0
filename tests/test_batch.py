"""Many sequences from one table: results, failures, kills, going on, shards, and manifests that are wrong."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anchor3r.batch import read_manifest
from anchor3r.cli.main import main
from anchor3r.errors import Anchor3RError
from anchor3r.sources import open_source

WORLD = "world:{}?motion=driving&frames=12&width=64&height=48"
TRUTH = "ground-truth:0.2,0.02"


def write_manifest(path: Path) -> Path:
    path.write_text(
        "source,name,stop,refine,export,predictor\n"
        f'"{WORLD.format(1)}",first,,no,tum colmap rosbag2,"{TRUTH}"\n'
        f'"{WORLD.format(2)}",,8,yes,,"{TRUTH}"\n'
        "no/such/video.mp4,broken,,,,\n"
    )
    return path


def run(*arguments: object) -> int:
    return main(["batch", *map(str, arguments)])


def table(path: Path) -> dict[str, dict[str, str]]:
    with open(path) as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def test_a_table_is_mapped_and_a_broken_row_fails_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = write_manifest(tmp_path / "rows.csv")
    assert run(manifest, "--out", out, "--workers", 2) == 0
    found = table(out / "results.csv")
    assert [row["state"] for row in found.values()] == ["done", "done", "failed"]
    second = next(name for name in found if name not in ("first", "broken"))
    assert (found["first"]["with_pose"], found[second]["with_pose"]) == ("12", "8")
    assert "no/such/video.mp4" in found["broken"]["error"]
    assert (out / "first" / "first.tum").is_file()
    assert (out / "first" / "first-colmap" / "sparse").is_dir()
    assert (out / "first" / "first-rosbag2" / "metadata.yaml").is_file()
    assert (out / "first" / "picture.png").is_file()
    page = (out / "index.html").read_text()
    assert "2 of 3 sequences" in page
    assert "frames 12, with pose 12" in page
    before = (out / "first" / "result.json").stat().st_mtime_ns
    assert run(manifest, "--out", out) == 0
    assert (out / "first" / "result.json").stat().st_mtime_ns == before


def test_errors_are_told_with_the_length_that_they_are_of(tmp_path: Path) -> None:
    manifest = tmp_path / "rows.csv"
    uri = "world:9?kind=room&motion=handheld&width=320&height=240&frames=24"
    manifest.write_text(f'source,name,refine,predictor\n"{uri}",room,no,features\n')
    assert run(manifest, "--out", tmp_path / "out") == 0
    found = table(tmp_path / "out" / "results.csv")["room"]
    with open_source(uri) as source:
        poses = [frame.camera_from_world for frame in source]
    center = np.array([pose.center() for pose in poses if pose is not None])
    length = np.linalg.norm(np.diff(center, axis=0), axis=1).sum()
    assert float(found["true_path_length"]) == pytest.approx(length, rel=1e-5)
    assert 0 < float(found["ate_online"]) < 0.05 * length


def results(out: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/result.json")}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are found in /proc")
def test_no_sequence_is_lost_when_workers_are_killed(tmp_path: Path) -> None:
    """Two kills while maps grow: the figures are those of a run in peace, and no map begins anew."""
    manifest, rng = tmp_path / "rows.csv", random.Random(0)
    long = "world:{}?motion=driving&frames=60&width=64&height=48"
    rows = [f'"{long.format(k)}","{TRUTH}",no\n' for k in range(1, 4)]
    manifest.write_text("source,predictor,refine\n" + "".join(rows))
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "anchor3r", "batch", manifest, "--out", out, "--workers", "2"]
    program = subprocess.Popen([*map(str, command), "--tries", "9"], stdout=subprocess.DEVNULL)
    before: dict[Path, int] = {}
    for _ in range(2):
        while program.poll() is None and not (begun := unfinished_maps(out)):
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.3))
        before |= {path: path.stat().st_ino for path in begun if path.exists()}
        children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        workers = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(int(rng.choice(workers)), signal.SIGKILL)
        time.sleep(0.1)
    assert program.wait() == 0
    assert before
    assert before == {path: path.stat().st_ino for path in before}, "maps went on where they were"
    assert run(manifest, "--out", tmp_path / "sound") == 0
    assert len(results(out)) == 3
    assert results(out) == results(tmp_path / "sound")


def unfinished_maps(out: Path) -> list[Path]:
    return [path for path in out.glob("*/map") if not (path.parent / "result.json").exists()]


def test_batch_and_evaluate_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of two processes does the same as this one; paths are relative to where the command is."""
    ray = pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    write_manifest(Path("rows.csv"))
    short = ["--motions", "driving", "--seeds", "101", "--frames", "8", "--predictor", TRUTH]
    try:
        assert run("rows.csv", "--out", "ray", "--workers", 2, "--ray", "local") == 0
        assert (
            main(["evaluate", "worlds", "--out", "on-ray", *short, "--ray", "local", "--workers", "2"]) == 0
        )
    finally:
        ray.shutdown()
    assert run("rows.csv", "--out", "here") == 0
    assert main(["evaluate", "worlds", "--out", "here-too", *short]) == 0
    assert table(Path("ray/results.csv")) == table(Path("here/results.csv"))
    told = {name: (Path(name) / "table.md").read_text() for name in ("on-ray", "here-too")}
    assert "ATE" in told["on-ray"]
    for text in ("| ATE", "| RRE"):
        lines = [[line for line in table.splitlines() if line.startswith(text)] for table in told.values()]
        assert lines[0] == lines[1]


def test_shards_do_their_part_and_a_last_run_collects(tmp_path: Path) -> None:
    out, manifest = tmp_path / "out", write_manifest(tmp_path / "rows.csv")
    assert run(manifest, "--out", out, "--shard", "0/2") == 0
    assert set(table(out / "results-0-of-2.csv")) == {"first", "broken"}
    assert run(manifest, "--out", out, "--shard", "1/2") == 0
    assert run(manifest, "--out", out, "--json") == 0
    assert len(table(out / "results.csv")) == 3


def test_results_of_other_settings_are_not_taken_over(tmp_path: Path) -> None:
    manifest = tmp_path / "rows.json"
    row = {"source": WORLD.format(1), "name": "a", "refine": False, "predictor": TRUTH}
    manifest.write_text(json.dumps([row]))
    assert run(manifest, "--out", tmp_path / "out") == 0
    manifest.write_text(json.dumps([row | {"stop": 6}]))
    assert run(manifest, "--out", tmp_path / "out") == 1
    assert "other settings" in table(tmp_path / "out" / "results.csv")["a"]["error"]


@pytest.mark.parametrize(
    "change", [{"state": "failed"}, {"name": "../../x"}, {"frames": float("nan")}, {"with_pose": [1]}]
)
def test_a_result_that_somebody_has_changed_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    manifest, out = tmp_path / "rows.json", tmp_path / "out"
    row = {"source": WORLD.format(1), "name": "a", "refine": False, "predictor": TRUTH, "stop": 2}
    manifest.write_text(json.dumps([row]))
    assert run(manifest, "--out", out) == 0
    path = out / "a/result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert run(manifest, "--out", out) == 1
    assert f"{next(iter(change))!r} is no figure" in table(out / "results.csv")["a"]["error"]


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.csv", "source,colour\nx,red\n", "column 'colour'"),
        ("a.csv", "source,stop\nx,soon\n", "stop is 'soon'"),
        ("a.csv", "source,refine\nx,perhaps\n", "refine is 'perhaps'"),
        ("a.csv", "name\nx\n", "has no source"),
        ("a.csv", "source\n", "names no sequence"),
        ("a.csv", "source,name\nx,../y\n", "folder can have"),
        ("a.csv", "source,name\nx,y\nz,y\n", "name of two rows"),
        ("a.csv", "source,fov\nx,500\n", "fov 500"),
        ("a.csv", "source,export\nx,tum dxf\n", "line 2 of .*no export format 'dxf'; there are tum"),
        ("a.json", "{}", "list of objects"),
        ("a.json", "[1", "is not JSON"),
    ],
)
def test_manifests_that_are_wrong_say_where(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(Anchor3RError, match=complaint):
        read_manifest(path)


def test_rows_without_names_are_named_after_their_source(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("source\nvideos/a b.mp4\nother/a b.mp4\n")
    assert [row.name for row in read_manifest(path)] == ["a-b.mp4", "a-b.mp4-2"]


@pytest.mark.parametrize("shard", ["2/2", "x", "1/0"])
def test_a_shard_that_is_none_is_refused(
    tmp_path: Path, shard: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(write_manifest(tmp_path / "rows.csv"), "--out", tmp_path / "out", "--shard", shard) == 1
    assert "--shard" in capsys.readouterr().err
