"""Relates chosen views that no stream connects: descriptors, two-view geometry, resection, adjustment.

This is what a loop needs: the views may be far apart in time, and nothing is known of them but the camera.
All that comes out is in one scale, in which the points that the anchor shares with others have median depth 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Array, so3_exp
from anchor3r.predictors.features.bundle_adjustment import adjust_window
from anchor3r.predictors.features.config import FeaturesConfig
from anchor3r.predictors.features.projection import (
    CALIBRATION_SIZE,
    adjust_pose,
    calibration_vector,
    rays,
    reprojection_errors,
    triangulate,
)
from anchor3r.predictors.features.tracking import Image
from anchor3r.predictors.features.twoview import TwoView, relate_two_views

_NUM_KEYPOINTS = 1000
_REMEMBERED_VIEWS = 128  # a megabyte each; the places of some dozens of neighbouring events
_RATIO = 0.8  # best over second-best descriptor distance of a match
_MIN_AGREEING = 0.3  # part of the matches of two views that must agree: descriptors mismatch often
_NUM_BASES = 3  # pairs that are tried as the base of all others
_ADJUST_STEPS = 10
_HELD = 1e12  # information that keeps the calibration where it is


@dataclass(frozen=True)
class RelatedViews:
    """The views that were found to see what the anchor sees."""

    rows: NDArray[np.int64]
    """(k,) which of the given views"""
    member_from_anchor: SE3
    """(k,)"""
    pixel: Array
    """(n, 2) where the anchor sees the points that relate them"""
    depth: Array
    """(n,) of these, in the anchor"""


def relate_views(
    views: list[Image], anchor: Image, camera: Array, config: FeaturesConfig
) -> RelatedViews | None:
    """Poses of the views relative to the anchor, or None if none of them can be related."""
    observed = _observations(views, anchor)
    candidates = [
        _related(observed, base, two, camera, config) for base, two in _bases(observed, camera, config)
    ]
    found = [related for related in candidates if related is not None]
    # Two views may agree on a wrong motion; more of them hardly do, so most points and views win.
    return max(found, key=lambda related: len(related.rows) * len(related.pixel), default=None)


def _observations(views: list[Image], anchor: Image) -> Array:
    """(views + 1, n, 2) where the anchor's keypoints are seen, NaN where they are not; the anchor is last."""
    pixel, descriptor = _keypoints(anchor)
    observed = np.full((len(views) + 1, len(pixel), 2), np.nan)
    observed[-1] = pixel
    for k, view in enumerate(views):
        their_pixel, their_descriptor = _keypoints(view)
        mine, theirs = _matches(descriptor, their_descriptor)
        observed[k, mine] = their_pixel[theirs]
    return observed


def _keypoints(view: Image) -> tuple[Array, NDArray[np.float32]]:
    """Pixels (n, 2) and unit descriptors (n, 128); not to be written to."""
    return _described(np.ascontiguousarray(view).tobytes(), view.shape)


@lru_cache(maxsize=_REMEMBERED_VIEWS)
def _described(grey: bytes, shape: tuple[int, ...]) -> tuple[Array, NDArray[np.float32]]:
    """Neighbouring loop events share most of their views, so each is looked at once."""
    view = np.frombuffer(grey, np.uint8).reshape(shape)
    keypoints, descriptors = cv2.SIFT.create(_NUM_KEYPOINTS).detectAndCompute(view, None)
    if not keypoints:
        return np.empty((0, 2)), np.empty((0, 128), np.float32)
    # Their square roots: histograms are compared as such, and a large bin does not outweigh all others.
    values = np.asarray(descriptors, np.float32)
    roots = np.sqrt(values / np.maximum(values.sum(axis=1, keepdims=True), 1e-9))
    return np.array([keypoint.pt for keypoint in keypoints]), roots


def _matches(
    mine: NDArray[np.float32], theirs: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of descriptors that are each other's nearest, by far."""
    if len(mine) < 2 or len(theirs) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    distance_sq = 2 - 2 * mine @ theirs.T
    rows, best = np.arange(len(mine)), distance_sq.argmin(axis=1)
    nearest = distance_sq[rows, best]
    is_mutual = distance_sq.argmin(axis=0)[best] == rows
    distance_sq[rows, best] = np.inf
    good = is_mutual & (nearest < _RATIO**2 * distance_sq.min(axis=1))
    return rows[good], best[good]


def _bases(observed: Array, camera: Array, config: FeaturesConfig) -> list[tuple[int, TwoView]]:
    """The views that share the most well-triangulated points with the anchor; positions of all keypoints."""
    scored = []
    for k in range(len(observed) - 1):
        both = ~np.isnan(observed[k, :, 0])
        two = relate_two_views(
            observed[-1, both],
            observed[k, both],
            camera,
            max_error_px=config.max_error_px,
            min_points=config.min_points,
            min_agreeing=_MIN_AGREEING,
        )
        if two is None:
            continue
        depth_known = np.minimum(two.parallax_rad / np.radians(config.min_parallax_deg), 1.0)
        score = float(depth_known[np.isfinite(two.position[:, 0])].sum())
        if score > config.min_points / 2:
            position = np.full((observed.shape[1], 3), np.nan)
            position[both] = two.position
            scored.append((score, k, TwoView(two.second_from_first, position, two.parallax_rad)))
    scored.sort(key=lambda entry: -entry[0])
    return [(k, two) for _, k, two in scored[:_NUM_BASES]]


def _related(
    observed: Array, base: int, two: TwoView, camera: Array, config: FeaturesConfig
) -> RelatedViews | None:
    """All views by the points of one pair, adjusted together."""
    poses = {base: two.second_from_first}
    for k in range(len(observed) - 1):
        if k != base and (pose := _resect(two.position, observed[k], camera, config)) is not None:
            poses[k] = pose
    rows = np.array(sorted(poses), np.int64)
    rotations = np.stack([np.eye(3), *(poses[k].rotation for k in rows)])
    translations = np.stack([np.zeros(3), *(poses[k].translation for k in rows)])
    return _adjusted(rotations, translations, rows, observed, camera, config)


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
    rotations: Array,
    translations: Array,
    rows: NDArray[np.int64],
    observed: Array,
    camera: Array,
    config: FeaturesConfig,
) -> RelatedViews | None:
    """The views' poses after adjusting them with all their points; the first pose is the anchor's, held."""
    seen_at = observed[[len(observed) - 1, *rows]]
    free = np.arange(len(rotations)) > 0
    # Once with whatever fits roughly, once more without what does not fit then.
    for max_error_px in (2 * config.max_error_px, config.max_error_px):
        position, error, _ = triangulate(rotations, translations, camera, seen_at, 3)
        chosen = np.flatnonzero(error < max_error_px)
        if len(chosen) < config.min_points:
            return None
        point_of, view_of = np.nonzero(~np.isnan(seen_at[:, chosen, 0]).T)
        rotations, translations, _, position, _ = adjust_window(
            rotations, translations, camera, position[chosen], point_of, view_of,
            seen_at[view_of, chosen[point_of]], config.huber_px, free,
            calibration_vector(camera), _HELD * np.eye(CALIBRATION_SIZE), _ADJUST_STEPS,
        )  # fmt: skip
    scale = float(np.median(position[:, 2]))
    member_from_anchor = SE3(rotations[1:], translations[1:] / scale)
    ahead = position[:, 2] > 0
    return RelatedViews(rows, member_from_anchor, seen_at[0, chosen[ahead]], position[ahead, 2] / scale)
