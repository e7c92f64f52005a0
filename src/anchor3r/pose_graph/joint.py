"""Joint refinement: rotations, centres and free scales of all frames in one robust least-squares problem.

Every edge adds its error in the metric of its noise, under a Geman–McClure loss. Noise is that of information
matrices where edges carry them; else it is measured on the graph itself at the current state (`noise`), wide
while loops are still open and narrower with every step, which is what graduates the loss. Loop events are
judged first (`verification`), and once more at the end; those that contradict the rest are cut as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3
from anchor3r.pose_graph.averaging.chordal import chordal_initialisation
from anchor3r.pose_graph.averaging.scales import (
    ScaleConfig,
    average_scales,
    carried_ties,
    expected_walk,
    in_one_scale,
    joined,
    tracks_of,
    walk_ties,
)
from anchor3r.pose_graph.correction import smoothly_moved
from anchor3r.pose_graph.covariance import pose_covariances, shared_inflation, without_copies
from anchor3r.pose_graph.drift import WindowNoise, independent_rotation_rate, window_noise
from anchor3r.pose_graph.edges import EdgeKind, Edges, MotionGraph
from anchor3r.pose_graph.gauss_newton import (
    ErrorModel,
    Minimisation,
    PoseProblem,
    cost_at,
    minimise,
    quadratic_model,
)
from anchor3r.pose_graph.linalg.step_solvers import (
    NO_TERMS,
    NO_TIES,
    BlockTerms,
    DirectSolver,
    ScaleTies,
    Structure,
    TwoLevelSolver,
    make_step_solver,
)
from anchor3r.pose_graph.measured_drift import SlowNoiseKnots, drift_rate, measure_drift
from anchor3r.pose_graph.noise import ErrorModelEstimator
from anchor3r.pose_graph.online import estimate_trajectory
from anchor3r.pose_graph.placement import (
    Knowledge,
    MeasuredDrift,
    Normal,
    Placed,
    PlacementConfig,
    place,
    solve_with_priors,
)
from anchor3r.pose_graph.pose_system import Float, PoseEdges, PoseState
from anchor3r.pose_graph.priors import (
    BLOCK,
    Directions,
    Distances,
    Int,
    Positions,
    PriorKind,
    PriorSystem,
    Scales,
    in_rows,
)
from anchor3r.pose_graph.report import Report, Status, Stopwatch
from anchor3r.pose_graph.revisits import VerificationConfig
from anchor3r.pose_graph.topology import Topology, components_of, topology_of
from anchor3r.pose_graph.verification import EventVerdicts, Verification, verify_loops

_FEW = 3  # edges of an event, of which two can outvote one
_HOPELESS = 10.0
"""A start that costs so many times what another one has led to is not tried: it lies in another valley."""
_NOT_RUN = Minimisation(Status.MAX_ITERATIONS, 0, 0, np.nan, np.nan)
_NEAR = 100
"""Frames that ties of scales span which windows and the walk make; those of loops span more."""
_MAX_ALONE, _TOLERANCE_ALONE = 10, 1e-2
"""Steps of a solution without loops, whose residuals are looked at in the median."""
_EXPECTED_ITERATIONS = {"gm": 10, "none": 100}
"""Of conjugate gradients in a step; to the last digit of plain least squares they take many more of them."""


@dataclass(frozen=True, kw_only=True)
class RefineConfig:
    """What is minimised and when it is good enough."""

    loss: Literal["gm", "none"] = "gm"
    """Geman–McClure with loop events judged, or plain least squares for graphs without outliers."""
    scale: Literal["fixed", "free"] = "fixed"
    """Whether all windows have one scale, or each its own that drifts from frame to frame."""
    width: float = 7.0
    """Error, in standard deviations, at which an edge has lost three quarters of its weight."""
    max_iterations: int = 100
    """Steps at most."""
    relative_tolerance: float = 1e-4
    """Converged when a step lowers the cost by less than this part of it; "none" takes 1e-5 of this."""
    solver: Literal["auto", "direct", "iterative"] = "auto"
    """Steps by factorisation or by conjugate gradients; auto takes what the structure makes cheaper."""
    inner_tolerance: float = 0.1
    """Of conjugate gradients, relative to the gradient."""
    inner_iterations: int = 100
    """Of conjugate gradients, at most in a step."""
    verification: VerificationConfig = VerificationConfig()
    """How loop events are judged."""
    scales: ScaleConfig = ScaleConfig()
    """How scales are averaged where they are free."""
    placement: PlacementConfig = PlacementConfig()
    """How a map is placed by what is known from elsewhere."""

    def __post_init__(self) -> None:
        if self.loss not in ("gm", "none") or self.scale not in ("fixed", "free"):
            raise ValueError(f"loss is gm or none, scale is fixed or free: {self}")
        if not (self.width > 0 and self.relative_tolerance > 0 and 0 < self.inner_tolerance < 1):
            raise ValueError(f"width and tolerances must be positive, inner_tolerance below 1: {self}")
        if self.max_iterations < 1 or self.inner_iterations < 1:
            raise ValueError(f"iterations must be at least 1: {self}")


_DEFAULT = RefineConfig()
_NONE: NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(frozen=True)
class RefinedPoses:
    """The answer, by the graph's frames (n,)."""

    camera_from_world: SE3
    """the first frame of each component is where the start had it"""
    log_scale: NDArray[np.float64]
    """(n,) log of each window's scale, in that of the first frame's; 0 if scales are fixed"""
    events: EventVerdicts | None
    """on every loop event; None if they were not judged (loss "none")"""
    placed: Placed | None = None
    """how the poses lie in the world that priors speak of; None if there were none"""
    covariance: NDArray[np.float64] | None = None
    """(n, 6, 6) rotation (camera axes, rad²) and centre (world axes), relative to the component as a whole
    unless priors say where it is; None unless asked for, or where it would take too long (`covariance`)"""


def refine_poses(
    graph: MotionGraph,
    initial: SE3,
    config: RefineConfig = _DEFAULT,
    *,
    odometry: SE3 | None = None,
    accepted_by_hand: NDArray[np.int64] = _NONE,
    event_of_group: NDArray[np.int64] | None = None,
    known: Knowledge | None = None,
    with_covariance: bool = False,
) -> tuple[RefinedPoses, Report]:
    """Poses camera_from_world of graph.frames(), started from `initial` (n,), and the report.

    odometry: what windows alone say (`estimate_trajectory`), if it is at hand already and scales are fixed.
    accepted_by_hand: groups of loop events that are accepted without being judged.
    event_of_group: loop event of each group; those of one event are accepted or cut together. None: one each,
    and events of too few edges to agree with themselves are left to the loss.
    known: priors, which place the poses in a world of their own; only with free scales.
    With "gm" the start is the odometry with its accepted loops closed; where events are left to the loss it
    is that, `initial` or the chordal start, whichever costs least; without loops it is `initial`. With "none"
    both `initial` and the chordal start are tried, unless one is far worse.
    """
    stopwatch = Stopwatch()
    edges = graph.edges
    topology = topology_of(edges)
    n = len(topology.frames)
    if len(initial) != n or (known is not None and config.scale != "free"):
        raise ValueError(f"{len(initial)} initial poses for {n} frames, or priors without free scales")
    if not np.any(edges.weight > 0):
        return RefinedPoses(initial, np.zeros(n), None), _nothing_done(n, len(edges), stopwatch)
    is_judged = (edges.kind == EdgeKind.LOOP) & (config.loss == "gm")
    is_lone = is_judged & _is_small(edges) if event_of_group is None else np.zeros(len(edges), bool)
    verified, log_scale = None, np.zeros(n)
    if np.any(is_judged & ~is_lone):
        verified, log_scale = verify_graph(
            edges, topology, config, is_lone,
            odometry=odometry, accepted_by_hand=accepted_by_hand, event_of_group=event_of_group,
        )  # fmt: skip
        edges = _as_verified(edges, verified)
    averaged, ties = _averaged_scales(edges, topology, config)
    starts = [PoseState.of(initial, averaged)] if verified is None or is_lone.any() else []
    starts += [] if verified is None else [_closed_state(verified, log_scale)]
    if config.loss == "none" or is_lone.any():
        starts.append(PoseState.of(chordal_initialisation(graph), averaged))
    refinement = _Refinement(edges, topology, ties, config, verified)
    # Where loops are closed already, priors need no solution without them to begin with.
    state, outcome = refinement.run(starts, is_start=known is not None and verified is not None)
    placed, alone = None, _alone(state, verified, log_scale)
    if known is not None:
        placed, outcome = refinement.place(state, known, alone)
        state = placed.state
    back = state if placed else refinement.in_gauge_of(PoseState.of(initial), state, alone)
    verdicts = None if verified is None else verified.verdicts
    covariance = refinement.covariance(state, placed, alone) if with_covariance else None
    return RefinedPoses(back.poses(), back.log_scale, verdicts, placed, covariance), Report(
        status=outcome.status, iterations=outcome.iterations, cost=outcome.cost,
        initial_cost=outcome.initial_cost, num_frames=n, num_edges=len(edges),
        num_components=refinement.topology.num_components, cpu_seconds=stopwatch.seconds(),
        details=refinement.details(verdicts) | {"inner_iterations": outcome.inner_iterations},
    )  # fmt: skip


def _nothing_done(num_frames: int, num_edges: int, stopwatch: Stopwatch) -> Report:
    return Report(
        status=Status.TRIVIAL, iterations=0, cost=0.0, initial_cost=0.0, num_frames=num_frames,
        num_edges=num_edges, num_components=num_frames, cpu_seconds=stopwatch.seconds(),
    )  # fmt: skip


def _is_small(edges: Edges) -> NDArray[np.bool_]:
    """(m,) whether the edge's group has too few edges to agree with itself."""
    return (np.bincount(edges.group) < _FEW)[edges.group]


def verify_graph(
    edges: Edges,
    topology: Topology,
    config: RefineConfig = _DEFAULT,
    left_out: NDArray[np.bool_] | None = None,
    *,
    odometry: SE3 | None = None,
    accepted_by_hand: NDArray[np.int64] = _NONE,
    event_of_group: NDArray[np.int64] | None = None,
) -> tuple[Verification, NDArray[np.float64]]:
    """Loops verified against odometry, and the log scale (n,) that windows alone give the frames.

    left_out: (m,) edges that take no part.
    """
    is_free = config.scale == "free"
    log_scale = np.zeros(len(topology.frames))
    if is_free:
        windows = replace(edges, weight=np.where(edges.kind == EdgeKind.LOOP, 0.0, edges.weight))
        log_scale, _ = average_scales(MotionGraph(windows), config.scales)
        edges = in_one_scale(edges, log_scale, topology)
    if odometry is None or is_free:
        odometry = estimate_trajectory(edges, topology=topology)
    if left_out is not None and left_out.any():
        edges, topology = edges.select(~left_out), topology.restricted(~left_out)
    return verify_loops(
        edges, odometry, config.verification, topology=topology, event_of_group=event_of_group,
        given=accepted_by_hand, is_free=is_free,
    ), log_scale  # fmt: skip


def _closed_state(verified: Verification, log_scale: NDArray[np.float64]) -> PoseState:
    """The odometry with its accepted loops closed. log_scale: what windows alone give the frames."""
    closed, growth = verified.closed.frames()
    return PoseState.of(closed, log_scale + growth)


def _alone(state: PoseState, verified: Verification | None, log_scale: NDArray[np.float64]) -> PoseState:
    """What windows alone say, as closed loops hide the drift; the state itself if there are none."""
    return state if verified is None else PoseState.of(verified.closed.odometry, log_scale)


def _as_verified(edges: Edges, verified: Verification) -> Edges:
    """Without the groups that were rejected, and with less weight on those that scatter."""
    factor = np.ones(int(edges.group.max()) + 1)
    factor[verified.verdicts.group] = verified.verdicts.accepted / verified.group_inflation
    return replace(edges, weight=edges.weight * factor[edges.group])


def _back_in_gauge(state: PoseState, start: PoseState, topology: Topology) -> PoseState:
    """Moves every component so that its first frame is where the start had it, its scale 1."""
    gauge = topology.gauge[topology.component]
    turn = np.swapaxes(start.rotation[gauge], 1, 2) @ state.rotation[gauge]  # new_from_old world
    scale = state.log_scale[gauge]
    offset = (turn @ (state.center - state.center[gauge])[..., None])[..., 0] * np.exp(-scale)[:, None]
    return PoseState(
        state.rotation @ np.swapaxes(turn, 1, 2), start.center[gauge] + offset, state.log_scale - scale
    )


def _averaged_scales(
    edges: Edges, topology: Topology, config: RefineConfig
) -> tuple[NDArray[np.float64], ScaleTies]:
    """log_scale (n,) and what ties the scales of neighbouring frames; nothing where they are fixed."""
    if config.scale == "fixed":
        return np.zeros(len(topology.frames)), NO_TIES
    log_scale, report = average_scales(MotionGraph(edges), config.scales)
    track = tracks_of(edges, topology)
    walk = walk_ties(topology, track, expected_walk(log_scale, track, report))
    return log_scale, joined(carried_ties(edges, topology), walk)


def _slow_noise(known: Knowledge, drift: MeasuredDrift | None, num_frames: int) -> SlowNoiseKnots | None:
    """Of the receiver of positions, if it was measured."""
    if drift is None:
        return None
    positions: Any = known.kinds[_first_positions(known.kinds)]
    return None if positions.moment_s is None else SlowNoiseKnots(positions, drift, num_frames)


def _log_scale_error(kind: Scales | Distances, alone: PoseState) -> Float:
    """(k,) by how much what windows alone say is too small."""
    if isinstance(kind, Scales):
        return np.asarray(kind.log_scale - alone.log_scale[kind.rows[:, 0]], np.float64)
    own = kind.length + kind.linearise(alone).residual[:, 0]
    return np.asarray(np.log(kind.length / np.maximum(own, 1e-12)), np.float64)


def _first_positions(kinds: Sequence[PriorKind]) -> int:
    return next(k for k, kind in enumerate(kinds) if isinstance(kind, Positions))


def _with_noise_rows(state: PoseState, noise: Float) -> PoseState:
    """The state with rows (q, 3) of slow noise after those of frames."""
    count = len(noise)
    return PoseState(
        np.concatenate([state.rotation, np.tile(np.eye(3), (count, 1, 1))]),
        np.concatenate([state.center, noise]),
        np.concatenate([state.log_scale, np.zeros(count)]),
    )


def _is_near(ties: ScaleTies) -> NDArray[np.bool_]:
    """(q,) ties that windows and the walk make."""
    return np.abs(ties.a - ties.b) <= _NEAR


def _near(ties: ScaleTies) -> ScaleTies:
    """Those alone."""
    near = _is_near(ties)
    return ScaleTies(ties.a[near], ties.b[near], ties.value[near], ties.weight[near])


class _Refinement:
    """One graph's problem: which edges take part, with which noise, how it is solved."""

    def __init__(
        self,
        edges: Edges,
        topology: Topology,
        ties: ScaleTies,
        config: RefineConfig,
        verified: Verification | None,
    ) -> None:
        self.edges, self._ties, self._config = edges, ties, config
        self._window_inflation = 1.0 if verified is None else verified.window_inflation
        self._verified = verified
        self._knots: SlowNoiseKnots | None = None
        self._alone: tuple[_Refinement, PoseState] | None = None
        self.topology = topology
        """as the edges that take part join the frames"""
        self._pose_edges = PoseEdges(
            topology.i.astype(np.int32), topology.t.astype(np.int32), edges.rotation, edges.translation
        )
        self._used = edges.weight > 0

    def run(self, starts: list[PoseState], *, is_start: bool = False) -> tuple[PoseState, Minimisation]:
        """Minimises from the start that costs least; if there are no outliers, from the next ones too.

        is_start: only chooses the start, for `place` to go on from.
        """
        config = self._config
        # A frame that only cut edges joined is a component of its own.
        i, t = self._pose_edges.i[self._used], self._pose_edges.t[self._used]
        component, gauge = components_of(len(self.topology.frames), i, t)
        self.topology = replace(self.topology, component=component, gauge=gauge)
        is_free = config.scale == "free"
        self._problem = problem = PoseProblem(
            self._pose_edges, self._used, self._ties, self.topology.gauge, is_free
        )
        width = config.width if config.loss == "gm" else np.inf
        self._estimator = estimator = ErrorModelEstimator(
            self.edges, self._pose_edges, self._used, width=width,
            window_inflation=self._window_inflation,
        )  # fmt: skip
        if is_start and len(starts) == 1:
            return starts[0], _NOT_RUN
        solver = self._solver(problem, len(self.topology.frames))
        errors, tolerance = estimator.estimate(starts[-1]), config.relative_tolerance
        costs = [cost_at(problem, start, errors) for start in starts]
        order = np.argsort(np.nan_to_num(costs, nan=np.inf), kind="stable")
        if config.loss == "gm":
            errors = estimator.estimate(starts[order[0]])
            order = order[:1]
        else:
            tolerance *= 1e-5
        best: tuple[PoseState, Minimisation] | None = None
        for k in order:
            if best is not None and costs[k] > _HOPELESS * best[1].cost:
                break
            run = minimise(
                problem, starts[k], errors, estimator, solver,
                max_iterations=0 if is_start else config.max_iterations, relative_tolerance=tolerance,
            )  # fmt: skip
            if best is None or run[1].cost < best[1].cost:
                best = run
        assert best is not None
        return best

    def place(self, state: PoseState, known: Knowledge, alone: PoseState) -> tuple[Placed, Minimisation]:
        """Goes on from a state that `run` gave, with priors. alone: what windows alone say."""
        config, known = self._config, known.in_rows(self.topology.frames)
        noise_of_windows = self._window_noise(alone)
        drift = self._measured_drift(alone, known, noise_of_windows)
        if drift is not None:
            self._trust_windows(drift, noise_of_windows)
            known = known.changed(_first_positions(known.kinds), partial(replace, white=drift.white))
        else:
            self._trust_scales(alone, known)
            self._trust_directions(alone, known, noise_of_windows)
        estimator = self._estimator
        start, assumed = place(state, self.topology.component, known.kinds, config.placement)
        made: list[tuple[list[Int], DirectSolver | TwoLevelSolver]] = []
        outcomes: list[Minimisation] = []

        def problem_of(system: PriorSystem) -> PoseProblem:
            return PoseProblem(
                self._pose_edges, self._used, self._ties, _NONE, True, system
            )  # priors hold the gauge

        def solver_of(state: PoseState, system: PriorSystem) -> DirectSolver | TwoLevelSolver:
            rows = [kind.rows for kind in system.kinds]
            if not made or not all(map(np.array_equal, made[0][0], rows)):
                terms = system.linearise(state, np.zeros((len(state.center), BLOCK)))
                made[:] = [(rows, self._solver(problem_of(system), len(state.center), terms))]
            return made[0][1]

        def solved(state: PoseState, system: PriorSystem) -> PoseState:
            def reestimate(state: PoseState) -> ErrorModel | None:
                is_changed, errors = system.measure(state), estimator(state)
                return estimator.current()[0] if errors is None and is_changed else errors

            # A solution before this one has left the noise as it is at its end, which is the state now.
            errors = estimator.current()[0] if outcomes else estimator.estimate(state)
            found, outcome = minimise(
                problem_of(system), state, errors, reestimate, solver_of(state, system),
                max_iterations=config.max_iterations, relative_tolerance=config.relative_tolerance,
            )  # fmt: skip
            outcomes.append(outcome)
            return found

        def model(state: PoseState, system: PriorSystem) -> Normal:
            linear = quadratic_model(problem_of(system), state, estimator.current()[0])
            return linear, solver_of(state, system)

        num_frames = len(self.topology.frames)
        knots = self._knots = _slow_noise(known, drift, num_frames)
        system = PriorSystem(known.kinds, assumed, width=config.width)
        # Conjugate gradients take twice as long with unknowns that lie beside all frames.
        if knots is not None and isinstance(solver_of(start, system), DirectSolver):
            known = known.changed(_first_positions(known.kinds), knots.added_to)
            start, assumed = _with_noise_rows(start, np.zeros((len(knots.rows), 3))), [*assumed, knots.prior]
        placed = solve_with_priors(
            start, known.kinds, assumed, solved, model,
            width=config.width, clock=known.clock, num_frames=num_frames, config=config.placement,
        )  # fmt: skip
        return replace(placed, drift=drift), outcomes[-1]

    def _measured_drift(
        self, alone: PoseState, known: Knowledge, expected: WindowNoise
    ) -> MeasuredDrift | None:
        """As the positions tell it that lie on one component, the one with the most of them."""
        positions = [kind for kind in known.kinds if isinstance(kind, Positions)]
        if not positions:
            return None
        component = self.topology.component
        label = np.bincount(component[positions[0].rows[:, 0]]).argmax()
        rows = np.flatnonzero(component == label)
        own = in_rows(positions[0].select(component[positions[0].rows[:, 0]] == label), rows)
        part = PoseState(alone.rotation[rows], alone.center[rows], alone.log_scale[rows])
        return measure_drift(
            part, self.topology.frames[rows], own, expected,
            significance=self._config.placement.significance,
        )  # fmt: skip

    def _window_noise(self, alone: PoseState) -> WindowNoise:
        edges = in_one_scale(self.edges, alone.log_scale, self.topology)
        return window_noise(edges, self.topology, alone.poses(), is_free=True)

    def _trust_windows(self, drift: MeasuredDrift, expected: WindowNoise) -> None:
        """Makes window edges, and what they tell of scales, as uncertain as odometry really drifts."""
        independent = independent_rotation_rate(self.edges, self.topology, expected)
        self._inflate_windows(max(1.0, (drift.rotation_rate / independent) ** 2))
        self._loosen_ties(drift.scale_rate)

    def _trust_scales(self, alone: PoseState, known: Knowledge) -> None:
        """Makes windows as uncertain as their scales wander from those that are known all along.

        They do not tell how directions drift; so windows count without copies of one another.
        """
        for kind in known.kinds:
            if isinstance(kind, Scales | Distances):  # a speed makes a distance from each frame to the next
                rows = kind.rows[:, 0]
                rate = drift_rate(_log_scale_error(kind, alone), self.topology.frames[rows])
                if rate is not None:
                    self._inflate_windows(shared_inflation(self.edges, self.topology, alone))
                    self._loosen_ties(rate)

    def _trust_directions(self, alone: PoseState, known: Knowledge, noise: WindowNoise) -> None:
        """Makes windows as uncertain as their own down wanders from where it is known to be."""
        for kind in known.kinds:
            if not isinstance(kind, Directions):
                continue
            rows = kind.rows[:, 0]
            down = np.einsum("kji,kj->ki", alone.rotation[rows], kind.in_camera)
            across = np.linalg.svd(np.median(down, 0)[None])[2][1:]  # (2, 3)
            rates = [drift_rate(down @ axis, self.topology.frames[rows]) for axis in across]
            rate = float(np.sqrt(np.mean([value**2 for value in rates if value is not None] or [0.0])))
            expected = independent_rotation_rate(self.edges, self.topology, noise)
            self._inflate_windows(max(self._window_inflation, (rate / expected) ** 2))

    def _inflate_windows(self, inflation: float) -> None:
        self._window_inflation = inflation
        width = self._config.width if self._config.loss == "gm" else np.inf
        self._estimator = ErrorModelEstimator(
            self.edges, self._pose_edges, self._used, width=width, window_inflation=inflation
        )

    def _loosen_ties(self, scale_rate: float) -> None:
        """Has scales wander as much for the root of a frame, if ties between neighbours promise less."""
        ties = self._ties
        span = np.abs(ties.a - ties.b)
        near = _is_near(ties)
        information = float(ties.weight[near] @ span[near].astype(np.float64) ** 2)
        independent = np.sqrt(len(self.topology.frames) / max(information, 1e-300))
        factor = max(1.0, (scale_rate / independent) ** 2)
        self._ties = ties._replace(weight=np.where(near, ties.weight / factor, ties.weight))

    def covariance(
        self, state: PoseState, placed: Placed | None, alone: PoseState
    ) -> NDArray[np.float64] | None:
        """(n, 6, 6) of the poses that `run` has found, in whatever gauge, or of those that `place` has.

        alone: about what windows alone say.
        """
        if placed is not None:
            return self._placed_covariance(state, placed)
        errors, inflation = self._estimator.current()
        windows, loop_copies = self._copies_of_windows(state, alone), 1.0
        if self._verified is not None:
            # Closed revisits tell the drift; what windows say of it counts as one revisit more.
            n, loop_copies = self._verified.num_revisits, self._verified.loop_copies
            told = self._verified.revisit_inflation
            windows = windows ** (1 / (n + 1)) * told ** (n / (n + 1))
        is_window = self.edges.kind == EdgeKind.WINDOW
        # Windows count for less in the solution already, relative to loops as if those had no copies.
        factor = np.where(is_window, windows / self._window_inflation, loop_copies)
        problem, errors = without_copies(self._problem, state, errors, factor, windows)
        return pose_covariances(problem, state, errors, self.topology.component, inflation)

    def in_gauge_of(self, initial: PoseState, state: PoseState, alone: PoseState) -> PoseState:
        """The answer that `run` leads to, with the first frame of each component where it was initially."""
        return _back_in_gauge(self.shaped_by_windows(state, alone), initial, self.topology)

    def shaped_by_windows(self, state: PoseState, alone: PoseState) -> PoseState:
        """The poses that `run` has found, from frame to frame as windows alone have them.

        What windows err by and share wanders slowly, and so does what loops have to make up for. Windows that
        are trusted less beside loops also hold single frames less, which every loop edge then pulls out of
        line; so the correction is averaged over the reach of a window.
        """
        if self._window_inflation <= 1:
            return state
        windows, by_windows = self._windows_alone(alone)
        is_window = self._used & (self.edges.kind == EdgeKind.WINDOW)
        reach = int(np.ceil(np.median(np.abs(self.topology.i - self.topology.t)[is_window])))
        return smoothly_moved(by_windows, state, windows.topology.component, reach)

    def _copies_of_windows(self, state: PoseState, alone: PoseState) -> float:
        """How many times larger variances of windows are than if their errors were independent."""
        if (self.edges.kind == EdgeKind.WINDOW)[self._used].all():
            return shared_inflation(self.edges, self.topology, state)
        windows, alone = self._windows_alone(alone)
        return shared_inflation(windows.edges, windows.topology, alone)

    def _windows_alone(self, alone: PoseState) -> tuple[_Refinement, PoseState]:
        """The problem without loops, and its solution."""
        if self._alone is None:
            is_window = self.edges.kind == EdgeKind.WINDOW
            edges = replace(self.edges, weight=np.where(is_window, self.edges.weight, 0.0))
            config = replace(self._config, max_iterations=_MAX_ALONE, relative_tolerance=_TOLERANCE_ALONE)
            windows = _Refinement(edges, self.topology, _near(self._ties), config, None)
            self._alone = windows, windows.run([alone])[0]
        return self._alone

    def _placed_covariance(self, state: PoseState, placed: Placed) -> NDArray[np.float64] | None:
        """(n, 6, 6) of the poses that `place` has found, in the world of the priors."""
        errors, inflation = self._estimator.current()
        # Edges alone are so much worse than they say, not the priors.
        errors = ErrorModel(errors.information / inflation, errors.width_sq / inflation)
        system, shared, num_frames = placed.system, None, len(state.center)
        noise = placed.slow_noise
        if self._knots is not None and not len(noise):  # it is there, too, where it was not solved for
            index = _first_positions(system.kinds)
            system = system.with_error(index, self._knots.added_to, self._knots.prior)
            noise = np.zeros((len(self._knots.rows), 3))
        state = _with_noise_rows(state, noise)
        if placed.clock_sigma_s and np.isfinite(placed.clock_sigma_s):
            index = _first_positions(system.kinds)
            positions: Any = system.kinds[index]
            shared = system.forces(index, state, (placed.clock_sigma_s * positions.velocity(state))[None])
        problem = PoseProblem(self._pose_edges, self._used, self._ties, _NONE, True, system)
        found = pose_covariances(
            problem, state, errors, None,
            terms=system.linearise(state, np.zeros((len(state.center), BLOCK))),
            shared=shared,
        )  # fmt: skip
        return None if found is None else found[:num_frames]

    def details(self, verdicts: EventVerdicts | None) -> dict[str, Any]:
        """Noise as measured, by kind, and what became of loop events."""
        noise = self._estimator.noise
        kinds = [kind for kind in EdgeKind if np.isfinite(noise.rotation_rad[kind])]
        details: dict[str, Any] = {
            "rotation_noise_deg": {k.name.lower(): float(np.degrees(noise.rotation_rad[k])) for k in kinds},
            "translation_noise": {k.name.lower(): noise.translation[k] for k in kinds},
        }
        if verdicts is not None:
            details |= {
                "events": len(verdicts),
                "events_cut": int((~verdicts.accepted).sum()),
                "window_inflation": self._window_inflation,
            }
        return details

    def _solver(
        self, problem: PoseProblem, num_rows: int, terms: BlockTerms = NO_TERMS
    ) -> DirectSolver | TwoLevelSolver:
        config = self._config
        return make_step_solver(
            Structure(problem.edges, problem.ties, self._used, num_rows, problem.block, terms), config.solver,
            tolerance=config.inner_tolerance, max_iterations=config.inner_iterations,
            expected_iterations=_EXPECTED_ITERATIONS[config.loss],
        )  # fmt: skip
