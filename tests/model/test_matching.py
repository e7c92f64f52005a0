"""The correlation stem: the compiled correlation against the plain one, and matching a known shift."""

import pytest
import torch

from anchor3r.model.config import MatchingConfig
from anchor3r.model.matching import (
    COARSE_STRIDE,
    ConvStem,
    Matcher,
    _local_mean,
    cell_pixels,
    correlation_peaks,
    local_correlation,
)


def test_compiled_correlation_equals_the_gathered_one() -> None:
    torch.manual_seed(0)
    own = torch.randn(2, 7, 4, 8, requires_grad=True)
    other = torch.randn(2, 9, 10, 8, requires_grad=True)
    corner = torch.randint(0, 5, (2, 7, 2))
    compiled = local_correlation(own, other, corner, 5)
    weight = torch.randn_like(compiled)
    gradients = torch.autograd.grad((compiled * weight).sum(), (own, other))
    own64, other64 = (x.detach().double().requires_grad_() for x in (own, other))
    # Other dtypes and devices take the plain path.
    plain = local_correlation(own64, other64, corner, 5)
    expected = torch.autograd.grad((plain * weight.double()).sum(), (own64, other64))
    torch.testing.assert_close(compiled.double(), plain, rtol=1e-5, atol=1e-5)
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_cells_are_centred_where_convolution_with_stride_puts_them() -> None:
    pixels = cell_pixels(8, 12)
    assert pixels.shape == (6, 2)
    assert pixels[0].tolist() == [1.5, 1.5]
    assert pixels[-1].tolist() == [9.5, 5.5]


@pytest.mark.parametrize("shift", [(8, 4), (-12, 0)])
def test_an_untrained_matcher_finds_a_shift_by_whole_cells(shift: tuple[int, int]) -> None:
    """Random convolutions commute with shifts, so the coarse argmax is right before any training."""
    torch.manual_seed(0)
    config = MatchingConfig()
    stem, matcher = ConvStem(config, 32), Matcher(config)
    big = torch.nn.functional.interpolate(torch.rand(1, 3, 60, 70), scale_factor=3, mode="bicubic").clamp(
        0, 1
    )
    dx, dy = shift
    current = big[:, :, 40:136, 40:168]
    other = big[:, :, 40 - dy : 136 - dy, 40 - dx : 168 - dx]
    with torch.no_grad():
        matches = matcher(stem(current)[1], stem(other)[1])
    expected = cell_pixels(96, 128) + torch.tensor([dx, dy])
    inside = ((expected > 16) & (expected < torch.tensor([112, 80]))).all(-1)
    error = (matches.fine_center[0] - expected).norm(dim=-1)[inside]
    assert error.median() <= COARSE_STRIDE / 2
    assert (error < COARSE_STRIDE).float().mean() > 0.9


@pytest.mark.parametrize("size", [(24, 32), (5, 7)])
def test_compiled_peaks_equal_the_plain_ones(size: tuple[int, int]) -> None:
    """Although the compiled loop skips what cannot count."""
    torch.manual_seed(0)
    cells = size[0] * size[1]
    current = torch.nn.functional.normalize(torch.randn(cells, 8), dim=-1)
    other = torch.nn.functional.normalize(
        current[torch.randperm(cells)] + 0.1 * torch.randn(cells, 8), dim=-1
    )
    logits = 20 * current @ other.T
    plain = _local_mean(logits[None], logits[None].logsumexp(-1), *size)
    cell, share = correlation_peaks(logits, size[1])
    torch.testing.assert_close(cell, plain[0][0], rtol=0, atol=1e-4)
    torch.testing.assert_close(share, plain[1][0], rtol=0, atol=1e-3)
