"""A map as nodes of a viser scene. Only what has changed is sent."""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import viser
from numpy.typing import ArrayLike, NDArray

from anchor3r.geometry import quat_from_rotation
from anchor3r.trajectory import Trajectory
from anchor3r.viewer.contents import CAMERA_DEPTH, MapContents, uncertainty
from anchor3r.viewer.levels import Cut, LevelPoints, Segment, magnified, to_world
from anchor3r.viewer.settings import MAX_POINTS, ColourBy, ViewSettings
from anchor3r.viewer.viewpoints import picked

_MAX_NODES = 128  # that the cloud is spread over: a change of the time range resends two of them
_LINE_PIXELS = 3.0
# Six stops of viridis, dark and blue to bright and yellow.
_RAMP = np.array([[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 209, 81], [253, 231, 37]])
_UNKNOWN = np.array([150, 150, 150], np.uint8)
_TRUTH = (235, 235, 235)
_ACCEPTED = (70, 210, 90)
_REJECTED = (230, 70, 60)
_CAMERA = (90, 160, 255)
_CURRENT = (255, 170, 40)
MEASURE_COLOUR = (255, 80, 200)
_NOWHERE = np.empty((0, 3), np.float32)


@dataclass(frozen=True)
class _Wanted:
    """Which points a node of the cloud shows. Equal ones need not be sent again."""

    built: tuple[tuple[int, bool, int], ...]
    """What its segments are."""
    pose_sum: int
    cut: Cut
    min_confidence: float
    first: int
    last: int
    poses: Trajectory = field(compare=False)
    """Of its frames; `pose_sum` stands for them."""

    @property
    def is_anything(self) -> bool:
        """Whether any of it lies in the time range."""
        return self.first <= self.last

    def of(self, points: LevelPoints) -> LevelPoints:
        """The points that are shown."""
        mask = self.cut.mask(points) & (points.confidence >= self.min_confidence)
        mask &= (points.frame >= self.first) & (points.frame <= self.last)
        return points.select(mask & np.isin(points.frame, self.poses.frames))


class PickedPoint(NamedTuple):
    """A point on the screen, and where it comes from."""

    world: NDArray[np.float64]
    """(3,)"""
    frame: int
    """whose point it is"""
    in_camera: NDArray[np.float32]
    """(3,) there, in the scale of its window"""


@dataclass
class _Cloud:
    wanted: _Wanted
    points: LevelPoints
    world: NDArray[np.float32]
    """(n, 3) where those are"""
    handle: Any


class MapScene:
    """Draws `MapContents` into a viser scene."""

    def __init__(self, scene: viser.SceneApi) -> None:
        self._scene = scene
        self._clouds: dict[int, _Cloud] = {}
        self._lines: dict[str, int] = {}
        self._cameras: dict[str, tuple[Hashable, Any]] = {}

    def show(self, contents: MapContents, settings: ViewSettings) -> None:
        """Makes the scene what the settings say."""
        poses = contents.poses(settings.poses, settings.component)
        within = (poses.frames >= settings.first) & (poses.frames <= settings.last)
        seen = poses.select(within)
        self._show_clouds(contents, poses, settings)
        self._show_trajectory(poses, within, contents.path_of(poses.frames), settings.colour_by)
        self._show_loops(contents, poses, settings)
        aligned = contents.aligned_truth(poses) if settings.truth and len(poses) else None
        path = np.empty((0, 3)) if aligned is None else aligned[0]
        self._show_lines("/ground_truth", np.stack([path[:-1], path[1:]], 1), np.array(_TRUTH))
        self._show_cameras(contents, seen, settings)

    @property
    def num_points(self) -> int:
        """On the screen."""
        return sum(len(cloud.world) for cloud in self._clouds.values() if cloud.handle.visible)

    def pick(self, origin: ArrayLike, direction: ArrayLike) -> PickedPoint | None:
        """The point that a click along a ray means; None if it hits nothing."""
        visible = [cloud for cloud in self._clouds.values() if cloud.handle.visible]
        world = np.concatenate([_NOWHERE, *(cloud.world for cloud in visible)])
        found = picked(origin, direction, world)
        if found is None:
            return None
        points = LevelPoints.concatenated([cloud.points for cloud in visible])
        return PickedPoint(world[found].astype(np.float64), int(points.frame[found]), points.in_camera[found])

    def _show_clouds(self, contents: MapContents, poses: Trajectory, settings: ViewSettings) -> None:
        levels = contents.levels
        cut = levels.cut(settings.min_confidence, min(settings.point_budget, MAX_POINTS))
        size = settings.point_size * contents.depth() / 150 * magnified(len(levels))
        together = 1
        while len(levels.segments) > together * _MAX_NODES:
            together *= 2
        groups: dict[int, list[Segment]] = {}
        for k in sorted(levels.segments):
            groups.setdefault(k // together, []).append(levels.segments[k])
        for key in [key for key in self._clouds if key not in groups]:
            self._remove_cloud(key)
        for key, segments in groups.items():
            wanted = _wanted(segments, poses, cut, settings)
            self._show_cloud(key, segments, wanted, size)

    def _show_cloud(self, key: int, segments: list[Segment], wanted: _Wanted, size: float) -> None:
        old = self._clouds.get(key)
        if old is None or (wanted.is_anything and old.wanted != wanted):
            points = LevelPoints.concatenated([wanted.of(segment.points) for segment in segments])
            if not len(points):  # viser's client complains of empty clouds
                self._remove_cloud(key)
                return
            world = to_world(points, wanted.poses)
            handle = self._scene.add_point_cloud(
                f"/cloud/{key}", world, points.colours, point_size=size, point_shape="circle",
                point_shading="flat", precision="float32",
            )  # fmt: skip
            self._clouds[key] = _Cloud(wanted, points, world, handle)
            return
        old.handle.visible = wanted.is_anything
        if old.handle.point_size != size:
            old.handle.point_size = size

    def _remove_cloud(self, key: int) -> None:
        if key in self._clouds:
            self._clouds.pop(key).handle.remove()

    def _show_trajectory(
        self, poses: Trajectory, within: NDArray[np.bool_], path: NDArray[np.int64], colour_by: ColourBy
    ) -> None:
        values = np.linspace(0, 1, len(poses)) if colour_by == "time" else ranks(uncertainty(poses))
        shades = ramp(values)
        joined = within[:-1] & within[1:] & (np.diff(path) == 0)
        segments = np.stack([poses.center[:-1], poses.center[1:]], 1)[joined]
        self._show_lines("/trajectory", segments, np.stack([shades[:-1], shades[1:]], 1)[joined])

    def _show_loops(self, contents: MapContents, poses: Trajectory, settings: ViewSettings) -> None:
        kinds = (
            ("/loops/accepted", True, settings.accepted_loops, _ACCEPTED),
            ("/loops/rejected", False, settings.rejected_loops, _REJECTED),
        )
        for name, accepted, wanted, colour in kinds:
            ends = np.array(
                [
                    (loop.query, loop.match)
                    for loop in contents.loops.get(settings.poses, ())
                    if wanted and loop.accepted == accepted
                ],
                np.int64,
            ).reshape(-1, 2)
            placed = np.isin(ends, poses.frames) & (ends >= settings.first) & (ends <= settings.last)
            rows = np.searchsorted(poses.frames, ends[placed.all(1)])
            self._show_lines(name, poses.center[rows], np.array(colour))

    def _show_lines(self, name: str, segments: NDArray[np.float64], shades: NDArray[Any]) -> None:
        """segments (n, 2, 3), shades (n, 2, 3) or (3,)"""
        data = segments.astype(np.float32)
        signature = zlib.crc32(shades.tobytes(), zlib.crc32(data.tobytes()))
        if self._lines.get(name) == signature:
            return
        self._lines[name] = signature
        if len(data):
            self._scene.add_line_segments(
                name, data, shades.astype(np.uint8), thickness=_LINE_PIXELS, thickness_units="screen"
            )
        else:
            self._scene.remove_by_name(name)

    def _show_cameras(self, contents: MapContents, poses: Trajectory, settings: ViewSettings) -> None:
        """Frustums at the multiples of a power of two, so that most stay when the map grows, and the last."""
        step = 1
        while settings.cameras and len(poses) > step * settings.cameras:
            step *= 2
        scale = CAMERA_DEPTH * contents.depth()
        wanted: dict[str, tuple[int, float, tuple[int, int, int]]] = {}
        if settings.cameras:
            rows = range(0, len(poses), step)
            wanted = {f"/cameras/{poses.frames[row]}": (row, scale, _CAMERA) for row in rows}
        if len(poses):
            wanted["/current_camera"] = (len(poses) - 1, 1.6 * scale, _CURRENT)
        for name in [name for name in self._cameras if name not in wanted]:
            self._cameras.pop(name)[1].remove()
        for name, (row, size, colour) in wanted.items():
            pose = poses.pose(row)
            signature = (pose.frame, pose.rotation.tobytes(), pose.center.tobytes(), size)
            if name in self._cameras and self._cameras[name][0] == signature:
                continue
            camera = contents.camera(pose.frame)
            handle = self._scene.add_camera_frustum(
                name, camera.fov_rad, camera.aspect, scale=size, color=colour, image=camera.thumbnail,
                thickness=1.5, thickness_units="screen", format="jpeg", jpeg_quality=80, cast_shadow=False,
                receive_shadow=False, wxyz=quat_from_rotation(pose.rotation.T), position=pose.center,
            )  # fmt: skip
            self._cameras[name] = (signature, handle)


def _wanted(segments: list[Segment], poses: Trajectory, cut: Cut, settings: ViewSettings) -> _Wanted:
    frames = np.concatenate([segment.points.frame for segment in segments])
    lowest, highest = (int(frames.min()), int(frames.max())) if len(frames) else (0, -1)
    near = poses.select((poses.frames >= lowest) & (poses.frames <= highest))
    return _Wanted(
        built=tuple((s.checksum, s.is_thorough, len(s.points)) for s in segments),
        pose_sum=_pose_sum(near),
        cut=cut,
        min_confidence=settings.min_confidence,
        first=max(settings.first, lowest),
        last=min(settings.last, highest),
        poses=near,
    )


def _pose_sum(poses: Trajectory) -> int:
    total = 0
    for column in (poses.frames, poses.rotation, poses.center, poses.log_scale):
        total = total if column is None else zlib.crc32(column.tobytes(), total)
    return total


def ramp(values: ArrayLike) -> NDArray[np.uint8]:
    """(n,) in [0, 1] -> (n, 3) RGB; grey where NaN."""
    x = np.asarray(values, np.float64)
    stops = np.linspace(0, 1, len(_RAMP))
    colours = np.stack([np.interp(np.nan_to_num(x), stops, channel) for channel in _RAMP.T], -1)
    return np.where(np.isnan(x)[:, None], _UNKNOWN, colours.astype(np.uint8))


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """(n,) -> where each value stands among all, 0 … 1, so that no outlier takes the colours; NaN stays."""
    x = np.asarray(values, np.float64)
    known = np.isfinite(x)
    out = np.full(len(x), np.nan)
    order = np.argsort(np.argsort(x[known], kind="stable"), kind="stable")
    out[known] = order / max(1, known.sum() - 1)
    return out
