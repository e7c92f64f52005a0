"""Window-relative poses and points by classical geometry: no weights, one core, real video.

Points are followed by optical flow and pinned to their first appearance; each frame is posed against a small
local map; every so often a frame becomes a keyframe, and the newest keyframes are adjusted together with
their points and the camera. An anchor's window are the last keyframes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Array
from anchor3r.predictors.confidence import FEATURES
from anchor3r.predictors.features import tracking
from anchor3r.predictors.features.config import FeaturesConfig
from anchor3r.predictors.features.depth_completion import DensePoints, densified
from anchor3r.predictors.features.initialisation import initialise
from anchor3r.predictors.features.odometry import Odometry, assumed_camera
from anchor3r.predictors.features.pose_estimation import pose_frame
from anchor3r.predictors.features.projection import pinhole_of
from anchor3r.predictors.features.relative_pose import relate_views
from anchor3r.predictors.features.tracking import Image
from anchor3r.predictors.features.uncertainty import carried
from anchor3r.predictors.interface import Predictor, WindowPrediction, WindowStatus
from anchor3r.snapshots import from_arrays, to_arrays
from anchor3r.sources.frame import Frame

_FOCAL_BIAS = 0.02
"""Relative error of a self-calibrated focal length that more windows do not average out; a rough value."""


class FeaturesPredictor(Predictor):
    """Measures windows of a video from one camera, whose calibration it refines on the way."""

    def __init__(self, config: FeaturesConfig | None = None) -> None:
        self.config = config or FeaturesConfig()
        self.reset()

    @property
    def name(self) -> str:
        return "features"

    @property
    def window(self) -> int:
        return self.config.window

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self.config)

    def reset(self) -> None:
        self._odometry = Odometry(self.config)

    def step(self, frame: Frame) -> WindowPrediction:
        grey, odometry = self._working(frame), self._odometry
        if odometry.calibration is None:
            odometry.calibrate_from(frame, grey)
        if len(odometry.map) == 0:
            odometry.begin(frame.index, grey)
            return _nothing(frame, WindowStatus.INITIALISING)
        return self._track(frame, grey) if odometry.running else self._initialise(frame, grey)

    def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
        grey = self._working(anchor)
        camera = self._camera_of(anchor, grey)
        related = relate_views([self._working(member) for member in members], grey, camera, self.config)
        if related is None:
            return _nothing(anchor, WindowStatus.LOST)
        indices = np.array([member.index for member in members], np.int64)
        points = densified(grey, camera, related.pixel, related.depth, np.empty((0, 2)))
        return _window(anchor, grey, camera, indices[related.rows], related.member_from_anchor, points)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        return to_arrays(self._odometry)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._odometry = replace(from_arrays(Odometry, state), config=self.config)

    @property
    def calibration(self) -> tuple[Array, Array]:
        """(log f, cx, cy, k1, k2) of the working image as believed now, and their standard deviations."""
        belief = self._odometry.calibration
        assert belief is not None, "known after the first frame"
        sigma = belief.sigma
        sigma[0] = np.hypot(sigma[0], _FOCAL_BIAS)
        return belief.mean, sigma

    def estimated_camera(self) -> dict[str, float | bool] | None:
        """What is believed of the camera, in pixels of the source's images; None before the first frame."""
        odometry = self._odometry
        if odometry.calibration is None:
            return None
        mean, sigma = self.calibration
        focal_px = float(np.exp(mean[0])) * odometry.source_width_px / odometry.grey.shape[1]
        return {
            "stated": odometry.is_stated,
            "focal_px": focal_px,
            "focal_sigma_px": focal_px * float(sigma[0]),
            "k1": float(mean[3]),
            "k1_sigma": float(sigma[3]),
            "k2": float(mean[4]),
            "k2_sigma": float(sigma[4]),
        }

    def _working(self, frame: Frame) -> Image:
        return tracking.to_grey(frame.image, self.config.min_side, self.config.max_side)

    def _camera_of(self, frame: Frame, grey: Image) -> Array:
        """What the stream has taught of the camera, at the size of this image; without one what is stated."""
        camera, streamed = self._odometry.camera, self._odometry.grey
        if not len(camera):
            return assumed_camera(self.config, frame.intrinsics, grey)
        return np.concatenate([camera[:4] * (grey.shape[1] / streamed.shape[1]), camera[4:]])

    def _initialise(self, frame: Frame, grey: Image) -> WindowPrediction:
        started = initialise(self._odometry, frame.index, grey)
        if started is None:
            return _nothing(frame, WindowStatus.INITIALISING)
        self._odometry, m = started, started.map
        prediction = self._measured(frame, len(m), np.zeros((6, 6)))
        kept = np.linspace(0, len(m) - 1, self.config.start_keyframes).astype(int)
        m.keep_keyframes(np.isin(np.arange(len(m)), kept))
        started.add_corners(frame.index, grey)
        return prediction

    def _track(self, frame: Frame, grey: Image) -> WindowPrediction:
        odometry, m = self._odometry, self._odometry.map
        guesses = [odometry.expected_pose(), odometry.pose]
        posed = pose_frame(m, odometry.camera, self.config, odometry.grey, grey, guesses)
        if posed is None:
            odometry.misses += 1
            if odometry.misses >= self.config.patience:
                odometry.begin(frame.index, grey)
            return _nothing(frame, WindowStatus.LOST)
        odometry.move_to(posed, grey)
        if not odometry.is_keyframe():
            return self._measured(frame, self.window - 1, np.linalg.inv(posed.information))
        m.add_keyframe(frame.index, odometry.pose)
        odometry.adjust(odometry.num_free)
        prediction = self._measured(frame, self.window - 1, np.zeros((6, 6)))
        log_scale_sigma = m.log_scale_sigma(odometry.num_free)
        m.keep_keyframes(np.arange(len(m)) >= len(m) - self.config.memory)
        odometry.add_corners(frame.index, grey)
        return replace(prediction, log_scale_sigma=log_scale_sigma)

    def _measured(self, frame: Frame, num_members: int, spread: Array) -> WindowPrediction:
        """The window of the newest keyframes, seen from the frame just posed.

        spread: (6, 6) covariance of its pose relative to the newest of them, over the map's noise variance.
        """
        odometry, m = self._odometry, self._odometry.map
        rows = np.flatnonzero(m.frames != frame.index)[-num_members:]
        member_from_anchor = m.poses[rows] @ odometry.pose[None].inverse()
        newest_from_anchor = m.poses[len(m) - 1] @ odometry.pose.inverse()
        covariance = m.noise_variance * carried(m.covariance[rows], newest_from_anchor, spread)
        window = _window(
            frame, odometry.grey, odometry.camera, m.frames[rows], member_from_anchor, self._point_map()
        )
        return replace(window, covariance=np.asarray(covariance, np.float64))

    def _point_map(self) -> DensePoints:
        """What the trusted points that the frame sees tell of its depths."""
        odometry, points = self._odometry, self._odometry.map.points
        which = np.flatnonzero(points.followed & points.mature)
        depth = odometry.pose.apply(points.position[which])[:, 2]
        which, depth = which[depth > 0], depth[depth > 0]
        return densified(odometry.grey, odometry.camera, points.pixel[which], depth, odometry.moving)


def _nothing(frame: Frame, status: WindowStatus) -> WindowPrediction:
    """A window without edges."""
    return WindowPrediction(
        anchor=frame.index,
        members=np.empty(0, np.int64),
        member_from_anchor_rotation=np.empty((0, 3, 3)),
        member_from_anchor_translation=np.empty((0, 3)),
        confidence=np.empty(0),
        status=status,
    )


def _window(
    anchor: Frame,
    grey: Image,
    camera: Array,
    members: NDArray[np.int64],
    member_from_anchor: SE3,
    points: DensePoints,
) -> WindowPrediction:
    """A good window; grey and camera are of the working image."""
    height, width = anchor.image.shape[:2]
    return WindowPrediction(
        anchor=anchor.index,
        members=members,
        member_from_anchor_rotation=np.asarray(member_from_anchor.rotation, np.float64),
        member_from_anchor_translation=np.asarray(member_from_anchor.translation, np.float64),
        confidence=np.ones(len(members)),
        points_in_anchor=points.points,
        points_confidence=FEATURES.probability(points.depth_sigma),
        intrinsics=pinhole_of(camera, grey.shape[1], grey.shape[0]).resized(width, height),
    )
