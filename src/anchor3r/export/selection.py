"""What of a map is handed on: which poses, which frames, which points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.export.cameras import retaken
from anchor3r.geometry import Pinhole
from anchor3r.io.pointcloud import Cloud, random_subset, voxel_downsampled
from anchor3r.store import LIKELY, ONLINE, Map, PointMap
from anchor3r.store.fused import FusedSurface
from anchor3r.trajectory import FramePose, Trajectory

POINT_BUDGET = 1_000_000
"""Points, unless told otherwise, of exports that their readers load as a whole."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A part of a map."""

    scene_map: Map
    poses: str
    """Name of the poses, which say where points lie."""
    trajectory: Trajectory
    """Those poses of the frames that were chosen."""
    min_confidence: float = LIKELY
    """Points below it are left out."""
    voxel: float | None = None
    """One point for each cube of this side, in units of the map; None is every point."""
    max_points: int | None = None
    """Of more points, a random subset of this size is taken."""
    camera: Pinhole | None = None
    """The camera that all frames are to have; None leaves each its own."""
    fused: FusedSurface | None = None
    """Whose vertices the points are; None takes the point maps of the frames."""
    fused_frames: NDArray[np.int64] | None = None
    """Frames to whose first sight the fused points are cut; None takes all."""

    def limited(self) -> Selection:
        """The selection with a budget of points, for readers that load them as a whole."""
        return self if self.max_points is not None else replace(self, max_points=POINT_BUDGET)

    def clouds(self, scratch: Path | None = None) -> Iterator[Cloud]:
        """The chosen points, batch by batch; `scratch` is where a large voxel grid may spill to."""
        clouds = self._all_clouds()
        if self.voxel is not None:
            clouds = voxel_downsampled(clouds, self.voxel, scratch=scratch)
        if self.max_points is not None:
            return iter([random_subset(clouds, self.max_points)])
        return clouds

    def _all_clouds(self) -> Iterator[Cloud]:
        if self.fused is not None:
            return self.fused.clouds(self.min_confidence, self.fused_frames)
        return map_clouds(
            self.scene_map,
            poses=self.poses,
            min_confidence=self.min_confidence,
            frames=self.trajectory.frames.tolist(),
            camera=self.camera,
        )


def map_clouds(
    scene_map: Map,
    *,
    poses: str = ONLINE,
    min_confidence: float = LIKELY,
    frames: Iterable[int] | None = None,
    camera: Pinhole | None = None,
) -> Iterator[Cloud]:
    """The points of every frame in the world of the chosen poses, one frame at a time; `retaken` if asked."""
    for pose, point_map in scene_map.iter_points(poses, frames):
        if camera is not None:
            point_map = retaken(point_map, scene_map.intrinsics(pose.frame), camera)
        yield cloud_of(pose, point_map, min_confidence)


def cloud_of(pose: FramePose, point_map: PointMap, min_confidence: float) -> Cloud:
    """The sure points of one frame in the world."""
    sure = point_map.confidence >= min_confidence
    good = sure & np.isfinite(point_map.points_in_camera).all(-1)
    return Cloud(
        pose.to_world(point_map.points_in_camera[good]),
        point_map.colours[good],
        point_map.confidence[good],
    )
