"""Images and cameras for networks: sizes in whole patches, and cameras from fields of view."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anchor3r.geometry import Pinhole

_MIN_FOV_RAD, _MAX_FOV_RAD = 0.02, 3.0
"""Fields of view beyond these are no camera's but a network's that is lost; the points stay finite."""


def patch_aligned_size(height: int, width: int, *, long_side: int, patch_size: int) -> tuple[int, int]:
    """Height and width with sides that are multiples of the patch, the longer one at most `long_side`."""
    if long_side < patch_size:
        raise ValueError(f"a longer side of {long_side} pixels holds no patch of {patch_size}")
    largest = long_side // patch_size
    scale = largest / max(height, width)
    rows, columns = (min(max(round(side * scale), 1), largest) for side in (height, width))
    return rows * patch_size, columns * patch_size


def fit_to_patches(image: NDArray[np.uint8], *, long_side: int, patch_size: int) -> NDArray[np.uint8]:
    """Resamples (H, W, 3) bicubically to `patch_aligned_size`; nothing is cropped."""
    height, width = patch_aligned_size(*image.shape[:2], long_side=long_side, patch_size=patch_size)
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))


def camera_from_fov(vertical_rad: float, horizontal_rad: float, height: int, width: int) -> Pinhole:
    """The camera that sees these angles, its principal point in the middle of the image."""
    tan_v, tan_h = np.tan(np.clip([vertical_rad, horizontal_rad], _MIN_FOV_RAD, _MAX_FOV_RAD) / 2)
    return Pinhole(
        float(width / 2 / tan_h), float(height / 2 / tan_v), (width - 1) / 2, (height - 1) / 2, width, height
    )
