"""Two predictors on one stream: classical geometry answers, and where it cannot, the network does.

`features` takes every frame. While it has no map that the frame was found in, the network streams along, and
answers for the frames that `features` will not name any more. When a map is lost the network first goes
through the last frames again, which are remembered as small as it sees them; once `features` has a map it
stops. So it costs nothing where it is not needed, and never more than a stream of its own.

All windows come in one scale, that of the first. At every change from one predictor to the other the scales
are compared on the depths that both have measured of one frame, and how well that is known goes into the
window as its `log_scale_sigma`. Windows of one map of `features` are in one scale however often the network
has answered in between.
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


@dataclass(frozen=True, kw_only=True)
class CombinedConfig:
    """When the network answers, and how its scale is compared."""

    replayed_frames: int = 8
    """Frames that the network goes through again before it answers after `features` has: its window, and a
    few more by which the depths of the last one settle."""
    cells_alike: float = 16.0
    """Neighbouring depths that err together and count as one measurement of the ratio of two scales."""
    min_scale_sigma: float = 0.01
    """Least standard deviation of the logarithm of that ratio: the depths of a network err as a whole, too."""
    unmeasured_scale_sigma: float = 0.5
    """The same where no depth could be compared."""

    def __post_init__(self) -> None:
        if self.replayed_frames < 2:
            raise ValueError(f"replayed_frames must be at least 2: {self}")


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
class _State:
    """What is remembered from frame to frame, beside the states of the two predictors."""

    recent: list[SeenFrame] = field(default_factory=list)
    """the last frames, oldest first"""
    waiting: list[_Waiting] = field(default_factory=list)
    """frames without a pose, which the start of the first map may still name, oldest first"""
    is_streaming: bool = False
    """whether the network has seen all frames up to the last one"""
    has_scale: bool = False
    """whether a window with a scale has been answered"""
    features_log_scale: float | None = None
    """log(scale of the map of `features` / scale of the stream); None without a map, or if not related"""
    network_log_scale: float | None = None
    """the same of the network's stream"""
    network_sigma: float | None = None
    """standard deviation of that, until a window has told it"""
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
            state.features_log_scale = None
        elif answers and not state.has_scale:
            state.features_log_scale = 0.0
        seen = self._network.look(self._with_camera(frame))
        if answers and state.features_log_scale is not None:
            prediction = self._by_features(measured)
        else:
            prediction = self._with_network(seen, measured)
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

    def _by_features(self, measured: WindowPrediction) -> WindowPrediction:
        """The window of `features` in the stream's scale; the network is not needed any more."""
        state = self._state
        assert state.features_log_scale is not None
        if state.is_streaming:
            self._network.reset()
        state.is_streaming, state.network_log_scale, state.network_sigma = False, None, None
        state.has_scale, state.depths = True, _Depths.of(measured) or state.depths
        waited = {frame.frame for frame in state.waiting}
        state.waiting = []
        if len(measured.member_points) and not waited.issuperset(p.frame for p in measured.member_points):
            late = tuple(points for points in measured.member_points if points.frame in waited)
            measured = replace(measured, member_points=late)
        return replace(_rescaled(measured, state.features_log_scale), measured_by=self._features.name)

    def _with_network(self, seen: SeenFrame, measured: WindowPrediction) -> WindowPrediction:
        """The answer while there is no map of `features` that the frame was found in, or a new one."""
        state = self._state
        window = self._network_window(seen)
        if measured.status is WindowStatus.OK and self._features.is_running:
            ratio = self._compare(_Depths.of(window), _Depths.of(measured))
            state.features_log_scale = self._network_scale() + ratio.value
            return replace(self._by_features(measured), log_scale_sigma=ratio.sigma)
        if measured.status is WindowStatus.OK:
            return self._turned(measured, window)
        if not state.has_scale:
            state.waiting.append(_as_waiting(window, seen))
            if np.isin([frame.frame for frame in state.waiting], self._features.waiting_frames).all():
                return measured
            state.waiting.pop()
        return self._by_network(window)

    def _turned(self, measured: WindowPrediction, window: WindowPrediction) -> WindowPrediction:
        """A window of `features` that tells rotations only, and no translation in a scale of depth 1."""
        state, depths = self._state, _Depths.of(window)
        if not state.has_scale:
            state.waiting = [frame for frame in state.waiting if frame.frame not in measured.members]
        elif depths is not None:
            log_depth = math.log(float(np.nanmedian(depths.depth)))
            measured = _rescaled(measured, self._network_scale() + log_depth)
        return replace(measured, measured_by=self._features.name)

    def _network_window(self, seen: SeenFrame) -> WindowPrediction:
        """The network's window, in its stream's scale; the stream begins with the last frames."""
        state = self._state
        if not state.is_streaming:
            self._network.reset()
            for earlier in state.recent:
                window = self._network.step_seen(replace(earlier, intrinsics=seen.intrinsics))
                if state.depths is not None and earlier.index == state.depths.frame:
                    ratio = self._compare(state.depths, _Depths.of(window))
                    assert state.features_log_scale is not None
                    state.network_log_scale = state.features_log_scale + ratio.value
                    state.network_sigma = ratio.sigma
            state.is_streaming = True
        return self._network.step_seen(seen)

    def _network_scale(self) -> float:
        return self._state.network_log_scale or 0.0

    def _by_network(self, window: WindowPrediction) -> WindowPrediction:
        """The network's window in the stream's scale, with the frames that it now has to answer for."""
        state = self._state
        window = replace(_with_waiting(window, state.waiting), descriptor=None)
        window = _rescaled(window, self._network_scale())
        window = replace(window, log_scale_sigma=state.network_sigma, measured_by=self._network.name)
        state.network_sigma, state.waiting, state.has_scale = None, [], True
        return window

    def _compare(self, one: _Depths | None, other: _Depths | None) -> Estimate:
        """log(scale in which the other's depths are / that of the one's), from the surer half of both."""
        config = self._config
        found = Estimate(0.0, math.nan)
        if one is not None and other is not None:
            depths, sure = zip(*(_on_grid(depths, other.depth.shape) for depths in (one, other)), strict=True)
            both = sure[0] & sure[1]
            found = median_log_ratio(depths[0][both], depths[1][both], alike=config.cells_alike)
        if math.isnan(found.sigma):
            return Estimate(0.0, config.unmeasured_scale_sigma)
        return found._replace(sigma=math.hypot(found.sigma, config.min_scale_sigma))


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
    factor, points, covariance = math.exp(log_scale), window.points_in_anchor, window.covariance
    if covariance is not None:
        stretch = np.repeat([1.0, factor], 3)
        covariance = covariance * np.outer(stretch, stretch)
    return replace(
        window,
        member_from_anchor_translation=window.member_from_anchor_translation * factor,
        covariance=covariance,
        points_in_anchor=None if points is None else points * np.float32(factor),
        member_points=tuple(
            replace(late, points_in_member=late.points_in_member * np.float32(factor))
            for late in window.member_points
        ),
    )


def _as_waiting(window: WindowPrediction, seen: SeenFrame) -> _Waiting:
    """What is remembered of the network's window of a frame that waits."""
    assert window.points_in_anchor is not None
    assert window.points_confidence is not None
    assert window.intrinsics is not None
    rotation, translation, covariance = np.eye(3), np.zeros(3), np.zeros((6, 6))
    if len(window.members):
        newest = int(np.argmax(window.members))
        rotation = window.member_from_anchor_rotation[newest]
        translation = window.member_from_anchor_translation[newest]
        covariance = _covariance(window)[newest]
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
    return np.stack([np.diag(np.repeat([1e-4, 0.01 * max(length, 1e-6) ** 2], 3)) for length in lengths])


def _with_waiting(window: WindowPrediction, waiting: Sequence[_Waiting]) -> WindowPrediction:
    """The window with all frames that waited among its members: those that it does not name itself are related
    to it one by one, each through the one after it."""
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
