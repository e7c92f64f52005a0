"""A map as a recording: what there is to show at the time of each frame, one frame at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.export.selection import POINT_BUDGET, Selection, cloud_of
from anchor3r.geometry import Pinhole
from anchor3r.io.pointcloud import Cloud
from anchor3r.store import Map
from anchor3r.trajectory import FramePose


@dataclass(frozen=True, kw_only=True)
class LoggedLoop:
    """A loop event, shown when the later frame was taken."""

    event: int
    ends: NDArray[np.float64]
    """(2, 3) centres of the later and the earlier camera"""
    accepted: bool


@dataclass(frozen=True, kw_only=True)
class LoggedFrame:
    """What a recording shows of one frame."""

    time_s: float
    """On the source's own clock"""
    pose: FramePose
    jpeg: bytes | None
    """The map's own copy of the image, if it keeps one"""
    camera: Pinhole | None
    """Of that image"""
    points: Cloud
    """In the world"""
    loops: tuple[LoggedLoop, ...]


_PATHS = 50
"""Times at which the path so far is written: at every frame its size would grow with the square of them."""


_LATEST_S = 2**31
"""That a time stamp of ROS can say."""


def path_steps(count: int) -> set[int]:
    """Of so many frames those with which recordings of messages write the path so far."""
    return set(np.linspace(0, count - 1, min(_PATHS, count)).round().astype(int).tolist())


def logged_frames(chosen: Selection) -> Iterator[LoggedFrame]:
    """The chosen frames in order; each brings an equal share of the points that are wanted at most."""
    trajectory = chosen.trajectory
    times_s = trajectory.timestamps_s
    assert times_s is not None
    if len(times_s) and not (times_s.min() >= 0 and times_s.max() < _LATEST_S):
        raise Anchor3RError(
            f"{chosen.scene_map.folder}: its frames have times of {times_s.min():g} to {times_s.max():g} s, "
            "and recordings have none before 1970 or after 2038; export it in another format"
        )
    share = max(1, (chosen.max_points or POINT_BUDGET) // len(trajectory))
    loops = _loops(chosen)
    for k in range(len(trajectory)):
        pose, time_s = trajectory.pose(k), float(times_s[k])
        yield logged_frame(
            chosen.scene_map, pose, time_s, min_confidence=chosen.min_confidence,
            max_points=share, loops=loops.get(pose.frame, ()),
        )  # fmt: skip


def logged_frame(
    scene_map: Map,
    pose: FramePose,
    time_s: float,
    *,
    min_confidence: float,
    max_points: int,
    loops: tuple[LoggedLoop, ...] = (),
) -> LoggedFrame:
    """One frame of a map, which may be growing."""
    jpeg = scene_map.jpeg(pose.frame)
    camera = scene_map.intrinsics(pose.frame)
    if jpeg is not None and camera is not None:
        with Image.open(BytesIO(jpeg)) as picture:
            camera = camera.resized(*picture.size)
    return LoggedFrame(
        time_s=time_s, pose=pose, jpeg=jpeg, camera=camera, loops=loops,
        points=_points(scene_map, pose, min_confidence, max_points),
    )  # fmt: skip


def _points(scene_map: Map, pose: FramePose, min_confidence: float, max_points: int) -> Cloud:
    """The frame's sure points in the world; of too many, some drawn by lot."""
    point_map = scene_map.points(pose.frame)
    if point_map is None:
        return Cloud.joined([])
    cloud = cloud_of(pose, point_map, min_confidence)
    if len(cloud) <= max_points:
        return cloud
    drawn = np.random.default_rng(pose.frame).permutation(len(cloud))[:max_points]
    return cloud.select(np.sort(drawn))


def _loops(chosen: Selection) -> dict[int, tuple[LoggedLoop, ...]]:
    """Loop events by the frame that they are shown with: the later one, or the next that was chosen."""
    trajectory = chosen.trajectory
    every = chosen.scene_map.trajectory(chosen.poses)
    center = dict(zip(every.frames.tolist(), every.center, strict=True))
    found: dict[int, list[LoggedLoop]] = {}
    for loop in chosen.scene_map.loops(chosen.poses):
        if loop.query not in center or loop.match not in center:
            continue
        at = min(int(np.searchsorted(trajectory.frames, loop.query)), len(trajectory) - 1)
        ends = np.stack([center[loop.query], center[loop.match]])
        shown = LoggedLoop(event=loop.event, ends=ends, accepted=loop.accepted)
        found.setdefault(int(trajectory.frames[at]), []).append(shown)
    return {frame: tuple(loops) for frame, loops in found.items()}
