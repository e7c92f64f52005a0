"""Deciding on loop events, revisit by revisit: the ones with the shortest way around the loop first.

A revisit is tested against the map as closed by those before it: χ² of the misclosure of a few of its events,
under the drift along the shortest way that is open, which leads through closed revisits. In one round all
revisits are tested whose way is within a reach that grows by factors; of those that fit, the largest are
closed, at most as many as the drift's variance rests on already, so that it is known before it matters. What
does not fit is tested again in every round, as both the map and the drift's variance become better known.

Shapes: n frames (rows), k events, w of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma
from scipy.stats import f

from anchor3r.geometry import SE3, so3_log
from anchor3r.pose_graph.coarse import Claims, ClosedOdometry, CoarseGraph, Sigmas, close_loops
from anchor3r.pose_graph.drift import WayFinder, Ways, WindowNoise
from anchor3r.pose_graph.loop_events import LoopEvents
from anchor3r.robust import medians_by

Float = NDArray[np.floating[Any]]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

_BATCH = 2.0  # by which the reach grows
_SAMPLED = 3  # events of a revisit that speak for it before it is closed: their ways are long, and much alike
_LEAST_FACTOR = 0.01  # of the drift's variance, whatever closed loops say
_FAR_TURN = 0.5  # radians of misclosure from which on a loop is closed from a chordal start


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
    join_supporters: int = 0
    """Events that must measure the same before one of them joins two parts that no odometry relates: nothing
    else can speak against it."""

    def __post_init__(self) -> None:
        if not (0 < self.significance < 1 and self.known_revisits > 0):
            raise ValueError(f"significance is a probability, known_revisits must be positive: {self}")
        if min(self.neighbour_frames, self.join_supporters) < 0 or self.coarse_frames < 1:
            raise ValueError(
                f"neighbour_frames and join_supporters are not negative, coarse_frames >= 1: {self}"
            )


class DriftVariance:
    """How much larger the drift's variance is than the graph implies, as closed revisits tell."""

    def __init__(self, config: VerificationConfig, dof: int) -> None:
        self._dof, self._log_sum, self._ways = dof, 0.0, np.empty(0)
        self._expected = float(digamma(dof / 2) + np.log(2 / dof))
        self._least_way = float(config.coarse_frames)
        self.limit = dof * float(f.isf(config.significance, dof, dof * config.known_revisits))
        """of χ²; variances are known from few revisits, hence Fisher's distribution"""

    @property
    def num_revisits(self) -> int:
        """Closed ones that it rests on."""
        return len(self._ways)

    @property
    def factor(self) -> float:
        # Logarithms, since the factor may be off by orders of magnitude and no single revisit must decide it;
        # the graph's own edges, which say 1, count as one revisit more.
        return float(np.exp(self._log_sum / (self.num_revisits + 1)))

    @property
    def of_revisits(self) -> float:
        """The same by the closed revisits alone."""
        return float(np.exp(self._log_sum / max(self.num_revisits, 1)))

    @property
    def typical_way(self) -> float:
        """Frames around a closed loop, in the mean weighted by the frames themselves.

        A street driven three times is closed twice by ways of no length, which say nothing of drift.
        """
        ways = self._ways[np.isfinite(self._ways)]
        return max(float(ways @ ways / max(ways.sum(), 1.0)), self._least_way)

    def learn(self, chi_square: Float, way_frames: Float) -> None:
        """Takes new revisits (r,): their χ² under the present factor, and their ways."""
        ratio = self.factor * chi_square / self._dof
        logs = np.log(np.maximum(ratio, 1e-300)) - self._expected
        self._log_sum += float(np.maximum(logs, np.log(_LEAST_FACTOR)).sum())
        self._ways = np.concatenate([self._ways, way_frames])


class Decision:
    """Closes revisit after revisit; its attributes are what came of every event."""

    def __init__(
        self,
        events: LoopEvents,
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
        self.drift = DriftVariance(config, self._dof)
        k = len(events.late)
        self.closed = ClosedOdometry.unmoved(coarse, odometry)
        """the odometry with all accepted events closed"""
        self.is_closed = np.zeros(k, bool)
        """(k,) whether an event is accepted"""
        self.error = np.zeros((k, 7))
        """(k, 7) misclosure at the time of the decision; of events that their revisit's sample spoke for,
        against the map with the revisit closed"""
        self.chi_square = np.zeros(k)
        self.way_frames = np.abs(events.late - events.early).astype(np.float64)

    def run(self, revisit: Int, is_given: Bool) -> None:
        """Decides on all events, by revisit (k,): on revisits of several first, then on single events."""
        if is_given.any():
            self._close(is_given, is_far=True)
        open_ = self._events.is_sound & ~is_given
        size = np.bincount(revisit)[revisit] if len(revisit) else revisit
        misfits = self._close_in_turn(revisit, open_ & (size > 1))
        self._close_in_turn(np.arange(len(revisit)), open_ & ((size == 1) | misfits))

    def _close_in_turn(self, revisit: Int, pending: Bool) -> Bool:
        """Closes those of the pending revisits that fit; returns single events of them that did not (k,)."""
        misfits = np.zeros(len(pending), bool)
        is_sampled = _evenly(revisit, self._events.late, pending)
        failed = _FailedWays(is_sampled)
        waiting, reach = pending.copy(), _BATCH * self._config.coarse_frames
        while waiting.any():
            fits = self._fitting(revisit, np.flatnonzero(waiting & is_sampled), reach, failed)
            good = waiting & fits[revisit]
            chosen = self._largest(revisit, good)
            waiting &= ~chosen
            if chosen.any():
                misfits |= self._take(revisit, chosen, is_sampled)
            elif np.isinf(reach):
                break
            if not np.any(good & ~chosen):  # farther by a factor, until all frames are within reach
                reach = _BATCH * reach if reach < len(self._odometry) else np.inf
        self._test(np.flatnonzero(waiting & ~is_sampled))
        return misfits

    def _fitting(self, revisit: Int, sample: Int, reach: float, failed: _FailedWays) -> Bool:
        """By number of the revisit: whether it is within reach and most of its sample (w,) fits."""
        node, events, count = self._coarse.node, self._events, int(revisit.max()) + 1
        if np.isfinite(reach):
            is_near = np.zeros(count, bool)
            is_near[revisit[sample[failed.is_known(sample)]]] = True
            far = sample[~is_near[revisit[sample]]]
            frames = self._ways.num_frames(node[events.early[far]], node[events.late[far]], reach)
            is_near[revisit[far[np.isfinite(frames)]]] = True
            sample = sample[is_near[revisit[sample]]]
        self._test(sample, failed)
        vote = np.where(self.chi_square[sample] <= self.drift.limit, 1.0, -1.0)
        return np.asarray(np.bincount(revisit[sample], vote, count) > 0)

    def _largest(self, revisit: Int, good: Bool) -> Bool:
        """The events of the largest revisits, of as many as the drift's variance rests on, or one."""
        size = np.bincount(revisit[good], minlength=1)
        order = np.argsort(-size, kind="stable")[: self.drift.num_revisits + 1]
        is_taken = np.zeros(len(size), bool)
        is_taken[order[size[order] > 0]] = True
        chosen = good.copy()
        chosen[good] = is_taken[revisit[good]]
        return chosen

    def _take(self, revisit: Int, chosen: Bool, is_sampled: Bool) -> Bool:
        """Closes revisits; returns those of their events (k,) that do not fit the result, which are cut."""
        rows = np.flatnonzero(chosen & is_sampled)
        self.drift.learn(
            medians_by(revisit[rows], self.chi_square[rows]), medians_by(revisit[rows], self.way_frames[rows])
        )
        self._close(chosen, is_far=bool(np.any(np.abs(self.error[rows, :3]) > _FAR_TURN)))
        several = chosen & (np.bincount(revisit[chosen])[np.where(chosen, revisit, 0)] > 1)
        wrong = several & ~self._agree_with_closed(several, is_sampled)
        if wrong.any():
            self.is_closed &= ~wrong
            self._close(np.zeros_like(chosen), is_far=False)
        return wrong

    def _agree_with_closed(self, chosen: Bool, is_sampled: Bool) -> Bool:
        """(k,) whether events of revisits that were just closed fit the result, which the others dominate."""
        columns = self.error, self.chi_square, self.way_frames
        kept = [column[is_sampled].copy() for column in columns]
        self._test(np.flatnonzero(chosen))
        fits: Bool = ~chosen | (self.chi_square <= self.drift.limit)
        for column, before in zip(columns, kept, strict=True):
            column[is_sampled] = before
        return fits

    def _test(self, which: Int, failed: _FailedWays | None = None) -> None:
        """Misclosure and χ² of events (w,) against the map as it is closed now.

        failed: ways of events that have failed before. As long as they fail on those ways, which are no
        shorter than the shortest, no other way is looked for.
        """
        early, late = self._events.early[which], self._events.late[which]
        # What odometry around both ends has been moved by, and the event's correction with it.
        at_early, at_late = self.closed.corrections(early), self.closed.corrections(late)
        correction = self._events.correction.select(which)
        error = np.empty((len(which), 7))
        rotation = at_early.rotation @ correction.rotation
        error[:, :3] = so3_log(rotation @ np.swapaxes(at_late.rotation, 1, 2))
        error[:, 3:6] = at_early.apply(correction.target) - at_late.target
        error[:, 6] = at_early.log_scale + correction.log_scale - at_late.log_scale
        self.error[which] = error
        sigmas = self._events.sigmas.select(which)
        sigmas = sigmas._replace(distance=np.exp(at_early.log_scale) * sigmas.distance)
        todo = np.ones(len(which), bool)
        if failed is not None:
            known, ways = failed.ways(which)
            self.chi_square[which[known]] = self._chi_squares(error[known], sigmas.select(known), ways)
            todo[known] = self.chi_square[which[known]] <= self.drift.limit
        node = self._coarse.node
        ways = self._ways.find(
            node[early[todo]], node[late[todo]], at_late.target[todo], self.closed.nodes.center
        )
        self.chi_square[which[todo]] = self._chi_squares(error[todo], sigmas.select(todo), ways)
        self.way_frames[which[todo]] = ways.num_frames
        if failed is not None:
            failed.note(which[todo], ways, self.chi_square[which[todo]] > self.drift.limit)

    def _chi_squares(self, error: Float, sigmas: Sigmas, ways: Ways) -> Float:
        """(w,) of misclosures (w, 7), under the drift along the ways and the events' own sigmas (w,)."""
        is_joined = np.isfinite(ways.num_frames)
        # The way is known up to the node at both its ends.
        frames = np.where(is_joined, ways.num_frames, 0.0) + self._config.coarse_frames
        rate = ways.covariance_rate + self._config.coarse_frames * self._at_nodes()
        turned = self._noise.rotation_rate**2 * frames
        # A scale that is fixed does not drift: lengths err from window to window.
        grown = self._noise.scale_rate**2 * (frames if self._is_free else self._noise.num_frames)
        factor = self.drift.factor * np.stack([turned, np.broadcast_to(grown, frames.shape)], 1)
        covariance = factor[:, 0, None, None] * rate[:, 0] + factor[:, 1, None, None] * rate[:, 1]
        own = np.stack([sigmas.rotation_rad] * 3 + [sigmas.distance] * 3 + [sigmas.log_scale], 1) ** 2
        covariance[:, np.arange(7), np.arange(7)] += own
        d = self._dof
        solved = np.linalg.solve(covariance[:, :d, :d], error[:, :d, None])[..., 0]
        # Nothing speaks against an event between parts that no way joins.
        return np.where(is_joined, np.einsum("ka,ka->k", error[:, :d], solved), 0.0)

    def _at_nodes(self) -> Float:
        """(2, 7, 7) what a frame's turn and stretch do to a place as far off as the next node."""
        center = self.closed.nodes.center
        step = np.linalg.norm(center[self._coarse.later] - center[self._coarse.earlier], axis=1)
        square = float(np.median(step)) ** 2 if len(step) else 0.0
        turn, stretch = [1.0] * 3 + [square] * 3 + [0.0], [0.0] * 3 + [square] * 3 + [1.0]
        return np.stack([np.diag(turn), np.diag(stretch)])

    def _close(self, chosen: Bool, *, is_far: bool) -> None:
        """Closes events besides those closed already. is_far: whether the map may have to turn far for it."""
        self.is_closed |= chosen
        events, coarse, which = self._events, self._coarse, np.flatnonzero(self.is_closed)
        center = self._odometry.center()[coarse.row]
        span = (coarse.row[coarse.later] - coarse.row[coarse.earlier]).astype(np.float64)
        length = np.linalg.norm(center[coarse.later] - center[coarse.earlier], axis=1)
        length += 0.1 * float(np.median(length)) if len(length) else 0.0
        # Errors that add up in proportion over a typical way, as independent ones of each step.
        root = np.sqrt(span * self.drift.typical_way * self.drift.factor)
        steps = Sigmas(
            self._noise.rotation_rate * root,
            length * (self._noise.relative + self._noise.scale_rate * root),
            self._noise.scale_rate * root,
        )
        self.closed = close_loops(
            coarse, self._odometry,
            Claims(events.early[which], events.late[which], events.correction.select(which)),
            steps, events.sigmas.select(which),
            start=None if is_far else self.closed.nodes, is_free=self._is_free,
        )  # fmt: skip
        self._ways.open((coarse.node[events.early[which]], coarse.node[events.late[which]]))

    def closed_rotation_rate(self) -> float:
        """Rotation error that explains the closed loops as a random walk: radians for the root of a frame."""
        return self._noise.rotation_rate * float(np.sqrt(self.drift.factor * self.drift.typical_way))

    def revisits_rotation_rate(self) -> float:
        """The same as closed revisits tell it, whatever the graph's own edges say."""
        return self._noise.rotation_rate * float(np.sqrt(self.drift.of_revisits * self.drift.typical_way))


class _FailedWays:
    """The ways of sampled events that have failed on them, kept until they fail no more."""

    def __init__(self, is_sampled: Bool) -> None:
        self._slot = np.cumsum(is_sampled) - 1
        count = int(is_sampled.sum())
        self._is_known = np.zeros(count, bool)
        self._ways = Ways(np.zeros(count), np.zeros((count, 2, 7, 7)))

    def is_known(self, which: Int) -> Bool:
        """(w,) whether sampled events have failed."""
        return self._is_known[self._slot[which]]

    def ways(self, which: Int) -> tuple[Int, Ways]:
        """Places in `which` of the sampled events that have failed, and the ways that they failed on."""
        slot = self._slot[which]
        known = np.flatnonzero(self._is_known[slot])
        return known, Ways(*(column[slot[known]] for column in self._ways))

    def note(self, which: Int, ways: Ways, failed: Bool) -> None:
        """Keeps the ways (w,) of sampled events that have failed."""
        slot = self._slot[which]
        self._is_known[slot] = failed
        for column, values in zip(self._ways, ways, strict=True):
            column[slot[failed]] = values[failed]


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
