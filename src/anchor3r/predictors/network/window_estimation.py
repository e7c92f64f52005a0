"""The window step of the correlation preset: from the network's output to poses and depths of a window.

The network's heads predict poses and depths, and its correlation stem finds matches. The matches give better
poses and depths, except for members that are far away in the image: there they fail together. The previous
window has seen those members from nearer, so its poses, chained to the newest one, are a better start, unless
the images say otherwise. In the same way a few keyframes that are too old for the network stay members: they
see the depths from farther apart. From that start matches are measured on the images and the window is
adjusted to them.

A window of a few frames knows its depths only as well as its short baseline allows, and its scale not at all.
The previous anchor has seen most of the same surfaces. Its depths, looked up where this anchor's points lie
in it, say how the two scales compare; brought to one scale they are a second measurement of every depth, so
that what is known of a surface grows as long as it is in sight. Of older windows nothing is kept but this.

Shapes: K members, h × w cells of the anchor's point map, P = h w.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import cv2
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from anchor3r.geometry import SE3, Pinhole
from anchor3r.model.matching import DenseMatches
from anchor3r.predictors.network.window_kernels import (
    Floats,
    GreyImage,
    PhotometricAlignmentConfig,
    WindowAdjustmentConfig,
    WindowGeometry,
    WindowImages,
    adjust_window,
    align_images,
    blend_depths,
    halved,
    image_differences,
    require_positive,
)
from anchor3r.robust import MEDIAN_OVER_MEAN, Estimate, mad_sigma, weighted_median

_CONFIDENCE_SCALE = 0.02
"""Confidence above 1 over the square root of the information on a log depth. It defines what a confidence
means in maps (1.3 is a relative error of 1 / 15) and decides no estimate."""
_MIN_DEPTH = 1e-6
"""Depths below this are behind the camera, as far as rounding tells."""
_MIN_INFORMATION = 1e-6
"""Stands for no information where a variance is needed."""


@dataclass(frozen=True, kw_only=True)
class WindowStartConfig:
    """When the previous window is a better start than the network's matches."""

    match_difference_ratio: float = 1.5
    """A member's pose is chained through the previous window unless its image then differs more than so many
    times as much from the anchor as with the pose by its matches. The factor is above 1 since matches that
    fail together say that nothing has moved, which does not look so wrong on a road under a sky."""
    keyframe_difference_ratio: float = 6.0
    """A keyframe stays a member while its image differs less than so many times as much from the anchor as
    the typical member's."""
    max_keyframe_motion: float = 0.25
    """A keyframe is given up beyond this motion over depth: it sees another size of everything, and the
    window's own members are far enough apart by then."""


@dataclass(frozen=True, kw_only=True)
class ScaleFilterConfig:
    """How the scales of neighbouring windows are compared and filtered."""

    prior_sigma: float = 0.3
    """Standard deviation of the log scale that the network predicts for a window, as if windows were
    independent."""
    min_sigma: float = 0.002
    """Least standard deviation of a log ratio of scales."""
    motion_sigma: float = 0.4
    """Least standard deviation of a log ratio of scales, over the motion divided by the depth: on a road all
    matches err a little to the same side, which the spread between cells does not show."""
    cell_sigma: float = 0.05
    """Standard deviation of the log ratio of two depths of one cell, however well both are known."""
    min_cells: int = 16
    """Fewest cells that a ratio is taken from."""
    correlated_cells: int = 16
    """Neighbouring cells that err together and count as one measurement."""

    def __post_init__(self) -> None:
        require_positive(self, "prior_sigma", "min_sigma", "min_cells", "correlated_cells")


@dataclass(frozen=True, kw_only=True)
class DepthFusionConfig:
    """How the previous window's depths are merged with those of this one."""

    retention: float = 0.8
    """Part of the information on a depth that is kept from one window to the next."""
    max_squared_error: float = 30.0
    """Squared difference of two log depths, over its variance, beyond which they are of different things."""
    min_sigma: float = 0.02
    """Standard deviation of a log depth that no number of frames gets below: their errors are not
    independent."""
    prediction_sigma: float = 0.25
    """Standard deviation of the log depths that the network predicts, which every depth has a share of."""

    def __post_init__(self) -> None:
        require_positive(self, "min_sigma", "prediction_sigma")


@dataclass(frozen=True, kw_only=True)
class CovarianceInflationConfig:
    """What bundle adjustment cannot see and is added to the covariances of poses."""

    scale_sigma: float = 0.6
    """Standard deviation of a window's scale, relative. Scales wander by some hundredths, but return only
    after tens of frames: so far apart would independent ones have to be for chains of windows to drift as
    they do."""
    rotation_sigma_deg: float = 0.1
    """Standard deviation of the rotation error that all matches of a window, and of its neighbours, share."""
    translation_sigma: float = 0.01
    """Standard deviation of the shared translation error, relative to the translation."""
    translation_sigma_of_depth: float = 0.003
    """Standard deviation of the shared translation error, relative to the median depth. Without it a slow
    camera, of whose motion little but such errors is seen, would be thought to go to and fro, and the path
    averaged to a fraction of its length."""


@dataclass(frozen=True, kw_only=True)
class WindowEstimationConfig:
    """Everything that decides the window step of the correlation preset."""

    keyframe_interval: int = 8
    """Every so many frames one is a keyframe, which may stay a member when it is too old for the network."""
    num_keyframes: int = 3
    """How many such keyframes windows are measured on besides their own frames: more are slower and more
    exact."""
    alignment: PhotometricAlignmentConfig = PhotometricAlignmentConfig()
    """How matches are measured on the images."""
    adjustment: WindowAdjustmentConfig = WindowAdjustmentConfig()
    """How poses and depths are adjusted to matches."""
    start: WindowStartConfig = WindowStartConfig()
    """When the previous window is the start."""
    scale: ScaleFilterConfig = ScaleFilterConfig()
    """How the scale is carried over from window to window."""
    fusion: DepthFusionConfig = DepthFusionConfig()
    """How depths are carried over from window to window."""
    inflation: CovarianceInflationConfig = CovarianceInflationConfig()
    """What is added to the covariances, for graphs that take the errors of windows for independent."""
    alone: CovarianceInflationConfig = CovarianceInflationConfig(
        scale_sigma=0.03, rotation_sigma_deg=0.03, translation_sigma=0.005, translation_sigma_of_depth=0.0005
    )
    """What is added to the covariance of a window by itself: the same errors, as large as they are."""

    def __post_init__(self) -> None:
        require_positive(self, "keyframe_interval")
        if self.num_keyframes < 0:
            raise ValueError(f"the number of keyframes must not be negative: {self.num_keyframes}")


@dataclass(frozen=True, kw_only=True)
class WindowEstimate:
    """Poses and points of one window, as the network predicts or as this module estimates them."""

    ages: NDArray[np.int64]
    """(K,) frames between each member and the anchor"""
    rotation: Floats
    """(K, 3, 3) member_from_anchor"""
    translation: Floats
    """(K, 3) member_from_anchor"""
    points: NDArray[np.float32]
    """(h, w, 3) in the anchor"""
    confidence: NDArray[np.float32]
    """(h, w), 1 and more; of an estimate a measure of the information on the log depths"""
    covariance: Floats | None = None
    """(K, 6, 6) of right perturbations (rotation, translation); None of what the network predicts"""
    covariance_alone: Floats | None = None
    """(K, 6, 6) of the same, of this window by itself"""

    def member_from_anchor(self, age: int) -> SE3 | None:
        """Pose of the member of that age, if there is one."""
        at = np.flatnonzero(self.ages == age)
        return SE3(self.rotation[at[0]], self.translation[at[0]]) if len(at) else None


@dataclass(frozen=True, kw_only=True)
class EstimatorState:
    """What the estimation remembers of a stream."""

    num_frames: int = 0
    """Frames seen so far"""
    images: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    """(H, W) grey images of the recent frames and of older keyframes, oldest first, by how many frames came
    before them"""
    previous: WindowEstimate | None = None
    """The previous window, in the stream's scale, without covariances"""
    log_scale_variance: float
    """Variance of the logarithm of the stream's scale"""


class WindowEstimator:
    """Estimates the windows of one stream, one after the other."""

    def __init__(
        self, config: WindowEstimationConfig, window: int, state: EstimatorState | None = None
    ) -> None:
        """`window` is the number of frames that the network sees, the anchor included."""
        self.config = config
        self.window = window
        self.state = state or EstimatorState(log_scale_variance=config.scale.prior_sigma**2)

    @property
    def max_age(self) -> int:
        """Age of the oldest member that an estimate can name."""
        return self.window - 1 + self.config.num_keyframes * self.config.keyframe_interval

    def step(
        self,
        predicted: WindowEstimate,
        matches: DenseMatches | None,
        match_ages: Tensor,
        image: NDArray[np.uint8],
        camera: Pinhole,
    ) -> WindowEstimate:
        """The window of the next frame, from what the network says of it.

        `matches` is None at the first frame, otherwise its pairs are with the members of ages `match_ages`.
        image (H, W, 3) and camera are of the network's size.
        """
        grey = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)
        state = self._with_frame(grey)
        window, variance = predicted, state.log_scale_variance
        if matches is not None:
            newest = state.num_frames - 1
            images = {newest - number: kept for number, kept in state.images.items()}
            window = measure_window(
                predicted, matches, match_ages, images, camera, state.previous, self.config
            )
        if state.previous is not None and window.covariance is not None:
            window, variance = _continued(window, state.previous, variance, camera, self.config)
        self.state = replace(state, previous=replace(window, covariance=None), log_scale_variance=variance)
        alone = inflate_covariance(window, self.config.alone).covariance
        return replace(inflate_covariance(window, self.config.inflation), covariance_alone=alone)

    def _with_frame(self, image: NDArray[np.uint8]) -> EstimatorState:
        """The state with the newest frame and without those that are neither recent nor keyframes."""
        images = {**self.state.images, self.state.num_frames: image}
        num_frames = self.state.num_frames + 1
        oldest = num_frames - self.window
        keyframes = [n for n in images if n < oldest and n % self.config.keyframe_interval == 0]
        kept = keyframes[max(0, len(keyframes) - self.config.num_keyframes) :]
        images = {n: image for n, image in images.items() if n >= oldest or n in kept}
        return replace(self.state, num_frames=num_frames, images=images)


def measure_window(
    predicted: WindowEstimate,
    matches: DenseMatches,
    match_ages: Tensor,
    images: Mapping[int, NDArray[np.uint8]],
    camera: Pinhole,
    previous: WindowEstimate | None,
    config: WindowEstimationConfig,
) -> WindowEstimate:
    """Poses and depths that fit the images of one window; its members may be more than the predicted ones.

    match_ages (pairs,) says which member each match is of; images, grey, are by age, those of keyframes that
    are older than the window among them; `previous` is the previous window, in any scale.
    """
    adjustment, prior = config.adjustment, _as_geometry(predicted)
    matched, information, visible = _match_measurements(matches, match_ages, predicted.ages, camera)
    assert prior.log_inverse_depth.size == matched.shape[1], "points and matches lie on one grid"
    geometry = adjust_window(
        matched, information, prior, prior, adjustment,
        depth_sigma=adjustment.match_depth_sigma, patience=adjustment.match_patience,
    )  # fmt: skip
    geometry = blend_depths(geometry, prior, adjustment)
    full_size = {age: image.astype(np.float32) for age, image in images.items()}
    half_size = {age: halved(image, config.alignment) for age, image in full_size.items()}
    if previous is not None:
        geometry = _likelier_start(geometry, predicted, previous, half_size, camera, config)
        geometry, visible = _chained_start(geometry, visible, previous, half_size, camera, config)
        prior = replace(geometry, log_inverse_depth=prior.log_inverse_depth)
    for sized in (half_size, full_size):  # half the size first, where a step reaches farther
        window_images = WindowImages.of_ages(sized, geometry.ages, camera)
        matched, information = align_images(
            window_images, geometry.inverse_depth, geometry.poses, config.alignment
        )
        geometry = adjust_window(
            matched, information * visible, prior, geometry, adjustment,
            depth_sigma=adjustment.image_depth_sigma, patience=adjustment.image_patience,
        )  # fmt: skip
        geometry = blend_depths(geometry, prior, adjustment)
    return _as_estimate(geometry)


def _as_geometry(predicted: WindowEstimate) -> WindowGeometry:
    """The prediction as what bundle adjustment changes."""
    points = predicted.points.astype(np.float64)
    return WindowGeometry(
        ages=predicted.ages,
        rotation=predicted.rotation,
        translation=predicted.translation,
        rays=points[..., :2] / points[..., 2:],
        log_inverse_depth=-np.log(np.maximum(points[..., 2], _MIN_DEPTH)),
    )


def _match_measurements(
    matches: DenseMatches, match_ages: Tensor, ages: NDArray[np.int64], camera: Pinhole
) -> tuple[Floats, Floats, Floats]:
    """The network's matches with the members `ages` (K,): rays (K, P, 2), information (K, P, 2, 2) on them,
    and the chance (K, P, 1, 1) that a cell is visible in a member."""
    order = [int(np.flatnonzero(match_ages.cpu().numpy() == age)[0]) for age in ages]
    focal, center = np.array([camera.fx, camera.fy]), np.array([camera.cx, camera.cy])
    matched = (matches.pixel[order].double().cpu().numpy() - center) / focal
    weight = matches.weight()[order].double().cpu().numpy()[..., None, None]
    visible = matches.visible[order].double().sigmoid().cpu().numpy()[..., None, None]
    return matched, weight * np.diag(focal**2), visible


def _likelier_start(
    matched: WindowGeometry,
    predicted: WindowEstimate,
    previous: WindowEstimate,
    images: Mapping[int, GreyImage],
    camera: Pinhole,
    config: WindowEstimationConfig,
) -> WindowGeometry:
    """The window by its matches or by constant motion, whichever makes the members look more like the anchor.

    Matches of a few frames of which much is far away or flat can be explained by a turn, too.
    """
    constant = _constant_motion(matched, predicted, previous, camera, config.scale)
    if constant is None:
        return matched
    window_images = WindowImages.of_ages(images, matched.ages, camera)
    differences = [
        np.median(image_differences(window_images, start.inverse_depth, start.poses, config.alignment))
        for start in (matched, constant)
    ]
    return constant if differences[1] < differences[0] else matched


def _constant_motion(
    matched: WindowGeometry,
    predicted: WindowEstimate,
    previous: WindowEstimate,
    camera: Pinhole,
    config: ScaleFilterConfig,
) -> WindowGeometry | None:
    """The window as it is if the camera has gone on moving as before and the surfaces are where they were.

    None if the windows share too little. It is in the predicted window's scale.
    """
    motion, newest = previous.member_from_anchor(1), np.flatnonzero(predicted.ages == 1)
    if motion is None or not len(newest):
        return None
    rotation, translation = predicted.rotation.copy(), predicted.translation.copy()
    rotation[newest[0]], translation[newest[0]] = motion.rotation, motion.translation
    turned = SE3(motion.rotation, np.zeros(3))
    ratio = compare_scales(predicted.points, turned, previous, camera, config)
    if ratio is None:
        return None
    in_previous_scale = predicted.points * np.float32(np.exp(ratio.value))
    seen = _look_up_depths(in_previous_scale, motion, previous, camera)
    own = np.log(np.maximum(in_previous_scale[..., 2].reshape(-1).astype(np.float64), _MIN_DEPTH))
    log_depth = np.where(seen.information > 0, seen.log_depth, own) - ratio.value
    geometry = WindowGeometry(
        ages=predicted.ages,
        rotation=rotation,
        translation=translation * np.exp(-ratio.value),
        rays=matched.rays,
        log_inverse_depth=-log_depth.reshape(matched.log_inverse_depth.shape),
    )
    return _chained(geometry, previous, ratio.value)


def _chained_start(
    geometry: WindowGeometry,
    visible: Floats,
    previous: WindowEstimate,
    images: Mapping[int, GreyImage],
    camera: Pinhole,
    config: WindowEstimationConfig,
) -> tuple[WindowGeometry, Floats]:
    """The window as far as the previous one knows it better: poses of its members, and older keyframes.

    visible (K, ...) is the chance that each cell is visible in a member; it is 1 in keyframes.
    """
    newest = np.flatnonzero(geometry.ages == 1)[0]
    ratio = compare_scales(geometry.points(), geometry.poses[newest], previous, camera, config.scale)
    if ratio is None:
        return geometry, visible
    num_matched = len(geometry.ages)
    older = [age for age in images if age > geometry.ages.max() and age - 1 in previous.ages]
    matched = WindowGeometry(
        ages=np.array([*geometry.ages, *older], np.int64),
        rotation=np.concatenate([geometry.rotation, np.tile(np.eye(3), (len(older), 1, 1))]),
        translation=np.concatenate([geometry.translation, np.zeros((len(older), 3))]),
        rays=geometry.rays,
        log_inverse_depth=geometry.log_inverse_depth,
    )
    visible = np.concatenate([visible, np.ones((len(older), *visible.shape[1:]))])
    chained = _chained(matched, previous, ratio.value)
    take = _accept_chained(matched, chained, num_matched, images, camera, config)
    kept = take | (np.arange(len(take)) < num_matched)
    rotation = np.where(take[:, None, None], chained.rotation, matched.rotation)
    translation = np.where(take[:, None], chained.translation, matched.translation)
    geometry = replace(
        matched, ages=matched.ages[kept], rotation=rotation[kept], translation=translation[kept]
    )
    return geometry, visible[kept]


def _chained(geometry: WindowGeometry, previous: WindowEstimate, log_scale: float) -> WindowGeometry:
    """The geometry with poses by way of the previous anchor, where the previous window has them.

    That anchor, of age 1 now, is what the previous window's poses are relative to; `log_scale` is the
    logarithm of this window's scale over that one's.
    """
    rotation, translation = geometry.rotation.copy(), geometry.translation.copy()
    newest = int(np.flatnonzero(geometry.ages == 1)[0])
    for k, age in enumerate(geometry.ages):
        for before in np.flatnonzero(previous.ages == age - 1):
            rotation[k] = previous.rotation[before] @ geometry.rotation[newest]
            translation[k] = previous.rotation[before] @ geometry.translation[newest]
            translation[k] += previous.translation[before] * np.exp(-log_scale)
    return replace(geometry, rotation=rotation, translation=translation)


def _accept_chained(
    matched: WindowGeometry,
    chained: WindowGeometry,
    num_matched: int,
    images: Mapping[int, GreyImage],
    camera: Pinhole,
    config: WindowEstimationConfig,
) -> NDArray[np.bool_]:
    """(K,) whether to take the chained pose of each member; the first `num_matched` have one by matches."""
    start, inverse_depth = config.start, matched.inverse_depth
    window_images = WindowImages.of_ages(images, matched.ages, camera)
    of_chained = image_differences(window_images, inverse_depth, chained.poses, config.alignment)
    window_images = replace(window_images, members=window_images.members[:num_matched])
    poses = matched.poses[:num_matched]
    of_matched = image_differences(window_images, inverse_depth, poses, config.alignment)
    of_members, of_keyframes = of_chained[:num_matched], of_chained[num_matched:]
    typical = float(np.median(np.minimum(of_members, of_matched)))
    moved = np.linalg.norm(chained.translation[num_matched:], axis=1) * float(np.median(inverse_depth))
    near = (of_keyframes < start.keyframe_difference_ratio * typical) & (moved < start.max_keyframe_motion)
    return np.append(of_members < start.match_difference_ratio * of_matched, near)


def _as_estimate(geometry: WindowGeometry) -> WindowEstimate:
    """The result of an adjustment."""
    assert geometry.covariance is not None
    assert geometry.depth_information is not None
    return WindowEstimate(
        ages=geometry.ages,
        rotation=geometry.rotation,
        translation=geometry.translation,
        points=geometry.points(),
        confidence=confidence_of(geometry.depth_information).astype(np.float32),
        covariance=_as_right_perturbation(geometry.covariance, geometry.rotation),
    )


def _as_right_perturbation(covariance: Floats, rotation: Floats) -> Floats:
    """(K, 6, 6) of left rotations and added translations -> of (R, t) Exp(ξ), as the graph has it."""
    turn = np.zeros_like(covariance)
    turn[:, :3, :3] = turn[:, 3:, 3:] = np.swapaxes(rotation, 1, 2)
    return np.asarray(turn @ covariance @ np.swapaxes(turn, 1, 2), np.float64)


def _continued(
    window: WindowEstimate,
    previous: WindowEstimate,
    variance: float,
    camera: Pinhole,
    config: WindowEstimationConfig,
) -> tuple[WindowEstimate, float]:
    """The window in the stream's scale and with the stream's depths, and the variance of that log scale.

    A Kalman filter on one number, the logarithm of the window's scale. Geometry that two windows share ties
    their scales closely but drifts in the long run; what the network has learned about sizes is vague but
    does not drift.
    """
    pose = window.member_from_anchor(1)
    if pose is None:
        return window, variance
    own = information_of(window.confidence)
    ratio = compare_scales(window.points, pose, previous, camera, config.scale, information=own)
    if ratio is None:
        return window, variance
    expected = variance + ratio.sigma**2
    gain = expected / (expected + config.scale.prior_sigma**2)
    window = _rescaled(window, float(np.exp((1 - gain) * ratio.value)))
    return fuse_depths(window, previous, camera, config.fusion), (1 - gain) * expected


def compare_scales(
    points: NDArray[np.float32],
    previous_from_anchor: SE3,
    previous: WindowEstimate,
    camera: Pinhole,
    config: ScaleFilterConfig,
    *,
    information: Floats | None = None,
) -> Estimate | None:
    """log(scale of the window / scale of the previous one) and its spread; None if they share too little.

    information (h, w) is what is known of the window's log depths. Where little was measured, both depths
    are near what the network predicts, but not equally near: a window is more so than what has gathered
    since. Such cells would make a scale creep, so they count less. Without it all cells count alike.
    """
    seen = _look_up_depths(points, previous_from_anchor, previous, camera)
    shared = np.isfinite(seen.log_ratio)
    log_ratio = seen.log_ratio[shared]
    if len(log_ratio) < config.min_cells:
        return None
    weight = np.ones(len(log_ratio))
    if information is not None:
        own, known = information.reshape(-1)[shared], seen.information[shared]
        variance = 1 / np.maximum(own, _MIN_INFORMATION) + 1 / np.maximum(known, _MIN_INFORMATION)
        weight = 1 / (variance + config.cell_sigma**2)
    middle = weighted_median(log_ratio, weight)
    independent = len(log_ratio) / config.correlated_cells
    sigma = MEDIAN_OVER_MEAN * mad_sigma(log_ratio, middle) / np.sqrt(independent)
    step = float(np.linalg.norm(previous_from_anchor.translation))
    motion = step * float(np.median(1 / points[..., 2]))
    return Estimate(middle, float(max(sigma, config.motion_sigma * motion, config.min_sigma)))


@dataclass(frozen=True)
class _PreviousDepths:
    """What the previous anchor knows of this one's cells; NaN and no information where it sees them not."""

    log_ratio: Floats
    """(P,) logarithm of its depth there over the one that this window expects there"""
    log_depth: Floats
    """(P,) logarithm of its depth, moved to this anchor"""
    information: Floats
    """(P,) inverse variance of that logarithm"""


def _look_up_depths(
    points: NDArray[np.float32], previous_from_anchor: SE3, previous: WindowEstimate, camera: Pinhole
) -> _PreviousDepths:
    """Looks the points (h, w, 3) of this anchor up in the previous one's depths."""
    rotation, translation = previous_from_anchor.rotation, previous_from_anchor.translation
    moved = points.reshape(-1, 3).astype(np.float64) @ rotation.T + translation
    height, width = previous.confidence.shape
    in_front = moved[:, 2] > _MIN_DEPTH
    ahead = np.where(in_front[:, None], moved, [0, 0, 1])
    pixel = camera.resized(width, height).project(ahead).astype(np.float32)
    outside = np.float32(-9)
    # As maps of the points' own shape: OpenCV takes no side beyond 32,767.
    x, y = (np.where(in_front, part, outside).reshape(points.shape[:2]) for part in pixel.T)
    # Inverse depths, not depths, are linear between the pixels of a plane.
    inverse, known = (
        np.asarray(cv2.remap(part, x, y, cv2.INTER_LINEAR, borderValue=float("nan"))).reshape(-1)
        for part in (1 / previous.points[..., 2].astype(np.float64), information_of(previous.confidence))
    )
    inverse[~(inverse > 0)] = np.nan
    back = (ahead / (ahead[:, 2] * inverse)[:, None] - translation) @ rotation
    log_depth = np.log(np.where(back[:, 2] > _MIN_DEPTH, back[:, 2], np.nan))
    information = np.where(np.isnan(log_depth), 0, known)
    return _PreviousDepths(-np.log(inverse * ahead[:, 2]), log_depth, information)


def _rescaled(window: WindowEstimate, factor: float) -> WindowEstimate:
    """The window with all lengths multiplied by `factor`."""
    covariance = window.covariance
    if covariance is not None:
        stretch = np.repeat([1.0, factor], 3)
        covariance = covariance * np.outer(stretch, stretch)
    return replace(
        window,
        translation=window.translation * factor,
        points=window.points * np.float32(factor),
        covariance=covariance,
    )


def fuse_depths(
    window: WindowEstimate, previous: WindowEstimate, camera: Pinhole, config: DepthFusionConfig
) -> WindowEstimate:
    """The window, which is in the previous one's scale, with depths that both have measured."""
    pose = window.member_from_anchor(1)
    assert pose is not None, "the previous anchor is a member"
    seen = _look_up_depths(window.points, pose, previous, camera)
    measured = information_of(window.confidence).reshape(-1)
    own = measured + config.prediction_sigma**-2.0
    depth = np.log(window.points[..., 2].astype(np.float64)).reshape(-1)
    off = np.where(seen.information > 0, seen.log_depth - depth, 0)
    known = config.retention * seen.information
    known = np.where(off**2 * known * own < config.max_squared_error * (known + own), known, 0)
    factor = np.exp(off * known / (known + own)).reshape(window.confidence.shape)
    confidence = confidence_of(np.minimum(measured + known, config.min_sigma**-2.0))
    return replace(
        window,
        points=(window.points * factor[..., None]).astype(np.float32),
        confidence=confidence.reshape(factor.shape).astype(np.float32),
    )


def inflate_covariance(window: WindowEstimate, config: CovarianceInflationConfig) -> WindowEstimate:
    """Adds what bundle adjustment cannot see: the error of the window's scale, and biases of its matches."""
    if window.covariance is None:
        return window
    in_anchor = np.swapaxes(window.rotation, 1, 2) @ window.translation[..., None]
    covariance = window.covariance.copy()
    covariance[:, 3:, 3:] += config.scale_sigma**2 * in_anchor @ np.swapaxes(in_anchor, 1, 2)
    length, depth = np.linalg.norm(in_anchor, axis=1), float(np.median(window.points[..., 2]))
    relative, of_depth = config.translation_sigma, config.translation_sigma_of_depth
    covariance[:, range(3), range(3)] += float(np.radians(config.rotation_sigma_deg)) ** 2
    covariance[:, range(3, 6), range(3, 6)] += (relative * length) ** 2 + (of_depth * depth) ** 2
    return replace(window, covariance=covariance)


def confidence_of(information: Floats) -> Floats:
    """The confidence, 1 and more as the network's, of log depths with that inverse variance."""
    return 1 + _CONFIDENCE_SCALE * np.sqrt(information)


def information_of(confidence: NDArray[np.float32]) -> Floats:
    """The inverse variance of log depths with that confidence."""
    return ((confidence.astype(np.float64) - 1) / _CONFIDENCE_SCALE) ** 2
