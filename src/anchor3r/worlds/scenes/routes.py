"""Routes of a car over a rectangular grid of streets: smooth, in its lane, revisiting places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3
from anchor3r.worlds.scenes.paths import poses, wave

Rng = np.random.Generator
_HEADINGS = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])
"""Unit steps (x, z) of north, east, south, west; +1 turns right."""
SPACING_M = 0.1
SMOOTHING_M = 5.0


@dataclass(frozen=True, kw_only=True)
class StreetGrid:
    """Streets along x and z through the crossings (i block_x, j block_z), i = 0..columns, j = 0..rows."""

    columns: int
    rows: int
    block_x: float
    """Metres between crossings along x."""
    block_z: float
    half_width: float
    """From the middle of the street to the kerb, metres."""
    pavement: float
    """Width of the pavement, metres."""
    lane: float
    """From the middle of the street to the middle of the lane; negative drives on the left."""

    @property
    def margin(self) -> float:
        """From the middle of the street to the far side of the pavement."""
        return self.half_width + self.pavement

    def crossing(self, node: NDArray) -> NDArray:
        """World (x, z) of crossings (..., 2)."""
        return node * np.array([self.block_x, self.block_z])


def grid_route(rng: Rng, grid: StreetGrid, length_m: float, turn_share: float) -> NDArray:
    """Positions (x, z) every SPACING_M along a drive of at least `length_m`, after rounding its corners.

    `turn_share` is the chance to turn at a crossing. A turn is likely to repeat the last one, which leads
    around the block and back into the same street in the same direction.
    """
    node = np.array([rng.integers(0, grid.columns + 1), rng.integers(0, grid.rows + 1)])
    heading = _choose(rng, grid, node, int(rng.integers(0, 4)), 0, 0.0)
    last_turn = int(rng.choice([-1, 1]))
    corners, radii, travelled = [_lane_start(grid, node, heading)], [0.0], 0.0
    while travelled < length_m + 2 * SMOOTHING_M + 20:
        following = node + _HEADINGS[heading]
        ahead = _choose(rng, grid, following, heading, last_turn, turn_share)
        travelled += float(np.abs(grid.crossing(following) - grid.crossing(node)).sum()) - 8
        node = following
        if ahead == heading:
            continue
        last_turn = 1 if (ahead - heading) % 4 == 1 else -1
        corners.append(_lane_corner(grid, node, heading, ahead))
        # The inner turn is the tighter one; both stay between the kerbs' corners.
        inner = last_turn * np.sign(grid.lane) > 0
        radii.append(
            rng.uniform(0.9, 1.3)
            * (grid.half_width - abs(grid.lane) + 3.5 + (0 if inner else 2 * abs(grid.lane)))
        )
        heading = ahead
    corners.append(grid.crossing(node) + _lane_offset(grid, heading))
    radii.append(0.0)
    return _rounded(np.array(corners), np.array(radii))


def _choose(
    rng: Rng, grid: StreetGrid, node: NDArray, heading: int, last_turn: int, turn_share: float
) -> int:
    """The next heading at a crossing: never back, never out of the grid unless there is no other way."""
    weights = {0: 1 - turn_share, last_turn: 0.7 * turn_share, -last_turn: 0.3 * turn_share, 2: 1e-9}
    if last_turn == 0:
        weights = {0: 1.0, 1: 1e-3, -1: 1e-3, 2: 1e-9}
    options, chances = [], []
    for turn, weight in weights.items():
        target = node + _HEADINGS[(heading + turn) % 4]
        if 0 <= target[0] <= grid.columns and 0 <= target[1] <= grid.rows:
            options.append((heading + turn) % 4)
            chances.append(weight)
    return int(rng.choice(options, p=np.array(chances) / sum(chances)))


def _lane_offset(grid: StreetGrid, heading: int) -> NDArray:
    return grid.lane * _HEADINGS[(heading + 1) % 4]


def _lane_start(grid: StreetGrid, node: NDArray, heading: int) -> NDArray:
    return grid.crossing(node) + _lane_offset(grid, heading)


def _lane_corner(grid: StreetGrid, node: NDArray, heading: int, ahead: int) -> NDArray:
    """Where the lane of the old street meets that of the new one."""
    return grid.crossing(node) + _lane_offset(grid, heading) + _lane_offset(grid, ahead)


def _rounded(corners: NDArray, radii: NDArray) -> NDArray:
    """The polyline with arcs at its corners every SPACING_M, smoothed so that the yaw rate does not jump."""
    pieces, position = [], corners[0]
    for k in range(1, len(corners)):
        direction = (corners[k] - corners[k - 1]) / np.linalg.norm(corners[k] - corners[k - 1])
        entry = corners[k] - radii[k] * direction
        count = max(1, round(float(np.linalg.norm(entry - position)) / SPACING_M))
        pieces.append(position + np.arange(count)[:, None] / count * (entry - position))
        position = entry
        if radii[k] > 0:
            ahead = (corners[k + 1] - corners[k]) / np.linalg.norm(corners[k + 1] - corners[k])
            angle = np.linspace(0, np.pi / 2, round(radii[k] * np.pi / 2 / SPACING_M), endpoint=False)[
                :, None
            ]
            pieces.append(entry + radii[k] * (np.sin(angle) * direction + (1 - np.cos(angle)) * ahead))
            position = corners[k] + radii[k] * ahead
    points = np.concatenate(pieces)
    window = np.hanning(round(SMOOTHING_M / SPACING_M) | 1)
    window /= window.sum()
    return np.stack([np.convolve(points[:, k], window, mode="valid") for k in range(2)], 1)


def drive(rng: Rng, route: NDArray, frames: int, height_m: float, speed_m: tuple[float, float]) -> SE3:
    """Poses of a camera on a car that follows the route, slower in bends, with pitch, roll and bob."""
    frame = np.arange(frames, dtype=float)
    step = np.diff(route, axis=0)
    yaw = np.unwrap(np.arctan2(step[:, 0], step[:, 1]))
    bend = np.abs(np.gradient(yaw, SPACING_M))
    calm = np.convolve(bend, np.ones(81) / 81, mode="same")
    low, high = speed_m
    cruise = low + (high - low) * (0.6 + 0.4 * wave(rng, frame, 80))
    at, place = np.empty(frames), 0.0
    for k in range(frames):
        at[k] = place
        slow = 1 / (1 + 8 * calm[min(int(place / SPACING_M), len(calm) - 1)])
        place += max(low, cruise[k] * slow)
    at /= SPACING_M
    index = np.arange(len(route), dtype=float)
    x, z = np.interp(at, index, route[:, 0]), np.interp(at, index, route[:, 1])
    heading = np.interp(at, index[:-1] + 0.5, yaw)
    bob = rng.uniform(0.005, 0.025) * wave(rng, frame, 6)
    position = np.stack([x, -(height_m + bob), z], 1)
    pitch = np.radians(rng.uniform(-3, 2) + rng.uniform(0.1, 0.6) * wave(rng, frame, 5))
    roll = np.radians(rng.uniform(0.1, 0.5) * wave(rng, frame, 7) + rng.uniform(-0.7, 0.7))
    offset = np.radians(rng.uniform(-1.5, 1.5))
    return poses(position, heading + offset + np.radians(0.15) * wave(rng, frame, 6), pitch, roll)
