"""Depth images of a sphere and of a plane, exact to rounding, as fusion takes them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.keyframe_depth import DepthOrigin, KeyframeDepth
from anchor3r.dense.volume import VOXEL, VOXELS
from anchor3r.geometry import SE3, Pinhole

CAMERA = Pinhole.from_fov(60, 96, 72)


class MemorySpill:
    """Blocks that wait in a dictionary."""

    def __init__(self) -> None:
        self.kept: dict[int, NDArray[np.void]] = {}
        self.num_reads = 0

    def write(self, blocks: NDArray[np.int64], voxels: NDArray[np.void]) -> None:
        assert (np.diff(blocks) > 0).all()
        self.kept.update(zip(blocks.tolist(), voxels.copy(), strict=True))

    def read(self, blocks: NDArray[np.int64]) -> NDArray[np.void]:
        self.num_reads += len(blocks)
        return np.array([self.kept[block] for block in blocks.tolist()], VOXEL).reshape(-1, VOXELS)


def depth_image(
    depth: NDArray[np.floating], normals: NDArray[np.floating], frame: int = 0, camera: Pinhole = CAMERA
) -> KeyframeDepth:
    """Measured wherever the depth is finite; its colours are a ramp."""
    known = np.isfinite(depth)
    v, u = np.mgrid[: camera.height, : camera.width]
    return KeyframeDepth(
        frame=frame,
        camera=camera,
        depth=depth.astype(np.float32),
        confidence=np.where(known, 0.9, 0).astype(np.float32),
        normals_in_camera=np.where(known[..., None], normals, np.nan).astype(np.float32),
        origin=np.where(known, DepthOrigin.MEASURED, DepthOrigin.NONE).astype(np.uint8),
        colours=np.stack([2 * u, 2 * v, 128 + 0 * u], -1).astype(np.uint8),
    )


def looking_at(center: NDArray[np.float64], target: NDArray[np.float64]) -> SE3:
    """camera_from_world"""
    forward = (target - center) / np.linalg.norm(target - center)
    right = np.cross(forward, [0.1, 1.0, 0.2])
    right /= np.linalg.norm(right)
    return SE3.from_center(np.stack([right, np.cross(forward, right), forward]), center)


def sphere_depth(camera_from_world: SE3, radius: float, frame: int = 0) -> KeyframeDepth:
    """Of a sphere around the origin, with nothing behind it."""
    rays = CAMERA.unproject_map(np.ones((CAMERA.height, CAMERA.width)))
    middle = camera_from_world.translation
    # |z r - m|² = radius²
    a, b, c = (rays**2).sum(-1), rays @ middle, middle @ middle - radius**2
    with np.errstate(invalid="ignore"):
        depth = (b - np.sqrt(b * b - a * c)) / a
    normals = (depth[..., None] * rays - middle) / radius
    return depth_image(depth, normals, frame)


def sphere_views(radius: float = 1.0, count: int = 24) -> Iterator[tuple[KeyframeDepth, SE3]]:
    """From all around."""
    k = np.arange(count) + 0.5
    z, angle = 1 - 2 * k / count, np.pi * (1 + 5**0.5) * k
    level = np.sqrt(1 - z * z)
    directions = np.stack([level * np.cos(angle), level * np.sin(angle), z], -1)
    for frame, direction in enumerate(directions):
        pose = looking_at(3 * radius * direction, np.zeros(3))
        yield sphere_depth(pose, radius, frame), pose


def plane_depth(camera_from_world: SE3, normal: NDArray[np.float64], frame: int = 0) -> KeyframeDepth:
    """Of the plane through the origin of the world."""
    rays = CAMERA.unproject_map(np.ones((CAMERA.height, CAMERA.width)))
    in_camera = camera_from_world.rotation @ normal
    with np.errstate(divide="ignore"):
        depth = (in_camera @ camera_from_world.translation) / (rays @ in_camera)
    depth[~(depth > 0)] = np.nan
    return depth_image(depth, np.broadcast_to(in_camera, (*depth.shape, 3)), frame)
