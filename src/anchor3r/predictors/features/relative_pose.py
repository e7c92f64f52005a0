"""Relates chosen views that no stream connects: descriptors, two-view geometry, resection, adjustment.

This is what a loop needs: the views may be far apart in time from the anchor. Where it is known how they lie
to each other, points are triangulated by that and the anchor is posed against them; else two of the views
have to tell, which of a surface that is nearly flat may go wrong. Either way all poses are adjusted in the
end, in the scale in which the median depth of the points that the anchor shares with the others is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Array, nearest_rotation, so3_exp
from anchor3r.predictors.features import tracking
from anchor3r.predictors.features.bundle_adjustment import HELD, adjust_window
from anchor3r.predictors.features.config import FeaturesConfig
from anchor3r.predictors.features.projection import (
    adjust_pose,
    calibration_vector,
    rays,
    reprojection_errors,
    triangulate,
)
from anchor3r.predictors.features.tracking import Image
from anchor3r.predictors.features.twoview import TwoView, is_one_scene, relate_two_views

_NUM_KEYPOINTS = 1000
_REMEMBERED_VIEWS = 128  # a megabyte each; the places of some dozens of neighbouring events
_RATIO = 0.8  # best over second-best descriptor distance of a match
_MIN_AGREEING = 0.3  # part of the matches of two views that must agree: descriptors mismatch often
_ENOUGH_MATCHES = 60  # with the anchor; with fewer, two more views of a place are looked at
_NUM_BASES = 3  # pairs that are tried as the base of all others
_ADJUST_STEPS = 10
_TRIANGULATION_STEPS = 3


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
    views: list[Image], anchor: Image, camera: Array, config: FeaturesConfig, known: SE3 | None = None
) -> RelatedViews | None:
    """Poses of the views relative to the anchor, or None if none of them can be related.

    known: where the views (n,) lie in some frame, roughly, view_from_there; None if nobody knows.
    """
    observed = _observations(views, anchor, camera, config)
    if observed is None:
        return None
    if known is not None and (related := _related_to_posed(observed, known, camera, config)) is not None:
        return related
    candidates = [
        _related(observed, base, two, camera, config) for base, two in _bases(observed, camera, config)
    ]
    found = [related for related in candidates if related is not None]
    # Two views may agree on a wrong motion; more of them hardly do, so most points and views win.
    return max(found, key=lambda related: len(related.rows) * len(related.pixel), default=None)


def recognise(
    view: Image,
    known: Image,
    known_from_local: SE3,
    depth_at: Callable[[Array], Array],
    camera: Array,
    config: FeaturesConfig,
) -> SE3 | None:
    """view_from_local by descriptors that it shares with a view of known pose; None if they are too few.

    depth_at: roughly, what depths pixels (n, 2) of the known view have.
    """
    pixel, descriptor = _keypoints(known)
    seen_pixel, seen_descriptor = _keypoints(view)
    rows, seen = _matches(descriptor, seen_descriptor)
    if len(rows) < config.min_points:
        return None
    in_known = rays(camera, pixel[rows]) * depth_at(pixel[rows])[:, None]
    return _resect(known_from_local.inverse().apply(in_known), seen_pixel[seen], camera, config)


def _observations(views: list[Image], anchor: Image, camera: Array, config: FeaturesConfig) -> Array | None:
    """(views + 1, n, 2) where the anchor's keypoints are seen, NaN where they are not; the anchor is last.

    Descriptors are compared with few views, the others see what is followed to them from there. None if
    neither the middle view nor the first nor the last shows enough, or one that does can do so by chance: a
    place that only looks alike costs three views instead of all.
    """
    pixel, descriptor = _keypoints(anchor)
    observed = np.full((len(views) + 1, len(pixel), 2), np.nan)
    observed[-1] = pixel

    def match(k: int) -> int:
        their_pixel, their_descriptor = _keypoints(views[k])
        mine, theirs = _matches(descriptor, their_descriptor)
        observed[k, mine] = their_pixel[theirs]
        return len(mine)

    linked: list[int] = []
    for k in dict.fromkeys((len(views) // 2, 0, len(views) - 1)):
        if match(k) >= config.min_points and (
            linked or _is_no_chance(observed[[-1, k]], anchor, camera, config)
        ):
            linked.append(k)
        if linked and (~np.isnan(observed[:-1, :, 0])).any(axis=0).sum() >= _ENOUGH_MATCHES:
            break
    if not linked:
        return None
    for k in linked:
        _follow(views, observed, k, config)
    for k in np.flatnonzero((~np.isnan(observed[:-1, :, 0])).sum(axis=1) < config.min_points).tolist():
        match(k)
    return observed


def _is_no_chance(pair: Array, anchor: Image, camera: Array, config: FeaturesConfig) -> bool:
    """Whether matches (2, n, 2) of two views agree on a motion better than random ones would."""
    one, other = pair[:, ~np.isnan(pair[:, :, 0]).any(axis=0)]
    height, width = anchor.shape
    return is_one_scene(one, other, camera, (width, height), max_error_px=config.max_error_px)


def _follow(views: list[Image], observed: Array, first: int, config: FeaturesConfig) -> None:
    """Fills in where the views before and after one see what it sees, by optical flow from each to the next.

    Views in the order of time move little; what cannot be followed is left to other matches.
    """
    for step in (1, -1):
        which = np.flatnonzero(~np.isnan(observed[first, :, 0]))
        at = observed[first, which]
        for k in range(first + step, len(views) if step > 0 else -1, step):
            at, found = tracking.follow(
                views[k - step], views[k], at, at, config.flow_window, config.flow_levels
            )
            which, at = which[found], at[found]
            new = np.isnan(observed[k, which, 0])
            observed[k, which[new]] = at[new]


def _keypoints(view: Image) -> tuple[Array, NDArray[np.float32]]:
    """Pixels (n, 2) and unit descriptors (n, 128); not to be written to."""
    return _described(np.ascontiguousarray(view).tobytes(), view.shape)


@lru_cache(maxsize=_REMEMBERED_VIEWS)
def _described(grey: bytes, shape: tuple[int, ...]) -> tuple[Array, NDArray[np.float32]]:
    """Neighbouring loop events share views, so each is looked at once."""
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
    cosine = mine @ theirs.T
    rows, best = np.arange(len(mine)), cosine.argmax(axis=1)
    nearest = cosine[rows, best]
    is_mutual = cosine.argmax(axis=0)[best] == rows
    cosine[rows, best] = -np.inf
    # Squared distances of unit vectors are 2 - 2 cos.
    good = is_mutual & (1 - nearest < _RATIO**2 * (1 - cosine.max(axis=1)))
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


def _related_to_posed(
    observed: Array, known: SE3, camera: Array, config: FeaturesConfig
) -> RelatedViews | None:
    """All views by the points that two or more of them triangulate from where they are known to lie."""
    position, error, parallax = triangulate(
        known.rotation, known.translation, camera, observed[:-1], _TRIANGULATION_STEPS
    )
    believed = (error < 2 * config.max_error_px) & (parallax > np.radians(config.min_parallax_deg) / 2)
    position = np.where(believed[:, None], position, np.nan)
    anchor_from_there = _resect(position, observed[-1], camera, config)
    if anchor_from_there is None:
        return None
    seen = ~np.isnan(observed[:-1, :, 0]) & believed
    rows = np.flatnonzero(seen.sum(axis=1) >= config.min_points)
    if not len(rows):
        return None
    depth = float(np.median(anchor_from_there.apply(position[believed])[:, 2]))
    if not depth > 0:
        return None
    there_from_anchor = anchor_from_there.inverse()
    poses = known[rows] @ there_from_anchor[None]
    rotations = np.concatenate([np.eye(3)[None], nearest_rotation(poses.rotation)])
    translations = np.concatenate([np.zeros((1, 3)), poses.translation / depth])
    return _adjusted(rotations, translations, rows, observed, camera, config)


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
        position, error, _ = triangulate(rotations, translations, camera, seen_at, _TRIANGULATION_STEPS)
        chosen = np.flatnonzero(error < max_error_px)
        if len(chosen) < config.min_points:
            return None
        point_of, view_of = np.nonzero(~np.isnan(seen_at[:, chosen, 0]).T)
        rotations, translations, _, position, *_ = adjust_window(
            rotations, translations, camera, position[chosen], point_of, view_of,
            seen_at[view_of, chosen[point_of]], config.huber_px, free,
            calibration_vector(camera), HELD, _ADJUST_STEPS,
        )  # fmt: skip
    scale = float(np.median(position[:, 2]))
    member_from_anchor = SE3(rotations[1:], translations[1:] / scale)
    ahead = position[:, 2] > 0
    return RelatedViews(rows, member_from_anchor, seen_at[0, chosen[ahead]], position[ahead, 2] / scale)
