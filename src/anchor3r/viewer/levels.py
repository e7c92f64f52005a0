"""Points of a map at voxel levels of detail, few enough to hold and to draw however long the map is.

The trajectory is cut into segments of equally many poses. Of each segment some frames are read, their points
thinned, and every point is given the coarsest voxel level at which it stands for its voxel: showing the
points of a level and above is showing the map through voxels of that size. Points stay in the camera of
their frame, so that they move with whatever poses are chosen. Voxels are laid in the online world; those of
different segments are apart, so that a place that was passed twice is seen twice.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.io.files import replacing
from anchor3r.store import PointMap
from anchor3r.trajectory import Trajectory

CACHE = "view.npz"
"""File of the levels in the folder of their map, so that it opens at once the next time."""
_CACHE_FORMAT = 2
ReadPoints = Callable[[int], PointMap | None]
_CELL_BITS = 21  # of each grid coordinate in a voxel's key
_FRACTIONS = 16
_DENSE_POINTS = 200_000  # from so many on a cloud is dense
_GOLDEN = 0.6180339887  # multiples of it spread evenly over [0, 1)


@dataclass(frozen=True, kw_only=True)
class LevelsConfig:
    """How much of a map is held."""

    segment_poses: int = 64
    """Poses in a segment."""
    segment_points: int = 250_000
    """Points of a segment that voxels are laid over; of denser point maps, pixels are left out."""
    capacity: int = 4_000_000
    """Points held; when there are more, the finest level goes and voxels become twice as large."""
    points_read: int = 8_000_000
    """Points of the whole map that voxels are laid over, if its segments are many."""
    first_look_frames: int = 1000
    """Frames that are read before the whole map is on the screen once."""
    first_look_points: int = 1_500_000
    """Points that are read before the whole map is on the screen once; the rest follows."""
    voxel_of_depth: float = 1 / 256
    """Side of the finest voxel, as a part of the median distance of the first points."""
    num_levels: int = 10
    """Levels, each with voxels twice as large as the one before."""

    def __post_init__(self) -> None:
        sizes = (self.segment_poses, self.segment_points, self.capacity, self.points_read)
        if min(*sizes, self.first_look_frames, self.first_look_points) < 1:
            raise ValueError(f"all sizes must be at least 1: {self}")
        if not (self.voxel_of_depth > 0 and 1 <= self.num_levels <= 20):
            raise ValueError(f"voxel_of_depth must be positive and num_levels lie in 1 … 20: {self}")


@dataclass(frozen=True, kw_only=True)
class LevelPoints:
    """Columns of n points, each in the camera and scale of its frame."""

    frame: NDArray[np.int32]
    """(n,) indices in the source"""
    in_camera: NDArray[np.float32]
    """(n, 3)"""
    colours: NDArray[np.uint8]
    """(n, 3) RGB"""
    confidence: NDArray[np.float32]
    """(n,)"""
    level: NDArray[np.uint8]
    """(n,) the coarsest level that the point is part of"""

    def __len__(self) -> int:
        return len(self.frame)

    def select(self, which: NDArray[Any] | slice) -> LevelPoints:
        """The points of a mask or an index array."""
        return LevelPoints(**{field.name: getattr(self, field.name)[which] for field in fields(self)})

    @staticmethod
    def concatenated(parts: list[LevelPoints]) -> LevelPoints:
        parts = parts or [NO_POINTS]
        return LevelPoints(
            **{
                field.name: np.concatenate([getattr(p, field.name) for p in parts])
                for field in fields(LevelPoints)
            }
        )


NO_POINTS = LevelPoints(
    frame=np.empty(0, np.int32),
    in_camera=np.empty((0, 3), np.float32),
    colours=np.empty((0, 3), np.uint8),
    confidence=np.empty(0, np.float32),
    level=np.empty(0, np.uint8),
)


@dataclass(frozen=True)
class Segment:
    """What is held of one stretch of the trajectory."""

    checksum: int
    """Of the poses that it was built with: a segment that has grown or changed is built again."""
    is_thorough: bool
    """False after the first look."""
    points: LevelPoints


@dataclass(frozen=True)
class Cut:
    """Which levels are drawn."""

    level: int
    """All points of this level and above are drawn."""
    fraction: float
    """This part of the points one level below is drawn, too."""

    def mask(self, points: LevelPoints) -> NDArray[np.bool_]:
        """(n,) whether each point is drawn; the same ones again whenever the cut is the same."""
        mask = points.level >= self.level
        if self.fraction > 0:
            spread = np.arange(len(points)) * _GOLDEN % 1
            mask |= (points.level == self.level - 1) & (spread < self.fraction)
        return mask


class Levels:
    """The segments of one map; built piece by piece, so that a caller can draw in between."""

    def __init__(self, config: LevelsConfig | None = None) -> None:
        self.config = config or LevelsConfig()
        self.voxel: float | None = None
        """Side of the finest voxels in units of the online world; None before the first point."""
        self.segments: dict[int, Segment] = {}
        self.revision = 0
        """Another number whenever a segment was built."""

    def __len__(self) -> int:
        return sum(len(segment.points) for segment in self.segments.values())

    def pending(self, online: Trajectory) -> list[int]:
        """Segments to build, the most useful first: unseen and grown ones, then those seen only roughly."""
        count = -(-len(online) // self.config.segment_poses)
        for gone in [k for k in self.segments if k >= count]:
            del self.segments[gone]
        is_known = [self._is_known(k, online) for k in range(count)]
        unseen = [k for k in range(count) if not is_known[k]]
        return unseen + [k for k in range(count) if is_known[k] and not self.segments[k].is_thorough]

    def _is_known(self, k: int, online: Trajectory) -> bool:
        return k in self.segments and self.segments[k].checksum == _checksum(online, self._rows(k))

    def _rows(self, k: int) -> slice:
        return slice(k * self.config.segment_poses, (k + 1) * self.config.segment_poses)

    def build(
        self,
        k: int,
        online: Trajectory,
        read_points: ReadPoints,
        with_points: NDArray[np.integer] | None = None,
    ) -> None:
        """Reads the k-th segment: roughly if it is one of many unseen ones, else thoroughly.

        with_points: the only frames that have points, where these lie unevenly among the frames.
        """
        config = self.config
        part = online.select(self._rows(k))
        step, most = 1, config.points_read
        if k not in self.segments and len(online) > config.first_look_frames:
            step, most = min(len(part), -(-len(online) // config.first_look_frames)), config.first_look_points
        share = most * len(part) // len(online)
        frames, most = part.frames[::step], min(share, config.segment_points)
        if with_points is None:
            raw = _raw_points(frames.tolist(), read_points, most)
        else:
            frames = part.frames[np.isin(part.frames, with_points)]
            raw = _thinned([_valid(frame, read_points(frame), most) for frame in frames.tolist()], most)
        points = self._with_levels(raw, part) if len(raw) else raw
        self.segments[k] = Segment(_checksum(online, self._rows(k)), step == 1, points)
        self.revision += 1
        while len(self) > config.capacity:
            self._coarsen()

    def cut(self, min_confidence: float, budget: int) -> Cut:
        """The finest one that draws at most `budget` of the points that are confident enough."""
        counts = np.zeros(self.config.num_levels, np.int64)
        for segment in self.segments.values():
            sure = segment.points.confidence >= min_confidence
            counts += np.bincount(segment.points.level[sure], minlength=len(counts))
        at_least = np.cumsum(counts[::-1])[::-1]
        level = int(np.sum(at_least > budget))
        if level == 0:
            return Cut(0, 0.0)
        left = budget - (at_least[level] if level < len(counts) else 0)
        # In steps, so that the cut stays the same while a map grows a little.
        return Cut(level, float(np.floor(_FRACTIONS * left / counts[level - 1]) / _FRACTIONS))

    def sample(self, count: int) -> LevelPoints:
        """About that many points, from everywhere."""
        step = max(1, len(self) // count)
        every = slice(None, None, step)
        return LevelPoints.concatenated([segment.points.select(every) for segment in self.segments.values()])

    def _with_levels(self, raw: LevelPoints, part: Trajectory) -> LevelPoints:
        """The points that stand for a voxel, with their levels."""
        world = to_world(raw, part)
        if self.voxel is None:
            distance = np.linalg.norm(world - part.center.mean(0), axis=1)
            self.voxel = float(np.median(distance)) * self.config.voxel_of_depth or 1.0
        level = _levels(
            world - np.median(world, 0).astype(np.float32), raw.confidence, self.voxel, self.config.num_levels
        )
        kept = np.flatnonzero(level >= 0)
        points = raw.select(kept)
        return LevelPoints(**{**vars(points), "level": level[kept].astype(np.uint8)})

    def _coarsen(self) -> None:
        """Twice as large voxels."""
        assert self.voxel is not None
        self.voxel *= 2
        for k, segment in self.segments.items():
            points = segment.points.select(segment.points.level > 0)
            points = LevelPoints(**{**vars(points), "level": points.level - np.uint8(1)})
            self.segments[k] = Segment(segment.checksum, segment.is_thorough, points)


def to_world(points: LevelPoints, poses: Trajectory) -> NDArray[np.float32]:
    """(n, 3) in the world of the poses, which hold every frame of the points."""
    rows = np.searchsorted(poses.frames, points.frame)
    scale = np.ones(len(poses)) if poses.log_scale is None else np.exp(poses.log_scale)
    # The row vector x R is Rᵀ x, from the camera into the world.
    scaled_camera_from_world = (poses.rotation * scale[:, None, None]).astype(np.float32)
    world = np.einsum("ni,nij->nj", points.in_camera, scaled_camera_from_world[rows])
    return world + poses.center.astype(np.float32)[rows]


def magnified(num_points: int) -> float:
    """By how much points are drawn larger where they are few, so that they are seen.

    In octaves, so that it changes seldom.
    """
    octaves = np.round(np.log2(_DENSE_POINTS / max(1, num_points)) / 3)
    return float(2 ** np.clip(octaves, 0, 2))


def _raw_points(frames: list[int], read_points: ReadPoints, most: int) -> LevelPoints:
    """Points of these frames, about equally many of each and at most `most` together."""
    share = max(1, most // max(1, len(frames)))
    return LevelPoints.concatenated([_valid(frame, read_points(frame), share) for frame in frames])


def _thinned(parts: list[LevelPoints], most: int) -> LevelPoints:
    """All points, or at most so many of them, evenly from all of them."""
    points = LevelPoints.concatenated(parts)
    if len(points) <= most:
        return points
    return points.select(np.linspace(0, len(points), most, endpoint=False).astype(np.int64))


def _valid(frame: int, point_map: PointMap | None, most: int) -> LevelPoints:
    """At most so many points of a frame, evenly from all over its grid."""
    if point_map is None:
        return NO_POINTS
    good = np.flatnonzero(np.isfinite(point_map.points_in_camera).all(-1))
    good = good[np.linspace(0, len(good), min(most, len(good)), endpoint=False).astype(np.int64)]
    return LevelPoints(
        frame=np.full(len(good), frame, np.int32),
        in_camera=point_map.points_in_camera.reshape(-1, 3)[good],
        colours=point_map.colours.reshape(-1, 3)[good],
        confidence=point_map.confidence.ravel()[good],
        level=np.zeros(len(good), np.uint8),
    )


def _levels(
    points: NDArray[np.float32], confidence: NDArray[np.float32], voxel: float, num_levels: int
) -> NDArray[np.int8]:
    """(n,) the coarsest level at which each point is the surest one of its voxel; -1 if at none.

    A point beyond the grid, a million voxels off, counts as noise.
    """
    half = 1 << (_CELL_BITS - 1)
    level = np.full(len(points), -1, np.int8)
    order = np.argsort(-confidence, kind="stable")
    cells = np.floor(points[order] / voxel)
    inside = (np.abs(cells) < half).all(1)
    order, cells = order[inside], cells[inside].astype(np.int64)
    for k in range(num_levels):
        x, y, z = ((cells >> k) + half).T
        _, first = np.unique((x << 2 * _CELL_BITS) | (y << _CELL_BITS) | z, return_index=True)
        first.sort()  # still the surest first
        order, cells = order[first], cells[first]
        level[order] = k
    return level


def _checksum(poses: Trajectory, rows: slice) -> int:
    return zlib.crc32(poses.center[rows].tobytes(), zlib.crc32(poses.frames[rows].tobytes()))


def save_levels(levels: Levels, folder: Path, made_from: Any) -> None:
    """Writes every segment into the folder of the map.

    `made_from` (JSON) says what the map is, and must be the same on loading.
    """
    keys = sorted(levels.segments)
    segments = [levels.segments[k] for k in keys]
    points = LevelPoints.concatenated([segment.points for segment in segments])
    columns = {field.name: getattr(points, field.name) for field in fields(LevelPoints)}
    table = np.array(
        [(k, s.checksum, s.is_thorough, len(s.points)) for k, s in zip(keys, segments, strict=True)]
    )
    with replacing(folder / CACHE) as file:
        np.savez(
            file, allow_pickle=False, head=_cache_head(levels, made_from), voxel=levels.voxel or 0.0,
            segments=table.reshape(-1, 4), **columns,
        )  # fmt: skip


def load_levels(levels: Levels, folder: Path, made_from: Any) -> bool:
    """Fills empty levels from the folder, and says whether there was anything of this map to use.

    Whether a segment is still that of the map shows its checksum.
    """
    try:
        with np.load(folder / CACHE, allow_pickle=False) as stored:
            if str(stored["head"]) != _cache_head(levels, made_from):
                return False
            points = LevelPoints(**{field.name: stored[field.name] for field in fields(LevelPoints)})
            voxel, table = float(stored["voxel"]), stored["segments"]
    # A file of another version, or one that a disk has damaged, is as good as none: it is made anew.
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return False
    ends = np.cumsum(table[:, 3])
    levels.voxel = voxel or None
    for (k, checksum, is_thorough, count), end in zip(table.tolist(), ends.tolist(), strict=True):
        levels.segments[k] = Segment(checksum, bool(is_thorough), points.select(slice(end - count, end)))
    return True


def _cache_head(levels: Levels, made_from: Any) -> str:
    return json.dumps({"format": _CACHE_FORMAT, "levels": asdict(levels.config), "made_from": made_from})
