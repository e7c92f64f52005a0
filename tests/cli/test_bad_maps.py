"""Maps that are empty, lost, tiny, growing, too new or read-only: every command says so, or does its work."""

from __future__ import annotations

import builtins
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anchor3r.cli.main import main
from anchor3r.store import MapWriter, load_map
from toy_source import write_toy_sequence

pytest.importorskip("viser", reason="the viewer extra is not installed")
from anchor3r.viewer import server
from anchor3r.viewer.contents import MapContents

READING: dict[str, tuple[str, ...]] = {
    "render": ("render", "MAP", "--out", "OUT/map.png", "--size", "320", "200"),
    "report": ("report", "MAP", "--out", "OUT/report.html"),
    "tum": ("export", "MAP", "--format", "tum", "--out", "OUT/poses.tum"),
    "ply": ("export", "MAP", "--format", "ply", "--out", "OUT/cloud.ply"),
    "view": ("view", "MAP", "--save", "OUT/site"),
    "evaluate": ("evaluate", "map", "MAP", "--out", "OUT/scores"),
}
WRITING: dict[str, tuple[str, ...]] = {
    "refine": ("refine", "MAP"),
    "map": ("map", "SEQUENCE", "--predictor", "ground-truth", "--out", "MAP", "--resume"),
}
ALL = READING | WRITING


class Commands:
    """Runs commands on maps, with everything that they write in one folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.sequence = write_toy_sequence(folder / "sequence", 12)
        self.out, self._capsys = folder / "out", capsys

    def map(self, folder: Path, *options: str, predictor: str = "ground-truth", ends_with: int = 0) -> Path:
        command = ["map", self.sequence, "--predictor", predictor, "--out", str(folder), *options]
        assert main(command) == ends_with
        self._capsys.readouterr()
        return folder

    def run(self, command: tuple[str, ...], folder: Path) -> tuple[int, str]:
        """Exit code, and all that was said."""
        for name, value in (("MAP", folder), ("OUT", self.out), ("SEQUENCE", self.sequence)):
            command = tuple(word.replace(name, str(value)) for word in command)
        code = main(command)
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out + said.err


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path, capsys)


def test_a_newer_map_asks_for_an_update(tmp_path: Path, commands: Commands) -> None:
    MapWriter.create(tmp_path / "map").close()
    with sqlite3.connect(tmp_path / "map" / "map.sqlite") as database:
        database.execute("PRAGMA user_version = 99")
    for command in ALL.values():
        code, said = commands.run(command, tmp_path / "map")
        assert (code, "a map of format 99" in said, "update anchor3r" in said) == (1, True, True), command
    assert not commands.out.exists()


def test_an_empty_map_has_words(tmp_path: Path, commands: Commands) -> None:
    MapWriter.create(tmp_path / "map").close()
    for name, command in (READING | {"refine": WRITING["refine"]}).items():
        code, said = commands.run(command, tmp_path / "map")
        words = "had no ground truth" if name == "evaluate" else "has no online poses yet"
        assert (code, words in said) == (1, True), said
    assert not commands.out.exists()


def test_a_lost_map_says_that_nothing_was_related(tmp_path: Path, commands: Commands) -> None:
    lost = commands.map(tmp_path / "map", predictor="features", ends_with=1)  # of noise
    for name, command in (READING | {"refine": WRITING["refine"]}).items():
        code, said = commands.run(command, lost)
        if name == "evaluate":
            assert (code, "online" in said, "coverage" in said) == (0, True, True), said
        else:
            assert (code, "none of its 12 frames could be related" in said) == (1, True), said


def test_a_map_of_one_frame_is_a_map(tmp_path: Path, commands: Commands) -> None:
    one = commands.map(tmp_path / "map", "--stop", "1")
    for command in ALL.values():
        code, said = commands.run(command, one)
        assert code == 0, said


def test_a_growing_map_can_be_read_but_not_written_by_others(tmp_path: Path, commands: Commands) -> None:
    growing = commands.map(tmp_path / "map", "--stop", "6")
    with MapWriter.open(growing):
        for command in READING.values():
            code, said = commands.run(command, growing)
            assert code == 0, said
        for command in WRITING.values():
            code, said = commands.run(command, growing)
            assert (code, "another process is writing this map" in said) == (1, True), said


def test_a_map_in_a_read_only_folder_is_read_and_viewed(
    tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opened = commands.map(tmp_path / "map"), builtins.open
    for leftover in folder.glob("*-*"):
        leftover.unlink()
    before = sorted(path.name for path in folder.iterdir())

    def refusing(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if ("w" in mode or "x" in mode) and folder in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode, *rest, **options)

    monkeypatch.setattr(builtins, "open", refusing)
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != folder)
    for command in READING.values():
        code, said = commands.run(command, folder)
        assert code == 0, said
    assert sorted(path.name for path in folder.iterdir()) == before
    with MapContents(folder) as contents:
        contents.refresh()
        contents.build()
        assert "cannot be written, so the levels of detail are built again" in contents.notes[0]
    code, said = commands.run(("render", "MAP", "--out", "MAP/map.png"), folder)
    assert (code, "cannot write" in said, "Permission denied" in said) == (1, True, True)


def test_a_refined_map_is_wholly_in_its_database(tmp_path: Path, commands: Commands) -> None:
    """Whoever copies the one file has all of it."""
    folder = commands.map(tmp_path / "map")
    assert commands.run(WRITING["refine"], folder)[0] == 0
    (tmp_path / "copy").mkdir()
    shutil.copy(folder / "map.sqlite", tmp_path / "copy")
    with load_map(tmp_path / "copy") as copied:
        assert copied.trajectory_names() == ["online", "offline"]


def test_points_that_are_all_filtered_away_are_told(tmp_path: Path, commands: Commands) -> None:
    folder = commands.map(tmp_path / "map")
    code, said = commands.run((*READING["render"], "--confidence", "1e9"), folder)
    assert (code, "0 points" in said) == (0, True)
    code, said = commands.run((*READING["ply"], "--confidence", "1e9"), folder)
    assert (code, "no points to write" in said) == (1, True)


def test_a_taken_port_gives_the_next_one_or_words(
    tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = commands.map(tmp_path / "map")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "anchor3r", "view", str(folder), "--port", port]
        viewer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert viewer.stdout is not None
        announced = viewer.stdout.readline()
        viewer.send_signal(signal.SIGINT)
        assert viewer.wait(30) == 0
        assert "http://127.0.0.1:" in announced
        assert f":{port} " not in announced
        monkeypatch.setattr(server, "_PORTS", 1)
        code, said = commands.run(("view", "MAP", "--port", port), folder)
        assert (code, f"no port from {port} on is free" in said) == (1, True)
