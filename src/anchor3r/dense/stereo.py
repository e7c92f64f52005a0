"""Depth of a reference view from a few others whose poses are known: coarse to fine, on one core.

A plane sweep with semi-global matching at half the size gives every pixel a depth; slanted windows at full
size make it precise. What neighbouring keyframes say of it is for `consistency`.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.derotation import Derotated, derotated
from anchor3r.dense.plane_sweep import lowest, semi_global, sweep
from anchor3r.dense.slanted_refinement import PixelPlanes, SlantedWindows, refine, refine_coarse
from anchor3r.geometry import SE3, Pinhole


@dataclass(frozen=True, kw_only=True)
class StereoConfig:
    """How depth is measured from views."""

    coarse: int = 2
    """The sweep is done on images reduced by this factor."""
    pixels_a_plane: float = 0.75
    """Image motion between neighbouring planes, where it is largest, in pixels of the reduced images."""
    max_planes: int = 96
    """Planes of a sweep at most,"""
    min_planes: int = 24
    """and at least."""
    small_penalty: float = 12.0
    """Of a step by one plane between neighbouring pixels; no correlation at all costs 250."""
    large_penalty: float = 90.0
    """Of any jump, where the image is even."""
    edge_grey: float = 12.0
    """Grey difference between pixels that halves the penalty of a jump."""
    large_planes: int = 4
    """Planes, such as the ground, that are looked for and tried at every pixel."""

    def __post_init__(self) -> None:
        if self.coarse < 1 or not 2 <= self.min_planes <= self.max_planes:
            raise ValueError(f"these settings of stereo do not make sense: {self}")


@dataclass(frozen=True, kw_only=True)
class View:
    """An image of the map's one camera, without lens distortion, and where it was taken."""

    frame: int
    grey: NDArray[np.float32]
    """(h, w) grey levels less 128, so that sums of their squares stay exact"""
    camera_from_world: SE3


def grey_of(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(h, w, 3) RGB -> what `View` has."""
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.float32) - np.float32(128)


def measure(
    reference: View, sources: list[View], camera: Pinhole, nearest: float, config: StereoConfig
) -> PixelPlanes:
    """The depth of a reference from at least one source; nearest: least depth to look for."""
    poses = [source.camera_from_world @ reference.camera_from_world.inverse() for source in sources]
    source_from_reference = SE3(
        np.stack([pose.rotation for pose in poses]), np.stack([pose.translation for pose in poses])
    )
    small = (-(-camera.width // config.coarse), -(-camera.height // config.coarse))
    small_camera = camera.resized(*small)
    reduced = [_reduced(view.grey, small) for view in (reference, *sources)]
    turned = derotated(reduced[1:], small_camera, source_from_reference, nearest)
    planes = _planes(turned, small_camera, nearest, config)
    costs = sweep(reduced[0], turned, small_camera, planes)
    total = semi_global(costs, reduced[0], config.small_penalty, config.large_penalty, config.edge_grey)
    step = float(planes[1] - planes[0])
    windows = SlantedWindows(reduced[0], turned, small_camera)
    slanted, best = refine_coarse(windows, lowest(total, planes), step, config.large_planes)
    full = derotated([source.grey for source in sources], camera, source_from_reference, nearest)
    return refine(SlantedWindows(reference.grey, full, camera), slanted, best, step)


def _reduced(image: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.float32)


def _planes(sources: Derotated, camera: Pinhole, nearest: float, config: StereoConfig) -> NDArray[np.float32]:
    """Inverse depths (p,) from infinity to the nearest, spaced by what the views can tell apart."""
    corners = np.array([[0, 0], [camera.width, 0], [0, camera.height], [camera.width, camera.height]])
    rays = corners - np.array([camera.cx, camera.cy])
    motion = sources.motion
    scale = np.maximum(1 + motion[:, None, 2:] / nearest, 0.3)
    moved = (rays + motion[:, None, :2] / nearest) / scale - rays
    typical = np.median(np.linalg.norm(moved, axis=-1), axis=1).max()
    count = int(np.clip(typical / config.pixels_a_plane, config.min_planes, config.max_planes))
    return np.linspace(0, 1 / nearest, count, dtype=np.float32)
