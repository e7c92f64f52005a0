"""Window-relative poses and points by classical geometry: no weights, one core, real video.

Points are followed by optical flow and pinned to their first appearance; each frame is posed against a small
local map; every so often a frame becomes a keyframe, and the newest keyframes are adjusted together with
their points and the camera. An anchor's window are the last keyframes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Array, Pinhole
from anchor3r.predictors.confidence import FEATURES
from anchor3r.predictors.features import tracking
from anchor3r.predictors.features.config import FeaturesConfig
from anchor3r.predictors.features.depth_completion import (
    DensePoints,
    densified,
    densified_on_grid,
    grid_size,
    on_grid,
)
from anchor3r.predictors.features.initialisation import Turned, initialise
from anchor3r.predictors.features.odometry import Odometry, WaitingImages, assumed_camera
from anchor3r.predictors.features.pose_estimation import pose_frame
from anchor3r.predictors.features.projection import camera_from, pinhole_of
from anchor3r.predictors.features.relative_pose import relate_views
from anchor3r.predictors.features.tracking import Image
from anchor3r.predictors.features.uncertainty import carried
from anchor3r.predictors.interface import (
    MemberPoints,
    NoPoseReason,
    Predictor,
    WindowPrediction,
    WindowStatus,
)
from anchor3r.snapshots import from_arrays, to_arrays
from anchor3r.sources.frame import Frame

_HELD_ERRS = 2.0
"""Variance of an edge over what is known of it given the points and keyframes that are held, and the camera:
these err too, and neighbouring frames share that. Chosen on worlds 201 to 206, for poses online and
refined."""


class FeaturesPredictor(Predictor):
    """Measures windows of a video from one camera, whose calibration it refines on the way."""

    calibrates = True
    relates_concurrently = True

    def __init__(self, config: FeaturesConfig | None = None) -> None:
        self.config = config or FeaturesConfig()
        self._assumed: dict[str, float | bool] | None = None
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
            prediction = _nothing(frame, WindowStatus.INITIALISING, odometry.waits_because())
        elif odometry.running:
            prediction = self._track(frame, grey)
        else:
            prediction = self._initialise(frame, grey)
        self._keep_waiting(frame, grey)
        return prediction

    def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
        return self._related(members, anchor, None)

    def relate_posed(self, members: Sequence[Frame], member_from_map: SE3, anchor: Frame) -> WindowPrediction:
        return self._related(members, anchor, member_from_map)

    def _related(self, members: Sequence[Frame], anchor: Frame, known: SE3 | None) -> WindowPrediction:
        grey = self._working(anchor)
        camera = self._camera_of(anchor, grey)
        views = [self._working(member) for member in members]
        related = relate_views(views, grey, camera, self.config, known)
        if related is None:
            return _nothing(anchor, WindowStatus.LOST, NoPoseReason.NO_OVERLAP)
        indices = np.array([member.index for member in members], np.int64)
        points = densified(grey, camera, related.pixel, related.depth, np.empty((0, 2)))
        return _window(anchor, grey, camera, indices[related.rows], related.member_from_anchor, points)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        return to_arrays(self._odometry)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._odometry = replace(from_arrays(Odometry, state), config=self.config)

    def estimated_camera(self) -> dict[str, float | bool] | None:
        """What is believed of the camera, in pixels of the source's images; None before the first frame."""
        odometry = self._odometry
        if odometry.calibration is None:
            return None
        if self._assumed is not None:
            return self._assumed
        belief, (height, width) = odometry.calibration, odometry.grey.shape
        mean, sigma, focal_sigma = belief.mean, belief.sigma, odometry.focal_sigma()
        found = pinhole_of(camera_from(mean, odometry.camera), width, height).resized(*odometry.source_size)
        known = odometry.is_stated and not belief.is_doubted
        return {
            "stated": odometry.is_stated,
            "held": belief.is_held,
            "doubted": belief.is_doubted,
            "stated_focal_px": float(found.fx * np.exp(belief.prior[0] - mean[0])),
            "focal_px": found.fx,
            "focal_sigma_px": found.fx * focal_sigma,
            "determined": known or focal_sigma < self.config.known_focal_sigma,
            **{name: float(value) for name, value in asdict(found).items()},
            "cx_sigma": float(sigma[1]) * found.width / width,
            "cy_sigma": float(sigma[2]) * found.height / height,
            "k1": float(mean[3]),
            "k1_sigma": float(sigma[3]),
            "k2": float(mean[4]),
            "k2_sigma": float(sigma[4]),
        }

    def assume_camera(self, camera: Mapping[str, float | bool]) -> None:
        focal_px, sigma_px = float(camera["focal_px"]), float(camera["focal_sigma_px"])
        self._odometry.earlier_focal_px = focal_px
        self._odometry.earlier_focal_sigma = sigma_px / focal_px
        self._odometry.is_earlier_checked = bool(camera.get("checked", False))

    def hold_camera(self, camera: Mapping[str, float | bool]) -> bool:
        if "cx" not in camera:  # of a map that says no more than the focal length
            return False
        self.config = replace(
            self.config,
            intrinsics=Pinhole.from_named(camera),
            radial=(float(camera["k1"]), float(camera["k2"])),
            focal_sigma=0.0, doubted_focal_sigma=0.0, center_sigma=0.0, radial_sigma=0.0,
        )  # fmt: skip
        self._assumed = {**camera, "held": True}
        self.calibrates = False
        self.reset()
        return True

    def begin_anew(self, frame: int) -> None:
        """Gives up the local map. The frame, which is the last one, may be the first of a new map."""
        self._odometry.begin(frame, self._odometry.grey)

    @property
    def is_running(self) -> bool:
        """Whether there is a local map, in one scale as long as this stays true."""
        return self._odometry.running

    @property
    def tells_scale(self) -> bool:
        """Whether the spread of a keyframe's scale says how far it may have drifted. That of a young map, and
        of one whose camera is still looked for, is about keyframes that are nearly all free to move."""
        odometry = self._odometry
        return odometry.is_known and len(odometry.map) >= 2 * self.config.free_keyframes

    @property
    def num_trusted_points(self) -> int:
        """Points whose depth is known that the last frame has seen."""
        points = self._odometry.map.points
        return int(np.sum(points.followed & points.mature))

    @property
    def waiting_frames(self) -> NDArray[np.int64]:
        """Frames without a pose that the start of a map may still name."""
        return self._odometry.map.frames if not self.is_running else np.empty(0, np.int64)

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
            reason = self._odometry.waits_because()
            if len(self._odometry.map) == 1 and reason is not NoPoseReason.FEW_FEATURES:
                reason = NoPoseReason.NO_OVERLAP  # what the others saw could not be followed to this one
            return _nothing(frame, WindowStatus.INITIALISING, reason)
        if isinstance(started, Turned):
            return self._turned(frame, started)
        self._odometry, m = started, started.map
        prediction = self._measured(frame, len(m), np.zeros((6, 6)))
        prediction = replace(prediction, member_points=self._points_of_waiting(frame))
        kept = np.linspace(0, len(m) - 1, self.config.start_keyframes).astype(int)
        m.keep_keyframes(np.isin(np.arange(len(m)), kept))
        started.add_corners(frame.index, grey)
        return prediction

    def _keep_waiting(self, frame: Frame, grey: Image) -> None:
        """Remembers the image of a frame that waits for the map to be initialised, and of no other."""
        odometry = self._odometry
        if odometry.running:
            odometry.waiting = WaitingImages()
            return
        rows, columns = grid_size(*grey.shape)
        colours = cv2.resize(frame.image, (columns, rows), interpolation=cv2.INTER_AREA)
        odometry.waiting.add(frame.index, on_grid(grey), np.asarray(colours, np.uint8))
        odometry.waiting.keep(odometry.map.frames)

    def _points_of_waiting(self, anchor: Frame) -> tuple[MemberPoints, ...]:
        """Point maps of the frames that waited for the initialisation, as the anchor's is made."""
        odometry, m, waiting = self._odometry, self._odometry.map, self._odometry.waiting
        shape, (height, width) = odometry.grey.shape, anchor.image.shape[:2]
        camera = pinhole_of(odometry.camera, shape[1], shape[0]).resized(width, height)
        seen, found = m.seen() & m.points.mature, []
        for k, frame in enumerate(waiting.frames.tolist()):
            row = int(np.searchsorted(m.frames, frame))
            depth = m.poses[row].apply(m.points.position)[:, 2]
            which = seen[row] & (depth > 0)
            dense = densified_on_grid(
                waiting.grey[k],
                shape,
                odometry.camera,
                m.observed[row, which],
                depth[which],
                np.empty((0, 2)),
            )
            found.append(
                MemberPoints(
                    frame=frame,
                    points_in_member=dense.points,
                    confidence=FEATURES.probability(dense.depth_sigma),
                    colours=waiting.colours[k],
                    intrinsics=camera,
                )
            )
        return tuple(found)

    def _turned(self, frame: Frame, turned: Turned) -> WindowPrediction:
        """The window of frames that were all taken from one place, in the scale of a median depth of 1.

        A translation that shows as less than the noise of an observation cannot be told from none.
        """
        found, odometry = turned.rotations, self._odometry
        rotation = found.frame_from_first[:-1] @ found.frame_from_first[-1].T
        covariance = np.zeros((len(rotation), 6, 6))
        # Right perturbations of member_from_anchor lie in the anchor.
        carry = np.swapaxes(rotation, 1, 2)
        own = found.covariance[:-1]
        covariance[:, :3, :3] = carry @ own @ np.swapaxes(carry, 1, 2) + found.covariance[-1]
        covariance[:, 3:, 3:] = found.noise_variance / found.camera[0] ** 2 * np.eye(3)
        pose = SE3(rotation, np.zeros((len(rotation), 3)))
        nothing = densified(odometry.grey, found.camera, np.empty((0, 2)), np.empty(0), np.empty((0, 2)))
        window = _window(frame, odometry.grey, found.camera, turned.frames[:-1], pose, nothing)
        return replace(window, covariance=covariance, points_in_anchor=None, points_confidence=None)

    def _track(self, frame: Frame, grey: Image) -> WindowPrediction:
        odometry, m = self._odometry, self._odometry.map
        guesses = [odometry.expected_pose(), odometry.pose]
        posed = pose_frame(m, odometry.camera, self.config, odometry.grey, grey, guesses)
        if posed is None and (recognised := odometry.recognised_pose(grey)) is not None:
            posed = pose_frame(m, odometry.camera, self.config, odometry.grey, grey, [recognised])
        if posed is None:
            odometry.misses += 1
            if odometry.misses >= self.config.patience:
                odometry.begin(frame.index, grey)
            enough = len(tracking.detect(grey, np.empty((0, 2)), self.config.points)) > self.config.min_points
            reason = NoPoseReason.NO_OVERLAP if enough else NoPoseReason.FEW_FEATURES
            return _nothing(frame, WindowStatus.LOST, reason)
        odometry.move_to(posed, grey)
        odometry.learn(self.config.calibration_steps_a_frame)
        if not odometry.is_keyframe():
            return self._measured(frame, self.window - 1, np.linalg.inv(posed.information))
        m.add_keyframe(frame.index, odometry.pose)
        num_free = odometry.num_free
        odometry.adjust(num_free)
        prediction = self._measured(frame, self.window - 1, np.zeros((6, 6)))
        log_scale_sigma = m.log_scale_sigma(num_free)
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
        covariance = _HELD_ERRS * m.noise_variance * carried(m.covariance[rows], newest_from_anchor, spread)
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


def _nothing(frame: Frame, status: WindowStatus, reason: NoPoseReason) -> WindowPrediction:
    """A window without edges."""
    return WindowPrediction(
        anchor=frame.index,
        members=np.empty(0, np.int64),
        member_from_anchor_rotation=np.empty((0, 3, 3)),
        member_from_anchor_translation=np.empty((0, 3)),
        confidence=np.empty(0),
        status=status,
        reason=reason,
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
