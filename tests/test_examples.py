"""Every example runs as its first lines say."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from toy_source import write_toy_sequence

EXAMPLES = sorted(Path(__file__).parents[1].joinpath("examples").glob("*.py"))


def arguments_of(name: str, folder: Path) -> list[str]:
    if name == "00_map_a_folder.py":
        return [write_toy_sequence(folder / "images", 8), str(folder / "map"), "ground-truth"]
    raise AssertionError(f"say how the tests should run examples/{name}")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_example_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [path.name, *arguments_of(path.name, tmp_path)])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_there_are_examples() -> None:
    assert EXAMPLES
