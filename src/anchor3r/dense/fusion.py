"""Depth images of a whole map fused into one surface: the size of voxels, what is averaged, what is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from anchor3r.dense.keyframe_depth import DepthOrigin, KeyframeDepth
from anchor3r.dense.surface import SurfacePart, surface_parts
from anchor3r.dense.volume import BlockSpill, Volume, VolumeConfig, block_coordinates
from anchor3r.geometry import SE3

_SAMPLED_PIXELS = 997
"""Depths of an image that its median is taken of, evenly chosen; a prime, to meet no row twice alike."""


@dataclass(frozen=True, kw_only=True)
class FusionConfig:
    """What is averaged into a surface, and which parts of it are believed."""

    volume: VolumeConfig
    """How depth images are averaged."""
    min_confidence: float
    """Depths that are less likely than this to be within 5 % are left out."""
    min_views: int
    """A surface is kept where so many images saw it."""
    min_component: int
    """Pieces of surface with fewer vertices than this, which nothing holds to the rest, are left out."""

    def __post_init__(self) -> None:
        if self.min_views < 1 or self.min_component < 0 or not 0 <= self.min_confidence <= 1:
            raise ValueError(
                f"min_views must be at least 1, min_component 0, min_confidence a probability: {self}"
            )


def auto_voxel(views: Iterable[KeyframeDepth], config: FusionConfig) -> float | None:
    """Side of a voxel that suits these depth images: some pixels wide at their median depth.

    None if there is no depth in any of them.
    """
    widths = [
        np.median(known) * config.volume.reference_pixels / view.camera.fx
        for view in views
        if len(known := _some_depths(view, config.min_confidence))
    ]
    return float(np.median(widths)) if widths else None


def _some_depths(view: KeyframeDepth, min_confidence: float) -> np.ndarray:
    step = max(1, view.depth.size // _SAMPLED_PIXELS)
    depth = view.depth.ravel()[::step]
    return depth[(view.confidence.ravel()[::step] >= min_confidence) & (depth > 0)]


def believed(view: KeyframeDepth, config: FusionConfig) -> KeyframeDepth:
    """The same depth image without what is not sure enough."""
    sure = (view.confidence >= config.min_confidence) & (view.origin != DepthOrigin.NONE)
    return KeyframeDepth(
        frame=view.frame,
        camera=view.camera,
        depth=np.where(sure, view.depth, np.nan).astype(np.float32),
        confidence=np.where(sure, view.confidence, 0).astype(np.float32),
        normals_in_camera=view.normals_in_camera,
        origin=view.origin,
        colours=view.colours,
    )


class Fusion:
    """Depth images in, one by one, then the surface out, part by part."""

    def __init__(self, voxel: float, config: FusionConfig, spill: BlockSpill) -> None:
        self.config = config
        self._volume = Volume(voxel, config.volume, spill)
        self.num_views = 0

    def add(self, view: KeyframeDepth, camera_from_world: SE3) -> None:
        """A depth image in the scale of its pose."""
        self._volume.integrate(believed(view, self.config), camera_from_world)
        self.num_views += 1

    def num_parts(self) -> int:
        """How many parts the surface has at most: slabs of blocks along x."""
        return len(np.unique(block_coordinates(self._volume.keys())[:, 0]))

    def surface(self, *, first: int = 0) -> Iterator[SurfacePart]:
        """All parts; `first` is the number of the first vertex."""
        return surface_parts(self._volume, min_views=min(self.config.min_views, self.num_views), first=first)
