"""Where to look at a map from, and what a click on the screen hits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anchor3r.framing import bounds, standing_point, top_axes, upward
from anchor3r.trajectory import FramePose, Trajectory

VERTICAL_FOV_RAD = 0.9
"""Of the page, until it is changed there."""
_FILLED = 0.9  # part of the window that the map fills at first
_NEAR_CLICK = 0.03  # radians between the ray of a click and the nearest point that it can mean
_SAME_SPOT = 0.004  # radians within which the nearest along the ray is meant


@dataclass(frozen=True)
class Viewpoint:
    """A camera of the page."""

    position: NDArray[np.float64]
    look_at: NDArray[np.float64]
    up: NDArray[np.float64]


def viewpoint(
    axes_of: Callable[[Trajectory, NDArray[Any], NDArray[np.float64]], NDArray[np.float64]],
    poses: Trajectory,
    points: NDArray[np.float32],
    path: NDArray[np.float64],
) -> Viewpoint:
    """From where all of the path (m, 3) of these poses and the bulk of these points (n, 3) are seen, along
    the chosen axes."""
    up = upward(poses, points)
    axes = axes_of(poses, points, up)
    # As wide as high: the panel covers a part of a wide window.
    tangents = np.full(2, _FILLED * np.tan(VERTICAL_FOV_RAD / 2))
    position = standing_point(axes, tangents, points, path)
    low, high = bounds((points - position) @ axes[2:].T, (path - position) @ axes[2:].T)
    look_at = position + float((low + high)[0] / 2) * axes[2]
    return Viewpoint(position, look_at, -axes[1] if axes_of is top_axes else up)


def behind(pose: FramePose, up: NDArray[np.float64], depth: float) -> Viewpoint:
    """Over the shoulder of one camera."""
    forward = pose.rotation[2]
    position = pose.center + depth * (0.25 * up - 0.6 * forward)
    return Viewpoint(position, pose.center + depth * forward, up)


def picked(origin: ArrayLike, direction: ArrayLike, points: NDArray[np.float32]) -> int | None:
    """Which point out of (n, 3) a click along a ray means; None if it hits nothing."""
    ray = np.asarray(direction, np.float64)
    ray = ray / np.linalg.norm(ray)
    offset = points - np.asarray(origin, np.float64)
    along = offset @ ray
    aside = np.linalg.norm(offset - along[:, None] * ray, axis=1)
    angle = np.where(along > 0, aside / np.where(along > 0, along, 1), np.inf)
    if not len(points) or angle.min() > _NEAR_CLICK:
        return None
    meant = np.flatnonzero(angle <= max(_SAME_SPOT, angle.min()))
    return int(meant[along[meant].argmin()])
