"""Every command speaks JSON: one object on the standard output with the documented keys, errors too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anchor3r.cli.main import COMMANDS, main
from anchor3r.cli.output import SCHEMAS

WORLD = "world:3?motion=driving&width=64&height=48&frames=12"
EXACT = ("--predictor", "ground-truth")
DOCS = Path(__file__).parents[2] / "docs" / "json.md"

ELSEWHERE = {"train", "evaluate-ablation", "convert", "evaluate-attention", "data-check", "data-pack"}
"""Commands that need networks or data sets: tests of those look at their objects."""
SAME_AS_KITTI = {
    f"evaluate-{name}" for name in ("vbr", "tum", "oxford-spires", "waymo", "7scenes", "vkitti2")
}


class Runner:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.seen: set[str] = set()

    def __call__(self, *arguments: object, code: int = 0) -> dict[str, Any]:
        self._capsys.readouterr()
        assert main([*map(str, arguments), "--json"]) == code
        out = self._capsys.readouterr().out
        assert out.count("\n") == 1, "one object, and nothing else"
        result: dict[str, Any] = json.loads(out)
        _, name, version = result["schema"].split("/")
        assert version == "1"
        assert set(SCHEMAS[name]) <= set(result), name
        self.seen.add(name)
        return result


def test_every_command_prints_its_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Runner(capsys)
    folder, root = tmp_path / "map", tmp_path / "kitti"
    assert run("map", WORLD, "--out", folder, *EXACT)["with_pose"] == 12
    assert run("refine", folder, "--no-loops")["frames"] == 12
    assert run("densify", folder, "--every", 6)["map"] == str(folder)
    assert run("fuse", folder, "--depths", "predicted", "--min-views", 1)["vertices"]
    other = tmp_path / "other"
    run("map", WORLD, "--out", other, *EXACT, "--seed", 1)
    assert len(run("merge", folder, other, "--out", tmp_path / "merged")["parts"]) == 2
    assert run("localise", folder, WORLD, "--out", tmp_path / "found.tum", "--stride", 6)["images"] == 2
    page = run("view", folder, "--save", tmp_path / "page")
    assert Path(page["page"]).stat().st_size == page["bytes"]
    tum = tmp_path / "poses.tum"
    assert run("export", folder, "--format", "tum", "--out", tum)["out"] == str(tum)
    assert run("export", folder, "--format", "g2o", "--out", tmp_path / "graph.g2o")["notes"]
    assert run("render", folder, "--out", tmp_path / "map.png")["map"] == str(folder)
    assert run("report", folder, "--out", tmp_path / "report.html")["out"].endswith("html")
    assert run("solve", tmp_path / "graph.g2o")["num_frames"] == 12
    assert run("import", tum, "--source", WORLD, "--out", tmp_path / "imported")["with_pose"] == 12
    (metrics,) = run("evaluate", "trajectory", tum, tum)["trajectories"].values()
    assert metrics["ate_rmse_m"] == pytest.approx(0, abs=1e-6)
    assert "online" in run("evaluate", "map", folder, "--poses", "online")["trajectories"]
    size = ("--width", 64, "--height", 48)
    assert run("world", "--out", root, "--seed", 3, "--frames", 8, *size)["frames"] == 8
    benchmark = run("evaluate", "kitti", root, "--sequences", "03", "--out", tmp_path / "k", *EXACT)
    assert list(benchmark["sequences"]) == ["03"]
    results = benchmark["results"]
    assert "ate" in run("evaluate", "compare", results)["table"].lower()
    assert run("evaluate", "figures", results, "--out", tmp_path / "figures")["figures"]
    short = ("--motions", "driving", "--seeds", "101", "--frames", 8, *EXACT)
    assert run("evaluate", "worlds", "--out", tmp_path / "w", *short)["sequences"]
    chosen = ("--sequences", "driving-101", "--frames", 8, "--predictors", "ground-truth", "--intervals", 5)
    told = run("evaluate", "variants", "worlds", "--out", tmp_path / "v", *chosen)
    assert list(told["front_ends"]) == ["ground-truth"]
    assert len(run("data", "list")["sets"]) == 16
    (tmp_path / "table.csv").write_text(f"source,predictor\n{WORLD},ground-truth\n")
    assert len(run("batch", tmp_path / "table.csv", "--out", tmp_path / "batch")["sequences"]) == 1
    assert run("doctor", "--no-self-test")["healthy"]
    assert run("demo", "--out", tmp_path / "demo", "--frames", 12)["frames"] == 12
    assert run("map", tmp_path / "nothing", "--out", tmp_path / "x", code=1)["exit_code"] == 1
    assert run.seen | ELSEWHERE | SAME_AS_KITTI == set(SCHEMAS)


def test_errors_are_objects_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Runner(capsys)
    told = run("export", tmp_path / "nothing", "--format", "tum", "--out", tmp_path / "x", code=1)
    assert told["schema"] == "anchor3r/error/1"
    assert str(tmp_path / "nothing") in told["error"]
    assert run("export", "--format", "nonsense", code=2)["exit_code"] == 2
    still = run("map", f"{WORLD[:-2]}1", "--out", tmp_path / "few", "--predictor", "features", code=1)
    assert still["schema"] == "anchor3r/map/1", "the summary itself says why"
    assert "too few frames" in still["failure"]


def test_the_page_about_json_names_every_key() -> None:
    text = DOCS.read_text()
    for name, keys in SCHEMAS.items():
        assert f"`anchor3r/{name}/1`" in text
        if name in SAME_AS_KITTI or name in ("import", "evaluate-worlds"):
            continue  # documented as the same as another
        section = text.partition(f"| `anchor3r/{name}/1` |")[2].partition("\n")[0]
        missing = [key for key in keys if f"`{key}`" not in section]
        assert not missing, f"{name}: {missing}"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_the_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    subcommands = {"evaluate": ["kitti", "compare"], "data": ["list"]}.get(name, [None])
    for subcommand in subcommands:
        assert main([name, *([subcommand] if subcommand else []), "--help"]) == 0
        assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", shell]) == 0
    script = capsys.readouterr().out
    for word in (*COMMANDS, "--predictor", "kitti"):
        assert word in script
    if shell == "bash":
        path = tmp_path / "completion.bash"
        path.write_text(script)
        asked = (
            f"source {path}; COMP_WORDS=(anchor3r evaluate ki); COMP_CWORD=2; "
            "f=$(complete -p anchor3r | sed -E 's/.*-F ([^ ]+).*/\\1/'); $f anchor3r ki evaluate; "
            "echo ${COMPREPLY[@]}"
        )
        found = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=False)
        assert found.stdout.split() == ["kitti"]
    assert main(["--print-completion", "fish"]) == 2


def test_no_colours_where_none_are_wanted(tmp_path: Path) -> None:
    """Neither in pipes nor with NO_COLOR, and no bar in a pipe."""
    for environment in ({"NO_COLOR": "1", "FORCE_COLOR": ""}, {}):
        command = [sys.executable, "-m", "anchor3r", "data", "list"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=_env() | environment)
        assert "\x1b[" not in done.stdout + done.stderr
    command = [sys.executable, "-m", "anchor3r", "map", WORLD, "--out", str(tmp_path / "m"), *EXACT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=_env())
    assert done.stderr == ""


def _env() -> dict[str, str]:
    import os

    return dict(os.environ)
