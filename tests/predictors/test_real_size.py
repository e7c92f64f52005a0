"""Images of 518 pixels through every family of networks, from the command line: only depth is shrunk."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from anchor3r.cli.main import main
from anchor3r.model.checkpoints import save_checkpoint
from anchor3r.model.config import PRESETS
from anchor3r.model.network import Anchor3RNetwork
from anchor3r.model.vggt import VGGT, VGGTConfig
from anchor3r.store import load_map

PORTRAIT, LANDSCAPE = (620, 188), (188, 620)
SHALLOW_VGGT = VGGTConfig(
    embed_dim=384, num_heads=6, depth=1, encoder_depth=1, head_layers=(0, 0, 0, 0), dpt_features=64,
    dpt_out_channels=(48, 96, 192, 384), camera_trunk_heads=6, camera_trunk_depth=1,
)  # fmt: skip


def pictures(folder: Path, size: tuple[int, int], count: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for k in range(count):
        small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        small.resize(size[::-1]).save(folder / f"{k:03}.jpg")
    return folder


def checkpoint(path: Path, preset: str) -> Path:
    """Random weights of a preset's own width."""
    torch.manual_seed(0)
    config = PRESETS[preset]  # type: ignore[index]
    if config.encoder is not None:
        encoder = replace(config.encoder, depth=1)
        config = replace(config, encoder=encoder, depth=1, head_layers=(0, 0, 0, 0), camera_depth=1)
    network = Anchor3RNetwork(config)
    save_checkpoint(path, network.state_dict(), config=config.to_json())
    return path


def vggt_file(path: Path) -> Path:
    torch.manual_seed(0)
    save_checkpoint(path, VGGT(SHALLOW_VGGT).state_dict(), config=json.dumps(asdict(SHALLOW_VGGT)))
    return path


@pytest.mark.parametrize(
    ("family", "size", "expected"),
    [
        ("small", PORTRAIT, (518, 154)),
        ("small", LANDSCAPE, (154, 518)),
        ("vggt", LANDSCAPE, (154, 518)),
        ("converted", LANDSCAPE, (154, 518)),
    ],
)
def test_pictures_become_a_map_that_is_refined_and_exported(
    tmp_path: Path, family: str, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    source = pictures(tmp_path / "pictures", size, 3)
    if family == "small":
        predictor = str(checkpoint(tmp_path / "net.safetensors", family))
    else:
        path = vggt_file(tmp_path / "vggt.safetensors")
        predictor = f"vggt:{path}"
        if family == "converted":
            predictor = str(tmp_path / "converted.safetensors")
            assert main(["convert", "vggt", str(path), "--out", predictor]) == 0
    folder = tmp_path / "map"
    for command in (
        ["map", str(source), "--predictor", predictor, "--out", str(folder)],
        ["refine", str(folder)],
        ["export", str(folder), "--format", "ply", "--confidence", "0", "--out", str(tmp_path / "cloud.ply")],
    ):
        assert main(command) == 0
    with load_map(folder) as scene_map:
        assert scene_map.num_frames == 3
        assert scene_map.counts().components == 1
        points = scene_map.points(2)
        assert points is not None
        assert points.points_in_camera.shape == (*expected, 3)
        assert np.isfinite(scene_map.trajectory("offline").center).all()
    assert (tmp_path / "cloud.ply").stat().st_size > 100_000


def test_one_picture_is_a_map(tmp_path: Path) -> None:
    network = checkpoint(tmp_path / "net.safetensors", "small")
    source = pictures(tmp_path / "pictures", (140, 518), 1)
    assert main(["map", str(source), "--predictor", str(network), "--out", str(tmp_path / "map")]) == 0
    with load_map(tmp_path / "map") as scene_map:
        assert scene_map.counts().with_pose == 1


def test_what_does_not_fit_into_memory_is_said_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = checkpoint(tmp_path / "net.safetensors", "small")
    source = pictures(tmp_path / "pictures", LANDSCAPE, 1)
    monkeypatch.setattr("anchor3r.predictors.inference._free_bytes", lambda device: 2**20)
    command = ["map", str(source), "--predictor", str(network), "--out", str(tmp_path / "map")]
    assert main(command) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "a stream of 518×154 pixels" in said
    assert "GiB, but 0.00 GiB are free on cpu" in said


@pytest.mark.parametrize(
    ("predictor", "option", "message"),
    [
        ("tiny", ["--device", "cuda:99"], "device cuda:99 was asked for"),
        ("tiny", ["--device", "abacus"], "no device 'abacus'"),
        ("features", ["--dtype", "bfloat16"], "are for networks"),
    ],
)
def test_a_device_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], predictor: str, option: list[str], message: str
) -> None:
    source = str(pictures(tmp_path / "pictures", (60, 80), 1))
    assert main(["map", source, "--predictor", predictor, *option, "--out", str(tmp_path / "map")]) != 0
    assert message in " ".join(capsys.readouterr().err.split())
