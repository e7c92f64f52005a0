"""`anchor3r evaluate variants`: the paper's rows for predictors and for the poses of other systems."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from anchor3r.cli.main import main
from anchor3r.evaluation.results import Results
from anchor3r.io.trajectories import write_kitti
from anchor3r.store import load_map

NAMES = ["online", "no-loops", "off5", "off20"]


def variants(*arguments: object) -> int:
    return main(["evaluate", "variants", *map(str, arguments)])


def test_the_papers_rows_in_one_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["worlds", "--out", out, "--sequences", "grid-101", "--frames", "160", "--intervals", "5", "20"]
    options = ["--predictors", "ground-truth:0.3,0.03", "--window", "6", "--refine.top-k", "2"]
    assert variants(*command, *options) == 0
    printed = capsys.readouterr().out
    for row in ("Online", "Offline w/o LC", "Off-5", "Off-20"):
        assert f"| ground-truth-{row} |" in printed
    assert "RRE (°): root mean square rotation error" in printed
    assert printed.split("\n\n", 1)[1].startswith((out / "table.md").read_text()[:40])
    results = Results.load(out / "ground-truth/results.json")
    assert list(results.sequences["grid-101"].variants) == NAMES
    assert results.config["refinements"]["off20"]["keyframe_interval"] == 20
    assert {r["method"] for r in results.config["refinements"].values()} == {"paper"}
    with load_map(out / "ground-truth/grid-101/map") as scene_map:
        assert scene_map.trajectory_names() == NAMES
        assert scene_map.refinement("off20").settings["top_k"] == 2
        online = scene_map.trajectory()
    folder = out / "ground-truth/grid-101/map"
    assert main(["evaluate", "map", str(folder), "--poses", "online", "off20", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["trajectories"]) == ["online", "off20"]
    # The same poses as those of another system, whose loops our predictor measures.
    write_kitti(tmp_path / "other/grid-101.txt", online)
    measured_by = ["--refine.predictor", "ground-truth:0.3,0.03"]
    assert variants(*command, "--predictors", "--imported", f"other={tmp_path / 'other'}", *measured_by) == 0
    imported = Results.load(out / "other/results.json").sequences["grid-101"].variants
    assert list(imported) == NAMES
    mine = results.sequences["grid-101"].variants["online"]["ate_rmse_m"]
    assert imported["online"]["ate_rmse_m"] == pytest.approx(mine, rel=1e-6)
    with load_map(out / "other/grid-101/map") as scene_map:
        assert np.isfinite(scene_map.trajectory("off5").center).all()


def test_what_cannot_be_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (("mars",), "there is no benchmark 'mars'"),
        (("worlds", "--imported", "x"), "NAME=FOLDER"),
        (("worlds", "--imported", f"x={tmp_path}"), "x measures no loops"),
        (("worlds", "--predictors", "tiny", "tiny"), "two front-ends are called tiny"),
    ):
        assert variants(*arguments, "--out", tmp_path / "out") == 1
        assert words in capsys.readouterr().err
