"""Two predictors on one stream: classical geometry answers, and where it is weak, the network helps.

`features` takes every frame. While it has no map that the frame was found in, the network streams along and
answers; while it has one of few points, whoever states the smaller spread does; and while it is only not sure
of its scale, the network tells that. Where neither is needed the network rests. When it is called, it first
goes through the last frames again, which are remembered as small as it sees them: so it never costs more than
a stream of its own. It has an answer to any two images, so its windows are compared with the images before
they are believed.

All windows come in one scale, that of the first. How the scales of both predictors lie to it is a state of
two numbers, which a Kalman filter keeps: that of `features` wanders by what its keyframes state, that of the
network by as much as it is known to wander, and the depths that both have of one frame measure the ratio of
the two. So nothing jumps where one hands over to the other, and how well the new window's scale is known goes
with it as its `log_scale_sigma`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Array, Pinhole
from anchor3r.predictors.features.predictor import FeaturesPredictor
from anchor3r.predictors.features.uncertainty import carried
from anchor3r.predictors.interface import MemberPoints, Predictor, WindowPrediction, WindowStatus
from anchor3r.predictors.network.predictor import NetworkPredictor, SeenFrame
from anchor3r.robust import Estimate, median_log_ratio
from anchor3r.snapshots import from_arrays, part, prefixed, to_arrays
from anchor3r.sources.frame import Frame

_PINHOLE = tuple(entry.name for entry in fields(Pinhole))


_DETAIL_PX = 9
"""Side of the neighbourhood whose mean is taken away before two images are compared."""
_MIN_OVERLAP = 0.05
"""Part of an image that the frame before has to show for a comparison."""
_MIN_DEPTH = 1e-6
_UNKNOWN = 1e4
"""Variance of the logarithm of a scale of which nothing is known."""


@dataclass(frozen=True, kw_only=True)
class CombinedConfig:
    """When the network helps, and how scales are compared."""

    replayed_frames: int = 8
    """Frames that the network goes through again when it is called: its window, and a few more by which the
    depths of the last one settle."""
    rest_after: int = 10
    """Frames in a row without need of it after which the network rests: about as many as its return costs."""
    weak_scale_sigma: float = 0.02
    """Spread of the logarithm of the scale that a keyframe of `features` states, above which the network is
    asked: it wanders by as much itself."""
    few_points: int = 60
    """With fewer followed points than this whose depth is trusted, the network is asked, too."""
    few_points_sigma: float = 0.1
    """Least spread of the scale of a keyframe of `features` with so few points and a pose less sure than that
    of the network: new depths rest on theirs."""
    scale_inflation: float = 3.0
    """Spread of the scale of `features` over what it states: tracks err as a whole."""
    network_walk: float = 0.03
    """Standard deviation by which the logarithm of the network's scale wanders from frame to frame."""
    compared_sigma: float = 0.1
    """Standard deviation of the logarithm of the ratio of both scales as depths of one frame tell it, however
    much they agree: the depths of a network err as a whole."""
    min_agreement: float = 0.5
    """Correlation of a frame's details with those of the frame before, moved to it by the network's window,
    below which the network is not believed: it has an answer to any two images."""
    typical_mismatch: float = 0.08
    """What is left over what is explained of those details, 1 / correlation² - 1, up to which the network
    errs as it states; above it errs by as much more. At five, ten and twenty times it, under the blur of fast
    motion, rotations were off by some 0.5°, 1° and 2° instead of 0.1°."""
    patience: int = 30
    """Frames in a row without any answer after which a new component begins."""
    cells_alike: float = 16.0
    """Neighbouring depths that err together and count as one measurement of that ratio."""

    def __post_init__(self) -> None:
        if self.replayed_frames < 2 or self.rest_after < 1:
            raise ValueError(f"replayed_frames must be at least 2 and rest_after at least 1: {self}")


@dataclass(frozen=True, kw_only=True)
class _Depths:
    """What a window knows of its anchor's depths."""

    frame: int
    depth: NDArray[np.float32]
    """(h, w) in the window's own scale, NaN where unknown"""
    confidence: NDArray[np.float32]
    """(h, w)"""

    @staticmethod
    def of(window: WindowPrediction) -> _Depths | None:
        points, confidence = window.points_in_anchor, window.points_confidence
        if points is None or confidence is None:
            return None
        return _Depths(frame=window.anchor, depth=points[..., 2], confidence=confidence)


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """A frame that nobody has answered for, as the network's stream sees it."""

    frame: int
    rotation: Array
    """(3, 3) of before_from_this, where before is the frame before it in the stream"""
    translation: Array
    """(3,)"""
    covariance: Array
    """(6, 6)"""
    points: NDArray[np.float32]
    """(h, w, 3)"""
    confidence: NDArray[np.float32]
    """(h, w)"""
    colours: NDArray[np.uint8]
    """(h, w, 3)"""
    intrinsics: Pinhole


@dataclass
class _Scales:
    """Logarithms of the scales of `features` and of the network over that of the stream."""

    mean: Array = field(default_factory=lambda: np.zeros(2))
    """(2,)"""
    covariance: Array = field(default_factory=lambda: np.zeros((2, 2)))
    """(2, 2)"""

    def forget(self, which: int) -> None:
        """Nothing is known of one of the two any more."""
        self.covariance[which] = self.covariance[:, which] = 0.0
        self.covariance[which, which] = _UNKNOWN

    def walk(self, which: int, sigma: float) -> None:
        self.covariance[which, which] += sigma**2

    def measure(self, ratio: Estimate) -> None:
        """ratio: log(depths of `features` / depths of the network), which is network over `features`."""
        row = np.array([-1.0, 1.0])
        gain = self.covariance @ row / (self.ratio_sigma**2 + ratio.sigma**2)
        self.mean = self.mean + gain * (ratio.value - row @ self.mean)
        self.covariance = self.covariance - np.outer(gain, row @ self.covariance)

    @property
    def ratio_sigma(self) -> float:
        """Standard deviation of the ratio of the two."""
        row = np.array([-1.0, 1.0])
        return math.sqrt(max(float(row @ self.covariance @ row), 0.0))


_FEATURES, _NETWORK = 0, 1


@dataclass
class _State:
    """What is remembered from frame to frame, beside the states of the two predictors."""

    recent: list[SeenFrame] = field(default_factory=list)
    """the last frames, oldest first"""
    waiting: list[_Waiting] = field(default_factory=list)
    """frames without a pose, which the start of the first map may still name, oldest first"""
    scales: _Scales = field(default_factory=_Scales)
    has_scale: bool = False
    """whether a window with a scale has been answered"""
    is_related: bool = False
    """whether the scale of the map that `features` has is known"""
    is_streaming: bool = False
    """whether the network has seen all frames up to the last one that anybody could relate"""
    last_seen: SeenFrame | None = None
    """the last frame that the network has gone on from"""
    network_excess: float = 1.0
    """by how much the network's last window errs more than it states"""
    unanswered_frames: int = 0
    """frames in a row that nobody could relate to those before"""
    has_network_answered: bool = False
    """whether the last window was the network's"""
    calm_frames: int = 0
    """frames in a row in which the network was not needed"""
    depths: _Depths | None = None
    """of the last frame that `features` has answered"""


class CombinedPredictor(Predictor):
    """Streams frames through `features`, and through a network where that has no answer."""

    calibrates = True

    def __init__(
        self, features: FeaturesPredictor, network: NetworkPredictor, config: CombinedConfig | None = None
    ) -> None:
        self._features, self._network = features, network
        self._config = config or CombinedConfig()
        self._state = _State()

    @property
    def name(self) -> str:
        return "auto"

    @property
    def window(self) -> int:
        return self._features.window

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "features": self._features.settings,
            "network": {"name": self._network.name, **self._network.settings},
            **asdict(self._config),
        }

    def reset(self) -> None:
        self._features.reset()
        self._network.reset()
        self._state = _State()

    def step(self, frame: Frame) -> WindowPrediction:
        state, features = self._state, self._features
        measured = features.step(frame)
        answers = measured.status is WindowStatus.OK
        if not features.is_running:
            state.is_related = False
        elif answers and not state.has_scale:
            state.is_related = True
        seen = self._network.look(self._with_camera(frame))
        is_strong = answers and state.is_related and not self._is_weak(measured)
        state.calm_frames = state.calm_frames + 1 if is_strong else 0
        if is_strong and (not state.is_streaming or state.calm_frames >= self._config.rest_after):
            prediction = self._by_features(measured, None)
        else:
            prediction = self._with_network(seen, measured)
        if prediction.status is WindowStatus.OK or state.last_seen is seen:
            state.recent = [*state.recent, seen][-self._config.replayed_frames :]
        return prediction

    def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
        return self._features.relate(members, anchor)

    def relate_posed(self, members: Sequence[Frame], member_from_map: SE3, anchor: Frame) -> WindowPrediction:
        return self._features.relate_posed(members, member_from_map, anchor)

    def estimated_camera(self) -> dict[str, float | bool] | None:
        return self._features.estimated_camera()

    def assume_camera(self, camera: Mapping[str, float | bool]) -> None:
        self._features.assume_camera(camera)

    def hold_camera(self, camera: Mapping[str, float | bool]) -> bool:
        held = self._features.hold_camera(camera)
        if held:
            self.calibrates = False
            self.reset()
        return held

    def snapshot(self) -> dict[str, NDArray[Any]]:
        return (
            prefixed("combined", to_arrays(self._state))
            | prefixed("features", self._features.snapshot())
            | prefixed("network", self._network.snapshot())
        )

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._state = from_arrays(_State, part(state, "combined"))
        self._features.restore(part(state, "features"))
        self._network.restore(part(state, "network"))

    def _with_camera(self, frame: Frame) -> Frame:
        """The frame with the camera that `features` has found, where the source states none."""
        camera = None if frame.intrinsics is not None else self._features.estimated_camera()
        if camera is None or not camera["determined"] or "cx" not in camera:
            return frame
        fx, fy, cx, cy, width, height = (float(camera[name]) for name in _PINHOLE)
        return replace(frame, intrinsics=Pinhole(fx, fy, cx, cy, int(width), int(height)))

    def _is_weak(self, measured: WindowPrediction) -> bool:
        """Whether `features` is not sure of its scale."""
        sigma, limit = measured.log_scale_sigma, self._config.weak_scale_sigma
        return self._has_few_points() or (sigma is not None and self._features.tells_scale and sigma > limit)

    def _has_few_points(self) -> bool:
        return self._features.num_trusted_points < self._config.few_points

    def _is_surer(self, window: WindowPrediction, measured: WindowPrediction) -> bool:
        """Whether the network knows its newest edge better than `features`, which has few points, its own."""
        return self._has_few_points() and _spread(window) < _spread(measured)

    def _by_features(self, measured: WindowPrediction, window: WindowPrediction | None) -> WindowPrediction:
        """The window of `features` in the stream's scale, which that of the network helps to tell."""
        state, sigma = self._state, measured.log_scale_sigma
        if window is None:
            self._rest()
        elif sigma is not None:
            sigma = self._filtered_scale(measured, window, sigma)
        state.has_scale, state.has_network_answered = True, False
        state.depths = _Depths.of(measured) or state.depths
        waited = {frame.frame for frame in state.waiting}
        state.waiting = []
        if not waited.issuperset(points.frame for points in measured.member_points):
            late = tuple(points for points in measured.member_points if points.frame in waited)
            measured = replace(measured, member_points=late)
        measured = _rescaled(measured, float(state.scales.mean[_FEATURES]))
        return replace(measured, log_scale_sigma=sigma, measured_by=self._features.name)

    def _filtered_scale(self, measured: WindowPrediction, window: WindowPrediction, sigma: float) -> float:
        """Compares the scales at a keyframe of `features`, which states a spread; what it is after that."""
        scales = self._state.scales
        told = self._config.scale_inflation * sigma if self._features.tells_scale else 0.0
        if self._is_surer(window, measured):
            told = max(told, self._config.few_points_sigma)
        scales.walk(_FEATURES, told)
        scales.measure(self._compare(_Depths.of(measured), _Depths.of(window)))
        return max(sigma, min(told, math.sqrt(scales.covariance[_FEATURES, _FEATURES])))

    def _rest(self) -> None:
        """The network is not needed any more, and the scale of `features` is that of the stream."""
        if self._state.is_streaming:
            self._network.reset()
        self._state.is_streaming, self._state.last_seen = False, None
        self._state.scales.covariance = np.zeros((2, 2))

    def _with_network(self, seen: SeenFrame, measured: WindowPrediction) -> WindowPrediction:
        """The answer while `features` has no map that the frame was found in, a new one, or a weak one."""
        state = self._state
        window = self._network_window(seen)
        if window is None:
            return self._without_network(measured)
        state.unanswered_frames = 0
        if measured.status is WindowStatus.OK and self._features.is_running:
            by_features = self._by_features if state.is_related else self._by_new_map
            answer = by_features(measured, window)
            return self._by_network(window) if self._is_surer(window, measured) else answer
        if measured.status is WindowStatus.OK:
            return self._turned(measured, window)
        if not state.has_scale:
            state.waiting.append(_as_waiting(window, seen, state.network_excess))
            if np.isin([frame.frame for frame in state.waiting], self._features.waiting_frames).all():
                return measured
            state.waiting.pop()
        return self._by_network(window)

    def _without_network(self, measured: WindowPrediction) -> WindowPrediction:
        """The answer where the network has none that can be believed."""
        state = self._state
        if measured.status is WindowStatus.OK:
            state.unanswered_frames = 0
            if not self._features.is_running:
                return replace(measured, measured_by=self._features.name)
            if not state.is_related:  # of a world of its own
                state.scales, state.is_related = _Scales(), True
            return self._by_features(measured, None)
        state.unanswered_frames += 1
        if state.unanswered_frames >= self._config.patience:
            self._rest()
            state.scales, state.has_scale, state.unanswered_frames = _Scales(), False, 0
            state.recent, state.waiting, state.depths = [], [], None
        return measured

    def _by_new_map(self, measured: WindowPrediction, window: WindowPrediction) -> WindowPrediction:
        """The window that starts a map of `features` while the stream has a scale already."""
        state = self._state
        state.scales.mean[_FEATURES] = state.scales.mean[_NETWORK]
        state.scales.forget(_FEATURES)
        state.scales.measure(self._compare(_Depths.of(measured), _Depths.of(window)))
        state.is_related, sigma = True, state.scales.ratio_sigma
        answer = self._by_features(replace(measured, log_scale_sigma=None), window)
        return replace(answer, log_scale_sigma=sigma)

    def _turned(self, measured: WindowPrediction, window: WindowPrediction) -> WindowPrediction:
        """A window of `features` that tells rotations only, and no translation in a scale of depth 1."""
        state, depths = self._state, _Depths.of(window)
        if not state.has_scale:
            state.waiting = [frame for frame in state.waiting if frame.frame not in measured.members]
        elif depths is not None:
            log_depth = math.log(float(np.nanmedian(depths.depth)))
            measured = _rescaled(measured, float(state.scales.mean[_NETWORK]) + log_depth)
        return replace(measured, measured_by=self._features.name)

    def _network_window(self, seen: SeenFrame) -> WindowPrediction | None:
        """The network's window, in its stream's scale; the stream begins with the last frames.

        None if the frame does not look as the window says: the stream is as if it had not been there.
        """
        state = self._state
        if not state.is_streaming:
            self._network.reset()
            state.scales.forget(_NETWORK)
            for earlier in state.recent:
                window = self._network.step_seen(replace(earlier, intrinsics=seen.intrinsics))
                if state.depths is not None and earlier.index == state.depths.frame:
                    state.scales.measure(self._compare(state.depths, _Depths.of(window)))
                state.last_seen = earlier
            state.is_streaming = True
        state.scales.walk(_NETWORK, self._config.network_walk)
        before = self._network.snapshot()
        window = self._network.step_seen(seen)
        agreement = 1.0 if state.last_seen is None else _agreement(window, seen, state.last_seen)
        if agreement < self._config.min_agreement:
            self._network.restore(before)
            return None
        state.last_seen = seen
        state.network_excess = max(1.0, (1 / agreement**2 - 1) / self._config.typical_mismatch)
        return window

    def _by_network(self, window: WindowPrediction) -> WindowPrediction:
        """The network's window in the stream's scale, with the frames that it now has to answer for."""
        state = self._state
        if not state.has_scale:
            state.scales = _Scales()
        sigma = state.scales.ratio_sigma if state.has_scale and not state.has_network_answered else None
        window = _with_waiting(_inflated(window, state.network_excess), state.waiting)
        window = replace(window, descriptor=None)
        window = _rescaled(window, float(state.scales.mean[_NETWORK]))
        state.waiting, state.has_scale, state.has_network_answered = [], True, True
        return replace(window, log_scale_sigma=sigma, measured_by=self._network.name)

    def _compare(self, one: _Depths | None, other: _Depths | None) -> Estimate:
        """log(depths of the one / of the other), from the surer half of both; of no weight without any."""
        found = Estimate(0.0, math.nan)
        if one is not None and other is not None:
            depths, sure = zip(*(_on_grid(depths, other.depth.shape) for depths in (one, other)), strict=True)
            both = sure[0] & sure[1]
            found = median_log_ratio(depths[0][both], depths[1][both], alike=self._config.cells_alike)
        if math.isnan(found.sigma):
            return Estimate(0.0, math.sqrt(_UNKNOWN))
        return found._replace(sigma=math.hypot(found.sigma, self._config.compared_sigma))


def _spread(window: WindowPrediction) -> float:
    """By how much, in radians, the image may be off that the newest member would see by its edge."""
    depths = _Depths.of(window)
    if depths is None or window.covariance is None or not np.isfinite(depths.depth).any():
        return math.inf
    variance = np.diag(window.covariance[int(np.argmax(window.members))])
    depth = float(np.nanmedian(depths.depth))
    return math.sqrt(float(variance[:3].sum() + variance[3:].sum() / depth**2))


def _agreement(window: WindowPrediction, seen: SeenFrame, before: SeenFrame) -> float:
    """Correlation of a frame's details with those of the frame before, where the window says they are.

    It is around 0 for frames that have nothing to do with each other, and 0 where too little overlaps.
    """
    newest, (height, width) = int(np.argmax(window.members)), seen.image.shape[:2]
    assert window.points_in_anchor is not None
    assert window.intrinsics is not None
    camera = window.intrinsics.resized(width, height)
    depth = cv2.resize(window.points_in_anchor[..., 2], (width, height), interpolation=cv2.INTER_LINEAR)
    points = _edge(window, newest).apply(camera.unproject_map(depth))
    ahead = points[..., 2] > _MIN_DEPTH
    at = camera.project(np.where(ahead[..., None], points, [0, 0, 1])).astype(np.float32)
    grey, earlier = (
        np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.float32)
        for image in (seen.image, before.image)
    )
    moved = cv2.remap(earlier, at[..., 0], at[..., 1], cv2.INTER_LINEAR, borderValue=float("nan"))
    overlaps = ahead & np.isfinite(moved)
    if overlaps.mean() < _MIN_OVERLAP:
        return 0.0
    one, other = (
        (image - cv2.blur(image, (_DETAIL_PX, _DETAIL_PX)))[overlaps]
        for image in (grey, np.where(overlaps, moved, grey))
    )
    norm = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / norm if norm > 0 else 0.0


def _on_grid(depths: _Depths, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Depths at the middles of the cells of a grid over the same image, and which are surer than most."""
    rows, columns = (
        ((np.arange(size) + 0.5) / size * own).astype(np.int64)
        for size, own in zip(shape, depths.depth.shape, strict=True)
    )
    depth, confidence = (part[np.ix_(rows, columns)] for part in (depths.depth, depths.confidence))
    known = np.isfinite(depth) & (depth > 0) & (confidence > 0)
    if not known.any():
        return depth, known
    return depth, known & (confidence >= np.median(confidence[known]))


def _rescaled(window: WindowPrediction, log_scale: float) -> WindowPrediction:
    """The window with all lengths multiplied by exp(log_scale)."""
    if log_scale == 0.0:
        return window
    factor, points = math.exp(log_scale), window.points_in_anchor
    stretch = np.outer(*2 * [np.repeat([1.0, factor], 3)])
    return replace(
        window,
        member_from_anchor_translation=window.member_from_anchor_translation * factor,
        covariance=None if window.covariance is None else window.covariance * stretch,
        covariance_alone=None if window.covariance_alone is None else window.covariance_alone * stretch,
        points_in_anchor=None if points is None else points * np.float32(factor),
        member_points=tuple(
            replace(late, points_in_member=late.points_in_member * np.float32(factor))
            for late in window.member_points
        ),
    )


def _inflated(window: WindowPrediction, excess: float) -> WindowPrediction:
    """The window with standard deviations multiplied by `excess`."""
    alone = window.covariance_alone
    return replace(
        window,
        covariance=_covariance(window) * excess**2,
        covariance_alone=None if alone is None else alone * excess**2,
    )


def _as_waiting(window: WindowPrediction, seen: SeenFrame, excess: float) -> _Waiting:
    """What is remembered of the network's window of a frame that waits; it errs more than it states by that
    factor."""
    assert window.points_in_anchor is not None
    assert window.points_confidence is not None
    assert window.intrinsics is not None
    rotation, translation, covariance = np.eye(3), np.zeros(3), np.zeros((6, 6))
    if len(window.members):
        newest = int(np.argmax(window.members))
        rotation = window.member_from_anchor_rotation[newest]
        translation = window.member_from_anchor_translation[newest]
        covariance = _covariance(window)[newest] * excess**2
    height, width = window.points_confidence.shape
    colours = cv2.resize(seen.image, (width, height), interpolation=cv2.INTER_AREA)
    return _Waiting(
        frame=window.anchor,
        rotation=rotation,
        translation=translation,
        covariance=covariance,
        points=window.points_in_anchor,
        confidence=window.points_confidence,
        colours=np.asarray(colours, np.uint8),
        intrinsics=window.intrinsics,
    )


def _covariance(window: WindowPrediction) -> Array:
    """(n, 6, 6) of the window's edges, if need be by nothing but their order of magnitude."""
    if window.covariance is not None:
        return window.covariance
    lengths = np.linalg.norm(window.member_from_anchor_translation, axis=1)
    spread = [np.diag(np.repeat([1e-4, 0.01 * max(length, 1e-6) ** 2], 3)) for length in lengths]
    return np.array(spread).reshape(-1, 6, 6)


def _with_waiting(window: WindowPrediction, waiting: Sequence[_Waiting]) -> WindowPrediction:
    """The window with all frames that waited among its members: those that it does not name itself are
    related to it one by one, each through the one after it."""
    if not waiting:
        return window
    rows = {frame: k for k, frame in enumerate(window.members.tolist())}
    poses = {frame: _edge(window, k) for frame, k in rows.items()}
    covariance = dict(zip(rows, _covariance(window), strict=True))
    for before, after in zip(waiting[-2::-1], waiting[:0:-1], strict=True):
        if before.frame in poses:
            continue
        after_from_anchor = poses[after.frame]
        poses[before.frame] = SE3(after.rotation, after.translation) @ after_from_anchor
        step = carried(after.covariance, after_from_anchor, covariance[after.frame])
        covariance[before.frame] = step
    members = np.array(sorted(poses), np.int64)
    return replace(
        window,
        members=members,
        member_from_anchor_rotation=np.stack([poses[frame].rotation for frame in members.tolist()]),
        member_from_anchor_translation=np.stack([poses[frame].translation for frame in members.tolist()]),
        confidence=np.ones(len(members)),
        covariance=np.stack([covariance[frame] for frame in members.tolist()]),
        covariance_alone=None,
        member_points=tuple(
            MemberPoints(
                frame=frame.frame, points_in_member=frame.points, confidence=frame.confidence,
                colours=frame.colours, intrinsics=frame.intrinsics,
            )
            for frame in waiting
        ),
    )  # fmt: skip


def _edge(window: WindowPrediction, k: int) -> SE3:
    return SE3(window.member_from_anchor_rotation[k], window.member_from_anchor_translation[k])
