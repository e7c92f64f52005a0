"""Which loop events to believe, decided before anything is solved with them.

A false loop agrees with itself, so its own edges do not give it away. Two things do. Where a street is driven
again, neighbouring events tell of the same correction to the odometry; one that tells of another is alone.
And events that others support, solved together on a coarse graph, predict what every remaining event should
have measured, as precisely as odometry allows over the way to the nearest believed event. An event is
believed or cut as a whole, and every verdict comes with the figures that led to it.

Shapes: n frames (rows), m edges, k events, c nodes of the coarse graph.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, rotation_angle
from anchor3r.kernels import kernel
from anchor3r.pose_graph.coarse import Claims, CoarseGraph, Sigmas, close_loops, make_coarse_graph
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.linalg import so3
from anchor3r.pose_graph.noise import NoiseModel
from anchor3r.pose_graph.pose_system import PoseEdges, PoseState
from anchor3r.pose_graph.topology import Topology, topology_of

Float = NDArray[np.floating]
Int = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class EventConfig:
    """How much disagreement an honest measurement may show."""

    rotation_drift_rad: float = float(np.radians(0.02))
    """Odometry turns wrongly by up to this a frame, in the long run."""
    translation_drift: float = 0.02
    """Odometry's way is wrong by up to this part of its length, in the long run."""
    tolerance: float = 4.0
    """Disagreement beyond so many times what is expected is a contradiction."""
    neighbour_frames: int = 50
    """Events whose anchors and whose members are at most so far apart tell of the same correction."""
    coarse_frames: int = 10
    """Frames that a node of the coarse graph stands for."""

    def __post_init__(self) -> None:
        if not (min(self.rotation_drift_rad, self.translation_drift) >= 0 and self.tolerance > 0):
            raise ValueError(f"drift must not be negative, tolerance positive: {self}")
        if self.neighbour_frames < 0 or self.coarse_frames < 1:
            raise ValueError(f"neighbour_frames must not be negative, coarse_frames at least 1: {self}")


_DEFAULT = EventConfig()
_NOBODY: Int = np.empty(0, np.int64)
_LEAST_NOISE = np.array([np.radians(0.01), 1e-3])  # of a graph that is exact, or has no windows
_ROT, _TRA = slice(0, 3), slice(3, 6)  # of an information matrix
_SPREAD = 2.5  # length of the difference of two 3-vectors of unit Gaussians, as a standard deviation


class Reason(StrEnum):
    """Why an event was believed or cut."""

    SUPPORTED = "neighbouring events and the map agree"
    FITS = "no neighbour, but the map agrees"
    SCATTERED = "its own edges disagree"
    CONTRADICTED = "the map contradicts it"
    VOUCHED = "somebody vouches for it"


@dataclass(frozen=True)
class EventVerdict:
    """The verdict on one loop event."""

    group: int
    anchor: int
    """frame"""
    match: int
    """frame in the middle of its members"""
    accepted: bool
    reason: Reason
    num_edges: int
    num_agreeing: int
    """edges of the event that agree with each other"""
    supporters: int
    """neighbouring events that tell of the same correction"""
    opponents: int
    """neighbouring events that tell of another"""
    rotation_error_deg: float
    """between the event and the map"""
    translation_error: float
    """between the event and the map, in the map's scale"""
    excess: float
    """the error over what is allowed; at most 1 if accepted"""


@dataclass(frozen=True)
class EventVerdicts:
    """All verdicts in columns, by group; k events."""

    group: Int
    anchor: Int
    match: Int
    accepted: NDArray[np.bool_]
    reason: NDArray[np.int8]
    """(k,) place in list(Reason)"""
    num_edges: Int
    num_agreeing: Int
    supporters: Int
    opponents: Int
    rotation_error_deg: Float
    translation_error: Float
    excess: Float

    def __len__(self) -> int:
        return len(self.group)

    def __getitem__(self, k: int) -> EventVerdict:
        reason = list(Reason)[self.reason[k]]
        columns = {f.name: getattr(self, f.name)[k].item() for f in fields(self)}
        return EventVerdict(**(columns | {"reason": reason}))

    def rejected_groups(self) -> Int:
        return self.group[~self.accepted]

    def without(self, groups: Int) -> EventVerdicts:
        """The same, with some more groups cut because the refined map contradicts them."""
        cut = np.isin(self.group, groups)
        return replace(
            self,
            accepted=self.accepted & ~cut,
            reason=np.where(cut, np.int8(_place(Reason.CONTRADICTED)), self.reason),
        )


class _Events(NamedTuple):
    """Loop events condensed: where each puts its anchor, in the world of the odometry."""

    group: Int
    """(k,)"""
    num_edges: Int
    anchor: Int
    """(k,) row"""
    match: Int
    """(k,) row in the middle of the members"""
    length: Float
    """(k,) median length of the edges"""
    pose: SE3
    """(k,) camera_from_world of the anchor"""
    agreeing: Int
    """(k,) edges that tell of this pose"""


def judge_events(
    edges: Edges,
    odometry: SE3,
    config: EventConfig = _DEFAULT,
    *,
    topology: Topology | None = None,
    vouched: Int = _NOBODY,
) -> tuple[EventVerdicts, SE3]:
    """Verdicts on all loop events, and poses (n,) of all frames that close the believed loops.

    odometry: camera_from_world of the frames, as windows alone have it (drift does not matter).
    vouched: groups that are believed whatever the others say.
    """
    topology = topology or topology_of(edges)
    noise = _with_scale_spread(_window_noise(edges, topology, odometry), edges)
    events = _condense(edges, topology, odometry, noise, config)
    supporters, opponents = _support(events, odometry, noise, config)
    is_sound = 3 * events.agreeing > events.num_edges
    coarse = _CoarseComparison(
        events, odometry, make_coarse_graph(edges, topology, config.coarse_frames), noise, config
    )

    is_vouched = np.isin(events.group, vouched)
    trusted = is_vouched | is_sound & (supporters > opponents)
    poses, errors, allowed = coarse.compare(trusted, coarse.expected)
    accepted = is_vouched | is_sound & _within(errors, allowed)
    # Lone events that only their long way from the others excuses have not been solved with yet.
    if np.any(accepted & ~trusted & ~_within(errors, _times(coarse.expected, config.tolerance))):
        poses, errors, allowed = coarse.compare(accepted, _times(allowed, 1 / config.tolerance))
        accepted = is_vouched | is_sound & _within(errors, allowed)
    excess = np.maximum(errors.rotation_rad / allowed.rotation_rad, errors.distance / allowed.distance)
    reasons = np.select(
        [is_vouched, ~is_sound, ~accepted, supporters > opponents],
        [_place(r) for r in (Reason.VOUCHED, Reason.SCATTERED, Reason.CONTRADICTED, Reason.SUPPORTED)],
        _place(Reason.FITS),
    )
    frames = topology.frames
    return EventVerdicts(
        events.group, frames[events.anchor], frames[events.match], accepted, reasons.astype(np.int8),
        events.num_edges, events.agreeing, supporters, opponents,
        np.degrees(errors.rotation_rad), errors.distance, excess,
    ), poses  # fmt: skip


def _place(reason: Reason) -> int:
    return list(Reason).index(reason)


def _window_noise(edges: Edges, topology: Topology, odometry: SE3) -> Sigmas:
    """Standard deviations of a window edge: rotation about an axis, translation along one over its length.

    As odometry misses the windows or as their information matrices promise, whichever is more: a chain
    without redundancy fits its odometry exactly.
    """
    windows = np.flatnonzero((edges.weight > 0) & (edges.kind == EdgeKind.WINDOW))
    noise = _LEAST_NOISE
    if len(windows):
        used = np.zeros(len(edges), bool)
        used[windows] = True
        model = NoiseModel(edges, PoseEdges(topology.i, topology.t, edges.rotation, edges.translation), used)
        model.measure(PoseState.of(odometry))
        noise = np.maximum(noise, [model.rotation_rad[EdgeKind.WINDOW], model.translation[EdgeKind.WINDOW]])
    known = windows[np.isfinite(edges.information[windows, 0, 0])]
    if len(known):
        information = np.einsum("mkk->mk", edges.information[known]) * edges.weight[known, None]
        length = np.linalg.norm(edges.translation[known], axis=-1)
        rotation, translation = (
            np.maximum(information[:, part].mean(1), 1e-300) ** -0.5 for part in (_ROT, _TRA)
        )
        relative = translation / np.maximum(length, max(0.1 * float(np.median(length)), 1e-300))
        noise = np.maximum(noise, [np.median(rotation), np.median(relative)])
    return Sigmas(*noise)


def _with_scale_spread(noise: Sigmas, edges: Edges) -> Sigmas:
    """The noise, at least the spread with which loops know their scale: positions cannot be better."""
    told = edges.log_scale_sigma[(edges.kind == EdgeKind.LOOP) & (edges.log_scale_sigma > 0)]
    return noise if not len(told) else noise._replace(distance=np.maximum(noise.distance, np.median(told)))


def _condense(edges: Edges, topology: Topology, odometry: SE3, noise: Sigmas, config: EventConfig) -> _Events:
    loops = np.flatnonzero((edges.kind == EdgeKind.LOOP) & (edges.weight > 0))
    loops = loops[np.argsort(edges.group[loops], kind="stable")]
    group, start = np.unique(edges.group[loops], return_index=True)
    start = np.append(start, len(loops))
    member, anchor = topology.i[loops], topology.t[loops]
    seen = odometry[member]
    votes = SE3(edges.rotation[loops], edges.translation[loops]).inverse() @ seen
    length = np.linalg.norm(edges.translation[loops], axis=-1)
    k = len(group)
    rotation, center = np.empty((k, 3, 3)), np.empty((k, 3))
    agreeing, middle, median_length = np.empty(k, np.int64), np.empty(k, np.int64), np.empty(k)
    max_angle, max_relative = (_SPREAD * config.tolerance * float(sigma) for sigma in noise)
    _agree(
        start, np.ascontiguousarray(votes.rotation), votes.center(), length, member, max_angle, max_relative,
        rotation, center, agreeing, middle, median_length,
    )  # fmt: skip
    pose = SE3.from_center(rotation, center)
    return _Events(group, np.diff(start), anchor[start[:-1]], middle, median_length, pose, agreeing)


@kernel
def _agree(
    start: Int, vote_rotation: Float, vote_center: Float, length: Float, member: Int,
    max_angle: float, max_relative: float,
    rotation: Float, center: Float, agreeing: Int, middle: Int, median_length: Float,
) -> None:  # fmt: skip
    """The mean of the largest set of votes around one vote, for each event."""
    for k in range(len(start) - 1):
        first, end = start[k], start[k + 1]
        middle[k] = np.sort(member[first:end])[(end - first) // 2]
        median_length[k] = np.median(length[first:end])
        best, most = first, 0
        for pivot in range(first, end):
            count = 0
            for e in range(first, end):
                count += _are_close(
                    vote_rotation, vote_center, pivot, e, max_angle, max_relative * length[pivot]
                )
            if count > most:
                best, most = pivot, count
        base = so3.load33(vote_rotation[best])
        turn, place = np.zeros(3), np.zeros(3)
        for e in range(first, end):
            if _are_close(vote_rotation, vote_center, best, e, max_angle, max_relative * length[best]):
                r = so3.log(so3.mul_nt(so3.load33(vote_rotation[e]), base))
                for axis in range(3):
                    turn[axis] += r[axis] / most
                    place[axis] += vote_center[e, axis] / most
        so3.store33(rotation[k], so3.mul(so3.exp(so3.load3(turn)), base))
        center[k], agreeing[k] = place, most


@kernel
def _are_close(rotation: Float, center: Float, a: int, b: int, max_angle: float, max_distance: float) -> bool:
    if so3.norm_sq(so3.load3(center[a] - center[b])) > max_distance**2:
        return False
    return so3.norm_sq(so3.log(so3.mul_nt(so3.load33(rotation[a]), so3.load33(rotation[b])))) <= max_angle**2


def _support(
    events: _Events, odometry: SE3, noise: Sigmas, config: EventConfig
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(k,) neighbouring events that tell of the same correction, and of another."""
    supporters, opponents = np.zeros(len(events.group), np.int64), np.zeros(len(events.group), np.int64)
    # What an event does to the odometry around its anchor: x -> turn (x - from) + to.
    turn = np.swapaxes(events.pose.rotation, -1, -2) @ odometry.rotation[events.anchor]
    center = odometry.center()
    way = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(center, axis=0), axis=-1))])
    _count_neighbours(
        np.argsort(events.anchor, kind="stable"), events.anchor, events.match, events.length, turn,
        center[events.anchor], events.pose.center(), way, config.neighbour_frames, config.tolerance,
        float(noise.rotation_rad), float(noise.distance), supporters, opponents,
    )  # fmt: skip
    return supporters, opponents


@kernel
def _count_neighbours(
    order: Int, anchor: Int, match: Int, length: Float, turn: Float, before: Float, after: Float, way: Float,
    reach: int, tolerance: float, rotation_noise: float, translation_noise: float,
    supporters: Int, opponents: Int,
) -> None:  # fmt: skip
    for first in range(len(order)):
        g = order[first]
        for second in range(first + 1, len(order)):
            h = order[second]
            if anchor[h] - anchor[g] > reach:
                break
            if abs(match[h] - match[g]) > reach:
                continue
            frames = anchor[h] - anchor[g] + abs(match[h] - match[g])
            metres = way[anchor[h]] - way[anchor[g]] + abs(way[match[h]] - way[match[g]])
            angle = tolerance * rotation_noise * (2 + 0.5 * np.sqrt(frames))
            distance = tolerance * translation_noise * (length[g] + length[h] + metres) + angle * metres
            turn_g = so3.load33(turn[g])
            moved = so3.apply(turn_g, so3.load3(before[h] - before[g]))
            gap = so3.load3(after[g] - after[h])
            gap = (gap[0] + moved[0], gap[1] + moved[1], gap[2] + moved[2])
            turned = so3.log(so3.mul_tn(turn_g, so3.load33(turn[h])))
            if so3.norm_sq(gap) <= distance**2 and so3.norm_sq(turned) <= angle**2:
                supporters[g] += 1
                supporters[h] += 1
            else:
                opponents[g] += 1
                opponents[h] += 1


class _CoarseComparison:
    """Solves the coarse graph with some of the events and compares all of them with the result."""

    def __init__(
        self, events: _Events, odometry: SE3, coarse: CoarseGraph, noise: Sigmas, config: EventConfig
    ) -> None:
        self._events, self._odometry, self._coarse, self._config = events, odometry, coarse, config
        self._noise = noise
        center = odometry.center()
        step = np.linalg.norm(np.diff(center, axis=0), axis=-1)
        self._mean_step = float(step.mean()) if len(step) else 0.0
        frames = (coarse.row[coarse.later] - coarse.row[coarse.earlier]).astype(np.float64)
        length = np.linalg.norm(
            center[coarse.row[coarse.later]] - center[coarse.row[coarse.earlier]], axis=-1
        )
        length += 0.1 * self._mean_step * frames
        # Errors of single steps add up like a random walk, drift in proportion.
        self._odometry_sigmas = Sigmas(
            np.sqrt(noise.rotation_rad**2 * frames + (config.rotation_drift_rad * frames) ** 2),
            length * np.sqrt(noise.distance**2 + config.translation_drift**2),
        )
        reach = self._mean_step * config.coarse_frames
        ones = np.ones(len(events.group))
        self.expected = Sigmas(
            noise.rotation_rad * ones,
            noise.distance * (events.length + reach) + noise.rotation_rad * reach * ones,
        )
        """of an event against a perfect map"""

    def compare(self, believed: NDArray[np.bool_], sigmas: Sigmas) -> tuple[SE3, Sigmas, Sigmas]:
        """Poses that the believed events lead to, errors of all events against them, and what is allowed."""
        events = self._events
        claims = Claims(events.match[believed], events.anchor[believed], events.pose[believed])
        poses = close_loops(
            self._coarse,
            self._odometry,
            claims,
            self._odometry_sigmas,
            Sigmas(*(s[believed] for s in sigmas)),
        )
        # The event's anchor pose, moved along with the frames it was seen from.
        odometry, match = self._odometry, events.match
        claimed = events.pose @ (odometry[match].inverse() @ poses[match])
        relative = claimed @ poses[events.anchor].inverse()
        distance = np.linalg.norm(claimed.center() - poses[events.anchor].center(), axis=-1)
        errors = Sigmas(rotation_angle(relative.rotation), distance)
        return poses, errors, self._allowed(errors, believed)

    def _allowed(self, errors: Sigmas, believed: NDArray[np.bool_]) -> Sigmas:
        """Noise, what believed events miss the map by, and drift over the way to the nearest of them."""
        config, way = self._config, self._frames_to_nearest(believed).astype(np.float64)
        missed = [float(np.median(error[believed])) if believed.any() else 0.0 for error in errors]
        rotation = (
            config.tolerance * (self.expected.rotation_rad + missed[0]) + config.rotation_drift_rad * way
        )
        distance = config.tolerance * (self.expected.distance + missed[1])
        distance += (config.translation_drift + config.rotation_drift_rad * way) * way * self._mean_step
        return Sigmas(rotation, distance)

    def _frames_to_nearest(self, believed: NDArray[np.bool_]) -> Int:
        """(k,) frames of odometry between an event's ends and the nearest believed event's."""
        events = self._events
        around = np.abs(events.anchor - events.match)
        if not believed.any():
            return around
        ends = np.unique(np.concatenate([events.anchor[believed], events.match[believed]]))
        detour = sum(_nearest(ends, rows) for rows in (events.anchor, events.match))
        return np.where(believed, 0, np.minimum(around, detour))


def _nearest(ends: Int, rows: Int) -> Int:
    """Distance of each row from the nearest of the ascending ends."""
    above = np.clip(np.searchsorted(ends, rows), 0, len(ends) - 1)
    below = np.clip(above - 1, 0, None)
    return np.minimum(np.abs(ends[above] - rows), np.abs(ends[below] - rows))


def _within(errors: Sigmas, limits: Sigmas) -> NDArray[np.bool_]:
    return (errors.rotation_rad <= limits.rotation_rad) & (errors.distance <= limits.distance)


def _times(sigmas: Sigmas, factor: float) -> Sigmas:
    return Sigmas(*(sigma * factor for sigma in sigmas))
