"""From linear light to an 8-bit image: lens blur, vignetting, exposure, gamma, sensor noise."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import kernel


@kernel(fast=True)
def _mix(key: np.uint64) -> np.uint64:
    """The splitmix64 finaliser: a counter in, 64 random bits out."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


@kernel(fast=True)
def _blur(rows: NDArray, strength: float) -> NDArray:
    """Convolves (H, W * 3) with (strength, 1 - 2 strength, strength) both ways, borders repeated."""
    height, width = rows.shape
    middle, side = np.float32(1 - 2 * strength), np.float32(strength)
    across, out = np.empty_like(rows), np.empty_like(rows)
    for i in range(height):
        for c in range(3):
            end = width - 3 + c
            across[i, c] = (middle + side) * rows[i, c] + side * rows[i, c + 3]
            across[i, end] = (middle + side) * rows[i, end] + side * rows[i, end - 3]
        for j in range(3, width - 3):
            across[i, j] = middle * rows[i, j] + side * (rows[i, j - 3] + rows[i, j + 3])
    for i in range(height):
        above, below = max(0, i - 1), min(height - 1, i + 1)
        for j in range(width):
            out[i, j] = middle * across[i, j] + side * (across[above, j] + across[below, j])
    return out


@kernel(fast=True)
def _noise_row(row: NDArray, key: np.uint64, scale: np.float32) -> None:
    """Adds noise to (W * 3,) values, three from each 64-bit counter hash."""
    for j in range(len(row) // 3):
        bits = _mix(key + np.uint64(j) * np.uint64(0x9E3779B97F4A7C15))
        for c in range(3):
            # The sum of four 5-bit numbers: nearly normal, mean 62, deviation 18.47.
            lanes = np.int32(bits >> np.uint64(20 * c)) & np.int32(0xFFFFF)
            total = (lanes & 31) + ((lanes >> 5) & 31) + ((lanes >> 10) & 31) + (lanes >> 15)
            row[3 * j + c] += scale * np.float32(total - 62)


@kernel(fast=True)
def expose(
    colour: NDArray, exposure: float, blur: float, vignetting: float, noise: float, key: np.uint64
) -> NDArray[np.uint8]:
    """(H, W, 3) linear light -> uint8. `noise` is a deviation in grey levels, `key` makes it repeatable.

    Up to 0.6 of the range the response is the square root of light; above it rolls off softly.
    """
    height, width, _ = colour.shape
    rows = colour.reshape(height, 3 * width)
    if blur > 0:
        rows = _blur(rows, blur)
    image = np.empty((height, 3 * width), np.uint8)
    middle_i, middle_j = np.float32((height - 1) / 2), np.float32((width - 1) / 2)
    corner = np.float32(vignetting / (middle_i * middle_i + middle_j * middle_j + 1))
    knee, full, bend = np.float32(0.6), np.float32(255), np.float32(0.9)
    gain, across, row = np.float32(exposure), np.empty(3 * width, np.float32), np.empty(3 * width, np.float32)
    for k in range(3 * width):
        across[k] = 1 - corner * (k // 3 - middle_j) ** 2
    for i in range(height):
        down = corner * (i - middle_i) ** 2
        for k in range(3 * width):
            light = rows[i, k] * gain * (across[k] - down)
            value = np.float32(math.sqrt(max(np.float32(0), light)))
            over = max(np.float32(0), value - knee)
            row[k] = full * (min(value, knee) + over / (np.float32(1) + bend * over)) + np.float32(0.5)
        if noise > 0:
            _noise_row(row, _mix(key + np.uint64(i)), np.float32(noise / 18.47))
        for k in range(3 * width):
            image[i, k] = np.uint8(np.int32(min(full, max(np.float32(0), row[k]))))
    return image.reshape(height, width, 3)
