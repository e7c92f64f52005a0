"""Camera paths in the hand and around an object, made before there is a scene around them.

World axes are x right, y down, z forward. Yaw 0 looks along +z, positive
yaw to the right; positive pitch looks up; positive roll tilts the camera clockwise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anchor3r.geometry import SE3

Rng = np.random.Generator


def poses(position: NDArray, yaw: ArrayLike, pitch: ArrayLike, roll: ArrayLike) -> SE3:
    """camera_from_world of cameras at positions (n, 3) with these angles (n,) in radians."""
    turn = _rotation(yaw, 1) @ _rotation(pitch, 0) @ _rotation(roll, 2)
    return SE3(turn, np.asarray(position, float)).inverse()


def _rotation(angle: ArrayLike, axis: int) -> NDArray:
    """(n,) -> (n, 3, 3), right-handed about one axis."""
    angle = np.asarray(angle, float)
    out = np.broadcast_to(np.eye(3), (*angle.shape, 3, 3)).copy()
    a, b = (axis + 1) % 3, (axis + 2) % 3
    out[..., a, a], out[..., b, b] = np.cos(angle), np.cos(angle)
    out[..., a, b], out[..., b, a] = -np.sin(angle), np.sin(angle)
    return out


def wave(rng: Rng, time: NDArray, period: float, components: int = 3) -> NDArray:
    """A smooth random function of time within [-1, 1], with periods from `period` to three times it."""
    frequency = 2 * np.pi / (period * rng.uniform(1.0, 3.0, components))
    phase = rng.uniform(0, 2 * np.pi, components)
    weight = rng.uniform(0.3, 1.0, components)
    return np.sin(frequency * time[:, None] + phase) @ (weight / weight.sum())


def handheld(
    rng: Rng,
    frames: int,
    low: NDArray,
    high: NDArray,
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
    rng: Rng, frames: int, radius: tuple[float, float], height: tuple[float, float], target: NDArray
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
