"""The one camera of a map, and images as it would have taken them without its lens."""

from __future__ import annotations

from dataclasses import astuple
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.store.reader import Map

_SAMPLED_FRAMES = 15
"""Frames that a camera nobody knew is estimated from."""
_LATEST_PART, _LATEST_FRAMES = 0.25, 200
"""The last part of a map, and as many of its frames, whose intrinsics are believed."""


def common_camera(scene_map: Map) -> Pinhole:
    """The one camera that all frames of a map come from, of images as they came from the source.

    A predictor that calibrates on the way knows it best in the end, and its last word is taken. Of a map that
    has none, the camera is the median of the last ones.
    """
    if (found := scene_map.meta.get("camera")) is not None and "cx" in found:
        size = int(found["width"]), int(found["height"])
        return Pinhole(found["fx"], found["fy"], found["cx"], found["cy"], *size)
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


def lens_of(scene_map: Map) -> tuple[float, float]:
    """Radial distortion k1, k2 that the map's predictor found on top of what was stated; 0 if it does not
    look for one."""
    camera = scene_map.meta.get("camera") or {}
    return float(camera.get("k1", 0.0)), float(camera.get("k2", 0.0))


def without_lens(
    image: NDArray[np.uint8], camera: Pinhole, lens: tuple[float, float], target: Pinhole
) -> NDArray[np.uint8]:
    """An image (H, W, 3) of a camera with radial distortion, as an ideal one of another size sees it.

    Where that looks past the image the pixel at the border is repeated: an edge to black, which moves with
    the camera, would spoil all windows that reach over it.
    """
    import cv2

    camera = camera.resized(image.shape[1], image.shape[0])
    if (target.width, target.height) != (camera.width, camera.height):
        image = np.asarray(
            cv2.resize(image, (target.width, target.height), interpolation=cv2.INTER_AREA), np.uint8
        )
        camera = camera.resized(target.width, target.height)
    if lens == (0.0, 0.0) and camera == target:
        return image
    maps = _straightening(camera, lens, target)
    straight = cv2.remap(image, *maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(straight, np.uint8)


def shown_by_lens(camera: Pinhole, lens: tuple[float, float], target: Pinhole) -> NDArray[np.bool_]:
    """(h, w) pixels of the ideal image that lie within the one of the lens."""
    columns, rows = _straightening(camera.resized(target.width, target.height), lens, target)
    inside = (columns >= -0.5) & (columns <= target.width - 0.5)
    return np.asarray(inside & (rows >= -0.5) & (rows <= target.height - 0.5), np.bool_)


@lru_cache(maxsize=4)
def _straightening(
    camera: Pinhole, lens: tuple[float, float], target: Pinhole
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Where each pixel of the ideal image comes from, (h, w) each."""
    import cv2

    distortion = np.array([*lens, 0.0, 0.0])
    columns, rows = cv2.initUndistortRectifyMap(
        camera.matrix(), distortion, None, target.matrix(), (target.width, target.height), cv2.CV_32FC1
    )
    return np.asarray(columns, np.float32), np.asarray(rows, np.float32)
