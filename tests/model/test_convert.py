"""Conversion from VGGT: every tensor accounted for, the full preset matched, the templates seeded."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import tyro
from safetensors.torch import save_file

from anchor3r.cli.convert import convert
from anchor3r.cli.main import main
from anchor3r.errors import Anchor3RError
from anchor3r.model.checkpoints import load_tensors, read_tensors
from anchor3r.model.config import PRESETS, NetworkConfig
from anchor3r.model.convert import convert_vggt, matching_config
from anchor3r.model.network import Anchor3RNetwork
from anchor3r.model.vggt import VGGT, VGGTConfig
from small_vggt import SMALL_VGGT

EXTRA = {"track_head.x": torch.zeros(5), "aggregator.patch_embed.mask_token": torch.zeros(1, 32)}


@pytest.fixture
def vggt() -> VGGT:
    torch.manual_seed(0)
    model = VGGT(SMALL_VGGT).eval()
    torch.nn.init.normal_(model.aggregator.camera_token)
    torch.nn.init.normal_(model.aggregator.register_token)
    return model


@pytest.fixture
def vggt_file(vggt: VGGT, tmp_path: Path) -> Path:
    path = tmp_path / "vggt.safetensors"
    save_file({**vggt.state_dict(), **EXTRA}, path, metadata={"config": json.dumps(asdict(SMALL_VGGT))})
    return path


def test_vggt_1b_becomes_the_full_preset() -> None:
    assert matching_config(VGGTConfig()) == PRESETS["full"]


def test_every_parameter_is_accounted_for_on_both_sides(vggt: VGGT, vggt_file: Path) -> None:
    network, account = convert_vggt(vggt_file, seed=0)
    kept = sum(p.num_parameters for p in account if p.fate != "dropped")
    given = sum(p.num_parameters for p in account if p.fate != "new")
    assert kept == sum(p.numel() for p in network.parameters())
    public = {**vggt.state_dict(), **EXTRA}
    assert given == sum(t.numel() for t in public.values())
    assert sum(p.num_tensors for p in account if p.fate != "new") == len(public)
    dropped = {p.source for p in account if p.fate == "dropped"}
    assert dropped == {"track_head", "depth_head", "aggregator.patch_embed.mask_token"}


def test_parts_go_where_they_belong(vggt: VGGT, vggt_file: Path) -> None:
    network, _ = convert_vggt(vggt_file, seed=0)
    images = torch.rand(2, 3, 28, 42)
    tokens, levels = torch.randn(1, 3, 64), [torch.randn(1, 6, 64) for _ in range(4)]
    x = torch.randn(1, 5, 32)
    with torch.no_grad():
        assert torch.equal(network.encoder(images), vggt.encode(images))
        assert torch.equal(network.layers[2].frame(x), vggt.aggregator.frame_blocks[2](x))
        assert torch.equal(network.layers[3].window(x), vggt.aggregator.global_blocks[3](x))
        assert torch.equal(network.camera_head(tokens)[-1], vggt.camera_head(tokens)[-1])
        ours, public = (head(levels, (2, 3), (28, 42)) for head in (network.point_head, vggt.point_head))
    assert torch.equal(ours[0], public[0])


def test_templates_start_from_the_tokens_of_vggt(vggt: VGGT, vggt_file: Path) -> None:
    templates = convert_vggt(vggt_file, seed=0)[0].query_tokens.detach()
    tokens = vggt.aggregator
    camera, registers = tokens.camera_token[0].detach(), tokens.register_token[0].detach()
    assert templates.shape == (2, 1 + PRESETS["full"].num_registers, 32)
    assert torch.equal(templates[:, :1], camera)
    assert torch.equal(templates[:, 1:5], registers)
    away = templates[:, 5:9] - registers
    assert float(away.std()) == pytest.approx(0.1 * float(registers.std()), rel=0.2)
    assert len(torch.unique(templates[0], dim=0)) == templates.shape[1]
    again, other = (convert_vggt(vggt_file, seed=seed)[0].query_tokens for seed in (0, 1))
    assert torch.equal(again, templates)
    assert not torch.equal(other, templates)


def test_a_vggt_with_missing_tensors_is_named_in_its_own_terms(vggt: VGGT, tmp_path: Path) -> None:
    state = vggt.state_dict()
    del state["aggregator.global_blocks.1.norm1.bias"]
    save_file(state, tmp_path / "cut.safetensors", metadata={"config": json.dumps(asdict(SMALL_VGGT))})
    with pytest.raises(Anchor3RError, match=r"aggregator\.global_blocks\.1\.norm1\.bias.*\(32\), missing"):
        convert_vggt(tmp_path / "cut.safetensors", seed=0)


def test_a_camera_head_of_other_heads_cannot_be_taken() -> None:
    with pytest.raises(Anchor3RError, match="2 attention heads and its blocks have 4"):
        matching_config(replace(SMALL_VGGT, camera_trunk_heads=2))


def test_the_command_writes_a_network_that_streams(
    vggt_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "init.safetensors"
    tyro.cli(convert, args=["vggt", str(vggt_file), "--out", str(out)])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("taken", "new", "dropped", "layers.*.window", "track_head"))
    assert (
        main(["convert", "vggt", str(vggt_file), "--out", str(tmp_path / "again.safetensors"), "--json"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "anchor3r/convert/1"
    assert (
        sum(part["num_parameters"] for part in told["parts"] if part["fate"] != "dropped")
        == told["parameters"]
    )
    tensors, config_json = read_tensors(out)
    assert config_json is not None
    network = Anchor3RNetwork(NetworkConfig.from_json(config_json))
    load_tensors(network, tensors, source=str(out))
    cache = network.new_cache(28, 42)
    with torch.inference_mode():
        for _ in range(3):
            output = network.stream(torch.rand(1, 3, 28, 42), cache)
    assert output.poses[-1].shape == (1, 3, 9)
    assert torch.isfinite(output.points).all()
