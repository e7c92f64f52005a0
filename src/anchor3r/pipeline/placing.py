"""Measured positions of a camera, and a growing map that they place in metres and on the Earth.

The stream is asked every so many frames, counted, so that the same frames give the same placements, also
after a run was resumed. What is told is told as an event (`Update.placement`) and kept with the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geodesy import WORLD_FROM_LOCAL, Datum
from anchor3r.io.positions import PositionFixes
from anchor3r.limits import LIMITS
from anchor3r.pose_graph.correction import OnlineCorrection
from anchor3r.pose_graph.online_placement import (
    OnlinePlacement,
    OnlinePlacementConfig,
    PositionedPath,
    place_online,
)
from anchor3r.pose_graph.placement import is_on_a_line, robust_similarity
from anchor3r.snapshots import Arrays, from_arrays, to_arrays
from anchor3r.sources.positions import read_fixes
from anchor3r.trajectory import MIN_ALIGNED_POSES, FramePose, Trajectory

Float = NDArray[np.float64]
Int = NDArray[np.int64]

GNSS_SIGMA_M = 3.0
"""Standard deviation of positions that do not tell theirs; only its shape matters, its size is measured."""
CLOCK_REACH_S = 1.0
"""So far a clock that is estimated may be off from where the estimate begins."""
MAX_INTERVAL_S = 2.0
"""Frames farther apart do not tell where the camera was in between."""
_POLE_DEG = 90.0
_BETTER = 2.0
"""Times that positions fit a path better the other way round, to be taken for exchanged,"""
_MOST = 0.75  # of the positions, of which the others may be wrong
_FITTING = 0.25
"""if they are then off by no more than this part of their distance from their middle."""
_WAITING = 1000
"""Frames without a pose whose times are remembered, as a later window may give them one."""


@dataclass(frozen=True, kw_only=True)
class PositionSettings:
    """Measured positions of the camera."""

    gnss: str | None = None
    """Measured positions: .gpx, .nmea, .csv (time, latitude, longitude, altitude, sigma; or time, x, y, z in
    metres), .srt of a drone, .mp4 of a GoPro, a recording with NavSatFix messages (FILE?topic=NAME if there
    are several), a folder of images with geotags, or an oxts folder of KITTI. The map becomes metric and
    georeferenced."""
    gnss_offset: float | str = 0.0
    """Seconds to add to the times of positions so that they are those of the frames. In a finished map auto
    estimates them, and auto:SECONDS from such on that are right to a second, as of a video and a clock."""
    gnss_sigma: float | None = None
    """Standard deviation of positions in metres, in place of what the file says."""
    antenna: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Where the antenna is: metres to the right of, below and in front of the camera."""

    def __post_init__(self) -> None:
        if self.gnss_sigma is not None and not LIMITS.least_sigma <= self.gnss_sigma <= LIMITS.coordinate_m:
            raise Anchor3RError(
                f"--gnss-sigma must lie in {LIMITS.least_sigma:g} … {LIMITS.coordinate_m:g}, not "
                f"{self.gnss_sigma}"
            )
        if not np.isfinite(self.antenna).all():
            raise Anchor3RError(f"--antenna has to be three numbers, not {self.antenna}")
        if not np.isfinite(self.stated_offset_s):
            raise Anchor3RError(
                f"--gnss-offset has to be seconds, auto or auto:SECONDS, not {self.gnss_offset}"
            )

    @property
    def is_offset_open(self) -> bool:
        """Whether the offset of the clock is to be estimated."""
        return isinstance(self.gnss_offset, str) and self.gnss_offset.partition(":")[0] == "auto"

    @property
    def stated_offset_s(self) -> float:
        """Where the estimate begins, or the offset itself; not a number if it is none."""
        text = str(self.gnss_offset).removeprefix("auto:") if self.is_offset_open else self.gnss_offset
        try:
            return 0.0 if text == "auto" else float(text)
        except ValueError:
            return float("nan")


@dataclass(frozen=True, kw_only=True)
class MetricFixes:
    """Positions in metres, world axes."""

    datum: Datum | None
    """of positions on the Earth"""
    position: Float
    """(k, 3)"""
    sigma: Float
    """(k, 3) along the world's axes"""
    is_spread_known: bool
    """whether the standard deviations were stated"""

    @staticmethod
    def of(fixes: PositionFixes, sigma_m: float | None, inside: NDArray[np.bool_]) -> MetricFixes:
        """Around the first of the positions inside (k,). sigma_m: in place of what the file says."""
        datum, local = None, fixes.position
        if not fixes.is_local:
            latitude, longitude, altitude = fixes.position[np.flatnonzero(inside)[0]].tolist()
            datum = Datum(latitude_deg=latitude, longitude_deg=longitude, altitude_m=altitude)
            local = datum.to_local(fixes.position)
        sigma = fixes.sigma_m if sigma_m is None else np.full((len(fixes), 3), sigma_m)
        is_known = bool(np.isfinite(sigma[inside]).all())
        sigma = np.where(np.isfinite(sigma), sigma, GNSS_SIGMA_M)
        return MetricFixes(
            datum=datum,
            position=local @ WORLD_FROM_LOCAL.T,
            sigma=sigma @ np.abs(WORLD_FROM_LOCAL).T,
            is_spread_known=is_known,
        )


def exchanged_coordinates(fixes: PositionFixes, chosen: Int, center: Float, down: Float) -> str | None:
    """What to say if latitude and longitude of positions on the Earth were given the wrong way round.

    chosen: (k,) positions, at which the camera was at center (k, 3) with down (k, 3) in the map. The other
    way round a path is its mirror image, and stretched by the cosine of the latitude. No similarity makes up
    for the stretch; the mirror image of a level path fits it with the cameras upside down.
    """
    geodetic = fixes.position[chosen]
    if fixes.is_local or len(chosen) < MIN_ALIGNED_POSES or np.abs(geodetic[:, 1]).max() > _POLE_DEG:
        return None
    misfit, is_upright = [], []
    for places in (geodetic, geodetic[:, [1, 0, 2]]):
        latitude, longitude, altitude = places[0].tolist()
        datum = Datum(latitude_deg=latitude, longitude_deg=longitude, altitude_m=altitude)
        target = datum.to_local(places) @ WORLD_FROM_LOCAL.T
        found, near = robust_similarity(center, target, right=_MOST)
        extent = float(np.median(np.linalg.norm(target - np.median(target, 0), axis=1)))
        misfit.append(float(np.quantile(np.linalg.norm(found.apply(center) - target, axis=1), _MOST)))
        is_upright.append(float((down @ np.asarray(found.rotation).T)[:, 1].mean()) > 0)
    given, exchanged = misfit
    is_mirrored = is_upright == [False, True] and given * _BETTER > exchanged
    is_mirrored &= not is_on_a_line(target[near])  # about which a path may turn
    if not (given > _BETTER * exchanged or is_mirrored) or exchanged > _FITTING * extent:
        return None
    return (
        "latitude and longitude seem to be exchanged: the other way round "
        f"{fixes.entries[int(chosen[0])]} to {fixes.entries[int(chosen[-1])]} lie {exchanged:.3g} m off the "
        f"camera's path instead of {given:.3g} ({_MOST:.0%} of them at most)"
        + (", and the camera is not upside down" if is_mirrored else "")
        + "; exchange the two columns"
    )


@dataclass
class _Poses:
    """Poses of frames, or of moments between them, as rows; k of them."""

    frame: NDArray[np.int64]
    """(k,) the frame at or before"""
    time_s: Float
    """(k,)"""
    odometry_component: NDArray[np.int64]
    """(k,) and the pose by windows alone, which loops will correct"""
    odometry_rotation: Float
    odometry_center: Float
    component: NDArray[np.int64]
    """(k,) and the pose as it was told last"""
    rotation: Float
    center: Float

    @staticmethod
    def none() -> _Poses:
        count, turns, places = np.zeros(0, np.int64), np.zeros((0, 3, 3)), np.zeros((0, 3))
        return _Poses(count, np.zeros(0), count, turns, places, count, turns, places)

    @staticmethod
    def of(pose: FramePose, told: FramePose, time_s: float) -> _Poses:
        return _Poses(
            np.array([pose.frame]), np.array([time_s]),
            np.array([pose.component]), pose.rotation[None], pose.center[None],
            np.array([told.component]), told.rotation[None], told.center[None],
        )  # fmt: skip

    def select(self, which: Any) -> _Poses:
        return _Poses(*(column[which] for column in vars(self).values()))

    def with_more(self, more: _Poses) -> _Poses:
        columns = zip(vars(self).values(), vars(more).values(), strict=True)
        return _Poses(*(np.concatenate(pair) for pair in columns))

    def between(self, after: _Poses, moments: Float) -> _Poses:
        """At moments (m,) between two single poses; which way the camera looks is that of the former."""
        part = ((moments - self.time_s) / (after.time_s - self.time_s))[:, None]
        found = self.select(np.zeros(len(moments), np.int64))
        found.time_s = moments
        found.odometry_center = (1 - part) * self.odometry_center + part * after.odometry_center
        found.center = (1 - part) * self.center + part * after.center
        return found

    def corrected(self, correction: OnlineCorrection) -> _Poses:
        """Told anew where loops were closed."""
        moved = correction.apply(
            Trajectory(
                frames=self.frame,
                rotation=self.odometry_rotation,
                center=self.odometry_center,
                component=self.odometry_component,
                log_scale=np.zeros(len(self.frame)),
            )
        )
        assert moved.component is not None
        odometry = self.odometry_component, self.odometry_rotation, self.odometry_center
        return _Poses(self.frame, self.time_s, *odometry, moved.component, moved.rotation, moved.center)


@dataclass
class _State:
    """What a stream has seen of its positions."""

    last: _Poses = field(default_factory=_Poses.none)
    """The newest frame with a pose."""
    path: _Poses = field(default_factory=_Poses.none)
    """Where the camera was at the moments of positions,"""
    fix: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(k,) and which positions these are."""
    waiting: dict[int, float] = field(default_factory=dict)
    """Times of frames without a pose."""
    first_s: float | None = None
    """Time of the first frame."""
    num_frames: int = 0
    num_at_times: int = 0
    """Positions at times at which frames have a pose; those that were dropped too."""
    thinning: int = 1
    """One position out of so many is kept."""
    looked_at: int = 0
    """`num_at_times` at the last look."""
    told: dict[int, OnlinePlacement] = field(default_factory=dict)
    """By component what was told last."""
    newest: OnlinePlacement | None = None
    """The last look, whether it was told or not."""
    exchanged: str | None = None
    """That latitude and longitude are exchanged, so that nothing is told."""


class OnlinePlacer:
    """Places a growing map by positions whose times are those of its frames."""

    def __init__(self, settings: PositionSettings, config: OnlinePlacementConfig | None = None) -> None:
        if settings.is_offset_open:
            raise Anchor3RError(
                "--gnss-offset auto estimates the offset in a finished map, with anchor3r refine; while a "
                "map grows it has to be stated in seconds"
            )
        self._settings, self._config = settings, config or OnlinePlacementConfig()
        assert settings.gnss is not None
        self._fixes = read_fixes(settings.gnss)
        self._moment_s = self._fixes.times_s + settings.stated_offset_s
        self._metric: MetricFixes | None = None
        self._state = _State()

    def observe(
        self,
        time_s: float,
        frame: int,
        poses: Sequence[FramePose],
        told: Sequence[FramePose],
        correction: OnlineCorrection | None,
    ) -> OnlinePlacement | None:
        """Takes a frame's own pose and those of earlier ones, by windows alone and as they are told.

        Returns where the map is placed from now on, if that is news. correction: loops that were just closed.
        """
        state = self._state
        if state.first_s is None:
            state.first_s = time_s
        state.num_frames += 1
        state.waiting[frame] = time_s
        if correction is not None:
            self._correct(correction)
        for pose, as_told in sorted(zip(poses, told, strict=True), key=lambda pair: pair[0].frame):
            if pose.frame in state.waiting:
                self._follow(_Poses.of(pose, as_told, state.waiting.pop(pose.frame)))
        while len(state.waiting) > _WAITING:
            state.waiting.pop(min(state.waiting))
        is_due = state.num_frames % self._config.interval == 0 and state.num_at_times > state.looked_at
        return self._look() if is_due or (correction is not None and state.told) else None

    def amend(self, correction: OnlineCorrection) -> OnlinePlacement | None:
        """Takes loops closed after the last frame; where the map is placed then, if that is news."""
        self._correct(correction)
        return self._look() if self._state.told else None

    def snapshot(self) -> Arrays:
        """What `restore` goes on from."""
        return to_arrays(self._state)

    def restore(self, arrays: Arrays) -> None:
        """Puts back what `snapshot` gave."""
        self._state = from_arrays(_State, arrays)

    def lack(self) -> str | None:
        """Why the newest component is not placed; None if it is."""
        state = self._state
        if len(state.last.frame) and int(state.last.component[0]) in state.told:
            return None
        if not state.num_at_times:
            return (
                f"none of the {len(self._fixes)} positions of {self._settings.gnss} is of a time at which a "
                f"frame has a pose (theirs are {self._moment_s[0]:.3f} to {self._moment_s[-1]:.3f} s): state "
                "the difference of the clocks with --gnss-offset SECONDS"
            )
        if state.exchanged is not None:
            return f"{self._settings.gnss}: {state.exchanged}"
        if state.newest is None:
            return (
                f"it takes {self._config.least_positions} positions at times at which frames have a pose, "
                "and a way between them"
            )
        return (
            f"{state.newest.positions} positions tell its scale to {state.newest.scale_sigma:.1%} and its "
            f"heading to {state.newest.heading_sigma_deg:.1f}° only: the camera has to go farther"
        )

    def _correct(self, correction: OnlineCorrection) -> None:
        state = self._state
        state.path, state.last = state.path.corrected(correction), state.last.corrected(correction)

    def _follow(self, pose: _Poses) -> None:
        """Takes the positions between the newest pose and this one, and those of its very moment."""
        state, before = self._state, self._state.last
        state.last, found = pose, []
        waited = pose.time_s[0] - before.time_s[0] if len(before.frame) else -1.0
        if 0 < waited <= MAX_INTERVAL_S and before.component[0] == pose.component[0]:
            low = int(np.searchsorted(self._moment_s, before.time_s[0], "right"))
            between = np.arange(low, np.searchsorted(self._moment_s, pose.time_s[0], "left"))
            found.append((before.between(pose, self._moment_s[between]), between))
        at = np.flatnonzero(self._moment_s == pose.time_s[0])
        found.append((pose.select(np.zeros(len(at), np.int64)), at))
        for poses, fixes in found:
            state.num_at_times += len(fixes)
            kept = fixes % state.thinning == 0
            state.path = state.path.with_more(poses.select(kept))
            state.fix = np.concatenate([state.fix, fixes[kept]])
        while len(state.fix) > self._config.max_positions:
            state.thinning *= 2
            kept = state.fix % state.thinning == 0
            state.path, state.fix = state.path.select(kept), state.fix[kept]

    def _look(self) -> OnlinePlacement | None:
        """Fits the newest component to its positions, and returns that if it is to be told."""
        state, component = self._state, int(self._state.last.component[0])
        state.looked_at = state.num_at_times
        own = state.path.component == component
        path, metric = state.path.select(own), self._metric_fixes()
        fix = state.fix[own]
        placement = state.newest = place_online(
            PositionedPath(path.center, path.rotation, metric.position[fix], metric.sigma[fix], path.time_s),
            component,
            is_spread_known=metric.is_spread_known,
            antenna_in_camera=np.array(self._settings.antenna),
            datum=metric.datum,
            config=self._config,
        )
        if placement is None or not placement.is_determined(self._config):
            return None
        told = state.told.get(component)
        if told is None:
            down = path.rotation[:, 1]
            state.exchanged = exchanged_coordinates(self._fixes, fix, path.center, down)
            if state.exchanged is not None:
                return None
        if told is not None and not placement.is_news_after(told):
            return None
        state.told[component] = placement
        return placement

    def _metric_fixes(self) -> MetricFixes:
        """Around the first position that comes after the first frame."""
        if self._metric is None:
            assert self._state.first_s is not None
            inside = self._moment_s >= self._state.first_s
            self._metric = MetricFixes.of(self._fixes, self._settings.gnss_sigma, inside)
        return self._metric
