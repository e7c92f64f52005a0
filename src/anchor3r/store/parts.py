"""The maps that a merged map was made of: which frames are whose, and the sources of all as one."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.limits import LIMITS
from anchor3r.sources import Frame, Source, StatedCamera, is_remote, open_source

PARTS_KEY = "parts"
"""Of the table meta of a merged map: its parts."""


@dataclass(frozen=True, kw_only=True)
class MapPart:
    """One map of one source, as a part of a merged map."""

    map: str
    """Folder of the map, as it was named."""
    digest: str
    """Of its poses as they were mapped: tells whether two maps are the same."""
    first_frame: int
    """What frame 0 of its source is called in the merged map; the others follow."""
    num_frames: int
    """Frames of it in the merged map."""
    time_shift_s: float
    """Added to the times of its source."""
    source: str
    """Where its images came from."""
    start: int
    """First frame that was mapped of it; below, the stride, the stated camera and the number of frames."""
    stride: int
    camera: dict[str, Any] | None
    expected: int | None

    def __post_init__(self) -> None:
        counts = (self.first_frame, self.num_frames, self.start, self.stride - 1, self.expected or 0)
        if not all(0 <= count <= LIMITS.frames for count in counts):
            raise ValueError("a part of a merged map has numbers that no source has")
        if not np.isfinite(self.time_shift_s):
            raise ValueError("a part of a merged map has no time")


def part_of(frames: NDArray[np.int64], parts: Sequence[MapPart]) -> NDArray[np.int64]:
    """(n,) which part frames (n,) of a merged map are of; 0 in a map of one source."""
    return np.searchsorted([part.first_frame for part in parts[1:]], frames, side="right")


class PartSources(Source):
    """The sources of all parts as one, whose frames have the numbers and times of the merged map."""

    def __init__(self, parts: Sequence[MapPart], sources: Sequence[Source]) -> None:
        self._parts, self._sources = parts, sources
        self._open = ExitStack()
        for source in sources:
            self._open.callback(source.close)
        last = parts[-1].first_frame + sources[-1].wanted.stop
        super().__init__(" + ".join(source.uri for source in sources), slice(None), last)

    @staticmethod
    def of(parts: Sequence[MapPart]) -> PartSources | None:
        """Opens the sources as they were to be mapped; None if any is gone, was live or is on a server."""
        with ExitStack() as stack:
            sources = []
            for part in parts:
                source = open_again(part.source, part.start, part.stride, part.expected, part.camera)
                if source is None:
                    return None
                sources.append(stack.enter_context(source))
            stack.pop_all()
        return PartSources(parts, sources)

    def read(self, index: int) -> Frame:
        k = int(part_of(np.array([index]), self._parts)[0])
        return self._renumbered(self._sources[k].read(index - self._parts[k].first_frame), k)

    def close(self) -> None:
        self._open.close()

    def _stream(self, first: int, wanted: range) -> Generator[Frame, None, None]:
        for k, (part, source) in enumerate(zip(self._parts, self._sources, strict=True)):
            for frame in source.frames(max(first - part.first_frame, 0)):
                renumbered = self._renumbered(frame, k)
                if renumbered.index in wanted:
                    yield renumbered

    def _renumbered(self, frame: Frame, k: int) -> Frame:
        part = self._parts[k]
        return replace(
            frame,
            index=frame.index + part.first_frame,
            timestamp_s=frame.timestamp_s + part.time_shift_s,
        )


def open_again(
    uri: str, start: int, stride: int, num_frames: int | None, camera: dict[str, Any] | None
) -> Source | None:
    """A source as it was opened to be mapped; None if it is gone, was live or is on a server.

    Nothing is fetched from a server, nor a camera opened, because a map says so: it may be a stranger's.
    """
    if is_remote(uri):
        return None
    try:
        source = open_source(
            uri,
            stop=None if num_frames is None else start + num_frames * stride,  # a world may depend on it
            camera=None if camera is None else StatedCamera.from_json(camera),
        )
    except Anchor3RError:
        return None
    if source.seekable:
        return source
    source.close()
    return None
