"""Where to look at a map from, and what a click on the screen hits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anchor3r.trajectory import FramePose, Trajectory

_NEAR_CLICK = 0.03  # radians between the ray of a click and the nearest point that it can mean
_SAME_SPOT = 0.004  # radians within which the nearest along the ray is meant


@dataclass(frozen=True)
class Viewpoint:
    """A camera of the page."""

    position: NDArray[np.float64]
    look_at: NDArray[np.float64]
    up: NDArray[np.float64]


def overview(poses: Trajectory, up: NDArray[np.float64], depth: float) -> Viewpoint:
    """The whole trajectory, from above, behind and a little beside it."""
    center, extent = _extent(poses, depth)
    along = _ahead(poses, up)
    return Viewpoint(center + extent * (0.55 * up - 0.5 * along + 0.3 * np.cross(up, along)), center, up)


def top_down(poses: Trajectory, up: NDArray[np.float64], depth: float) -> Viewpoint:
    """The whole trajectory from straight above; where it first went is up on the screen."""
    center, extent = _extent(poses, depth)
    return Viewpoint(center + 0.8 * extent * up, center, _ahead(poses, up))


def behind(pose: FramePose, up: NDArray[np.float64], depth: float) -> Viewpoint:
    """Over the shoulder of one camera."""
    forward = pose.rotation[2]
    position = pose.center + depth * (0.25 * up - 0.6 * forward)
    return Viewpoint(position, pose.center + depth * forward, up)


def picked(
    origin: ArrayLike, direction: ArrayLike, points: NDArray[np.float32]
) -> NDArray[np.float64] | None:
    """The point (3,) out of (n, 3) that a click along a ray means; None if it hits nothing."""
    ray = np.asarray(direction, np.float64)
    ray = ray / np.linalg.norm(ray)
    offset = points - np.asarray(origin, np.float64)
    along = offset @ ray
    aside = np.linalg.norm(offset - along[:, None] * ray, axis=1)
    angle = np.where(along > 0, aside / np.where(along > 0, along, 1), np.inf)
    if not len(points) or angle.min() > _NEAR_CLICK:
        return None
    meant = np.flatnonzero(angle <= max(_SAME_SPOT, angle.min()))
    return points[meant[along[meant].argmin()]].astype(np.float64)


def _extent(poses: Trajectory, depth: float) -> tuple[NDArray[np.float64], float]:
    low, high = poses.center.min(0), poses.center.max(0)
    return (low + high) / 2, float(np.linalg.norm(high - low)) + 2 * depth


def _ahead(poses: Trajectory, up: NDArray[np.float64]) -> NDArray[np.float64]:
    """(3,) level direction in which the first camera looked."""
    forward = poses.rotation[0, 2]
    level = forward - (forward @ up) * up
    if np.linalg.norm(level) < 1e-3:  # it looked straight up or down
        level = poses.rotation[0, 1] - (poses.rotation[0, 1] @ up) * up
    return level / np.linalg.norm(level)
