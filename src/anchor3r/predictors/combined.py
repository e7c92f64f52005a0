"""Two predictors on one stream: classical geometry answers, and where it is weak, the network helps.

`features` takes every frame. While it has no map that the frame was found in, the network streams along and
answers; while it has one of few points or is unsure of its scale, whoever states the smaller spread does, and
the network tells the scale. Where neither is needed the network rests. When it is called, it first goes
through the last frames again, which are remembered as small as it sees them: so it never costs more than a
stream of its own. It has an answer to any two images, so its windows are compared with the images before they
are believed. A start of `features` that it contradicts by more than chance is given up if the images bear the
network out.

All windows come in one scale, that of the first. How the scales of both predictors lie to it is a state of
two numbers, which a Kalman filter keeps: that of `features` wanders by what its keyframes state, that of the
network by as much as it is known to wander, and the depths that both have of one frame measure the ratio of
the two. So nothing jumps where one hands over to the other, and how well the new window's scale is known goes
with it as its `log_scale_sigma`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole
from anchor3r.predictors.features.predictor import FeaturesPredictor
from anchor3r.predictors.interface import Predictor, WindowPrediction, WindowStatus
from anchor3r.predictors.network.predictor import NetworkPredictor, SeenFrame
from anchor3r.predictors.window_scales import Depths, StreamScales, compare_depths
from anchor3r.predictors.windows import (
    WaitingFrame,
    agreement,
    as_waiting,
    contradiction,
    inflated,
    rescaled,
    spread,
    with_waiting,
)
from anchor3r.robust import Estimate
from anchor3r.snapshots import from_arrays, part, prefixed, to_arrays
from anchor3r.sources.frame import Frame


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
    unsure_scale_sigma: float = 0.05
    """Least spread of the scale of a keyframe of `features` whose pose is less sure than that of the network:
    new depths rest on it."""
    inflation: float = 2.1
    """Spread of what `features` measures over what it states: tracks err as a whole."""
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
    contradiction: float = 22.46
    """Squared distance, of 6 degrees of freedom, between what a young map of `features` and the network say
    of a pose, above which one of the two is wrong: chance exceeds it in one case of a thousand."""
    patience: int = 30
    """Frames in a row without any answer after which a new component begins."""
    cells_alike: float = 16.0
    """Neighbouring depths that err together and count as one measurement of that ratio."""

    def __post_init__(self) -> None:
        if self.replayed_frames < 2 or self.rest_after < 1:
            raise ValueError(f"replayed_frames must be at least 2 and rest_after at least 1: {self}")


_FEATURES, _NETWORK = 0, 1
"""Rows of `StreamScales`."""


@dataclass
class _State:
    """What is remembered from frame to frame, beside the states of the two predictors."""

    recent: list[SeenFrame] = field(default_factory=list)
    """the last frames, oldest first"""
    waiting: list[WaitingFrame] = field(default_factory=list)
    """frames without a pose, which the start of the first map may still name, oldest first"""
    with_points: list[int] = field(default_factory=list)
    """frames that the network has answered for, of those that the start of a map may still name"""
    scales: StreamScales = field(default_factory=StreamScales)
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
    depths: Depths | None = None
    """of the last frame that `features` has answered"""


class CombinedPredictor(Predictor):
    """Streams frames through `features`, and through a network where that has no answer."""

    calibrates = True
    relates_concurrently = True

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
        return replace(frame, intrinsics=Pinhole.from_named(camera))

    def _is_weak(self, measured: WindowPrediction) -> bool:
        """Whether `features` is not sure of its scale."""
        sigma, limit = measured.log_scale_sigma, self._config.weak_scale_sigma
        return self._has_few_points() or (sigma is not None and self._features.tells_scale and sigma > limit)

    def _has_few_points(self) -> bool:
        return self._features.num_trusted_points < self._config.few_points

    def _is_surer(self, window: WindowPrediction, measured: WindowPrediction) -> bool:
        """Whether the network knows its newest edge better than `features` its own.

        The spreads of a young map are those of a start, and no doubt, unless it has few points.
        """
        can_tell = self._features.tells_scale or self._has_few_points()
        return can_tell and spread(window) < self._config.inflation * spread(measured)

    def _is_refuted(self, measured: WindowPrediction, window: WindowPrediction, seen: SeenFrame) -> bool:
        """Whether a young map of `features` says what the network contradicts, and images bear that one out.

        A start under blur may be wrong by far and sure of itself.
        """
        state, config = self._state, self._config
        if self._features.tells_scale:
            return False
        both = np.intersect1d(measured.members, window.members)
        common = [frame for frame in state.recent if frame.index in both]
        if not common or measured.points_in_anchor is None:
            return False
        ratio = self._compared(Depths.of(measured), window)
        owned = inflated(measured, config.inflation), inflated(window, state.network_excess)
        if contradiction(*owned, common[-1].index, ratio) < config.contradiction:
            return False
        return agreement(window, seen, common[-1]) >= agreement(measured, seen, common[-1])

    def _by_features(self, measured: WindowPrediction, window: WindowPrediction | None) -> WindowPrediction:
        """The window of `features` in the stream's scale, which that of the network helps to tell."""
        state, sigma = self._state, measured.log_scale_sigma
        if window is None:
            self._rest()
        elif sigma is not None:
            sigma = self._filtered_scale(measured, window, sigma)
        state.has_scale, state.has_network_answered = True, False
        state.depths, state.waiting = Depths.of(measured) or state.depths, []
        if measured.member_points:
            late = (points for points in measured.member_points if points.frame not in state.with_points)
            measured = replace(measured, member_points=tuple(late))
        measured = rescaled(measured, float(state.scales.mean[_FEATURES]))
        return replace(measured, log_scale_sigma=sigma, measured_by=self._features.name)

    def _filtered_scale(self, measured: WindowPrediction, window: WindowPrediction, sigma: float) -> float:
        """Compares the scales at a keyframe of `features`, which states a spread; what it is after that."""
        scales = self._state.scales
        told = 0.0  # while its pose is surer than the network's, so is its scale
        if self._is_surer(window, measured):
            told = max(self._config.inflation * sigma, self._config.unsure_scale_sigma)
        scales.walk(_FEATURES, told)
        scales.measure(self._compared(Depths.of(measured), window))
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
            if self._is_refuted(measured, window, seen):
                self._features.begin_anew(measured.anchor)
                state.is_related = False
                return self._by_network(window)
            # A start answers for the frames that waited for it, and its scale is that of the stream.
            is_start, goes_on = not state.has_scale, state.has_network_answered
            if state.is_related and not state.scales.is_known(_NETWORK):
                state.scales.measure(self._compared(Depths.of(measured), window))
            by_features = self._by_features if state.is_related else self._by_new_map
            answer = by_features(measured, window)
            can_network = not is_start and state.scales.is_known(_NETWORK)
            if not (can_network and self._is_surer(window, measured)):
                return answer
            state.has_network_answered = goes_on
            return self._by_network(window)
        if measured.status is WindowStatus.OK:
            return self._turned(measured, window)
        if not state.has_scale:
            state.waiting.append(as_waiting(window, seen, state.network_excess))
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
                state.scales, state.is_related = StreamScales(), True
            return self._by_features(measured, None)
        state.unanswered_frames += 1
        if state.unanswered_frames >= self._config.patience:
            self._rest()
            state.scales, state.has_scale, state.unanswered_frames = StreamScales(), False, 0
            state.recent, state.waiting, state.depths = [], [], None
        return measured

    def _by_new_map(self, measured: WindowPrediction, window: WindowPrediction) -> WindowPrediction:
        """The window that starts a map of `features` while the stream has a scale already."""
        state = self._state
        state.scales.mean[_FEATURES] = state.scales.mean[_NETWORK]
        state.scales.forget(_FEATURES)
        state.scales.measure(self._compared(Depths.of(measured), window))
        state.is_related, sigma = True, state.scales.ratio_sigma
        answer = self._by_features(replace(measured, log_scale_sigma=None), window)
        return replace(answer, log_scale_sigma=sigma)

    def _turned(self, measured: WindowPrediction, window: WindowPrediction) -> WindowPrediction:
        """A window of `features` that tells rotations only, and no translation in a scale of depth 1."""
        state, depths = self._state, Depths.of(window)
        if not state.has_scale:
            state.waiting = [frame for frame in state.waiting if frame.frame not in measured.members]
        elif depths is not None:
            log_depth = math.log(float(np.nanmedian(depths.depth)))
            measured = rescaled(measured, float(state.scales.mean[_NETWORK]) + log_depth)
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
                    state.scales.measure(self._compared(state.depths, window))
                state.last_seen = earlier
            state.is_streaming = True
        state.scales.walk(_NETWORK, self._config.network_walk)
        before = self._network.snapshot()
        window = self._network.step_seen(seen)
        agreed = 1.0 if state.last_seen is None else agreement(window, seen, state.last_seen)
        if agreed < self._config.min_agreement:
            self._network.restore(before)
            return None
        state.last_seen = seen
        state.network_excess = max(1.0, (1 / agreed**2 - 1) / self._config.typical_mismatch)
        return window

    def _by_network(self, window: WindowPrediction) -> WindowPrediction:
        """The network's window in the stream's scale, with the frames that it now has to answer for."""
        state = self._state
        if not state.has_scale:
            state.scales = StreamScales()
        sigma = state.scales.ratio_sigma if state.has_scale and not state.has_network_answered else None
        window = with_waiting(inflated(window, state.network_excess), state.waiting)
        window = replace(window, descriptor=None)
        window = rescaled(window, float(state.scales.mean[_NETWORK]))
        answered = [*state.with_points, *(late.frame for late in state.waiting), window.anchor]
        state.with_points = np.intersect1d(answered, self._features.waiting_frames).tolist()
        state.waiting, state.has_scale, state.has_network_answered = [], True, True
        return replace(window, log_scale_sigma=sigma, measured_by=self._network.name)

    def _compared(self, measured: Depths | None, window: WindowPrediction) -> Estimate:
        """The network's scale over that of `features`, by what both know of the depths of one frame."""
        config = self._config
        return compare_depths(
            measured, Depths.of(window), alike=config.cells_alike, least_sigma=config.compared_sigma
        )
