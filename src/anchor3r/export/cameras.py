"""Cameras of a map: points as another camera would have them, frustums as lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Pinhole
from anchor3r.store import Map, PointMap
from anchor3r.trajectory import Trajectory

_FRUSTUM_OUTLINE = (0, 1, 2, 0, 3, 4, 0, 4, 1, 2, 3)
"""Of a camera drawn as a pyramid: through its centre (0) and its corners, every edge at least once."""


def camera_in_words(camera: Mapping[str, Any]) -> str:
    """What a predictor found out about the camera (`Predictor.estimated_camera`), with spreads."""
    text = f"focal length {camera['focal_px']:.1f} ± {camera['focal_sigma_px']:.1f} pixels"
    if not camera.get("determined", True):
        text += " (undetermined: state the camera if it is known)"
    elif (bend := camera.get("path_bend")) is not None:
        text += f" (two spreads of it put positions off by {bend:.2%} of the path: state it if it is known)"
    elif camera.get("doubted"):
        text += f" (the stated {camera['stated_focal_px']:.1f} does not fit what was seen)"
    if "cx" in camera:
        text += f", principal point {camera['cx']:.1f} ± {camera['cx_sigma']:.1f}, "
        text += f"{camera['cy']:.1f} ± {camera['cy_sigma']:.1f}"
    for name in ("k1", "k2"):
        if name in camera:
            sigma = camera.get(f"{name}_sigma")
            text += f", {name} {camera[name]:+.4f}" + ("" if sigma is None else f" ± {sigma:.4f}")
    return text


def largest_change(scene_map: Map, frames: list[int], camera: Pinhole) -> float:
    """How far the focal lengths that the frames were mapped with are from the camera's, as a part of it."""
    own = [found.fx for frame in frames if (found := scene_map.intrinsics(frame)) is not None]
    return max((abs(fx / camera.fx - 1) for fx in own), default=0.0)


def retaken(point_map: PointMap, own: Pinhole | None, camera: Pinhole) -> PointMap:
    """A point map of a frame with its own camera, as another one would have it: same pixels, same depths."""
    if own is None or own == camera:
        return point_map
    points = point_map.points_in_camera
    pixels = own.resized(camera.width, camera.height).project(points)
    return replace(point_map, points_in_camera=camera.unproject(pixels, points[..., 2]).astype(np.float32))


def frustum_lines(trajectory: Trajectory, camera: Pinhole | None, depth: float) -> NDArray[np.float64]:
    """Pyramids whose base is what a camera sees: polylines (n, 11, 3) in the world, one a pose.

    `depth` is that of the base; its sides are 4:3 without a camera.
    """
    shape = camera or Pinhole.from_fov(60, 4, 3)
    right, bottom = shape.width - 0.5, shape.height - 0.5
    corners = np.array([[-0.5, -0.5], [right, -0.5], [right, bottom], [-0.5, bottom]])
    corners_in_camera = np.concatenate([np.zeros((1, 3)), shape.unproject(corners, np.full(4, depth))])
    world_from_camera = trajectory.world_from_camera
    rotated = corners_in_camera[list(_FRUSTUM_OUTLINE)] @ np.swapaxes(world_from_camera.rotation, -1, -2)
    return np.asarray(rotated + world_from_camera.translation[:, None], np.float64)


def frustum_depth(trajectory: Trajectory) -> float:
    """A size at which the cameras of a path can be told from each other and from the path."""
    extent = float(np.ptp(trajectory.center, axis=0).max()) if len(trajectory) else 0.0
    return 0.02 * extent or 0.1
