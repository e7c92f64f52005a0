"""Frames of a recording: `bag:FILE[?topic=/camera/image_raw&calibration=TOPIC&reference=TOPIC]`."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3
from anchor3r.sources.bags.messages import (
    CAMERAS,
    IMAGES,
    POSES,
    TRANSFORMS,
    VIDEOS,
    camera_of,
    chained,
    frame_id,
    image_of,
    pose_of,
    stamp_ns,
    transforms_of,
)
from anchor3r.sources.bags.moving_frames import MovingFrames, is_static, moving_frames
from anchor3r.sources.bags.recording import Recording, Topic, damage_told, open_recording
from anchor3r.sources.bags.video import VideoMessages, begins
from anchor3r.sources.frame import Frame
from anchor3r.sources.source import Source, UndecodableFrameError, logger
from anchor3r.sources.stated_camera import StatedCamera
from anchor3r.sources.timed_poses import TimedPoses

_OPTIONS = ("topic", "calibration", "reference")
_TRUTH = re.compile(r"ground.?truth|(^|[/_])gt([/_]|$)|vicon|mocap|optitrack", re.IGNORECASE)
"""Names of topics that say of themselves that they are the truth; an odometry is none, unless asked for."""
_DEPTH = re.compile(r"depth|disparity", re.IGNORECASE)
"""Names of image topics that show no picture."""
_RECTIFIED = re.compile(r"rect", re.IGNORECASE)
_NS = 1e9
_LONGEST_GROUP = 300
"""Pictures of a video among which one is looked for that can be decoded without others; of images ten."""


_Decoded = Generator[tuple[int, Frame | UndecodableFrameError], None, None]
"""Frames with their index, or why they cannot be decoded."""


class BagSource(Source):
    """The images of one topic, with the camera and the poses that other topics tell.

    Streaming reads the recording in its own order. Jumping needs the time of every image, which one pass over
    the topic collects when it is first asked for, without decoding.
    """

    def __init__(self, uri: str, location: str, wanted: slice) -> None:
        name, _, query = location.partition("?")
        options = _options(uri, query)
        self._path = Path(name)
        with open_recording(self._path) as recording, damage_told(self._path):
            topic = _image_topic(recording, options.get("topic"))
            super().__init__(uri, wanted, topic.count)
            self._topic, self._is_video = topic.name, topic.kind in VIDEOS
            shape, camera_frame = _first_image(recording, topic)
            self.lens = _lens(recording, topic.name, shape, options.get("calibration"))
            self._poses = _reference(recording, camera_frame, options.get("reference"))
        self._lock = Lock()
        self._reader: Recording | None = None
        self._messages: _MessageTable | None = None
        self._cursor: _Decoded | None = None
        self._cursor_next = 0

    @property
    def files(self) -> Sequence[Path]:
        return sorted(self._path.iterdir()) if self._path.is_dir() else [self._path]

    def read(self, index: int) -> Frame:
        if not 0 <= index < (self._length or 0):
            raise Anchor3RError(
                f"{self.uri} has {self._length} images, but image {index} was asked for; "
                "check that it is still the recording that the map was made from"
            )
        with self._lock, damage_told(self._path):
            if self._reader is None:
                self._reader = open_recording(self._path)
            for number, frame in self._cursor_to(self._reader, index):
                self._cursor_next = number + 1
                if number < index:
                    continue
                if isinstance(frame, UndecodableFrameError):
                    raise frame
                return self._checked_frame(frame)
            self._cursor = None
        raise UndecodableFrameError(f"{self._describe(index)} is not there; the recording ends before it")

    def close(self) -> None:
        with self._lock:
            self._cursor = None
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    def _stream(self, first: int, wanted: range) -> Generator[Frame, None, None]:
        if not wanted:
            return
        done = wanted.start
        with open_recording(self._path) as recording, damage_told(self._path):
            for index, frame in self._decoded(recording, wanted):
                done = index + 1
                if isinstance(frame, UndecodableFrameError):
                    self._skip(index, str(frame))
                else:
                    yield frame
        for index in wanted:
            if index >= done:
                self._skip(index, "the recording ends before it")

    def _cursor_to(self, recording: Recording, index: int) -> _Decoded:
        """Frames from the index-th or somewhat before; of a video they go on where the last one was read."""
        is_near = self._is_video and self._group_of(recording, index) <= self._cursor_next <= index
        if self._cursor is None or not is_near:
            self._cursor = self._decoded(recording, range(index, self._length or 0))
        return self._cursor

    def _decoded(self, recording: Recording, wanted: range) -> _Decoded:
        """The wanted frames."""
        if not wanted:
            return
        start = self._group_of(recording, wanted.start) if self._is_video else wanted.start
        video = VideoMessages() if self._is_video else None
        raw = self._raw_from(recording, start)
        for index, (time_ns, data) in zip(range(start, wanted.stop), raw, strict=False):
            if video is None and index not in wanted:
                continue
            found: Frame | UndecodableFrameError
            try:
                found = self._frame(recording, index, time_ns, data, video)
            except UndecodableFrameError as error:
                found = error
            if index in wanted:
                yield index, found

    def _frame(
        self, recording: Recording, index: int, time_ns: int, data: bytes, video: VideoMessages | None
    ) -> Frame:
        with _as_undecodable(self._path):
            message = recording.decode(self._topic, data)
            image = image_of(message) if video is None else video.image_of(message)
        timestamp_s = (stamp_ns(message) or time_ns) / _NS
        pose = None if self._poses is None else self._poses.camera_from_world_at(timestamp_s)
        return Frame(index=index, timestamp_s=timestamp_s, image=image, camera_from_world=pose)

    def _raw_from(self, recording: Recording, index: int) -> Iterator[tuple[int, bytes]]:
        """Messages from the index-th on, with the times of their recording."""
        if index == 0:
            return recording.raw_messages(self._topic)
        times_ns = self._message_table(recording).times_ns
        if index >= len(times_ns):
            return iter(())
        # Several messages may have been recorded at one time.
        same = index - int(np.searchsorted(times_ns, times_ns[index]))
        return islice(recording.raw_messages(self._topic, int(times_ns[index])), same, None)

    def _group_of(self, recording: Recording, index: int) -> int:
        """The message at which decoding has to begin so as to get a picture of a video."""
        if index == 0:
            return 0
        groups = self._message_table(recording).groups
        before = int(np.searchsorted(groups, index, side="right"))
        return int(groups[before - 1]) if before else 0

    def _message_table(self, recording: Recording) -> _MessageTable:
        if self._messages is None:
            times_ns, groups = [], []
            for number, (time_ns, data) in enumerate(recording.raw_messages(self._topic)):
                times_ns.append(time_ns)
                if self._is_video and self._begins_group(recording, data):
                    groups.append(number)
            self._messages = _MessageTable(np.array(times_ns, np.int64), np.array(groups, np.int64))
        return self._messages

    def _begins_group(self, recording: Recording, data: bytes) -> bool:
        try:
            with _as_undecodable(self._path):
                return begins(recording.decode(self._topic, data))
        except UndecodableFrameError:
            return False


@dataclass(frozen=True)
class _MessageTable:
    """What it takes to jump within a topic."""

    times_ns: NDArray[np.int64]
    """When each message was recorded"""
    groups: NDArray[np.int64]
    """Numbers of the messages with which decoding a video can begin"""


def _options(uri: str, query: str) -> dict[str, str]:
    try:
        options = dict(parse_qsl(query, strict_parsing=bool(query)))
    except ValueError:
        options = {query: ""}
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise Anchor3RError(
            f"{uri} has the option '{unknown[0]}', there are only {', '.join(_OPTIONS)}; write it as "
            "bag:FILE?topic=/camera/image_raw"
        )
    return options


def _image_topic(recording: Recording, asked: str | None) -> Topic:
    """The topic that was asked for, or the only one with pictures."""
    images = [topic for topic in recording.topics.values() if topic.kind in IMAGES and topic.count]
    names = {topic.name for topic in images}
    if asked is not None:
        found = next((topic for topic in images if topic.name.strip("/") == asked.strip("/")), None)
        if found is None:
            raise Anchor3RError(f"{recording.path} has no images under {asked}; {_listed(recording, images)}")
        return found
    # One camera may have been recorded both ways; raw pictures are the better ones.
    seen = [topic for topic in images if not _DEPTH.search(topic.name) and not _has_raw(topic.name, names)]
    if len(seen) == 1:
        return seen[0]
    if not seen:
        raise Anchor3RError(f"{recording.path} has no images; {_listed(recording, images)}")
    raise Anchor3RError(
        f"{recording.path} has images under several topics; choose one, such as bag:{recording.path}?topic="
        f"{seen[0].name}; there are {_table(seen)}"
    )


def _has_raw(name: str, names: set[str]) -> bool:
    base = name.removesuffix("/compressed")
    return base != name and base in names


def _listed(recording: Recording, images: list[Topic]) -> str:
    if images:
        return f"there are images under {_table(images)}"
    every = sorted(recording.topics.values(), key=lambda topic: topic.name)
    return f"its topics are {_table(every)}" if every else "it has no topic at all"


def _table(topics: list[Topic]) -> str:
    return ", ".join(f"{topic.name} ({topic.count} × {topic.kind})" for topic in topics)


def _first_image(recording: Recording, topic: Topic) -> tuple[tuple[int, int] | None, str]:
    """Width and height of the first image that can be decoded, of some; and its frame of reference."""
    name = ""
    video = VideoMessages() if topic.kind in VIDEOS else None
    for _, data in islice(recording.raw_messages(topic.name), 10 if video is None else _LONGEST_GROUP):
        try:
            with _as_undecodable(recording.path):
                message = recording.decode(topic.name, data)
                name = frame_id(message)
                image = image_of(message) if video is None else video.image_of(message)
            return (image.shape[1], image.shape[0]), name
        except UndecodableFrameError:
            continue
    return None, name


def _lens(
    recording: Recording, topic: str, size: tuple[int, int] | None, asked: str | None
) -> StatedCamera | None:
    """What the calibration beside an image topic says of the camera."""
    message = _calibration(recording, topic, asked)
    if message is None or size is None:
        return None
    try:
        facts = camera_of(message, rectified=bool(_RECTIFIED.search(topic)))
        return None if facts is None else facts.at(*size)
    except (ValueError, Anchor3RError) as error:
        logger.warning("the calibration of %s is not used: %s", topic, error)
        return None


def _calibration(recording: Recording, topic: str, asked: str | None) -> Any:
    """The first message of the topic asked for, else of one in the namespace of the images; None if none."""
    cameras = [known for known in recording.topics.values() if known.kind in CAMERAS and known.count]
    if asked is not None:
        found = [known for known in cameras if known.name.strip("/") == asked.strip("/")]
        if not found:
            raise Anchor3RError(
                f"{recording.path} has no calibration under {asked}"
                + (f"; there are {_table(cameras)}" if cameras else ", nor under any other topic")
            )
    else:
        namespace = _namespace(topic)
        found = [known for known in cameras if known.name.rpartition("/")[0] == namespace]
    messages = (message for _, message in recording.messages(found[0].name)) if found else iter(())
    return next(messages, None)


def _namespace(topic: str) -> str:
    """/camera/image_raw/compressed -> /camera"""
    return topic.removesuffix("/compressed").rpartition("/")[0]


def _reference(
    recording: Recording, camera_frame: str, asked: str | None
) -> TimedPoses | MovingFrames | None:
    """Poses of the camera by the topic asked for, or by the only one that calls itself the truth."""
    poses = [known for known in recording.topics.values() if known.kind in POSES and known.count]
    if asked is None:
        chosen = [known for known in poses if _TRUTH.search(known.name)]
        return _timed_poses(recording, chosen[0].name, camera_frame) if len(chosen) == 1 else None
    moving = [
        known
        for known in recording.topics.values()
        if known.kind in TRANSFORMS and known.count and not is_static(known.name)
    ]
    found = next((known for known in poses + moving if known.name.strip("/") == asked.strip("/")), None)
    if found is None:
        raise Anchor3RError(
            f"{recording.path} has no poses under {asked}"
            + (f"; there are {_table(poses + moving)}" if poses or moving else ", nor under any other topic")
        )
    if found in moving:
        return moving_frames(recording, found.name, camera_frame)
    return _timed_poses(recording, found.name, camera_frame)


def _timed_poses(recording: Recording, topic: str, camera_frame: str) -> TimedPoses | None:
    times_s, found, body = [], [], None
    for time_ns, message in recording.messages(topic):
        world_from_body, body = pose_of(message)
        times_s.append((stamp_ns(message) or time_ns) / _NS)
        found.append(world_from_body)
    if not found:
        return None
    stacked = SE3(np.stack([pose.rotation for pose in found]), np.stack([pose.translation for pose in found]))
    body_from_camera = _body_from_camera(recording, body, camera_frame)
    if body_from_camera is None:
        logger.warning(
            "the poses of %s are those of %s, and nothing in the file tells how the camera %s lies in it:"
            " their positions serve for comparison, their directions do not",
            topic,
            body or "a body without a name",
            camera_frame or "(without a name)",
        )
        body_from_camera = SE3.identity()
    return TimedPoses.of(np.array(times_s), stacked @ body_from_camera)


def _body_from_camera(recording: Recording, body: str | None, camera_frame: str) -> SE3 | None:
    """How the camera lies in the body, by the transforms that do not change."""
    if body is None or body == camera_frame:
        return SE3.identity() if body is not None else None
    fixed = [
        known for known in recording.topics.values() if known.kind in TRANSFORMS and is_static(known.name)
    ]
    edges = [
        edge
        for known in fixed
        for _, message in recording.messages(known.name)
        for edge in transforms_of(message)
    ]
    return chained(edges, body, camera_frame)


@contextmanager
def _as_undecodable(path: Path) -> Iterator[None]:
    """A message that cannot be decoded is one frame less, not the end of the recording."""
    try:
        with damage_told(path):
            yield
    except UndecodableFrameError:
        raise
    except Anchor3RError as error:
        raise UndecodableFrameError(str(error)) from error
