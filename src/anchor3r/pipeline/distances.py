"""Taped distances between cameras, or between things that frames show: `FRAME` or `FRAME:u,v`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from anchor3r.errors import Anchor3RError
from anchor3r.pose_graph.priors import Distances
from anchor3r.predictors.confidence import TOLERANCE
from anchor3r.store import Map
from anchor3r.trajectory import Trajectory

Float = NDArray[np.float64]
Taped = tuple[int | str, int | str, float]
"""End, end and metres."""

_PIXEL = r"(\d{1,9}(?:\.\d*)?)"
_END = re.compile(rf"(\d{{1,12}})(?::{_PIXEL},{_PIXEL})?", re.ASCII)
_CONFIDENCE = (0.05, 0.99)  # that a point is taken to have, as none is as bad or as sure as it may say


class End(NamedTuple):
    """One end of a distance."""

    frame: int
    pixel: tuple[float, float] | None
    """(column, row) in the frame's image as it came from the source; None for the camera itself"""


class SeenPoint(NamedTuple):
    """A thing that a frame shows."""

    in_camera: Float
    """(3,) in the scale of the frame's window"""
    sigma: float
    """standard deviation, likewise"""


PointReader = Callable[[int, tuple[float, float]], SeenPoint | None]
"""What the map has at a pixel of a frame."""


def end_of(text: int | str) -> End:
    """From `FRAME` or `FRAME:u,v`."""
    found = _END.fullmatch(str(text))
    if found is None:
        raise Anchor3RError(
            f"--distance: {text} is no end of a distance; name a frame (120) or a pixel of one (120:310,95)"
        )
    frame, u, v = found.groups()
    return End(int(frame), None if u is None else (float(u), float(v)))


def insist_on_lengths(distances: Sequence[Taped]) -> None:
    """Refuses distances that say nothing."""
    for a, b, metres in distances:
        if end_of(a) == end_of(b) or not (np.isfinite(metres) and metres > 0):
            raise Anchor3RError(
                f"{_named(a, b)} {metres:g}: it takes two different frames, or pixels, and a positive number"
            )


def distance_priors(
    distances: Sequence[Taped], sigma: float, trajectory: Trajectory, read: PointReader
) -> tuple[Distances, list[str]]:
    """Of all distances, and what to call them. sigma: of the tape, as a part of the length."""
    rows, points, spread = [], [], []
    for a, b, metres in distances:
        ends = end_of(a), end_of(b)
        _insist_on_poses(trajectory, ends, f"{_named(a, b)} {metres:g}")
        seen = [_point(end, read) for end in ends]
        placed = [_in_world(trajectory, end.frame, point) for end, point in zip(ends, seen, strict=True)]
        way = float(np.linalg.norm(placed[1][0] - placed[0][0]))
        loose = float(np.hypot(placed[0][1], placed[1][1])) / max(way, 1e-12)
        rows.append([end.frame for end in ends])
        points.append([point.in_camera for point in seen])
        spread.append(metres * float(np.hypot(sigma, loose)))
    priors = Distances(
        rows=np.array(rows, np.int64),
        length=np.array([metres for _, _, metres in distances]),
        information=np.array(spread)[:, None, None] ** -2.0,
        points_in_camera=np.array(points),
    )
    return priors, [f"distance {a} {b} {metres:g}" for a, b, metres in distances]


def point_reader(scene_map: Map) -> PointReader:
    """Reads points of a map's own point maps."""

    def read(frame: int, pixel: tuple[float, float]) -> SeenPoint | None:
        point_map = scene_map.points(frame)
        if point_map is None:
            return None
        camera = scene_map.intrinsics(frame)
        size = scene_map.image(frame).shape[1::-1] if camera is None else (camera.width, camera.height)
        if not all(0 <= at < side for at, side in zip(pixel, size, strict=True)):
            raise Anchor3RError(
                f"--distance {frame}:{pixel[0]:g},{pixel[1]:g}: its image has {size[0]}×{size[1]} pixels; "
                "name one of them as column,row"
            )
        height, width = point_map.confidence.shape
        row = min(int((pixel[1] + 0.5) * height / size[1]), height - 1)
        column = min(int((pixel[0] + 0.5) * width / size[0]), width - 1)
        point = point_map.points_in_camera[row, column].astype(np.float64)
        if not np.isfinite(point).all():
            return None
        # The confidence is the probability of an error below the tolerance.
        confidence = float(np.clip(point_map.confidence[row, column], *_CONFIDENCE))
        relative = TOLERANCE / float(norm.ppf((1 + confidence) / 2))
        return SeenPoint(point, relative * float(np.linalg.norm(point)))

    return read


def _point(end: End, read: PointReader) -> SeenPoint:
    """A camera is the origin of its own frame, and sure."""
    if end.pixel is None:
        return SeenPoint(np.zeros(3), 0.0)
    point = read(end.frame, end.pixel)
    if point is None:
        raise Anchor3RError(
            f"--distance {end.frame}:{end.pixel[0]:g},{end.pixel[1]:g}: the map has no point there; choose "
            "another pixel, on something with texture"
        )
    return point


def _in_world(trajectory: Trajectory, frame: int, point: SeenPoint) -> tuple[Float, float]:
    """Place of a point, and its spread, in the scale of the map as it is."""
    pose = trajectory.pose(int(np.searchsorted(trajectory.frames, frame)))
    return pose.to_world(point.in_camera).astype(np.float64), point.sigma * float(np.exp(pose.log_scale))


def _insist_on_poses(trajectory: Trajectory, ends: Sequence[End], option: str) -> None:
    rows = np.searchsorted(trajectory.frames, [end.frame for end in ends])
    for end, row in zip(ends, rows, strict=True):
        if row >= len(trajectory) or trajectory.frames[row] != end.frame:
            raise Anchor3RError(f"{option}: frame {end.frame} has no pose; choose frames that have one")
    if trajectory.component is not None and len(np.unique(trajectory.component[rows])) > 1:
        raise Anchor3RError(
            f"{option}: the frames are in two components of the map, which nothing relates; choose one"
        )


def _named(a: int | str, b: int | str) -> str:
    return f"--distance {a} {b}"
