"""`anchor3r evaluate attention` and `figures`: drawn from results files, and only from them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from anchor3r.cli.main import main
from anchor3r.evaluation.attention import read_attention
from anchor3r.evaluation.scoring import read_runtime
from anchor3r.model.checkpoints import save_checkpoint
from anchor3r.model.config import PRESETS, shrunk
from anchor3r.model.network import Anchor3RNetwork


def figures(*arguments: object) -> int:
    return main(["evaluate", "figures", *map(str, arguments)])


def is_drawn(path: Path) -> bool:
    """Whether a picture has more than a few colours."""
    return len(np.unique(np.asarray(Image.open(path)).reshape(-1, 4), axis=0)) > 20


def test_results_become_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for window in (4, 8):
        out = tmp_path / f"window-{window}"
        options = ["--motions", "room", "--seeds", "101", "--frames", "12", "--window", window, "--out", out]
        command = ["evaluate", "worlds", "--predictor", "ground-truth:0.3,0.03", *options]
        assert main(list(map(str, command))) == 0
        files.append(out / "results.json")
    runtime = read_runtime(tmp_path / "window-4/room-101/runtime.csv")
    assert len(runtime.seconds) == 12
    assert (runtime.seconds > 0).all()
    capsys.readouterr()
    assert figures(*files, "--out", tmp_path / "both") == 0
    drawn = [Path(line) for line in capsys.readouterr().out.split()]
    assert [path.name for path in drawn] == ["trajectory-room-101.png", "scaling.png", "window.png"]
    assert all(map(is_drawn, drawn))
    assert figures(files[0], "--out", tmp_path / "one") == 0
    assert not (tmp_path / "one/window.png").exists(), "one size is no comparison"


def test_attention_of_both_gauges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = []
    for gauge in ("current", "first"):
        torch.manual_seed(0)
        config = shrunk(PRESETS["small"], window=3, gauge=gauge)
        path = tmp_path / f"{gauge}.safetensors"
        save_checkpoint(path, Anchor3RNetwork(config).state_dict(), config=config.to_json())
        named.append(f"{gauge}={path}")
    world = "world:101?motion=driving&width=56&height=42&frames=8"
    out = tmp_path / "attention.npz"
    command = ["evaluate", "attention", *named, "--source", world, "--frames", "8", "--out", str(out)]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["networks"] == ["current", "first"]
    shares = read_attention(out)
    t, i = np.indices((8, 8))
    for share in shares.values():
        np.testing.assert_allclose(share.sum(1), 1, atol=1e-4)
        assert not share[i > t].any(), "nobody sees what is to come"
    assert not shares["current"][t - i >= 3].any()
    assert (shares["first"][3:, 0] > 0).all(), "the first frame stays in sight"
    assert len(read_attention(out, [0])["first"]) == 8
    assert figures("--attention", out, "--out", tmp_path) == 0
    assert is_drawn(tmp_path / "attention.png")


def test_nothing_to_draw_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        ((), "nothing to draw"),
        (("--attention", tmp_path / "no.npz"), "make it with anchor3r evaluate attention"),
        ((tmp_path / "results.json",), "results.json"),
    ):
        assert figures(*arguments, "--out", tmp_path) == 1
        assert words in capsys.readouterr().err
