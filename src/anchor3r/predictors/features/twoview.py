"""Two-view geometry: essential matrix or homography, relative pose, points, and whether to believe them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from scipy.special import gammaln
from scipy.stats import binom

from anchor3r.geometry import SE3, Array
from anchor3r.predictors.features.projection import rays, triangulate

_FAR = 1e4
"""Points farther than this many baselines do not count as in front of the cameras."""
_RANSAC_CERTAINTY = 0.9999
"""Probability with which RANSAC draws one sample without a mismatch."""
_FLAT_SLACK, _FLAT_POINT_SLACK = 3.0, 4.0
"""A surface that is nearly flat misses its homography, and then its two-view points, by this many times the
error that is allowed elsewhere."""
_TRIANGULATION_STEPS = 3
"""Gauss–Newton steps from where the two rays meet."""
_SAMPLE = 5
"""Matches that determine an epipolar geometry."""
_CHANCE = 1e-3
"""Expected number of geometries that random matches would fit as well, below which they are not random."""
_NO_MOTION = 1e-9
"""Translation of a homography, in distances to its plane, that is none."""


@dataclass(frozen=True)
class TwoView:
    """A relative pose in the scale in which the median depth of its points is 1."""

    second_from_first: SE3
    position: Array
    """(n, 3) in the first camera; NaN where the correspondence was not believed"""
    parallax_rad: Array
    """(n,) angle between the two rays"""

    def num_trusted(self, min_parallax_rad: float) -> int:
        """Points whose depth can be believed."""
        return int(np.sum(np.isfinite(self.position[:, 0]) & (self.parallax_rad > min_parallax_rad)))


def relate_two_views(
    first: Array, second: Array, camera: Array, *, max_error_px: float, min_points: int, min_agreeing: float
) -> TwoView | None:
    """Relative pose and points from pixels (n, 2) in two views, or None if too few of them agree on one.

    min_points is a number of them, min_agreeing a part.
    """
    needed = max(min_points, math.ceil(min_agreeing * len(first)))
    if len(first) < needed:
        return None
    one, other = (np.ascontiguousarray(rays(camera, uv)[:, :2]) for uv in (first, second))
    essential, inlier = cv2.findEssentialMat(
        one,
        other,
        np.eye(3),
        method=cv2.USAC_MAGSAC,
        prob=_RANSAC_CERTAINTY,
        threshold=max_error_px / camera[0],
    )
    if essential is None or essential.shape != (3, 3):
        return None
    agreeing, rotation, translation, _, _ = cv2.recoverPose(
        essential, one, other, np.eye(3), distanceThresh=_FAR, mask=inlier
    )
    if agreeing < needed:
        return None
    pose = SE3(np.asarray(rotation, np.float64), np.asarray(translation, np.float64)[:, 0])
    return _with_points(pose, first, second, camera, max_error_px, needed)


def is_one_scene(
    first: Array, second: Array, camera: Array, size: tuple[int, int], *, max_error_px: float
) -> bool:
    """Whether more pixels (n, 2) in two views of a size (width, height) fit one epipolar geometry than random
    matches would.

    A random match fits with a probability of the part of the image that is as near to a line. The expected
    number of geometries, of any five of n random matches, that as many fit as the best one has to be small.
    Unlike a pose, this needs no parallax and no depth.
    """
    if len(first) <= _SAMPLE:
        return False
    one, other = (np.ascontiguousarray(rays(camera, uv)[:, :2]) for uv in (first, second))
    _, inlier = cv2.findEssentialMat(
        one, other, np.eye(3), method=cv2.USAC_ACCURATE, prob=_RANSAC_CERTAINTY,
        threshold=max_error_px / camera[0],
    )  # fmt: skip
    count, n = 0 if inlier is None else int(inlier.sum()), len(first)
    if count <= _SAMPLE:
        return False
    band = min(1.0, 2 * max_error_px * math.hypot(*size) / (size[0] * size[1]))
    samples = gammaln(n + 1) - gammaln(_SAMPLE + 1) - gammaln(n - _SAMPLE + 1)
    return bool(samples + binom.logsf(count - _SAMPLE - 1, n - _SAMPLE, band) < math.log(_CHANCE))


def relate_views_of_a_plane(
    first: Array, second: Array, camera: Array, *, max_error_px: float, min_points: int
) -> list[TwoView]:
    """The motions that explain pixels (n, 2) in two views if most of what they see is flat, or nearly so.

    Of a plane there are two, and little tells which is the true one; there may be points off the plane.
    """
    one, other = (np.ascontiguousarray(rays(camera, uv)[:, :2]) for uv in (first, second))
    homography, _ = cv2.findHomography(one, other, cv2.USAC_MAGSAC, _FLAT_SLACK * max_error_px / camera[0])
    if homography is None:
        return []
    _, rotations, translations, _ = cv2.decomposeHomographyMat(homography, np.eye(3))
    found = []
    for rotation, translation in zip(rotations, translations, strict=True):
        length = float(np.linalg.norm(translation))
        if length < _NO_MOTION:
            continue
        pose = SE3(np.asarray(rotation, np.float64), np.asarray(translation, np.float64)[:, 0] / length)
        two = _with_points(pose, first, second, camera, _FLAT_POINT_SLACK * max_error_px, min_points)
        found += [] if two is None else [two]
    return found


def _with_points(
    pose: SE3, first: Array, second: Array, camera: Array, max_error_px: float, needed: int
) -> TwoView | None:
    rotations = np.stack([np.eye(3), pose.rotation])
    translations = np.stack([np.zeros(3), pose.translation])
    position, error, parallax = triangulate(
        rotations, translations, camera, np.stack([first, second]), _TRIANGULATION_STEPS
    )
    believed = error < max_error_px
    if believed.sum() < needed:
        return None
    depth = float(np.median(position[believed, 2]))
    position[~believed] = np.nan
    return TwoView(SE3(pose.rotation, pose.translation / depth), position / depth, parallax)
