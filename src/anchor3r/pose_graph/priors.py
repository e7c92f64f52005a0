"""What is known of poses from elsewhere: positions, distances, directions, scales, single poses.

Each kind of prior gives residuals that touch one or two frames, and their derivatives by the block of a frame
(rotation ω, centre γ, log scale σ; see `pose_system`). They enter the joint refinement as robust terms
beside the edges, in the metric of their covariance. How much worse a kind really is than it claims is
measured on its own residuals (the variance factor), and what exceeds the χ² of its kind is cut.

Shapes: k priors of a kind, d residuals each, e = 1 or 2 frames each, n frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from anchor3r.geometry import hat, so3_left_jacobian_inverse, so3_log
from anchor3r.pose_graph.linalg.step_solvers import BlockTerms
from anchor3r.pose_graph.pose_system import Float, PoseState

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]

BLOCK = 7
"""Unknowns of a frame: rotation, centre, log scale."""
_SETTLED = 0.02  # variance factors that change by a smaller part are kept
_LEVEL_SQ = 0.01  # of what a camera sees ahead, the part along the ground that tells a heading
_LEAST_FACTOR = 1e-6  # of the variance, where a kind states none and fits exactly


class Linearised(NamedTuple):
    """Residuals at a state and their derivatives."""

    residual: Float
    """(k, d)"""
    jacobian: Float
    """(k, e, d, 7) by the unknowns of each of the frames that a prior touches"""


class PriorKind(Protocol):
    """Priors of one kind, in columns."""

    name: ClassVar[str]
    """what a table calls it"""
    num_independent: ClassVar[int]
    """of the residuals of a prior: a difference of directions has no part along them"""

    @property
    def rows(self) -> Int:
        """(k, e) frames that each touches; those of the source until `in_rows`, then rows of the solver"""

    @property
    def information(self) -> Float:
        """(k, d, d) inverse covariance of the residuals"""

    @property
    def is_spread_known(self) -> bool:
        """Whether the information was stated; else only its proportions are right, and its size measured."""

    def linearise(self, state: PoseState) -> Linearised:
        """The residuals of all priors at a state."""

    def select(self, which: Bool) -> Self:
        """The priors of a mask."""


Kind = TypeVar("Kind", bound=PriorKind)


def _selected(kind: Any, columns: Sequence[str], which: Bool) -> Any:
    return replace(kind, **{name: getattr(kind, name)[which] for name in columns})


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Where an antenna was at a moment between two frames: GNSS, geotags, surveyed points."""

    name: ClassVar[str] = "position"
    num_independent: ClassVar[int] = 3
    rows: Int
    """(k, 2) frames before and after the moment; the same twice if it is that of a frame. (k, 4) with the
    rows of the solver before and after it whose centres are the receiver's slow noise (`SlowNoise`)"""
    fraction: Float
    """(k,) how far the moment is from the first of the frames to the second"""
    position: Float
    """(k, 3) in the world"""
    information: Float
    """(k, 3, 3)"""
    antenna_in_camera: Float = field(default_factory=lambda: np.zeros(3))
    """(3,) world lengths, camera axes"""
    velocity_per_way: Float | None = None
    """(k,) 1 / seconds between the two frames, by which an offset of the clock moves the moment; None if
    clocks are sure"""
    moment_s: Float | None = None
    """(k,) when it was, for noise that wanders with time; None if that is not known"""
    slow_fraction: Float | None = None
    """(k,) how far the moment is from the first row of slow noise to the second; None without"""
    is_spread_known: bool = True
    white: float = 0.0
    """variance of the noise of each over the one stated, as odometry shows it: where no spread is stated no
    less is believed, as the unknowns beside positions absorb a part of what they are off by"""

    def linearise(self, state: PoseState) -> Linearised:
        a, b = self.rows[:, :2].T
        part = self.fraction[:, None]
        arms = [np.swapaxes(state.rotation[row], 1, 2) @ self.antenna_in_camera for row in (a, b)]
        shares = (1 - part, part)
        antenna = sum(s * (state.center[row] + arm) for s, row, arm in zip(shares, (a, b), arms, strict=True))
        jacobian = np.zeros((len(a), self.rows.shape[1], 3, BLOCK))
        for end, (share, arm) in enumerate(zip(shares, arms, strict=True)):
            jacobian[:, end, :, :3] = share[..., None] * hat(arm)
            jacobian[:, end, :, 3:6] = share[..., None] * np.eye(3)
        if self.slow_fraction is not None:
            part = self.slow_fraction[:, None]
            for end, share in ((2, 1 - part), (3, part)):
                antenna = antenna + share * state.center[self.rows[:, end]]
                jacobian[:, end, :, 3:6] = share[..., None] * np.eye(3)
        return Linearised(antenna - self.position, jacobian)

    def velocity(self, state: PoseState) -> Float:
        """(k, 3) of the camera in world lengths a second: how residuals change with a clock's offset."""
        assert self.velocity_per_way is not None
        a, b = self.rows[:, :2].T
        return self.velocity_per_way[:, None] * (state.center[b] - state.center[a])

    def select(self, which: Bool) -> Positions:
        columns = ["rows", "fraction", "position", "information"]
        optional = ("velocity_per_way", "moment_s", "slow_fraction")
        columns += [name for name in optional if getattr(self, name) is not None]
        return _selected(self, columns, which)


@dataclass(frozen=True, kw_only=True)
class SlowNoise:
    """How the error of a receiver wanders from moment to moment, as a first-order Gauss–Markov process.

    Its values are unknowns like poses: the centres of rows of the solver that come after those of frames.
    """

    name: ClassVar[str] = "slow noise"
    num_independent: ClassVar[int] = 3
    rows: Int
    """(k, 2) from one value to the next; the first one's twice"""
    memory: Float
    """(k,) part of a value that is left in the next; none of what was before the first"""
    information: Float
    """(k, 3, 3) of what each adds"""
    is_spread_known: bool = True

    def linearise(self, state: PoseState) -> Linearised:
        before, after = self.rows.T
        memory = self.memory[:, None]
        jacobian = np.zeros((len(before), 2, 3, BLOCK))
        jacobian[:, 0, :, 3:6] = -memory[..., None] * np.eye(3)
        jacobian[:, 1, :, 3:6] = np.eye(3)
        return Linearised(state.center[after] - memory * state.center[before], jacobian)

    def select(self, which: Bool) -> SlowNoise:
        return _selected(self, ["rows", "memory", "information"], which)


@dataclass(frozen=True, kw_only=True)
class Distances:
    """How far two points are apart that are fixed to frames: two cameras, two things seen, a known speed."""

    name: ClassVar[str] = "distance"
    num_independent: ClassVar[int] = 1
    rows: Int
    """(k, 2)"""
    length: Float
    """(k,) world lengths"""
    information: Float
    """(k, 1, 1)"""
    points_in_camera: Float | None = None
    """(k, 2, 3) in the frames' own windows; None for the cameras themselves"""
    is_spread_known: bool = True

    def linearise(self, state: PoseState) -> Linearised:
        ends, jacobian = [], np.zeros((len(self.rows), 2, 3, BLOCK))
        for end in (0, 1):
            row = self.rows[:, end]
            arm = np.zeros((len(row), 3))
            if self.points_in_camera is not None:
                turned = (np.swapaxes(state.rotation[row], 1, 2) @ self.points_in_camera[:, end, :, None])[
                    ..., 0
                ]
                arm = np.exp(state.log_scale[row])[:, None] * turned
            ends.append(state.center[row] + arm)
            jacobian[:, end, :, :3], jacobian[:, end, :, 3:6] = hat(arm), np.eye(3)
            jacobian[:, end, :, 6] = arm
        way = ends[1] - ends[0]
        length = np.linalg.norm(way, axis=1)
        direction = way / np.maximum(length, 1e-12)[:, None]
        signed = np.array([-1.0, 1.0])[None, :, None, None] * jacobian
        return Linearised(
            (length - self.length)[:, None], np.einsum("kx,kexu->keu", direction, signed)[:, :, None]
        )

    def select(self, which: Bool) -> Distances:
        columns = ["rows", "length", "information"]
        return _selected(self, columns + ["points_in_camera"] * (self.points_in_camera is not None), which)


@dataclass(frozen=True, kw_only=True)
class Directions:
    """A direction that a camera and the world both know: where down is."""

    name: ClassVar[str] = "direction"
    num_independent: ClassVar[int] = 2
    rows: Int
    """(k, 1)"""
    in_camera: Float
    """(k, 3) unit"""
    in_world: Float
    """(k, 3) unit"""
    information: Float
    """(k, 3, 3) of the difference of the two in the world, rad⁻²; its length is 2 sin of half their angle"""
    is_spread_known: bool = True

    def linearise(self, state: PoseState) -> Linearised:
        seen = (np.swapaxes(state.rotation[self.rows[:, 0]], 1, 2) @ self.in_camera[..., None])[..., 0]
        jacobian = np.zeros((len(seen), 1, 3, BLOCK))
        jacobian[:, 0, :, :3] = hat(seen)
        return Linearised(seen - self.in_world, jacobian)

    def select(self, which: Bool) -> Directions:
        return _selected(self, ["rows", "in_camera", "in_world", "information"], which)


@dataclass(frozen=True, kw_only=True)
class Headings:
    """Which way a camera looks over the ground, as a compass tells it; the world has x east and z north."""

    name: ClassVar[str] = "heading"
    num_independent: ClassVar[int] = 1
    rows: Int
    """(k, 1)"""
    heading: Float
    """(k,) radians clockwise from north"""
    information: Float
    """(k, 1, 1) rad⁻²"""
    is_spread_known: bool = True

    def linearise(self, state: PoseState) -> Linearised:
        ahead = state.rotation[self.rows[:, 0], 2]  # in the world
        east, north = ahead[:, 0], ahead[:, 2]
        away = np.arctan2(east, north) - self.heading
        turned = hat(ahead)
        level = np.maximum(east**2 + north**2, _LEVEL_SQ)  # looking straight down has no heading
        jacobian = np.zeros((len(ahead), 1, 1, BLOCK))
        change = north[:, None] * turned[:, 0] - east[:, None] * turned[:, 2]
        jacobian[:, 0, 0, :3] = change / level[:, None]
        return Linearised((np.mod(away + np.pi, 2 * np.pi) - np.pi)[:, None], jacobian)

    def select(self, which: Bool) -> Headings:
        return _selected(self, ["rows", "heading", "information"], which)


@dataclass(frozen=True, kw_only=True)
class Scales:
    """The scale of a frame's window, as a known length in its own point map tells it: a camera's height."""

    name: ClassVar[str] = "scale"
    num_independent: ClassVar[int] = 1
    rows: Int
    """(k, 1)"""
    log_scale: Float
    """(k,) log of world lengths a length of the window"""
    information: Float
    """(k, 1, 1)"""
    is_spread_known: bool = True

    def linearise(self, state: PoseState) -> Linearised:
        jacobian = np.zeros((len(self.rows), 1, 1, BLOCK))
        jacobian[..., 6] = 1
        return Linearised((state.log_scale[self.rows[:, 0]] - self.log_scale)[:, None], jacobian)

    def select(self, which: Bool) -> Scales:
        return _selected(self, ["rows", "log_scale", "information"], which)


@dataclass(frozen=True, kw_only=True)
class Poses:
    """Whole poses of single frames: a surveyed camera, or the frame that holds a map's gauge."""

    name: ClassVar[str] = "pose"
    num_independent: ClassVar[int] = 6
    rows: Int
    """(k, 1)"""
    rotation: Float
    """(k, 3, 3) camera_from_world"""
    center: Float
    """(k, 3)"""
    information: Float
    """(k, 6, 6) rotation (world axes) first, then centre"""
    is_spread_known: bool = True

    def linearise(self, state: PoseState) -> Linearised:
        row = self.rows[:, 0]
        turn = so3_log(np.swapaxes(self.rotation, 1, 2) @ state.rotation[row])
        residual = np.concatenate([turn, state.center[row] - self.center], 1)
        jacobian = np.zeros((len(row), 1, 6, BLOCK))
        jacobian[:, 0, :3, :3] = so3_left_jacobian_inverse(-turn)  # the right one
        jacobian[:, 0, 3:, 3:6] = np.eye(3)
        return Linearised(residual, jacobian)

    def select(self, which: Bool) -> Poses:
        return _selected(self, ["rows", "rotation", "center", "information"], which)


class PriorSystem:
    """All priors of a problem: cost, gradient and blocks at a state, and how far to trust each kind."""

    def __init__(
        self,
        kinds: Sequence[PriorKind],
        assumed: Sequence[PriorKind] = (),
        *,
        width: float,
        kept: Sequence[Bool] | None = None,
    ) -> None:
        """kinds: in rows of the solver. width: of the Geman–McClure loss in standard deviations.

        assumed: what is not measured but taken for granted, which is neither doubted nor weighed anew.
        kept: by kind, (k,) which take part; all if not given.
        """
        self.kinds = tuple(kinds)
        self.kept = [np.ones(len(kind.rows), bool) for kind in self.kinds] if kept is None else list(kept)
        self._assumed = tuple(assumed)
        self._width_sq = width**2
        self.variance_factor = np.ones(len(self.kinds))
        """by which the covariances of each kind are multiplied"""

    def with_error(
        self, index: int, change: Callable[[Positions], Positions], error: SlowNoise
    ) -> PriorSystem:
        """The same with an error of some positions as an unknown, trusting all kinds as this does."""
        kinds, positions = list(self.kinds), self.kinds[index]
        assert isinstance(positions, Positions)
        kinds[index] = change(positions)
        width = float(np.sqrt(self._width_sq))
        out = PriorSystem(kinds, [*self._assumed, error], width=width, kept=self.kept)
        out.variance_factor = self.variance_factor
        return out

    def measure(self, state: PoseState) -> bool:
        """Estimates variance factors from the residuals of a state: medians, so half of them may be wrong.

        Tells whether they have changed by more than a few percent; else they stay what they were.
        """
        factor = np.array([self._factor(index, state) for index in range(len(self.kinds))])
        is_changed = bool(np.any(np.abs(factor - self.variance_factor) >= _SETTLED * self.variance_factor))
        if is_changed:
            self.variance_factor = factor
        return is_changed

    def _factor(self, index: int, state: PoseState) -> float:
        kind, kept = self.kinds[index], self.kept[index]
        if not kept.any():
            return 1.0
        square, dimension = squared(kind, state)
        least = 1.0 if kind.is_spread_known else _LEAST_FACTOR
        if isinstance(kind, Positions) and not kind.is_spread_known:
            least = max(least, kind.white)
        return max(least, float(np.median(square[kept])) / float(chi2.median(dimension)))

    def cost(self, state: PoseState) -> float:
        """The sum of robust losses."""
        total = sum(0.5 * float(squared(kind, state)[0].sum()) for kind in self._assumed)
        for kind, kept, factor in zip(self.kinds, self.kept, self.variance_factor, strict=True):
            square = squared(kind, state)[0][kept] / factor
            total += 0.5 * float((square * self._width_sq / (self._width_sq + square)).sum())
        return total

    def metric(self, index: int, residual: Float) -> Float:
        """(k, d, d) of one kind's residuals (k, d): their information, as far as the loss lets them count."""
        information = self.kinds[index].information / self.variance_factor[index]
        square = np.einsum("ki,kij,kj->k", residual, information, residual)
        weight = self.kept[index] * (self._width_sq / (self._width_sq + square)) ** 2
        return weight[:, None, None] * information

    def linearise(self, state: PoseState, gradient: Float) -> BlockTerms:
        """Adds to the gradient (n, 7) of the cost and returns what the priors add to the matrix.

        The rows of the terms are those of all priors, also of the ones that do not take part.
        """
        rows_a, rows_b, blocks = [], [], []
        for index, kind in enumerate((*self.kinds, *self._assumed)):
            residual, jacobian = kind.linearise(state)
            metric = self.metric(index, residual) if index < len(self.kinds) else kind.information
            weighed = np.einsum("kij,kejx->keix", metric, jacobian)
            force = np.einsum("keix,ki->kex", weighed, residual)
            for end in range(jacobian.shape[1]):
                np.add.at(gradient, kind.rows[:, end], force[:, end])
                for other in range(jacobian.shape[1]):
                    a, b = kind.rows[:, end], kind.rows[:, other]
                    wanted = (a < b) | (a == b)  # of a frame named twice, all four products
                    block = np.einsum("kix,kiy->kxy", jacobian[wanted, end], weighed[wanted, other])
                    rows_a.append(a[wanted])
                    rows_b.append(b[wanted])
                    blocks.append(block)
        return BlockTerms(np.concatenate(rows_a), np.concatenate(rows_b), np.concatenate(blocks))

    def forces(self, index: int, state: PoseState, errors: Float) -> Float:
        """(m, n, 7) gradients of the cost by errors (m, k, d) that the priors of one kind would make."""
        kind = self.kinds[index]
        residual, jacobian = kind.linearise(state)
        pull = np.einsum("kij,mkj->mki", self.metric(index, residual), errors)
        out = np.zeros((len(state.center), len(errors), BLOCK))
        for end in range(jacobian.shape[1]):
            np.add.at(out, kind.rows[:, end], np.einsum("kix,mki->kmx", jacobian[:, end], pull))
        return np.ascontiguousarray(out.transpose(1, 0, 2))

    def excess(self, state: PoseState, significance: float) -> list[Float]:
        """By kind, (k,) χ² of each prior over the limit that a right one exceeds with this probability."""
        out = []
        for kind, factor in zip(self.kinds, self.variance_factor, strict=True):
            square, dimension = squared(kind, state)
            out.append(square / factor / float(chi2.isf(significance, dimension)))
        return out


def squared(kind: PriorKind, state: PoseState) -> tuple[Float, int]:
    """(k,) squared residuals in the metric that the priors state, and the number of residuals of each."""
    residual = kind.linearise(state).residual
    return np.einsum("ki,kij,kj->k", residual, kind.information, residual), kind.num_independent


def in_rows(kind: Kind, frames: Int) -> Kind:
    """The priors with rows of ascending frames (n,) in place of frames."""
    rows = np.searchsorted(frames, kind.rows)
    if np.any(rows >= len(frames)) or np.any(frames[rows] != kind.rows):
        raise ValueError(f"a prior of kind {kind.name} names a frame that is not in the graph")
    named: Any = kind
    found: Kind = replace(named, rows=rows)
    return found
