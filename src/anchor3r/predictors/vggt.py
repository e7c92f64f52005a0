"""VGGT as a predictor: public weights, run window by window with the current frame as reference.

VGGT puts its world at the first frame of a clip. Fed with the anchor first, it answers in the anchor's gauge,
which is what the motion graph wants. Each clip comes in a scale of its own; how two overlapping windows
relate is measured on the depth maps of frames that both have seen.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, rotation_from_quat
from anchor3r.model.checkpoints import file_digest
from anchor3r.model.memory import window_bytes
from anchor3r.model.vggt import VGGT, load_vggt
from anchor3r.predictors.confidence import from_learned
from anchor3r.predictors.inference import (
    backbone_precision,
    camera_from_fov,
    choose_device,
    choose_dtype,
    dtype_name,
    fit_to_patches,
    require_memory,
)
from anchor3r.predictors.interface import Dtype, Predictor, WindowPrediction, WindowStatus
from anchor3r.robust import mad_sigma
from anchor3r.snapshots import from_arrays, to_arrays
from anchor3r.sources.frame import Frame


@dataclass(frozen=True, kw_only=True)
class VGGTPredictorConfig:
    """How VGGT is run over a stream."""

    window: int = 10
    """Frames of a window, the anchor included."""
    every: int = 1
    """Every how many frames one is an anchor; those in between are members of the next window."""
    long_side: int = 518
    """Longer side of the images that the network sees, in pixels."""
    scale_frames: int = 3
    """How many of a window's newest frames carry the scale over to the next window."""
    min_scale_sigma: float = 1e-3
    """Least standard deviation of the log ratio of two windows' scales: maps that agree to the last bit still
    come from one network with one bias."""

    def __post_init__(self) -> None:
        if self.window < 2:
            raise ValueError(f"a window has at least two frames, not {self.window}")
        if not 1 <= self.every < self.window:
            raise ValueError(
                f"every {self.every} frames an anchor: windows of {self.window} would not overlap; "
                f"take 1 … {self.window - 1}"
            )
        if self.scale_frames < 1:
            raise ValueError(f"at least one frame carries the scale over, not {self.scale_frames}")


@dataclass(frozen=True, kw_only=True)
class _EncodedFrame:
    """A frame as the network knows it."""

    index: int
    image: NDArray[np.uint8]
    """(h, w, 3) as the network sees it."""
    tokens: Tensor
    """(N, C) encoder output, the same in every window."""


@dataclass(frozen=True, kw_only=True)
class DepthMap:
    """One frame's depth in one window's scale."""

    depth: NDArray[np.float32]
    """(h, w) along z."""
    confidence: NDArray[np.float32]
    """(h, w)"""


@dataclass(frozen=True, kw_only=True)
class _VGGTState:
    """What the predictor remembers of a stream; tokens are computed anew from the images."""

    num_steps: int
    """Frames seen so far"""
    images: dict[int, NDArray[np.uint8]]
    """(h, w, 3) of the window's frames as the network sees them, oldest first, by their index"""
    depth_maps: dict[int, DepthMap]
    """Those of the previous window that the next one's scale is measured on, by the frame's index"""


class _Measured(NamedTuple):
    prediction: WindowPrediction
    depth_maps: dict[int, DepthMap]


def log_scale_ratio(
    previous: Mapping[int, DepthMap], current: Mapping[int, DepthMap], *, min_sigma: float
) -> tuple[float, float | None]:
    """log(current scale / previous scale) from the frames that both windows have depth of, and its spread.

    A frame's depth is in its own camera, so the ratio of two windows' maps is that of their scales whatever
    their gauge. Each frame's more confident half votes, once for all its pixels in the spread: their errors
    move together. (0, None) if no frame is shared.
    """
    votes = []
    for index in previous.keys() & current.keys():
        before, now = previous[index], current[index]
        trust = np.minimum(before.confidence, now.confidence)
        sure = trust >= np.median(trust)
        votes.append(np.log(before.depth[sure]) - np.log(now.depth[sure]))
    if not votes:
        return 0.0, None
    pooled = np.concatenate(votes)
    ratio = float(np.median(pooled))
    return ratio, max(mad_sigma(pooled, ratio) / math.sqrt(len(votes)), min_sigma)


class VGGTPredictor(Predictor):
    """Measures windows of a stream with VGGT."""

    gains_from_threads = True

    def __init__(
        self,
        model: VGGT,
        config: VGGTPredictorConfig,
        *,
        device: str = "auto",
        dtype: Dtype = "auto",
        name: str = "vggt",
        digest: str | None = None,
    ) -> None:
        """`digest` is that of the file of weights."""
        self._device = choose_device(device)
        self._dtype = choose_dtype(dtype, self._device)
        if self._device.type != "cpu":
            weights = sum(parameter.nbytes for parameter in model.parameters())
            require_memory(weights, self._device, f"{name} (its weights alone)")
        self._model = model.to(self._device).eval()
        self._config = config
        self._name, self._digest = name, digest
        self.reset()

    @staticmethod
    def load(
        path: Path | str, config: VGGTPredictorConfig, *, device: str = "auto", dtype: Dtype = "auto"
    ) -> VGGTPredictor:
        """From a file of weights."""
        model, digest = load_vggt(path), file_digest(path)
        return VGGTPredictor(model, config, device=device, dtype=dtype, name=f"vggt:{path}", digest=digest)

    @property
    def name(self) -> str:
        return self._name

    @property
    def window(self) -> int:
        return self._config.window

    @property
    def settings(self) -> dict[str, Any]:
        return {"weights": self._digest, "dtype": dtype_name(self._dtype), **asdict(self._config)}

    def reset(self) -> None:
        self._views: deque[_EncodedFrame] = deque(maxlen=self._config.window)
        self._num_steps = 0
        self._depth_maps: dict[int, DepthMap] = {}

    def step(self, frame: Frame) -> WindowPrediction:
        image = self._fit(frame)
        if not self._num_steps:
            self._require_memory(image)
        view = self._view(frame.index, image)
        _check_same_size([*self._views, view])
        self._views.append(view)
        self._num_steps += 1
        if (self._num_steps - 1) % self._config.every:
            return _pending(frame.index)
        newest_first = list(self._views)[::-1]
        newest = {v.index for v in newest_first[: self._config.scale_frames]}
        measured = self._measure(frame, newest_first, newest | self._depth_maps.keys())
        ratio, sigma = log_scale_ratio(
            self._depth_maps, measured.depth_maps, min_sigma=self._config.min_scale_sigma
        )
        self._depth_maps = {index: measured.depth_maps[index] for index in newest}
        return replace(measured.prediction, log_scale_ratio=ratio, log_scale_sigma=sigma)

    def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
        views = [self._view(frame.index, self._fit(frame)) for frame in (anchor, *members)]
        _check_same_size(views)
        return self._measure(anchor, views, ()).prediction

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """The window's images, and the depth maps that the next window's scale is measured on."""
        images = {view.index: view.image for view in self._views}
        return to_arrays(_VGGTState(num_steps=self._num_steps, images=images, depth_maps=self._depth_maps))

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.reset()
        restored = from_arrays(_VGGTState, state)
        self._num_steps, self._depth_maps = restored.num_steps, restored.depth_maps
        self._views.extend(self._view(index, image) for index, image in restored.images.items())

    def _require_memory(self, image: NDArray[np.uint8]) -> None:
        config, (height, width) = self._config, image.shape[:2]
        num_dense = min(config.window, 2 * config.scale_frames)
        needed = window_bytes(self._model.config, height, width, config.window, num_dense, self._dtype)
        purpose = f"a window of {config.window} frames of {width}×{height} pixels through {self._name}"
        require_memory(needed, self._device, purpose)

    def _fit(self, frame: Frame) -> NDArray[np.uint8]:
        patch_size = self._model.config.patch_size
        return fit_to_patches(frame.image, long_side=self._config.long_side, patch_size=patch_size)

    @torch.inference_mode()
    def _view(self, index: int, image: NDArray[np.uint8]) -> _EncodedFrame:
        """Encodes one image by itself, so that its tokens are the same bits whenever it is encoded."""
        pixels = torch.tensor(image, device=self._device)
        with backbone_precision(self._device, self._dtype):
            tokens = self._model.encode(pixels.permute(2, 0, 1)[None].float() / 255)
        return _EncodedFrame(index=index, image=image, tokens=tokens[0])

    @torch.inference_mode()
    def _measure(self, anchor: Frame, views: Sequence[_EncodedFrame], depth_of: Collection[int]) -> _Measured:
        """Runs a window, anchor first, with the depth head on the anchor and on the frames `depth_of`."""
        model, (height, width) = self._model, views[0].image.shape[:2]
        grid = model.aggregator.patch_embed.grid(height, width)
        with backbone_precision(self._device, self._dtype):
            layers = model.aggregate(torch.stack([v.tokens for v in views])[None], grid)
        pose_enc = model.cameras(layers)[0].double().cpu().numpy()
        dense = [k for k, v in enumerate(views) if k == 0 or v.index in depth_of]
        depth, confidence = model.dense(model.depth_head, {k: x[:, dense] for k, x in layers.items()}, grid)
        maps = zip(dense, depth[0, ..., 0].cpu().numpy(), confidence[0].cpu().numpy(), strict=True)
        depth_maps = {views[k].index: DepthMap(depth=d, confidence=c) for k, d, c in maps}
        return _Measured(_assemble(anchor, views, pose_enc, depth_maps[anchor.index]), depth_maps)


def _assemble(
    anchor: Frame, views: Sequence[_EncodedFrame], pose_enc: NDArray[np.float64], depth_map: DepthMap
) -> WindowPrediction:
    """The network's numbers for a window (pose_enc (n + 1, 9), anchor first) as a prediction."""
    height, width = depth_map.depth.shape
    if anchor.intrinsics is None:
        camera = camera_from_fov(pose_enc[0, 7], pose_enc[0, 8], height, width)
    else:
        camera = anchor.intrinsics.resized(width, height)
    # The anchor's own pose is the identity only as well as the network knows it: it is divided out.
    camera_from_reference = SE3(rotation_from_quat(pose_enc[:, [6, 3, 4, 5]]), pose_enc[:, :3])
    member_from_anchor = camera_from_reference[1:] @ camera_from_reference[0].inverse()
    descriptor = views[0].tokens.float().mean(0)
    return WindowPrediction(
        anchor=anchor.index,
        members=np.array([v.index for v in views[1:]], np.int64),
        member_from_anchor_rotation=member_from_anchor.rotation.astype(np.float64),
        member_from_anchor_translation=member_from_anchor.translation.astype(np.float64),
        confidence=np.ones(len(views) - 1),
        points_in_anchor=camera.unproject_map(depth_map.depth).astype(np.float32),
        points_confidence=from_learned(depth_map.confidence),
        intrinsics=camera.resized(anchor.image.shape[1], anchor.image.shape[0]),
        descriptor=(descriptor / descriptor.norm()).cpu().numpy(),
    )


def _pending(index: int) -> WindowPrediction:
    """The prediction of a frame that the next anchor's window will place."""
    return WindowPrediction(
        anchor=index,
        members=np.empty(0, np.int64),
        member_from_anchor_rotation=np.empty((0, 3, 3)),
        member_from_anchor_translation=np.empty((0, 3)),
        confidence=np.empty(0),
        status=WindowStatus.INITIALISING,
    )


def _check_same_size(views: Sequence[_EncodedFrame]) -> None:
    first = views[0]
    for view in views[1:]:
        if view.image.shape != first.image.shape:
            (h, w), (first_h, first_w) = view.image.shape[:2], first.image.shape[:2]
            raise Anchor3RError(
                f"frame {view.index} would reach VGGT as {w}×{h} pixels, frame {first.index} as "
                f"{first_w}×{first_h}: the images of a window need one aspect ratio; map the parts of the "
                "source one by one"
            )
