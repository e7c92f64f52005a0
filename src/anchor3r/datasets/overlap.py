"""How much of each other the pictures of a sequence see, from depth and poses.

Pictures without order are chained into clips by it. Depth tells what poses alone cannot: that a wall stands
between two cameras, or that two of them look at the same façade from far apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Pinhole
from anchor3r.io.inputs import DAMAGED
from anchor3r.kernels import Array, kernel
from anchor3r.sources.frame import Frame

THUMBNAIL = 48
"""Longer side of the depth images that visibility is tested in."""
POINTS = 12
"""Points on the longer side of a picture that are looked for in the others: 100 or so in all."""
SAME_SURFACE = 0.1
"""A point is seen where the other picture's depth differs by at most this part; thumbnails are coarse."""


def load_or_measure(path: Path, frames: Iterable[Frame]) -> NDArray[np.float32]:
    """What was measured before and kept in a file, or is measured now and kept."""
    if path.is_file():
        # A file that a disk has damaged is as good as none: it is made anew.
        with suppress(*DAMAGED):
            return np.asarray(np.load(path, allow_pickle=False), np.float32)
    overlap = measure_overlap(frames)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may measure at the same time: each writes a file of its own.
    draft = path.with_suffix(f".{os.getpid()}.npy")
    np.save(draft, overlap.astype(np.float16))
    os.replace(draft, path)
    return overlap


def measure_overlap(frames: Iterable[Frame]) -> NDArray[np.float32]:
    """(n, n) of each pair the smaller share of one picture's points that the other one sees, 0 to 1.

    Frames are read one by one, need a pose and a camera, and see nothing where they have no depth.
    """
    points: list[Array] = []
    depths: list[NDArray[np.float32]] = []
    cameras, poses = [], []
    for frame in frames:
        assert frame.intrinsics is not None
        assert frame.camera_from_world is not None
        height, width = frame.image.shape[:2]
        depth = np.zeros((height, width), np.float32) if frame.depth_m is None else frame.depth_m
        small, camera = _thumbnail(depth, frame.intrinsics, THUMBNAIL)
        depths.append(small)
        cameras.append([camera.fx, camera.fy, camera.cx, camera.cy])
        poses.append(frame.camera_from_world.matrix()[:3])
        coarse, camera = _thumbnail(depth, frame.intrinsics, POINTS)
        points.append(frame.camera_from_world.inverse().apply(_points(coarse, camera)))
    size = tuple(max(depth.shape[axis] for depth in depths) for axis in (0, 1))
    padded = np.zeros((len(depths), *size), np.float32)
    for k, depth in enumerate(depths):
        padded[k, : depth.shape[0], : depth.shape[1]] = depth
    first = np.cumsum([0, *(len(some) for some in points)])
    seen = np.zeros((len(depths), len(depths)), np.float32)
    _count_seen(np.concatenate(points), first, padded, np.array(cameras), np.array(poses), seen)
    share = seen / np.maximum(np.diff(first), 1)[:, None]
    return np.asarray(np.minimum(share, share.T), np.float32)


def _thumbnail(
    depth: NDArray[np.float32], camera: Pinhole, longer: int
) -> tuple[NDArray[np.float32], Pinhole]:
    """Depth of every so many pixels, not averaged, and the camera that sees them."""
    factor = min(1.0, longer / max(depth.shape))
    size = [max(1, round(side * factor)) for side in depth.shape]
    rows, columns = (
        ((np.arange(n) + 0.5) * side / n).astype(int) for n, side in zip(size, depth.shape, strict=True)
    )
    return depth[rows][:, columns], camera.resized(size[1], size[0])


def _points(depth: NDArray[np.float32], camera: Pinhole) -> NDArray[np.float64]:
    """(n, 3) in the camera's frame, of pixels whose depth is known."""
    v, u = np.nonzero(depth > 0)
    z = depth[v, u].astype(np.float64)
    return np.stack([(u - camera.cx) / camera.fx * z, (v - camera.cy) / camera.fy * z, z], -1)


@kernel
def _count_seen(
    points: Array, first: Array, depths: Array, cameras: Array, poses: Array, seen: Array
) -> None:
    """seen (n, n): how many points of picture i lie on a surface that picture j sees."""
    for i in range(len(seen)):
        for j in range(len(seen)):
            fx, fy, cx, cy = cameras[j]
            pose = poses[j]
            count = 0
            for k in range(first[i], first[i + 1]):
                x, y, w = points[k]
                z = pose[2, 0] * x + pose[2, 1] * y + pose[2, 2] * w + pose[2, 3]
                if z <= 0:
                    continue
                u = fx * (pose[0, 0] * x + pose[0, 1] * y + pose[0, 2] * w + pose[0, 3]) / z + cx
                v = fy * (pose[1, 0] * x + pose[1, 1] * y + pose[1, 2] * w + pose[1, 3]) / z + cy
                if not (-0.5 <= u < depths.shape[2] - 0.5 and -0.5 <= v < depths.shape[1] - 0.5):
                    continue
                found = depths[j, int(v + 0.5), int(u + 0.5)]
                if found > 0 and abs(found - z) <= SAME_SURFACE * z:
                    count += 1
            seen[i, j] = count
