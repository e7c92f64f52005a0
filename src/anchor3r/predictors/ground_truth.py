"""The ground truth as a predictor, with noise of a chosen size: for tests and benchmarks of everything else.

It looks at no image. What it makes is not a reconstruction, and its name says so in every map.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, so3_exp
from anchor3r.predictors.interface import Predictor, WindowPrediction
from anchor3r.snapshots import from_arrays, to_arrays
from anchor3r.sources.frame import Frame


@dataclass(frozen=True, kw_only=True)
class GroundTruthConfig:
    """How far the measurements are off."""

    window: int = 10
    """Frames in a window, the anchor included."""
    rotation_deg: float = 0.0
    """Standard deviation of each edge's rotation about each axis."""
    translation_fraction: float = 0.0
    """Standard deviation of each edge's translation along each axis, as a part of its length."""
    seed: int = 0
    """Together with anchor and member it decides an edge's error."""
    max_grid_side: int = 256
    """Longest side of the point map; larger depth maps are sampled."""

    def __post_init__(self) -> None:
        if self.window < 2:
            raise Anchor3RError(
                f"a window has at least 2 frames, not {self.window}; choose a larger --window"
            )
        if self.max_grid_side < 1:
            raise ValueError(f"a point map has at least one point a side, not {self.max_grid_side}")
        if not (self.rotation_deg >= 0 and self.translation_fraction >= 0):
            raise Anchor3RError(
                f"noise must not be negative: {self.rotation_deg}, {self.translation_fraction}"
            )


class GroundTruthPredictor(Predictor):
    """Relative poses and depth as the source knows them, plus noise."""

    is_ground_truth = True

    def __init__(self, config: GroundTruthConfig | None = None) -> None:
        self.config = config or GroundTruthConfig()
        self._recent: deque[_PosedFrame] = deque(maxlen=self.config.window - 1)

    @property
    def name(self) -> str:
        c = self.config
        return (
            f"ground-truth:{c.rotation_deg:g},{c.translation_fraction:g} (window {c.window}, seed {c.seed})"
        )

    @property
    def window(self) -> int:
        return self.config.window

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self.config)

    def reset(self) -> None:
        self._recent.clear()

    def step(self, frame: Frame) -> WindowPrediction:
        prediction = self._measure(list(self._recent), frame)
        self._recent.append(_PosedFrame(frame.index, _true_pose(frame)))
        return prediction

    def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
        return self._measure([_PosedFrame(member.index, _true_pose(member)) for member in members], anchor)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        return to_arrays(_GroundTruthState(list(self._recent)))

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._recent = deque(from_arrays(_GroundTruthState, state).recent, maxlen=self.config.window - 1)

    def _measure(self, members: list[_PosedFrame], anchor: Frame) -> WindowPrediction:
        indices = [member.index for member in members]
        member_from_world = SE3(
            np.array([member.camera_from_world.rotation for member in members]).reshape(-1, 3, 3),
            np.array([member.camera_from_world.translation for member in members]).reshape(-1, 3),
        )
        member_from_anchor = member_from_world @ _true_pose(anchor).inverse()
        noise = np.array([self._noise(anchor.index, index) for index in indices]).reshape(-1, 2, 3)
        length = np.linalg.norm(member_from_anchor.translation, axis=-1, keepdims=True)
        angle_rad = np.radians(self.config.rotation_deg)
        return WindowPrediction(
            anchor=anchor.index,
            members=np.array(indices, np.int64),
            member_from_anchor_rotation=so3_exp(angle_rad * noise[:, 0]) @ member_from_anchor.rotation,
            member_from_anchor_translation=member_from_anchor.translation
            + self.config.translation_fraction * length * noise[:, 1],
            confidence=np.ones(len(indices)),
            points_in_anchor=point_map_of(anchor, self.config.max_grid_side),
            intrinsics=anchor.intrinsics,
        )

    def _noise(self, anchor: int, member: int) -> NDArray[np.float64]:
        return np.random.default_rng([self.config.seed, anchor, member]).standard_normal((2, 3))


@dataclass(frozen=True)
class _PosedFrame:
    """A frame of the stream, as far as later windows need it."""

    index: int
    camera_from_world: SE3


@dataclass(frozen=True)
class _GroundTruthState:
    """What the predictor remembers of a stream."""

    recent: list[_PosedFrame]
    """The frames before the current one, oldest first"""


def _true_pose(frame: Frame) -> SE3:
    pose = frame.camera_from_world
    if pose is None:
        raise Anchor3RError(
            "the ground-truth predictor needs a source that knows its poses, but frame "
            f"{frame.index} has none; choose another --predictor, or a source such as world:7"
        )
    return SE3(pose.rotation.astype(np.float64), pose.translation.astype(np.float64))


def point_map_of(frame: Frame, max_side: int) -> NDArray[np.float32] | None:
    """(h, w, 3) from depth, sampled at the middle of each grid cell."""
    if frame.depth_m is None or frame.intrinsics is None:
        return None
    stride = -(-max(frame.depth_m.shape) // max_side)
    middle = slice((stride - 1) // 2, None, stride)
    depth = np.where(frame.depth_m > 0, frame.depth_m, np.float32(np.nan))
    return frame.intrinsics.unproject_map(depth)[middle, middle].astype(np.float32)
