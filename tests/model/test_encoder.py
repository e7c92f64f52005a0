"""The encoder: official names, sizes, and what resampling the position embedding must keep."""

import json
from pathlib import Path

import pytest
import torch

from anchor3r.errors import Anchor3RError
from anchor3r.model.encoder import IMAGENET_MEAN, VARIANTS, Encoder, EncoderConfig, load_dinov2

SMALL = EncoderConfig(dim=32, depth=2, num_heads=4, image_size=56)


def small_encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(SMALL).eval()


def test_large_variant_has_the_public_names_and_shapes(shared: Path) -> None:
    prefix = "aggregator.patch_embed."
    public = json.loads((shared / "facts" / "vggt_1b_tensors.json").read_text())
    expected = {n.removeprefix(prefix): s for n, s in public.items() if n.startswith(prefix)}
    expected.pop("mask_token")
    with torch.device("meta"):
        encoder = Encoder(VARIANTS["vit_l"])
    assert {n: list(t.shape) for n, t in encoder.state_dict().items()} == expected


def test_parameter_counts_are_those_of_dinov2() -> None:
    # As published for the weights with four registers, in millions.
    for variant, millions in (("vit_s", 22.1), ("vit_b", 86.6), ("vit_l", 304.4), ("vit_g", 1136.5)):
        with torch.device("meta"):
            encoder = Encoder(VARIANTS[variant])
        count = sum(p.numel() for p in encoder.parameters()) / 1e6
        assert count == pytest.approx(millions, abs=0.05)


def test_giant_variant_has_gated_mlps() -> None:
    with torch.device("meta"):
        encoder = Encoder(VARIANTS["vit_g"])
    shapes = {n: tuple(t.shape) for n, t in encoder.blocks[0].mlp.state_dict().items()}
    assert shapes["w12.weight"] == (8192, 1536)
    assert shapes["w3.weight"] == (1536, 4096)


def test_position_embedding_of_the_stored_grid_is_the_stored_one() -> None:
    encoder = small_encoder()
    torch.testing.assert_close(encoder.position_embedding((4, 4)), encoder.pos_embed)


@pytest.mark.parametrize("grid", [(3, 7), (8, 8), (2, 2)])
def test_resampled_position_embedding_keeps_constants_and_axes(grid: tuple[int, int]) -> None:
    encoder = small_encoder()
    with torch.no_grad():
        square = torch.zeros(4, 4, SMALL.dim)
        square[..., 0] = 3
        square[..., 1] = torch.arange(4.0)[:, None]
        encoder.pos_embed[0, 1:] = square.flatten(0, 1)
        resampled = encoder.position_embedding(grid)[0, 1:].unflatten(0, grid)
    torch.testing.assert_close(resampled[..., 0], torch.full(grid, 3.0))
    assert (resampled[1:, :, 1] > resampled[:-1, :, 1]).all()
    torch.testing.assert_close(resampled[..., 1], resampled[:, :1, 1].expand(grid))


def test_images_are_encoded_one_by_one_and_normalised_inside() -> None:
    encoder = small_encoder()
    images = torch.rand(3, 3, 28, 70)
    with torch.no_grad():
        together = encoder(images)
        torch.testing.assert_close(together[1:2], encoder(images[1:2]), rtol=1e-4, atol=1e-5)
        embedded = encoder.patch_embed(torch.zeros(1, 3, 28, 70))
        grey = torch.tensor(IMAGENET_MEAN).view(1, 3, 1, 1).expand(1, 3, 28, 70)
        seen = []
        encoder.patch_embed.register_forward_hook(lambda _m, _i, output: seen.append(output))
        encoder(grey)
    assert together.shape == (3, 10, SMALL.dim)
    torch.testing.assert_close(seen[0], embedded)


@pytest.mark.parametrize(
    ("shape", "message"),
    [((1, 3, 30, 28), "30×28"), ((1, 4, 28, 28), r"\(1, 4, 28, 28\)"), ((3, 28, 28), r"\(3, 28, 28\)")],
)
def test_bad_images_are_named(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_encoder()(torch.zeros(shape))


def test_loads_an_official_file_and_names_what_does_not_fit(tmp_path: Path) -> None:
    encoder = small_encoder()
    state = {**encoder.state_dict(), "mask_token": torch.zeros(1, SMALL.dim)}
    path = tmp_path / "dinov2.pth"
    torch.save(state, path)
    loaded = Encoder(SMALL).eval()
    load_dinov2(loaded, path)
    images = torch.rand(1, 3, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images), encoder(images), rtol=0, atol=0)
    with pytest.raises(
        Anchor3RError, match=r"cls_token: needed with shape \(1, 1, 384\), the file has \(1, 1, 32\)"
    ):
        load_dinov2(Encoder(VARIANTS["vit_s"]), path)
