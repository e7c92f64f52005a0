"""A town under construction, and the sides of its streets, along which everything in it is placed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.worlds.scenes.builder import Painter, SceneBuilder
from anchor3r.worlds.scenes.routes import StreetGrid

Rng = np.random.Generator


class Sides(NamedTuple):
    """S street sides from crossing to crossing, seen from the middle of the street."""

    start: NDArray
    """(S, 2) x, z of the crossing"""
    along: NDArray
    """(S, 2) unit"""
    outward: NDArray
    """(S, 2) unit, away from the street"""
    length: NDArray
    """(S,)"""

    def place(
        self, side: NDArray, along: NDArray, offset: NDArray | float
    ) -> tuple[NDArray, NDArray, NDArray]:
        """World x, z and yaw of k things, so far along and away from the middle, fronts to the street."""
        offset = np.broadcast_to(offset, along.shape)
        point = self.start[side] + along[:, None] * self.along[side] + offset[:, None] * self.outward[side]
        return point[:, 0], point[:, 1], np.arctan2(self.outward[side, 0], self.outward[side, 1])

    def slots(self, rng: Rng, margin: float, gap: tuple[float, float]) -> tuple[NDArray, NDArray, NDArray]:
        """Consecutive slots of random lengths on every side: the side, middle and length (k,) of each."""
        count = int((self.length.max() - 2 * margin) / gap[0]) + 1
        width = rng.uniform(*gap, (len(self.length), max(1, count)))
        end = margin + np.cumsum(width, 1)
        side, slot = np.nonzero(end <= self.length[:, None] - margin)
        return side, end[side, slot] - width[side, slot] / 2, width[side, slot]


class Town(NamedTuple):
    """What those who add to a town need."""

    rng: Rng
    builder: SceneBuilder
    painter: Painter
    grid: StreetGrid
    sides: Sides


def sides_near(grid: StreetGrid, route: NDArray, view_m: float) -> Sides:
    """Both sides of the streets within `view_m` of a route (p, 2); sides k and k + S/2 are one street."""
    i, j = np.meshgrid(np.arange(grid.columns + 1), np.arange(grid.rows + 1), indexing="ij")
    nodes = np.stack([i, j], -1)
    east, north = nodes[:-1].reshape(-1, 2), nodes[:, :-1].reshape(-1, 2)
    start = grid.crossing(np.concatenate([east, north]))
    along = np.repeat([[1.0, 0.0], [0.0, 1.0]], [len(east), len(north)], 0)
    length = np.repeat([grid.block_x, grid.block_z], [len(east), len(north)])
    middle = start + along * length[:, None] / 2
    coarse = route[:: max(1, len(route) // 400)]
    away = np.linalg.norm(middle[:, None] - coarse[None], axis=2).min(1) - length / 2
    near = away < view_m
    start, along, length = start[near], along[near], length[near]
    outward = np.stack([-along[:, 1], along[:, 0]], 1)
    return Sides(
        np.concatenate([start, start]), np.concatenate([along, along]), np.concatenate([outward, -outward]),
        np.concatenate([length, length]),
    )  # fmt: skip
