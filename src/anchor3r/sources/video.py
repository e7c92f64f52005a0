"""Frames from anything FFmpeg opens: video files, network streams and cameras."""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from anchor3r.errors import Anchor3RError, without_secrets
from anchor3r.io.inputs import DAMAGED, insist_on_file
from anchor3r.limits import LIMITS
from anchor3r.sources.frame import Frame
from anchor3r.sources.images import NOMINAL_RATE_HZ, PLAUSIBLE_FOCAL, PhotoFacts, focal_of_equivalent
from anchor3r.sources.source import Source, UndecodableFrameError

VIDEO_SUFFIXES = {
    ".3gp", ".avi", ".flv", ".h264", ".hevc", ".m2ts", ".m4v", ".mjpeg", ".mjpg", ".mkv",
    ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".webm", ".wmv",
}  # fmt: skip

_CONTAINERS = (
    "3g2", "3gp", "asf", "avi", "flv", "h264", "hevc", "m4a", "m4v", "matroska", "mj2", "mjpeg", "mov", "mp4",
    "mpeg", "mpegts", "mpegvideo", "ogg", "webm",
)  # fmt: skip
"""What a video file may be, by FFmpeg's names: whatever holds its pictures itself."""
_STREAMS = ("hls", "mpjpeg", "rtp", "rtsp", "sdp")
"""What a server may send as well."""
_NETWORK_PROTOCOLS = "crypto,data,http,httpproxy,https,rtmp,rtp,rtsp,rtsps,srtp,tcp,tls,udp"

_EQUIVALENT_MM = "com.apple.quicktime.camera.focal_length.35mm_equivalent"
"""Under which phones write their focal length into a video."""

NETWORK_TIMEOUT_S = 10.0
"""How long a server or a camera may be silent."""

NEAR_FRAMES = 64
"""`read` decodes on from the frame it gave last if the next one lies no further ahead than this."""

Pictures = Generator[tuple[int, VideoFrame | None], None, None]
"""Decoded pictures with their index; at the end the number of frames, with None."""


@dataclass(frozen=True, kw_only=True)
class VideoInput:
    """What FFmpeg is to open."""

    uri: str
    """What to call it."""
    location: str
    """File name, URL (with its password, if it has one) or device."""
    is_file: bool = False
    device_format: str | None = None
    """FFmpeg's name for the capture interface, if it is a camera."""

    def open(self) -> InputContainer:
        if self.is_file:
            insist_on_file(self.location)
        options = {"rtsp_transport": "tcp"} if self.location.startswith("rtsp") else {}
        if self.device_format is None:
            # Playlists and scripts, which name further files and addresses, pass for a video by their suffix.
            options["format_whitelist"] = ",".join(_CONTAINERS if self.is_file else _CONTAINERS + _STREAMS)
            options["protocol_whitelist"] = "file" if self.is_file else _NETWORK_PROTOCOLS
        try:
            container = av.open(
                self.location,
                format=self.device_format,
                options=options,
                timeout=None if self.is_file else NETWORK_TIMEOUT_S,
                metadata_errors="replace",
            )
        except (av.FFmpegError, *DAMAGED) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise Anchor3RError(f"cannot open {self.uri} ({reason}); {self.remedy()}") from error
        stream = container.streams.best("video")
        if not isinstance(stream, VideoStream):
            container.close()
            raise Anchor3RError(f"{self.uri} holds no video that can be decoded; {self.remedy()}")
        codec = stream.codec_context
        width, height = (0, 0) if codec is None else (codec.width, codec.height)
        if width * height > LIMITS.pixels:
            container.close()
            raise Anchor3RError(
                f"{self.uri} is {width}×{height}, more than {LIMITS.pixels:,} pixels; scale it"
            )
        return container

    def remedy(self) -> str:
        if self.device_format is not None:
            return f"check that there is a camera at {self.location} and that you may read it"
        if self.is_file:
            return "check that the file is a complete video, or encode it again with ffmpeg"
        return "check the address, and that the server is up and sends video"


@dataclass(frozen=True)
class PresentationTable:
    """The presentation times of a whole file, read without decoding: what it takes to jump in it."""

    times: list[int]
    """Of all frames, ascending; empty if the file does not keep times."""
    keys: list[tuple[int, int]]
    """(presentation time, time to seek to) of the frames that are decoded without others, ascending."""

    @staticmethod
    def of(packets: Iterable[Packet[Any]]) -> PresentationTable:
        times, keys = [], []
        for packet in packets:
            if packet.is_discard or not packet.size:
                continue
            if packet.pts is None:
                return PresentationTable([], [])
            times.append(packet.pts)
            if packet.is_keyframe:
                # Containers seek by either clock; the earlier one never lands behind the frame.
                keys.append((packet.pts, packet.pts if packet.dts is None else min(packet.pts, packet.dts)))
        return PresentationTable(sorted(times), sorted(keys))

    def seek_time(self, index: int) -> int | None:
        """Where to start decoding so as to get frame `index`; None if there is no such place."""
        if index >= len(self.times):
            return None
        key = bisect_right(self.keys, self.times[index], key=lambda times: times[0])
        return self.keys[key - 1][1] if key else None


class PresentationOrder:
    """Numbers the pictures that a decoder gives.

    Packets come in the order of decoding, and each is for one frame at its presentation time. When a
    picture comes out while earlier times are still outstanding, those frames were lost. Only as many
    times are held as the decoder holds frames back.
    """

    def __init__(self, first: int, table: PresentationTable | None = None) -> None:
        """Decoding starts with frame `first`, or after a jump wherever the table has the first packet."""
        self._next = first
        self._table = table
        self._floor: int | None = None
        self._latest: int | None = None
        self._outstanding: list[int] = []
        self._has_times = True

    def expect(self, packet: Packet[Any]) -> None:
        """Takes note of a packet on its way to the decoder."""
        if packet.pts is None or not self._has_times:
            return
        if self._table is not None and self._floor is None:
            self._floor = packet.pts
            self._next = bisect_left(self._table.times, packet.pts)
        if self._floor is None or packet.pts >= self._floor:
            heappush(self._outstanding, packet.pts)

    def index(self, picture: VideoFrame) -> int:
        """The frame that a picture is; -1 if it precedes the place of the jump, where it is incomplete."""
        if picture.pts is not None and self._floor is not None and picture.pts < self._floor:
            return -1
        if picture.pts is not None and self._has_times:
            self._count_lost(picture.pts)
        self._next += 1
        return self._next - 1

    def end(self) -> int:
        """The number of frames of the video, once all its packets are through."""
        return self._next + len(self._outstanding)

    def _count_lost(self, pts: int) -> None:
        if self._latest is not None and pts < self._latest:
            # Some devices write times that run backwards; they tell nothing about what was lost.
            self._has_times = False
            self._outstanding.clear()
            return
        self._latest = pts
        while self._outstanding and self._outstanding[0] < pts:
            heappop(self._outstanding)
            self._next += 1
        if self._outstanding and self._outstanding[0] == pts:
            heappop(self._outstanding)


class LiveClock:
    """Puts the times of a live stream, which start over with each connection, on the wall clock."""

    def __init__(self) -> None:
        self._epoch_s: float | None = None

    def time_s(self, picture: VideoFrame) -> float:
        if picture.time is None:
            return time.time()
        if self._epoch_s is None:
            self._epoch_s = time.time() - picture.time
        return self._epoch_s + picture.time


class VideoSource(Source):
    """A video file, or a live stream: whatever is no file and has no known end."""

    def __init__(self, wanted: slice, video: VideoInput) -> None:
        super().__init__(video.uri, wanted, None)
        self._video = video
        self._table: PresentationTable | None = None
        self._cursor: Pictures | None = None
        self._cursor_next = 0
        container = video.open()
        stream = _video_stream(container)
        self._rate_hz = float(stream.average_rate or NOMINAL_RATE_HZ)
        self._facts = PhotoFacts(
            taken_s=None, focal=_focal({**container.metadata, **stream.metadata}, stream)
        )
        # The header's own count is an upper bound; the index has one entry a frame wherever there is a count.
        self._announced = sum(not entry.is_discard for entry in stream.index_entries) if stream.frames else 0
        if video.is_file and stream.frames:
            self._check_complete(stream)
        self.live = not video.is_file and container.duration is None
        self.seekable = not self.live
        self._waiting = container if self.live else None
        if not self.live:
            container.close()

    @property
    def num_frames(self) -> int | None:
        return bisect_left(self.wanted, self._announced) if self._announced else super().num_frames

    @property
    def files(self) -> Sequence[str]:
        return [self._video.location] if self._video.is_file else []

    def read(self, index: int) -> Frame:
        if not self.seekable:
            raise Anchor3RError(f"{self.uri} is live and frame {index} has passed; use a recording of it")
        if self._cursor is None or not self._cursor_next <= index <= self._cursor_next + NEAR_FRAMES:
            self._cursor = self._pictures(index)
        for position, picture in self._cursor:
            self._cursor_next = position + 1
            if position == index and picture is not None:
                return self._checked_frame(self._frame(index, picture, self._time_s(index, picture)))
            if position >= index:
                break
        self._cursor = None
        raise UndecodableFrameError(
            f"{self._describe(index)} is damaged or not there; "
            "check that it is still the source that the map was made from"
        )

    def close(self) -> None:
        self._cursor = None
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None

    def _stream(self, first: int, wanted: range) -> Generator[Frame, None, None]:
        clock = LiveClock()
        for index, picture in self._live_pictures(first) if self.live else self._pictures(wanted.start):
            passed = bisect_left(wanted, index)
            for lost in wanted[:passed]:
                self._skip(lost, "its data is damaged")
            wanted = wanted[passed:]
            if picture is not None and wanted and index == wanted[0]:
                timestamp_s = clock.time_s(picture) if self.live else self._time_s(index, picture)
                yield self._frame(index, picture, timestamp_s)
                wanted = wanted[1:]
            if not wanted:
                break

    def _live_pictures(self, first: int) -> Pictures:
        container, self._waiting = self._waiting or self._video.open(), None
        return self._decode(container, PresentationOrder(first))

    def _pictures(self, first: int) -> Pictures:
        """Pictures from `first` or somewhat before; jumps there if the file allows it."""
        table = self._read_table() if first else PresentationTable([], [])
        if 0 < len(table.times) <= first:
            yield len(table.times), None
            return
        seek_time = table.seek_time(first)
        if seek_time is not None:
            jumped = self._decode(self._video.open(), PresentationOrder(0, table), seek_time)
            index, picture = next(jumped)
            if picture is not None and index <= first:
                yield index, picture
                yield from jumped
                return
        yield from self._decode(self._video.open(), PresentationOrder(0))

    def _read_table(self) -> PresentationTable:
        if self._table is None:
            with self._video.open() as container, self._reading():
                self._table = PresentationTable.of(container.demux(_video_stream(container)))
        return self._table

    def _decode(
        self, container: InputContainer, order: PresentationOrder, seek_time: int | None = None
    ) -> Pictures:
        stream = _video_stream(container)
        with container, self._reading():
            if seek_time is not None:
                # A file that cannot seek plays from where it is, which its caller sees.
                with suppress(av.FFmpegError):
                    container.seek(seek_time, stream=stream)
            for packet in container.demux(stream):
                if packet.size and not packet.is_discard:
                    order.expect(packet)
                for picture in _decoded(packet):
                    index = order.index(picture)
                    if not picture.is_corrupt:
                        yield index, picture
            yield order.end(), None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (av.FFmpegError, IndexError) as error:  # PyAV: IndexError on a packet of no announced stream
            reason = without_secrets(str(error))  # FFmpeg names what it was opened with
            raise Anchor3RError(f"{self.uri} breaks off ({reason}); {self._video.remedy()}") from error

    def _frame(self, index: int, picture: VideoFrame, timestamp_s: float) -> Frame:
        quarter_turns = round(picture.rotation / 90)  # counter-clockwise
        image = np.ascontiguousarray(np.rot90(picture.to_ndarray(format="rgb24"), quarter_turns), np.uint8)
        camera = self._facts.camera(image.shape[1], image.shape[0])
        return Frame(
            index=index,
            timestamp_s=timestamp_s,
            image=image,
            intrinsics=camera,
            is_nominal=camera is not None,
        )

    def _time_s(self, index: int, picture: VideoFrame) -> float:
        return index / self._rate_hz if picture.time is None else picture.time

    def _check_complete(self, stream: VideoStream) -> None:
        size = os.path.getsize(self._video.location)
        num_packets = len(stream.index_entries)
        num_whole = sum(entry.pos + entry.size <= size for entry in stream.index_entries)
        if num_whole < min(num_packets, self.wanted.stop):
            raise Anchor3RError(
                f"{self.uri} is truncated: {num_whole} of its {num_packets} frames are there; "
                f"copy the file again, or take what there is with --stop {num_whole}"
            )


def _focal(told: dict[str, str], stream: VideoStream) -> float | None:
    """Focal length over the longer side of the pictures, by what the file tells of itself."""
    try:
        equivalent_mm = float(told[_EQUIVALENT_MM])
    except (KeyError, ValueError):
        return None
    codec = stream.codec_context
    if codec is None or not min(codec.width, codec.height):
        return None
    focal = focal_of_equivalent(equivalent_mm, codec.width, codec.height)
    return focal if PLAUSIBLE_FOCAL[0] <= focal <= PLAUSIBLE_FOCAL[1] else None


def _video_stream(container: InputContainer) -> VideoStream:
    stream = container.streams.best("video")
    assert isinstance(stream, VideoStream), "checked when it was opened"
    return stream


def _decoded(packet: Packet[Any]) -> list[VideoFrame]:
    """The pictures that a packet completes: none if it is damaged, which its order shows."""
    try:
        return packet.decode()
    except av.FFmpegError:
        return []
