"""From where a scene is looked at: which way is up, which way to look, and how far off to stand.

A scene is the points that were measured and the path of the cameras that saw them. It is framed by the whole
path and by the bulk of the points: a few stray points do not shrink the picture.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.trajectory import Trajectory

Floats = NDArray[np.float64]
_BULK = (0.03, 0.97)
"""Quantiles of the points' coordinates between which a scene is framed."""
_ELEVATION_DEG = 35.0
"""How far an oblique view looks down."""
_ASIDE_OF_PATH_DEG, _ASIDE_OF_CAMERAS_DEG = 52.0, 20.0
"""Angle between an oblique view and the path that it is to show, or the direction that the cameras looked."""
_LONG_PATH = 0.5
"""A path that is so long, as a part of its scene's extent, is what a view shows; else the scene is."""
_SAME_DIRECTION = 0.3
"""Length of the mean of the cameras' directions from which on they are taken to look one way."""
_UPRIGHT, _DOWNWARD = 0.5, 0.8
"""Lengths of the mean of the cameras' upright axes and directions: a flight to and fro over a field is
below the first and above the second; no camera that is held upright is."""
_FLAT = 0.1
"""Thickness of the points over their width below which they are a plane: seen from its edge it is a line."""
_CENTRING_STEPS = 40
"""Halvings of a scene's extent until its middle is found, as exactly as numbers are."""
_IN_FRONT = 1e-9
"""Least distance along the view: stray points may lie behind it."""
_MIN_PLANE_POINTS, _PLANE_POINTS, _PLANE_ROUNDS, _ON_PLANE = 30, 5_000, 4, 0.9
"""Fewest and most points that a plane is fitted to, how often, and the part of them nearest to it that the
next fit is to."""


def upward(poses: Trajectory, points: NDArray[Any] | None = None) -> Floats:
    """(3,) unit vector: cameras are held upright on average, or look straight down and turn.

    If the points (n, 3) are a plane that the cameras look at from its front, such as a field below a single
    strip of a flight, it is the plane's normal: who looks along the plane sees a line.
    """
    if not len(poses):
        return np.array([0.0, -1.0, 0.0])
    upright, backward = -poses.rotation[:, 1].mean(0), -poses.rotation[:, 2].mean(0)
    lengths = float(np.linalg.norm(upright)), float(np.linalg.norm(backward))
    if lengths[0] < _UPRIGHT and lengths[1] > _DOWNWARD:
        return backward / lengths[1]
    normal = None if points is None else _normal_of_plane(points)
    if normal is not None and abs(normal @ backward) > _DOWNWARD:
        return normal if normal @ backward > 0 else -normal
    return upright / lengths[0] if lengths[0] > 0.1 else np.array([0.0, -1.0, 0.0])


def _normal_of_plane(points: NDArray[Any]) -> Floats | None:
    """(3,) of the plane that the bulk of points (n, 3) lies in, of either sign; None if there is none."""
    chosen = points[:: -(-len(points) // _PLANE_POINTS)].astype(np.float64) if len(points) else points
    if len(chosen) < _MIN_PLANE_POINTS:
        return None
    low, high = np.quantile(chosen, _BULK, axis=0)
    kept = chosen = chosen[((chosen >= low) & (chosen <= high)).all(1)]
    for _ in range(_PLANE_ROUNDS):
        middle = np.median(kept, axis=0)
        variances, axes = np.linalg.eigh(np.cov(kept, rowvar=False))
        off = np.abs((chosen - middle) @ axes[:, 0])
        kept = chosen[off <= np.quantile(off, _ON_PLANE)]
    return axes[:, 0] if variances[0] < _FLAT**2 * variances[1] else None


def bounds(points: NDArray[Any], path: NDArray[Any]) -> tuple[Floats, Floats]:
    """Lowest and highest coordinates (k,) of the bulk of the points (n, k) and the whole path (m, k)."""
    low, high = path.min(0).astype(np.float64), path.max(0).astype(np.float64)
    if len(points):
        bulk = np.quantile(points, _BULK, axis=0)
        low, high = np.minimum(low, bulk[0]), np.maximum(high, bulk[1])
    return low, high


def top_axes(poses: Trajectory, points: NDArray[Any], up: Floats) -> Floats:
    """(3, 3) camera_from_world of a view from straight above; its x axis is the scene's longer side."""
    ahead, is_along_path = _ahead(poses, points, up)
    right = ahead if is_along_path else np.cross(ahead, up)
    return np.stack([right, np.cross(-up, right), -up])


def oblique_axes(poses: Trajectory, points: NDArray[Any], up: Floats) -> Floats:
    """(3, 3) camera_from_world of a view from above and aside.

    It shows a long path, or else what the cameras looked at, from their side of it.
    """
    ahead, is_along_path = _ahead(poses, points, up)
    angle = np.radians(_ASIDE_OF_PATH_DEG if is_along_path else _ASIDE_OF_CAMERAS_DEG)
    elevation = np.radians(_ELEVATION_DEG)
    level = np.cos(angle) * ahead + np.sin(angle) * np.cross(up, ahead)
    forward = np.cos(elevation) * level - np.sin(elevation) * up
    right = np.cross(level, up)
    return np.stack([right, np.cross(forward, right), forward])


def standing_point(
    camera_from_world: Floats, tangents: NDArray[Any], points: NDArray[Any], path: NDArray[Any]
) -> Floats:
    """(3,) the nearest place from which a perspective camera sees the scene, in the middle of its picture.

    tangents: (2,) of half the horizontal and half the vertical angle of view. A point (x, y, z) along the
    camera's axes is seen from (u, v, w) if |x - u| ≤ t (z - w), and so for y: two bounds on u ± t w, which
    leave room for u as long as w is small enough.
    """
    seen, required = (np.asarray(p, np.float64) @ camera_from_world.T for p in (points, path))
    low, high = bounds(_sloped(seen, tangents), _sloped(required, tangents))
    left, right = high[:2], low[2:]
    nearest, farthest = bounds(seen, required)
    clearance = 0.05 * float(np.linalg.norm(farthest - nearest)) or 1.0
    w = min(float(((right - left) / (2 * tangents)).min()), float(nearest[2]) - clearance)
    middle = [_centred(seen[:, [k, 2]], required[:, [k, 2]], w) for k in (0, 1)]
    return np.array([*middle, w]) @ camera_from_world


def _centred(points: Floats, path: Floats, w: float) -> float:
    """u from which the slopes (x - u) / (z - w) of points and path (n, 2) reach as far to one side as to the
    other: what is near takes more of a picture than what is far."""
    nearest, farthest = bounds(points, path)
    low, high = float(nearest[0]), float(farthest[0])
    for _ in range(_CENTRING_STEPS):
        u = (low + high) / 2
        slopes = [(p[:, :1] - u) / np.maximum(p[:, 1:] - w, _IN_FRONT) for p in (points, path)]
        low, high = (u, high) if float(np.sum(bounds(*slopes))) > 0 else (low, u)
    return (low + high) / 2


def _sloped(points: Floats, tangents: NDArray[Any]) -> Floats:
    """(n, 4) x - t z, y - t z, x + t z and y + t z of points (n, 3)."""
    return np.concatenate([points[:, :2] - slope * points[:, 2:] for slope in (tangents, -tangents)], 1)


def _ahead(poses: Trajectory, points: NDArray[Any], up: Floats) -> tuple[Floats, bool]:
    """(3,) the level direction that matters most, and whether it is that of a long path."""
    level = np.eye(3) - np.outer(up, up)
    path = poses.center @ level
    path_extent, extent = (
        float(np.linalg.norm(np.subtract(*bounds(p, path)))) for p in (path, points @ level)
    )
    looked, upright = poses.rotation[:, 2].mean(0) @ level, -poses.rotation[:, 1].mean(0) @ level
    if float(np.linalg.norm(upright)) > _DOWNWARD:  # what all cameras see upright from its front
        return upright / np.linalg.norm(upright), False
    is_path = path_extent > _LONG_PATH * extent or float(np.linalg.norm(looked)) < _SAME_DIRECTION
    if not is_path:
        return looked / np.linalg.norm(looked), False
    from_middle = path - path.mean(0)
    # A camera that stands still and looks all around leaves the choice to the second term.
    _, axes = np.linalg.eigh(from_middle.T @ from_middle + 1e-12 * level)
    along = axes[:, -1]
    return (-along if along @ (path[-1] - path[0]) < 0 else along), True
