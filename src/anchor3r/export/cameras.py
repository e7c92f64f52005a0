"""The cameras of a map: one for all images, points as another camera would have them, frustums as lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.store import Map, PointMap
from anchor3r.trajectory import Trajectory

_SAMPLED_FRAMES = 15
"""Frames that a camera nobody knew is estimated from."""
_LATEST_PART, _LATEST_FRAMES = 0.25, 200
"""The last part of a map, and as many of its frames, whose intrinsics are believed."""
_FRUSTUM_OUTLINE = (0, 1, 2, 0, 3, 4, 0, 4, 1, 2, 3)
"""Of a camera drawn as a pyramid: through its centre (0) and its corners, every edge at least once."""


def common_camera(scene_map: Map) -> Pinhole:
    """The one camera that all frames of a map come from, of images as they came from the source.

    A predictor that calibrates on the way knows it best in the end: its last word is the focal length. Of a
    map that does not say it, the camera is the median of the last ones.
    """
    frames = scene_map.frames().index
    latest = frames[-max(1, round(_LATEST_PART * len(frames))) :]
    chosen = latest[:: -(-len(latest) // _LATEST_FRAMES)]
    known = [camera for frame in chosen.tolist() if (camera := scene_map.intrinsics(frame)) is not None]
    if not known:
        return estimated_camera(scene_map, scene_map.trajectory().frames.tolist())
    fx, fy, cx, cy = np.median([astuple(camera)[:4] for camera in known], axis=0).tolist()
    if (estimated := scene_map.meta.get("camera")) is not None:
        fx, fy = estimated["focal_px"], estimated["focal_px"] * fy / fx
    return Pinhole(fx, fy, cx, cy, known[-1].width, known[-1].height)


def camera_in_words(camera: Mapping[str, Any]) -> str:
    """What a predictor found out about the camera (`Predictor.estimated_camera`), with spreads."""
    text = f"focal length {camera['focal_px']:.1f} ± {camera['focal_sigma_px']:.1f} pixels"
    if not camera.get("determined", True):
        text += " (undetermined: state the camera if it is known)"
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


def estimated_camera(scene_map: Map, frames: list[int]) -> Pinhole:
    """A camera from the point maps: its centre is the image's, its pixels are square.

    A point at distance ρ from the axis and depth z is seen f ρ / z from the centre; f is the median.
    """
    chosen = frames[:: -(-len(frames) // _SAMPLED_FRAMES)]
    found = [scene_map.points(frame) for frame in chosen]
    focal, shape = [], (0, 0)
    for point_map in found:
        if point_map is None:
            continue
        height, width = shape = point_map.points_in_camera.shape[:2]
        v, u = np.mgrid[:height, :width]
        off_centre = np.hypot(u - (width - 1) / 2, v - (height - 1) / 2)
        x, y, z = np.moveaxis(point_map.points_in_camera, -1, 0)
        rho = np.hypot(x, y)
        # Near the centre a cell's own size is most of the distance.
        good = np.isfinite(z) & (z > 0) & (rho > 0) & (off_centre > 0.1 * width)
        focal.append(off_centre[good] * z[good] / rho[good])
    values = np.concatenate([np.empty(0), *focal])
    if not len(values):
        raise Anchor3RError(
            f"{scene_map.folder} knows no camera and has no points to estimate one from; map a source with "
            "known intrinsics"
        )
    f = float(np.median(values))
    return Pinhole(f, f, (shape[1] - 1) / 2, (shape[0] - 1) / 2, shape[1], shape[0])


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
