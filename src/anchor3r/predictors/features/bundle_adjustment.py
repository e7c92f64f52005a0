"""Windowed bundle adjustment: the poses of a few keyframes, their points and the camera, together.

Levenberg–Marquardt with the points eliminated (Schur complement), for the camera of `projection`. Compiled,
single-threaded, deterministic. Letters: k keyframes, f of them free, n points, m observations, c = 5
calibration parameters (log f, cx, cy, k1, k2).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Array
from anchor3r.kernels import kernel
from anchor3r.predictors.features.projection import (
    CALIBRATION_SIZE,
    calibration_vector,
    jacobians_of,
    residual_of,
    rotate,
)

_BEHIND_COST = 1e4
"""Of an observation behind its camera, in square pixels: no step may put one there."""
_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-4, 1e-8, 1e4
"""Levenberg–Marquardt's damping, relative to the diagonal; a step changes it by a factor of ten."""
_CONVERGED = 1e-4
"""Relative decrease of the cost below which no other step is made."""


@kernel
def _window_cost(
    rotations: Array, translations: Array, camera: Array, points: Array,
    point_of: NDArray[np.int64], keyframe_of: NDArray[np.int64], uv: Array, huber_px: float,
) -> float:  # fmt: skip
    """Sum of Huber(error) over the observations; one behind its camera costs a lot."""
    cost = 0.0
    out = np.empty(5)
    for i in range(len(uv)):
        k = keyframe_of[i]
        if not residual_of(rotations[k], translations[k], camera, points[point_of[i]], uv[i], out):
            cost += _BEHIND_COST
            continue
        e = math.hypot(out[0], out[1])
        cost += 0.5 * e * e if e <= huber_px else huber_px * (e - 0.5 * huber_px)
    return cost


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
            for b in range(6):
                h[first + a, first + b] += scaled * jp[row, b]
            for b in range(3):
                w[a, b] += scaled * jx[row, b]
            for b in range(CALIBRATION_SIZE):
                h[first + a, base + b] += scaled * jc[row, b]
                h[base + b, first + a] += scaled * jc[row, b]


@kernel
def _linearise(
    rotations: Array, translations: Array, camera: Array, points: Array,
    point_of: NDArray[np.int64], keyframe_of: NDArray[np.int64], uv: Array, huber_px: float,
    slot: NDArray[np.int64], h: Array, g: Array, v: Array, gp: Array, w: Array, wc: Array,
) -> None:  # fmt: skip
    """Normal equations of the window, points kept apart.

    h (6f + c, 6f + c), g of the cameras and the calibration (last); v (n, 3, 3), gp (n, 3) of the points;
    w (m, 6, 3) camera × point and wc (n, c, 3) calibration × point. slot (k,): place among the free, or -1.
    """
    h[:], g[:], v[:], gp[:], wc[:] = 0, 0, 0, 0, 0
    base = len(g) - CALIBRATION_SIZE
    out, jp, jx, jc = np.empty(5), np.empty((2, 6)), np.empty((2, 3)), np.empty((2, CALIBRATION_SIZE))
    for i in range(len(uv)):
        k, n = keyframe_of[i], point_of[i]
        w[i] = 0
        if not residual_of(rotations[k], translations[k], camera, points[n], uv[i], out):
            continue
        jacobians_of(camera, out, rotations[k], jp, jx, jc)
        e = math.hypot(out[0], out[1])
        weight = 1.0 if e <= huber_px else huber_px / e
        for row in range(2):
            r = weight * out[row]
            for a in range(3):
                gp[n, a] += jx[row, a] * r
                for b in range(3):
                    v[n, a, b] += weight * jx[row, a] * jx[row, b]
            for a in range(CALIBRATION_SIZE):
                g[base + a] += jc[row, a] * r
                for b in range(CALIBRATION_SIZE):
                    h[base + a, base + b] += weight * jc[row, a] * jc[row, b]
                for b in range(3):
                    wc[n, a, b] += weight * jc[row, a] * jx[row, b]
        if slot[k] >= 0:
            _add_pose_terms(6 * slot[k], weight, out, jp, jx, jc, h, g, w[i])


@kernel
def _eliminate_points(
    start: NDArray[np.int64], keyframe_of: NDArray[np.int64], slot: NDArray[np.int64], damping: float,
    v: Array, gp: Array, w: Array, wc: Array, h: Array, g: Array, v_inv: Array,
) -> None:  # fmt: skip
    """Schur complement of the points onto h and g in place; v_inv (n, 3, 3) is kept for going back.

    start (n + 1,): where each point's observations begin (they are sorted by point).
    """
    base = len(g) - CALIBRATION_SIZE
    wv = np.empty((6, 3))
    for n in range(len(v)):
        m = v[n].copy()
        for a in range(3):
            m[a, a] += damping * m[a, a] + 1e-12
        v_inv[n] = np.linalg.inv(m)
        wcv = wc[n] @ v_inv[n]
        h[base:, base:] -= wcv @ wc[n].T
        g[base:] -= wcv @ gp[n]
        for i in range(start[n], start[n + 1]):
            if slot[keyframe_of[i]] < 0:
                continue
            first = 6 * slot[keyframe_of[i]]
            for a in range(6):
                for b in range(3):
                    wv[a, b] = (
                        w[i, a, 0] * v_inv[n, 0, b]
                        + w[i, a, 1] * v_inv[n, 1, b]
                        + w[i, a, 2] * v_inv[n, 2, b]
                    )
                g[first + a] -= wv[a, 0] * gp[n, 0] + wv[a, 1] * gp[n, 1] + wv[a, 2] * gp[n, 2]
                for b in range(CALIBRATION_SIZE):
                    cross = wv[a, 0] * wc[n, b, 0] + wv[a, 1] * wc[n, b, 1] + wv[a, 2] * wc[n, b, 2]
                    h[first + a, base + b] -= cross
                    h[base + b, first + a] -= cross
            for j in range(start[n], start[n + 1]):
                if slot[keyframe_of[j]] < 0:
                    continue
                other = 6 * slot[keyframe_of[j]]
                for a in range(6):
                    for b in range(6):
                        h[first + a, other + b] -= (
                            wv[a, 0] * w[j, b, 0] + wv[a, 1] * w[j, b, 1] + wv[a, 2] * w[j, b, 2]
                        )


@kernel
def _apply_step(
    step: Array, rotations: Array, translations: Array, camera: Array, points: Array,
    start: NDArray[np.int64], keyframe_of: NDArray[np.int64], slot: NDArray[np.int64],
    gp: Array, w: Array, wc: Array, v_inv: Array,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """New poses, camera and points after a step of the cameras and the calibration."""
    new_r, new_t, new_camera, new_points = rotations.copy(), translations.copy(), camera.copy(), points.copy()
    for k in range(len(rotations)):
        if slot[k] < 0:
            continue
        d = step[6 * slot[k] : 6 * slot[k] + 6]
        t = translations[k]
        new_r[k] = rotate(rotations[k], d[0], d[1], d[2])
        new_t[k, 0] = t[0] + d[1] * t[2] - d[2] * t[1] + d[3]
        new_t[k, 1] = t[1] + d[2] * t[0] - d[0] * t[2] + d[4]
        new_t[k, 2] = t[2] + d[0] * t[1] - d[1] * t[0] + d[5]
    calib = step[len(step) - CALIBRATION_SIZE :]
    new_camera[:2] *= math.exp(calib[0])
    new_camera[2:] += calib[1:]
    for n in range(len(points)):
        right = gp[n] + wc[n].T @ calib
        for i in range(start[n], start[n + 1]):
            if slot[keyframe_of[i]] >= 0:
                first = 6 * slot[keyframe_of[i]]
                right += w[i].T @ step[first : first + 6]
        new_points[n] -= v_inv[n] @ right
    return new_r, new_t, new_camera, new_points


@kernel
def adjust_window(
    rotations: Array, translations: Array, camera: Array, points: Array,
    point_of: NDArray[np.int64], keyframe_of: NDArray[np.int64], uv: Array, huber_px: float,
    free: NDArray[np.bool_], prior: Array, prior_information: Array, iterations: int,
) -> tuple[Array, Array, Array, Array, Array]:  # fmt: skip
    """Bundle adjustment of the free keyframes and all points of a window, by Levenberg–Marquardt.

    rotations (k, 3, 3), translations (k, 3), points (n, 3); observations (m,) sorted by point, all points
    observed. The calibration is drawn to `prior` (c,) by `prior_information` (c, c); make that
    huge to hold it. Returns rotations, translations, camera, points, the information (6f + c, 6f + c) of
    free keyframes and calibration with the points eliminated, the prior left out.
    """
    start = np.searchsorted(point_of, np.arange(len(points) + 1))
    slot = np.where(free, np.cumsum(free) - 1, -1)
    size = 6 * int(free.sum()) + CALIBRATION_SIZE
    h, g = np.empty((size, size)), np.empty(size)
    v, gp, v_inv = np.empty((len(points), 3, 3)), np.empty((len(points), 3)), np.empty((len(points), 3, 3))
    w, wc = np.empty((len(uv), 6, 3)), np.empty((len(points), CALIBRATION_SIZE, 3))
    cost = _window_cost(rotations, translations, camera, points, point_of, keyframe_of, uv, huber_px)
    damping = _FIRST_DAMPING
    for _ in range(iterations):
        _linearise(
            rotations, translations, camera, points, point_of, keyframe_of, uv, huber_px,
            slot, h, g, v, gp, w, wc,
        )  # fmt: skip
        _eliminate_points(start, keyframe_of, slot, damping, v, gp, w, wc, h, g, v_inv)
        off = calibration_vector(camera) - prior
        system, right = h.copy(), g.copy()
        system[size - CALIBRATION_SIZE :, size - CALIBRATION_SIZE :] += prior_information
        right[size - CALIBRATION_SIZE :] += prior_information @ off
        for a in range(size):
            system[a, a] += damping * abs(system[a, a]) + 1e-12
        step = -np.linalg.solve(system, right)
        new = _apply_step(
            step, rotations, translations, camera, points, start, keyframe_of, slot, gp, w, wc, v_inv
        )
        new_cost = _window_cost(new[0], new[1], new[2], new[3], point_of, keyframe_of, uv, huber_px)
        change = calibration_vector(new[2]) - prior
        new_total = new_cost + 0.5 * change @ prior_information @ change
        total = cost + 0.5 * off @ prior_information @ off
        if new_total < total:
            rotations, translations, camera, points = new
            cost, damping = new_cost, max(damping / 10, _LEAST_DAMPING)
            if total - new_total < _CONVERGED * total:
                break
        else:
            damping *= 10
            if damping > _MOST_DAMPING:
                break
    return rotations, translations, camera, points, h
