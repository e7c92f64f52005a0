"""A camera that turns on the spot or stands still: rotations without translation, and its focal length.

Where nothing shows parallax there is no depth and no translation to be measured, but rotations can be, and if
the camera turns far enough its focal length, too. Letters: k frames, n points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from anchor3r.geometry import SE3, Array, so3_exp
from anchor3r.predictors.features.projection import project, rays
from anchor3r.predictors.features.uncertainty import noise_variance

_ITERATIONS = 12
"""Gauss–Newton steps; from rotations of zero it takes about six."""
_FOCAL_STEP = 1e-4
"""Relative step of the focal length for its derivative."""
_EXPLAINED = 0.9
"""Part of the observations that a rotation alone has to explain if no translation is to be looked for."""
_PLAUSIBLE = 0.7
"""The same where no translation was found: tracks of many frames slip, and on 20 rotations in worlds down to
0.78 of them were explained."""
_MAX_LOG_ZOOM = 2.0
"""Logarithm of the focal length over the one it starts from: from 60°, views of 10° to 150° lie within it."""
_SIGNIFICANT = 3.09
"""Standard deviations of a count that chance exceeds in one case of a thousand."""
_MEDIAN_ERROR = 0.6745
"""Median of the absolute value of a standard Gaussian."""
_BASELINE = 1e-4
"""Small translation, in distances of a point, whose direction in the image is that of its epipolar line."""
_LEAST_ANGLE_RAD = 1e-6
"""Ridge on the rotations' information, for frames that see next to nothing."""


@dataclass(frozen=True)
class Rotations:
    """Frames that were taken from one place."""

    frame_from_first: Array
    """(k, 3, 3); the first is the identity"""
    covariance: Array
    """(k, 3, 3) of left perturbations of the rotations, in square radians"""
    camera: Array
    """(6,) with the focal length that fits best"""
    focal_sigma: float
    """relative spread of it, the prior included; 0 if it was held"""
    noise_variance: float
    """of a coordinate of an observation, in square pixels"""
    is_explained: bool
    """whether nearly all observations agree with rotations alone"""
    is_plausible: bool
    """whether most of them do"""
    max_error_px: float
    """up to which they agree"""


def fit_rotations(
    observed: Array, camera: Array, focal_sigma: float, *, huber_px: float, max_error_px: float
) -> Rotations:
    """Rotations, and the focal length unless its relative spread is 0, from tracks (k, n, 2) without gaps."""
    count, log_focal, prior = len(observed), 0.0, focal_sigma**-2 if focal_sigma > 0 else np.inf
    rotation = np.broadcast_to(np.eye(3), (count, 3, 3)).copy()
    errors, h, c = np.zeros(observed.shape[:2]), np.zeros((count, 3, 3)), np.zeros((count, 3))
    f = np.zeros(count)
    for step in range(_ITERATIONS + 1):
        residual, by_turn, by_focal = _linearised(_zoomed(camera, log_focal), rotation, observed)
        errors = np.linalg.norm(residual, axis=2)
        if step == _ITERATIONS:
            break
        weight = np.minimum(1.0, huber_px / np.maximum(errors, 1e-12))[..., None]
        h = np.einsum(
            "knia,kni,knib->kab", by_turn, weight.repeat(2, 2), by_turn
        ) + _LEAST_ANGLE_RAD * np.eye(3)
        g = np.einsum("knia,kni->ka", by_turn, weight * residual)
        c = np.einsum("knia,kni->ka", by_turn, weight * by_focal)
        f = np.sum(weight * by_focal * by_focal, axis=(1, 2))
        solved_g, solved_c = (
            np.linalg.solve(h, g[..., None])[..., 0],
            np.linalg.solve(h, c[..., None])[..., 0],
        )
        f -= np.sum(c * solved_c, axis=1)
        gradient = float(np.sum(weight * by_focal * residual) - np.sum(c * solved_g))
        zoom = -(gradient + prior * log_focal) / (float(f.sum()) + prior) if np.isfinite(prior) else 0.0
        zoom = float(np.clip(log_focal + zoom, -_MAX_LOG_ZOOM, _MAX_LOG_ZOOM)) - log_focal
        log_focal += zoom
        rotation[1:] = (so3_exp(-solved_g - zoom * solved_c) @ rotation)[1:]
    agreeing = errors < max_error_px
    variance = noise_variance(errors[1:][agreeing[1:]])
    # Frames of one track share the error of its corner: together they tell no more than the best of them.
    sigma = float(np.sqrt(1 / (prior + f.max() / variance))) if np.isfinite(prior) else 0.0
    # An error of the focal length turns every frame by the same part of its angle.
    slope = np.linalg.solve(h, c[..., None])
    covariance = variance * np.linalg.inv(h) + sigma**2 * slope @ np.swapaxes(slope, 1, 2)
    agreed, median_px = min(agreeing[-1].mean(), agreeing.mean()), float(np.median(errors[-1]))
    return Rotations(
        rotation,
        covariance,
        _zoomed(camera, log_focal),
        sigma,
        variance,
        is_explained=bool(agreed >= _EXPLAINED and median_px < max_error_px / 2),
        is_plausible=bool(agreed >= _PLAUSIBLE and median_px < max_error_px),
        max_error_px=max_error_px,
    )


def shows_parallax(
    first: Array, now: Array, turned: Rotations, moved: SE3, camera: Array, *, noise_px: float
) -> bool:
    """Whether pixels (n, 2) in two views need the translation of `moved`, now_from_first seen by `camera`.

    A translation moves points along their epipolar lines only; errors of tracks know no such direction. So if
    the camera only turned, what its best rotation leaves along a line exceeds what the translation leaves
    across it, or the usual noise of a track, in half of the points at most, whatever the size of the errors:
    a sign test (McNemar's chi-square), which tracks that slip do not disturb.
    """
    in_now = rays(camera, first) @ moved.rotation.T
    pixel = project(camera, in_now)
    step = _BASELINE * np.linalg.norm(in_now, axis=1, keepdims=True)
    direction = moved.translation / max(float(np.linalg.norm(moved.translation)), 1e-12)
    line = project(camera, in_now + step * direction) - pixel
    line /= np.maximum(np.linalg.norm(line, axis=1, keepdims=True), 1e-12)
    left = now - pixel
    across = np.abs(left[:, 0] * line[:, 1] - left[:, 1] * line[:, 0])
    rotated = project(turned.camera, rays(turned.camera, first) @ turned.frame_from_first[-1].T)
    along = np.abs(np.sum((now - rotated) * line, axis=1))
    exceeding = int(np.sum(along > np.maximum(across, _MEDIAN_ERROR * noise_px)))
    return 2 * exceeding - len(first) > _SIGNIFICANT * math.sqrt(len(first))


def agreement_of_lost(turned: Rotations, observed: Array) -> float:
    """Part of the corners (k, n, 2), NaN once they are lost, that were lost where rotations put them.

    A camera that moves ahead soon loses what is near, and what is far looks as if it had turned: those that
    are left are no fair sample. 1 if none was lost after it had been followed for a while.
    """
    count = np.sum(np.isfinite(observed[:, :, 0]), axis=0)
    which = np.flatnonzero((count > 1) & (count < len(observed)))
    last = count[which] - 1
    first = rays(turned.camera, observed[0, which])
    expected = project(turned.camera, np.einsum("nab,nb->na", turned.frame_from_first[last], first))
    off = np.linalg.norm(expected - observed[last, which], axis=1)
    return float(np.mean(off < turned.max_error_px)) if len(which) else 1.0


def _zoomed(camera: Array, log_factor: float) -> Array:
    return np.concatenate([camera[:2] * np.exp(log_factor), camera[2:]])


def _linearised(camera: Array, rotation: Array, observed: Array) -> tuple[Array, Array, Array]:
    """Errors (k, n, 2) of tracks turned from the first frame, and their derivatives by a left perturbation of
    the rotation (k, n, 2, 3) and by the logarithm of the focal length (k, n, 2)."""
    shape = observed.shape

    def predicted(seen_by: Array) -> tuple[Array, Array]:
        in_camera = np.einsum("kab,nb->kna", rotation, rays(seen_by, observed[0]))
        return in_camera, project(seen_by, in_camera.reshape(-1, 3)).reshape(shape)

    in_camera, pixel = predicted(camera)
    _, zoomed = predicted(_zoomed(camera, _FOCAL_STEP))
    x, y, z = np.moveaxis(in_camera, -1, 0)
    p, q = x / np.maximum(z, 1e-3), y / np.maximum(z, 1e-3)
    # The derivative of the distortion is left out: it changes the way to the minimum, not the minimum.
    by_turn = np.empty((*shape, 3))
    by_turn[..., 0, :] = camera[0] * np.stack([-p * q, 1 + p * p, -q], axis=-1)
    by_turn[..., 1, :] = camera[1] * np.stack([-1 - q * q, p * q, p], axis=-1)
    return pixel - observed, by_turn, (zoomed - pixel) / _FOCAL_STEP
