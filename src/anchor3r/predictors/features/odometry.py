"""What the feature predictor carries from frame to frame, and how a keyframe is settled in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Array, Pinhole, nearest_rotation
from anchor3r.predictors.features import tracking
from anchor3r.predictors.features.bundle_adjustment import Adjustment
from anchor3r.predictors.features.calibration import Calibration
from anchor3r.predictors.features.config import FeaturesConfig
from anchor3r.predictors.features.local_map import LocalMap, Points
from anchor3r.predictors.features.pose_estimation import Posed
from anchor3r.predictors.features.projection import camera_from, camera_of, project, rays
from anchor3r.predictors.features.relative_pose import recognise
from anchor3r.predictors.features.tracking import Image, cut_templates
from anchor3r.predictors.interface import NoPoseReason
from anchor3r.sources.frame import Frame

_NUM_NEIGHBOURS = 5
"""Points around a new corner whose median depth it begins with."""


@dataclass
class WaitingImages:
    """What is kept of the images of frames that wait for the map to be initialised, to give them points."""

    frames: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """(k,)"""
    grey: NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, 0, 0), np.uint8))
    """(k, h, w) the working images on the grid of a point map"""
    colours: NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, 0, 0, 3), np.uint8))
    """(k, h, w, 3) RGB on the same grid"""

    def add(self, frame: int, grey: NDArray[np.uint8], colours: NDArray[np.uint8]) -> None:
        self.frames = np.append(self.frames, frame)
        self.grey = np.concatenate([self.grey.reshape(-1, *grey.shape), grey[None]])
        self.colours = np.concatenate([self.colours.reshape(-1, *colours.shape), colours[None]])

    def keep(self, frames: NDArray[np.int64]) -> None:
        """Forgets all others."""
        kept = np.isin(self.frames, frames)
        self.frames, self.grey, self.colours = self.frames[kept], self.grey[kept], self.colours[kept]


@dataclass
class Odometry:
    """The streaming state: a local map, the last frame's place in it, and what is known of the camera."""

    config: FeaturesConfig
    map: LocalMap = field(default_factory=LocalMap)
    running: bool = False
    """whether the map is initialised; until then its keyframes are frames waiting for a pose"""
    waiting: WaitingImages = field(default_factory=WaitingImages)
    """the images of those frames; none once it is"""
    first_log_focal: float | None = None
    """log of the focal length that the first map was initialised with; None before that"""
    earlier_focal_px: float | None = None
    """in pixels of the source's images, as an earlier pass over the stream has found it; None without one"""
    earlier_focal_sigma: float = 0.0
    """relative spread of it"""
    is_earlier_checked: bool = False
    """whether another pass that began with it has agreed"""
    is_turning: bool = False
    """whether the first of the waiting frames ends a turn on the spot, and has a pose"""
    misses: int = 0
    """frames in a row that were not found in the map"""
    pose: SE3 = field(default_factory=SE3.identity)
    """frame_from_local of the last frame"""
    motion: SE3 = field(default_factory=SE3.identity)
    """last_from_previous"""
    grey: Image = field(default_factory=lambda: np.empty((0, 0), np.uint8))
    """the last frame's working image"""
    moving: Array = field(default_factory=lambda: np.empty((0, 2)))
    """(r, 2) pixels of it where something moves by itself"""
    source_size: tuple[int, int] = (0, 0)
    """width and height of the source's images; 0 before the first frame"""
    camera: Array = field(default_factory=lambda: np.empty(0))
    """of working images, as the last adjustment left it; empty before the first frame"""
    calibration: Calibration | None = None
    """None before the first frame"""
    is_stated: bool = True
    """whether the source or the user knew the camera"""
    num_keyframes: int = 0
    """adjusted so far"""
    learning: Adjustment | None = None
    """of all remembered keyframes, from which the calibration learns; None while none is on its way"""

    def calibrate_from(self, frame: Frame, grey: Image) -> None:
        """Takes the camera of the first frame as stated, or as an earlier pass found it, or assumes one.

        Adjustments tell more later.
        """
        c, width, intrinsics = self.config, grey.shape[1], frame.intrinsics
        self.source_size = frame.image.shape[1], frame.image.shape[0]
        self.is_stated = c.intrinsics is not None or intrinsics is not None
        if self.is_stated:
            self.earlier_focal_px = None
        if self.earlier_focal_px is not None:
            half_fov_rad = math.atan(self.source_size[0] / 2 / self.earlier_focal_px)
            intrinsics = Pinhole.from_fov(math.degrees(2 * half_fov_rad), *self.source_size)
        self.camera = assumed_camera(c, intrinsics, grey)
        if self.earlier_focal_px is not None:
            self.first_log_focal = math.log(self.camera[0])
        if not self.is_known:
            self.calibration = self.assumed(grey, self.camera, c.assumed_focal_sigma)
        elif self.earlier_focal_px is not None or (frame.is_nominal and c.intrinsics is None):
            center, radial = c.assumed_center_sigma * width, c.nominal_radial_sigma
            focal = c.doubted_focal_sigma
            if self.earlier_focal_px is not None:
                # Both passes see the same frames, so that the first must not outvote what windows say now:
                # where they contradict it, the estimate moves, and counts as unsure by as much.
                focal = self._earlier_spread()
            sigma = np.array([focal, center, center, radial, radial])
            self.calibration = Calibration.known(self.camera, sigma)
        else:
            center, radial = c.center_sigma * width, c.radial_sigma
            sigma = np.array([c.focal_sigma, center, center, radial, radial])
            self.calibration = Calibration.known(
                self.camera, sigma, doubted_sigma=c.doubted_focal_sigma, bias=c.focal_bias
            )

    def _earlier_spread(self) -> float:
        """Relative spread with which windows may draw the focal length off what an earlier pass found.

        If that was checked and is determined, only as far as chance has left it open: by what all windows
        share they would bend the map, which fits itself best with one camera throughout.
        """
        c, sigma = self.config, self.earlier_focal_sigma
        if not self.is_earlier_checked or sigma > c.known_focal_sigma:
            return sigma
        by_chance = math.sqrt(max(sigma**2 - c.focal_bias**2, 0.0)) / c.focal_inflation
        return max(by_chance, c.focal_sigma)

    @property
    def is_known(self) -> bool:
        """Whether the camera was stated, or found by an earlier pass."""
        return self.is_stated or self.earlier_focal_px is not None

    @property
    def is_searching(self) -> bool:
        """Whether nothing but an assumption is known of the camera."""
        return not self.is_stated and self.first_log_focal is None

    def focal_sigma(self) -> float:
        """Relative spread of the focal length.

        Windows that err alike do not average out, and an estimate that has moved since the map began was
        wrong by as much for a part of it: both count.
        """
        assert self.calibration is not None
        own, log_focal = float(self.calibration.sigma[0]), float(self.calibration.mean[0])
        if self.is_stated:
            return own if self.calibration.bias else math.hypot(own, self.config.focal_bias)
        if self.first_log_focal is None:
            return math.hypot(own, self.config.focal_bias)
        moved = log_focal - self.first_log_focal
        told = math.hypot(self.config.focal_inflation * own, self.config.focal_bias)
        if self.earlier_focal_px is not None:  # both passes saw the same
            earlier = self.earlier_focal_sigma
            told = earlier if self.is_earlier_checked else min(told, earlier)
        return math.hypot(told, moved)

    def assumed(self, grey: Image, camera: Array, focal_sigma: float) -> Calibration:
        """What is known of a camera of which nothing is stated; focal_sigma is relative."""
        c = self.config
        center, radial = c.assumed_center_sigma * grey.shape[1], c.assumed_radial_sigma
        return Calibration.known(camera, np.array([focal_sigma, center, center, radial, radial]))

    def begin(self, index: int, grey: Image) -> None:
        """Makes the frame the first of a possible new map."""
        self.map, self.running, self.is_turning, self.misses = LocalMap(), False, False, 0
        self.pose = self.motion = SE3.identity()
        self.grey, self.moving = grey, np.empty((0, 2))
        self.map.add_keyframe(index, self.pose)
        self.add_corners(index, grey)

    def moved_px(self) -> float:
        """Median image motion of the corners since the first of the waiting frames."""
        followed = self.map.points.followed
        first, now = self.map.observed[0, followed], self.map.points.pixel[followed]
        return float(np.median(np.linalg.norm(now - first, axis=1))) if followed.any() else 0.0

    def waits_because(self) -> NoPoseReason:
        """Why the map is not initialised yet."""
        c = self.config
        if self.map.points.followed.sum() < 2 * c.min_points:
            return NoPoseReason.FEW_FEATURES
        moves = self.moved_px() >= c.start_parallax * self.grey.shape[1]
        return NoPoseReason.NO_PARALLAX if moves else NoPoseReason.NO_MOTION

    def expected_pose(self) -> SE3:
        """The pose of the next frame, if the camera moves on as it did."""
        expected = self.motion @ self.pose
        return SE3(nearest_rotation(expected.rotation), expected.translation)

    def recognised_pose(self, grey: Image) -> SE3 | None:
        """Of a frame that is not where it was expected, by descriptors that it shares with the last one.

        Each of their keypoints is taken to be as far away as the followed points around it.
        """
        return recognise(grey, self.grey, self.pose, self._depth_around, self.camera, self.config)

    def move_to(self, posed: Posed, grey: Image) -> None:
        """Takes the frame as the last one."""
        points = self.map.points
        points.followed[:] = False
        points.followed[posed.which] = True
        points.pixel[posed.which] = posed.pixel
        self.motion = posed.pose @ self.pose.inverse()
        self.pose, self.grey, self.moving, self.misses = posed.pose, grey, posed.moving, 0

    def is_keyframe(self) -> bool:
        """Whether the view has moved on far enough from the last keyframe's."""
        c, points, last = self.config, self.map.points, self.map.observed[-1]
        seen = ~np.isnan(last[:, 0])
        both = seen & points.followed
        if both.sum() < c.keyframe_overlap * seen.sum():
            return True
        turn = self.pose.rotation @ self.map.poses.rotation[-1].T
        turned = project(self.camera, rays(self.camera, last[both]) @ turn.T)
        parallax_px = np.median(np.linalg.norm(points.pixel[both] - turned, axis=1))
        return bool(parallax_px > c.keyframe_parallax * self.grey.shape[1])

    @property
    def num_free(self) -> int:
        """Keyframes that the next adjustment may move.

        Those that are held embody the camera they were made with, which must not learn from them that it was
        right. So an unknown one frees nearly all; one that is known learns from a copy (`learn`), since
        keyframes that keep moving take the scale along.
        """
        return self.config.free_keyframes if self.is_known else self.config.memory - 2

    def adjust(self, num_free: int) -> None:
        """Settles the newest keyframe: its points, its pose and its neighbours', and the camera."""
        c, m, belief = self.config, self.map, self.calibration
        assert belief is not None
        parallax_rad = np.radians(c.min_parallax_deg)
        m.triangulate(self.camera, c.max_error_px, parallax_rad)
        # A rough depth is better than the guess that frames would have to be posed by.
        if np.sum(m.points.mature & m.points.followed) < c.few_points * c.points:
            m.triangulate(self.camera, c.max_error_px, parallax_rad / 2)
        if not (belief.is_held or self.is_known):
            adjusted, grown = m.adjust(self.camera, num_free, c.huber_px, belief, c.adjust_steps)
            self.camera = adjusted.camera
            belief.add(adjusted, 1 / c.memory)
        else:
            if not belief.is_held and self.num_keyframes % c.calibration_interval == 0:
                self._begin_learning(belief)
            drawn_to = None if belief.is_held else belief
            self.camera = camera_from(belief.mean, self.camera)
            adjusted, grown = m.adjust(self.camera, num_free, c.huber_px, drawn_to, c.adjust_steps)
            self.camera = adjusted.camera
        self.num_keyframes += 1
        m.reject(self.camera, c.max_error_px)
        m.rebase()
        self.pose = SE3.identity()
        self.motion = SE3(self.motion.rotation, grown * self.motion.translation)

    def _begin_learning(self, belief: Calibration) -> None:
        """Begins to find out what the remembered keyframes say of a known camera, all of them free.

        That of a young map, which is small, is done at once: what it is begun with matters most.
        """
        c, m = self.config, self.map
        self.learn(c.calibration_steps)
        self.learning, _ = m.adjustment(self.camera, c.memory - 2, c.huber_px, belief, c.calibration_steps)
        if len(m) < 2 * c.free_keyframes:
            self.learn(c.calibration_steps)

    def learn(self, steps: int) -> None:
        """Goes on with that by so many steps, few of them a frame, so that no frame takes much longer.

        What comes of it counts from the next keyframe on.
        """
        if self.learning is None:
            return
        self.learning.run(steps)
        if not self.learning.steps_left:
            assert self.calibration is not None
            self.calibration.add(
                self.learning.adjusted, self.config.calibration_interval / self.config.memory
            )
            self.learning = None

    def add_corners(self, index: int, grey: Image) -> None:
        """Starts points where there are none, at the depth of those around."""
        points = self.map.points
        corners = tracking.detect(grey, points.pixel[points.followed], self.config.points)
        in_camera = rays(self.camera, corners) * self._depth_around(corners)[:, None]
        position = self.pose.inverse().apply(in_camera)
        self.map.add_points(Points.start(position, corners, index, cut_templates(grey, corners)))

    def _depth_around(self, pixels: Array) -> Array:
        """(n,) median depth of the nearest points followed now; 1 without any."""
        points = self.map.points
        known = points.mature & points.followed
        if not known.any():
            return np.ones(len(pixels))
        depth = self.pose.apply(points.position[known])[:, 2]
        distance = np.linalg.norm(pixels[:, None] - points.pixel[known], axis=2)
        return np.median(depth[np.argsort(distance, axis=1)[:, :_NUM_NEIGHBOURS]], axis=1)


def assumed_camera(config: FeaturesConfig, intrinsics: Pinhole | None, grey: Image) -> Array:
    """The camera of a working image, as stated or assumed."""
    height, width = grey.shape
    known = config.intrinsics or intrinsics or Pinhole.from_fov(config.assumed_fov_deg, width, height)
    return camera_of(known.resized(width, height), config.radial)
