"""VGGT from our layers: the public network's numbers, its names, and bad files and clips."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from public_vggt import BLOCKS, OUTPUTS, digest_of_names, expected, public_tensors, public_vggt
from safetensors.torch import load_file, save_file

from anchor3r.errors import Anchor3RError
from anchor3r.model.checkpoints import save_checkpoint
from anchor3r.model.vggt import NOT_USED, VGGT, VGGTConfig, load_vggt
from small_vggt import SMALL_VGGT

PUBLIC_NAMES = "b7354ce61f05021c9428114317dfa5ee2bc2db4bc0de0c1058e379878e74a7e4"
"""Of the public VGGT-1B's tensors that are used here."""


@pytest.fixture(scope="module")
def tiny() -> VGGT:
    torch.manual_seed(0)
    return VGGT(SMALL_VGGT).eval()


@pytest.fixture(scope="module")
def outputs() -> dict[str, torch.Tensor]:
    """What our code computes of the network and the clip that the public code was given."""
    model, clip = public_vggt()
    with torch.inference_mode():
        output = model(clip, with_tokens=True)
    assert output.block_outputs is not None
    assert len(output.block_outputs) == len(BLOCKS)
    return {name: getattr(output, name) for name in OUTPUTS} | dict(
        zip(BLOCKS, output.block_outputs, strict=True)
    )


@pytest.mark.parametrize("name", [*OUTPUTS, *BLOCKS])
def test_outputs_are_those_of_the_public_code(outputs: dict[str, torch.Tensor], name: str) -> None:
    expected(name).assert_same(outputs[name])


def test_weights_and_numbers_are_those_that_the_public_code_was_run_on(shared: Path) -> None:
    """The seed gives the very weights and the clip, and the remembered numbers stand in the outputs."""
    stored = load_file(shared / "fixtures" / "vggt_small.safetensors")
    weights, clip = public_tensors()
    torch.testing.assert_close(clip, stored["input.images"], rtol=0, atol=1e-6)
    assert {f"weight.{name}" for name in weights} == {name for name in stored if name.startswith("weight.")}
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, stored[f"weight.{name}"], rtol=1e-5, atol=1e-6)
    for name in (*OUTPUTS, *BLOCKS):
        expected(name).assert_same(stored[f"output.{name}"])


def test_vggt_1b_has_its_public_names_and_shapes() -> None:
    """The digest of the names and shapes of the public VGGT-1B, those that play no part here left out."""
    with torch.device("meta"):
        model = VGGT(VGGTConfig())
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    assert digest_of_names(shapes) == PUBLIC_NAMES


def test_default_config_has_the_names_and_shapes_of_vggt_1b(shared: Path) -> None:
    public = json.loads((shared / "facts" / "vggt_1b_tensors.json").read_text())
    used = {name: shape for name, shape in public.items() if not name.startswith(NOT_USED)}
    dropped = {name.split(".")[0] for name in public.keys() - used.keys()}
    assert dropped == {"track_head", "aggregator"}
    assert digest_of_names(used) == PUBLIC_NAMES


def test_a_batch_is_its_clips(tiny: VGGT) -> None:
    clips = torch.rand(2, 3, 3, 28, 42)
    with torch.inference_mode():
        together, alone = tiny(clips), tiny(clips[1])
    assert together.points.shape == (2, 3, 28, 42, 3)
    assert alone.depth.shape == (3, 28, 42, 1)
    assert alone.patch_tokens is None
    for name in ("pose_enc", "points", "points_conf", "depth", "depth_conf"):
        torch.testing.assert_close(getattr(together, name)[1], getattr(alone, name), rtol=1e-4, atol=1e-5)


def test_frames_after_the_first_can_be_reordered(tiny: VGGT) -> None:
    clip, order = torch.rand(4, 3, 28, 28), [0, 3, 1, 2]
    with torch.inference_mode():
        plain, shuffled = tiny(clip), tiny(clip[order])
    torch.testing.assert_close(shuffled.pose_enc, plain.pose_enc[order], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(shuffled.depth, plain.depth[order], rtol=1e-4, atol=1e-5)


def test_long_clips_pass_through_the_dense_heads_in_parts(tiny: VGGT) -> None:
    layers = {k: torch.randn(1, 19, 5 + 4, 64) for k in range(4)}
    with torch.inference_mode():
        depth, confidence = tiny.dense(tiny.depth_head, layers, (2, 2))
        last, _ = tiny.dense(tiny.depth_head, {k: x[:, -1:] for k, x in layers.items()}, (2, 2))
    assert confidence.shape == (1, 19, 28, 28)
    torch.testing.assert_close(depth[:, -1:], last, rtol=1e-4, atol=1e-5)


def test_loads_what_was_saved_from_either_format(tiny: VGGT, tmp_path: Path) -> None:
    clip = torch.rand(2, 3, 28, 28)
    extra = {"track_head.anything": torch.zeros(1), "aggregator.patch_embed.mask_token": torch.zeros(1, 32)}
    save_checkpoint(tmp_path / "ours.safetensors", tiny.state_dict(), config=json.dumps(asdict(SMALL_VGGT)))
    save_file(
        {**tiny.state_dict(), **extra},
        tmp_path / "public.safetensors",
        metadata={"config": json.dumps(asdict(SMALL_VGGT) | {"frames": 3})},
    )
    with torch.inference_mode():
        expected = tiny(clip)
        for name in ("ours", "public"):
            loaded = load_vggt(tmp_path / f"{name}.safetensors")
            torch.testing.assert_close(loaded(clip).points, expected.points, rtol=0, atol=0)


def test_a_file_without_config_is_taken_for_vggt_1b(tiny: VGGT, tmp_path: Path) -> None:
    torch.save(tiny.state_dict(), tmp_path / "model.pt")
    with pytest.raises(
        Anchor3RError,
        match=r"camera_token: needed with shape \(1, 2, 1, 1024\), the file has \(1, 2, 1, 32\)",
    ):
        load_vggt(tmp_path / "model.pt")


@pytest.mark.parametrize("config", ['{"depth": 3}', "[1, 2]", "{", '{"depth": "many"}'])
def test_a_config_that_describes_no_vggt_is_an_error(tmp_path: Path, config: str) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.zeros(1)}, path, metadata={"config": config})
    with pytest.raises(Anchor3RError, match="describes no VGGT"):
        load_vggt(path)


@pytest.mark.parametrize(
    ("clip", "message"),
    [
        (torch.zeros(3, 28, 28), r"\(3, 28, 28\)"),
        (torch.zeros(2, 1, 28, 28), r"\(2, 1, 28, 28\)"),
        (torch.zeros(0, 3, 28, 28), r"\(0, 3, 28, 28\)"),
        (torch.zeros(2, 3, 29, 28), "29×28"),
        (torch.full((2, 3, 28, 28), torch.nan), "not finite"),
        (torch.zeros(1, 3, 14, 14 * 256), "1×256 patches"),
    ],
)
def test_bad_clips_are_refused(tiny: VGGT, clip: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(clip)
