"""Window-relative poses and points by classical geometry: no weights, one core, real video.

Points are followed by optical flow and pinned to their first appearance; each frame is posed against a small
local map; every so often a frame becomes a keyframe, and the newest keyframes are adjusted together with
their points and the camera. An anchor's window are the last keyframes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Array, Pinhole, nearest_rotation
from anchor3r.predictors.features import tracking
from anchor3r.predictors.features.alignment import Image, cut_templates
from anchor3r.predictors.features.calibration import Calibration
from anchor3r.predictors.features.config import FeaturesConfig
from anchor3r.predictors.features.densify import PointMap, densified
from anchor3r.predictors.features.local_map import LocalMap, Points
from anchor3r.predictors.features.posing import pose_frame
from anchor3r.predictors.features.projection import adjust_pose, camera_of, pinhole_of, project, rays
from anchor3r.predictors.features.relating import relate_views
from anchor3r.predictors.features.twoview import TwoView, relate_two_views, relate_views_of_a_plane
from anchor3r.predictors.features.uncertainty import carried
from anchor3r.predictors.prediction import Status, WindowPrediction
from anchor3r.sources.frame import Frame

_ADJUST_STEPS = 5
_FOCAL_BIAS = 0.02
"""Relative error of a self-calibrated focal length that more windows do not average out; a rough value."""
_MIN_AGREEING = 0.6
"""Part of the corners that have to agree on the motion that starts a map."""
_RIVAL_COST, _ELSEWHERE = 1.5, 0.9
"""While starting: squared error of a rival over the best, and cosine between their ways, that leave doubt."""
_MIN_KEPT = 0.3
"""While starting: a smaller part of the first frame's corners still followed, and it starts anew."""
_LAST_CHANCE = 0.5
"""While starting: with fewer than this part of them, doubt about the motion is no reason to wait longer."""
_MIN_FOLLOWED = 0.8
"""While starting: if fewer can be followed from one frame to the next, its exposure may have changed."""


class FeaturesPredictor:
    """Measures windows of a video from one camera, whose calibration it refines on the way."""

    def __init__(self, config: FeaturesConfig | None = None) -> None:
        self.config = config or FeaturesConfig()
        cv2.setNumThreads(1)
        self.reset()

    @property
    def name(self) -> str:
        return "features"

    @property
    def window(self) -> int:
        return self.config.window

    def reset(self) -> None:
        self._map = LocalMap()
        self._running = False
        self._misses = 0
        self._pose = self._motion = SE3.identity()
        self._grey: Image = np.empty((0, 0), np.uint8)
        self._moving: Array = np.empty((0, 2))
        self._camera: Array = np.empty(0)
        self._calibration: Calibration | None = None
        self._is_stated = True  # the camera, by the source or the user
        self._reduction = 1.0  # pixels of the working image over those of the source's

    def step(self, frame: Frame) -> WindowPrediction:
        grey = tracking.to_grey(frame.image, self.config.max_side)
        if self._calibration is None:
            self._calibrate_from(frame.intrinsics, grey)
            self._reduction = grey.shape[1] / frame.image.shape[1]
        if len(self._map) == 0:
            self._begin(frame.index, grey)
            return self._nothing(frame, Status.INITIALISING)
        return self._track(frame, grey) if self._running else self._start(frame, grey)

    def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
        views = [tracking.to_grey(member.image, self.config.max_side) for member in members]
        grey = tracking.to_grey(anchor.image, self.config.max_side)
        camera = self._camera if len(self._camera) else self._camera_of(anchor.intrinsics, grey)
        related = relate_views(views, grey, camera, self.config)
        if related is None:
            return self._nothing(anchor, Status.LOST)
        indices = np.array([member.index for member in members], np.int64)
        window = self._window(anchor, camera, indices[related.rows], related.member_from_anchor)
        points = densified(grey, camera, related.pixel, related.depth, np.empty((0, 2)))
        return replace(window, points_in_anchor=points.points, points_confidence=points.confidence)

    def snapshot(self) -> dict[str, NDArray]:
        if self._calibration is None:
            return {}
        own = {
            "flags": np.array([self._running, self._misses, self._is_stated]),
            "reduction": np.array(self._reduction),
            "pose": self._pose.matrix(),
            "motion": self._motion.matrix(),
            "grey": self._grey.copy(),
            "moving": self._moving.copy(),
            "camera": self._camera.copy(),
        }
        parts = {"map": self._map.snapshot(), "calibration": self._calibration.snapshot(), "own": own}
        return {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        self.reset()
        if not state:
            return
        self._map = LocalMap.restored(_part(state, "map"))
        self._calibration = Calibration.restored(_part(state, "calibration"))
        own = _part(state, "own")
        running, self._misses, is_stated = own["flags"].tolist()
        self._running, self._is_stated = bool(running), bool(is_stated)
        self._reduction = float(own["reduction"])
        self._pose, self._motion = SE3.from_matrix(own["pose"]), SE3.from_matrix(own["motion"])
        self._grey, self._moving, self._camera = own["grey"], own["moving"], own["camera"]

    @property
    def calibration(self) -> tuple[Array, Array]:
        """(log f, cx, cy, k1, k2) of the working image as believed now, and their standard deviations."""
        assert self._calibration is not None, "known after the first frame"
        sigma = self._calibration.sigma
        sigma[0] = np.hypot(sigma[0], _FOCAL_BIAS)
        return self._calibration.mean, sigma

    def estimated_camera(self) -> dict[str, float | bool] | None:
        """What is believed of the camera, in pixels of the source's images; None before the first frame."""
        if self._calibration is None:
            return None
        mean, sigma = self.calibration
        focal_px = float(np.exp(mean[0])) / self._reduction
        return {
            "stated": self._is_stated,
            "focal_px": focal_px,
            "focal_sigma_px": focal_px * float(sigma[0]),
            "k1": float(mean[3]),
            "k2": float(mean[4]),
        }

    def _calibrate_from(self, intrinsics: Pinhole | None, grey: Image) -> None:
        c, width = self.config, grey.shape[1]
        self._camera = self._camera_of(intrinsics, grey)
        self._is_stated = intrinsics is not None
        focal, radial = (
            (c.focal_sigma, c.radial_sigma)
            if self._is_stated
            else (c.assumed_focal_sigma, c.assumed_radial_sigma)
        )
        center = c.center_sigma * width
        sigma = np.array([focal, center, center, radial, radial])
        self._calibration = Calibration(self._camera, sigma)

    def _camera_of(self, intrinsics: Pinhole | None, grey: Image) -> Array:
        """Of the working image, as stated or assumed."""
        height, width = grey.shape
        known = intrinsics or Pinhole.from_fov(self.config.assumed_fov_deg, width, height)
        return camera_of(known.resized(width, height), self.config.radial)

    # Starting: every frame is a row of the map until two of them fix a motion.

    def _begin(self, index: int, grey: Image) -> None:
        """Makes the frame the first of a possible new map."""
        self._map, self._running, self._misses = LocalMap(), False, 0
        self._pose = self._motion = SE3.identity()
        self._grey, self._moving = grey, np.empty((0, 2))
        self._map.add_keyframe(index, self._pose)
        self._add_corners(index, grey)

    def _start(self, frame: Frame, grey: Image) -> WindowPrediction:
        """Follows the first frame's corners until a two-view motion can be believed."""
        c, points = self.config, self._map.points
        which = np.flatnonzero(points.followed)
        start = points.pixel[which]
        needed = max(2 * c.min_points, _MIN_KEPT * len(points))
        pixel, found = tracking.follow(self._grey, grey, start, start, c.flow_window, c.flow_levels)
        if found.sum() < max(needed, _MIN_FOLLOWED * len(which)):
            matched = tracking.match_brightness(self._grey, grey)
            pixel, found = tracking.follow(matched, grey, start, start, c.flow_window, c.flow_levels)
        points.pixel[which], points.followed[which] = pixel, found
        self._grey = grey
        if found.sum() < needed:
            self._begin(frame.index, grey)
            return self._nothing(frame, Status.INITIALISING)
        candidates = self._two_views(grey.shape[1])
        self._map.add_keyframe(frame.index, self._pose)
        can_wait = found.sum() > _LAST_CHANCE * len(points) and len(self._map) < c.start_frames
        accepted = bool(candidates) and self._accept_one(candidates, can_wait=can_wait)
        m = self._map
        if not accepted:
            if len(m) > c.start_frames:
                m.keep_keyframes(np.arange(len(m)) % 2 == 0)
            return self._nothing(frame, Status.INITIALISING)
        prediction = self._measured(frame, len(m), np.zeros((6, 6)))
        m.keep_keyframes(np.isin(np.arange(len(m)), np.linspace(0, len(m) - 1, 4).astype(int)))
        self._add_corners(frame.index, grey)
        return prediction

    def _two_views(self, width: int) -> list[TwoView]:
        """Motions since the first frame that may be the true one; none if it is too early to tell."""
        c, followed = self.config, self._map.points.followed
        first, now = self._map.observed[0, followed], self._map.points.pixel[followed]
        if np.median(np.linalg.norm(now - first, axis=1)) < c.start_parallax * width:
            return []
        max_error_px, min_points = c.max_error_px / 2, 2 * c.min_points
        two = relate_two_views(
            first,
            now,
            self._camera,
            max_error_px=max_error_px,
            min_points=min_points,
            min_agreeing=_MIN_AGREEING,
        )
        parallax_rad = np.radians(c.min_parallax_deg)
        if two is None or np.median(two.parallax_rad) < parallax_rad:
            return []
        flat = relate_views_of_a_plane(
            first, now, self._camera, max_error_px=max_error_px, min_points=min_points
        )
        return [two, *(other for other in flat if other.num_trusted(parallax_rad) >= min_points)]

    def _accept_one(self, candidates: list[TwoView], *, can_wait: bool) -> bool:
        """Starts the map with the motion that fits all frames since the first one best.

        If one that goes elsewhere fits nearly as well, the next frame may tell: if that can be waited for,
        nothing is started.
        """
        waiting = self.snapshot()
        tried: list[tuple[float, Array, dict[str, NDArray]]] = []
        for two in candidates:
            self._accept(two)
            m = self._map
            kept = len(m.points) / waiting["map/point_followed"].sum()
            way = (m.poses[len(m) - 1] @ m.poses[0].inverse()).translation
            if m.points.mature.sum() >= 2 * self.config.min_points:
                tried.append((m.noise_variance / kept**2, way / np.linalg.norm(way), self.snapshot()))
            self.restore(waiting)
        if not tried:
            return False
        cost, direction, started = min(tried, key=lambda attempt: attempt[0])
        rivals = [
            way for rival, way, _ in tried if rival < _RIVAL_COST * cost and way @ direction < _ELSEWHERE
        ]
        if rivals and can_wait:
            return False
        self.restore(started)
        return True

    def _accept(self, two: TwoView) -> None:
        """Poses the frames since the first one against the two-view points, and adjusts them all."""
        c, m = self.config, self._map
        m.keep_points(m.points.followed)
        m.points.position = two.position
        m.points.mature = two.parallax_rad > np.radians(c.min_parallax_deg)
        m.keep_points(np.isfinite(two.position[:, 0]))
        pose = SE3.identity()
        rotation, translation = m.poses.rotation.copy(), m.poses.translation.copy()
        for k in range(1, len(m)):
            rotation[k], translation[k], _ = adjust_pose(
                pose.rotation,
                pose.translation,
                self._camera,
                m.points.position,
                m.observed[k],
                c.huber_px,
                10,
            )
            pose = SE3(rotation[k], translation[k])
        m.poses = SE3(rotation, translation)
        self._running = True
        self._adjust(len(m))

    # Tracking

    def _track(self, frame: Frame, grey: Image) -> WindowPrediction:
        predicted = self._motion @ self._pose
        predicted = SE3(nearest_rotation(predicted.rotation), predicted.translation)
        posed = pose_frame(self._map, self._camera, self.config, self._grey, grey, [predicted, self._pose])
        if posed is None:
            self._misses += 1
            if self._misses >= self.config.patience:
                self._begin(frame.index, grey)
            return self._nothing(frame, Status.LOST)
        points = self._map.points
        points.followed[:] = False
        points.followed[posed.which] = True
        points.pixel[posed.which] = posed.pixel
        self._motion = posed.pose @ self._pose.inverse()
        self._pose, self._grey, self._moving, self._misses = posed.pose, grey, posed.moving, 0
        if not self._is_keyframe(grey.shape[1]):
            return self._measured(frame, self.window - 1, np.linalg.inv(posed.information))
        self._map.add_keyframe(frame.index, self._pose)
        num_free = self._num_free()
        self._adjust(num_free)
        prediction = self._measured(frame, self.window - 1, np.zeros((6, 6)))
        unit_sigma = self._map.unit_sigma(num_free)
        self._map.keep_keyframes(np.arange(len(self._map)) >= len(self._map) - self.config.memory)
        self._add_corners(frame.index, grey)
        return replace(prediction, log_scale_sigma=unit_sigma)

    def _num_free(self) -> int:
        """Keyframes that an adjustment may move.

        Those that are held embody the focal length they were made with; an unknown one must not learn from
        them that it was right.
        """
        return self.config.free_keyframes if self._is_stated else self.config.memory - 2

    def _is_keyframe(self, width: int) -> bool:
        """Whether the view has moved on far enough from the last keyframe's."""
        c, points, last = self.config, self._map.points, self._map.observed[-1]
        seen = ~np.isnan(last[:, 0])
        both = seen & points.followed
        if both.sum() < c.keyframe_overlap * seen.sum():
            return True
        turn = self._pose.rotation @ self._map.poses.rotation[-1].T
        turned = project(self._camera, rays(self._camera, last[both]) @ turn.T)
        return bool(
            np.median(np.linalg.norm(points.pixel[both] - turned, axis=1)) > c.keyframe_parallax * width
        )

    def _adjust(self, num_free: int) -> None:
        """Settles the newest keyframe: its points, its pose and its neighbours', and the camera."""
        c, m, belief = self.config, self._map, self._calibration
        assert belief is not None
        m.triangulate(self._camera, c.max_error_px, np.radians(c.min_parallax_deg))
        self._camera, information = m.adjust(self._camera, num_free, c.huber_px, belief, _ADJUST_STEPS)
        belief.add(self._camera, information, 1 / c.memory)
        m.reject(self._camera, c.max_error_px)
        m.rebase()
        self._pose = SE3.identity()

    def _add_corners(self, index: int, grey: Image) -> None:
        """Starts points where there are none, at the depth of those around."""
        c, points = self.config, self._map.points
        corners = tracking.detect(grey, points.pixel[points.followed], c.points)
        in_camera = rays(self._camera, corners) * self._depth_around(corners)[:, None]
        position = self._pose.inverse().apply(in_camera)
        self._map.add_points(Points.start(position, corners, index, cut_templates(grey, corners)))

    def _depth_around(self, pixels: Array) -> Array:
        """(n,) median depth of the nearest points followed now; 1 without any."""
        points = self._map.points
        known = points.mature & points.followed
        if not known.any():
            return np.ones(len(pixels))
        depth = self._pose.apply(points.position[known])[:, 2]
        distance = np.linalg.norm(pixels[:, None] - points.pixel[known], axis=2)
        return np.median(depth[np.argsort(distance, axis=1)[:, :5]], axis=1)

    # What comes out

    def _nothing(self, frame: Frame, status: Status) -> WindowPrediction:
        """A window without edges."""
        return WindowPrediction(
            anchor=frame.index,
            members=np.empty(0, np.int64),
            member_from_anchor_rotation=np.empty((0, 3, 3)),
            member_from_anchor_translation=np.empty((0, 3)),
            confidence=np.empty(0),
            status=status,
        )

    def _measured(self, frame: Frame, num_members: int, spread: Array) -> WindowPrediction:
        """The window of the newest keyframes, seen from the frame just posed.

        spread: (6, 6) covariance of its pose relative to the newest of them, over the map's noise variance.
        """
        m = self._map
        rows = np.flatnonzero(m.frames != frame.index)[-num_members:]
        member_from_anchor = m.poses[rows] @ self._pose[None].inverse()
        newest_from_anchor = m.poses[len(m) - 1] @ self._pose.inverse()
        covariance = m.noise_variance * carried(m.covariance[rows], newest_from_anchor, spread)
        window = self._window(frame, self._camera, m.frames[rows], member_from_anchor)
        points = self._point_map()
        return replace(
            window,
            covariance=np.asarray(covariance, np.float64),
            points_in_anchor=points.points,
            points_confidence=points.confidence,
        )

    def _window(
        self, anchor: Frame, camera: Array, members: NDArray, member_from_anchor: SE3
    ) -> WindowPrediction:
        """A good window, without points."""
        height, width = anchor.image.shape[:2]
        scale = min(1.0, self.config.max_side / max(height, width))
        working = pinhole_of(camera, round(width * scale), round(height * scale))
        return WindowPrediction(
            anchor=anchor.index,
            members=members,
            member_from_anchor_rotation=np.asarray(member_from_anchor.rotation, np.float64),
            member_from_anchor_translation=np.asarray(member_from_anchor.translation, np.float64),
            confidence=np.ones(len(members)),
            intrinsics=working.resized(width, height),
        )

    def _point_map(self) -> PointMap:
        """What the trusted points that the frame sees tell of its depths."""
        points = self._map.points
        which = np.flatnonzero(points.followed & points.mature)
        depth = self._pose.apply(points.position[which])[:, 2]
        ahead = depth > 0
        return densified(self._grey, self._camera, points.pixel[which[ahead]], depth[ahead], self._moving)


def _part(state: Mapping[str, NDArray], name: str) -> dict[str, NDArray]:
    prefix = f"{name}/"
    return {key.removeprefix(prefix): value.copy() for key, value in state.items() if key.startswith(prefix)}
