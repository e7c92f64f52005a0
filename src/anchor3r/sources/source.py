"""What every source is: a stream of frames that can be cut, gone through again and picked up midway."""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.pool import ThreadPool
from pathlib import Path
from threading import Condition, Event
from types import TracebackType
from typing import Self, TypeVar

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3
from anchor3r.limits import LIMITS
from anchor3r.sources.frame import Frame
from anchor3r.sources.stated_camera import StatedCamera

PREFETCH_DEPTH = 4
"""Frames that are decoded ahead of the one in use."""

logger = logging.getLogger("anchor3r")
Item = TypeVar("Item")
# Up to the last @ of what a server is named by; the password itself may have another one, or blanks.


class UndecodableFrameError(Anchor3RError):
    """One frame cannot be read. A stream goes on without it; `read` raises it."""


class ImageSizeError(Anchor3RError):
    """The images of a stream differ in size."""


class Source(ABC):
    """A stream of frames. Iterating starts over; memory does not grow with the number of frames."""

    seekable: bool = True
    """Whether `read` works and `frames` can start midway without the frames before."""
    live: bool = False
    """Whether frames pass by in real time: a slow reader misses some instead of holding up the sender."""

    def __init__(self, uri: str, wanted: slice, length: int | None) -> None:
        """`length` is the number of frames before cutting, None if it shows only at the end."""
        self.uri = uri
        self.skipped = 0
        """Frames that could not be decoded in the latest iteration."""
        self._told_up_to = -1
        self._length = length
        self.wanted = range(sys.maxsize if length is None else length)[wanted]
        """Indices of the frames to take; open-ended where the length is not known."""
        self._size: tuple[int, int] | None = None
        self.camera: StatedCamera | None = None
        """What the user says of the camera."""
        self.lens: StatedCamera | None = None
        """What the source knows of a lens that bends its images; what the user says overrules it."""
        self._start = wanted.start or 0
        if not self.wanted:
            raise self._beyond_end(length)

    @property
    def num_frames(self) -> int | None:
        """How many frames an iteration gives if all can be decoded; None where that is not known."""
        return None if self._length is None else len(self.wanted)

    def __iter__(self) -> Iterator[Frame]:
        return self.frames()

    def frames(self, first: int = 0) -> Generator[Frame, None, None]:
        """Streams the wanted frames whose index is `first` or higher.

        A live source has no past: its first frame after opening gets the index `first`.
        """
        self.skipped = 0
        ahead = freshest if self.live else prefetched
        return ahead(self._checked(first), PREFETCH_DEPTH)

    @abstractmethod
    def read(self, index: int) -> Frame:
        """The frame at a position in the source, wanted or not, without disturbing any iteration."""

    @property
    def files(self) -> Sequence[str | Path]:
        """Files with the frames, which no output of the same command may replace; none of a stream."""
        return ()

    def true_pose(self, index: int) -> SE3 | None:
        """The true pose of a frame; sources that know it without decoding say so."""
        return self.read(index).camera_from_world

    def close(self) -> None:
        """Frees what `read` holds open. Iterations free their own when they end."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _stream(self, first: int, wanted: range) -> Generator[Frame, None, None]:
        """Yields the frames at the indices `wanted`, leaving out those that `_skip` reports."""

    def _describe(self, index: int) -> str:
        """What to call a frame in messages."""
        return f"frame {index} of {self.uri}"

    def _checked(self, first: int) -> Generator[Frame, None, None]:
        wanted = self.wanted[bisect_left(self.wanted, first) :]
        delivered = False
        for frame in self._stream(first, wanted):
            delivered = True
            yield self._checked_frame(frame)
        if delivered or first > self.wanted.start:
            return
        if self.skipped or not self.wanted.start:
            raise Anchor3RError(
                f"no frame of {self.uri} can be decoded ({self.skipped} tried); "
                "check that it is what its name says and was copied completely"
            )
        raise self._beyond_end(None)

    def _checked_frame(self, frame: Frame) -> Frame:
        """A frame as it is handed out: of the stream's size, straight, with the camera that was stated."""
        self._check_size(frame)
        camera = self.camera if self.lens is None or self.camera is None else self.camera.over(self.lens)
        camera = camera or self.lens
        return frame if camera is None else camera.applied(frame)

    def _check_size(self, frame: Frame) -> None:
        height, width = frame.image.shape[:2]
        if self._size is None:
            if min(width, height) * LIMITS.aspect_ratio < max(width, height):
                raise ImageSizeError(
                    f"{self._describe(frame.index)} is {width}×{height}, a strip, no image of a camera; "
                    "cut it, or give whole images"
                )
            self._size = (width, height)
        if self._size != (width, height):
            raise ImageSizeError(
                f"{self._describe(frame.index)} is {width}×{height}, but the stream began with "
                f"{self._size[0]}×{self._size[1]}; put images of one camera, zoom and orientation into a "
                "folder of their own, or take a part of the stream with --start and --stop"
            )

    def _skip(self, index: int, reason: str) -> None:
        self.skipped += 1
        if index > self._told_up_to:  # once, however often the source is gone through
            self._told_up_to = index
            logger.warning("skipped %s: %s", self._describe(index), reason)

    def _beyond_end(self, length: int | None) -> Anchor3RError:
        holds = "ends before that" if length is None else f"has {length} frames"
        return Anchor3RError(
            f"the first frame wanted of {self.uri} is {self._start}, but it {holds}; choose a lower --start"
        )


class IndexedSource(Source):
    """A source whose frames lie there one by one, each to be had at any time."""

    _length: int

    @abstractmethod
    def _load(self, index: int) -> Frame:
        """Reads one frame, or raises UndecodableFrameError. Called from several threads."""

    def read(self, index: int) -> Frame:
        if not 0 <= index < self._length:
            raise Anchor3RError(
                f"{self.uri} has {self._length} frames, but frame {index} was asked for; "
                "check that it is still the source that the map was made from"
            )
        return self._checked_frame(self._load(index))

    def _stream(self, first: int, wanted: range) -> Generator[Frame, None, None]:
        for index in wanted:
            try:
                frame = self._load(index)
            except UndecodableFrameError as error:
                self._skip(index, str(error))
                continue
            yield frame


def prefetched(items: Generator[Item, None, None], depth: int) -> Generator[Item, None, None]:
    """Yields the items, none of which is None, in order while a thread makes up to `depth` further ones.

    Like `freshest`, it hands over whatever the iterator raises, and stops and closes it when its own iterator
    is closed, by `break`, by an exception or by Ctrl-C.
    """
    with closing(items), ThreadPoolExecutor(1) as pool:
        pending = deque(pool.submit(next, items, None) for _ in range(depth))
        try:
            while (item := pending.popleft().result()) is not None:
                pending.append(pool.submit(next, items, None))
                yield item
        finally:
            for future in pending:
                future.cancel()


def freshest(items: Generator[Item, None, None], depth: int) -> Generator[Item, None, None]:
    """For a stream that cannot be paused: reads on all the time and keeps only the latest `depth` items."""
    kept: deque[Item] = deque(maxlen=depth)
    changed = Condition()
    ended, stopped = Event(), Event()

    def keep() -> None:
        with closing(items):
            for item in items:
                if stopped.is_set():
                    break
                with changed:
                    kept.append(item)
                    changed.notify()

    def announce_end(_: object) -> None:
        with changed:
            ended.set()
            changed.notify()

    # Its threads are daemons: a stream that is still open does not keep the program from ending.
    with ThreadPool(1) as pool:
        reading = pool.apply_async(keep, callback=announce_end, error_callback=announce_end)
        try:
            while True:
                with changed:
                    changed.wait_for(lambda: kept or ended.is_set())
                    if not kept:
                        break
                    item = kept.popleft()
                yield item
            reading.get()
        finally:
            stopped.set()
