"""A map placed in the world that its priors speak of: metres, and where on the Earth.

A map from images alone has neither scale nor place. Priors give them: first a robust similarity brings every
component near, then the joint refinement takes priors and edges together, and the priors that it contradicts
are cut one by one, as wrong loops are. An offset between the clock of positions and that of the frames is one
more unknown, which is eliminated exactly (a border of the normal equations).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Sim3, so3_exp, umeyama
from anchor3r.pose_graph.linalg.step_solvers import DirectSolver, LinearSystem, TwoLevelSolver
from anchor3r.pose_graph.pose_system import Float, PoseState
from anchor3r.pose_graph.priors import (
    Directions,
    Distances,
    Headings,
    Int,
    Poses,
    Positions,
    PriorKind,
    PriorSystem,
    Scales,
    in_rows,
)

Bool = NDArray[np.bool_]


class MeasuredDrift(NamedTuple):
    """What positions tell of odometry and of themselves."""

    rotation_rate: float
    """random walk of rotations, radians for the root of a frame"""
    scale_rate: float
    """random walk of log scales, for the root of a frame"""
    white: float
    """variance of the white noise of positions, over the one that they state"""
    slow: float
    """variance of their slow noise, likewise"""
    slow_time_s: float
    """after which the slow noise has lost most of its memory"""


_SAMPLES = 500  # similarities tried: with a third of the positions wrong, one in 500 fails 1e-76 of the time
_TRIED = 300  # points, evenly spread, whose errors tell which similarity is best
_COMPUTABLE = 1e70  # metres: products of four such numbers are still numbers
_DOWN = np.array([0.0, 1.0, 0.0])
_HELD = 1e-4  # of the map's size (and of a radian): how firmly a frame is held where nothing places the map


@dataclass(frozen=True, kw_only=True)
class PlacementConfig:
    """When a prior is wrong, and what the priors have to tell."""

    significance: float = 1e-3
    """A prior is cut if a right one would be off by as much with this probability at most."""
    upright_sigma_deg: float = 20.0
    """How upright cameras are taken to be held where positions on a line leave the roll about it open."""
    max_rounds: int = 10
    """Solutions at most, between which priors are cut and the clock is set."""
    clock_tolerance_s: float = 1e-3
    """A clock is right when a round changes it by less."""

    def __post_init__(self) -> None:
        if not (0 < self.significance < 1 and self.upright_sigma_deg > 0):
            raise ValueError(f"significance is a probability, upright_sigma_deg must be positive: {self}")
        if self.max_rounds < 1 or not self.clock_tolerance_s > 0:
            raise ValueError(f"max_rounds must be at least 1, clock_tolerance_s positive: {self}")


@dataclass(frozen=True, kw_only=True)
class MovingClock:
    """Positions whose clock may be off: what they are at an offset of it."""

    at: Callable[[float], Positions]
    """the positions if this many seconds are added to their times"""
    index: int
    """which of the kinds of priors they are"""


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What is known of a graph's frames from elsewhere."""

    kinds: tuple[PriorKind, ...]
    """whose rows are frames of the source, all of them in the graph"""
    clock: MovingClock | None = None
    """if that of the positions is to be set; its rows are frames, too"""

    def changed(self, index: int, change: Callable[[Positions], Positions]) -> Knowledge:
        """The same with other positions, which are one of the kinds, wherever their clock is."""
        kinds, clock = list(self.kinds), self.clock
        positions: Any = kinds[index]
        kinds[index] = change(positions)
        if clock is not None and clock.index == index:
            at = clock.at
            clock = replace(clock, at=lambda offset: change(at(offset)))
        return Knowledge(kinds=tuple(kinds), clock=clock)

    def in_rows(self, frames: Int) -> Knowledge:
        """What is known with rows of ascending frames (n,) in place of frames."""
        kinds, clock = tuple(in_rows(kind, frames) for kind in self.kinds), self.clock
        if clock is not None:
            at = clock.at
            clock = replace(clock, at=lambda offset: in_rows(at(offset), frames))
        return Knowledge(kinds=kinds, clock=clock)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A state that agrees with its priors, and how they fared."""

    state: PoseState
    slow_noise: Float
    """(q, 3) of the positions' receiver, at the moments where it was an unknown; none if it was not"""
    kept: list[Bool]
    """by kind, (k,) priors that were not cut"""
    chi_square_excess: list[Float]
    """by kind, (k,) χ² of each over its limit"""
    residual: list[Float]
    """by kind, (k, d) what each is off by"""
    variance_factor: Float
    """by kind, how many times larger variances are than was stated"""
    scale_sigma: float
    """standard deviation of the logarithm of the map's scale"""
    system: PriorSystem
    """the priors as they took part in the last solution"""
    clock_offset_s: float = 0.0
    """to be added to the times of positions"""
    clock_sigma_s: float = 0.0
    drift: MeasuredDrift | None = None
    """of odometry and of the positions' noise, if there were enough positions to measure it"""


Solve = Callable[[PoseState, PriorSystem], PoseState]
"""Refines a state with edges and priors."""
Normal = tuple[LinearSystem, DirectSolver | TwoLevelSolver]
"""Normal equations, and what solves them."""
Model = Callable[[PoseState, PriorSystem], Normal]
"""The normal equations at a state."""


def solve_with_priors(
    start: PoseState,
    kinds: Sequence[PriorKind],
    assumed: Sequence[PriorKind],
    solve: Solve,
    model: Model,
    *,
    width: float,
    clock: MovingClock | None = None,
    num_frames: int,
    config: PlacementConfig,
) -> Placed:
    """Alternates solving, cutting what contradicts the solution, and setting the clock, until all is settled.

    kinds: in rows. start, assumed: as `place` gives them, with rows of slow noise after those of frames.
    width: of the robust loss in standard deviations.
    """
    everything, state, offset, sigma = list(kinds), start, 0.0, 0.0
    kept = [np.ones(len(kind.rows), bool) for kind in everything]
    for _ in range(config.max_rounds):
        system = PriorSystem(everything, assumed, width=width, kept=kept)
        system.measure(state)
        state = solve(state, system)
        change = 0.0
        if clock is not None:
            change, sigma = _clock_step(*model(state, system), state, system, clock.index)
            offset += change
            everything[clock.index] = clock.at(offset)
        excess = system.excess(state, config.significance)
        within = [values <= 1 for values in excess]
        is_settled = all(np.array_equal(a, b) for a, b in zip(within, kept, strict=True))
        kept = within
        if is_settled and abs(change) < config.clock_tolerance_s:
            break
    # What a position is off from the map is not less because its receiver's noise is known.
    noise = state.center[num_frames:]
    bare = state._replace(center=np.concatenate([state.center[:num_frames], np.zeros_like(noise)]))
    return Placed(
        state=PoseState(*(column[:num_frames] for column in state)),
        slow_noise=noise,
        kept=kept,
        chi_square_excess=excess,
        residual=[kind.linearise(bare).residual for kind in everything],
        variance_factor=system.variance_factor,
        scale_sigma=_scale_sigma(*model(state, system), num_frames),
        clock_offset_s=offset,
        clock_sigma_s=sigma,
        system=system,
    )


def _clock_step(
    linear: LinearSystem,
    solver: DirectSolver | TwoLevelSolver,
    state: PoseState,
    system: PriorSystem,
    index: int,
) -> tuple[float, float]:
    """By how much the clock of positions has to be moved on, all poses moving along; and its spread."""
    positions: Any = system.kinds[index]
    velocity = positions.velocity(state)
    residual, jacobian = positions.linearise(state)
    metric = system.metric(index, residual)
    pull = np.einsum("kij,kj->ki", metric, velocity)
    border = np.zeros_like(linear.gradient)
    for end in range(jacobian.shape[1]):
        np.add.at(border, positions.rows[:, end], np.einsum("kix,ki->kx", jacobian[:, end], pull))
    step, _ = solver.solve(linear._replace(gradient=border))
    if step is None:
        return 0.0, np.inf
    stiffness = float(np.vdot(pull, velocity)) + float(np.vdot(step, border))  # step is -H⁻¹ border
    force = float(np.vdot(pull, residual)) + float(np.vdot(step, linear.gradient))
    if stiffness <= 0:
        return 0.0, np.inf
    return -force / stiffness, stiffness**-0.5


def _scale_sigma(linear: LinearSystem, solver: DirectSolver | TwoLevelSolver, num_frames: int) -> float:
    """Spread of the mean log scale of all frames."""
    average = np.zeros_like(linear.gradient)
    average[:num_frames, 6] = 1 / num_frames
    step, _ = solver.solve(linear._replace(gradient=average))
    return np.inf if step is None else float(np.sqrt(max(0.0, -float(np.vdot(step, average)))))


def place(
    state: PoseState, component: Int, kinds: Sequence[PriorKind], config: PlacementConfig
) -> tuple[PoseState, list[PriorKind]]:
    """Moves every component near its priors; and what has to be assumed so that nothing is left open.

    A component without priors stays where and as large as it is.
    """
    assumed: list[PriorKind] = []
    for label in np.unique(component):
        rows = np.flatnonzero(component == label)
        own = [kind.select(component[kind.rows[:, 0]] == label) for kind in kinds]
        world_from_map, extra = _similarity(state, rows, own, config)
        state = moved_by(state, rows, world_from_map)
        assumed += extra
    return state, _held(state, component, kinds, assumed)


def _similarity(
    state: PoseState, rows: Int, kinds: Sequence[PriorKind], config: PlacementConfig
) -> tuple[Sim3, list[PriorKind]]:
    """world_from_map of one component by its own priors, and the assumption that it rests on."""
    source, target = anchored(state, kinds)
    oriented = [kind for kind in kinds if isinstance(kind, Poses) and len(kind.rows)]
    if oriented:
        return _by_poses(state, kinds, oriented[0], source, target), []
    if len(source) >= 3:
        found, near = robust_similarity(source, target)
        if is_on_a_line(target[near]):
            if (seen := _down_in_map(state, kinds)) is not None:
                return turned_upright(seen[None], found, target[near]), []
            upright = turned_upright(state.rotation[rows, 1], found, target[near])
            information = np.tile(np.eye(3) / np.radians(config.upright_sigma_deg) ** 2, (len(rows), 1, 1))
            down = np.tile(_DOWN, (len(rows), 1))  # of the world as of a camera that is held upright
            return upright, [
                Directions(
                    rows=rows[:, None], in_camera=down, in_world=down, information=information / len(rows)
                )
            ]
        return found, []
    scale, rotation, translation = np.exp(_log_scale(state, kinds)), _turn(state, rows, kinds), np.zeros(3)
    if len(source):
        translation = target[0] - scale * rotation @ source[0]
    return Sim3(rotation, translation, np.asarray(scale)), []


def _down_in_map(state: PoseState, kinds: Sequence[PriorKind]) -> Float | None:
    """(3,) by the median of what directions say, of which fewer than half may be wrong; None without any."""
    found = [kind for kind in kinds if isinstance(kind, Directions) and len(kind.rows)]
    if not found:
        return None
    rotation = state.rotation[found[0].rows[:, 0]]
    down = np.median(np.einsum("kji,kj->ki", rotation, found[0].in_camera), axis=0)
    return np.asarray(down / max(float(np.linalg.norm(down)), 1e-12), np.float64)


def _turn(state: PoseState, rows: Int, kinds: Sequence[PriorKind]) -> Float:
    """(3, 3) world_from_map as far as directions and headings tell it; those that do not turn nothing."""
    down = _down_in_map(state, kinds)
    headings = [kind for kind in kinds if isinstance(kind, Headings) and len(kind.rows)]
    if down is None and not headings:
        return np.eye(3)
    if down is None:
        down = state.rotation[rows, 1].mean(0)
        down = down / max(float(np.linalg.norm(down)), 1e-12)
    axis = np.cross(down, _DOWN)
    sine, cosine = float(np.linalg.norm(axis)), float(down @ _DOWN)
    axis = axis / sine if sine > 1e-12 else np.array([1.0, 0.0, 0.0])
    level = np.asarray(so3_exp(np.arctan2(sine, cosine) * axis), np.float64)
    if headings:
        ahead = state.rotation[headings[0].rows[:, 0], 2] @ level.T
        away = headings[0].heading - np.arctan2(ahead[:, 0], ahead[:, 2])
        angle = np.arctan2(np.median(np.sin(away)), np.median(np.cos(away)))
        level = np.asarray(so3_exp([0.0, angle, 0.0]), np.float64) @ level
    return level


def _by_poses(
    state: PoseState, kinds: Sequence[PriorKind], poses: Poses, source: Float, target: Float
) -> Sim3:
    """world_from_map where whole poses are known, by medians: fewer than half of them may be wrong.

    source, target: (k, 3) all positions in the map whose place in the world is known.
    """
    turns = np.swapaxes(poses.rotation, 1, 2) @ state.rotation[poses.rows[:, 0]]
    alike = np.einsum("axy,bxy->ab", turns, turns)  # 1 + 2 cos of the angle between each two
    rotation = turns[int(np.median(alike, axis=1).argmax())]
    some = np.unique(np.linspace(0, len(source) - 1, _TRIED).astype(np.int64))
    a, b = (some[rows] for rows in np.triu_indices(len(some), 1))
    before, after = (np.linalg.norm(at[a] - at[b], axis=1) for at in (source, target))
    apart = (before > 0) & (after > 0)
    log_scale = _log_scale(state, kinds)
    if apart.any():
        log_scale = float(np.median(np.log(after[apart] / before[apart])))
    turned = np.exp(log_scale) * source @ rotation.T
    return Sim3(rotation, np.median(target - turned, axis=0), np.asarray(np.exp(log_scale)))


def anchored(state: PoseState, kinds: Sequence[PriorKind]) -> tuple[Float, Float]:
    """Positions in the map (k, 3) whose place in the world (k, 3) is known."""
    source, target = [np.zeros((0, 3))], [np.zeros((0, 3))]
    for kind in kinds:
        if isinstance(kind, Positions):
            a, b = kind.rows.T
            part = kind.fraction[:, None]
            source.append((1 - part) * state.center[a] + part * state.center[b])
            target.append(kind.position)
        elif isinstance(kind, Poses):
            source.append(state.center[kind.rows[:, 0]])
            target.append(kind.center)
    return np.concatenate(source), np.concatenate(target)


def _log_scale(state: PoseState, kinds: Sequence[PriorKind]) -> float:
    """Median of what distances and windows say of the map's scale; 0 if none does."""
    found = [np.zeros(0)]
    for kind in kinds:
        if isinstance(kind, Distances):
            # A length that the map has plus what it lacks is the one that is known.
            lacking = kind.linearise(state).residual[:, 0]
            found.append(np.log(kind.length / np.maximum(kind.length + lacking, 1e-12)))
        elif isinstance(kind, Scales):
            found.append(kind.log_scale - state.log_scale[kind.rows[:, 0]])
    values = np.concatenate(found)
    return float(np.median(values)) if len(values) else 0.0


def robust_similarity(
    source: Float, target: Float, seed: int = 0, *, right: float = 0.5
) -> tuple[Sim3, Bool]:
    """target_from_source of points (k, 3), of which this part at least is right; and (k,) which of them are.

    The best of many triples by this quantile of distances, then all points that lie within what honest ones
    do.
    """
    rng = np.random.default_rng(seed)
    triples = rng.integers(len(source), size=(_SAMPLES, 3))
    far = np.abs(target).max(1) > _COMPUTABLE
    triples = triples[(np.ptp(source[triples], 1).max(1) > 0) & ~far[triples].any(1)]
    best = umeyama(source, target)
    if len(triples):
        some = np.unique(np.linspace(0, len(source) - 1, _TRIED).astype(np.int64))
        best = _best_similarity(source[triples], target[triples], source[some], target[some], right)
    for _ in range(10):
        distance = np.linalg.norm(best.apply(source) - target, axis=1)
        near = distance <= 3 * max(float(np.quantile(distance, right)), 1e-12)
        best = umeyama(source[near], target[near])
    return best, near


def _best_similarity(
    source: Float, target: Float, all_source: Float, all_target: Float, right: float
) -> Sim3:
    """The similarity of one of the triples of points (s, 3, 3) that is best on this part of points (k, 3).

    As `umeyama`, for all triples at once.
    """
    middle, goal = source.mean(1), target.mean(1)
    dx, dy = source - middle[:, None], target - goal[:, None]
    u, singular, vt = np.linalg.svd(np.swapaxes(dy, 1, 2) @ dx)
    sign = np.ones((len(source), 3))
    sign[:, 2] = np.sign(np.linalg.det(u) * np.linalg.det(vt))
    rotation = (u * sign[:, None]) @ vt
    scale = (singular * sign).sum(1) / (dx**2).sum((1, 2))
    turned = np.einsum("sxy,ky->skx", rotation, all_source) - (rotation @ middle[..., None])[:, None, :, 0]
    error = np.linalg.norm(scale[:, None, None] * turned + goal[:, None] - all_target, axis=2)
    error[~(np.isfinite(scale) & (scale > 0))] = np.finfo(np.float64).max  # quantiles of inf are none
    best = int(np.quantile(error, right, axis=1).argmin())
    translation = goal[best] - scale[best] * rotation[best] @ middle[best]
    return Sim3(rotation[best], translation, np.asarray(scale[best]))


def is_on_a_line(points: Float) -> bool:
    """Whether points (k, 3) leave a turn about their line open, as far as their noise lets one see.

    Noise is what the third principal axis shows: roads are flat. A way has to swerve by three times that.
    """
    _, spread, _ = np.linalg.svd(points - points.mean(0), full_matrices=False)
    return bool(spread[1] < 1e-3 * spread[0] or spread[1] < min(0.1 * spread[0], 3 * spread[2]))


def turned_upright(seen_down: Float, found: Sim3, target: Float) -> Sim3:
    """The similarity turned about the line of its targets until down is where it was seen, on average.

    seen_down: (n, 3) in the map; that of the cameras themselves if they are held upright.
    """
    centred = target - np.median(target, 0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    seen = seen_down @ np.asarray(found.rotation).T
    across_seen = (seen - np.outer(seen @ axis, axis)).sum(0)
    across_down = _DOWN - (_DOWN @ axis) * axis
    sine = float(np.cross(across_seen, across_down) @ axis)
    angle = np.arctan2(sine, float(across_seen @ across_down))
    middle, rotation = np.median(target, 0), so3_exp(angle * axis)
    return Sim3(rotation @ found.rotation, rotation @ (found.translation - middle) + middle, found.scale)


def moved_by(state: PoseState, rows: Int, world_from_map: Sim3) -> PoseState:
    """The state with some rows brought into the world by a similarity."""
    rotation, center, log_scale = state.rotation.copy(), state.center.copy(), state.log_scale.copy()
    rotation[rows] = state.rotation[rows] @ np.asarray(world_from_map.rotation).T
    center[rows] = world_from_map.apply(state.center[rows])
    log_scale[rows] += float(np.log(world_from_map.scale))
    return PoseState(rotation, center, log_scale)


def _held(
    state: PoseState, component: Int, kinds: Sequence[PriorKind], assumed: list[PriorKind]
) -> list[PriorKind]:
    """The assumptions, and a firmly held first frame for every component that no position or pose places."""
    placed = {
        int(component[row])
        for kind in kinds
        if isinstance(kind, Positions | Poses)
        for row in kind.rows[:, 0]
    }
    first = [
        int(np.flatnonzero(component == label)[0])
        for label in np.unique(component)
        if int(label) not in placed
    ]
    if not first:
        return assumed
    size = max(float(np.ptp(state.center, 0).max()), 1e-9)
    information = np.tile(np.diag(np.repeat([_HELD, _HELD * size], 3) ** -2.0), (len(first), 1, 1))
    for kind in kinds:  # which tell of the first frame's rotation what need not be held
        told = np.isin(component[first], component[kind.rows[:, 0]])
        if isinstance(kind, Directions):
            information[told, 0, 0] = information[told, 2, 2] = 0
        elif isinstance(kind, Headings):
            information[told, 1, 1] = 0
    held = Poses(
        rows=np.array(first)[:, None],
        rotation=state.rotation[first],
        center=state.center[first],
        information=information,
    )
    scaled = {
        int(component[row])
        for kind in kinds
        if isinstance(kind, Distances | Scales)
        for row in kind.rows[:, 0]
    }
    unscaled = [row for row in first if int(component[row]) not in scaled]
    if not unscaled:
        return [*assumed, held]
    fixed = Scales(
        rows=np.array(unscaled)[:, None],
        log_scale=state.log_scale[unscaled],
        information=np.full((len(unscaled), 1, 1), _HELD**-2),
    )
    return [*assumed, held, fixed]
