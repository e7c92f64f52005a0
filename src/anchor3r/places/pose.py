"""A camera's pose from matches with keyframes whose features have depths.

A match says that a point on a ray of a keyframe, at a depth known to some spread, is seen at a pixel. Where
the depth is sure that is a point to be seen (PnP); where it is not, only a line (epipolar geometry); the
covariance of each match's error says which, and so one least-squares problem takes both.

Shapes: m matches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln
from scipy.stats import binom

from anchor3r.geometry import SE3, so3_exp

Float = NDArray[np.float64]
_SAMPLE = 3
"""Matches that determine a pose."""
_STEPS, _LAST_STEPS = 15, 3
_CELL = 6.0
"""Features nearer to each other than this in standard deviations of their place count as one."""


@dataclass(frozen=True, kw_only=True)
class PoseConfig:
    """When a match fits a pose, and when enough of them do."""

    pixel_sigma: float = 0.0015
    """Standard deviation of a feature's place, as a part of the image's longer side: one pixel of 640."""
    fit: float = 3.0
    """Standard deviations by which a match may be off."""
    coarse: float = 6.0
    """Standard deviations by which a match may be off while the pose is searched for."""
    iterations: int = 500
    """Samples of three matches that are tried."""
    largest_depth_sigma: float = 0.3
    """Relative spread of depths beyond which they do not help to find the pose."""

    def __post_init__(self) -> None:
        if not (0 < self.pixel_sigma < 0.1 and 0 < self.fit <= self.coarse and self.iterations > 0):
            raise ValueError(f"pixel_sigma, fit, coarse or iterations cannot be: {self}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Matches:
    """Matches of one image with keyframes of one world."""

    query: Float
    """(m, 2) x/z, y/z in the image's camera"""
    feature: NDArray[np.int64]
    """(m,) row of the image's feature"""
    keyframe: NDArray[np.int64]
    """(m,) which keyframe"""
    point: Float
    """(m, 3) in the world, at the depth that is known"""
    along: Float
    """(m, 3) the ray of the keyframe, as long as one standard deviation of the depth, in the world"""

    def __len__(self) -> int:
        return len(self.query)

    def select(self, which: NDArray[Any]) -> Matches:
        return Matches(**{name: value[which] for name, value in vars(self).items()})


@dataclass(frozen=True, eq=False, kw_only=True)
class CameraPose:
    """A pose and what speaks for it."""

    camera_from_world: SE3
    covariance: Float
    """(6, 6) rotation (camera axes, rad²) and centre (world axes)"""
    inlier: NDArray[np.bool_]
    """(m,) matches that fit"""
    num_inliers: int
    """Distinct features among them."""
    log10_chance: float
    """Logarithm of the expected number of poses that as many random matches would fit as well."""


def find_pose(matches: Matches, sigma: float, config: PoseConfig) -> SE3 | None:
    """camera_from_world by random samples; None if there is none. sigma: of a place in the image (x/z)."""
    span = np.linalg.norm(matches.along, axis=1)
    distance = np.linalg.norm(matches.point - np.median(matches.point, axis=0), axis=1)
    usable = np.flatnonzero(np.isfinite(distance) & np.isfinite(span))
    if len(usable) < _SAMPLE + 1:
        return None
    point, pixel = matches.point[usable], matches.query[usable]
    origin = np.median(point, axis=0)
    found, turn, shift, _ = cv2.solvePnPRansac(
        point - origin, pixel, np.eye(3), None, iterationsCount=config.iterations,
        reprojectionError=config.coarse * sigma, confidence=0.9999, flags=cv2.SOLVEPNP_AP3P,
    )  # fmt: skip
    if not found or not np.isfinite(turn).all() or not np.isfinite(shift).all():
        return None
    rotation = so3_exp(turn[:, 0])
    return SE3(rotation, shift[:, 0] - rotation @ origin)


def refine_pose(
    matches: Matches, start: SE3, sigma: float, config: PoseConfig, *, is_near: bool = False
) -> SE3:
    """Least squares over the matches that fit, chosen anew in every step as the limit closes in.

    is_near: the start is the pose by nearly the same matches, from which few steps are left.
    """
    pose = start
    limits = [config.fit] * _LAST_STEPS if is_near else np.geomspace(config.coarse, config.fit, _STEPS)
    for limit in limits:
        error, whitening, jacobian, seen = _linearised(matches, pose, sigma)
        length = np.linalg.norm(np.einsum("mij,mj->mi", whitening, error), axis=1)
        weight = np.where(seen & (length < limit), (1 - (length / limit) ** 2) ** 2, 0.0)
        hessian, gradient = _normal_equations(error, whitening, jacobian, weight)
        try:
            step = np.asarray(np.linalg.solve(hessian, gradient), np.float64)
        except np.linalg.LinAlgError:
            return pose
        pose = _moved(pose, step)
    return pose


def judge_pose(
    matches: Matches, pose: SE3, sigma: float, area: float, config: PoseConfig, num_tried: int
) -> CameraPose | None:
    """What speaks for a pose; None if its matches do not determine it.

    area: of the image, in units of x/z. num_tried: places that were tried, each with samples of its own.
    """
    error, whitening, jacobian, seen = _linearised(matches, pose, sigma)
    length = np.linalg.norm(np.einsum("mij,mj->mi", whitening, error), axis=1)
    inlier = seen & (length < config.fit)
    if inlier.sum() <= _SAMPLE:
        return None
    hessian, _ = _normal_equations(error, whitening, jacobian, inlier.astype(np.float64))
    if np.linalg.cond(hessian) > 1e14:
        return None
    spread = max(1.0, float((length[inlier] ** 2).sum()) / max(2 * int(inlier.sum()) - 6, 1))
    # Matches of features side by side, and of one feature with several keyframes, are one.
    cell = np.floor(matches.query / (_CELL * sigma)).astype(np.int64)
    total, count = len(np.unique(cell, axis=0)), len(np.unique(cell[inlier], axis=0))
    # Where a random match would fit; one whose point the camera does not see fits nowhere.
    ellipse = math.pi * (config.fit**2) / np.abs(np.linalg.det(whitening))
    fits = np.where(seen, np.minimum(ellipse / area, 1.0), 0.0)
    chance = float(np.clip(np.mean(fits) * len(matches) / total, 1e-9, 1.0))
    return CameraPose(
        camera_from_world=pose,
        covariance=np.asarray(spread * np.linalg.inv(hessian), np.float64),
        inlier=inlier,
        num_inliers=count,
        log10_chance=_log10_chance(total, count, chance) + math.log10(max(num_tried, 1)),
    )


def _log10_chance(total: int, count: int, chance: float) -> float:
    """Expected number of samples of three out of `total` random matches that `count` of them fit."""
    if count <= _SAMPLE:
        return 0.0
    samples = (gammaln(total + 1) - gammaln(_SAMPLE + 1) - gammaln(total - _SAMPLE + 1)) / math.log(10)
    beyond = binom.logsf(count - _SAMPLE - 1, total - _SAMPLE, chance) / math.log(10)
    return float(samples + max(beyond, -300.0))


def _linearised(matches: Matches, pose: SE3, sigma: float) -> tuple[Float, Float, Float, NDArray[np.bool_]]:
    """Errors (m, 2), what makes them unit normal (m, 2, 2), their Jacobians (m, 2, 6), and what is seen."""
    rotation = np.asarray(pose.rotation, np.float64)
    seen_at = matches.point @ rotation.T + pose.translation
    along = matches.along @ rotation.T
    z = seen_at[:, 2]
    # A point behind the camera, or one whose depth is as uncertain as it is far, is not seen anywhere.
    seen = z > np.maximum(1e-9, np.abs(along[:, 2]))
    z = np.where(seen, z, 1.0)
    place = seen_at[:, :2] / z[:, None]
    projection = np.zeros((len(z), 2, 3))
    projection[:, 0, 0] = projection[:, 1, 1] = 1 / z
    projection[:, :, 2] = -place / z[:, None]
    stretch = np.einsum("mij,mj->mi", projection, along)
    # The inverse root of sigma² + stretch stretchᵀ in closed form: near the camera the stretch has no bound.
    square = (stretch**2).sum(1)
    shrink = (1 - 1 / np.sqrt(1 + square / sigma**2)) / np.maximum(square, 1e-300)
    whitening = (np.eye(2) - shrink[:, None, None] * stretch[:, :, None] * stretch[:, None, :]) / sigma
    turned = np.zeros((len(z), 3, 3))
    x, y, w = seen_at.T
    turned[:, 0, 1], turned[:, 0, 2], turned[:, 1, 2] = w, -y, x
    turned -= np.swapaxes(turned, 1, 2)  # -[X]×: what a turn of the camera does to a point
    moved = np.broadcast_to(-rotation, turned.shape)
    jacobian = np.concatenate([projection @ turned, projection @ moved], 2)
    return matches.query - place, whitening, jacobian, seen


def _normal_equations(error: Float, whitening: Float, jacobian: Float, weight: Float) -> tuple[Float, Float]:
    white = whitening @ jacobian
    hessian = np.einsum("m,mij,mik->jk", weight, white, white)
    gradient = np.einsum("m,mij,mi->j", weight, white, np.einsum("mij,mj->mi", whitening, error))
    return hessian, gradient


def _moved(pose: SE3, step: Float) -> SE3:
    """The camera turned about its own axes and moved in the world."""
    return SE3.from_center(so3_exp(step[:3]) @ pose.rotation, pose.center() + step[3:])
