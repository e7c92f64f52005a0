"""Resampling to patches: sizes as VGGT's, pictures kept whole."""

import numpy as np
import pytest

from anchor3r.predictors.inference import fit_to_patches, patch_aligned_size


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((480, 640), (392, 518)),
        ((370, 1226), (154, 518)),
        ((1080, 1920), (294, 518)),
        ((640, 480), (518, 392)),
        ((100, 100), (518, 518)),
        ((5, 4000), (14, 518)),
    ],
)
def test_the_long_side_fits_and_both_are_multiples_of_the_patch(size: tuple, expected: tuple) -> None:
    assert patch_aligned_size(*size, long_side=518, patch_size=14) == expected


def test_a_side_that_is_no_multiple_is_rounded_down() -> None:
    assert patch_aligned_size(100, 200, long_side=60, patch_size=14) == (28, 56)


def test_nothing_is_cropped() -> None:
    image = np.zeros((100, 120, 3), np.uint8)
    image[:30, :40], image[70:, 80:] = 200, 100
    small = fit_to_patches(image, long_side=84, patch_size=14)
    assert small.shape == (70, 84, 3)
    assert small.dtype == np.uint8
    assert (small[0, 0] == 200).all()
    assert (small[-1, -1] == 100).all()


def test_an_image_of_the_right_size_is_left_alone() -> None:
    image = np.random.default_rng(0).integers(0, 256, (56, 84, 3), dtype=np.uint8)
    assert fit_to_patches(image, long_side=84, patch_size=14) is image


def test_a_side_below_the_patch_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no patch of 14"):
        patch_aligned_size(100, 100, long_side=10, patch_size=14)
