"""`anchor3r doctor`: what it finds here, what is absent, and what is broken."""

from __future__ import annotations

import json
from importlib import metadata, util
from pathlib import Path
from typing import Any

import pytest

from anchor3r.cli.main import main


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    assert main(["doctor", "--json", *arguments]) == code
    result = json.loads(capsys.readouterr().out)
    assert result["healthy"] is (code == 0)
    return {check["name"]: check for check in result["checks"]}


def test_the_self_test_maps_with_each_predictor(capsys: pytest.CaptureFixture[str]) -> None:
    checks = told(capsys)
    for name in ("self-test features", "self-test tiny"):
        assert checks[name]["verdict"] == "ok"
        off = float(checks[name]["found"].partition("off by ")[2].split()[0])
        assert 0 <= off < 10
    assert checks["numpy"]["found"] == metadata.version("numpy")
    assert "h264" in checks["video codecs"]["found"]
    assert "GB free" in checks["this folder"]["found"]
    assert "gpu" in checks or "cuda:0" in checks


def test_an_absent_extra_has_the_line_to_paste(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == "mcap" else there(name))
    bags = told(capsys, "--no-self-test")["extra bags"]
    assert bags["verdict"] == "absent"
    assert "without mcap" in bags["found"]
    assert "-m pip install" in bags["advice"]
    assert "mcap>=" in bags["advice"]


def test_what_is_broken_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    there = metadata.version

    def version(name: str) -> str:
        if name == "scipy":
            raise metadata.PackageNotFoundError(name)
        return there(name)

    monkeypatch.setattr(metadata, "version", version)
    assert told(capsys, "--no-self-test", code=1)["scipy"]["verdict"] == "broken"


def test_a_disk_that_is_nearly_full_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10**8})())
    place = told(capsys, "--no-self-test")["this folder"]
    assert (place["verdict"], place["advice"]) == ("absent", "write maps to another place, with --out")
