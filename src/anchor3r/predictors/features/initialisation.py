"""Initialisation of a local map: every frame is a row of it until two of them fix a motion."""

from __future__ import annotations

from copy import deepcopy

import numpy as np

from anchor3r.geometry import SE3, Array
from anchor3r.predictors.features import tracking
from anchor3r.predictors.features.odometry import Odometry
from anchor3r.predictors.features.projection import adjust_pose
from anchor3r.predictors.features.tracking import Image
from anchor3r.predictors.features.twoview import TwoView, relate_two_views, relate_views_of_a_plane

_RIVAL_COST, _ELSEWHERE = 1.5, 0.9
"""Squared error of a rival over the best, and cosine between their directions, that leave doubt."""
_MIN_KEPT = 0.3
"""A smaller part of the first frame's corners still followed, and waiting begins anew."""
_LAST_CHANCE = 0.5
"""With fewer than this part of them, doubt and little motion are no reasons to wait longer."""
_MIN_FOLLOWED = 0.8
"""If a smaller part can be followed from one frame to the next, its exposure may have changed."""
_POSE_STEPS = 10
"""Gauss–Newton steps for the pose of a frame, from the pose of the one before."""


def initialise(odometry: Odometry, index: int, grey: Image) -> Odometry | None:
    """Follows the first frame's corners to the next; the initialised state once a motion can be believed.

    None leaves the given state waiting for more frames.
    """
    c, num_corners = odometry.config, len(odometry.map.points)
    needed = max(2 * c.min_points, _MIN_KEPT * num_corners)
    num_followed = _follow(odometry, grey, needed)
    if num_followed < needed:
        odometry.begin(index, grey)
        return None
    m = odometry.map
    few_left = num_followed <= _LAST_CHANCE * num_corners
    candidates = _two_views(odometry, can_wait=not few_left)
    m.add_keyframe(index, odometry.pose)
    started = _best(odometry, candidates, can_wait=not few_left and len(m) < c.start_frames)
    if started is None and len(m) > c.start_frames:
        m.keep_keyframes(np.arange(len(m)) % 2 == 0)
    return started


def _follow(odometry: Odometry, grey: Image, needed: float) -> int:
    """Moves on to the next frame; returns how many corners it still sees."""
    c, points = odometry.config, odometry.map.points
    which = np.flatnonzero(points.followed)
    at = points.pixel[which]
    pixel, found = tracking.follow(odometry.grey, grey, at, at, c.flow_window, c.flow_levels)
    if found.sum() < max(needed, _MIN_FOLLOWED * len(which)):
        matched = tracking.match_brightness(odometry.grey, grey)
        pixel, found = tracking.follow(matched, grey, at, at, c.flow_window, c.flow_levels)
    points.pixel[which], points.followed[which] = pixel, found
    odometry.grey = grey
    return int(found.sum())


def _two_views(odometry: Odometry, *, can_wait: bool) -> list[TwoView]:
    """Motions since the first frame that may be the true one; none if it is too early to tell.

    Driving ahead, near corners soon leave the image and far ones hardly move: if waiting does not help, the
    few depths that can be told have to do.
    """
    c, points, camera = odometry.config, odometry.map.points, odometry.camera
    first, now = odometry.map.observed[0, points.followed], points.pixel[points.followed]
    moved_px = float(np.median(np.linalg.norm(now - first, axis=1)))
    if can_wait and moved_px < c.start_parallax * odometry.grey.shape[1]:
        return []
    max_error_px, min_points = c.max_error_px / 2, 2 * c.min_points
    two = relate_two_views(
        first, now, camera, max_error_px=max_error_px, min_points=min_points, min_agreeing=c.start_agreeing
    )
    parallax_rad = np.radians(c.min_parallax_deg)
    needed = len(first) / 2 if can_wait else min_points
    if two is None or two.num_trusted(parallax_rad) < needed:
        return []
    flat = relate_views_of_a_plane(first, now, camera, max_error_px=max_error_px, min_points=min_points)
    return [two, *(other for other in flat if other.num_trusted(parallax_rad) >= min_points)]


def _best(odometry: Odometry, candidates: list[TwoView], *, can_wait: bool) -> Odometry | None:
    """The map initialised with the motion that fits all frames since the first one best.

    If one that goes elsewhere fits nearly as well, the next frame may tell: if that can be waited for,
    nothing is initialised.
    """
    num_followed = odometry.map.points.followed.sum()
    tried: list[tuple[float, Array, Odometry]] = []
    for two in candidates:
        started = _initialised(deepcopy(odometry), two)
        m = started.map
        kept = len(m.points) / num_followed
        way = (m.poses[len(m) - 1] @ m.poses[0].inverse()).translation
        if m.points.mature.sum() >= 2 * odometry.config.min_points:
            tried.append((m.noise_variance / kept**2, way / np.linalg.norm(way), started))
    if not tried:
        return None
    cost, direction, best = min(tried, key=lambda attempt: attempt[0])
    has_rival = any(rival < _RIVAL_COST * cost and way @ direction < _ELSEWHERE for rival, way, _ in tried)
    return None if has_rival and can_wait else best


def _initialised(odometry: Odometry, two: TwoView) -> Odometry:
    """Poses the frames since the first one against the two-view points, and adjusts them all."""
    c, m = odometry.config, odometry.map
    m.keep_points(m.points.followed)
    m.points.position = two.position
    m.points.mature = two.parallax_rad > np.radians(c.min_parallax_deg)
    m.keep_points(np.isfinite(two.position[:, 0]))
    m.poses = _posed_in_turn(m.poses, odometry.camera, m.points.position, m.observed, c.huber_px)
    odometry.running = True
    odometry.adjust(len(m))
    return odometry


def _posed_in_turn(poses: SE3, camera: Array, position: Array, observed: Array, huber_px: float) -> SE3:
    """The first pose stays; each other one is found from the one before."""
    rotation, translation = poses.rotation.copy(), poses.translation.copy()
    for k in range(1, len(rotation)):
        rotation[k], translation[k], _ = adjust_pose(
            rotation[k - 1], translation[k - 1], camera, position, observed[k], huber_px, _POSE_STEPS
        )
    return SE3(rotation, translation)
