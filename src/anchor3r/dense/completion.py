"""Planes through what was measured, where nothing was: even walls, floors and doors that show no texture.

The inverse depth of a plane is linear in the image. Each cell of a grid gets the plane of best fit through
the measured inverse depths around it, weighted by how far away they are, where an edge in the image counts as
a long way, because surfaces end there. The weights are separable and decay exponentially along rows and
columns, so that the moments of all cells come out of a few recursive passes.

Letters: h × w pixels, r × c cells, 10 moments.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import Array, kernel


@dataclass(frozen=True, kw_only=True)
class CompletionConfig:
    """How planes reach into what was not measured."""

    cell_px: int = 4
    """Side of a cell."""
    reach_px: float = 40.0
    """Distance over which the weight of a measured depth falls to 1/e on an even surface."""
    edge_grey: float = 25.0
    """Change of the grey value that is as far as that."""
    least_weight: float = 0.02
    """Summed weight of what is around a cell, in full cells, that gives it a plane."""
    slope_prior: float = 0.05
    """Cells at the distance of reach that the prior "no slope" is worth."""
    least_foreshortening: float = 0.4
    """A plane may pass near or behind the camera: where its inverse depth is not within this factor of the
    mean of what it goes through, it is not believed."""

    def __post_init__(self) -> None:
        if not (self.cell_px >= 1 and self.reach_px > 0 and 0 < self.least_foreshortening < 1):
            raise ValueError(f"these settings of completion do not make sense: {self}")


@dataclass(frozen=True, kw_only=True)
class Completed:
    """(h, w) each; NaN where no plane reaches."""

    inverse: NDArray[np.float32]
    slope_x: NDArray[np.float32]
    slope_y: NDArray[np.float32]
    scatter: NDArray[np.float32]
    """Relative standard deviation of the measured inverse depths about the plane."""
    weight: NDArray[np.float32]
    """Of what was measured around, in full cells; little of it is far away or behind edges."""


def complete(
    inverse: NDArray[np.float32],
    weight: NDArray[np.float32],
    grey: NDArray[np.float32],
    config: CompletionConfig,
) -> Completed:
    """inverse (h, w): measured; weight (h, w): how sure each is, 0 where there is none."""
    size, cell = inverse.shape, config.cell_px
    moments = _moments(inverse, weight, cell)
    rows, columns = moments.shape[:2]
    guide = np.asarray(cv2.resize(grey, (columns, rows), interpolation=cv2.INTER_AREA), np.float32)
    reach = config.reach_px / cell
    across, down = (_decay(g, reach, config.edge_grey) for g in (guide, np.ascontiguousarray(guide.T)))
    one = _turned(_spread(_turned(_spread(moments, across)), down))
    other = _spread(_turned(_spread(_turned(moments), down)), across)
    planes = np.full((5, rows, columns), np.nan, np.float32)
    _fit_planes(
        0.5 * (one + other), cell, config.reach_px, config.least_weight, config.slope_prior,
        config.least_foreshortening, planes,
    )  # fmt: skip
    mean, slope_x, slope_y, scatter, total = (
        np.repeat(np.repeat(plane, cell, 0), cell, 1)[: size[0], : size[1]] for plane in planes
    )
    # Planes are given at the middle of their cells.
    v, u = np.mgrid[: size[0], : size[1]].astype(np.float32)
    middle = np.float32((cell - 1) / 2)
    value = mean + slope_x * (u % cell - middle) + slope_y * (v % cell - middle)
    with np.errstate(invalid="ignore"):
        value[~(value > 0)] = np.nan
    return Completed(inverse=value, slope_x=slope_x, slope_y=slope_y, scatter=scatter, weight=total)


def _moments(inverse: NDArray[np.float32], weight: NDArray[np.float32], cell: int) -> NDArray[np.float64]:
    """(r, c, 10) weighted sums of 1, x, y, xx, xy, yy, d, xd, yd, dd over each cell, over its area."""
    height, width = inverse.shape
    v, u = np.mgrid[:height, :width].astype(np.float64)
    d = np.where(weight > 0, inverse, 0).astype(np.float64)
    terms = (np.ones_like(d), u, v, u * u, u * v, v * v, d, u * d, v * d, d * d)
    rows, columns = -(-height // cell), -(-width // cell)
    out = np.empty((rows, columns, len(terms)))
    padded = np.zeros((rows * cell, columns * cell))
    for k, term in enumerate(terms):
        padded[:height, :width] = term * weight
        out[..., k] = padded.reshape(rows, cell, columns, cell).sum((1, 3)) / cell**2
    return out


def _decay(guide: NDArray[np.float32], reach: float, edge_grey: float) -> NDArray[np.float64]:
    """(r, c) factor by which a weight shrinks from the cell before, along a row."""
    out = np.zeros(guide.shape)
    out[:, 1:] = np.exp(-1 / reach - np.abs(np.diff(guide, axis=1)) / edge_grey)
    return out


def _turned(moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows become columns."""
    return np.ascontiguousarray(moments.transpose(1, 0, 2))


def _spread(moments: NDArray[np.float64], decay: NDArray[np.float64]) -> NDArray[np.float64]:
    """Along rows: each cell's sum over the row, weighted by the decay on the way."""
    out = np.empty_like(moments)
    _spread_rows(moments, decay, out)
    return out


@kernel
def _spread_rows(moments: Array, decay: Array, out: Array) -> None:
    height, width, count = moments.shape
    back = np.empty(count)
    for row in range(height):
        for k in range(count):
            out[row, 0, k], back[k] = moments[row, 0, k], 0.0
        for column in range(1, width):
            for k in range(count):
                out[row, column, k] = moments[row, column, k] + decay[row, column] * out[row, column - 1, k]
        for column in range(width - 2, -1, -1):
            for k in range(count):
                back[k] = decay[row, column + 1] * (back[k] + moments[row, column + 1, k])
                out[row, column, k] += back[k]


@kernel
def _fit_planes(
    around: Array,
    cell: int,
    reach_px: float,
    least_weight: float,
    slope_prior: float,
    foreshortening: float,
    planes: Array,
) -> None:
    """Of each cell: inverse depth in its middle, slopes, relative scatter and weight, from moments around."""
    rows, columns, _ = around.shape
    for row in range(rows):
        for column in range(columns):
            m = around[row, column]
            total = m[0]
            if total < least_weight:
                continue
            mean_x, mean_y, mean = m[1] / total, m[2] / total, m[6] / total
            prior = slope_prior * reach_px**2 / total
            xx, yy = m[3] / total - mean_x**2 + prior, m[5] / total - mean_y**2 + prior
            xy = m[4] / total - mean_x * mean_y
            xd, yd = m[7] / total - mean_x * mean, m[8] / total - mean_y * mean
            determinant = xx * yy - xy * xy
            slope_x, slope_y = (yy * xd - xy * yd) / determinant, (xx * yd - xy * xd) / determinant
            x, y = column * cell + 0.5 * (cell - 1), row * cell + 0.5 * (cell - 1)
            value = mean + slope_x * (x - mean_x) + slope_y * (y - mean_y)
            if value < foreshortening * mean or value > mean / foreshortening:
                continue
            scatter = max(m[9] / total - mean**2 - slope_x * xd - slope_y * yd, 0.0)
            planes[1, row, column], planes[2, row, column] = slope_x, slope_y
            planes[0, row, column] = value
            planes[3, row, column] = np.sqrt(scatter) / value
            planes[4, row, column] = total
