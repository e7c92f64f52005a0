"""Poses of a camera by a tree of moving frames of reference, as `/tf` tells them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3
from anchor3r.sources.bags.messages import TRANSFORMS, transforms_of
from anchor3r.sources.bags.recording import Recording
from anchor3r.sources.timed_poses import TimedPoses


@dataclass(frozen=True)
class MovingFrames:
    """The way from the root of a tree of frames of reference down to a camera."""

    links: tuple[TimedPoses | SE3, ...]
    """parent_from_child from the root on; those that move by time"""

    def camera_from_world_at(self, time_s: float) -> SE3 | None:
        """None at times at which a link is not known."""
        camera_from_frame = SE3.identity()
        for link in reversed(self.links):
            child_from_parent = link.inverse() if isinstance(link, SE3) else link.camera_from_world_at(time_s)
            if child_from_parent is None:
                return None
            camera_from_frame = camera_from_frame @ child_from_parent
        return camera_from_frame


def moving_frames(recording: Recording, topic: str, camera: str) -> MovingFrames:
    """Follows a camera's frame up to the root, by a topic of transforms and those that do not change."""
    static = [
        known.name
        for known in recording.topics.values()
        if known.kind in TRANSFORMS and is_static(known.name)
    ]
    fixed = {
        told.child: told
        for name in static
        if name != topic
        for _, message in recording.messages(name)
        for told in transforms_of(message)
    }
    parents = {child: told.parent for child, told in fixed.items()}
    # Robots have many joints: first what hangs on what, then the times and poses of what leads to the camera.
    moving = {
        told.child: told.parent for _, message in recording.messages(topic) for told in transforms_of(message)
    }
    parents |= moving
    way = _way_up(parents, camera)
    if not way:
        raise Anchor3RError(
            f"{topic} of {recording.path} does not tell where the camera is, whose frame is "
            f"'{camera}'; it knows {', '.join(sorted(parents)) or 'none'}: name another reference"
        )
    timed = _timed(recording, topic, [child for child in way if child in moving])
    return MovingFrames(
        tuple(timed[child] if child in timed else fixed[child].parent_from_child for child in reversed(way))
    )


def is_static(topic: str) -> bool:
    """Whether a topic of transforms holds those that never change."""
    return "static" in topic


def _way_up(parents: dict[str, str], frame: str) -> list[str]:
    """The frame and those above it, without the root; empty if it has nothing above."""
    way: list[str] = []
    while frame in parents and frame not in way:
        way.append(frame)
        frame = parents[frame]
    return way


def _timed(recording: Recording, topic: str, children: list[str]) -> dict[str, TimedPoses]:
    times: dict[str, list[float]] = {child: [] for child in children}
    poses: dict[str, list[NDArray[np.float64]]] = {child: [] for child in children}
    for time_ns, message in recording.messages(topic):
        for told in transforms_of(message):
            if told.child in times:
                times[told.child].append((told.stamp_ns or time_ns) / 1e9)
                poses[told.child].append(np.asarray(told.parent_from_child.matrix(), np.float64))
    found = {}
    for child in children:
        matrices = np.stack(poses[child])
        found[child] = TimedPoses.of(np.array(times[child]), SE3(matrices[:, :3, :3], matrices[:, :3, 3]))
    return found
