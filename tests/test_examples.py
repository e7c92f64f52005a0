"""Every example runs as its first lines say, and the README's Python as it stands there."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from PIL import Image

from anchor3r.cli.main import main
from anchor3r.sources import open_source
from toy_source import write_toy_sequence

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(ROOT.joinpath("examples").glob("*.py"))
STREET = "world:5?motion=driving&width=160&height=120&frames=40"


def arguments_of(name: str, folder: Path) -> list[str]:
    map_folder = str(folder / "map")
    if name in ("04_train_on_your_own_maps.py", "05_read_a_map.py"):
        frames = 30 if name.startswith("04") else 8
        assert (
            main(["map", f"{STREET}&frames={frames}", "--out", map_folder, "--predictor", "ground-truth"])
            == 0
        )
    return {
        "00_map_a_folder.py": [write_toy_sequence(folder / "images", 8), map_folder, "ground-truth"],
        "01_live_camera.py": [map_folder, "world:5?frames=8", "ground-truth", "5"],
        "02_your_own_predictor.py": [f"{STREET}&frames=5", map_folder],
        "03_solve_your_own_graph.py": [str(folder / "graph.npz")],
        "04_train_on_your_own_maps.py": [str(folder / "run"), map_folder],
        "05_read_a_map.py": [map_folder, str(folder / "path.png")],
    }[name]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_example_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [path.name, *arguments_of(path.name, tmp_path)])
    monkeypatch.setenv("STEPS", "1")
    monkeypatch.setenv("ANCHOR3R_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_there_are_examples() -> None:
    assert EXAMPLES


def test_solving_a_graph_finds_the_wrong_loops(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "03_solve_your_own_graph.py"))["main"]()
    left_out, wrong = re.search(r"left out: (.*); wrong ones: (.*)", capsys.readouterr().out).groups()
    assert left_out == wrong != "[]"


def test_the_python_in_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its blocks belong together, and say images/ for the user's own folder of images."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    (tmp_path / "images").mkdir()
    with open_source(STREET) as world:
        for frame in world:
            Image.fromarray(frame.image).save(tmp_path / "images" / f"{frame.index:03}.png")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"README.md, Python block {number}", "exec"), names)
    assert capsys.readouterr().out.strip()
