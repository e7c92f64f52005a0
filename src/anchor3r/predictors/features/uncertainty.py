"""How well a window is known: from the information of an adjustment to the spread of its edges and its scale.

Poses are perturbed on the left, x ← x + ω × x + v in the camera, as everywhere in this package; edges on the
right, as the graph has them. Perturbations are (ω, v).
"""

from __future__ import annotations

import math

import numpy as np

from anchor3r.geometry import SE3, Array, adjoint
from anchor3r.predictors.features.projection import CALIBRATION_SIZE

_MEDIAN_LENGTH = 1.1774
"""Median length of a vector of two standard Gaussians: √(2 ln 2)."""
_LEAST_NOISE_PX = 0.05
"""No observation is taken for better than this: images are sampled, and lenses have more than two terms."""
_SHARED = 4.0
"""Variance of a pose over what independent errors of its observations would make. An observation errs as the
same point's others do (its template, what the surface looks like from elsewhere), so that they tell less than
their number. A rough value: on real video errors are larger still."""
_MAX_LOG_SCALE_SIGMA = 0.3
"""Spread of a scale of which nothing is known: a camera does not change its speed by more in one keyframe."""
_RIDGE = 1e-9
"""Of the mean information of a parameter: makes the directions solvable that nothing is known about."""


def noise_variance(errors_px: Array) -> float:
    """Of one coordinate of an observation, from the lengths (n,) of reprojection errors; robust."""
    sigma = float(np.median(errors_px)) / _MEDIAN_LENGTH if len(errors_px) else 0.0
    return _SHARED * max(sigma, _LEAST_NOISE_PX) ** 2


def of_poses(information: Array) -> Array:
    """Information (6f + c, 6f + c) of f keyframes and the calibration, which is taken as known -> covariance
    (6f, 6f) of the keyframes."""
    poses = information[:-CALIBRATION_SIZE, :-CALIBRATION_SIZE]
    # Poses of a map that is starting are known up to their scale only: the ridge stands for that.
    ridge = (_RIDGE * np.trace(poses) / len(poses) + _RIDGE) * np.eye(len(poses))
    return np.asarray(np.linalg.inv(poses + ridge))


def in_one_scale(keyframes: SE3, covariance: Array, num_free: int) -> Array:
    """The covariance (6f, 6f) of the newest f keyframes if they have the scale that they had before.

    For a young map, of which less is held than free: the error of the short way between held keyframes would
    count as one of the scale of everything. The scale is known as well as the direction of the way from the
    last held keyframe to the newest.
    """
    center = keyframes.center()
    arm = center - center[len(keyframes) - num_free - 1]
    # Left perturbations: a step of the centre moves the translation by -R times it.
    stretch = np.zeros((num_free, 6))
    stretch[:, 3:] = -(keyframes.rotation @ arm[..., None])[-num_free:, :, 0]
    way, moved = stretch[-1, 3:], covariance[-3:, -3:]
    length_sq = max(float(way @ way), 1e-100)
    across = 0.5 * (np.trace(moved) - float(way @ moved @ way) / length_sq) / length_sq
    grown = stretch.ravel()
    seen = covariance @ grown
    expected = float(grown @ seen) + across * float(grown @ grown) ** 2
    return np.asarray(covariance - np.outer(seen, seen) / expected)


def edges_to_newest(keyframes: SE3, covariance: Array, num_free: int) -> Array:
    """(k, 6, 6) of the edges keyframe_from_newest, from the covariance of the newest f keyframes (6f, 6f)."""
    own = covariance[-6:, -6:]
    out = np.broadcast_to(own, (len(keyframes), 6, 6)).copy()
    newest_from_keyframe = keyframes[-1][None] @ keyframes.inverse()
    for slot in range(num_free):
        k, block = len(keyframes) - num_free + slot, slice(6 * slot, 6 * slot + 6)
        carry = adjoint(newest_from_keyframe[k])
        cross = carry @ covariance[block, -6:]
        out[k] = carry @ covariance[block, block] @ carry.T - cross - cross.T + own
    return out


def carried(covariance: Array, newest_from_anchor: SE3, anchor_covariance: Array) -> Array:
    """Edges (k, 6, 6) to the newest keyframe -> to a later frame, of known spread relative to it."""
    carry = adjoint(newest_from_anchor.inverse())
    return carry @ covariance @ carry.T + anchor_covariance


def log_scale_sigma(member_from_newest: SE3, covariance: Array, num_steps: int) -> float:
    """Spread of the logarithm of a window's scale over the one before, a keyframe ago.

    What is known is the spread of the distance across the keyframes that were free to move, given those that
    were not. If each of num_steps steps between them changed the scale a little, at random, a mean over them
    has a third of the variance of their sum.
    """
    away = member_from_newest.translation
    distance_sq = max(float(away @ away), 1e-100)
    direction = member_from_newest.rotation.T @ away  # right perturbations move along the newest's axes
    variance = float(direction @ covariance[3:, 3:] @ direction) / distance_sq**2
    return min(_MAX_LOG_SCALE_SIGMA, math.sqrt(3 / num_steps * variance))
