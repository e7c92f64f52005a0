"""The camera, and least squares on its reprojection errors: the pose of one frame, the position of a point.

The camera is u = fx s x/z + cx, v = fy s y/z + cy with s = 1 + k1 r² + k2 r⁴ and r² = (x² + y²)/z²; `camera`
is the array (fx, fy, cx, cy, k1, k2). Poses are camera_from_local, perturbed on the left: x ← x + ω × x + v.
Errors are in pixels and go through Huber's loss, by reweighting. What is compiled is single-threaded and
deterministic.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Array, Pinhole
from anchor3r.kernels import kernel

CALIBRATION_SIZE = 5
"""log f, cx, cy, k1, k2"""
_UNDISTORTION_STEPS = 5
"""Fixed-point iterations that undo the distortion of ordinary lenses to a thousandth of a pixel."""
_LEAST_DEPTH = 1e-6
"""A point that is nearer is taken to be behind the camera."""
_LEAST_PARALLAX_RAD = 1e-4
"""Rays that meet at a smaller angle are parallel: their point cannot be solved for."""
_POSE_CONVERGED = 1e-7
"""Largest element of a Gauss–Newton step of a pose that needs no other after it."""


def camera_of(intrinsics: Pinhole, radial: tuple[float, float] = (0.0, 0.0)) -> Array:
    """The array (fx, fy, cx, cy, k1, k2)."""
    return np.array([intrinsics.fx, intrinsics.fy, intrinsics.cx, intrinsics.cy, *radial])


def pinhole_of(camera: Array, width: int, height: int) -> Pinhole:
    """The ideal part of the camera of a width × height image."""
    fx, fy, cx, cy = camera[:4].tolist()
    return Pinhole(fx, fy, cx, cy, width, height)


def project(camera: Array, points: Array) -> Array:
    """Points (n, 3) in the camera frame -> pixels (n, 2); those behind the camera end up far away."""
    ideal = points[:, :2] / np.maximum(points[:, 2:], 1e-3)
    r2 = np.sum(ideal * ideal, axis=1, keepdims=True)
    return camera[:2] * ideal * (1 + camera[4] * r2 + camera[5] * r2 * r2) + camera[2:4]


def rays(camera: Array, pixels: Array) -> Array:
    """Pixels (n, 2) -> directions (n, 3) with z = 1; the distortion is undone by fixed-point iteration."""
    seen = (pixels - camera[2:4]) / camera[:2]
    ideal = seen
    for _ in range(_UNDISTORTION_STEPS):
        r2 = np.sum(ideal * ideal, axis=1, keepdims=True)
        ideal = seen / (1 + camera[4] * r2 + camera[5] * r2 * r2)
    return np.concatenate([ideal, np.ones((len(pixels), 1))], axis=1)


@kernel
def calibration_vector(camera: Array) -> Array:
    """(log fx, cx, cy, k1, k2): what an adjustment may refine."""
    out = camera[1:].copy()
    out[0] = math.log(camera[0])
    return out


@kernel
def rotate(rotation: Array, w0: float, w1: float, w2: float) -> Array:
    """Exp(w) @ rotation, with one Newton step towards orthonormality so that updates never accumulate."""
    theta2 = w0 * w0 + w1 * w1 + w2 * w2
    if theta2 < 1e-8:
        a, b = 1 - theta2 / 6, 0.5 - theta2 / 24
    else:
        theta = math.sqrt(theta2)
        a, b = math.sin(theta) / theta, (1 - math.cos(theta)) / theta2
    e = np.empty((3, 3))
    e[0, 0], e[0, 1], e[0, 2] = 1 - b * (w1 * w1 + w2 * w2), b * w0 * w1 - a * w2, b * w0 * w2 + a * w1
    e[1, 0], e[1, 1], e[1, 2] = b * w0 * w1 + a * w2, 1 - b * (w0 * w0 + w2 * w2), b * w1 * w2 - a * w0
    e[2, 0], e[2, 1], e[2, 2] = b * w0 * w2 - a * w1, b * w1 * w2 + a * w0, 1 - b * (w0 * w0 + w1 * w1)
    r = e @ rotation
    return 1.5 * r - 0.5 * (r @ r.T) @ r


@kernel
def residual_of(
    rotation: Array, translation: Array, camera: Array, point: Array, uv: Array, out: Array
) -> bool:
    """Fills out = (du, dv, x, y, z) with the error and the point in the camera; False behind the camera."""
    x = rotation[0, 0] * point[0] + rotation[0, 1] * point[1] + rotation[0, 2] * point[2] + translation[0]
    y = rotation[1, 0] * point[0] + rotation[1, 1] * point[1] + rotation[1, 2] * point[2] + translation[1]
    z = rotation[2, 0] * point[0] + rotation[2, 1] * point[1] + rotation[2, 2] * point[2] + translation[2]
    if z <= _LEAST_DEPTH:
        return False
    p, q = x / z, y / z
    r2 = p * p + q * q
    s = 1 + (camera[4] + camera[5] * r2) * r2
    out[0] = camera[0] * s * p + camera[2] - uv[0]
    out[1] = camera[1] * s * q + camera[3] - uv[1]
    out[2], out[3], out[4] = x, y, z
    return True


@kernel
def jacobians_of(
    camera: Array, residual: Array, rotation: Array, pose: Array, point: Array, calib: Array
) -> None:
    """Derivatives of (u, v): pose (2, 6) by (ω, v), point (2, 3), calib (2, 5)."""
    x, y, z = residual[2], residual[3], residual[4]
    p, q = x / z, y / z
    r2 = p * p + q * q
    s = 1 + (camera[4] + camera[5] * r2) * r2
    ds = 2 * camera[4] + 4 * camera[5] * r2
    # d(u, v) / d(p, q), then d(p, q) / d(x, y, z)
    u_p, u_q = camera[0] * (s + ds * p * p), camera[0] * ds * p * q
    v_p, v_q = camera[1] * ds * p * q, camera[1] * (s + ds * q * q)
    for row in range(2):
        dp, dq = (u_p, u_q) if row == 0 else (v_p, v_q)
        gx, gy = dp / z, dq / z
        gz = -(dp * p + dq * q) / z
        pose[row, 0] = gz * y - gy * z
        pose[row, 1] = gx * z - gz * x
        pose[row, 2] = gy * x - gx * y
        pose[row, 3], pose[row, 4], pose[row, 5] = gx, gy, gz
        for j in range(3):
            point[row, j] = gx * rotation[0, j] + gy * rotation[1, j] + gz * rotation[2, j]
    calib[0, 0], calib[1, 0] = camera[0] * s * p, camera[1] * s * q
    calib[0, 1], calib[1, 1], calib[0, 2], calib[1, 2] = 1, 0, 0, 1
    calib[0, 3], calib[1, 3] = camera[0] * r2 * p, camera[1] * r2 * q
    calib[0, 4], calib[1, 4] = camera[0] * r2 * r2 * p, camera[1] * r2 * r2 * q


def reprojection_errors(camera_from_local: SE3, camera: Array, points: Array, uv: Array) -> Array:
    """(n,) pixel distances between points (n, 3) and their images uv (n, 2); inf behind the camera."""
    in_camera = camera_from_local.apply(points)
    errors = np.linalg.norm(project(camera, in_camera) - uv, axis=1)
    return np.where(in_camera[:, 2] > 0, errors, np.inf)


@kernel
def adjust_pose(
    rotation: Array,
    translation: Array,
    camera: Array,
    points: Array,
    uv: Array,
    huber_px: float,
    iterations: int,
) -> tuple[Array, Array, Array]:
    """The pose from which points (n, 3) are best seen at uv (n, 2), by Gauss–Newton from the given one.

    Returns rotation, translation and the information (6, 6) of the last step.
    """
    r, t = rotation.copy(), translation.copy()
    h, g = np.zeros((6, 6)), np.zeros(6)
    out, jp, jx, jc = np.empty(5), np.empty((2, 6)), np.empty((2, 3)), np.empty((2, CALIBRATION_SIZE))
    for _ in range(iterations):
        h[:], g[:] = 0, 0
        for i in range(len(points)):
            if not residual_of(r, t, camera, points[i], uv[i], out):
                continue
            jacobians_of(camera, out, r, jp, jx, jc)
            error = math.hypot(out[0], out[1])
            w = 1.0 if error <= huber_px else huber_px / error
            for a in range(6):
                g[a] += w * (jp[0, a] * out[0] + jp[1, a] * out[1])
                for b in range(6):
                    h[a, b] += w * (jp[0, a] * jp[0, b] + jp[1, a] * jp[1, b])
        for a in range(6):
            h[a, a] += 1e-9 * h[a, a] + 1e-12
        d = -np.linalg.solve(h, g)
        r = rotate(r, d[0], d[1], d[2])
        t = t + d[3:] + np.cross(d[:3], t)
        if np.abs(d).max() < _POSE_CONVERGED:
            break
    return r, t, h


@kernel
def triangulate(
    rotations: Array, translations: Array, camera: Array, observed: Array, iterations: int
) -> tuple[Array, Array, Array]:
    """Points from where k posed cameras see them: observed (k, n, 2), NaN where one does not see a point.

    Returns positions (n, 3), the largest reprojection error (n,) in pixels, inf if a point lies behind a
    camera or is seen by one only, and its parallax (n,), the largest angle between two of its rays.
    """
    count = observed.shape[1]
    positions, errors, parallax = np.zeros((count, 3)), np.full(count, np.inf), np.zeros(count)
    for i in range(count):
        seen = np.flatnonzero(~np.isnan(observed[:, i, 0]))
        if len(seen) < 2:
            continue
        h, g, parallax[i] = _ray_equations(rotations, translations, camera, observed[:, i], seen)
        if parallax[i] < _LEAST_PARALLAX_RAD:
            continue
        positions[i] = np.linalg.solve(h, g)
        errors[i] = _polish_point(
            rotations, translations, camera, observed[:, i], seen, iterations, positions[i]
        )
    return positions, errors, parallax


@kernel
def _ray_equations(
    rotations: Array, translations: Array, camera: Array, uv: Array, seen: NDArray[np.int64]
) -> tuple[Array, Array, float]:
    """Normal equations of the point nearest to the rays (their distortion neglected), and its parallax."""
    h, g, cosine = np.zeros((3, 3)), np.zeros(3), 1.0
    directions = np.empty((len(seen), 3))
    for j in range(len(seen)):
        k = seen[j]
        ray = np.array([(uv[k, 0] - camera[2]) / camera[0], (uv[k, 1] - camera[3]) / camera[1], 1.0])
        directions[j] = rotations[k].T @ (ray / math.sqrt(ray @ ray))
        across = np.eye(3) - np.outer(directions[j], directions[j])
        h += across
        g -= across @ (rotations[k].T @ translations[k])
        for other in range(j):
            cosine = min(cosine, directions[j] @ directions[other])
    return h, g, math.acos(max(-1.0, cosine))


@kernel
def _polish_point(
    rotations: Array, translations: Array, camera: Array, uv: Array, seen: NDArray[np.int64],
    iterations: int, point: Array,
) -> float:  # fmt: skip
    """Gauss–Newton on the reprojection errors, in place; returns the largest error, inf if it fails."""
    out, jp, jx, jc = np.empty(5), np.empty((2, 6)), np.empty((2, 3)), np.empty((2, CALIBRATION_SIZE))
    worst = np.inf
    for step in range(iterations + 1):
        h, g, worst = np.zeros((3, 3)), np.zeros(3), 0.0
        for k in seen:
            if not residual_of(rotations[k], translations[k], camera, point, uv[k], out):
                return np.inf
            jacobians_of(camera, out, rotations[k], jp, jx, jc)
            h += jx.T @ jx
            g += jx.T @ out[:2]
            worst = max(worst, math.hypot(out[0], out[1]))
        if step < iterations:
            for a in range(3):
                h[a, a] *= 1 + 1e-6
            point -= np.linalg.solve(h, g)
    return worst
