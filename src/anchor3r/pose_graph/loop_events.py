"""Loop events in numbers: what each group of loop edges says of the odometry, and each event of its groups.

A group sees its anchor from around its members. Each edge votes for where the anchor is; the largest set of
votes that agree, in the scatter that groups have, is what the group says: a correction of the odometry around
its anchor. The groups of one event are averaged. Neighbouring events of one revisit measure the same
correction, so that their differences tell how well events know it.

Shapes: g groups of loop edges, k events.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import chi2

from anchor3r.geometry import SE3, so3_exp, so3_log
from anchor3r.kernels import kernel
from anchor3r.pose_graph.coarse import Corrections, Sigmas
from anchor3r.pose_graph.drift import WindowNoise
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.linalg import so3
from anchor3r.pose_graph.topology import Topology
from anchor3r.robust import MEDIAN_NORM_3, medians_by

Float = NDArray[np.floating[Any]]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

_FEW = 5  # pairs of neighbouring events that say nothing about the noise of events
_LEAST_SCALE_SIGMA = 1e-3
_NO_SCALE_SIGMA = 1e3  # of an event that does not tell its scale
_EXPECTED_LOG_SCALE = 0.5  # standard deviation of a group's log scale over odometry's, before it is measured


class LoopGroups(NamedTuple):
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
    """(g,) whether its edges differ by less than what they measure, or by no more than they promise"""
    scatter: Float
    """(g, 2) standard deviations of rotation and translation with which edges differ from one of them, at
    least as in the typical group. Unlike `sigmas` nothing is in it that odometry promises of itself, which is
    no evidence against a group"""
    promised: Float
    """(g, 2) the same as the typical edge promises, and odometry with it where both promise next to nothing;
    NaN if edges promise nothing"""

    def inflation(self, shared: float) -> Float:
        """(g,) variance of edges over what they promise, or over that of the typical group; at least 1.

        shared: variance of an event over the scatter of its edges.
        """
        sigma = np.stack([self.sigmas.rotation_rad, self.sigmas.distance], 1)
        if not len(sigma):
            return np.ones(0)
        typical = (sigma[:, 0] / sigma[:, 0].min()) ** 2
        promised = (shared * (self.scatter / self.promised) ** 2).max(1)
        return np.where(np.isnan(promised), typical, np.maximum(promised, 1.0))


def condense_groups(
    edges: Edges,
    topology: Topology,
    odometry: SE3,
    noise: WindowNoise,
    significance: float,
    is_free: bool,
) -> LoopGroups:
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
        axes = np.swapaxes(odometry.rotation[member], 1, 2) @ measured.rotation
        _scale_of_groups(start, odometry_center, seen, axes, log_scale, scale_sigma)
        told = np.nan_to_num(edges.log_scale_sigma[loops[start[:-1]]])
        scale_sigma = np.hypot(np.maximum(scale_sigma, _LEAST_SCALE_SIGMA), told)
    grown = np.exp(np.repeat(log_scale, np.diff(start)))[:, None] * measured.translation
    votes = SE3(measured.rotation, grown).inverse() @ odometry[member]
    arguments = start, np.ascontiguousarray(votes.rotation), votes.center(), odometry_center
    reach = np.empty(g)
    _scatter(*arguments, spread, reach, middle, member)
    # A handful of votes tells its own scatter badly: none is taken to be better than the typical group.
    relative = spread[:, 1] / reach
    typical = np.median(np.stack([spread[:, 0], relative], 1), 0) if g else np.zeros(2)
    scatter = np.stack([np.maximum(spread[:, 0], typical[0]), reach * np.maximum(relative, typical[1])], 1)
    rotation_sigma = np.maximum(scatter[:, 0], noise.rotation_rad)
    distance_sigma = np.maximum(scatter[:, 1], reach * noise.relative)
    quantile = _quantile(significance)
    _agree(*arguments, quantile * rotation_sigma, quantile * distance_sigma, rotation, center, agreeing)
    turn = np.swapaxes(rotation, 1, 2) @ odometry.rotation[anchor]
    correction = Corrections(turn, odometry.center()[anchor], center, log_scale)
    sigmas = Sigmas(rotation_sigma, distance_sigma, scale_sigma)
    promised = _promised(edges, loops, start)
    says_something = quantile * np.maximum(spread[:, 0], relative) < 1
    # Edges and odometry that promise little, and keep it, contradict nothing, however little they say.
    between = noise.rotation_rad * np.stack([np.ones(g), reach], 1)
    is_weak = ~says_something & (MEDIAN_NORM_3 * spread <= quantile * np.hypot(promised, between)).all(1)
    promised = np.where(is_weak[:, None], scatter, promised)
    is_sound = (says_something | is_weak) & (3 * agreeing > np.diff(start))
    return LoopGroups(
        group, np.diff(start), anchor, middle, correction, agreeing, sigmas, reach, is_sound, scatter,
        promised,
    )  # fmt: skip


def _promised(edges: Edges, loops: Int, start: Int) -> Float:
    """(g, 2) standard deviations of rotation and translation of each group's median edge; NaN without any."""
    variance = np.full((len(loops), 2), np.nan)
    known = np.flatnonzero(edges.has_information()[loops])
    if len(known):
        diagonal = np.einsum("mkk->mk", edges.information[loops[known]])
        told = np.stack([diagonal[:, :3].mean(1), diagonal[:, 3:].mean(1)], 1)
        variance[known] = 1 / np.maximum(told, 1e-300)
    group = np.repeat(np.arange(len(start) - 1), np.diff(start))
    return np.sqrt(np.stack([medians_by(group, column) for column in variance.T], 1))


@kernel
def _scale_of_groups(
    start: Int, center: Float, seen: Float, axes: Float, log_scale: Float, sigma: Float
) -> None:
    """Log of the members' distances by odometry (center) over those in the group (seen), and its spread.

    axes (m, 3, 3): world_from_anchor rotation by each edge. Where members hardly move, distances are noise,
    which makes them longer by as much as they fall short of pointing the same way: that is part of the
    spread, and an estimate that is no better than what is expected anyhow gives way to that.
    """
    expected = _EXPECTED_LOG_SCALE**2
    for g in range(len(start) - 1):
        far_sq, near_sq, along = _distances_of_group(start[g], start[g + 1], center, seen, axes)
        if len(far_sq) < 3:
            continue
        ratio, num_members = 0.5 * np.log(far_sq / near_sq), start[g + 1] - start[g]
        alike = along.sum() / np.sqrt(far_sq.sum() * near_sq.sum())
        alike -= 2 * (1 - alike**2) / np.sqrt(3 * (num_members - 1))  # by chance it may be less
        log_scale[g], sigma[g] = 0.0, _EXPECTED_LOG_SCALE
        if alike > 0:
            measured = np.median(ratio)
            spread = 1.4826 * np.median(np.abs(ratio - measured))
            variance = (1.2533 * spread) ** 2 / min(len(ratio), num_members) + np.log(min(alike, 1.0)) ** 2
            trust = expected / (expected + variance)
            log_scale[g], sigma[g] = trust * measured, np.sqrt(trust * variance)


@kernel
def _distances_of_group(
    first: int, end: int, center: Float, seen: Float, axes: Float
) -> tuple[Float, Float, Float]:
    """Squares of the distances between members of edges first to end, by odometry and in the group, and the
    products of both as vectors; of the longer half, since short distances are noise."""
    out, count = np.empty((3, (end - first) * (end - first))), 0
    for a in range(first, end):
        world_from_anchor = so3.load33(axes[a])
        for b in range(a + 1, end):
            far = so3.load3(center[a] - center[b])
            near = so3.apply(world_from_anchor, so3.load3(seen[a] - seen[b]))
            if so3.norm_sq(far) > 0 and so3.norm_sq(near) > 0:
                out[0, count], out[1, count] = so3.norm_sq(far), so3.norm_sq(near)
                out[2, count] = far[0] * near[0] + far[1] * near[1] + far[2] * near[2]
                count += 1
    far_sq, near_sq, along = out[0, :count], out[1, :count], out[2, :count]
    is_long = far_sq >= np.median(far_sq) if count else far_sq > 0
    return far_sq[is_long], near_sq[is_long], along[is_long]


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
                angle[e - first] = _angle_between(rotation[e], rotation[pivot])
                distance[e - first] = np.sqrt(so3.norm_sq(so3.load3(center[e] - center[pivot])))
                apart = so3.load3(member_center[e] - member_center[pivot])
                length[e - first] = np.sqrt(so3.norm_sq(apart))
            spread[g, 0] = min(spread[g, 0], np.median(angle) / MEDIAN_NORM_3)
            spread[g, 1] = min(spread[g, 1], np.median(distance) / MEDIAN_NORM_3)
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
    return _angle_between(rotation[a], rotation[b]) <= max_angle


@kernel
def _angle_between(a: Float, b: Float) -> float:
    """Radians; |A - B|² = 8 sin²(angle / 2) is exact for small angles too."""
    square = 0.0
    for row in range(3):
        for column in range(3):
            square += (a[row, column] - b[row, column]) ** 2
    return 2 * np.arcsin(min(1.0, np.sqrt(square / 8)))


class LoopEvents(NamedTuple):
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


def combine_groups(
    groups: LoopGroups, event_of: Int, first: Int, odometry: SE3, significance: float
) -> LoopEvents:
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
    is_sound = (count > 0) & (_quantile(significance) * np.maximum(turned, moved / reach) < 1)
    return LoopEvents(early, late, correction, Sigmas(*sigmas), is_sound)


def _spread(value: Float, event_of: Int, counts: Bool) -> Float:
    """(k,) root mean square of a coordinate of the values (g, 3) that count, about each event's mean."""
    num = np.bincount(event_of, counts)
    mean = np.stack([np.bincount(event_of, counts * column) for column in value.T], 1) / num[:, None]
    return np.sqrt(np.bincount(event_of, counts * ((value - mean[event_of]) ** 2).mean(1)) / num)


def _quantile(significance: float) -> float:
    """A quantile of the length of the difference of two 3-vectors of unit Gaussians."""
    return float(np.sqrt(2 * chi2.isf(significance, 3)))


class Neighbours:
    """Which events measure the same correction as others nearby, and which revisits they form."""

    def __init__(
        self,
        events: LoopEvents,
        odometry: SE3,
        noise: WindowNoise,
        *,
        reach: int,
        significance: float,
        is_free: bool,
    ) -> None:
        """reach: frames between neighbours at most, at both ends."""
        k = len(events.late)
        order = np.argsort(events.late, kind="stable")
        pairs = _pairs_within(order, events.early, events.late, reach)
        sound = events.is_sound[pairs].all(0) if len(pairs[0]) else np.zeros(0, bool)
        a, b = pairs[:, sound]
        square, dof = self._squares(a, b, events, odometry, noise, is_free)
        typical = float(np.median(square)) / chi2.median(dof) if len(square) >= _FEW else 1.0
        self.inflation = max(1.0, typical)
        """Variance of an event over the scatter of its own edges, which share some of their errors."""
        agree = square <= self.inflation * chi2.isf(significance, dof)
        self.supporters = np.bincount(a[agree], minlength=k) + np.bincount(b[agree], minlength=k)
        self.opponents = np.bincount(a[~agree], minlength=k) + np.bincount(b[~agree], minlength=k)
        # One that most of its neighbours contradict joins no revisit: it is decided on by itself.
        backed = self.supporters > self.opponents
        agree &= backed[a] & backed[b]
        graph = coo_array((np.ones(int(agree.sum())), (a[agree], b[agree])), shape=(k, k))
        self.revisit = connected_components(graph, directed=False)[1].astype(np.int64)
        """(k,) number of each event's revisit"""

    def inflated(self, events: LoopEvents) -> LoopEvents:
        root = np.sqrt(self.inflation)
        return events._replace(sigmas=Sigmas(*(root * sigma for sigma in events.sigmas)))

    @staticmethod
    def _squares(
        a: Int, b: Int, events: LoopEvents, odometry: SE3, noise: WindowNoise, is_free: bool
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
