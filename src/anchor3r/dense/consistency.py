"""What neighbouring keyframes say of the depth of one: who agrees, who contradicts, and the mean of those who
agree.

A point that a neighbour sees at the same place is confirmed. One that the neighbour looks through, at
something behind it, is contradicted: it is wrong, or it moves. One that the neighbour has something in front
of is hidden there, which says nothing.

Letters: k neighbours, h × w pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.slanted_refinement import PixelPlanes
from anchor3r.geometry import SE3, Pinhole
from anchor3r.kernels import Array, kernel


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """(h, w) each."""

    agreeing: NDArray[np.uint8]
    """Neighbours that see the pixel's point where it is."""
    contradicting: NDArray[np.uint8]
    """Neighbours that look through it."""
    inverse: NDArray[np.float32]
    """Inverse depth, the mean of the keyframe's own and of those who agree."""
    spread: NDArray[np.float32]
    """Relative standard deviation among them; 0 if none agrees."""


def compare(
    own: PixelPlanes,
    neighbours: list[PixelPlanes],
    neighbour_from_own: SE3,
    camera: Pinhole,
    tolerance: float,
) -> Agreement:
    """neighbour_from_own: (k,); tolerance: relative difference of depths that agree."""
    shape = own.inverse.shape
    agreeing, contradicting = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    total, square = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    intrinsics = np.array([camera.fx, camera.fy, camera.cx, camera.cy])
    for k, neighbour in enumerate(neighbours):
        seen = np.stack([neighbour.inverse, neighbour.slope_x, neighbour.slope_y])
        _compare(
            own.inverse, seen, neighbour_from_own.rotation[k], neighbour_from_own.translation[k],
            intrinsics, tolerance, agreeing, contradicting, total, square,
        )  # fmt: skip
    count = agreeing + np.float32(1)
    mean = total / count
    spread = np.sqrt(np.maximum(square / count - mean * mean, 0))
    return Agreement(
        agreeing=agreeing,
        contradicting=contradicting,
        inverse=own.inverse * (1 + mean),
        spread=spread.astype(np.float32),
    )


@kernel
def _compare(
    inverse: Array,
    seen: Array,
    rotation: Array,
    translation: Array,
    intrinsics: Array,
    tolerance: float,
    agreeing: Array,
    contradicting: Array,
    total: Array,
    square: Array,
) -> None:
    height, width = inverse.shape
    fx, fy, cx, cy = intrinsics[0], intrinsics[1], intrinsics[2], intrinsics[3]
    for row in range(height):
        for column in range(width):
            d = inverse[row, column]
            if not d > 0:
                continue
            # The point times its inverse depth.
            x, y = (column - cx) / fx, (row - cy) / fy
            px = rotation[0, 0] * x + rotation[0, 1] * y + rotation[0, 2] + translation[0] * d
            py = rotation[1, 0] * x + rotation[1, 1] * y + rotation[1, 2] + translation[1] * d
            pz = rotation[2, 0] * x + rotation[2, 1] * y + rotation[2, 2] + translation[2] * d
            if pz <= 0.05:
                continue
            u, v = fx * px / pz + cx, fy * py / pz + cy
            at_u, at_v = int(np.floor(u + 0.5)), int(np.floor(v + 0.5))
            if at_u < 0 or at_v < 0 or at_u >= width or at_v >= height:
                continue
            there = seen[0, at_v, at_u] + seen[1, at_v, at_u] * (u - at_u) + seen[2, at_v, at_u] * (v - at_v)
            # Inverse depth that the neighbour measures over the one that it should; 1 where they agree.
            ratio = there * pz / d
            if not ratio > -1e30:
                continue
            difference = ratio - 1.0
            if abs(difference) < tolerance:
                agreeing[row, column] += np.uint8(1)
                total[row, column] += np.float32(difference)
                square[row, column] += np.float32(difference * difference)
            elif difference < 0:
                contradicting[row, column] += np.uint8(1)
