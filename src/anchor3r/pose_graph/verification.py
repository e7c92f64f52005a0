"""Which loop events are right: decided once, by the χ² of each against the map without it.

A false loop agrees with itself, so its own edges do not give it away. Three things do, in one statistic, the
squared misclosure (rotation, position, log scale) in the metric of its covariance. Neighbouring events of one
revisit measure the same correction to the odometry; those that do form a revisit and stand or fall
together. A revisit has to fit what odometry may have drifted by over the shortest way around the loop
(`drift`), which leads through revisits that are closed already. The shortest ways, where odometry predicts
the most, are decided first, and revisits of a single event after all others; so an event is always compared
with the sharpest prediction that there is without it, and many loops in one part of the map say nothing
about a part that they do not reach.

How far odometry really drifts is known from the graph up to a factor. Closed revisits tell it better (the
variance factor a posteriori), and so the revisits with the most events go first among equal ways. Since
variances are themselves known from few measurements, the limit is a quantile of Fisher's distribution.

Shapes: n frames (rows), m edges, g groups of loop edges, k events.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import digamma
from scipy.stats import chi2, f

from anchor3r.geometry import SE3, so3_exp, so3_log
from anchor3r.kernels import kernel
from anchor3r.pose_graph.coarse import (
    Claims,
    Closed,
    CoarseGraph,
    Corrections,
    Sigmas,
    close_loops,
    make_coarse_graph,
)
from anchor3r.pose_graph.drift import WayFinder, WindowNoise, independent_rotation_rate, window_noise
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.linalg import so3
from anchor3r.pose_graph.topology import Topology, topology_of

Float = NDArray[np.floating[Any]]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class VerificationConfig:
    """How improbable a misclosure has to be, and what counts as one revisit."""

    significance: float = 1e-3
    """An event is cut if a right one would be off by as much with this probability at most."""
    known_revisits: float = 1.5
    """How well the variances of drift and events are known: as well as the misclosures of so many revisits
    would tell them."""
    neighbour_frames: int = 50
    """Events whose ends are at most so far apart, both of them, may belong to one revisit."""
    coarse_frames: int = 10
    """Frames between nodes of the coarse graph."""

    def __post_init__(self) -> None:
        if not (0 < self.significance < 1 and self.known_revisits > 0):
            raise ValueError(f"significance is a probability, known_revisits must be positive: {self}")
        if self.neighbour_frames < 0 or self.coarse_frames < 1:
            raise ValueError(f"neighbour_frames must not be negative, coarse_frames at least 1: {self}")


_DEFAULT = VerificationConfig()
_NO_GROUPS: Int = np.empty(0, np.int64)
_NO_WAYS: Float = np.empty(0)
_BATCH = 2.0  # revisits whose ways and numbers of events differ by at most this factor are decided together
_SAMPLED = 3  # events of a revisit that speak for it before it is closed: their ways are long, and much alike
_LEAST_FACTOR = 0.01  # of the drift's variance, whatever closed loops say
_FEW = 5  # pairs of neighbouring events that say nothing about the noise of events
_LEAST_SCALE_SIGMA = 1e-3
_NO_SCALE_SIGMA = 1e3  # of an event that does not tell its scale


class Verdict(StrEnum):
    """What became of an event, and why."""

    SUPPORTED = "supported"
    """Accepted: neighbouring events measure the same, and the map agrees."""
    FITS = "fits"
    """Accepted: no neighbour, but the map agrees."""
    SCATTERED = "scattered"
    """Rejected: its own edges disagree."""
    CONTRADICTED = "contradicted"
    """Rejected: the map without it contradicts it."""
    GIVEN = "given"
    """Accepted: it was not to be judged."""

    @property
    def is_accepted(self) -> bool:
        return self in (Verdict.SUPPORTED, Verdict.FITS, Verdict.GIVEN)


_VERDICTS = list(Verdict)


@dataclass(frozen=True)
class EventVerdict:
    """The verdict on one loop event, as it stands for each of its groups."""

    group: int
    anchor: int
    """frame"""
    match: int
    """frame in the middle of the group's members"""
    verdict: Verdict
    num_edges: int
    num_agreeing: int
    """edges of the group that agree with each other"""
    supporters: int
    """neighbouring events that measure the same correction"""
    opponents: int
    """neighbouring events that measure another"""
    way_frames: float
    """frames of odometry on the shortest way around the loop without this revisit"""
    rotation_error_deg: float
    """between the event and the map without its revisit"""
    translation_error: float
    """the same, in the map's scale"""
    log_scale_error: float
    """the same; 0 where scales are fixed"""
    chi_square: float
    """of these errors"""
    excess: float
    """root of the χ² over its limit; at most 1 if accepted"""

    @property
    def accepted(self) -> bool:
        return self.verdict.is_accepted


@dataclass(frozen=True)
class EventVerdicts:
    """All verdicts in columns, by group (g,)."""

    group: Int
    anchor: Int
    match: Int
    verdict: NDArray[np.int8]
    """(g,) place in list(Verdict)"""
    num_edges: Int
    num_agreeing: Int
    supporters: Int
    opponents: Int
    way_frames: Float
    rotation_error_deg: Float
    translation_error: Float
    log_scale_error: Float
    chi_square: Float
    excess: Float

    def __len__(self) -> int:
        return len(self.group)

    def __getitem__(self, k: int) -> EventVerdict:
        columns = {f.name: getattr(self, f.name)[k].item() for f in fields(self)}
        return EventVerdict(**(columns | {"verdict": _VERDICTS[self.verdict[k]]}))

    @property
    def accepted(self) -> Bool:
        """(g,)"""
        return np.array([verdict.is_accepted for verdict in _VERDICTS])[self.verdict]

    def rejected_groups(self) -> Int:
        return self.group[~self.accepted]


class Verification(NamedTuple):
    """What was decided, and what it says of the noise."""

    verdicts: EventVerdicts
    closed: Closed
    """the odometry with all accepted events closed"""
    window_inflation: float
    """How many times larger the variance of window edges is than if their errors were independent, over the
    ways that loops close and relative to that of loop edges; at least 1"""
    group_inflation: Float
    """(g,) variance of each group's edges over that of the typical group; at least 1"""


def verify_loops(
    edges: Edges,
    odometry: SE3,
    config: VerificationConfig = _DEFAULT,
    *,
    topology: Topology | None = None,
    event_of_group: Int | None = None,
    given: Int = _NO_GROUPS,
    is_free: bool = False,
) -> Verification:
    """Decides on all loop events.

    odometry: camera_from_world (n,) of the frames by windows alone; edges: in its scale.
    event_of_group: event of each group; groups of one event are accepted or cut together. None: one each.
    given: groups that are accepted without being judged.
    is_free: whether the scale drifts too, so that events measure it.
    """
    topology = topology or topology_of(edges)
    noise = window_noise(edges, topology, odometry, is_free=is_free)
    groups = _condense(edges, topology, odometry, noise, config, is_free)
    label = groups.group if event_of_group is None else event_of_group[groups.group]
    _, first, event_of = np.unique(label, return_index=True, return_inverse=True)
    events = _combine(groups, event_of, first, odometry, config)
    is_given = np.zeros(len(first), bool)
    is_given[event_of[np.isin(groups.group, given)]] = True
    neighbours = _Neighbours(events, odometry, noise, config, is_free)
    decided = _Decision(
        neighbours.inflated(events), odometry, make_coarse_graph(edges, topology, config.coarse_frames),
        noise, config, is_free,
    )  # fmt: skip
    decided.run(neighbours.revisit, is_given)
    verdict = np.select(
        [is_given, ~events.is_sound, ~decided.is_closed, neighbours.supporters > 0],
        [
            _VERDICTS.index(v)
            for v in (Verdict.GIVEN, Verdict.SCATTERED, Verdict.CONTRADICTED, Verdict.SUPPORTED)
        ],
        _VERDICTS.index(Verdict.FITS),
    )
    error = decided.error
    per_event: tuple[NDArray[Any], ...] = (
        neighbours.supporters, neighbours.opponents, decided.way_frames,
        np.degrees(np.linalg.norm(error[:, :3], axis=1)), np.linalg.norm(error[:, 3:6], axis=1), error[:, 6],
        decided.chi_square, np.sqrt(decided.chi_square / decided.limit),
    )  # fmt: skip
    frames = topology.frames
    verdicts = EventVerdicts(
        groups.group, frames[groups.anchor], frames[groups.match], verdict.astype(np.int8)[event_of],
        groups.num_edges, groups.agreeing, *(column[event_of] for column in per_event),
    )  # fmt: skip
    independent = independent_rotation_rate(edges, topology, noise)
    # Edges of one event share its errors, and so do the events of a revisit: they are as good as one.
    shared = float(np.median(np.bincount(event_of, groups.num_edges))) if len(event_of) else 1.0
    shared *= 1.0 + (float(np.median(neighbours.supporters)) if len(event_of) else 0.0)
    inflation = max(1.0, (decided.closed_rotation_rate() / independent) ** 2 / shared)
    return Verification(verdicts, decided.closed, inflation, groups.inflation(neighbours.inflation))


class _Groups(NamedTuple):
    """Groups of loop edges, condensed to what each says of the odometry around its anchor."""

    group: Int
    """(g,)"""
    num_edges: Int
    anchor: Int
    """(g,) row"""
    match: Int
    """(g,) row in the middle of the members"""
    correction: Corrections
    """(g,) of the odometry around the anchor, to agree with that around the members"""
    agreeing: Int
    """(g,) edges that say so"""
    sigmas: Sigmas
    """(g,)"""
    reach: Float
    """(g,) typical distance that its edges measure"""
    is_sound: Bool
    """(g,) whether its edges differ by less than what they measure"""
    promised: Float
    """(g, 2) standard deviations of rotation and translation that edges promise; NaN if they do not"""

    def inflation(self, shared: float) -> Float:
        """(g,) variance of edges over what they promise, or over that of the typical group; at least 1.

        shared: variance of an event over the scatter of its edges.
        """
        sigma = np.stack([self.sigmas.rotation_rad, self.sigmas.distance], 1)
        if not len(sigma):
            return np.ones(0)
        typical = (sigma[:, 0] / sigma[:, 0].min()) ** 2
        promised = (shared * (sigma / self.promised) ** 2).max(1)
        return np.where(np.isnan(promised), typical, np.maximum(promised, 1.0))


def _condense(
    edges: Edges,
    topology: Topology,
    odometry: SE3,
    noise: WindowNoise,
    config: VerificationConfig,
    is_free: bool,
) -> _Groups:
    loops = np.flatnonzero((edges.kind == EdgeKind.LOOP) & (edges.weight > 0))
    loops = loops[np.argsort(edges.group[loops], kind="stable")]
    group, start = np.unique(edges.group[loops], return_index=True)
    start = np.append(start, len(loops)).astype(np.int64)
    member, anchor = topology.i[loops], topology.t[loops[start[:-1]]]
    g = len(group)
    rotation, center = np.empty((g, 3, 3)), np.empty((g, 3))
    log_scale, scale_sigma = np.zeros(g), np.full(g, _NO_SCALE_SIGMA)
    spread, agreeing, middle = np.empty((g, 2)), np.empty(g, np.int64), np.empty(g, np.int64)
    measured = SE3(edges.rotation[loops], edges.translation[loops])
    odometry_center = np.ascontiguousarray(odometry.center()[member])
    if is_free:
        seen = np.ascontiguousarray(measured.inverse().translation)
        _scale_of_groups(start, odometry_center, seen, log_scale, scale_sigma)
        told = np.nan_to_num(edges.log_scale_sigma[loops[start[:-1]]])
        scale_sigma = np.hypot(np.maximum(scale_sigma, _LEAST_SCALE_SIGMA), told)
    grown = np.exp(np.repeat(log_scale, np.diff(start)))[:, None] * measured.translation
    votes = SE3(measured.rotation, grown).inverse() @ odometry[member]
    arguments = start, np.ascontiguousarray(votes.rotation), votes.center(), odometry_center
    reach = np.empty(g)
    _scatter(*arguments, spread, reach, middle, member)
    # A handful of votes tells its own scatter badly: none is taken to be better than the typical group.
    relative = spread[:, 1] / reach
    rotation_sigma = (
        np.maximum(spread[:, 0], max(noise.rotation_rad, float(np.median(spread[:, 0]))))
        if g
        else spread[:, 0]
    )
    distance_sigma = (
        reach * np.maximum(relative, max(noise.relative, float(np.median(relative)))) if g else relative
    )
    quantile = _quantile(config)
    _agree(*arguments, quantile * rotation_sigma, quantile * distance_sigma, rotation, center, agreeing)
    turn = np.swapaxes(rotation, 1, 2) @ odometry.rotation[anchor]
    correction = Corrections(turn, odometry.center()[anchor], center, log_scale)
    sigmas = Sigmas(rotation_sigma, distance_sigma, scale_sigma)
    says_something = quantile * np.maximum(spread[:, 0], relative) < 1
    is_sound = says_something & (3 * agreeing > np.diff(start))
    diagonal = np.einsum("mkk->mk", edges.information[loops[start[:-1]]])  # edges of a group are alike
    promised = np.stack([diagonal[:, :3].mean(1), diagonal[:, 3:].mean(1)], 1) ** -0.5
    return _Groups(
        group, np.diff(start), anchor, middle, correction, agreeing, sigmas, reach, is_sound, promised
    )


@kernel
def _scale_of_groups(start: Int, center: Float, seen: Float, log_scale: Float, sigma: Float) -> None:
    """Log of the members' distances by odometry (center) over those in the group (seen), and its spread."""
    for g in range(len(start) - 1):
        first, end = start[g], start[g + 1]
        ratio, size = np.empty((end - first) * (end - first)), np.empty((end - first) * (end - first))
        count = 0
        for a in range(first, end):
            for b in range(a + 1, end):
                far = so3.norm_sq(so3.load3(center[a] - center[b]))
                near = so3.norm_sq(so3.load3(seen[a] - seen[b]))
                if far > 0 and near > 0:
                    ratio[count], size[count] = 0.5 * np.log(far / near), far
                    count += 1
        if count < 3:
            continue
        # Short distances are noise: those of the longer half tell.
        long = ratio[:count][size[:count] >= np.median(size[:count])]
        log_scale[g] = np.median(long)
        spread = 1.4826 * np.median(np.abs(long - log_scale[g]))
        sigma[g] = 1.2533 * spread / np.sqrt(min(len(long), end - first))


@kernel
def _scatter(
    start: Int, rotation: Float, center: Float, member_center: Float,
    spread: Float, reach: Float, middle: Int, member: Int,
) -> None:  # fmt: skip
    """Standard deviations of each group's votes (rotation, position), and the size of what it has seen."""
    for g in range(len(start) - 1):
        first, end = start[g], start[g + 1]
        n = end - first
        middle[g] = np.sort(member[first:end])[n // 2]
        angle, distance, length = np.empty(n), np.empty(n), np.empty(n)
        spread[g, 0], spread[g, 1] = np.inf, np.inf
        for pivot in range(first, end):
            for e in range(first, end):
                turned = so3.log(so3.mul_nt(so3.load33(rotation[e]), so3.load33(rotation[pivot])))
                angle[e - first] = np.sqrt(so3.norm_sq(turned))
                distance[e - first] = np.sqrt(so3.norm_sq(so3.load3(center[e] - center[pivot])))
                apart = so3.load3(member_center[e] - member_center[pivot])
                length[e - first] = np.sqrt(so3.norm_sq(apart))
            spread[g, 0] = min(spread[g, 0], np.median(angle) / 1.5382)
            spread[g, 1] = min(spread[g, 1], np.median(distance) / 1.5382)
        for e in range(first, end):
            length[e - first] += np.sqrt(so3.norm_sq(so3.load3(center[e] - member_center[e])))
        reach[g] = max(np.median(length), 1e-12)


@kernel
def _agree(
    start: Int, vote_rotation: Float, vote_center: Float, _: Float,
    max_angle: Float, max_distance: Float, rotation: Float, center: Float, agreeing: Int,
) -> None:  # fmt: skip
    """The mean of the largest set of votes around one vote, for each group."""
    for k in range(len(start) - 1):
        first, end = start[k], start[k + 1]
        best, most = first, 0
        for pivot in range(first, end):
            count = 0
            for e in range(first, end):
                count += _are_close(vote_rotation, vote_center, pivot, e, max_angle[k], max_distance[k])
            if count > most:
                best, most = pivot, count
        base = so3.load33(vote_rotation[best])
        turn, place = np.zeros(3), np.zeros(3)
        for e in range(first, end):
            if _are_close(vote_rotation, vote_center, best, e, max_angle[k], max_distance[k]):
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


class _Events(NamedTuple):
    """Loop events: the corrections of their groups, all read as corrections of the later end."""

    early: Int
    """(k,) row"""
    late: Int
    """(k,) row"""
    correction: Corrections
    """(k,) of the odometry around the late row, to agree with that around the early one"""
    sigmas: Sigmas
    """(k,)"""
    is_sound: Bool
    """(k,) whether any group says something, and those that do differ by less than what they measure"""


def _combine(
    groups: _Groups, event_of: Int, first: Int, odometry: SE3, config: VerificationConfig
) -> _Events:
    """The mean over the sound groups of each event, by their variances; differences add to its spread."""
    k = len(first)
    early = np.minimum(groups.anchor, groups.match)[first]
    late = np.maximum(groups.anchor, groups.match)[first]
    backward = groups.anchor < groups.match
    as_late = Corrections(*(
        np.where(backward.reshape(-1, *[1] * (ours.ndim - 1)), theirs, ours)
        for ours, theirs in zip(groups.correction, groups.correction.inverse(), strict=True)
    ))  # fmt: skip
    source = odometry.center()[late]
    base = as_late.rotation[first]
    turn = so3_log(as_late.rotation @ np.swapaxes(base, 1, 2)[event_of])
    values = turn, as_late.apply(source[event_of]), as_late.log_scale[:, None]
    # A group that says nothing counts only where the event has no other.
    count = np.bincount(event_of, groups.is_sound, k)
    counts = groups.is_sound | (count == 0)[event_of]
    means, sigmas = [], []
    for value, sigma in zip(values, groups.sigmas, strict=True):
        weight = np.where(counts, sigma**-2.0, 0.0)
        total = np.bincount(event_of, weight, k)
        mean = np.stack([np.bincount(event_of, weight * column, k) for column in value.T], 1) / total[:, None]
        apart = np.bincount(event_of, weight * ((value - mean[event_of]) ** 2).mean(1), k) / total
        num_groups = np.bincount(event_of, counts, k)
        means.append(mean)
        sigmas.append(np.sqrt(num_groups / total + apart))  # both see the same places: no better than one
    correction = Corrections(so3_exp(means[0]) @ base, source, means[1], means[2][:, 0])
    turned, moved = (_spread(value, event_of, counts) for value in values[:2])
    reach = np.bincount(event_of, counts * groups.reach, k) / np.bincount(event_of, counts, k)
    is_sound = (count > 0) & (_quantile(config) * np.maximum(turned, moved / reach) < 1)
    return _Events(early, late, correction, Sigmas(*sigmas), is_sound)


def _spread(value: Float, event_of: Int, counts: Bool) -> Float:
    """(k,) root mean square of a coordinate of the values (g, 3) that count, about each event's mean."""
    num = np.bincount(event_of, counts)
    mean = np.stack([np.bincount(event_of, counts * column) for column in value.T], 1) / num[:, None]
    return np.sqrt(np.bincount(event_of, counts * ((value - mean[event_of]) ** 2).mean(1)) / num)


def _quantile(config: VerificationConfig) -> float:
    """Of the length of the difference of two 3-vectors of unit Gaussians."""
    return float(np.sqrt(2 * chi2.isf(config.significance, 3)))


class _Neighbours:
    """Which events measure the same correction as others nearby, and which revisits they form."""

    def __init__(
        self, events: _Events, odometry: SE3, noise: WindowNoise, config: VerificationConfig, is_free: bool
    ) -> None:
        k = len(events.late)
        order = np.argsort(events.late, kind="stable")
        pairs = _pairs_within(order, events.early, events.late, config.neighbour_frames)
        sound = events.is_sound[pairs].all(0) if len(pairs[0]) else np.zeros(0, bool)
        a, b = pairs[:, sound]
        square, dof = self._squares(a, b, events, odometry, noise, is_free)
        typical = float(np.median(square)) / chi2.median(dof) if len(square) >= _FEW else 1.0
        self.inflation = max(1.0, typical)
        """Variance of an event over the scatter of its own edges, which share some of their errors."""
        agree = square <= self.inflation * chi2.isf(config.significance, dof)
        self.supporters = np.bincount(a[agree], minlength=k) + np.bincount(b[agree], minlength=k)
        self.opponents = np.bincount(a[~agree], minlength=k) + np.bincount(b[~agree], minlength=k)
        # One that most of its neighbours contradict joins no revisit: it is decided on by itself.
        backed = self.supporters > self.opponents
        agree &= backed[a] & backed[b]
        graph = coo_array((np.ones(int(agree.sum())), (a[agree], b[agree])), shape=(k, k))
        self.revisit = connected_components(graph, directed=False)[1].astype(np.int64)
        """(k,) number of each event's revisit"""

    def inflated(self, events: _Events) -> _Events:
        root = np.sqrt(self.inflation)
        return events._replace(sigmas=Sigmas(*(root * sigma for sigma in events.sigmas)))

    @staticmethod
    def _squares(
        a: Int, b: Int, events: _Events, odometry: SE3, noise: WindowNoise, is_free: bool
    ) -> tuple[Float, int]:
        """χ² of the difference of two events' corrections, and its degrees of freedom."""
        one, other = events.correction.select(a), events.correction.select(b)
        turn = so3_log(one.rotation @ np.swapaxes(other.rotation, 1, 2))
        apart = one.apply(other.source) - other.target
        center = odometry.center()
        way = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(center, axis=0), axis=1))])
        frames, metres = np.zeros(len(a)), np.zeros(len(a))
        for rows in (events.late, events.early):
            frames += np.abs(rows[a] - rows[b])
            metres += np.abs(way[rows[a]] - way[rows[b]])
        mine, theirs = events.sigmas.select(a), events.sigmas.select(b)
        turned = mine.rotation_rad**2 + theirs.rotation_rad**2 + (noise.rotation_rate * frames) ** 2
        grown = mine.log_scale**2 + theirs.log_scale**2 if is_free else np.zeros(len(a))
        grown = grown + (noise.scale_rate * frames) ** 2
        moved = mine.distance**2 + theirs.distance**2
        moved = moved + (turned + np.minimum(grown, 1.0)) * metres**2
        square = (turn**2).sum(1) / turned + (apart**2).sum(1) / moved
        if not is_free:
            return square, 6
        return square + (one.log_scale - other.log_scale) ** 2 / grown, 7


@kernel
def _pairs_within(order: Int, early: Int, late: Int, reach: int) -> Int:
    """(2, p) events of which both ends are at most `reach` rows apart."""
    found = np.empty((2, 64), np.int64)
    count = 0
    for first in range(len(order)):
        a = order[first]
        for second in range(first + 1, len(order)):
            b = order[second]
            if late[b] - late[a] > reach:
                break
            if abs(early[b] - early[a]) > reach:
                continue
            if count == found.shape[1]:
                grown = np.empty((2, 2 * count), np.int64)
                grown[:, :count] = found
                found = grown
            found[0, count], found[1, count] = a, b
            count += 1
    return found[:, :count]


def _evenly(label: Int, order: Int, which: Bool) -> Bool:
    """Of the entries in `which`, up to _SAMPLED of each label, spread evenly in the order given."""
    rows = np.flatnonzero(which)
    rows = rows[np.lexsort((order[rows], label[rows]))]
    _, start, size = np.unique(label[rows], return_index=True, return_counts=True)
    rank = np.arange(len(rows)) - np.repeat(start, size)
    slot = rank * _SAMPLED // np.maximum(np.repeat(size, size), _SAMPLED)
    is_first = np.ones(len(rows), bool)
    is_first[1:] = (slot[1:] != slot[:-1]) | (np.diff(label[rows]) != 0)
    out = np.zeros(len(which), bool)
    out[rows[is_first]] = True
    return out


class _Decision:
    """Closes revisit after revisit, the one with the shortest way first."""

    def __init__(
        self,
        events: _Events,
        odometry: SE3,
        coarse: CoarseGraph,
        noise: WindowNoise,
        config: VerificationConfig,
        is_free: bool,
    ) -> None:
        self._events, self._odometry, self._coarse = events, odometry, coarse
        self._noise, self._config, self._is_free = noise, config, is_free
        self._ways = WayFinder(coarse.row, coarse.earlier, coarse.later)
        self._dof = 7 if is_free else 6
        self._ratios: list[Float] = []  # χ² of closed revisits over its degrees of freedom
        self._closed_ways: list[Float] = []
        k = len(events.late)
        self.closed = Closed(odometry, np.zeros(len(odometry)))
        """the odometry with all accepted events closed"""
        self.is_closed = np.zeros(k, bool)
        """(k,) whether an event is accepted"""
        self.error = np.zeros((k, 7))
        """(k, 7) misclosure at the time of the decision; of events that their revisit's sample spoke for,
        against the map with the revisit closed"""
        self.chi_square, self.limit = np.zeros(k), np.ones(k)
        self.way_frames = np.abs(events.late - events.early).astype(np.float64)

    def run(self, revisit: Int, is_given: Bool) -> None:
        """Decides on all events, by revisit (k,): on revisits of several first, then on single events."""
        if is_given.any():
            self._close(is_given)
        open_ = self._events.is_sound & ~is_given
        size = np.bincount(revisit)[revisit] if len(revisit) else revisit
        misfits = self._close_in_turn(revisit, open_ & (size > 1))
        alone = np.arange(len(revisit))
        self._close_in_turn(alone, open_ & ((size == 1) | misfits))

    def _close_in_turn(self, revisit: Int, pending: Bool) -> Bool:
        """Closes those of the pending revisits that fit; returns single events of them that did not (k,)."""
        misfits = np.zeros(len(pending), bool)
        is_sampled = _evenly(revisit, self._events.late, pending)
        while pending.any():
            sample = pending & is_sampled
            self._test(np.flatnonzero(sample))
            chosen = self._chosen(revisit, pending, sample, sample & (self.chi_square <= self.limit))
            if not chosen.any():
                self._test(np.flatnonzero(pending & ~is_sampled))
                break
            self._learn(revisit, chosen & is_sampled)
            self._close(chosen)
            pending = pending & ~chosen
            is_single = np.bincount(revisit)[revisit] == 1
            wrong = chosen & ~is_single & ~self._agree_with_closed(chosen, is_sampled)
            if wrong.any():
                misfits |= wrong
                self.is_closed &= ~wrong
                self._close(np.zeros_like(chosen))
        return misfits

    def _agree_with_closed(self, chosen: Bool, is_sampled: Bool) -> Bool:
        """(k,) whether events of revisits that were just closed fit the result, which the others dominate."""
        columns = self.error, self.chi_square, self.limit, self.way_frames
        kept = [column[is_sampled].copy() for column in columns]
        self._test(np.flatnonzero(chosen))
        fits: Bool = ~chosen | (self.chi_square <= self.limit)
        for column, before in zip(columns, kept, strict=True):
            column[is_sampled] = before
        return fits

    def _chosen(self, revisit: Int, pending: Bool, sample: Bool, fits: Bool) -> Bool:
        """Events of revisits whose sample fits for the most part: the shortest ways, of these the largest."""
        count = int(revisit.max()) + 1
        balance = np.bincount(revisit[sample], np.where(fits[sample], 1.0, -1.0), count)
        good = pending & (balance[revisit] > 0)
        if not good.any():
            return good
        way = np.full(count, np.inf)
        np.minimum.at(way, revisit[good & sample], self.way_frames[good & sample])
        shortest = max(float(way.min()), self._config.coarse_frames)
        good &= way[revisit] <= _BATCH * shortest
        size = np.bincount(revisit[good], minlength=count)
        return good & (_BATCH * size[revisit] >= size.max())

    def _test(self, which: Int) -> None:
        """Misclosure and χ² of some events against the map as it is closed now."""
        events, closed = self._events, self.closed
        early, late = events.early[which], events.late[which]
        before, after = self._odometry.center(), closed.poses.center()
        # What odometry around the early end has been moved by, and the event's correction with it.
        turn = np.swapaxes(closed.poses.rotation, 1, 2) @ self._odometry.rotation
        local = Corrections(turn[early], before[early], after[early], closed.log_scale[early])
        correction = events.correction.select(which)
        target = local.apply(correction.target)
        rotation = local.rotation @ correction.rotation
        error = np.empty((len(which), 7))
        error[:, :3] = so3_log(rotation @ np.swapaxes(turn[late], 1, 2))
        error[:, 3:6] = target - after[late]
        error[:, 6] = local.log_scale + correction.log_scale - closed.log_scale[late]
        joined = (
            self._coarse.node[events.early[self.is_closed]],
            self._coarse.node[events.late[self.is_closed]],
        )
        ways = self._ways.find(
            self._coarse.node[early], self._coarse.node[late], after[late], joined, after[self._coarse.row]
        )
        frames = np.where(np.isfinite(ways.num_frames), ways.num_frames, 0.0)
        factor, limit = self._variance_factor()
        # The way is known up to the node at both its ends.
        frames = frames + self._config.coarse_frames
        rate = ways.covariance_rate + self._config.coarse_frames * self._at_nodes()
        turned = self._noise.rotation_rate**2 * frames
        # A scale that is fixed does not drift: lengths err from window to window.
        grown = self._noise.scale_rate**2 * (frames if self._is_free else self._noise.num_frames)
        drift = np.einsum("rk,krab->kab", np.stack([turned, np.broadcast_to(grown, frames.shape)]), rate)
        sigmas = events.sigmas.select(which)
        growth = np.exp(local.log_scale)
        own = np.zeros((len(which), 7))
        own[:, :3], own[:, 6] = sigmas.rotation_rad[:, None] ** 2, sigmas.log_scale**2
        own[:, 3:6] = ((growth * sigmas.distance)[:, None]) ** 2
        covariance = factor * drift
        covariance[:, np.arange(7), np.arange(7)] += own
        d = self._dof
        solved = np.linalg.solve(covariance[:, :d, :d], error[:, :d, None])[..., 0]
        square = np.einsum("ka,ka->k", error[:, :d], solved)
        self.error[which], self.limit[which] = error, limit
        # Nothing speaks against an event between parts that no way joins.
        self.chi_square[which] = np.where(np.isfinite(ways.num_frames), square, 0.0)
        self.way_frames[which] = ways.num_frames

    def _at_nodes(self) -> Float:
        """(2, 7, 7) what a frame's turn and stretch do to a place as far off as the next node."""
        center = self.closed.poses.center()[self._coarse.row]
        step = np.linalg.norm(center[self._coarse.later] - center[self._coarse.earlier], axis=1)
        square = float(np.median(step)) ** 2 if len(step) else 0.0
        turn, stretch = [1.0] * 3 + [square] * 3 + [0.0], [0.0] * 3 + [square] * 3 + [1.0]
        return np.stack([np.diag(turn), np.diag(stretch)])

    def _variance_factor(self) -> tuple[float, float]:
        """How much larger the drift's variance is than implied, and the limit of χ² under it."""
        config, d = self._config, self._dof
        # Logarithms, since the factor may be off by orders of magnitude and no single revisit must decide it;
        # the graph's own edges, which say 1, count as one revisit more.
        expected = float(digamma(d / 2) + np.log(2 / d))
        logs = np.log(np.maximum(np.concatenate([_NO_WAYS, *self._ratios]), 1e-300)) - expected
        factor = float(np.exp(np.maximum(logs, np.log(_LEAST_FACTOR)).sum() / (len(logs) + 1)))
        return factor, d * float(f.isf(config.significance, d, d * config.known_revisits))

    def _learn(self, revisit: Int, chosen: Bool) -> None:
        """Notes what the misclosures of new revisits say of the drift: one ratio each, in the median."""
        factor, _ = self._variance_factor()
        for number in np.unique(revisit[chosen]):
            inside = chosen & (revisit == number)
            self._ratios.append(factor * np.median(self.chi_square[inside], keepdims=True) / self._dof)
            self._closed_ways.append(np.median(self.way_frames[inside], keepdims=True))

    def _close(self, chosen: Bool) -> None:
        self.is_closed |= chosen
        events, coarse, which = self._events, self._coarse, np.flatnonzero(self.is_closed)
        center = self._odometry.center()[coarse.row]
        span = (coarse.row[coarse.later] - coarse.row[coarse.earlier]).astype(np.float64)
        length = np.linalg.norm(center[coarse.later] - center[coarse.earlier], axis=1)
        length += 0.1 * float(np.median(length)) if len(length) else 0.0
        # Errors that add up in proportion over a typical way, as independent ones of each step.
        root = np.sqrt(span * self._typical_way() * self._variance_factor()[0])
        steps = Sigmas(
            self._noise.rotation_rate * root,
            length * (self._noise.relative + self._noise.scale_rate * root),
            self._noise.scale_rate * root,
        )
        claims = Claims(events.early[which], events.late[which], events.correction.select(which))
        self.closed = close_loops(
            coarse, self._odometry, claims, steps, events.sigmas.select(which), is_free=self._is_free
        )

    def _typical_way(self) -> float:
        """Frames around a closed loop, in the median over revisits."""
        ways = np.concatenate([*self._closed_ways, _NO_WAYS])
        ways = ways[np.isfinite(ways)]
        return max(float(np.median(ways)), 1.0) if len(ways) else float(self._config.coarse_frames)

    def closed_rotation_rate(self) -> float:
        """Rotation error that explains the closed loops as a random walk: radians for the root of a frame."""
        factor, _ = self._variance_factor()
        return self._noise.rotation_rate * float(np.sqrt(factor * self._typical_way()))
