"""Which frame of a video a decoded picture is, in the order of display and with gaps where one was lost."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from av.packet import Packet
from av.video.frame import VideoFrame


@dataclass(frozen=True)
class PresentationTable:
    """The presentation times of a whole file, read without decoding: what it takes to jump in it."""

    times: list[int]
    """Of all frames, ascending; empty if the file does not keep times."""
    keys: list[tuple[int, int]]
    """(presentation time, time to seek to) of the frames that are decoded without others, ascending."""

    @staticmethod
    def of(packets: Iterable[Packet]) -> PresentationTable:
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

    def expect(self, packet: Packet) -> None:
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
