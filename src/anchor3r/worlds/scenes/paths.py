"""Camera paths, made before there is a scene around them: in the hand, around an object, in a car.

World axes are x right, y down, z forward. Yaw 0 looks along +z, positive yaw to the right; positive pitch
looks up; positive roll tilts the camera clockwise. A car drives over a rectangular grid of streets, smoothly,
in its lane, and comes back to places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from anchor3r.geometry import SE3
from anchor3r.kernels import Array

Rng = np.random.Generator
_HEADINGS = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])
"""Unit steps (x, z) of north, east, south, west; +1 turns right."""
SPACING_M = 0.1
SMOOTHING_M = 5.0


def poses(position: Array, yaw: ArrayLike, pitch: ArrayLike, roll: ArrayLike) -> SE3:
    """camera_from_world of cameras at positions (n, 3) with these angles (n,) in radians."""
    turn = _rotation(yaw, 1) @ _rotation(pitch, 0) @ _rotation(roll, 2)
    return SE3(turn, np.asarray(position, float)).inverse()


def _rotation(angle: ArrayLike, axis: int) -> Array:
    """(n,) -> (n, 3, 3), right-handed about one axis."""
    angle = np.asarray(angle, float)
    out = np.broadcast_to(np.eye(3), (*angle.shape, 3, 3)).copy()
    a, b = (axis + 1) % 3, (axis + 2) % 3
    out[..., a, a], out[..., b, b] = np.cos(angle), np.cos(angle)
    out[..., a, b], out[..., b, a] = -np.sin(angle), np.sin(angle)
    return out


def wave(rng: Rng, time: Array, period: float, components: int = 3) -> Array:
    """A smooth random function of time within [-1, 1], with periods from `period` to three times it."""
    frequency = 2 * np.pi / (period * rng.uniform(1.0, 3.0, components))
    phase = rng.uniform(0, 2 * np.pi, components)
    weight = rng.uniform(0.3, 1.0, components)
    return np.sin(frequency * time[:, None] + phase) @ (weight / weight.sum())


def handheld(
    rng: Rng,
    frames: int,
    low: Array,
    high: Array,
    step_m: float,
    turn_deg: float,
    look_yaw: float | None = None,
) -> SE3:
    """Wanders within the box low..high, mostly `step_m` a frame, turning up to about `turn_deg` a frame.

    Now and then it stands still and only turns. `look_yaw` keeps the view within 70° of a direction.
    """
    frame = np.arange(frames, dtype=float)
    stroll = np.clip(0.75 + 1.1 * wave(rng, frame, 25), 0.02, 1.5)
    time = np.cumsum(stroll)
    reach = (high - low) / 2
    # A sine of amplitude a and period p moves at most 2π a/p a frame; several of them less, about half.
    position = (
        np.stack(
            [wave(rng, time, max(12.0, 2 * np.pi * r / (0.9 * step_m + 1e-9) * 0.5)) * r for r in reach], 1
        )
        + (low + high) / 2
    )
    position += np.stack([wave(rng, frame, 5) for _ in range(3)], 1) * min(0.003, 0.1 * step_m)
    turn = np.radians(turn_deg)
    amplitude = np.radians(70) if look_yaw is not None else np.pi * rng.uniform(0.3, 1.2)
    yaw = wave(rng, frame, max(20.0, 2 * np.pi * amplitude / turn * 0.5)) * amplitude
    yaw += look_yaw if look_yaw is not None else rng.uniform(0, 2 * np.pi)
    tilt = np.radians(rng.uniform(5, 22))
    pitch = wave(rng, frame, max(15.0, 2 * np.pi * tilt / turn * 0.7)) * tilt - np.radians(rng.uniform(0, 12))
    lean = np.radians(rng.uniform(1, 8))
    roll = wave(rng, frame, max(15.0, 2 * np.pi * lean / turn)) * lean
    shake = np.radians(rng.uniform(0.05, 0.3))
    yaw, pitch, roll = (a + shake * wave(rng, frame, 4) for a in (yaw, pitch, roll))
    return poses(position, yaw, pitch, roll)


def orbit(
    rng: Rng, frames: int, radius: tuple[float, float], height: tuple[float, float], target: Array
) -> SE3:
    """Circles a target (3,) at varying radius and height, looking inwards, now and then turning back."""
    frame = np.arange(frames, dtype=float)
    speed = np.radians(rng.uniform(0.3, 1.5)) * rng.choice([-1, 1])
    angle = rng.uniform(0, 2 * np.pi) + speed * (frame + 12 * wave(rng, frame, 60))
    low, high = radius
    distance = (low + high) / 2 + (high - low) / 2 * wave(rng, frame, 50)
    up = sum(height) / 2 + (height[1] - height[0]) / 2 * wave(rng, frame, 50)
    position = np.stack([target[0] + distance * np.sin(angle), -up, target[2] + distance * np.cos(angle)], 1)
    aim = target + 0.12 * low * np.stack([wave(rng, frame, 30) for _ in range(3)], 1)
    view = aim - position
    shake = np.radians(rng.uniform(0.05, 0.3))
    yaw = np.arctan2(view[:, 0], view[:, 2]) + shake * wave(rng, frame, 4)
    pitch = np.arctan2(-view[:, 1], np.hypot(view[:, 0], view[:, 2])) + shake * wave(rng, frame, 4)
    return poses(position, yaw, pitch, np.radians(rng.uniform(0, 6)) * wave(rng, frame, 30))


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

    def crossing(self, node: Array) -> Array:
        """World (x, z) of crossings (..., 2)."""
        return node * np.array([self.block_x, self.block_z])


def grid_route(rng: Rng, grid: StreetGrid, length_m: float, turn_share: float) -> Array:
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


def _choose(rng: Rng, grid: StreetGrid, node: Array, heading: int, last_turn: int, turn_share: float) -> int:
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


def _lane_offset(grid: StreetGrid, heading: int) -> Array:
    return grid.lane * _HEADINGS[(heading + 1) % 4]


def _lane_start(grid: StreetGrid, node: Array, heading: int) -> Array:
    return grid.crossing(node) + _lane_offset(grid, heading)


def _lane_corner(grid: StreetGrid, node: Array, heading: int, ahead: int) -> Array:
    """The point at which the lane of the old street meets that of the new one."""
    return grid.crossing(node) + _lane_offset(grid, heading) + _lane_offset(grid, ahead)


def _rounded(corners: Array, radii: Array) -> Array:
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


def drive(rng: Rng, route: Array, frames: int, height_m: float, speed_m: tuple[float, float]) -> SE3:
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
