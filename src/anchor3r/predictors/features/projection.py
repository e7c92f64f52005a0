"""The camera, and least squares on its reprojection errors: the pose of one frame, the position of a point.

The camera is u = fx s x/z + cx, v = fy s y/z + cy with s = 1 + k1 r² + k2 r⁴ and r² = (x² + y²)/z²; `camera`
is the array (fx, fy, cx, cy, k1, k2). Poses are camera_from_local, perturbed on the left: x ← x + ω × x + v.
Errors are in pixels and go through Huber's loss, by reweighting. What is compiled is single-threaded and
deterministic, and written in scalars: array expressions and BLAS calls take seconds to compile.
"""

from __future__ import annotations

import math

import numpy as np

from anchor3r.geometry import SE3, Array, Pinhole
from anchor3r.kernels import kernel
from anchor3r.predictors.features.cholesky import factorise, substitute

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


def calibration_vector(camera: Array) -> Array:
    """(log fx, cx, cy, k1, k2): what an adjustment may refine."""
    return np.array([math.log(camera[0]), *camera[2:]])


def camera_from(calibration: Array, like: Array) -> Array:
    """The camera of a `calibration_vector`; the ratio of its focal lengths, which is not refined, is another
    one's."""
    fx = math.exp(calibration[0])
    return np.array([fx, fx * like[1] / like[0], *calibration[1:]])


@kernel
def rotate(rotation: Array, w0: float, w1: float, w2: float, out: Array) -> None:
    """Fills out (3, 3) with Exp(w) @ rotation, with one Newton step towards orthonormality so that updates
    never accumulate."""
    theta2 = w0 * w0 + w1 * w1 + w2 * w2
    if theta2 < 1e-8:
        a, b = 1 - theta2 / 6, 0.5 - theta2 / 24
    else:
        theta = math.sqrt(theta2)
        a, b = math.sin(theta) / theta, (1 - math.cos(theta)) / theta2
    e, r, product = np.empty((3, 3)), np.empty((3, 3)), np.empty((3, 3))
    e[0, 0], e[0, 1], e[0, 2] = 1 - b * (w1 * w1 + w2 * w2), b * w0 * w1 - a * w2, b * w0 * w2 + a * w1
    e[1, 0], e[1, 1], e[1, 2] = b * w0 * w1 + a * w2, 1 - b * (w0 * w0 + w2 * w2), b * w1 * w2 - a * w0
    e[2, 0], e[2, 1], e[2, 2] = b * w0 * w2 - a * w1, b * w1 * w2 + a * w0, 1 - b * (w0 * w0 + w1 * w1)
    for i in range(3):
        for j in range(3):
            r[i, j] = e[i, 0] * rotation[0, j] + e[i, 1] * rotation[1, j] + e[i, 2] * rotation[2, j]
    for i in range(3):
        for j in range(3):
            product[i, j] = r[i, 0] * r[j, 0] + r[i, 1] * r[j, 1] + r[i, 2] * r[j, 2]
    for i in range(3):
        for j in range(3):
            again = product[i, 0] * r[0, j] + product[i, 1] * r[1, j] + product[i, 2] * r[2, j]
            out[i, j] = 1.5 * r[i, j] - 0.5 * again


@kernel
def residual_of(
    rotation: Array, translation: Array, camera: Array, point: Array, u: float, v: float, out: Array
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
    out[0] = camera[0] * s * p + camera[2] - u
    out[1] = camera[1] * s * q + camera[3] - v
    out[2], out[3], out[4] = x, y, z
    return True


@kernel
def gradient_of(camera: Array, residual: Array, gradient: Array) -> None:
    """Derivatives (2, 3) of (u, v) by the point in the camera."""
    z = residual[4]
    p, q = residual[2] / z, residual[3] / z
    r2 = p * p + q * q
    s = 1 + (camera[4] + camera[5] * r2) * r2
    ds = 2 * camera[4] + 4 * camera[5] * r2
    # d(u, v) / d(p, q), then d(p, q) / d(x, y, z)
    u_p, u_q = camera[0] * (s + ds * p * p), camera[0] * ds * p * q
    v_p, v_q = camera[1] * ds * p * q, camera[1] * (s + ds * q * q)
    gradient[0, 0], gradient[0, 1], gradient[0, 2] = u_p / z, u_q / z, -(u_p * p + u_q * q) / z
    gradient[1, 0], gradient[1, 1], gradient[1, 2] = v_p / z, v_q / z, -(v_p * p + v_q * q) / z


@kernel
def pose_jacobian(residual: Array, gradient: Array, out: Array) -> None:
    """Derivatives (2, 6) of (u, v) by a left perturbation (ω, v) of the pose."""
    x, y, z = residual[2], residual[3], residual[4]
    for row in range(2):
        gx, gy, gz = gradient[row, 0], gradient[row, 1], gradient[row, 2]
        out[row, 0], out[row, 1], out[row, 2] = gz * y - gy * z, gx * z - gz * x, gy * x - gx * y
        out[row, 3], out[row, 4], out[row, 5] = gx, gy, gz


@kernel
def point_jacobian(rotation: Array, gradient: Array, out: Array) -> None:
    """Derivatives (2, 3) of (u, v) by the point in the local map."""
    for row in range(2):
        gx, gy, gz = gradient[row, 0], gradient[row, 1], gradient[row, 2]
        for j in range(3):
            out[row, j] = gx * rotation[0, j] + gy * rotation[1, j] + gz * rotation[2, j]


@kernel
def calibration_jacobian(camera: Array, residual: Array, out: Array) -> None:
    """Derivatives (2, 5) of (u, v) by (log f, cx, cy, k1, k2)."""
    p, q = residual[2] / residual[4], residual[3] / residual[4]
    r2 = p * p + q * q
    s = 1 + (camera[4] + camera[5] * r2) * r2
    out[0, 0], out[1, 0] = camera[0] * s * p, camera[1] * s * q
    out[0, 1], out[1, 1], out[0, 2], out[1, 2] = 1, 0, 0, 1
    out[0, 3], out[1, 3] = camera[0] * r2 * p, camera[1] * r2 * q
    out[0, 4], out[1, 4] = camera[0] * r2 * r2 * p, camera[1] * r2 * r2 * q


def reprojection_errors(camera_from_local: SE3, camera: Array, points: Array, uv: Array) -> Array:
    """(n,) pixel distances between points (n, 3) and their images uv (n, 2); inf behind the camera.

    The pose is one, or one a point (n,).
    """
    in_camera = camera_from_local.apply(points)
    errors = np.linalg.norm(project(camera, in_camera) - uv, axis=1)
    return np.where(in_camera[:, 2] > 0, errors, np.inf)


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
    r, t, information = np.array(rotation, order="C"), np.array(translation), np.zeros((6, 6))
    points, uv = np.ascontiguousarray(points), np.ascontiguousarray(uv)
    _adjust_pose(r, t, camera, points, uv, float(huber_px), iterations, information)
    return r, t, information


@kernel
def _adjust_pose(
    rotation: Array, translation: Array, camera: Array, points: Array, uv: Array, huber_px: float,
    iterations: int, information: Array,
) -> None:  # fmt: skip
    """`adjust_pose` in place."""
    g, factor, turned = np.empty(6), np.empty((6, 6)), np.empty((3, 3))
    out, gradient, jacobian = np.empty(5), np.empty((2, 3)), np.empty((2, 6))
    for _ in range(iterations):
        information.fill(0.0)
        g.fill(0.0)
        for i in range(len(points)):
            if not residual_of(rotation, translation, camera, points[i], uv[i, 0], uv[i, 1], out):
                continue
            gradient_of(camera, out, gradient)
            pose_jacobian(out, gradient, jacobian)
            error = math.hypot(out[0], out[1])
            w = 1.0 if error <= huber_px else huber_px / error
            for a in range(6):
                g[a] -= w * (jacobian[0, a] * out[0] + jacobian[1, a] * out[1])
                for b in range(a + 1):
                    information[a, b] += w * (
                        jacobian[0, a] * jacobian[0, b] + jacobian[1, a] * jacobian[1, b]
                    )
        for a in range(6):
            information[a, a] += 1e-9 * information[a, a] + 1e-12
            for b in range(a + 1):
                factor[a, b] = information[b, a] = information[a, b]
        if not factorise(factor):
            break
        substitute(factor, g)
        rotate(rotation, g[0], g[1], g[2], turned)
        t0, t1, t2 = translation[0], translation[1], translation[2]
        translation[0] = t0 + g[3] + g[1] * t2 - g[2] * t1
        translation[1] = t1 + g[4] + g[2] * t0 - g[0] * t2
        translation[2] = t2 + g[5] + g[0] * t1 - g[1] * t0
        largest = 0.0
        for a in range(6):
            largest = max(largest, abs(g[a]))
        for a in range(3):
            for b in range(3):
                rotation[a, b] = turned[a, b]
        if largest < _POSE_CONVERGED:
            break


def triangulate(
    rotations: Array, translations: Array, camera: Array, observed: Array, iterations: int
) -> tuple[Array, Array, Array]:
    """Points from where k posed cameras see them: observed (k, n, 2), NaN where one does not see a point.

    Returns positions (n, 3), the largest reprojection error (n,) in pixels, inf if a point lies behind a
    camera or is seen by one only, and its parallax (n,), the largest angle between two of its rays.
    """
    count = observed.shape[1]
    positions, errors, parallax = np.zeros((count, 3)), np.full(count, np.inf), np.zeros(count)
    rotations, translations = np.ascontiguousarray(rotations), np.ascontiguousarray(translations)
    by_point = np.ascontiguousarray(np.swapaxes(observed, 0, 1))
    _triangulate(rotations, translations, camera, by_point, iterations, positions, errors, parallax)
    return positions, errors, parallax


@kernel
def _triangulate(
    rotations: Array, translations: Array, camera: Array, observed: Array, iterations: int,
    positions: Array, errors: Array, parallax: Array,
) -> None:  # fmt: skip
    """`triangulate` into the last three; observed (n, k, 2)."""
    directions, h, g = np.empty((len(rotations), 3)), np.empty((3, 3)), np.empty(3)
    for i in range(len(observed)):
        angle = _ray_equations(rotations, translations, camera, observed[i], directions, h, g)
        parallax[i] = max(angle, 0.0)
        if angle < _LEAST_PARALLAX_RAD or not factorise(h):
            continue
        substitute(h, g)
        for a in range(3):
            positions[i, a] = g[a]
        errors[i] = _polish_point(rotations, translations, camera, observed[i], iterations, positions[i])


@kernel
def _ray_equations(
    rotations: Array, translations: Array, camera: Array, uv: Array, directions: Array, h: Array, g: Array
) -> float:
    """Normal equations of the point nearest to the rays (their distortion neglected); returns its parallax,
    negative if fewer than two cameras see it. directions (k, 3) is space to work in."""
    h.fill(0.0)
    g.fill(0.0)
    cosine, num_seen = 1.0, 0
    for k in range(len(uv)):
        if math.isnan(uv[k, 0]):
            continue
        x, y = (uv[k, 0] - camera[2]) / camera[0], (uv[k, 1] - camera[3]) / camera[1]
        length = math.sqrt(x * x + y * y + 1)
        d = directions[num_seen]
        for a in range(3):
            d[a] = (rotations[k, 0, a] * x + rotations[k, 1, a] * y + rotations[k, 2, a]) / length
        for a in range(3):
            for b in range(3):
                across = (1.0 if a == b else 0.0) - d[a] * d[b]
                h[a, b] += across
                for c in range(3):  # minus the centre, Rᵀ t
                    g[a] -= across * rotations[k, c, b] * translations[k, c]
        for other in range(num_seen):
            e = directions[other]
            cosine = min(cosine, d[0] * e[0] + d[1] * e[1] + d[2] * e[2])
        num_seen += 1
    return math.acos(max(-1.0, cosine)) if num_seen > 1 else -1.0


@kernel
def _polish_point(
    rotations: Array, translations: Array, camera: Array, uv: Array, iterations: int, point: Array
) -> float:
    """Gauss–Newton on the reprojection errors, in place; returns the largest error, inf if it fails."""
    out, gradient, jacobian = np.empty(5), np.empty((2, 3)), np.empty((2, 3))
    h, g, worst = np.empty((3, 3)), np.empty(3), np.inf
    for step in range(iterations + 1):
        h.fill(0.0)
        g.fill(0.0)
        worst = 0.0
        for k in range(len(uv)):
            if math.isnan(uv[k, 0]):
                continue
            if not residual_of(rotations[k], translations[k], camera, point, uv[k, 0], uv[k, 1], out):
                return np.inf
            gradient_of(camera, out, gradient)
            point_jacobian(rotations[k], gradient, jacobian)
            for a in range(3):
                g[a] += jacobian[0, a] * out[0] + jacobian[1, a] * out[1]
                for b in range(3):
                    h[a, b] += jacobian[0, a] * jacobian[0, b] + jacobian[1, a] * jacobian[1, b]
            worst = max(worst, math.hypot(out[0], out[1]))
        if step < iterations:
            for a in range(3):
                h[a, a] *= 1 + 1e-6
            if not factorise(h):
                return np.inf
            substitute(h, g)
            for a in range(3):
                point[a] -= g[a]
    return worst
