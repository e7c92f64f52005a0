"""Which frames see the same point: tracks out of the overlapping point maps of neighbouring frames.

Frame by frame: points seen lately are projected into the frame; where its own point map has the same depth,
the frame sees the point too. What no known point explains begins a track of its own, within a budget that is
spread over the frames. Memory holds the points and their observations, never more than one point map.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Pinhole
from anchor3r.io.pointcloud import Cloud
from anchor3r.store import LIKELY, PointMap
from anchor3r.trajectory import FramePose, Trajectory

_CELL = 8
"""Side in pixels of the cells in which the nearest points of a surface hide those behind them."""


@dataclass(frozen=True, kw_only=True)
class TrackConfig:
    """When two frames see the same point."""

    max_points: int = 200_000
    """Tracks that are begun, over all frames."""
    min_confidence: float = LIKELY
    """Points below it neither begin nor support a track."""
    depth_tolerance: float = 0.05
    """Largest difference of the depths, as part of the depth."""
    memory_frames: int = 30
    """A point that was not seen for so many frames is no longer looked for."""
    min_views: int = 2
    """Points that fewer frames see are left out."""
    seed: int = 0
    """Of the choice which points begin a track where there are too many."""

    def __post_init__(self) -> None:
        if self.max_points < 1 or self.min_views < 1 or self.memory_frames < 1:
            raise ValueError(f"max_points, min_views and memory_frames must be at least 1: {self}")


@dataclass(frozen=True)
class Tracks:
    """n points and their m observations, in the order of the frames."""

    points: NDArray[np.float64]
    """(n, 3) in the world, the mean of what the frames say"""
    colours: NDArray[np.uint8]
    """(n, 3) RGB"""
    point: NDArray[np.int64]
    """(m,) row of the point"""
    view: NDArray[np.int64]
    """(m,) row of the frame"""
    pixel: NDArray[np.float64]
    """(m, 2) where the frame's own measurement lies in its image"""


@dataclass
class _Seen:
    """The valid cells of one point map, k of them."""

    world: NDArray[np.float64]
    """(k, 3)"""
    depth: NDArray[np.float64]
    """(k,) in the world's scale"""
    colours: NDArray[np.uint8]
    pixel: NDArray[np.float64]
    """(k, 2) in the image"""
    cell_of: NDArray[np.int64]
    """(h, w) row of the measurement in that cell, -1 where there is none"""


@dataclass
class TrackBuilder:
    """Takes frames in order; `tracks` gives what came out."""

    num_frames: int
    """How many will come: the budget is spread over them."""
    config: TrackConfig = field(default_factory=TrackConfig)

    def __post_init__(self) -> None:
        room = self.config.max_points
        self._sum, self._colour_sum = np.zeros((room, 3)), np.zeros((room, 3), np.float32)
        self._views, self._last_seen = np.zeros(room, np.int32), np.zeros(room, np.int32)
        self._num_points = self._row = 0
        self._active: NDArray[np.int64] = np.empty(0, np.int64)
        self._observed: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
        self._rng = np.random.default_rng(self.config.seed)

    def add(self, pose: FramePose, point_map: PointMap | None, camera: Pinhole) -> None:
        """The next frame, which may have no points; `camera` is that of its image."""
        if point_map is not None:
            seen = _cells(pose, point_map, camera, self.config.min_confidence)
            points, cells = self._recognised(pose, seen, camera)
            fresh = self._chosen(np.setdiff1d(np.arange(len(seen.depth)), cells))
            begun = self._num_points + np.arange(len(fresh))
            self._num_points += len(fresh)
            self._observe(np.concatenate([points, begun]), np.concatenate([cells, fresh]), seen)
            self._active = np.concatenate([self._active, begun])
        self._row += 1
        lately = self._row - self._last_seen[self._active] <= self.config.memory_frames
        self._active = self._active[lately]

    def tracks(self) -> Tracks:
        """Points with enough views."""
        good = self._views[: self._num_points] >= self.config.min_views
        row_of = np.cumsum(good) - 1
        columns = [np.concatenate([row[k] for row in self._observed]) for k in range(3)] if good.any() else []
        point, view, pixel = columns or (np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 2)))
        kept = good[point] if len(point) else np.empty(0, bool)
        views = self._views[: self._num_points][good, None]
        return Tracks(
            points=self._sum[: self._num_points][good] / views,
            colours=np.round(self._colour_sum[: self._num_points][good] / views).astype(np.uint8),
            point=row_of[point[kept]],
            view=view[kept],
            pixel=pixel[kept],
        )

    def _recognised(
        self, pose: FramePose, seen: _Seen, camera: Pinhole
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Known points that the frame sees and the cells it sees them in, at most one each."""
        active = self._active
        world = self._sum[active] / self._views[active, None]
        in_camera = (world - pose.center) @ pose.rotation.T
        cell = _cell_at(in_camera, camera, seen.cell_of)
        off = np.abs(seen.depth[cell] - in_camera[:, 2]) if len(seen.depth) else np.zeros(len(active))
        same = np.flatnonzero((cell >= 0) & (off <= self.config.depth_tolerance * in_camera[:, 2]))
        # Of several points in one cell the longest track goes on: it is the best known.
        same = same[np.lexsort((off[same], -self._views[active[same]]))]
        cells, first = np.unique(cell[same], return_index=True)
        return active[same[first]], cells

    def _chosen(self, unexplained: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which cells begin a track: an even share of what is left of the budget."""
        left = self.config.max_points - self._num_points
        share = -(-left // max(1, self.num_frames - self._row))
        if len(unexplained) > share:
            unexplained = np.sort(self._rng.choice(unexplained, share, replace=False))
        return unexplained

    def _observe(self, points: NDArray[np.int64], cells: NDArray[np.int64], seen: _Seen) -> None:
        self._sum[points] += seen.world[cells]
        self._colour_sum[points] += seen.colours[cells]
        self._views[points] += 1
        self._last_seen[points] = self._row
        self._observed.append((points, np.full(len(points), self._row), seen.pixel[cells]))


def build_tracks(
    frames: Iterable[tuple[FramePose, PointMap | None, Pinhole]], num_frames: int, config: TrackConfig
) -> Tracks:
    """Tracks over frames in order."""
    builder = TrackBuilder(num_frames, config)
    for pose, point_map, camera in frames:
        builder.add(pose, point_map, camera)
    return builder.tracks()


def tracks_of_surface(
    surface: Cloud, trajectory: Trajectory, cameras: Sequence[Pinhole], config: TrackConfig
) -> Tracks:
    """Which frames see the points (n) of a fused surface: those that look at its front, nothing in between.

    A point is looked for at most `memory_frames` frames, those that see it from nearest by.
    """
    points, normals = surface.points.astype(np.float64), surface.normals
    assert normals is not None, "fused points have normals"
    found: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]] = []
    for k, camera in enumerate(cameras):
        pose = trajectory.pose(k)
        facing = np.flatnonzero(np.einsum("ni,ni->n", normals, pose.center - points) > 0)
        in_camera = (points[facing] - pose.center) @ pose.rotation.T
        shown = _in_front(in_camera, camera, config.depth_tolerance)
        pixel = camera.project(in_camera[shown]).astype(np.float64)
        found.append((facing[shown], np.full(len(shown), k, np.int64), pixel, in_camera[shown, 2]))
    point, view, pixel, depth = (np.concatenate([row[c] for row in found]) for c in range(4))
    order = np.lexsort((view, depth, point))
    starts = np.searchsorted(point[order], np.arange(len(points)))
    rank = np.arange(len(order)) - starts[point[order]]
    kept = order[rank < config.memory_frames]
    num_views = np.bincount(point[kept], minlength=len(points))
    good = num_views >= config.min_views
    kept = kept[good[point[kept]]]
    kept = kept[np.lexsort((point[kept], view[kept]))]
    return Tracks(
        points=points[good],
        colours=surface.colours[good],
        point=(np.cumsum(good) - 1)[point[kept]],
        view=view[kept],
        pixel=pixel[kept],
    )


def _in_front(in_camera: NDArray[np.float64], camera: Pinhole, tolerance: float) -> NDArray[np.int64]:
    """Rows of the points that are in the image and, in their cell of some pixels, the nearest."""
    cells = (-(-camera.height // _CELL), -(-camera.width // _CELL))
    v, u = _cell_indices(in_camera, camera, cells)
    inside = np.flatnonzero(v >= 0)
    cell = v[inside] * cells[1] + u[inside]
    nearest = np.full(cells[0] * cells[1], np.inf)
    np.minimum.at(nearest, cell, in_camera[inside, 2])
    return inside[in_camera[inside, 2] <= (1 + tolerance) * nearest[cell]]


def _cells(pose: FramePose, point_map: PointMap, camera: Pinhole, min_confidence: float) -> _Seen:
    points = point_map.points_in_camera
    good = np.isfinite(points).all(-1) & (points[..., 2] > 0) & (point_map.confidence >= min_confidence)
    in_camera = points[good].astype(np.float64) * np.exp(pose.log_scale)
    cell_of = np.full(points.shape[:2], -1, np.int64)
    v, u = _cell_indices(in_camera, camera, cell_of.shape)
    inside = v >= 0
    cell_of[v[inside], u[inside]] = np.flatnonzero(inside)
    return _Seen(
        world=in_camera @ pose.rotation + pose.center,
        depth=in_camera[:, 2],
        colours=point_map.colours[good],
        pixel=camera.project(in_camera).astype(np.float64),
        cell_of=cell_of,
    )


def _cell_at(in_camera: NDArray[Any], camera: Pinhole, cell_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """The measurement in the cell that each point falls into; -1 where there is none."""
    v, u = _cell_indices(in_camera, camera, cell_of.shape)
    return np.where(v >= 0, cell_of[v, u], -1)


def _cell_indices(
    in_camera: NDArray[Any], camera: Pinhole, shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column on a grid that spans the image, both -1 outside of it or behind the camera."""
    height, width = shape
    z = in_camera[:, 2]
    ahead = z > 0
    safe = np.where(ahead[:, None], in_camera, [0.0, 0.0, 1.0])
    grid_pixel = np.round(camera.resized(width, height).project(safe))
    u, v = np.clip(grid_pixel, -1, [width, height]).astype(np.int64).T
    inside = ahead & (u >= 0) & (u < width) & (v >= 0) & (v < height)
    return np.where(inside, v, -1), np.where(inside, u, -1)
