"""One scale per frame: what a window calls 1 may drift, and overlapping windows measure by how much.

The translation of an edge is in the scale of its anchor's window; in the map's scale it is exp(log_scale[t])
times as long. Two windows that have seen the same frames disagree on the distances between them by the ratio
of their scales; so do a loop event and the window of a frame it looks at. The logs of these ratios, those
that edges carry, and a random walk from frame to frame make a linear problem, solved robustly.

Shapes: n frames (rows), m edges, q measured ratios ("ties").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import kernel
from anchor3r.pose_graph.edges import EdgeKind, Edges, MotionGraph
from anchor3r.pose_graph.linalg import so3
from anchor3r.pose_graph.linalg.laplacian import Laplacian
from anchor3r.pose_graph.linalg.step_solvers import ScaleTies
from anchor3r.pose_graph.report import Report, Status, Stopwatch
from anchor3r.pose_graph.topology import Topology, components_of, topology_of
from anchor3r.robust import MEDIAN_OVER_MEAN, SIGMA_PER_MAD

Float = NDArray[np.float64]
Int = NDArray[np.int64]

_MEDIAN_CHI_SQ_1 = 0.4549
_LEAST_SIGMA = 1e-4  # no ratio is known better
_FEW = 5  # loops that do not tell anything about the walk
_WALK_FRAMES = 32  # over which the walk is measured on a solution
_WALK_PASSES, _TREND_PASSES = 3, 2  # how often, without and with a trend: few, as every pass smooths
_TREND_FRAMES = 256  # to each side, over which drift is averaged,
_TREND_PARTS = 8  # or this part of a short track
_UNRELATED_SIGMA = 10.0  # of the log scales of two tracks before a loop tells their ratio: any
_TREND_GAIN = 0.7  # how far a trend has to narrow the walk to be accepted


@dataclass(frozen=True, kw_only=True)
class ScaleConfig:
    """What is expected of scales."""

    walk_sigma: float | None = None
    """Standard deviation of a log scale's change from one frame to the next; None measures it."""
    default_walk_sigma: float = 1e-3
    """Standard deviation of that change where there is no loop to measure it on."""
    min_walk_sigma: float = 1e-5
    """A measured standard deviation of that change is not taken to be smaller."""
    width: float = 3.0
    """Error, in standard deviations, at which a ratio has lost three quarters of its weight."""
    max_iterations: int = 20
    """Reweighted solves at most."""
    tolerance: float = 1e-5
    """Converged when no log scale changes by more."""

    def __post_init__(self) -> None:
        sigmas = (self.default_walk_sigma, self.min_walk_sigma, self.width, self.tolerance)
        if not min(sigmas) > 0 or (self.walk_sigma is not None and not self.walk_sigma > 0):
            raise ValueError(f"sigmas, width and tolerance must be positive: {self}")
        if self.max_iterations < 1:
            raise ValueError(f"max_iterations must be at least 1: {self}")


_DEFAULT = ScaleConfig()


def average_scales(graph: MotionGraph, config: ScaleConfig = _DEFAULT) -> tuple[Float, Report]:
    """log_scale (n,) of graph.frames(), 0 at the first frame of each component; and the report.

    The report's details have what was found of the walk: `walk_sigma` and whether it is around a
    `steady_drift`.
    """
    stopwatch = Stopwatch()
    edges = graph.edges
    topology = topology_of(edges)
    track = tracks_of(edges, topology)
    solution, walk = _walked(topology, track, measured_ties(edges, topology), config)
    return solution.log_scale, Report(
        status=solution.status, iterations=solution.iterations, cost=solution.cost,
        initial_cost=solution.initial_cost, num_frames=len(topology.frames), num_edges=len(edges),
        num_components=topology.num_components, cpu_seconds=stopwatch.seconds(),
        details={"walk_sigma": walk.sigma, "steady_drift": bool(walk.trend.any())},
    )  # fmt: skip


class Walk(NamedTuple):
    """How scales are expected to change from frame to frame."""

    sigma: float
    trend: Float
    """(n,) the log scales that they change around; all 0 if there is no steady drift"""


def expected_walk(log_scale: Float, track: Int, report: Report) -> Walk:
    """What `average_scales` has found of the walk."""
    trend = steady_drift(log_scale, track) if report.details["steady_drift"] else np.zeros_like(log_scale)
    return Walk(report.details["walk_sigma"], trend)


def _walked(topology: Topology, track: Int, ties: ScaleTies, config: ScaleConfig) -> tuple[_Solution, Walk]:
    """Solves with the walk that the solution itself suggests."""
    flat = np.zeros(len(topology.frames))
    walk = Walk(config.walk_sigma or _walk_until_loops(topology, ties, config), flat)
    tied = joined(ties, walk_ties(topology, track, walk))
    system = Laplacian(replace(topology, i=tied.a, t=tied.b))
    solution = _solve(system, ties, walk_ties(topology, track, walk), flat, config)
    if config.walk_sigma is not None:
        return solution, walk
    for _ in range(_WALK_PASSES):
        walk = Walk(min(walk.sigma, max(_walk_of(solution.log_scale, track), config.min_walk_sigma)), flat)
        solution = _solve(system, ties, walk_ties(topology, track, walk), solution.log_scale, config)
    drifting, drift = solution, walk
    for _ in range(_TREND_PASSES):
        trend = steady_drift(drifting.log_scale, track)
        drift = Walk(max(_walk_of(drifting.log_scale - trend, track), config.min_walk_sigma), trend)
        if drift.sigma > _TREND_GAIN * walk.sigma:  # a trend always fits better; it has to explain something
            return solution, walk
        drifting = _solve(system, ties, walk_ties(topology, track, drift), drifting.log_scale, config)
    return drifting, drift


def in_one_scale(edges: Edges, log_scale: Float, topology: Topology) -> Edges:
    """The edges with translations in the map's scale."""
    return replace(edges, translation=edges.translation * np.exp(log_scale[topology.t])[:, None])


def measured_ties(edges: Edges, topology: Topology) -> ScaleTies:
    """All ratios that windows and loops measure, and those that edges carry."""
    n = len(topology.frames)
    used = np.flatnonzero(edges.weight > 0)
    order = used[np.lexsort((topology.i[used], edges.group[used]))]
    starts = np.flatnonzero(np.diff(edges.group[order], prepend=-1))
    starts = np.append(starts, len(order)).astype(np.int64)
    is_window = edges.kind[order[starts[:-1]]] == EdgeKind.WINDOW
    anchor = topology.t[order[starts[:-1]]]
    window_at = np.full(n, -1)
    window_at[anchor[is_window]] = np.flatnonzero(is_window)
    center = -np.einsum("mji,mj->mi", edges.rotation[order], edges.translation[order])
    # A predictor that says how well it knows its scale knows why: its own windows, which may share errors,
    # cannot tell better.
    told = np.nan_to_num(edges.log_scale_sigma[order])
    floor = np.maximum.reduceat(told, starts[:-1]) if len(order) else told
    a, b, value, sigma = _compare_windows(starts, anchor, window_at, topology.i[order], center, floor)
    return joined(ScaleTies(a, b, value, sigma**-2.0), carried_ties(edges, topology))


@kernel
def _compare_windows(
    start: Int, anchor: Int, window_at: Int, member: Int, center: Float, floor: Float
) -> tuple[Int, Int, Float, Float]:
    """For each group and its latest member that has a window of its own: log of the ratio of their scales.

    Edges are in the order of groups and, in each, of members; center (m, 3) is the member's centre in the
    anchor's axes. Distances are compared from the frame that anchors the other window, where it has no error.
    floor: least spread of each group's ratio.
    """
    groups = len(anchor)
    a, b = np.empty(groups, np.int64), np.empty(groups, np.int64)
    value, sigma, count = np.empty(groups), np.empty(groups), 0
    ratios = np.empty(len(member))
    for g in range(groups):
        pivot = start[g + 1] - 1
        while pivot >= start[g] and (window_at[member[pivot]] < 0 or window_at[member[pivot]] == g):
            pivot -= 1
        if pivot < start[g]:
            continue
        other = window_at[member[pivot]]
        common, theirs = 0, start[other]
        for mine in range(start[g], start[g + 1]):
            while theirs < start[other + 1] and member[theirs] < member[mine]:
                theirs += 1
            if theirs == start[other + 1]:
                break
            if member[theirs] == member[mine] and mine != pivot:
                near = so3.norm_sq(so3.load3(center[mine] - center[pivot]))
                far = so3.norm_sq(so3.load3(center[theirs]))
                if near > 0 and far > 0:
                    ratios[common] = 0.5 * np.log(far / near)
                    common += 1
        if common < 3:
            continue
        middle = np.median(ratios[:common])
        spread = SIGMA_PER_MAD * np.median(np.abs(ratios[:common] - middle))
        a[count], b[count], value[count] = anchor[g], member[pivot], middle
        sigma[count] = max(MEDIAN_OVER_MEAN * spread / np.sqrt(common), _LEAST_SIGMA, floor[g])
        count += 1
    # A handful of ratios tells its own spread badly: none is taken to be much better than the typical one.
    typical = np.median(sigma[:count]) if count else 1.0
    return a[:count], b[:count], value[:count], np.maximum(sigma[:count], typical)


def carried_ties(edges: Edges, topology: Topology) -> ScaleTies:
    """The ratios that edges carry: log_scale[t] - log_scale[i]."""
    carried = np.flatnonzero(
        (edges.weight > 0) & np.isfinite(edges.log_scale_ratio) & (edges.log_scale_sigma > 0)
    )
    sigma = np.maximum(edges.log_scale_sigma[carried], _LEAST_SIGMA)
    return ScaleTies(topology.t[carried], topology.i[carried], edges.log_scale_ratio[carried], sigma**-2.0)


def walk_ties(topology: Topology, track: Int, walk: Walk) -> ScaleTies:
    """Neighbouring frames of a track have nearly the same scale, or differ as the trend does.

    Tracks of one component, which only loops join, may have any scale each: loops tell their ratio.
    """
    order = np.lexsort((track, topology.component))
    same = topology.component[order[1:]] == topology.component[order[:-1]]
    later, earlier = order[1:][same], order[:-1][same]
    gap = topology.frames[later] - topology.frames[earlier]
    value, variance = walk.trend[later] - walk.trend[earlier], walk.sigma**2 * gap
    is_other = track[later] != track[earlier]
    value[is_other], variance[is_other] = 0.0, _UNRELATED_SIGMA**2
    return ScaleTies(later, earlier, value, 1 / variance)


def tracks_of(edges: Edges, topology: Topology) -> Int:
    """(n,) which frames windows alone join, numbered by first frame."""
    window = (edges.kind == EdgeKind.WINDOW) & (edges.weight > 0)
    return components_of(len(topology.frames), topology.i[window], topology.t[window])[0]


def steady_drift(log_scale: Float, track: Int) -> Float:
    """(n,) the slow part of log scales: a moving average that keeps lines straight up to a track's ends."""
    trend = np.zeros_like(log_scale)
    for label in np.flatnonzero(np.bincount(track) >= _TREND_PARTS):
        rows = np.flatnonzero(track == label)
        half = min(_TREND_FRAMES, len(rows) // _TREND_PARTS)
        padded = np.pad(log_scale[rows], half, mode="reflect", reflect_type="odd")
        trend[rows] = np.convolve(padded, np.full(2 * half + 1, 1 / (2 * half + 1)), "valid")
    return trend


def joined(*ties: ScaleTies) -> ScaleTies:
    """All of them."""
    return ScaleTies(*(np.concatenate(columns) for columns in zip(*ties, strict=True)))


def _walk_until_loops(topology: Topology, ties: ScaleTies, config: ScaleConfig) -> float:
    """Change a frame, from how far scales have walked when loops close."""
    gap = np.abs(topology.frames[ties.a] - topology.frames[ties.b])
    far = gap > 10 * np.median(gap) if len(gap) else np.zeros(0, bool)
    if far.sum() < _FEW:
        return config.default_walk_sigma
    walked = np.median((ties.value[far] ** 2 - 1 / ties.weight[far]) / gap[far]) / _MEDIAN_CHI_SQ_1
    return float(np.sqrt(max(walked, config.min_walk_sigma**2)))


def _walk_of(log_scale: Float, track: Int) -> float:
    """Change a frame, from solved scales of a track some way apart."""
    lag = min(_WALK_FRAMES, len(log_scale) // 4)
    if lag < 1:
        return np.inf
    change = (log_scale[lag:] - log_scale[:-lag])[track[lag:] == track[:-lag]]
    return float(np.sqrt(np.median(change**2) / _MEDIAN_CHI_SQ_1 / lag)) if len(change) else np.inf


class _Solution(NamedTuple):
    log_scale: Float
    status: Status
    iterations: int
    initial_cost: float
    cost: float


def _solve(
    system: Laplacian, measured: ScaleTies, walk: ScaleTies, start: Float, config: ScaleConfig
) -> _Solution:
    """Reweighted least squares; only measured ratios can be outliers."""
    ties, count = joined(measured, walk), len(measured.a)
    if len(ties.a) == 0:
        return _Solution(start, Status.TRIVIAL, 0, 0.0, 0.0)
    log_scale, status = start, Status.MAX_ITERATIONS
    costs: list[float] = []
    shrink = np.ones(len(ties.a))
    while len(costs) < config.max_iterations and status is Status.MAX_ITERATIONS:
        previous = log_scale
        square = ties.weight * (log_scale[ties.a] - log_scale[ties.b] - ties.value) ** 2
        # Wide at first: while half of the ratios are far off, they are not the outliers.
        inflation = max(1.0, float(np.median(square[:count])) / _MEDIAN_CHI_SQ_1) if count else 1.0
        shrink[:count] = 1 / (1 + square[:count] / (config.width**2 * inflation))
        costs.append(0.5 * float(shrink @ square))
        solved = system.least_squares(ties.weight * shrink**2, ties.value[:, None])
        assert solved is not None, "the walk joins all frames of a component"
        log_scale = solved[:, 0]
        if np.abs(log_scale - previous).max() < config.tolerance:
            status = Status.CONVERGED
    return _Solution(log_scale, status, len(costs), costs[0], costs[-1])
