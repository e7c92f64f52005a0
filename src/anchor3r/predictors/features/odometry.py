"""What the feature predictor carries from frame to frame, and how a keyframe is settled in it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from anchor3r.geometry import SE3, Array, Pinhole, nearest_rotation
from anchor3r.predictors.features import tracking
from anchor3r.predictors.features.calibration import Calibration
from anchor3r.predictors.features.config import FeaturesConfig
from anchor3r.predictors.features.local_map import LocalMap, Points
from anchor3r.predictors.features.pose_estimation import Posed
from anchor3r.predictors.features.projection import camera_of, project, rays
from anchor3r.predictors.features.tracking import Image, cut_templates
from anchor3r.sources.frame import Frame

_NUM_NEIGHBOURS = 5
"""Points around a new corner whose median depth it begins with."""


@dataclass
class Odometry:
    """The streaming state: a local map, the last frame's place in it, and what is known of the camera."""

    config: FeaturesConfig
    map: LocalMap = field(default_factory=LocalMap)
    running: bool = False
    """whether the map is initialised; until then its keyframes are frames waiting for a pose"""
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
    source_width_px: int = 0
    """of the source's images; 0 before the first frame"""
    camera: Array = field(default_factory=lambda: np.empty(0))
    """of working images, as the last adjustment left it; empty before the first frame"""
    calibration: Calibration | None = None
    """None before the first frame"""
    is_stated: bool = True
    """whether the source or the user knew the camera"""

    def calibrate_from(self, frame: Frame, grey: Image) -> None:
        """Takes the camera of the first frame as stated, or assumes one, until adjustments tell more."""
        c, width, intrinsics = self.config, grey.shape[1], frame.intrinsics
        self.source_width_px = frame.image.shape[1]
        self.camera = assumed_camera(c, intrinsics, grey)
        self.is_stated = intrinsics is not None
        focal, radial = (
            (c.focal_sigma, c.radial_sigma)
            if self.is_stated
            else (c.assumed_focal_sigma, c.assumed_radial_sigma)
        )
        center = c.center_sigma * width
        self.calibration = Calibration.known(self.camera, np.array([focal, center, center, radial, radial]))

    def begin(self, index: int, grey: Image) -> None:
        """Makes the frame the first of a possible new map."""
        self.map, self.running, self.misses = LocalMap(), False, 0
        self.pose = self.motion = SE3.identity()
        self.grey, self.moving = grey, np.empty((0, 2))
        self.map.add_keyframe(index, self.pose)
        self.add_corners(index, grey)

    def expected_pose(self) -> SE3:
        """Of the next frame, if the camera moves on as it did."""
        expected = self.motion @ self.pose
        return SE3(nearest_rotation(expected.rotation), expected.translation)

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
        """Keyframes that an adjustment may move.

        Those that are held embody the focal length they were made with; an unknown one must not learn from
        them that it was right.
        """
        return self.config.free_keyframes if self.is_stated else self.config.memory - 2

    def adjust(self, num_free: int) -> None:
        """Settles the newest keyframe: its points, its pose and its neighbours', and the camera."""
        c, m, belief = self.config, self.map, self.calibration
        assert belief is not None
        parallax_rad = np.radians(c.min_parallax_deg)
        m.triangulate(self.camera, c.max_error_px, parallax_rad)
        # A rough depth is better than the guess that frames would have to be posed by.
        if np.sum(m.points.mature & m.points.followed) < c.few_points * c.points:
            m.triangulate(self.camera, c.max_error_px, parallax_rad / 2)
        self.camera, information = m.adjust(self.camera, num_free, c.huber_px, belief, c.adjust_steps)
        belief.add(self.camera, information, 1 / c.memory)
        m.reject(self.camera, c.max_error_px)
        m.rebase()
        self.pose = SE3.identity()

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
    known = intrinsics or Pinhole.from_fov(config.assumed_fov_deg, width, height)
    return camera_of(known.resized(width, height), config.radial)
