"""Patches of a depth image that are too small to be a surface.

Whatever a window of stereo sees gets at least the size of that window: a pole of one pixel becomes seven
wide. Depths that hang together over less were matched by nothing but chance, pixel by pixel, where another
keyframe happened to agree. They are few, but they may lie anywhere between the nearest depth and infinity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.plane_sweep import RADIUS
from anchor3r.dense.slanted_refinement import PixelPlanes
from anchor3r.kernels import Array, kernel

_LEAST_PIXELS = (2 * RADIUS + 1) ** 2
"""Of a patch that is kept: as many as a window has."""
_JUMP = 0.1
"""Relative difference of inverse depths, beyond what the slopes make, between surfaces."""


def specks(planes: PixelPlanes, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(h, w) known pixels whose surface, as far as it is known, is smaller than a window."""
    patch = np.zeros(known.shape, np.int32)
    _number_patches(planes.inverse, planes.slope_x, planes.slope_y, known, patch)
    return known & (np.bincount(patch.ravel())[patch] < _LEAST_PIXELS)


@kernel
def _number_patches(inverse: Array, slope_x: Array, slope_y: Array, known: Array, patch: Array) -> None:
    """Numbers from 1 on for pixels that hang together, each patch filled from its first pixel."""
    height, width = inverse.shape
    waiting = np.empty(height * width, np.int32)
    count = 0
    for start in range(height * width):
        if not known[start // width, start % width] or patch[start // width, start % width] > 0:
            continue
        count += 1
        patch[start // width, start % width] = count
        waiting[0], size = start, 1
        while size > 0:
            size -= 1
            y, x = waiting[size] // width, waiting[size] % width
            for v, u in ((y, x - 1), (y, x + 1), (y - 1, x), (y + 1, x)):
                if not (0 <= v < height and 0 <= u < width) or not known[v, u] or patch[v, u] > 0:
                    continue
                if _hang_together(inverse, slope_x, slope_y, y, x, v, u):
                    patch[v, u] = count
                    waiting[size] = v * width + u
                    size += 1


@kernel
def _hang_together(inverse: Array, slope_x: Array, slope_y: Array, y: int, x: int, v: int, u: int) -> bool:
    """Whether the planes of two neighbouring pixels meet half way between them."""
    here = inverse[y, x] + np.float32(0.5) * (slope_x[y, x] * (u - x) + slope_y[y, x] * (v - y))
    there = inverse[v, u] - np.float32(0.5) * (slope_x[v, u] * (u - x) + slope_y[v, u] * (v - y))
    return bool(abs(here - there) <= np.float32(_JUMP) * min(inverse[y, x], inverse[v, u]))
