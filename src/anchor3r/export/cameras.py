"""The camera of a map's images, for programs that want one, and points as that camera would have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.store import Map, PointMap

_SAMPLED_FRAMES = 15
"""Frames that a camera nobody knew is estimated from."""
_LATEST_PART, _LATEST_FRAMES = 0.25, 200
"""The last part of a map, and as many of its frames, whose intrinsics are believed."""


def common_camera(made: Map) -> Pinhole:
    """The one camera that all frames of a map come from, of images as they came from the source.

    A predictor that calibrates on the way knows it best in the end: its last word is the focal length. Of a
    map that does not say it, the camera is the median of the last ones.
    """
    frames = made.frames().index
    latest = frames[-max(1, round(_LATEST_PART * len(frames))) :]
    chosen = latest[:: -(-len(latest) // _LATEST_FRAMES)]
    known = [camera for frame in chosen.tolist() if (camera := made.intrinsics(frame)) is not None]
    if not known:
        return estimated_camera(made, made.trajectory().frames.tolist())
    fx, fy, cx, cy = np.median([astuple(camera)[:4] for camera in known], axis=0).tolist()
    if (estimated := made.meta.get("camera")) is not None:
        fx, fy = estimated["focal_px"], estimated["focal_px"] * fy / fx
    return Pinhole(fx, fy, cx, cy, known[-1].width, known[-1].height)


def camera_in_words(camera: Mapping[str, Any]) -> str:
    """What a predictor found out about the camera (`Predictor.estimated_camera`), with spreads."""
    text = f"focal length {camera['focal_px']:.1f} ± {camera['focal_sigma_px']:.1f} pixels"
    for name in ("k1", "k2"):
        if name in camera:
            sigma = camera.get(f"{name}_sigma")
            text += f", {name} {camera[name]:+.4f}" + ("" if sigma is None else f" ± {sigma:.4f}")
    return text


def largest_change(made: Map, frames: list[int], camera: Pinhole) -> float:
    """How far the focal lengths that the frames were mapped with are from the camera's, as a part of it."""
    own = [found.fx for frame in frames if (found := made.intrinsics(frame)) is not None]
    return max((abs(fx / camera.fx - 1) for fx in own), default=0.0)


def retaken(point_map: PointMap, own: Pinhole | None, camera: Pinhole) -> PointMap:
    """A point map of a frame with its own camera, as another one would have it: same pixels, same depths."""
    if own is None or own == camera:
        return point_map
    points = point_map.points_in_camera
    pixels = own.resized(camera.width, camera.height).project(points)
    return replace(point_map, points_in_camera=camera.unproject(pixels, points[..., 2]).astype(np.float32))


def estimated_camera(made: Map, frames: list[int]) -> Pinhole:
    """A camera from the point maps: its centre is the image's, its pixels are square.

    A point at distance ρ from the axis and depth z is seen f ρ / z from the centre; f is the median.
    """
    chosen = frames[:: -(-len(frames) // _SAMPLED_FRAMES)]
    found = [made.points(frame) for frame in chosen]
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
            f"{made.folder} knows no camera and has no points to estimate one from; map a source with "
            "known intrinsics"
        )
    f = float(np.median(values))
    return Pinhole(f, f, (shape[1] - 1) / 2, (shape[0] - 1) / 2, shape[1], shape[0])
