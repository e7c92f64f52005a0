"""Depths that windows have carried over the edge of a thing.

A window that reaches over an edge is matched by what has most texture, mostly the nearer thing, which so
becomes wider by half a window. There a pixel looks like those beyond the edge and has the depth of those on
this side. It is told by a vote: of the pixels around that look alike, most have another depth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.slanted_refinement import PixelPlanes
from anchor3r.kernels import Array, kernel

_RADIUS = 5
"""Of the window that votes: more than half of what windows of stereo carry over."""
_JUMP = 0.1
"""Relative difference of inverse depths, beyond what the slope makes, between surfaces."""
_ALIKE_GREY = 8.0
"""Difference of grey values at which a vote counts half."""


def carried_over(
    planes: PixelPlanes, known: NDArray[np.bool_], grey: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """(h, w) pixels that look like the surface beyond the edge that they are near."""
    out = np.zeros(known.shape, np.bool_)
    _vote(planes.inverse, planes.slope_x, planes.slope_y, known, grey, out)
    return out


@kernel
def _vote(inverse: Array, slope_x: Array, slope_y: Array, known: Array, grey: Array, out: Array) -> None:
    height, width = inverse.shape
    for y in range(height):
        for x in range(width):
            if not known[y, x]:
                continue
            here, level = inverse[y, x], grey[y, x]
            a, b, jump = slope_x[y, x], slope_y[y, x], np.float32(_JUMP) * here
            same = other = np.float32(0.0)
            top, bottom = max(y - _RADIUS, 0), min(y + _RADIUS, height - 1)
            left, right = max(x - _RADIUS, 0), min(x + _RADIUS, width - 1)
            # At the corners and sides of the window first: few pixels are near an edge.
            edge = False
            for v in (top, y, bottom):
                for u in (left, x, right):
                    on_plane = here + a * np.float32(u - x) + b * np.float32(v - y)
                    edge |= known[v, u] and abs(inverse[v, u] - on_plane) > jump
            if not edge:
                continue
            for v in range(top, bottom + 1):
                for u in range(left, right + 1):
                    if not known[v, u]:
                        continue
                    difference = (grey[v, u] - level) * np.float32(1 / _ALIKE_GREY)
                    vote = np.float32(1.0) / (np.float32(1.0) + difference * difference)
                    on_plane = here + a * np.float32(u - x) + b * np.float32(v - y)
                    if abs(inverse[v, u] - on_plane) > jump:
                        other += vote
                    else:
                        same += vote
            out[y, x] = other > same
