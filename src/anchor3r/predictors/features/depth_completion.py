"""From depths at some points to a depth everywhere near them: local planes that do not reach across edges.

The inverse depth of a plane is linear in the image. So each cell of a coarse grid gets the line of best fit
through the inverse depths of the points around it, weighted by how far away they are; an edge in the image
counts as a long way, because depth is likely to jump there (`edge_aware`).

Letters: h × w cells, n points, c = 11 moments.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.edge_aware import summed_around
from anchor3r.geometry import Array
from anchor3r.predictors.features.projection import rays
from anchor3r.predictors.features.tracking import Image

_LONGER_SIDE = 128
"""Cells on it at most,"""
_MIN_CELL_PX = 4
"""of at least so many pixels."""
_REACH_CELLS = 5.0
"""Distance over which a point's weight falls to 1/e on an even surface."""
_EDGE_GREY = 60.0
"""Change of the grey value that is as far as that."""
_MIN_WEIGHT = 0.05
"""Summed weight of the points around a cell that gives it a depth."""
_SLOPE_PRIOR = 0.5
"""Points at the distance of reach that the prior "no slope" is worth."""
_POINT_NOISE = 0.056
"""Relative depth error that one point leaves on top of what the scatter of its neighbours shows; by maximum
likelihood together with `predictors.confidence.FEATURES`."""
_LEAST_FORESHORTENING = 0.3
"""A plane through few points, or far from them, may pass near or behind the camera: where its inverse depth
is less than this part of its points' mean, the mean is safer."""
_MOMENTS = 11
"""Of the points around a cell, see `_local_planes`."""


class DensePoints(NamedTuple):
    """On a grid that spans the image."""

    points: NDArray[np.float32]
    """(h, w, 3) in the camera, NaN where no point is near or what is there moves"""
    depth_sigma: NDArray[np.float32]
    """(h, w) relative standard deviation of the depth, infinite where there is none"""


def grid_size(height: int, width: int) -> tuple[int, int]:
    """Rows and columns of the point map of an image; copies of an image of different sizes have the same."""
    cell = max(_MIN_CELL_PX, max(height, width) / _LONGER_SIDE)
    return max(1, round(height / cell)), max(1, round(width / cell))


def on_grid(image: Image) -> Image:
    """An image (H, W) or (H, W, c) reduced to a pixel a cell of its point map."""
    rows, columns = grid_size(*image.shape[:2])
    return np.asarray(cv2.resize(image, (columns, rows), interpolation=cv2.INTER_AREA), np.uint8)


def densified(grey: Image, camera: Array, pixel: Array, depth: Array, moving: Array) -> DensePoints:
    """A point map from pixels (n, 2) of known depth (n,), except around those that move (k, 2)."""
    return densified_on_grid(on_grid(grey), grey.shape, camera, pixel, depth, moving)


def densified_on_grid(
    small: Image, shape: tuple[int, ...], camera: Array, pixel: Array, depth: Array, moving: Array
) -> DensePoints:
    """A point map as `densified` makes it, of an image of which only its shape and `on_grid` are kept."""
    guide = small.astype(np.float64)
    rows, columns = small.shape
    cell_from_pixel = np.array([columns / shape[1], rows / shape[0]])
    # Pixels have their centre at whole numbers, cells too.
    known, contradicted = ((at + 0.5) * cell_from_pixel - 0.5 for at in (pixel, moving))
    inverse, sigma = _local_planes(guide, known, 1 / depth, contradicted)
    cells = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1).reshape(-1, 2)
    directions = rays(camera, (cells + 0.5) / cell_from_pixel - 0.5).reshape(rows, columns, 3)
    points = directions / inverse[..., None]
    return DensePoints(points.astype(np.float32), sigma.astype(np.float32))


def _local_planes(
    guide: Array, known: Array, inverse_depth: Array, contradicted: Array
) -> tuple[Array, Array]:
    """(h, w) inverse depths, NaN where unknown, and their relative standard deviations."""
    moments = _moments(guide.shape, known, inverse_depth, contradicted)
    around = summed_around(moments, guide, reach=_REACH_CELLS, edge_grey=_EDGE_GREY)
    inverse, sigma = np.full(guide.shape, np.nan), np.full(guide.shape, np.inf)
    rows, columns = np.nonzero((around[..., 0] >= _MIN_WEIGHT) & (around[..., 10] < around[..., 0]))
    inverse[rows, columns], sigma[rows, columns] = _planes_at(around[rows, columns].T, columns, rows)
    return inverse, sigma


def _moments(shape: tuple[int, ...], known: Array, inverse_depth: Array, contradicted: Array) -> Array:
    """(h, w, c) 1, x, y, xx, xy, yy, d, xd, yd, dd of the points in each cell, and how many contradict."""
    out = np.zeros((*shape, _MOMENTS))
    (x, y), d = known.T, inverse_depth
    values = np.stack([np.ones_like(d), x, y, x * x, x * y, y * y, d, x * d, y * d, d * d], axis=1)
    np.add.at(out[..., :10], _cells(known, shape), values)
    np.add.at(out[..., 10], _cells(contradicted, shape), 1)
    return out


def _cells(at: Array, shape: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the cells nearest to positions (n, 2)."""
    column, row = (at + 0.5).astype(np.int64).T
    return np.clip(row, 0, shape[0] - 1), np.clip(column, 0, shape[1] - 1)


def _planes_at(m: Array, x: NDArray[np.int64], y: NDArray[np.int64]) -> tuple[Array, Array]:
    """Inverse depths (n,) at cells (x, y) by the line of best fit to moments (c, n) around them, and their
    relative standard deviations."""
    total = m[0]
    mean_x, mean_y, mean = m[1] / total, m[2] / total, m[6] / total
    prior = _SLOPE_PRIOR * _REACH_CELLS**2 / total
    xx, yy = m[3] / total - mean_x**2 + prior, m[5] / total - mean_y**2 + prior
    xy = m[4] / total - mean_x * mean_y
    xd, yd = m[7] / total - mean_x * mean, m[8] / total - mean_y * mean
    determinant = xx * yy - xy * xy
    slope_x, slope_y = (yy * xd - xy * yd) / determinant, (xx * yd - xy * xd) / determinant
    value = mean + slope_x * (x - mean_x) + slope_y * (y - mean_y)
    level = m[9] / total - mean**2
    scatter = np.maximum(level - slope_x * xd - slope_y * yd, 0.0)
    too_far = value < _LEAST_FORESHORTENING * mean
    value, scatter = np.where(too_far, mean, value), np.where(too_far, level, scatter)
    return value, np.sqrt(scatter / value**2 + _POINT_NOISE**2 / total)
