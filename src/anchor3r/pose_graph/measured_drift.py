"""How far odometry drifts, and how noisy positions are, measured by comparing the two.

The graph's own edges tell drift badly: neighbouring windows share their errors, which their residuals do not
show. Positions from elsewhere do show them. What is left between positions and odometry, after the best
similarity, is taken for a Gaussian process of four parts: turns and stretches that odometry makes at random
at every frame and that carry everything after it along; white noise of the positions; and noise of theirs
that wanders slowly, as that of a receiver does, so that it is not taken for the map's drift more than the
data say. Their variances are those of the greatest restricted likelihood: similarity, and the offset of a
clock, are integrated out.

Shapes: k positions, u places at which odometry errs, n frames.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.optimize import minimize, nnls
from scipy.stats import chi2

from anchor3r.geometry import hat
from anchor3r.pose_graph.drift import WindowNoise
from anchor3r.pose_graph.placement import MeasuredDrift, anchored, moved_by, robust_similarity
from anchor3r.pose_graph.pose_system import Float, PoseState
from anchor3r.pose_graph.priors import Positions, SlowNoise
from anchor3r.robust import SIGMA_PER_MAD

_MAX_POSITIONS = 160
"""So many, evenly spread, tell four variances well; the likelihood takes the cube of their number."""
_MAX_NODES = 200
"""Places at which odometry may err: far more than a drive has bends."""
_LEAST_POSITIONS = 15
"""45 coordinates less 8 for similarity and clock; fewer say more of the assumptions than of the drift."""
_LOG_SIGMA = np.array([4.0, 4.0, 1.0, 2.0, 1.0])
"""How far the logs of the five parameters are expected to be off from the first guess: drift by a factor of
50 in variance either way, the receiver by less."""
SLOW_PART, SLOW_TIME_S = 0.25, 30.0
"""First guess of the slow noise, over the variance of the white one; and how long it takes to change."""
_KNOTS_IN_MEMORY = 4
"""Unknowns of slow noise in the time that it takes to change: between them 6 % of its variance are lost."""
_FLAT = 0.03  # slope of the log likelihood, in standard deviations of what is searched, at the end
_NEVER = 1e-9
_NEXT_LAG, _LAGS = 5, 16
"""Scales from one to the nearest whose error is another's, and distances that are compared."""
_LEAST_SCALES = 4 * _NEXT_LAG
_DISTRUST = 1e6
"""Variance of a position that takes no part, over the one that it states: it could be a thousand times as far
off. So much more would be lost to rounding."""


def measure_drift(
    odometry: PoseState,
    frames: NDArray[np.int64],
    positions: Positions,
    expected: WindowNoise,
    *,
    significance: float,
) -> MeasuredDrift | None:
    """Of one component's odometry (n,) and positions on it in rows; None if they are too few to tell.

    expected: what windows say of their own noise, the first guess. significance: a position is left out if
    a right one would be off by as much with this probability at most.
    """  # fmt: skip
    if len(positions.rows) < _LEAST_POSITIONS:
        return None
    # Twice as many as the fit takes, as some prove wrong; thousands would take minutes to judge.
    positions = positions.select(_thinned(np.ones(len(positions.rows), bool), 2 * _MAX_POSITIONS))
    source, target = anchored(odometry, [positions])
    world_from_map, near = robust_similarity(source, target)
    placed = moved_by(odometry, np.arange(len(odometry.center)), world_from_map)
    first = None
    for most in (_MAX_POSITIONS // 3, _MAX_POSITIONS):  # roughly, to see which are wrong; then well
        if first is not None:
            near = _Process(placed, frames, positions, first).is_likely(near, significance)
        if np.count_nonzero(near) < _LEAST_POSITIONS:
            return None
        first = _Process(placed, frames, positions.select(_thinned(near, most))).fit(expected, first)
    return first


def drift_rate(error: Float, frames: NDArray[np.int64]) -> float | None:
    """Random walk of an odometry's error for the root of a frame: of log scales, from known ones over its
    own, or of a tilt.

    error: (k,) at ascending frames (k,). Half the variance of differences grows with the frames between
    them; what it has between near ones is the error of what is known, which neighbours share. Taken
    from medians, so that some of the scales may be wrong. None if they are too few to tell.
    """
    count = len(error)
    if count < _LEAST_SCALES:
        return None
    apart, half, weight = [], [], []
    for lag in np.unique(np.geomspace(_NEXT_LAG, count // 2, _LAGS).astype(np.int64)):
        found = (SIGMA_PER_MAD * np.median(np.abs(error[lag:] - error[:-lag]))) ** 2 / 2
        apart.append(np.median(frames[lag:] - frames[:-lag]) / 2)
        half.append(max(float(found), _NEVER))
        weight.append(np.sqrt(count / lag) / half[-1])  # so many differences are independent
    columns = np.stack([np.ones(len(apart)), apart], 1) * np.array(weight)[:, None]
    (_, rate_sq), _ = nnls(columns, np.array(half) * weight)
    return float(np.sqrt(rate_sq))


def _thinned(which: NDArray[np.bool_], most: int) -> NDArray[np.bool_]:
    """At most so many of a mask, in pairs of neighbours, which tell white noise from slow."""
    chosen = np.flatnonzero(which)
    pairs = np.arange(len(chosen)) // 2
    step = int(np.ceil(len(chosen) / most))
    out = np.zeros(len(which), bool)
    out[chosen[pairs % step == 0]] = True
    return out


class _Process:
    """The Gaussian process of what is left between positions and odometry."""

    def __init__(
        self,
        state: PoseState,
        frames: NDArray[np.int64],
        positions: Positions,
        drift: MeasuredDrift | None = None,
    ) -> None:
        """state: the odometry, placed. drift: the variances, if they are known."""
        self._count = len(positions.rows)
        self._is_spread_known = positions.is_spread_known
        self._left = -positions.linearise(state).residual.ravel()
        at = state.center[positions.rows[:, 0]]
        self._fixed = similarities(at - at.mean(0))
        if positions.velocity_per_way is not None:
            self._fixed = np.column_stack([self._fixed, positions.velocity(state).ravel()])
        norm = np.linalg.norm(self._fixed, axis=0)
        moves = norm > _NEVER  # a clock moves nothing that stands still
        self._fixed = self._fixed[:, moves] / norm[moves]
        self._turns, self._stretches = drift_kernels(state.center, frames, positions.rows[:, 0])
        self._covariance = np.linalg.inv(positions.information)
        self._apart_s = (
            None
            if positions.moment_s is None
            else np.abs(positions.moment_s[:, None] - positions.moment_s[None, :])
        )
        self._drift = drift

    def fit(self, expected: WindowNoise, first: MeasuredDrift | None) -> MeasuredDrift:
        """The variances of the greatest restricted likelihood, given what is expected of them.

        first: what fewer positions have told, from where the search begins.
        """
        span = max(expected.num_frames, 1.0)
        white = 1.0
        if not self._is_spread_known:
            white = max(self._noise_of_neighbours(), 1e-12)
        middle = np.log(
            [
                expected.rotation_rad**2 / span,
                expected.relative**2 / span,
                white,
                SLOW_PART * white,
                SLOW_TIME_S,
            ]
        )

        at = np.zeros(5)
        if first is not None:
            at = (np.log([first.rotation_rate**2, first.scale_rate**2, *first[2:]]) - middle) / _LOG_SIGMA
        turn, stretch, *rest = np.exp(middle + _LOG_SIGMA * self._likeliest(middle, at))
        return MeasuredDrift(float(np.sqrt(turn)), float(np.sqrt(stretch)), *map(float, rest))

    def _likeliest(self, middle: Float, start: Float) -> Float:
        """(5,) logs of the parameters off `middle`, in `_LOG_SIGMA`, from `start` on."""
        _, _, information = self._negative_likelihood(np.exp(middle + _LOG_SIGMA * start))
        curvature = information * np.outer(_LOG_SIGMA, _LOG_SIGMA) + np.eye(len(start))
        root = np.linalg.inv(np.linalg.cholesky(curvature))  # steps of length 1 change the cost alike

        def cost(step: Float) -> tuple[float, Float]:
            at = start + step @ root
            value, slope, _ = self._negative_likelihood(np.exp(middle + _LOG_SIGMA * at))
            return value + 0.5 * float(at @ at), root @ (slope * _LOG_SIGMA + at)

        found = minimize(cost, np.zeros(len(start)), jac=True, method="BFGS", options={"gtol": _FLAT})
        return np.asarray(start + found.x @ root, np.float64)

    def is_likely(self, trusted: NDArray[np.bool_], significance: float) -> NDArray[np.bool_]:
        """(k,) positions that the trusted others (k,), and the process, do not contradict."""
        assert self._drift is not None
        drift = self._drift
        total = _sum(self._parts(np.array([drift.rotation_rate**2, drift.scale_rate**2, *drift[2:]])))
        # Positions that are not trusted hardly count for the others, else one wrong by far discredits all.
        extra = np.where(trusted, 0.0, _DISTRUST)[:, None, None] * self._covariance
        index = np.arange(self._count)
        total.reshape(self._count, 3, self._count, 3)[index, :, index, :] += extra
        found = _inverted(total)
        inverse = np.linalg.inv(total) if found is None else found[0]
        # With similarity and clock integrated out; what all others predict for one follows from it.
        seen = inverse @ self._fixed
        inverse -= seen @ np.linalg.lstsq(self._fixed.T @ seen, seen.T, rcond=_NEVER)[0]
        pull = (inverse @ self._left).reshape(self._count, 3)
        own = np.einsum("kxky->kxy", inverse.reshape(self._count, 3, self._count, 3))
        spread = np.linalg.inv(own)  # of what the others predict for each, less what it then says
        missed = np.einsum("kxy,ky->kx", spread, pull)
        square = np.einsum("kx,kxy,ky->k", missed, np.linalg.inv(spread - extra), missed)
        return np.asarray(square <= chi2.isf(significance, 3))

    def _noise_of_neighbours(self) -> float:
        """Variance over the stated one, by second differences of neighbours: drift has none to speak of."""
        left = self._left.reshape(self._count, 3)
        second = (left[2:] - 2 * left[1:-1] + left[:-2]) / np.sqrt(6.0)
        square = np.einsum("kx,kxy,ky->k", second, np.linalg.inv(self._covariance[1:-1]), second)
        return float(np.median(square) / chi2.median(3))

    def _parts(self, parameters: Float) -> list[Float]:
        """(3 k, 3 k) covariances of turns, stretches, white and slow noise, which add up."""
        turn, stretch, white, slow, slow_time = parameters
        k = self._count
        noise = np.zeros((2, k, 3, k, 3))
        index = np.arange(k)
        noise[0, index, :, index, :] = white * self._covariance
        if self._apart_s is not None:
            typical = np.median(self._covariance, 0)
            memory = slow * np.exp(-self._apart_s / slow_time)
            for a in range(3):
                noise[1, :, a, :, a] = typical[a, a] * memory
        return [turn * self._turns, stretch * self._stretches, *noise.reshape(2, 3 * k, 3 * k)]

    def _negative_likelihood(self, parameters: Float) -> tuple[float, Float, Float]:
        """Restricted, with its derivatives (5,) by the logs of the parameters, and their information (5, 5).

        With P the inverse covariance, similarity and clock taken out, and r what is left, the derivatives are
        (tr(P Vᵢ) - rᵀP Vᵢ P r) / 2, and the average information rᵀP Vᵢ P Vⱼ P r / 2.
        """
        parts = self._parts(parameters)
        found = _inverted(_sum(parts))
        if found is None:
            return 1 / _NEVER, np.zeros(5), np.eye(5)
        inverse, half_log_determinant = found
        seen = inverse @ self._fixed
        normal = self._fixed.T @ seen
        normal[np.diag_indices_from(normal)] *= 1 + _NEVER
        inverse -= seen @ np.linalg.solve(normal, seen.T)
        pull = inverse @ self._left
        apart = 0.0 if self._apart_s is None else np.repeat(np.repeat(self._apart_s, 3, 0), 3, 1)
        parts.append(parts[-1] * (apart / parameters[-1]))  # by the time of the slow noise
        pulled = np.stack([part @ pull for part in parts])
        slope = np.array([np.vdot(inverse, part) for part in parts]) - pulled @ pull
        value = 0.5 * float(self._left @ pull) + half_log_determinant + 0.5 * np.linalg.slogdet(normal)[1]
        return float(value), slope / 2, pulled @ inverse @ pulled.T / 2


def _sum(parts: list[Float]) -> Float:
    first, *others = parts
    return np.asarray(sum(others, start=first), np.float64)


def _inverted(matrix: Float) -> tuple[Float, float] | None:
    """The inverse of a covariance and half the log of its determinant; None if it is none."""
    root, info = dpotrf(matrix, lower=1)
    if info != 0:
        return None
    inverse, _ = dpotri(root, lower=1)
    inverse = np.tril(inverse)
    return inverse + np.tril(inverse, -1).T, float(np.log(np.diag(root)).sum())


class SlowNoiseKnots:
    """Moments at which the slow noise of a receiver is an unknown; between them it is interpolated."""

    def __init__(self, positions: Positions, drift: MeasuredDrift, first_row: int) -> None:
        """first_row: of the solver that is free for the first of them."""
        moment = positions.moment_s
        assert moment is not None
        span = float(np.ptp(moment))
        count = int(min(np.ceil(span / drift.slow_time_s * _KNOTS_IN_MEMORY) + 1, len(moment)))
        self._begin, self._interval = float(moment.min()), max(span / max(count - 1, 1), 1e-9)
        self.rows = first_row + np.arange(count)
        """(q,) of the solver"""
        memory = np.full(count, np.exp(-self._interval / drift.slow_time_s))
        memory[0] = 0.0
        variance = max(drift.slow, _NEVER) * np.median(np.linalg.inv(positions.information), 0)
        self.prior = SlowNoise(
            rows=np.stack([np.maximum(self.rows - 1, first_row), self.rows], 1),
            memory=memory,
            information=np.linalg.inv(variance) / (1 - memory**2)[:, None, None],
        )

    def added_to(self, positions: Positions) -> Positions:
        """The positions with the noise as an unknown, also where their clock has been moved a little."""
        assert positions.moment_s is not None
        last = len(self.rows) - 1
        along = np.clip((positions.moment_s - self._begin) / self._interval, 0, last)
        before = np.minimum(along.astype(np.int64), max(last - 1, 0))
        after = np.minimum(before + 1, last)
        return replace(
            positions,
            rows=np.column_stack([positions.rows[:, :2], self.rows[before], self.rows[after]]),
            slow_fraction=along - before,
        )


def similarities(at: Float) -> Float:
    """(3 k, 7) what moving, turning and stretching everything does to places (k, 3), which are centred."""
    return np.concatenate([np.tile(np.eye(3), (len(at), 1, 1)), hat(at), at[:, :, None]], 2).reshape(-1, 7)


def drift_kernels(center: Float, frames: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[Float, Float]:
    """(3 k, 3 k) covariances at rows (k,) of turns, and of stretches, of variance 1 at every frame."""
    nodes = np.arange(0, len(center), int(np.ceil(len(center) / _MAX_NODES)))
    gap = np.diff(frames[nodes], append=frames[-1] + 1).astype(np.float64)
    arm = np.where((rows[:, None] > nodes)[..., None], center[rows][:, None] - center[nodes], 0.0)
    flat = (arm * np.sqrt(gap)[:, None]).transpose(0, 2, 1).reshape(3 * len(rows), len(nodes))
    stretches = flat @ flat.T
    k = len(rows)
    blocks = stretches.reshape(k, 3, k, 3)
    turns = -blocks.transpose(0, 3, 2, 1).copy()
    dots = np.einsum("axbx->ab", blocks)
    for a in range(3):
        turns[:, a, :, a] += dots
    return turns.reshape(3 * k, 3 * k), stretches
