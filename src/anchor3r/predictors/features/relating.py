"""Relates chosen views that no stream connects: descriptors, two-view geometry, resection, adjustment.

This is what a loop needs: the views may be far apart in time, and nothing is known of them but the camera.
All that comes out is in one unit, the median depth of the points that the anchor shares with its best member.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Array, so3_exp
from anchor3r.predictors.features.alignment import Image
from anchor3r.predictors.features.bundle import adjust_window
from anchor3r.predictors.features.config import FeaturesConfig
from anchor3r.predictors.features.projection import (
    CALIBRATION_SIZE,
    adjust_pose,
    calibration_vector,
    rays,
    reprojection_errors,
    triangulate,
)
from anchor3r.predictors.features.twoview import TwoView, relate_two_views

_NUM_KEYPOINTS = 1000
_RATIO = 0.8  # best over second-best descriptor distance of a match
_ADJUST_STEPS = 10
_HELD = 1e12  # information that keeps the calibration where it is


@dataclass(frozen=True)
class RelatedViews:
    """The views that were found to see what the anchor sees."""

    rows: NDArray[np.int64]
    """(k,) which of the given views"""
    member_from_anchor: SE3
    """(k,)"""


def relate_views(
    views: list[Image], anchor: Image, camera: Array, config: FeaturesConfig
) -> RelatedViews | None:
    """Poses of the views relative to the anchor, or None if none of them can be related."""
    observed = _observations(views, anchor)
    best = _best_pair(observed, camera, config)
    if best is None:
        return None
    base, two = best
    poses = {base: two.second_from_first}
    for k in range(len(views)):
        if k not in poses and (pose := _resect(two.position, observed[k], camera, config)) is not None:
            poses[k] = pose
    rows = np.array(sorted(poses), np.int64)
    rotations = np.stack([np.eye(3), *(poses[k].rotation for k in rows)])
    translations = np.stack([np.zeros(3), *(poses[k].translation for k in rows)])
    adjusted = _adjusted(rotations, translations, observed[[len(views), *rows]], camera, config)
    return None if adjusted is None else RelatedViews(rows, adjusted)


def _observations(views: list[Image], anchor: Image) -> Array:
    """(views + 1, n, 2) where the anchor's keypoints are seen, NaN where they are not; the anchor is last."""
    sift = cv2.SIFT.create(_NUM_KEYPOINTS)
    keypoints, descriptors = sift.detectAndCompute(anchor, None)
    observed = np.full((len(views) + 1, len(keypoints), 2), np.nan)
    observed[-1] = np.array([keypoint.pt for keypoint in keypoints]).reshape(-1, 2)
    matcher = cv2.BFMatcher(cv2.NORM_L2)
    for k, view in enumerate(views):
        others, their_descriptors = sift.detectAndCompute(view, None)
        if len(keypoints) < 2 or len(others) < 2:
            continue
        back = {
            match[0].queryIdx: match[0].trainIdx
            for match in matcher.knnMatch(their_descriptors, descriptors, 1)
        }
        for match, second in matcher.knnMatch(descriptors, their_descriptors, 2):
            if match.distance < _RATIO * second.distance and back[match.trainIdx] == match.queryIdx:
                observed[k, match.queryIdx] = others[match.trainIdx].pt
    return observed


def _best_pair(observed: Array, camera: Array, config: FeaturesConfig) -> tuple[int, TwoView] | None:
    """The view that shares the most well-triangulated points with the anchor; positions of all keypoints."""
    best, best_score = None, 0.0
    for k in range(len(observed) - 1):
        both = ~np.isnan(observed[k, :, 0])
        two = relate_two_views(
            observed[-1, both], observed[k, both], camera, config.max_error_px, config.min_points
        )
        if two is None:
            continue
        depth_known = np.minimum(two.parallax_rad / np.radians(config.min_parallax_deg), 1.0)
        score = float(depth_known[np.isfinite(two.position[:, 0])].sum())
        if score > max(best_score, config.min_points / 2):
            position = np.full((observed.shape[1], 3), np.nan)
            position[both] = two.position
            best, best_score = (k, TwoView(two.second_from_first, position, two.parallax_rad)), score
    return best


def _resect(position: Array, uv: Array, camera: Array, config: FeaturesConfig) -> SE3 | None:
    """The pose of a view that sees known points, or None if too few of them agree on one."""
    both = np.isfinite(position[:, 0]) & np.isfinite(uv[:, 0])
    if both.sum() < config.min_points:
        return None
    ideal = np.ascontiguousarray(rays(camera, uv[both])[:, :2])
    found, rotation_vector, translation, _ = cv2.solvePnPRansac(
        position[both], ideal, np.eye(3), None,
        reprojectionError=2 * config.max_error_px / camera[0], iterationsCount=300, flags=cv2.SOLVEPNP_SQPNP,
    )  # fmt: skip
    if not found:
        return None
    pose = SE3(so3_exp(rotation_vector[:, 0]), np.asarray(translation, np.float64)[:, 0])
    near = reprojection_errors(pose, camera, position[both], uv[both]) < 2 * config.max_error_px
    if near.sum() < max(config.min_points, 0.5 * both.sum()):
        return None
    chosen = np.flatnonzero(both)[near]
    rotation, translation, _ = adjust_pose(
        pose.rotation, pose.translation, camera, position[chosen], uv[chosen], config.huber_px, 10
    )
    return SE3(rotation, translation)


def _adjusted(
    rotations: Array, translations: Array, observed: Array, camera: Array, config: FeaturesConfig
) -> SE3 | None:
    """Poses of the members after adjusting them with all their points; the first row is the anchor, held."""
    position, error, _ = triangulate(rotations, translations, camera, observed, 3)
    chosen = np.flatnonzero(error < config.max_error_px)
    if len(chosen) < config.min_points:
        return None
    point_of, keyframe_of = np.nonzero(~np.isnan(observed[:, chosen, 0]).T)
    free = np.arange(len(rotations)) > 0
    rotations, translations, _, position, _ = adjust_window(
        rotations, translations, camera, position[chosen], point_of, keyframe_of,
        observed[keyframe_of, chosen[point_of]], config.huber_px, free,
        calibration_vector(camera), _HELD * np.eye(CALIBRATION_SIZE), _ADJUST_STEPS,
    )  # fmt: skip
    unit = float(np.median(position[:, 2]))
    return SE3(rotations[1:], translations[1:] / unit)
