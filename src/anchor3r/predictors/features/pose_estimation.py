"""Poses one frame against the local map: follow its points, pin them to their templates, solve,
and once more with points that have come back into sight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Array
from anchor3r.predictors.features import tracking
from anchor3r.predictors.features.config import FeaturesConfig
from anchor3r.predictors.features.local_map import LocalMap
from anchor3r.predictors.features.projection import (
    adjust_pose,
    project,
    reprojection_errors,
    triangulate,
)
from anchor3r.predictors.features.tracking import Image, align

_POSE_STEPS = (10, 5)
"""Gauss–Newton steps with every point, and then without those that disagree."""
_TRIANGULATION_STEPS = 2
"""Gauss–Newton steps for a point that will be triangulated again at the next keyframe."""
_MEASURABLE_RAD = math.radians(0.1)
"""Angle between two rays, a fifth of a pixel or so, below which they say nothing of a point's depth."""
_MIN_AREA = 0.05
"""Of a template's pixel in the image, in pixels; less has shrunk to nothing or is seen from behind."""
_MATCHES_NOTHING = 0.1 * np.eye(2)
"""current_from_template that no template is large enough for."""


@dataclass(frozen=True)
class Posed:
    """A frame that was found in the local map."""

    pose: SE3
    """frame_from_local"""
    information: Array
    """(6, 6) of a left perturbation of the pose, in pixels"""
    which: NDArray[np.int64]
    """(s,) the points it sees"""
    pixel: Array
    """(s, 2) where"""
    moving: Array
    """(r, 2) where points were seen that do not move with the rest"""


def pose_frame(
    local_map: LocalMap, camera: Array, config: FeaturesConfig, before: Image, grey: Image, guesses: list[SE3]
) -> Posed | None:
    """The pose of `grey`, from the first guess that leads to one; None if none does.

    If none does, brightness may have jumped, so all are tried once more with it matched.
    """
    for image in (before, None):
        if image is None:
            image = tracking.match_brightness(before, grey)
        for guess in guesses:
            posed = _attempt(local_map, camera, config, image, grey, guess)
            if posed is not None:
                return posed
    return None


def _attempt(
    local_map: LocalMap, camera: Array, config: FeaturesConfig, before: Image, grey: Image, guess: SE3
) -> Posed | None:
    points = local_map.points
    which = np.flatnonzero(points.followed)
    expected = project(camera, guess.apply(points.position[which]))
    pixel, found = tracking.follow(
        before, grey, points.pixel[which], expected, config.flow_window, config.flow_levels
    )
    which, pixel = which[found], pixel[found]
    rough = _solve(local_map, camera, config, guess, which, pixel)
    if rough is None:
        return None
    warps = template_warps(local_map, camera, rough.pose, which)
    aligned, correlation = align(grey, points.template[which], warps, pixel, config.patch_radius)
    near = np.linalg.norm(aligned - pixel, axis=1) < config.max_error_px
    pinned = (correlation > config.min_correlation) & near
    posed = _solve(local_map, camera, config, rough.pose, which[pinned], aligned[pinned])
    if posed is None:
        return None
    posed = _with_returned(local_map, camera, config, grey, posed)
    return _without_outliers(local_map, camera, config, posed)


def _with_returned(
    local_map: LocalMap, camera: Array, config: FeaturesConfig, grey: Image, posed: Posed
) -> Posed:
    """Adds trusted points that were out of sight and now look as they did, where they should be."""
    points, (height, width) = local_map.points, grey.shape
    which = np.flatnonzero(points.mature & ~points.followed)
    in_camera = posed.pose.apply(points.position[which])
    expected = project(camera, in_camera)
    visible = (in_camera[:, 2] > 0) & ((expected > 0) & (expected < [width, height])).all(axis=1)
    which, expected = which[visible], expected[visible]
    warps = template_warps(local_map, camera, posed.pose, which)
    pixel, correlation = align(grey, points.template[which], warps, expected, config.patch_radius)
    near = np.linalg.norm(pixel - expected, axis=1) < config.max_error_px
    back = (correlation > config.min_correlation) & near
    which, pixel = np.concatenate([posed.which, which[back]]), np.concatenate([posed.pixel, pixel[back]])
    return _solve(local_map, camera, config, posed.pose, which, pixel) or posed


def _solve(
    local_map: LocalMap,
    camera: Array,
    config: FeaturesConfig,
    guess: SE3,
    which: NDArray[np.int64],
    pixel: Array,
) -> Posed | None:
    """The pose that most of the points agree on."""
    points = local_map.points
    use = points.mature[which]
    if use.sum() < 2 * config.min_points:
        # Running out of trusted depths (turning on the spot): guessed ones still give the rotation.
        use = np.ones(len(which), bool)
    position, uv = points.position[which[use]], pixel[use]
    if len(uv) < config.min_points:
        return None
    pose = guess
    information: Array = np.zeros((6, 6))
    agreeing = np.ones(len(uv), bool)
    for iterations in _POSE_STEPS:
        rotation, translation, information = adjust_pose(
            pose.rotation,
            pose.translation,
            camera,
            position[agreeing],
            uv[agreeing],
            config.huber_px,
            iterations,
        )
        pose = SE3(rotation, translation)
        agreeing = reprojection_errors(pose, camera, position, uv) < 2 * config.max_error_px
        if agreeing.sum() < max(config.min_points, config.min_agreeing * len(uv)):
            return None
    return Posed(pose, information, which, pixel, np.empty((0, 2)))


def _without_outliers(local_map: LocalMap, camera: Array, config: FeaturesConfig, posed: Posed) -> Posed:
    """Drops points that the pose contradicts, and gives immature ones the depth that it implies."""
    points, which, pixel = local_map.points, posed.which, posed.pixel
    mature = points.mature[which]
    good = reprojection_errors(posed.pose, camera, points.position[which], pixel) < config.max_error_px
    good |= ~mature
    young = np.flatnonzero(~mature)
    home = np.searchsorted(local_map.frames, points.home[which[young]])
    # Each by the keyframe that it was first seen in and this frame.
    observed = np.full((len(local_map) + 1, len(young), 2), np.nan)
    observed[home, np.arange(len(young))] = local_map.observed[home, which[young]]
    observed[-1] = pixel[young]
    position, error, parallax = triangulate(
        np.concatenate([local_map.poses.rotation, posed.pose.rotation[None]]),
        np.concatenate([local_map.poses.translation, posed.pose.translation[None]]),
        camera,
        observed,
        _TRIANGULATION_STEPS,
    )
    measured = parallax > _MEASURABLE_RAD
    fits = measured & (error < config.max_error_px)
    points.position[which[young[fits]]] = position[fits]
    good[young[measured & ~fits]] = False
    return Posed(posed.pose, posed.information, which[good], pixel[good], pixel[~good])


def template_warps(local_map: LocalMap, camera: Array, pose: SE3, which: NDArray[np.int64]) -> Array:
    """(n, 2, 2) template_from_current offsets, taking each template for a plane that faces its keyframe."""
    home = local_map.home_poses(which)
    at_home = home.apply(local_map.points.position[which])
    here_from_home = pose[None] @ home.inverse()
    steps = []
    for axis in range(2):
        half_pixel = np.zeros_like(at_home)
        half_pixel[:, axis] = 0.5 * at_home[:, 2] / camera[axis]
        ahead, behind = here_from_home.apply(at_home + half_pixel), here_from_home.apply(at_home - half_pixel)
        steps.append(project(camera, ahead) - project(camera, behind))
    current_from_template = np.stack(steps, axis=-1)
    current_from_template[np.linalg.det(current_from_template) < _MIN_AREA] = _MATCHES_NOTHING
    return np.linalg.inv(current_from_template)
