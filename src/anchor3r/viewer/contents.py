"""What there is to see of a map: read from the store, and read again whenever that has changed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.predictors.confidence import TOLERANCE
from anchor3r.store import ONLINE, Loop, Map, PointMap, best_poses, load_map
from anchor3r.store.database import DATABASE
from anchor3r.store.fused import FusedSurface, fused_or_reason
from anchor3r.store.pointmaps import resized
from anchor3r.trajectory import Trajectory, estimated_from_true_world
from anchor3r.viewer.levels import Levels, LevelsConfig, load_levels, save_levels, to_world

THUMBNAIL_SIDE = 128
"""Longer side in pixels of the pictures in camera frustums."""
_UNKNOWN_FOV_RAD, _UNKNOWN_ASPECT = 1.0, 4 / 3
CAMERA_DEPTH = 1 / 16
"""How far the frustum of a camera reaches, in typical distances of points."""
_FRAMED_POINTS = 20_000
"""Points that a view is framed by, evenly chosen from more."""
_CACHE_GROWTH = 1.5  # the cache is written again once so many times as many points are held


@dataclass(frozen=True)
class FrustumShape:
    """What the frustum of a frame looks like."""

    fov_rad: float
    """Vertical."""
    aspect: float
    """Width over height."""
    thumbnail: NDArray[np.uint8] | None
    """(h, w, 3) RGB; None if the map keeps no images"""


class MapContents:
    """A map and its levels of detail, as they were at the last `refresh`. A context manager."""

    def __init__(self, folder: Path, config: LevelsConfig | None = None) -> None:
        self.folder = folder
        self.notes: list[str] = []
        """What the user should know about how the map is read."""
        self._config = config
        self._open()

    def __enter__(self) -> MapContents:
        return self

    def __exit__(self, *_: object) -> None:
        self._scene_map.close()

    def _open(self) -> None:
        self._scene_map: Map = load_map(self.folder)
        self._file = (self.folder / DATABASE).stat().st_ino
        self._version: int | None = None
        self.trajectories: dict[str, Trajectory] = {}
        self._unplaced: Trajectory
        self.truth: Trajectory | None = None
        self.loops: dict[str, list[Loop]] = {}
        self.num_frames = 0
        self.num_expected: int | None = None
        self.levels = Levels(self._config)
        self._fused: tuple[FusedSurface, Trajectory] | None = None
        self._identity: Any = None
        self._is_begun = False
        self._frames_with_points: NDArray[np.int32] | None = None
        self._num_cached = 0
        self.camera = lru_cache(maxsize=512)(self._camera)

    def refresh(self) -> bool:
        """Reads what the map has become, and says whether that is anything new."""
        try:
            replaced = (self.folder / DATABASE).stat().st_ino != self._file
        except OSError as error:
            raise Anchor3RError(f"{self.folder} is gone or cannot be read ({error.strerror})") from error
        if replaced:
            self._scene_map.close()
            self._open()
        version = self._scene_map.version()
        if version == self._version:
            return False
        names = dict.fromkeys([ONLINE, *self._scene_map.trajectory_names()])
        self.trajectories = {name: self._scene_map.trajectory(name) for name in names}
        # Voxels are laid in the map's own lengths, so that they stay where positions place the map anew.
        self._unplaced = self._scene_map.trajectory(placed=False)
        self.truth = self._scene_map.true_trajectory()
        self.loops = {name: self._scene_map.loops(name) for name in self.trajectories}
        self.num_frames = self._scene_map.num_frames
        self.num_expected = self._scene_map.meta.get("num_frames")
        self._version = version
        self._choose_points()
        return True

    def _choose_points(self) -> None:
        """Those of the fused surface, if there is one of the best poses as they are, else the frames'."""
        best = best_poses(self.trajectories)
        fused, reason = fused_or_reason(self._scene_map, best)
        self._fused = None if fused is None else (fused, self.trajectories[best])
        self._frames_with_points = None if fused is None else np.unique(fused.mesh.vertices["frame"])
        self.notes = [f"{reason}. The points are those of the frames."] if reason else []
        identity = self._scene_map.meta.get("identity")
        if fused is not None:
            identity = {"map": identity, "fused": fused.identity, "vertices": len(fused)}
        if identity == self._identity and self._is_begun:
            return
        self._identity, self._is_begun = identity, True
        self.levels = Levels(self._config)
        load_levels(self.levels, self.folder, identity)
        self._num_cached = len(self.levels)

    def _points(self, frame: int) -> PointMap | None:
        if self._fused is None:
            return self._scene_map.points(frame)
        fused, poses = self._fused
        return fused.seen_first_in(frame, poses)

    def path_of(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) which path frames (n,) lie on, as `Map.path_of`."""
        return self._scene_map.path_of(frames)

    @property
    def online(self) -> Trajectory:
        return self.trajectories[ONLINE]

    def build(self, seconds: float = np.inf) -> bool:
        """Reads points for about so long, and says whether all are read; then they are cached."""
        ends_s = time.monotonic() + seconds
        while pending := self.levels.pending(self._unplaced):
            for k in pending:
                self.levels.build(k, self._unplaced, self._points, self._frames_with_points)
                if time.monotonic() > ends_s:
                    return False
        if len(self.levels) >= _CACHE_GROWTH * self._num_cached:
            self._save()
        return True

    def progress(self) -> float:
        """Which part of the segments is read, 0 … 1; a first look counts as half."""
        segments = self.levels.segments.values()
        count = -(-len(self.online) // self.levels.config.segment_poses)
        return sum(1.0 if segment.is_thorough else 0.5 for segment in segments) / max(1, count)

    def _save(self) -> None:
        self._num_cached = max(1, len(self.levels))
        try:
            save_levels(self.levels, self.folder, self._identity)
        except Anchor3RError:
            self.notes = [
                f"{self.folder} cannot be written, so the levels of detail are built again at each opening."
            ]

    def aligned_truth(self, poses: Trajectory) -> tuple[NDArray[np.float64], float] | None:
        """Ground-truth centres (n, 3) in the world of these poses, and how long a metre is there."""
        world_from_true = None if self.truth is None else estimated_from_true_world(poses, self.truth)
        if self.truth is None or world_from_true is None:
            return None
        frames = self.truth.frames
        within = self.truth.select((frames >= poses.frames[0]) & (frames <= poses.frames[-1]))
        return np.asarray(world_from_true.apply(within.center), np.float64), float(world_from_true.scale)

    def depth(self) -> float:
        """How far typical points are from their camera, in units of the online world.

        Sizes in the view follow from it. Rounded to half octaves, so that it changes seldom while the map
        grows.
        """
        points = self.levels.sample(20_000)
        points = points.select(np.isin(points.frame, self.online.frames))
        rows = np.searchsorted(self.online.frames, points.frame)
        distance = np.linalg.norm(to_world(points, self.online) - self.online.center[rows], axis=1)
        typical = float(np.median(distance)) if len(distance) else 0.0
        if not typical and len(self.online):
            typical = float(np.ptp(self.online.center, axis=0).max()) / 10
        return float(2 ** (np.round(2 * np.log2(typical)) / 2)) if typical else 1.0

    def poses(self, name: str, component: int | None = None) -> Trajectory:
        """The poses of that name in one component, the largest if none is given or there is no such."""
        found = self.trajectories[name]
        if component is None or component not in self.components(name):
            return found.largest_component()
        assert found.component is not None
        return found.select(found.component == component)

    def components(self, name: str) -> list[int]:
        """Numbers of the components that poses of that name have, the largest first."""
        found = self.trajectories[name].component
        if found is None:
            return []
        labels, counts = np.unique(found, return_counts=True)
        return labels[np.argsort(-counts, kind="stable")].tolist()

    def pixel_of(self, frame: int, in_camera: NDArray[np.float32]) -> tuple[int, int] | None:
        """Column and row, in the frame's image as it came from the source, of a point (3,) of the frame's own
        point map, as `anchor3r refine --distance FRAME:u,v` takes it; None if it has none like it.
        """
        point_map = self._scene_map.points(frame)
        if point_map is None:
            return None
        away = np.linalg.norm(point_map.points_in_camera - in_camera, axis=-1)
        if np.isnan(away).all():
            return None
        row, column = np.unravel_index(np.nanargmin(away), away.shape)
        if away[row, column] > TOLERANCE * np.linalg.norm(in_camera):
            return None
        camera = self._scene_map.intrinsics(frame)
        size = self._scene_map.image(frame).shape[1::-1] if camera is None else (camera.width, camera.height)
        height, width = away.shape
        return int((column + 0.5) * size[0] / width), int((row + 0.5) * size[1] / height)

    def scale_of(self, name: str, component: int | None) -> tuple[str, float | None]:
        """What lengths of poses are in, "m" or "units", and the spread of their scale where it is known."""
        if self._scene_map.units(name, component) != "m":
            return "units", None
        if name == ONLINE:
            placements = self._scene_map.placements()
            return "m", placements.get(component or 0, next(iter(placements.values()))).scale_sigma
        return "m", self._scene_map.refinement(name).summary.get("scale_sigma")

    def seen_from(self, poses: Trajectory, min_confidence: float) -> NDArray[np.float32]:
        """(n, 3) some of the points that are sure enough, where these poses place them."""
        points = self.levels.sample(_FRAMED_POINTS)
        points = points.select(np.isin(points.frame, poses.frames) & (points.confidence >= min_confidence))
        return to_world(points, poses)

    def framed(self, poses: Trajectory) -> NDArray[np.float64]:
        """(n, 3) what a view of these poses has to show: the centres, or of a camera that stays in one place
        the corners of its frustums."""
        if not poses.only_turns():
            return poses.center
        shape, reach = self.camera(int(poses.frames[0])), CAMERA_DEPTH * self.depth()
        high = reach * np.tan(shape.fov_rad / 2)
        corners = np.array([[x * shape.aspect * high, y * high, reach] for x in (-1, 1) for y in (-1, 1)])
        return (poses.center[:, None] + corners @ poses.rotation).reshape(-1, 3)

    def _camera(self, frame: int) -> FrustumShape:
        try:
            kept = self._scene_map.frame(frame)
        except Anchor3RError:  # a map without images still shows where its cameras were
            return FrustumShape(_UNKNOWN_FOV_RAD, _UNKNOWN_ASPECT, None)
        height, width = kept.image.shape[:2]
        shrink = min(1.0, THUMBNAIL_SIDE / max(height, width))
        thumbnail = resized(kept.image, max(1, round(width * shrink)), max(1, round(height * shrink)))
        lens = kept.intrinsics
        fov_rad = _UNKNOWN_FOV_RAD if lens is None else 2 * float(np.arctan(lens.height / 2 / lens.fy))
        return FrustumShape(fov_rad, width / height, thumbnail)


def uncertainty(poses: Trajectory) -> NDArray[np.float64]:
    """(n,) standard deviation of each centre, in units of the world; NaN where unknown."""
    if poses.covariance is None:
        return np.full(len(poses), np.nan)
    return np.sqrt(np.trace(poses.covariance[:, 3:, 3:], axis1=1, axis2=2))
