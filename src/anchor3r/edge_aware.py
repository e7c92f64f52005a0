"""Sums over the neighbourhood of every cell of a grid that do not reach across edges of an image.

Weights decay exponentially with the distance, where an edge in the image counts as a long way. They are
separable, so that the sums of all cells come out of a few recursive passes along rows and columns.

Letters: h × w cells, c moments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import Array, kernel


def summed_around(moments: Array, guide: NDArray[Any], *, reach: float, edge_grey: float) -> Array:
    """(h, w, c) of each cell: what the cells around it have, weighted by how near they are.

    guide: (h, w) grey values; reach: cells over which a weight falls to 1/e on an even surface; edge_grey:
    the change of the grey value that is as far as that.
    """
    across, down = (_decay(image, reach, edge_grey) for image in (guide, guide.T))
    one = _turned(_spread(_turned(_spread(moments, across)), down))
    other = _spread(_turned(_spread(_turned(moments), down)), across)
    return 0.5 * (one + other)


def _decay(guide: NDArray[Any], reach: float, edge_grey: float) -> Array:
    """(h, w) factor by which a weight shrinks from the cell before, along a row."""
    out = np.zeros(guide.shape)
    out[:, 1:] = np.exp(-1 / reach - np.abs(np.diff(guide, axis=1)) / edge_grey)
    return out


def _turned(moments: Array) -> Array:
    """Rows become columns."""
    return np.ascontiguousarray(moments.transpose(1, 0, 2))


def _spread(moments: Array, decay: Array) -> Array:
    """Along rows: each cell's sum over the row, weighted by the decay on the way."""
    out = np.empty(moments.shape)
    _spread_rows(moments, decay, out)
    return out


@kernel
def _spread_rows(moments: Array, decay: Array, out: Array) -> None:
    height, width, count = moments.shape
    back = np.empty(count)
    for row in range(height):
        for c in range(count):
            out[row, 0, c], back[c] = moments[row, 0, c], 0.0
        for column in range(1, width):
            for c in range(count):
                out[row, column, c] = moments[row, column, c] + decay[row, column] * out[row, column - 1, c]
        for column in range(width - 2, -1, -1):
            for c in range(count):
                back[c] = decay[row, column + 1] * (back[c] + moments[row, column + 1, c])
                out[row, column, c] += back[c]
