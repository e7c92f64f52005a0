"""Windowed bundle adjustment: the poses of a few keyframes, their points and the camera, together.

Levenberg–Marquardt with the points eliminated (Schur complement), for the camera of `projection`. What loops
over observations is compiled; single-threaded, deterministic. Letters: k keyframes, f of them free, n points,
m observations, c = 5 calibration parameters (log f, cx, cy, k1, k2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Array
from anchor3r.kernels import kernel
from anchor3r.predictors.features.projection import (
    CALIBRATION_SIZE,
    calibration_jacobian,
    calibration_vector,
    gradient_of,
    point_jacobian,
    pose_jacobian,
    residual_of,
    rotate,
)

_BEHIND_COST = 1e4
"""Of an observation behind its camera, in square pixels: no step may put one there."""
_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-4, 1e-8, 1e4
"""Levenberg–Marquardt's damping, relative to the diagonal; a step changes it by a factor of ten."""
HELD = 1e12 * np.eye(CALIBRATION_SIZE)
"""Information that keeps the calibration where it is."""
_CONVERGED = 1e-4
"""Relative decrease of the cost below which no other step is made."""


_State = tuple[Array, Array, Array, Array]
"""Rotations, translations, camera and points of a window."""


class Adjusted(NamedTuple):
    """A window after bundle adjustment."""

    rotations: Array
    """(k, 3, 3)"""
    translations: Array
    """(k, 3)"""
    camera: Array
    """(6,)"""
    points: Array
    """(n, 3)"""
    information: Array
    """(6f + c, 6f + c) of free keyframes and calibration with the points eliminated, the prior left out, as
    the last step had it"""
    gradient: Array
    """(6f + c,) of the cost there, likewise"""
    calibration: Array
    """(c,) there"""


@dataclass
class _Observations:
    """Where keyframes see points, sorted by point."""

    start: NDArray[np.int64]
    """(n + 1,) where each point's observations begin"""
    point_of: NDArray[np.int64]
    """(m,)"""
    keyframe_of: NDArray[np.int64]
    """(m,)"""
    uv: Array
    """(m, 2)"""
    slot: NDArray[np.int64]
    """(k,) place of a keyframe among the free ones, or -1"""


@dataclass
class _Equations:
    """Normal equations of a window, points kept apart."""

    h: Array
    """(6f + c, 6f + c) of the cameras and, last, the calibration; the upper triangle is filled"""
    g: Array
    """(6f + c,)"""
    v: Array
    """(n, 3, 3) of the points; after elimination the inverse of it, damped"""
    gp: Array
    """(n, 3)"""
    w: Array
    """(m, 6, 3) camera × point"""
    wc: Array
    """(n, c, 3) calibration × point"""

    @staticmethod
    def zeros(num_free: int, num_points: int, num_observations: int) -> _Equations:
        size = 6 * num_free + CALIBRATION_SIZE
        return _Equations(
            np.zeros((size, size)), np.zeros(size), np.zeros((num_points, 3, 3)), np.zeros((num_points, 3)),
            np.zeros((num_observations, 6, 3)), np.zeros((num_points, CALIBRATION_SIZE, 3)),
        )  # fmt: skip


@dataclass
class Adjustment:
    """A bundle adjustment on its way, whose steps may be taken one by one; see `adjust_window`."""

    seen: _Observations
    rotations: Array
    """(k, 3, 3)"""
    translations: Array
    """(k, 3)"""
    camera: Array
    """(6,)"""
    points: Array
    """(n, 3)"""
    huber_px: float
    prior: Array
    """(c,)"""
    prior_information: Array
    """(c, c)"""
    steps_left: int
    """At most; none once it has converged."""
    cost: float
    information: Array
    """As in `Adjusted`"""
    gradient: Array
    linearised_at: Array
    """(6,) camera of the last step's equations"""
    damping: float = _FIRST_DAMPING

    @staticmethod
    def begin(
        rotations: Array, translations: Array, camera: Array, points: Array,
        point_of: NDArray[np.int64], keyframe_of: NDArray[np.int64], uv: Array, huber_px: float,
        free: NDArray[np.bool_], prior: Array, prior_information: Array, iterations: int,
    ) -> Adjustment:  # fmt: skip
        """Before the first step; what `adjust_window` takes."""
        seen = _Observations(
            start=np.searchsorted(point_of, np.arange(len(points) + 1)),
            point_of=np.ascontiguousarray(point_of),
            keyframe_of=np.ascontiguousarray(keyframe_of),
            uv=np.ascontiguousarray(uv),
            slot=np.where(free, np.cumsum(free) - 1, -1),
        )
        state: _State = (
            np.ascontiguousarray(rotations), np.ascontiguousarray(translations), camera,
            np.ascontiguousarray(points),
        )  # fmt: skip
        cost = _total_cost(state, seen, huber_px, prior, prior_information)
        size = CALIBRATION_SIZE
        return Adjustment(
            seen, *state, huber_px, prior, prior_information, iterations, cost,
            information=np.zeros((size, size)), gradient=np.zeros(size), linearised_at=camera,
        )  # fmt: skip

    def run(self, steps: int) -> None:
        """Takes so many of the steps that are left."""
        num_free, prior = int((self.seen.slot >= 0).sum()), (self.prior, self.prior_information)
        for _ in range(min(steps, self.steps_left)):
            state: _State = (self.rotations, self.translations, self.camera, self.points)
            equations = _Equations.zeros(num_free, len(self.points), len(self.seen.uv))
            self.linearised_at = self.camera
            new = _step(state, self.seen, equations, self.huber_px, *prior, self.damping)
            self.information, self.gradient = equations.h, equations.g
            new_cost = _total_cost(new, self.seen, self.huber_px, *prior)
            self.steps_left -= 1
            if new_cost < self.cost:
                converged = self.cost - new_cost < _CONVERGED * self.cost
                self.rotations, self.translations, self.camera, self.points = new
                self.cost, self.damping = new_cost, max(self.damping / 10, _LEAST_DAMPING)
            else:
                self.damping *= 10
                converged = self.damping > _MOST_DAMPING
            if converged:
                self.steps_left = 0
                return

    @property
    def adjusted(self) -> Adjusted:
        """The window as the steps so far have left it."""
        return Adjusted(
            self.rotations, self.translations, self.camera, self.points, self.information, self.gradient,
            calibration_vector(self.linearised_at),
        )  # fmt: skip


def adjust_window(
    rotations: Array, translations: Array, camera: Array, points: Array,
    point_of: NDArray[np.int64], keyframe_of: NDArray[np.int64], uv: Array, huber_px: float,
    free: NDArray[np.bool_], prior: Array, prior_information: Array, iterations: int,
) -> Adjusted:  # fmt: skip
    """Bundle adjustment of the free keyframes and all points of a window, by Levenberg–Marquardt.

    rotations (k, 3, 3), translations (k, 3), points (n, 3); observations (m,) sorted by point, all points
    observed. The calibration is drawn to `prior` (c,) by `prior_information` (c, c); `HELD` holds it.
    """
    adjustment = Adjustment.begin(
        rotations, translations, camera, points, point_of, keyframe_of, uv, huber_px, free, prior,
        prior_information, iterations,
    )  # fmt: skip
    adjustment.run(iterations)
    return adjustment.adjusted


def _total_cost(
    state: _State, seen: _Observations, huber_px: float, prior: Array, prior_information: Array
) -> float:
    """Cost of the observations and of the calibration's distance from its prior."""
    off = calibration_vector(state[2]) - prior
    cost = _window_cost(*state, seen.point_of, seen.keyframe_of, seen.uv, float(huber_px))
    return float(cost + 0.5 * off @ prior_information @ off)


def _step(
    state: _State,
    seen: _Observations,
    equations: _Equations,
    huber_px: float,
    prior: Array,
    prior_information: Array,
    damping: float,
) -> _State:
    """The state after one step; leaves the equations with the points eliminated."""
    e = equations
    _linearise(
        *state, seen.point_of, seen.keyframe_of, seen.uv, float(huber_px), seen.slot,
        e.h, e.g, e.v, e.gp, e.w, e.wc,
    )  # fmt: skip
    _eliminate_points(seen.start, seen.keyframe_of, seen.slot, damping, e.v, e.gp, e.w, e.wc, e.h, e.g)
    e.h = np.triu(e.h) + np.triu(e.h, 1).T
    system, right, c = e.h.copy(), e.g.copy(), CALIBRATION_SIZE
    system[-c:, -c:] += prior_information
    right[-c:] += prior_information @ (calibration_vector(state[2]) - prior)
    diagonal = np.einsum("ii->i", system)
    diagonal += damping * np.abs(diagonal) + 1e-12
    step = -np.linalg.solve(system, right)
    new = (state[0].copy(), state[1].copy(), state[2].copy(), state[3].copy())
    new[2][:2] *= math.exp(step[-c])
    new[2][2:] += step[1 - c :]
    _apply_step(step, new[0], new[1], new[3], seen.start, seen.keyframe_of, seen.slot, e.gp, e.w, e.wc, e.v)
    return new


@kernel
def _window_cost(
    rotations: Array, translations: Array, camera: Array, points: Array,
    point_of: NDArray[np.int64], keyframe_of: NDArray[np.int64], uv: Array, huber_px: float,
) -> float:  # fmt: skip
    """Sum of Huber(error) over the observations; one behind its camera costs a lot."""
    cost = 0.0
    out = np.empty(5)
    for i in range(len(uv)):
        k, n = keyframe_of[i], point_of[i]
        if not residual_of(rotations[k], translations[k], camera, points[n], uv[i, 0], uv[i, 1], out):
            cost += _BEHIND_COST
            continue
        e = math.hypot(out[0], out[1])
        cost += 0.5 * e * e if e <= huber_px else huber_px * (e - 0.5 * huber_px)
    return cost


@kernel
def _linearise(
    rotations: Array, translations: Array, camera: Array, points: Array,
    point_of: NDArray[np.int64], keyframe_of: NDArray[np.int64], uv: Array, huber_px: float,
    slot: NDArray[np.int64], h: Array, g: Array, v: Array, gp: Array, w: Array, wc: Array,
) -> None:  # fmt: skip
    """Adds every observation to `_Equations`."""
    base = len(g) - CALIBRATION_SIZE
    out, gradient = np.empty(5), np.empty((2, 3))
    jp, jx, jc = np.empty((2, 6)), np.empty((2, 3)), np.empty((2, CALIBRATION_SIZE))
    for i in range(len(uv)):
        k, n = keyframe_of[i], point_of[i]
        if not residual_of(rotations[k], translations[k], camera, points[n], uv[i, 0], uv[i, 1], out):
            continue
        gradient_of(camera, out, gradient)
        point_jacobian(rotations[k], gradient, jx)
        calibration_jacobian(camera, out, jc)
        e = math.hypot(out[0], out[1])
        weight = 1.0 if e <= huber_px else huber_px / e
        for row in range(2):
            for a in range(3):
                scaled = weight * jx[row, a]
                gp[n, a] += scaled * out[row]
                for b in range(3):
                    v[n, a, b] += scaled * jx[row, b]
            for a in range(CALIBRATION_SIZE):
                scaled = weight * jc[row, a]
                g[base + a] += scaled * out[row]
                for b in range(a, CALIBRATION_SIZE):
                    h[base + a, base + b] += scaled * jc[row, b]
                for b in range(3):
                    wc[n, a, b] += scaled * jx[row, b]
        if slot[k] >= 0:
            pose_jacobian(out, gradient, jp)
            _add_pose_terms(6 * slot[k], weight, out, jp, jx, jc, h, g, w[i])


@kernel
def _add_pose_terms(
    first: int, weight: float, residual: Array, jp: Array, jx: Array, jc: Array, h: Array, g: Array, w: Array
) -> None:
    """What one observation adds to the equations of its keyframe, whose unknowns begin at `first`."""
    base = len(g) - CALIBRATION_SIZE
    for row in range(2):
        for a in range(6):
            scaled = weight * jp[row, a]
            g[first + a] += scaled * residual[row]
            for b in range(a, 6):
                h[first + a, first + b] += scaled * jp[row, b]
            for b in range(3):
                w[a, b] += scaled * jx[row, b]
            for b in range(CALIBRATION_SIZE):
                h[first + a, base + b] += scaled * jc[row, b]


@kernel
def _invert(m: Array) -> None:
    """A symmetric (3, 3) matrix in place, by its cofactors."""
    a, b, c, d, e, f = m[0, 0], m[0, 1], m[0, 2], m[1, 1], m[1, 2], m[2, 2]
    first, second, third = d * f - e * e, c * e - b * f, b * e - c * d
    determinant = a * first + b * second + c * third
    m[0, 0], m[0, 1], m[0, 2] = first / determinant, second / determinant, third / determinant
    m[1, 1], m[1, 2] = (a * f - c * c) / determinant, (b * c - a * e) / determinant
    m[2, 2] = (a * d - b * b) / determinant
    m[1, 0], m[2, 0], m[2, 1] = m[0, 1], m[0, 2], m[1, 2]


@kernel
def _multiply(left: Array, right: Array, out: Array) -> None:
    """The first rows of out become left (r, 3) @ right (3, 3)."""
    for a in range(len(left)):
        for b in range(3):
            out[a, b] = left[a, 0] * right[0, b] + left[a, 1] * right[1, b] + left[a, 2] * right[2, b]


@kernel
def _eliminate_points(
    start: NDArray[np.int64], keyframe_of: NDArray[np.int64], slot: NDArray[np.int64], damping: float,
    v: Array, gp: Array, w: Array, wc: Array, h: Array, g: Array,
) -> None:  # fmt: skip
    """Schur complement of the points onto h (its upper triangle) and g in place; v becomes its inverse."""
    base = len(g) - CALIBRATION_SIZE
    wv = np.empty((6, 3))
    for n in range(len(v)):
        for a in range(3):
            v[n, a, a] += damping * v[n, a, a] + 1e-12
        _invert(v[n])
        _multiply(wc[n], v[n], wv)
        for a in range(CALIBRATION_SIZE):
            g[base + a] -= wv[a, 0] * gp[n, 0] + wv[a, 1] * gp[n, 1] + wv[a, 2] * gp[n, 2]
            for b in range(a, CALIBRATION_SIZE):
                h[base + a, base + b] -= (
                    wv[a, 0] * wc[n, b, 0] + wv[a, 1] * wc[n, b, 1] + wv[a, 2] * wc[n, b, 2]
                )
        for i in range(start[n], start[n + 1]):
            if slot[keyframe_of[i]] < 0:
                continue
            first = 6 * slot[keyframe_of[i]]
            _multiply(w[i], v[n], wv)
            for a in range(6):
                g[first + a] -= wv[a, 0] * gp[n, 0] + wv[a, 1] * gp[n, 1] + wv[a, 2] * gp[n, 2]
                for b in range(CALIBRATION_SIZE):
                    h[first + a, base + b] -= (
                        wv[a, 0] * wc[n, b, 0] + wv[a, 1] * wc[n, b, 1] + wv[a, 2] * wc[n, b, 2]
                    )
            for j in range(start[n], start[n + 1]):
                other = 6 * slot[keyframe_of[j]]
                if other < first:
                    continue  # held, or the same block below the diagonal
                for a in range(6):
                    for b in range(6):
                        h[first + a, other + b] -= (
                            wv[a, 0] * w[j, b, 0] + wv[a, 1] * w[j, b, 1] + wv[a, 2] * w[j, b, 2]
                        )


@kernel
def _apply_step(
    step: Array, rotations: Array, translations: Array, points: Array,
    start: NDArray[np.int64], keyframe_of: NDArray[np.int64], slot: NDArray[np.int64],
    gp: Array, w: Array, wc: Array, v_inv: Array,
) -> None:  # fmt: skip
    """Moves poses and points, in place, by a step of the cameras and the calibration."""
    turned, right = np.empty((3, 3)), np.empty(3)
    for k in range(len(rotations)):
        if slot[k] < 0:
            continue
        d = step[6 * slot[k] : 6 * slot[k] + 6]
        rotate(rotations[k], d[0], d[1], d[2], turned)
        for a in range(3):
            for b in range(3):
                rotations[k, a, b] = turned[a, b]
        t0, t1, t2 = translations[k, 0], translations[k, 1], translations[k, 2]
        translations[k, 0] = t0 + d[1] * t2 - d[2] * t1 + d[3]
        translations[k, 1] = t1 + d[2] * t0 - d[0] * t2 + d[4]
        translations[k, 2] = t2 + d[0] * t1 - d[1] * t0 + d[5]
    base = len(step) - CALIBRATION_SIZE
    for n in range(len(points)):
        for b in range(3):
            right[b] = gp[n, b]
            for a in range(CALIBRATION_SIZE):
                right[b] += wc[n, a, b] * step[base + a]
        for i in range(start[n], start[n + 1]):
            if slot[keyframe_of[i]] >= 0:
                first = 6 * slot[keyframe_of[i]]
                for b in range(3):
                    for a in range(6):
                        right[b] += w[i, a, b] * step[first + a]
        for a in range(3):
            points[n, a] -= v_inv[n, a, 0] * right[0] + v_inv[n, a, 1] * right[1] + v_inv[n, a, 2] * right[2]
