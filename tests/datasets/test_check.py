"""`anchor3r data check` tells a right miniature from a wrong one, for every data set and common mistake."""

import json
from pathlib import Path

import dataset_miniatures as miniatures
import pytest
from PIL import Image

from anchor3r.cli.main import main
from anchor3r.cli.output import SCHEMAS
from anchor3r.datasets import DATA_SETS

WRONG = {
    "axis": (miniatures.flipped_axis, ("the other way round",)),
    "unit": (miniatures.wrong_unit, ("too small for the poses", "focal lengths are 2 times too large")),
    "pose": (miniatures.shifted_pose, ("those of the frame",)),
}


@pytest.mark.parametrize("name", DATA_SETS)
def test_a_right_download_passes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    miniatures.write(name, tmp_path / "data")
    assert main(["data", "check", name, str(tmp_path / "data"), "--out", str(tmp_path / "pairs.png")]) == 0
    out = capsys.readouterr().out
    assert "right: no common mistake" in out
    with Image.open(tmp_path / "pairs.png") as picture:
        assert picture.width == 1600


@pytest.mark.parametrize("mistake", WRONG)
@pytest.mark.parametrize("name", DATA_SETS)
def test_a_wrong_download_is_told_and_named(
    name: str, mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = WRONG[mistake]
    miniatures.write(name, tmp_path / "data", change)
    assert main(["data", "check", name, str(tmp_path / "data")]) == 1
    out = capsys.readouterr().out
    assert "WRONG" in out
    assert any(word in out for word in words), out


def test_verdicts_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    miniatures.write("replica", tmp_path / "right")
    miniatures.write("replica", tmp_path / "wrong", miniatures.shifted_pose)
    for place, code in (("right", 0), ("wrong", 1)):
        assert main(["data", "check", "replica", str(tmp_path / place), "--json"]) == code
        told = json.loads(capsys.readouterr().out)
        assert set(SCHEMAS["data-check"]) < set(told)
        assert told["right"] is (code == 0)
