"""Initialisation of a local map: every frame is a row of it until two of them fix a motion."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Array, Pinhole
from anchor3r.predictors.features import tracking
from anchor3r.predictors.features.odometry import Odometry
from anchor3r.predictors.features.projection import adjust_pose, camera_of
from anchor3r.predictors.features.rotation import (
    Rotations,
    agreement_of_lost,
    fit_rotations,
    shows_parallax,
)
from anchor3r.predictors.features.tracking import Image
from anchor3r.predictors.features.twoview import TwoView, relate_two_views, relate_views_of_a_plane

_RIVAL_COST, _ELSEWHERE = 1.5, 0.9
"""Squared error of a rival over the best, and cosine between their directions, that leave doubt."""
_MIN_KEPT = 0.3
"""A smaller part of the first frame's corners still followed, and waiting begins anew."""
_LAST_CHANCE = 0.5
"""With fewer than this part of them, doubt and little motion are no reasons to wait longer."""
_LOST_AGREE = 0.3
"""Of the corners that were lost a camera that turned has lost at least this part where its rotation put them:
on 48 rotations in worlds it was 0.41 or more, at five starts of drives along open roads 0.0 to 0.32."""
_MIN_FOLLOWED = 0.8
"""If a smaller part can be followed from one frame to the next, its exposure may have changed."""
_EVIDENCE = 10.0
"""Independent measurements that the frames of an initialisation are worth when they tell focal lengths apart.
They are thousands of observations, but tracks err as a whole and a straight drive fits with any focal length:
at 200, a drive seen with 60° began with 107° and had a hundred times the error."""
_POSE_STEPS = 10
"""Gauss–Newton steps for the pose of a frame, from the pose of the one before."""


@dataclass(frozen=True)
class Turned:
    """Frames since the first one that were taken from one place."""

    frames: NDArray[np.int64]
    """(k,) the last is the current one"""
    rotations: Rotations


def initialise(odometry: Odometry, index: int, grey: Image) -> Odometry | Turned | None:
    """Follows the first frame's corners to the next; the initialised state once a motion can be believed.

    If the camera has turned so far, or stood still so long, that the first frame cannot be waited with any
    longer, the frames since then have rotations; waiting begins anew with the current one, and while it goes
    on turning each frame has its rotation at once. None leaves the given state waiting for more frames.
    """
    c, num_corners = odometry.config, len(odometry.map.points)
    needed = max(2 * c.min_points, _MIN_KEPT * num_corners)
    num_followed = _follow(odometry, grey, needed)
    if num_followed < needed:
        odometry.begin(index, grey)
        return None
    m = odometry.map
    few_left = num_followed <= _LAST_CHANCE * num_corners
    m.add_keyframe(index, odometry.pose)
    can_wait = not few_left and len(m) < c.start_frames
    turned, started = None, None
    if not can_wait or (odometry.is_searching and _has_moved(odometry, can_wait)):
        turned = _turned(odometry, np.arange(len(m)))
    elif odometry.is_turning:
        turned = _turned(odometry, np.array([0, len(m) - 1]))
        if turned.rotations.is_explained:
            return turned
    if turned is None or not turned.rotations.is_explained:
        candidates = [
            (camera, two)
            for camera in _cameras(odometry)
            for two in _two_views(odometry, camera, can_wait=not few_left)
        ]
        started = _best(odometry, candidates, can_wait=can_wait)
        if started is not None:
            pair = _turned(odometry, np.array([0, len(m) - 1]))
            if pair.rotations.is_plausible and not _shows_parallax(odometry, started, pair.rotations):
                started = None
                if can_wait and odometry.is_turning:
                    return pair
    if started is not None or can_wait:
        return started
    if turned is not None and turned.rotations.is_plausible:
        _begin_anew(odometry, turned, grey)
        return turned
    if len(m) > c.start_frames:
        m.keep_keyframes(np.arange(len(m)) % 2 == 0)
    return None


def _turned(odometry: Odometry, rows: NDArray[np.int64]) -> Turned:
    """What rows of the waiting frames, the first one among them, tell if they were taken from one place."""
    c, m = odometry.config, odometry.map
    assert odometry.calibration is not None
    tracks = m.observed[rows][:, m.points.followed]
    sigma = float(odometry.calibration.sigma[0]) if odometry.is_searching else 0.0
    found = fit_rotations(tracks, odometry.camera, sigma, huber_px=c.huber_px, max_error_px=c.max_error_px)
    if len(rows) > 2 and agreement_of_lost(found, m.observed[rows]) < _LOST_AGREE:
        found = replace(found, is_explained=False, is_plausible=False)
    half_fov_deg = math.degrees(math.atan(odometry.grey.shape[1] / 2 / found.camera[0]))
    if not min(c.tried_fov_deg) / 1.5 < 2 * half_fov_deg < max(c.tried_fov_deg) * 1.2:
        # A wall that is passed sideways looks like a turn seen from very far away.
        known = not odometry.is_searching
        found = replace(
            found, is_explained=known and found.is_explained, is_plausible=known and found.is_plausible
        )
    return Turned(m.frames[rows], found)


def _shows_parallax(odometry: Odometry, started: Odometry, turned: Rotations) -> bool:
    """Whether the current frame cannot have been taken from the place of the first one."""
    points, poses = odometry.map.points, started.map.poses
    return shows_parallax(
        odometry.map.observed[0, points.followed],
        points.pixel[points.followed],
        turned,
        poses[len(poses) - 1] @ poses[0].inverse(),
        started.camera,
        noise_px=odometry.config.huber_px,
    )


def _begin_anew(odometry: Odometry, turned: Turned, grey: Image) -> None:
    """Waits for parallax from the current frame on, with what the rotations have told of the camera."""
    found = turned.rotations
    if odometry.is_searching:
        odometry.camera = found.camera
        odometry.calibration = odometry.assumed(grey, found.camera, found.focal_sigma)
        if odometry.config.focal_inflation * found.focal_sigma < odometry.config.known_focal_sigma:
            odometry.first_log_focal = math.log(found.camera[0])
    odometry.begin(int(turned.frames[-1]), grey)
    odometry.is_turning = True


def _has_moved(odometry: Odometry, can_wait: bool) -> bool:
    """Whether two views may tell something about the motion, or have to."""
    c = odometry.config
    waits = odometry.is_searching and len(odometry.map) <= c.start_frames / 2
    parallax = c.unknown_start_parallax if waits else c.start_parallax
    return not can_wait or odometry.moved_px() >= parallax * odometry.grey.shape[1]


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


def _cameras(odometry: Odometry) -> list[Array]:
    """Cameras that may be the true one: what is known of it, or every one that an unknown one may be."""
    if not odometry.is_searching:
        return [odometry.camera]
    height, width = odometry.grey.shape
    return [
        camera_of(Pinhole.from_fov(fov_deg, width, height), odometry.config.radial)
        for fov_deg in odometry.config.tried_fov_deg
    ]


def _two_views(odometry: Odometry, camera: Array, *, can_wait: bool) -> list[TwoView]:
    """Motions since the first frame that may be the true one; none if it is too early to tell.

    Driving ahead, near corners soon leave the image and far ones hardly move: if waiting does not help, the
    few depths that can be told have to do.
    """
    c, points = odometry.config, odometry.map.points
    first, now = odometry.map.observed[0, points.followed], points.pixel[points.followed]
    if not _has_moved(odometry, can_wait):
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


def _best(odometry: Odometry, candidates: list[tuple[Array, TwoView]], *, can_wait: bool) -> Odometry | None:
    """The map initialised with the motion that fits all frames since the first one best.

    If one that goes elsewhere fits nearly as well, the next frame may tell: if that can be waited for,
    nothing is initialised.
    """
    num_followed = odometry.map.points.followed.sum()
    tried: list[tuple[float, Array, Odometry]] = []
    for camera, two in candidates:
        started = _initialised(replace(deepcopy(odometry), camera=camera), two)
        m = started.map
        kept = len(m.points) / num_followed
        way = (m.poses[len(m) - 1] @ m.poses[0].inverse()).translation
        if m.points.mature.sum() >= 2 * odometry.config.min_points:
            prior = _prior_cost(odometry, started.camera)
            tried.append((prior * m.noise_variance / kept**2, way / np.linalg.norm(way), started))
    if not tried:
        return None
    cost, direction, best = min(tried, key=lambda attempt: attempt[0])
    has_rival = any(rival < _RIVAL_COST * cost and way @ direction < _ELSEWHERE for rival, way, _ in tried)
    return None if has_rival and can_wait else best


def _prior_cost(odometry: Odometry, camera: Array) -> float:
    """Factor on the cost of a focal length by how far it is from the one assumed, where none is stated."""
    if not odometry.is_searching:
        return 1.0
    off = math.log(camera[0] / odometry.camera[0]) / odometry.config.assumed_focal_sigma
    return math.exp(off**2 / _EVIDENCE)


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
    if odometry.first_log_focal is None:
        odometry.first_log_focal = float(np.log(odometry.camera[0]))
    return odometry


def _posed_in_turn(poses: SE3, camera: Array, position: Array, observed: Array, huber_px: float) -> SE3:
    """The first pose stays; each other one is found from the one before."""
    rotation, translation = poses.rotation.copy(), poses.translation.copy()
    for k in range(1, len(rotation)):
        rotation[k], translation[k], _ = adjust_pose(
            rotation[k - 1], translation[k - 1], camera, position, observed[k], huber_px, _POSE_STEPS
        )
    return SE3(rotation, translation)
