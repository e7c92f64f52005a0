"""Priors that a user can name, made into what the pose graph takes: positions, distances, speeds, heights.

A map's world becomes metres, and where there are positions on the Earth, east, down and north around a datum.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geodesy import Datum
from anchor3r.io.files import replacing
from anchor3r.io.inputs import decoding, text_lines
from anchor3r.io.tables import read_numbered_table
from anchor3r.limits import LIMITS
from anchor3r.pipeline.directions import read_directions
from anchor3r.pipeline.distances import PointReader, Taped, distance_priors, insist_on_lengths
from anchor3r.pipeline.ground_heights import GroundHeights
from anchor3r.pipeline.placing import (
    CLOCK_REACH_S,
    MAX_INTERVAL_S,
    MetricFixes,
    PositionSettings,
    exchanged_coordinates,
)
from anchor3r.pipeline.surveyed import read_surveyed
from anchor3r.pose_graph.placement import Knowledge, MeasuredDrift, MovingClock, Placed
from anchor3r.pose_graph.priors import (
    Directions,
    Distances,
    Headings,
    Poses,
    Positions,
    PriorKind,
    Scales,
)
from anchor3r.sources.positions import read_fixes
from anchor3r.trajectory import Trajectory

Float = NDArray[np.float64]

PRIORS_CSV = "priors.csv"
_LEAST_POSITIONS = 4
"""Three fix a similarity; with a fourth one can see that one is wrong."""
_LOWEST_M, _HIGHEST_M = 1e-3, 100.0
"""Of a camera that sees the ground it moves along."""
_DOUBTED, _NAMED = 4.0, 3
"""Times that errors are larger than priors of a kind state, from which on a warning names so many of them."""
_OPEN_SCALE_SIGMA = 0.35
"""Of a log scale, from which on the map could be twice as large, or half, with a probability of 5 %."""
_NOT_SECONDS = 300.0
"""Times the length of a map, from which on times that have none in common with it may not be seconds."""
_LEAST_WAY = 3.0
"""How many standard deviations of a position the track has to be long."""


@dataclass(frozen=True, kw_only=True)
class PriorSettings(PositionSettings):
    """What is known of a map from elsewhere."""

    distance: tuple[Taped, ...] = ()
    """Frame, frame and the metres between the two camera positions, as taped. FRAME:u,v is the thing at a
    column and row of a frame's image instead of its camera. May be given several times."""
    distance_sigma: float = 0.01
    """Standard deviation of taped distances, as a part of them."""
    speed: str | None = None
    """Text file of times and speeds (s, m/s), as a vehicle tells them."""
    speed_sigma: float = 0.03
    """Standard deviation of speeds, as a part of them."""
    surveyed: str | None = None
    """Text file of cameras that were surveyed: frame x y z sigma, or frame x y z qx qy qz qw sigma, in metres
    with z up; the quaternion turns the camera's axes (right, down, ahead) into those."""
    directions: str | None = None
    """CSV of where down is, as an accelerometer tells it, and of headings by compass: columns time or frame;
    down_x, down_y, down_z (camera axes: right, down, ahead); heading (degrees from north); sigma,
    heading_sigma (degrees)."""
    camera_height: float | None = None
    """Metres between the camera and the ground that its vehicle drives on. The ground is looked for in the
    images along the whole drive, which bounds the drift of scale without any loop."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("distance_sigma", "speed_sigma"):
            if not LIMITS.least_sigma <= getattr(self, name) <= LIMITS.coordinate_m:
                raise Anchor3RError(
                    f"--{name.replace('_', '-')} must lie in {LIMITS.least_sigma:g} … "
                    f"{LIMITS.coordinate_m:g}, not {getattr(self, name)}"
                )
        if self.camera_height is not None and not _LOWEST_M <= self.camera_height < _HIGHEST_M:
            raise Anchor3RError(
                f"--camera-height has to be metres between {_LOWEST_M:g} and {_HIGHEST_M:g}, not "
                f"{self.camera_height}"
            )
        if self.gnss is not None and self.surveyed is not None:
            raise Anchor3RError("--gnss and --surveyed are positions in two frames; choose one of them")
        insist_on_lengths(self.distance)

    def __bool__(self) -> bool:
        given = (self.gnss, self.speed, self.surveyed, self.directions, self.camera_height)
        return bool(self.distance) or any(value is not None for value in given)


@dataclass(frozen=True, kw_only=True)
class MapKnowledge:
    """Priors on one map's frames, and what they are called."""

    known: Knowledge
    entries: list[list[str]]
    """by kind, (k,) what to call each prior"""
    datum: Datum | None
    """of positions on the Earth"""
    left_out: int = 0
    """positions at times at which no frame has a pose"""
    clock_stated_s: float = 0.0
    """the offset of the clock of positions from which its estimate began"""

    def summary(self, placed: Placed) -> dict[str, Any]:
        """What became of the priors (JSON)."""
        kinds = [
            {
                "kind": kind.name,
                "priors": len(kind.rows),
                "cut": int((~kept).sum()),
                "spread": float(np.sqrt(factor)),
                "contradicting": self._contradicting(index, placed),
                "worst_cut": self._worst_cut(index, placed),
            }
            for index, (kind, kept, factor) in enumerate(
                zip(self.known.kinds, placed.kept, placed.variance_factor, strict=True)
            )
        ]
        summary: dict[str, Any] = {
            "units": "units",
            "priors": kinds,
            "positions_left_out": self.left_out,
        }
        if any(not isinstance(kind, Directions | Headings) for kind in self.known.kinds):
            summary |= {"units": "m", "scale_sigma": placed.scale_sigma}
        if placed.drift is not None:
            summary["drift"] = placed.drift._asdict()
            summary["position_noise"] = self._position_noise(placed.drift)
        if self.datum is not None:
            summary["datum"] = self.datum.as_dict()
        if self.known.clock is not None:
            summary |= {
                "clock_stated_s": self.clock_stated_s,
                "clock_offset_s": self.clock_stated_s + placed.clock_offset_s,
                "clock_offset_sigma_s": placed.clock_sigma_s,
            }
        return summary

    def unplaced(self, refined: Trajectory) -> list[int]:
        """Components of more than a frame of the refined poses that nothing places, where others are."""
        kinds = [kind for kind in self.known.kinds if isinstance(kind, Positions | Poses)]
        if not kinds or refined.component is None:
            return []
        frames = np.concatenate([kind.rows.ravel() for kind in kinds])
        labels, counts = np.unique(refined.component, return_counts=True)
        placed = refined.component[np.isin(refined.frames, frames)]
        return [int(label) for label in np.setdiff1d(labels[counts > 1], placed)]

    def _contradicting(self, index: int, placed: Placed) -> list[str]:
        """The worst of a kind whose priors miss what is stated or assumed by far; none where they do not."""
        if placed.variance_factor[index] < _DOUBTED**2:
            return []
        return self._worst(index, placed, np.ones(len(self.entries[index]), bool))

    def _worst_cut(self, index: int, placed: Placed) -> list[str]:
        """The worst of those that were cut."""
        return self._worst(index, placed, ~placed.kept[index])

    def _worst(self, index: int, placed: Placed, which: NDArray[np.bool_]) -> list[str]:
        """What the worst of some priors (k,) of a kind are called; a line may have made several of them."""
        order = np.argsort(-placed.chi_square_excess[index], kind="stable")
        return list(dict.fromkeys(self.entries[index][k] for k in order if which[k]))[:_NAMED]

    def _position_noise(self, drift: MeasuredDrift) -> dict[str, float]:
        """Metres on each axis, in the mean: stated or assumed, and measured; and how long the slow takes."""
        positions = next(kind for kind in self.known.kinds if isinstance(kind, Positions))
        variance = float(np.trace(np.median(np.linalg.inv(positions.information), 0))) / 3
        white_m, slow_m = (float(np.sqrt(part * variance)) for part in (drift.white, drift.slow))
        return {
            "stated_m": float(np.sqrt(variance)),
            "white_m": white_m,
            "slow_m": slow_m,
            "slow_time_s": drift.slow_time_s,
        }

    def insist_on_scale(self, placed: Placed) -> None:
        """Refuses lengths that leave the scale open: such a map would be called metric and be none."""
        tells_lengths = any(not isinstance(kind, Directions | Headings) for kind in self.known.kinds)
        if not tells_lengths or placed.scale_sigma <= _OPEN_SCALE_SIGMA:
            return
        worst = [
            name
            for k in range(len(self.entries))
            for name in self._contradicting(k, placed) or self._worst_cut(k, placed)
        ]
        raise Anchor3RError(
            f"what is given leaves the scale of the map open (± {placed.scale_sigma:.0%}): positions tell it "
            "where the camera goes much farther than they are wrong by, distances where they agree with one "
            "another"
            + (f"; these contradict one another or the map: {', '.join(worst)}" if worst else "")
            + "; correct or add some"
        )

    def table(self, placed: Placed) -> list[dict[str, Any]]:
        """A row for each prior: what it is, its frames, whether it was kept, and its residual."""
        rows = []
        kinds = list(self.known.kinds)
        if self.known.clock is not None:
            kinds[self.known.clock.index] = self.known.clock.at(placed.clock_offset_s)
        for kind, names, kept, excess, residual in zip(
            kinds, self.entries, placed.kept, placed.chi_square_excess, placed.residual, strict=True
        ):
            for k, name in enumerate(names):
                rows.append(
                    {
                        "kind": kind.name,
                        "entry": name,
                        "frame": int(kind.rows[k, 0]),
                        "accepted": bool(kept[k]),
                        "reason": "the map fits it" if kept[k] else "the map contradicts it",
                        "residual": float(np.linalg.norm(residual[k])),
                        "excess": float(np.sqrt(excess[k])),
                    }
                )
        return rows


def gather(
    settings: PriorSettings,
    trajectory: Trajectory,
    frames: NDArray[np.int64],
    heights: GroundHeights | None = None,
    read_point: PointReader | None = None,
) -> MapKnowledge | None:
    """The priors on those frames of a trajectory that the graph has (ascending); None if there are none.

    heights: of the camera, as windows show it, if the settings know it. read_point: of the map, if they know
    distances.
    """
    if not settings:
        return None
    known = trajectory.select(np.isin(trajectory.frames, frames))
    kinds: list[PriorKind] = []
    entries: list[list[str]] = []
    datum, clock, left_out = None, None, 0
    if settings.gnss is not None:
        track = _Track.read(settings.gnss, settings, known)
        datum, left_out = track.datum, track.left_out
        if settings.is_offset_open:
            clock = MovingClock(at=track.at, index=len(kinds))
        kinds.append(track.at(0.0))
        entries.append(track.entries)
    for kind, names in _scale_kinds(settings, known, read_point):
        kinds.append(kind)
        entries.append(names)
    if settings.surveyed is not None:
        is_scale_known = bool(settings.distance) or settings.speed is not None or heights is not None
        for kind, names in read_surveyed(Path(settings.surveyed), known, is_scale_known=is_scale_known):
            kinds.append(kind)
            entries.append(names)
    if settings.directions is not None:
        for kind, names in read_directions(Path(settings.directions), known):
            kinds.append(kind)
            entries.append(names)
    if settings.camera_height is not None and heights is not None:
        kinds.append(_scales(settings.camera_height, heights))
        entries.append([f"height in frame {frame}" for frame in heights.frames])
    for kind, names in zip(kinds, entries, strict=True):
        _insist_on_sane(kind, names)
    return MapKnowledge(
        known=Knowledge(kinds=tuple(kinds), clock=clock), entries=entries, datum=datum, left_out=left_out,
        clock_stated_s=settings.stated_offset_s,
    )  # fmt: skip


def _insist_on_sane(kind: PriorKind, names: Sequence[str]) -> None:
    """Refuses lengths and standard deviations that nothing measures, and that cannot be computed with."""
    information = np.diagonal(kind.information, axis1=1, axis2=2)
    sane = (information >= LIMITS.coordinate_m**-2) & (information <= LIMITS.least_sigma**-2)
    good: NDArray[np.bool_] = np.asarray(sane.all(1))
    for name in ("position", "center", "length"):
        value = getattr(kind, name, None)
        if value is not None:
            good &= (np.abs(value.reshape(len(good), -1)) <= LIMITS.coordinate_m).all(1)
    if not good.all():
        raise Anchor3RError(
            f"{names[int(np.argmin(good))]} ({kind.name}) states what nothing measures: lengths and "
            f"positions may be up to {LIMITS.coordinate_m:g} m, standard deviations from "
            f"{LIMITS.least_sigma:g} on; correct it"
        )


def _scale_kinds(
    settings: PriorSettings, trajectory: Trajectory, read_point: PointReader | None
) -> Iterator[tuple[PriorKind, list[str]]]:
    """The kinds of priors that tell lengths alone."""
    if settings.distance:
        assert read_point is not None
        yield distance_priors(settings.distance, settings.distance_sigma, trajectory, read_point)
    if settings.speed is not None:
        yield _speeds(Path(settings.speed), settings.speed_sigma, trajectory)


def _speeds(path: Path, sigma: float, trajectory: Trajectory) -> tuple[Distances, list[str]]:
    """Distances between neighbouring frames, by the speed in their middle."""
    lines, table = read_numbered_table(path, 2)
    if not np.isfinite(table).all() or np.any(table[:, 1] < 0):
        raise Anchor3RError(f"{path}: times and speeds have to be numbers, speeds not negative; correct it")
    if np.any(np.diff(table[:, 0]) <= 0):
        raise Anchor3RError(f"{path}: times do not ascend; sort its lines")
    times = _times(trajectory, path)
    middle, interval = (times[1:] + times[:-1]) / 2, np.diff(times)
    inside = (middle >= table[0, 0]) & (middle <= table[-1, 0]) & (interval > 0)
    inside &= interval <= MAX_INTERVAL_S
    if trajectory.component is not None:
        inside &= np.diff(trajectory.component) == 0
    length = np.interp(middle, *table.T) * interval
    inside &= sigma * length >= LIMITS.least_sigma  # at rest nothing is told of the scale
    if not inside.any():
        raise Anchor3RError(
            f"{_no_common_time(path, table[[0, -1], 0], times)}; write times of the frames into the file"
        )
    at = np.flatnonzero(inside)
    rows = np.stack([trajectory.frames[at], trajectory.frames[at + 1]], 1)
    information = (sigma * length[at])[:, None, None] ** -2.0
    names = [f"line {lines[int(k)]}" for k in np.searchsorted(table[:, 0], middle[at])]
    return Distances(rows=rows, length=length[at], information=information), names


def _times(trajectory: Trajectory, path: Path) -> Float:
    if trajectory.timestamps_s is None:
        raise Anchor3RError(f"the map's frames have no times, so {path} cannot be related to them")
    return trajectory.timestamps_s


def _no_common_time(path: Path, span_s: Float, times: Float) -> str:
    return (
        f"{path} tells of times {span_s[0]:.3f} to {span_s[-1]:.3f} s, the map's frames are of "
        f"{times[0]:.3f} to {times[-1]:.3f} s: they have no time in common"
        + (", nor a similar length (milliseconds?)" if _NOT_SECONDS * np.ptp(times) < np.ptp(span_s) else "")
    )


@dataclass(frozen=True, kw_only=True)
class _Track:
    """Measured positions on the clock of a map's frames."""

    times_s: Float
    """(k,) of the positions, with the stated offset"""
    position: Float
    """(k, 3) metres, axes of the world"""
    information: Float
    """(k, 3, 3)"""
    is_spread_known: bool
    antenna: Float
    entries: list[str]
    datum: Datum | None
    left_out: int
    is_clock_open: bool
    """whether the clock is to be found"""
    trajectory: Trajectory

    @staticmethod
    def read(name: str, settings: PriorSettings, trajectory: Trajectory) -> _Track:
        path = Path(name)
        fixes = read_fixes(name)
        # Photographs may be in another order than that of their times.
        trajectory = trajectory.select(np.argsort(_times(trajectory, path), kind="stable"))
        times = _times(trajectory, path)
        moments = fixes.times_s + settings.stated_offset_s
        inside = (moments >= times[0]) & (moments <= times[-1])
        if not inside.any():
            raise Anchor3RError(
                f"{_no_common_time(path, moments, times)}; state the difference of the clocks with "
                f"--gnss-offset SECONDS ({times[0] - fixes.times_s[0]:.1f} if both begin at once)"
            )
        metric = MetricFixes.of(fixes, settings.gnss_sigma, inside)
        track = _Track(
            times_s=moments, position=metric.position,
            information=np.eye(3) * metric.sigma[:, None, :] ** -2.0,
            is_spread_known=metric.is_spread_known,
            antenna=np.array(settings.antenna), entries=fixes.entries, datum=metric.datum, left_out=0,
            is_clock_open=settings.is_offset_open, trajectory=trajectory,
        )  # fmt: skip
        usable = track._usable(0.0)
        if settings.is_offset_open:
            # So that the clock may be moved without losing its ends.
            usable &= (moments >= times[0] + CLOCK_REACH_S) & (moments <= times[-1] - CLOCK_REACH_S)
        usable = track._on_placeable(path, usable)
        track = replace(track.select(usable), left_out=int((~usable).sum()))
        track.insist_on_motion(path, metric.sigma[usable])
        center, down = track.path()
        said = exchanged_coordinates(fixes, np.flatnonzero(usable), center, down)
        if said is not None:
            raise Anchor3RError(f"{path}: {said}")
        return track

    def select(self, which: NDArray[np.bool_]) -> _Track:
        return replace(
            self,
            times_s=self.times_s[which],
            position=self.position[which],
            information=self.information[which],
            entries=[name for name, taken in zip(self.entries, which, strict=True) if taken],
        )

    def _on_placeable(self, path: Path, usable: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(k,) of usable positions (k,) those on components that have enough of them."""
        component, (before, _) = self.trajectory.component, self._bracket(0.0)
        if component is None:
            component = np.zeros(len(self.trajectory), np.int64)
        exact = self._exact(0.0)
        label = component[np.where(exact >= 0, exact, before)]
        enough = np.bincount(label[usable], minlength=component.max() + 1) >= _LEAST_POSITIONS
        if not enough.any():
            raise Anchor3RError(
                f"{path}: {int(usable.sum())} of its positions are at times at which frames of the map have "
                f"a pose; it takes {_LEAST_POSITIONS} on one component to place it"
            )
        return np.asarray(usable & enough[label])

    def insist_on_motion(self, path: Path, sigma: Float) -> None:
        extent = float(np.ptp(self.position, 0).max())
        if extent < _LEAST_WAY * float(np.median(sigma[:, 0])):
            raise Anchor3RError(
                f"{path}: its positions lie within {extent:.2g} m, which is their own error: they tell "
                "neither scale nor direction; take a recording in which the camera goes somewhere"
            )

    def _bracket(self, offset_s: float) -> tuple[NDArray[np.int64], Float]:
        """(k,) row of the frame before each moment, and (k,) seconds to the one after it."""
        times = _times(self.trajectory, Path())
        before = np.clip(np.searchsorted(times, self.times_s + offset_s, "right") - 1, 0, len(times) - 2)
        return before, times[before + 1] - times[before]

    def _usable(self, offset_s: float) -> NDArray[np.bool_]:
        """(k,) moments between two frames of one component that are not far apart, or of one of them."""
        return self._is_between(offset_s) | (self._exact(offset_s) >= 0)

    def _is_between(self, offset_s: float) -> NDArray[np.bool_]:
        times, component = _times(self.trajectory, Path()), self.trajectory.component
        before, interval = self._bracket(offset_s)
        moments = self.times_s + offset_s
        between = (moments >= times[0]) & (moments <= times[-1]) & (interval <= MAX_INTERVAL_S)
        if component is not None:
            between &= component[before] == component[before + 1]
        return np.asarray(between)

    def _exact(self, offset_s: float) -> NDArray[np.int64]:
        """(k,) row of the frame that was taken at each very moment, as a geotag is; -1 where none was."""
        times, moments = _times(self.trajectory, Path()), self.times_s + offset_s
        row = np.clip(np.searchsorted(times, moments), 0, len(times) - 1)
        return np.where(times[row] == moments, row, -1)

    def path(self) -> tuple[Float, Float]:
        """(k, 3) where the camera was at the moments, and (k, 3) where its own down was, in the map."""
        trajectory = self.trajectory
        before, interval = self._bracket(0.0)
        part = np.clip((self.times_s - _times(trajectory, Path())[before]) / np.maximum(interval, 1e-9), 0, 1)
        center = trajectory.center[before] + part[:, None] * (
            trajectory.center[before + 1] - trajectory.center[before]
        )
        return center, trajectory.rotation[before, 1]

    def at(self, offset_s: float) -> Positions:
        """The priors if the clock is moved on by a little."""
        times = _times(self.trajectory, Path())
        before, interval = self._bracket(offset_s)
        fraction = (self.times_s + offset_s - times[before]) / np.maximum(interval, 1e-9)
        exact = self._exact(offset_s)
        if self.is_clock_open:  # by how fast the camera is, which a frame and the next one tell
            exact = np.where(self._is_between(offset_s), -1, exact)
        first, second = (np.where(exact >= 0, exact, row) for row in (before, before + 1))
        return Positions(
            rows=np.stack([self.trajectory.frames[first], self.trajectory.frames[second]], 1),
            fraction=np.where(exact >= 0, 0.0, fraction),
            position=self.position,
            information=self.information,
            antenna_in_camera=self.antenna,
            velocity_per_way=1 / np.maximum(interval, 1e-9),
            moment_s=self.times_s + offset_s,
            is_spread_known=self.is_spread_known,
        )


def _scales(camera_height: float, heights: GroundHeights) -> Scales:
    """Priors on the scales of the windows in which the camera's height was measured."""
    return Scales(
        rows=heights.frames[:, None],
        log_scale=np.log(camera_height) - heights.log_height,
        information=heights.sigma[:, None, None] ** -2.0,
    )


def read_priors_csv(path: Path) -> list[dict[str, Any]]:
    """What `write_priors_csv` has written; nothing if it is gone."""
    if not path.is_file():
        return []
    numbers = ("residual", "excess")
    with decoding(str(path), "run anchor3r refine again"):
        return [
            row
            | {"accepted": row["accepted"] == "yes", "frame": int(row["frame"])}
            | {name: float(row[name]) for name in numbers}
            for row in csv.DictReader(line for _, line in text_lines(path))
        ]


def write_priors_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A table of what became of every prior."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow(
            row
            | {"accepted": "yes" if row["accepted"] else "no"}
            | {name: f"{row[name]:.6g}" for name in ("residual", "excess")}
        )
    with replacing(path) as file:
        file.write(text.getvalue().encode())
