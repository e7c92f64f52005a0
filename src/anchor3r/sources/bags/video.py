"""Compressed video inside a recording: one picture a message, most of which need those before them."""

from __future__ import annotations

from typing import Any

import av
import numpy as np
from av.codec.context import Flags
from av.video.codeccontext import VideoCodecContext
from numpy.typing import NDArray

from anchor3r.limits import LIMITS
from anchor3r.sources.source import UndecodableFrameError

_CODECS = {"h264": "h264", "h265": "hevc", "hevc": "hevc", "vp9": "vp9", "av1": "libdav1d"}
"""FFmpeg's names by Foxglove's."""


class VideoMessages:
    """Decodes messages in their order, from one on that `begins` a group of pictures."""

    def __init__(self) -> None:
        self._codec: VideoCodecContext | None = None

    def image_of(self, message: Any) -> NDArray[np.uint8]:
        """(H, W, 3) RGB of the next message."""
        try:
            if self._codec is None:
                self._codec = _opened(str(message.format))
            pictures = self._codec.decode(av.Packet(bytes(message.data)))
        except av.FFmpegError as error:
            raise UndecodableFrameError(f"a picture of the video is damaged ({error.strerror})") from error
        if not pictures or pictures[-1].is_corrupt:
            raise UndecodableFrameError(
                "a picture of the video comes later than its message, or before the first whole one"
            )
        if pictures[-1].width * pictures[-1].height > LIMITS.pixels:
            raise UndecodableFrameError(f"a picture of the video has more than {LIMITS.pixels:,} pixels")
        return np.asarray(pictures[-1].to_ndarray(format="rgb24"), np.uint8)


def _opened(format: str) -> VideoCodecContext:
    name = _CODECS.get(format.lower())
    if name is None:
        raise UndecodableFrameError(
            f"video in the format '{format}' is not known, only {', '.join(dict.fromkeys(_CODECS))}"
        )
    codec = av.CodecContext.create(name, "r")
    assert isinstance(codec, VideoCodecContext)
    # Several threads would keep pictures back.
    codec.thread_count, codec.flags = 1, codec.flags | Flags.low_delay
    return codec


def begins(message: Any) -> bool:
    """Whether decoding can begin with a message: its picture needs no other one."""
    name, data = _CODECS.get(str(message.format).lower()), bytes(message.data)
    if name == "h264":
        return any(kind & 31 == 5 for kind in _units(data))
    if name == "hevc":
        return any(16 <= (kind >> 1) & 63 <= 21 for kind in _units(data))
    if name == "vp9":
        return bool(data) and _is_vp9_key(data[0])
    return name == "libdav1d" and 1 in _av1_kinds(data)  # a sequence header comes with each key picture


def _units(data: bytes) -> list[int]:
    """First bytes of the units of H.264 and H.265, each of which follows a start code."""
    found, at = [], data.find(b"\0\0\1")
    while 0 <= at < len(data) - 3:
        found.append(data[at + 3])
        at = data.find(b"\0\0\1", at + 3)
    return found


def _is_vp9_key(first: int) -> bool:
    """By its header: frame marker, profile, show_existing_frame, frame_type (0: a key picture)."""
    bits = [first >> shift & 1 for shift in range(7, -1, -1)]
    at = 5 if bits[2] and bits[3] else 4  # profile 3 has a reserved bit
    return bits[:2] == [1, 0] and not bits[at] and not bits[at + 1]


def _av1_kinds(data: bytes) -> set[int]:
    """Kinds of the units (OBU) of AV1."""
    kinds, at = set(), 0
    while at < len(data):
        header = data[at]
        kinds.add(header >> 3 & 15)
        at += 2 if header & 4 else 1
        if not header & 2:  # the last one, without its size
            break
        size = shift = 0
        while at < len(data):
            size |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                break
        at += size
    return kinds
