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

from anchor3r.geometry import SE3
from anchor3r.pose_graph.coarse import ClosedOdometry, CoarseGraph, make_coarse_graph
from anchor3r.pose_graph.drift import independent_rotation_rate, window_noise
from anchor3r.pose_graph.edges import Edges
from anchor3r.pose_graph.loop_events import LoopEvents, Neighbours, combine_groups, condense_groups
from anchor3r.pose_graph.revisits import Decision, VerificationConfig
from anchor3r.pose_graph.topology import Topology, components_of, topology_of

Float = NDArray[np.floating[Any]]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


_DEFAULT = VerificationConfig()
_NO_GROUPS: Int = np.empty(0, np.int64)


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
    """angle between the event and the map without its revisit"""
    translation_error: float
    """distance between the event and the map without its revisit, in the map's scale"""
    log_scale_error: float
    """log of the ratio of the event's scale and the map's without its revisit; 0 where scales are fixed"""
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


def _joins_parts(events: LoopEvents, coarse: CoarseGraph) -> Bool:
    """(k,) whether odometry does not relate the two ends of an event."""
    part, _ = components_of(len(coarse.row), coarse.earlier, coarse.later)
    return np.asarray(part[coarse.node[events.early]] != part[coarse.node[events.late]])


class Verification(NamedTuple):
    """What was decided, and what it says of the noise."""

    verdicts: EventVerdicts
    closed: ClosedOdometry
    """the odometry with all accepted events closed"""
    window_inflation: float
    """How many times larger the variance of window edges is than if their errors were independent, over the
    ways that loops close and relative to that of loop edges; at least 1"""
    group_inflation: Float
    """(g,) variance of each group's edges over that of the typical group; at least 1"""
    num_revisits: int
    """closed ones, by which the drift is known"""
    revisit_inflation: float
    """How many times larger the variance of window edges is than if their errors were independent, as closed
    revisits alone tell it; at least 1"""
    loop_copies: float
    """edges of loop events that together know what one of them knows: those of an event share its errors, and
    so do the events of a revisit"""


def _verdicts(
    is_given: NDArray[np.bool_],
    is_sound: NDArray[np.bool_],
    is_closed: NDArray[np.bool_],
    is_supported: NDArray[np.bool_],
) -> NDArray[np.int8]:
    """(e,) places in `_VERDICTS`, of events that were given, hang together, were closed, have supporters."""
    order = Verdict.GIVEN, Verdict.SCATTERED, Verdict.CONTRADICTED, Verdict.SUPPORTED
    return np.select(
        [is_given, ~is_sound, ~is_closed, is_supported],
        [_VERDICTS.index(verdict) for verdict in order],
        _VERDICTS.index(Verdict.FITS),
    ).astype(np.int8)


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
    groups = condense_groups(edges, topology, odometry, noise, config.significance, is_free)
    label = groups.group if event_of_group is None else event_of_group[groups.group]
    _, first, event_of = np.unique(label, return_index=True, return_inverse=True)
    events = combine_groups(groups, event_of, first, odometry, config.significance)
    is_given = np.zeros(len(first), bool)
    is_given[event_of[np.isin(groups.group, given)]] = True
    neighbours = Neighbours(
        events, odometry, noise,
        reach=config.neighbour_frames, significance=config.significance, is_free=is_free,
    )  # fmt: skip
    coarse = make_coarse_graph(edges, topology, config.coarse_frames)
    lacks_support = neighbours.supporters < config.join_supporters
    events = events._replace(is_sound=events.is_sound & ~(lacks_support & _joins_parts(events, coarse)))
    decided = Decision(neighbours.inflated(events), odometry, coarse, noise, config, is_free)
    decided.run(neighbours.revisit, is_given)
    verdict = _verdicts(is_given, events.is_sound, decided.is_closed, neighbours.supporters > 0)
    error = decided.error
    per_event: tuple[NDArray[Any], ...] = (
        neighbours.supporters, neighbours.opponents, decided.way_frames,
        np.degrees(np.linalg.norm(error[:, :3], axis=1)), np.linalg.norm(error[:, 3:6], axis=1), error[:, 6],
        decided.chi_square, np.sqrt(decided.chi_square / decided.drift.limit),
    )  # fmt: skip
    frames = topology.frames
    verdicts = EventVerdicts(
        groups.group, frames[groups.anchor], frames[groups.match], verdict[event_of],
        groups.num_edges, groups.agreeing, *(column[event_of] for column in per_event),
    )  # fmt: skip
    independent = independent_rotation_rate(edges, topology, noise)
    copies = float(np.median(np.bincount(event_of, groups.num_edges))) if len(event_of) else 1.0
    copies *= 1.0 + (float(np.median(neighbours.supporters)) if len(event_of) else 0.0)
    inflation = max(1.0, (decided.closed_rotation_rate() / independent) ** 2 / copies)
    by_revisits = max(1.0, (decided.revisits_rotation_rate() / independent) ** 2)
    return Verification(
        verdicts, decided.closed, inflation, groups.inflation(neighbours.inflation),
        decided.drift.num_revisits, by_revisits, copies,
    )  # fmt: skip
