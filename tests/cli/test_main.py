"""Whole commands, as a user runs them: what they print, what they leave behind, and how they end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import trimesh
from evo.tools import file_interface
from numpy.testing import assert_array_equal

from anchor3r.cli import main as cli
from anchor3r.store import load_map
from toy_source import toy_pose, write_toy_sequence

NOISY = "ground-truth:0.5,0.02"


@pytest.fixture(scope="module")
def sequence(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_toy_sequence(tmp_path_factory.mktemp("toy") / "seq-01", 400)


def anchor3r(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def test_the_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert anchor3r("--help") == 0
    overview = capsys.readouterr().out
    for name, (_, description) in cli.COMMANDS.items():
        assert f"  {name} " in overview
        assert description in overview
    assert anchor3r() == 2
    assert anchor3r("--version") == 0


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_from_its_types(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, attribute = cli.COMMANDS[name][0].split(":")
    command = getattr(import_module(f"anchor3r.cli.{module}"), attribute)
    assert callable(command) or isinstance(command, dict)
    assert anchor3r(name, "--help") == 0
    assert f"anchor3r {name}" in capsys.readouterr().out


def test_help_breaks_lines_where_the_terminal_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert anchor3r("map", "--help") == 0
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    at = next(k for k, line in enumerate(lines) if line.startswith("stream takes images one after the other"))
    assert len(lines[at]) > 80
    assert lines[at + 1].endswith("(default: auto)")


def test_the_overview_loads_nothing_heavy() -> None:
    code = (
        "import sys; from anchor3r.cli.main import main; main(['--help']);"
        "sys.exit(bool({'torch', 'numpy', 'tyro', 'rich', 'cv2'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def test_wrong_usage_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert anchor3r("fly") == 2
    assert "no command 'fly'" in capsys.readouterr().err
    assert anchor3r("map") == 2
    assert anchor3r("map", "somewhere", "--out", tmp_path / "m", "--stride", "often") == 2
    assert anchor3r("export", tmp_path, "--format", "doc", "--out", tmp_path / "x") == 2


def test_problems_end_with_1_and_words(
    tmp_path: Path, sequence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    images = sequence.removeprefix("7scenes:")
    problems = {
        ("map", tmp_path / "nowhere", "--out", tmp_path / "m"): "there is no",
        ("map", sequence, "--out", tmp_path / "m", "--predictor", "magic"): "no predictor 'magic'",
        ("map", sequence, "--out", tmp_path / "m", "--predictor", "ground-truth:a"): "how noisy",
        ("map", f"{images}/*.color.png", "--out", tmp_path / "m", "--predictor", NOISY): "no ground truth",
        ("map", sequence, "--out", tmp_path / "m", "--resume", "--overwrite"): "choose one of them",
        ("map", sequence, "--out", tmp_path / "m", "--intrinsics", "300,300"): "four numbers",
        ("map", sequence, "--out", tmp_path / "m", "--fov", "60", "--intrinsics", "1,1,1,1"): "choose one",
        ("export", tmp_path / "nowhere", "--format", "tum", "--out", tmp_path / "t"): "holds no map",
    }
    for arguments, words in problems.items():
        assert anchor3r(*arguments) == 1
        assert words in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_a_stated_camera_is_what_the_map_has(tmp_path: Path, sequence: str) -> None:
    command = ("map", sequence, "--out", tmp_path / "m", "--predictor", NOISY, "--stop", 3)
    assert anchor3r(*command, "--intrinsics", "90,91,31,23") == 0
    with load_map(tmp_path / "m") as scene_map:
        camera = scene_map.frame(2).intrinsics
        assert (camera.fx, camera.fy, camera.cx, camera.cy) == (90, 91, 31, 23)
        assert scene_map.meta["identity"]["camera"]["intrinsics"] == [90, 91, 31, 23]
    assert anchor3r(*command, "--resume", "--fov", "60") == 1  # a map is of one camera


def test_map_and_export(tmp_path: Path, sequence: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "m"
    command = (
        "map",
        sequence,
        "--out",
        folder,
        "--predictor",
        NOISY,
        "--start",
        10,
        "--stop",
        60,
        "--stride",
        2,
    )
    assert anchor3r(*command, "--json") == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert captured.err == ""
    assert summary["frames"] == summary["with_pose"] == 25
    assert summary["ground_truth_predictor"] is True
    assert (summary["lost"], summary["skipped"], summary["components"]) == (0, 0, 1)

    for form in ("tum", "kitti", "ply"):
        assert (
            anchor3r("export", folder, "--format", form, "--out", tmp_path / f"t.{form}", "--voxel", 0.2) == 0
        )
        assert "NOT A RECONSTRUCTION" in capsys.readouterr().err
    tum = file_interface.read_tum_trajectory_file(tmp_path / "t.tum")
    kitti = file_interface.read_kitti_poses_file(tmp_path / "t.kitti")
    with load_map(folder) as scene_map:
        centers, truth = scene_map.trajectory().center, scene_map.true_trajectory()
    assert truth.frames.tolist() == list(range(10, 60, 2))
    np.testing.assert_allclose(tum.positions_xyz, centers, atol=1e-9)
    np.testing.assert_allclose(kitti.positions_xyz, centers, atol=1e-9)
    exact = (toy_pose(10) @ toy_pose(58).inverse()).translation
    assert np.linalg.norm(centers[-1] - exact) < 0.05 * np.linalg.norm(exact)
    assert len(trimesh.load(tmp_path / "t.ply").vertices) > 1000
    assert b"NOT A RECONSTRUCTION" in tmp_path.joinpath("t.ply").read_bytes()[:500]
    assert "NOT A RECONSTRUCTION" in tmp_path.joinpath("t.tum").read_text()


def test_an_existing_map_is_resumed_replaced_or_refused(
    tmp_path: Path, sequence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("map", sequence, "--out", tmp_path / "m", "--predictor", NOISY)
    assert anchor3r(*command, "--stop", 15, "--resume") == 0
    assert anchor3r(*command, "--stop", 15) == 1
    assert "--resume" in capsys.readouterr().err
    assert anchor3r(*command, "--stop", 30, "--resume") == 0
    assert "went on after frame 14" in capsys.readouterr().out
    for change in (("--seed", 1), ("--window", 5), ("--stride", 2), ("--predictor", "ground-truth")):
        assert anchor3r(*command, "--resume", *change) == 1
        assert "was made with" in capsys.readouterr().err
    assert anchor3r(*command, "--stop", 5, "--overwrite") == 0
    with load_map(tmp_path / "m") as scene_map:
        assert scene_map.num_frames == 5


def test_the_same_seed_gives_the_same_map_and_another_one_another(tmp_path: Path, sequence: str) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        command = (
            "map",
            sequence,
            "--stop",
            20,
            "--predictor",
            NOISY,
            "--seed",
            seed,
            "--out",
            tmp_path / name,
        )
        assert anchor3r(*command) == 0
    centers = []
    for name in "abc":
        with load_map(tmp_path / name) as scene_map:
            centers.append(scene_map.trajectory().center)
    assert_array_equal(centers[0], centers[1])
    assert not np.array_equal(centers[0], centers[2])


def test_lost_frames_leave_gaps_that_exports_name(
    tmp_path: Path, sequence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A frame that cannot be decoded is missing from TUM and has to be filled in KITTI."""
    broken = write_toy_sequence(tmp_path / "seq", 12)
    (tmp_path / "seq" / "frame-000005.color.png").write_bytes(b"broken")
    assert anchor3r("map", broken, "--out", tmp_path / "m", "--predictor", NOISY) == 0
    assert "could not be decoded: 1 frame\n" in capsys.readouterr().out
    export = ("export", tmp_path / "m", "--out", tmp_path / "t", "--format")
    assert anchor3r(*export, "kitti") == 1
    assert "1 of 12 frames have no pose (the first is frame 5)" in capsys.readouterr().err
    assert anchor3r(*export, "kitti", "--gaps", "hold") == 0
    assert len(tmp_path.joinpath("t").read_text().splitlines()) == 12
    assert anchor3r(*export, "tum") == 0
    assert len(file_interface.read_tum_trajectory_file(tmp_path / "t").timestamps) == 11


def run_in_process(command: list[str]) -> subprocess.Popen[str]:
    """A group of its own, so that the signal reaches it and nothing else."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "anchor3r", *command],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for_frames(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if (folder / "map.sqlite").is_file():
            try:
                with load_map(folder) as scene_map:
                    if scene_map.num_frames >= count:
                        return
            except cli.Anchor3RError:  # just being made
                pass
        time.sleep(0.005)


def test_killed_maps_end_as_if_nothing_had_happened(tmp_path: Path, sequence: str) -> None:
    command = ["map", sequence, "--predictor", NOISY, "--resume", "--out"]
    assert anchor3r(*command, tmp_path / "whole") == 0
    rng = random.Random(4)
    left_behind = []
    for already in (1, 130, 260):
        process = run_in_process([*command, str(tmp_path / "killed")])
        wait_for_frames(tmp_path / "killed", already, process)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.communicate()
        with load_map(tmp_path / "killed") as scene_map:
            left_behind.append(scene_map.num_frames)
    assert 0 < left_behind[0] < 400, "the first kill came too late to test anything"
    assert anchor3r(*command, tmp_path / "killed") == 0
    with load_map(tmp_path / "whole") as whole, load_map(tmp_path / "killed") as killed:
        for name in ("frames", "rotation", "center", "covariance"):
            assert_array_equal(getattr(killed.trajectory(), name), getattr(whole.trajectory(), name))
        assert_array_equal(killed.graph().edges.translation, whole.graph().edges.translation)
        assert killed.num_frames == 400


def test_ctrl_c_leaves_a_map_that_says_how_to_go_on(tmp_path: Path, sequence: str) -> None:
    command = ["map", sequence, "--predictor", NOISY, "--out", str(tmp_path / "m")]
    process = run_in_process(command)
    wait_for_frames(tmp_path / "m", 3, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume goes on with it" in errors
    assert "Traceback" not in errors
    assert anchor3r(*command, "--resume") == 0
    with load_map(tmp_path / "m") as scene_map:
        assert scene_map.num_frames == 400


def run_unread(*command: object) -> tuple[int, bytes]:
    """Exit code and errors of a command whose reader has gone, as `head` does when it has seen enough."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "anchor3r", *map(str, command)]
    ended = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    return ended.returncode, ended.stderr


def test_a_map_is_whole_though_nobody_reads_what_it_says(tmp_path: Path, sequence: str) -> None:
    command = ("map", sequence, "--predictor", NOISY, "--stop", 20, "--out", tmp_path / "m")
    assert run_unread(*command) == (141, b"")
    with load_map(tmp_path / "m") as scene_map:
        assert scene_map.num_frames == 20


def test_words_that_nobody_reads_end_quietly() -> None:
    assert run_unread("--help") == (141, b"")
    code, errors = run_unread("map", "--help")
    assert code != 0
    assert errors == b""


def test_a_world_as_files_is_the_world_that_is_mapped_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        anchor3r("world", "--seed", 5, "--frames", 4, "--width", 32, "--height", 24, "--out", tmp_path) == 0
    )
    assert "sequences/05: 4 frames" in capsys.readouterr().out
    sources = {"files": f"kitti:{tmp_path}/05", "memory": "world:5?width=32&height=24&frames=4"}
    for name, source in sources.items():
        assert anchor3r("map", source, "--out", tmp_path / name, "--predictor", "ground-truth") == 0
    with load_map(tmp_path / "files") as files, load_map(tmp_path / "memory") as memory:
        np.testing.assert_allclose(files.trajectory().center, memory.trajectory().center, atol=1e-6)
        assert_array_equal(files.image(3), memory.image(3))


def test_the_demo_says_what_it_made_and_leaves_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert anchor3r("demo", "--out", tmp_path / "demo", "--frames", 30) == 0
    assert "online: ATE" in capsys.readouterr().out
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert summary["frames"] == 30
    assert summary["trajectories"]["online"]["ate_percent"] < 10
    for name in ("cloud.ply", "map.png", "online.tum", "truth.tum"):
        assert (tmp_path / "demo" / name).stat().st_size > 0
