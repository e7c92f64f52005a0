"""Poses that were measured beside the images, at other times: what they are at the time of an image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, so3_exp, so3_log

MAX_GAP_S = 0.25
"""Between two poses nothing is known if they are further apart: 4 Hz is what slow reference systems give."""


@dataclass(frozen=True)
class TimedPoses:
    """Where a camera was, n >= 1 times."""

    times_s: NDArray[np.float64]
    """(n,) strictly ascending"""
    world_from_camera: SE3
    """(n,)"""

    @staticmethod
    def of(times_s: NDArray[np.float64], world_from_camera: SE3) -> TimedPoses:
        """Sorts them; of poses with one time the first is kept."""
        times_s, first = np.unique(times_s, return_index=True)
        return TimedPoses(times_s, world_from_camera[first])

    def camera_from_world_at(self, time_s: float) -> SE3 | None:
        """Between its two neighbours along the straight line, at constant turn; None outside or in a gap."""
        after = int(np.searchsorted(self.times_s, time_s))
        if after < len(self.times_s) and self.times_s[after] == time_s:
            return self.world_from_camera[after].inverse()
        if not 0 < after < len(self.times_s):
            return None
        begin_s, end_s = self.times_s[after - 1], self.times_s[after]
        if end_s - begin_s > MAX_GAP_S:
            return None
        part = (time_s - begin_s) / (end_s - begin_s)
        begin, end = self.world_from_camera[after - 1], self.world_from_camera[after]
        turn = so3_log(begin.rotation.T @ end.rotation)
        rotation = begin.rotation @ so3_exp(part * turn)
        position = begin.translation + part * (end.translation - begin.translation)
        return SE3(rotation, position).inverse()
