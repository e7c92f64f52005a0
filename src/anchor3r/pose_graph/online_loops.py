"""Loops closed while odometry goes on: events judged, and the correction that the accepted ones ask for.

The same verification as of a finished map (`verification`), on what is at hand while streaming: the poses
that windows voted for in place of odometry from all edges, a sample of windows in place of all for their
noise, and a coarse graph whose nodes lie farther apart the longer the map is, so that solving it costs no
more. An event between two tracks, against which no way speaks, has to be supported by others. n frames, k
events, c nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3
from anchor3r.pose_graph.coarse import CoarseGraph, Corrections
from anchor3r.pose_graph.correction import OnlineCorrection
from anchor3r.pose_graph.drift import window_noise
from anchor3r.pose_graph.edges import Edges
from anchor3r.pose_graph.loop_events import LoopEvents, Neighbours, combine_groups, condense_groups
from anchor3r.pose_graph.revisits import Decision, VerificationConfig
from anchor3r.pose_graph.topology import components_of, topology_of
from anchor3r.pose_graph.verification import Verdict
from anchor3r.trajectory import Trajectory

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class OnlineLoopConfig:
    """How loops are judged while streaming, and how much that may cost."""

    verification: VerificationConfig = VerificationConfig()
    """As of a finished map."""
    max_nodes: int = 256
    """Nodes of the coarse graph at most: on longer maps they lie farther apart, by factors of two."""
    join_supporters: int = 2
    """Events that must measure the same before one of them joins two tracks: nothing else can speak against
    it, and a false join cannot be undone for those who have seen it."""

    def __post_init__(self) -> None:
        if self.max_nodes < 2 or self.join_supporters < 0:
            raise ValueError(f"max_nodes is at least 2, join_supporters not negative: {self}")


@dataclass(frozen=True)
class ClosedLoops:
    """What became of events (k,), and the correction."""

    verdicts: list[Verdict]
    """(k,) in the order of the events given"""
    correction: OnlineCorrection | None
    """None if no event is accepted"""


def close_online(
    odometry: Trajectory,
    events: list[list[Edges]],
    windows: list[Edges],
    *,
    is_free: bool,
    config: OnlineLoopConfig,
) -> ClosedLoops:
    """Judges events, each with the groups of edges that it measured, and closes those that are right.

    odometry: all poses by windows alone, with component and log scale. windows: edges of a sample of them.
    is_free: whether the scale drifts.
    """
    assert odometry.component is not None
    poses, frames, check = odometry.camera_from_world, odometry.frames, config.verification
    sample = _in_scale_of(odometry, joined(windows))
    noise = window_noise(sample, topology_of(sample, frames), poses, is_free=is_free)
    groups = [edges for event in events for edges in event]
    event_of = np.repeat(np.arange(len(events)), [len(event) for event in events])
    loops = _in_scale_of(odometry, joined(groups))
    condensed = condense_groups(loops, topology_of(loops, frames), poses, noise, check.significance, is_free)
    event_of = event_of[condensed.group]
    first = np.searchsorted(event_of, np.arange(len(events)))
    found = combine_groups(condensed, event_of, first, poses, check.significance)
    neighbours = Neighbours(
        found, poses, noise,
        reach=check.neighbour_frames, significance=check.significance, is_free=is_free,
    )  # fmt: skip
    joins = odometry.component[found.early] != odometry.component[found.late]
    is_alone = joins & (neighbours.supporters < config.join_supporters)
    judged = found._replace(is_sound=found.is_sound & ~is_alone)
    coarse = _coarse_graph(odometry.component, check.coarse_frames, config.max_nodes)
    decided = Decision(neighbours.inflated(judged), poses, coarse, noise, check, is_free)
    decided.run(neighbours.revisit, np.zeros(len(events), bool))
    verdicts = [
        Verdict.SCATTERED if not sound
        else Verdict.CONTRADICTED if not closed
        else Verdict.SUPPORTED if supporters
        else Verdict.FITS
        for sound, closed, supporters in zip(
            found.is_sound, decided.is_closed, neighbours.supporters, strict=True
        )
    ]  # fmt: skip
    correction = _correction(odometry, poses, coarse, decided, judged) if decided.is_closed.any() else None
    return ClosedLoops(verdicts, correction)


def joined(parts: list[Edges]) -> Edges:
    """All edges, with the groups of all parts numbered in the order given; a part has one at least."""
    columns = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Edges)}
    groups, count = [], 0
    for part in parts:
        labels, group = np.unique(part.group, return_inverse=True)
        groups.append(count + group)
        count += max(1, len(labels))
    return Edges(**columns | {"group": np.concatenate(groups)})


def _in_scale_of(odometry: Trajectory, edges: Edges) -> Edges:
    """The edges with translations in the scale of the odometry."""
    assert odometry.log_scale is not None
    grown = np.exp(odometry.log_scale[np.searchsorted(odometry.frames, edges.frame_t)])
    return replace(edges, translation=edges.translation * grown[:, None])


def _coarse_graph(track: Int, coarse_frames: int, max_nodes: int) -> CoarseGraph:
    """A node at every coarse_frames-th frame, or so many times as far apart, and where a track begins."""
    n = len(track)
    starts = np.ones(n, bool)
    starts[1:] = track[1:] != track[:-1]
    while n > coarse_frames * max_nodes:
        coarse_frames *= 2
    begins = starts | (np.arange(n) % coarse_frames == 0)
    row = np.flatnonzero(begins)
    order = np.argsort(track[row], kind="stable")
    same = track[row[order[1:]]] == track[row[order[:-1]]]
    return CoarseGraph(np.cumsum(begins) - 1, row, order[:-1][same], order[1:][same])


def _correction(
    odometry: Trajectory, poses: SE3, coarse: CoarseGraph, decided: Decision, events: LoopEvents
) -> OnlineCorrection:
    assert odometry.component is not None
    nodes, track = decided.closed.nodes, odometry.component[coarse.row]
    turn = np.swapaxes(nodes.rotation, 1, 2) @ poses.rotation[coarse.row]
    closed = np.flatnonzero(decided.is_closed)
    ends: Any = coarse.node[events.early[closed]], coarse.node[events.late[closed]]
    i, t = (np.concatenate(pair) for pair in zip((coarse.earlier, coarse.later), ends, strict=True))
    joined, gauge = components_of(len(coarse.row), i, t)
    moves = Corrections(turn, poses.center()[coarse.row], nodes.center, nodes.log_scale)
    return OnlineCorrection(odometry.frames[coarse.row], track, track[gauge[joined]], moves)
