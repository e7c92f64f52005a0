"""The network as a predictor: frames in, window-relative poses and the anchor's point map out."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole, rotation_from_quat
from anchor3r.model.cache import ImageCache
from anchor3r.model.checkpoints import file_digest, insist_on_fitting, load_tensors, read_tensors
from anchor3r.model.config import Gauge, NetworkConfig
from anchor3r.model.memory import streaming_bytes
from anchor3r.model.network import Anchor3RNetwork, WindowOutput
from anchor3r.predictors.confidence import WINDOW_ESTIMATION, from_learned
from anchor3r.predictors.inference import (
    backbone_precision,
    camera_from_fov,
    choose_device,
    choose_dtype,
    dtype_name,
    patch_aligned_size,
    require_memory,
)
from anchor3r.predictors.interface import Dtype, Predictor, WindowPrediction
from anchor3r.predictors.network.window_estimation import (
    EstimatorState,
    WindowEstimate,
    WindowEstimationConfig,
    WindowEstimator,
    information_of,
)
from anchor3r.snapshots import from_arrays, to_arrays
from anchor3r.sources.frame import Frame


def load_network(path: Path | str, *, window: int | None = None) -> Anchor3RNetwork:
    """A network from one of our checkpoints, ready for inference; `window` None is the trained one."""
    tensors, text = read_tensors(path)
    if text is None:
        raise Anchor3RError(f"{path}: holds no network configuration; convert foreign weights first")
    try:
        config = NetworkConfig.from_json(text)
    except Anchor3RError as error:
        raise Anchor3RError(f"{path}: {error.for_command_line()}; fetch or train the network anew") from error
    with torch.device("meta"):
        insist_on_fitting(Anchor3RNetwork(config), tensors, source=str(path))
    if window is not None and window != config.window:
        if config.offset_embedding:
            raise Anchor3RError(f"{path}: was trained for windows of {config.window} frames, not {window}")
        config = replace(config, window=window)
    network = Anchor3RNetwork(config)
    load_tensors(network, tensors, source=str(path))
    return network.eval().requires_grad_(False)


@dataclass(frozen=True, kw_only=True)
class NetworkPredictorConfig:
    """How frames are brought to the network, and what becomes of its output."""

    long_side: int = 518
    """Longer image side of the transformer presets, in pixels."""
    area_weight: float = 0.5
    """How much a deviation from the area that a correlation stem is made for counts, against one from the
    aspect ratio, when the sides of its images are chosen; both are logarithms."""
    estimation: WindowEstimationConfig | None = WindowEstimationConfig()
    """How windows are estimated where the checkpoint asks for it; None returns what the network predicts, as
    for networks whose checkpoints do not ask."""


class NetworkPredictor(Predictor):
    """Streams frames through a network with a bounded cache."""

    def __init__(
        self,
        network: Anchor3RNetwork,
        *,
        name: str,
        config: NetworkPredictorConfig | None = None,
        device: str = "auto",
        dtype: Dtype = "auto",
        compile_parts: bool = False,
        digest: str | None = None,
    ) -> None:
        """`compile_parts` has `torch.compile` translate encoder and heads: a minute at the start, then faster
        steps. `digest` is that of the file of weights."""
        self._device = choose_device(device)
        self._dtype = choose_dtype(dtype, self._device)
        if self._device.type != "cpu":
            weights = sum(parameter.nbytes for parameter in network.parameters())
            require_memory(weights, self._device, f"the network {name} (its weights alone)")
        self._network = network.to(self._device)
        config = config or NetworkPredictorConfig()
        self._config = config if network.config.window_estimation else replace(config, estimation=None)
        self._name, self._digest = name, digest
        # Of the presets, only that with matches has small images.
        self.gains_from_threads = network.config.matching is None
        self._stream: _Stream | None = None
        self._loop_streams: OrderedDict[Hashable, _Stream] = OrderedDict()
        if compile_parts:
            self._network.compile_parts()
        if network.config.matching is not None:
            # Convolutions take a quarter less of the time.
            self._network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @staticmethod
    def load(
        path: Path | str,
        *,
        window: int | None = None,
        device: str = "auto",
        dtype: Dtype = "auto",
        compile_parts: bool = False,
    ) -> NetworkPredictor:
        """From one of our checkpoints."""
        return NetworkPredictor(
            load_network(path, window=window),
            name=f"network:{Path(path).stem}",
            device=device,
            dtype=dtype,
            compile_parts=compile_parts,
            digest=file_digest(path),
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def window(self) -> int:
        return self._network.config.window

    @property
    def settings(self) -> dict[str, Any]:
        return {"weights": self._digest, "dtype": dtype_name(self._dtype), **asdict(self._config)}

    def reset(self) -> None:
        self._stream = None

    def step(self, frame: Frame) -> WindowPrediction:
        return self.step_seen(self.look(frame))

    def look(self, frame: Frame) -> SeenFrame:
        """What the network needs of a frame: little enough to remember many."""
        if self._stream is not None:
            return _seen(frame, self._stream.image_size)
        return self._first_look(frame)

    def step_seen(self, seen: SeenFrame) -> WindowPrediction:
        """`step` with a frame that was looked at before."""
        if self._stream is None:
            self._stream = self._new_stream(seen)
        return self._advance(self._stream, seen)

    def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
        if not 0 < len(members) < self.window:
            raise ValueError(
                f"a window of {self.window} takes 1 to {self.window - 1} members, not {len(members)}"
            )
        stream = self._stream_after(members, anchor)
        return self._advance(stream, _seen(anchor, stream.image_size))

    def snapshot(self) -> dict[str, NDArray[Any]]:
        stream = self._stream
        if stream is None:
            return {}
        state = _StreamState(
            cache={name: _as_array(tensor) for name, tensor in stream.cache.snapshot().items()},
            image_size=stream.image_size,
            frame_size=stream.frame_size,
            indices=stream.indices,
            first_index=stream.first_index,
            estimation=None if stream.estimator is None else stream.estimator.state,
        )
        return to_arrays(state)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        if not state:
            self._stream = None
            return
        restored = from_arrays(_StreamState, state)
        cache = self._network.new_cache(*restored.image_size, dtype=self._dtype)
        cache.restore({name: _as_tensor(array, self._dtype) for name, array in restored.cache.items()})
        self._stream = _Stream(
            cache=cache,
            image_size=restored.image_size,
            frame_size=restored.frame_size,
            indices=restored.indices,
            first_index=restored.first_index,
            estimator=self._new_estimator(restored.estimation),
        )

    def _first_look(self, frame: Frame) -> SeenFrame:
        """The frame in the size that a stream of such frames has."""
        height, width = frame.image.shape[:2]
        return _seen(frame, network_size(height, width, self._network.config, self._config))

    def _new_stream(self, seen: SeenFrame) -> _Stream:
        size = (seen.image.shape[0], seen.image.shape[1])
        needed = streaming_bytes(self._network.config, *size, self._dtype)
        require_memory(needed, self._device, f"a stream of {size[1]}×{size[0]} pixels through {self._name}")
        return _Stream(
            cache=self._network.new_cache(*size, dtype=self._dtype),
            image_size=size,
            frame_size=seen.frame_size,
            indices=[],
            first_index=seen.index,
            estimator=self._new_estimator(),
        )

    def _new_estimator(self, state: EstimatorState | None = None) -> WindowEstimator | None:
        config = self._config.estimation
        return None if config is None else WindowEstimator(config, self.window, state)

    def _stream_after(self, members: Sequence[Frame], anchor: Frame) -> _Stream:
        """A stream that has seen the members. Loops come in groups that share them, so the last are kept."""
        key = (
            anchor.image.shape,
            *((frame.index, frame.intrinsics, _fingerprint(frame)) for frame in members),
        )
        ready = self._loop_streams.pop(key, None)
        if ready is None:
            ready = replace(self._new_stream(self._first_look(anchor)), first_index=members[0].index)
            for frame in members:
                self._advance(ready, _seen(frame, ready.image_size))
        if ready.cache.nbytes > _LOOP_STREAM_BYTES:
            return ready  # a copy of a large network's cache costs more than it spares
        self._loop_streams[key] = ready
        while sum(stream.cache.nbytes for stream in self._loop_streams.values()) > _LOOP_STREAM_BYTES:
            self._loop_streams.popitem(last=False)
        cache = self._network.new_cache(*ready.image_size, dtype=self._dtype)
        cache.restore(ready.cache.snapshot())
        return replace(ready, cache=cache, estimator=copy(ready.estimator))

    def _advance(self, stream: _Stream, frame: SeenFrame) -> WindowPrediction:
        """One network step and, where the preset has it, the estimation of the window."""
        (height, width), image = stream.image_size, frame.image
        known = None if frame.intrinsics is None else frame.intrinsics.resized(width, height)
        output = self._run_network(image, known, stream.cache)
        camera = known or _predicted_camera(output, height, width)
        window = _predicted_window(output, camera, along_rays=self._network.config.point_kind == "depth")
        if stream.estimator is not None:
            ages = output.pairs[:, 2]
            window = stream.estimator.step(window, output.matches, ages, image, camera)
        stream.add_index(frame.index, self.window)
        members = np.array([stream.index_at(int(age), output.gauge) for age in window.ages], np.int64)
        order = np.argsort(members)
        return WindowPrediction(
            anchor=frame.index,
            members=members[order],
            member_from_anchor_rotation=window.rotation[order],
            member_from_anchor_translation=window.translation[order],
            confidence=np.ones(len(members)),
            covariance=None if window.covariance is None else window.covariance[order],
            covariance_alone=None if window.covariance_alone is None else window.covariance_alone[order],
            points_in_anchor=window.points,
            points_confidence=_points_confidence(window, is_estimated=stream.estimator is not None),
            intrinsics=frame.intrinsics or camera.resized(stream.frame_size[1], stream.frame_size[0]),
            descriptor=describe(output.tokens[0]),
        )

    def _run_network(
        self, image: NDArray[np.uint8], known: Pinhole | None, cache: ImageCache
    ) -> WindowOutput:
        # Colours lie together, here as in an image file: (1, 3, H, W), but in that order only by name.
        pixels = torch.from_numpy(image).to(self._device)[None].permute(0, 3, 1, 2).float() / 255
        camera = None if known is None else _camera_tensor(known, self._device)
        with torch.inference_mode(), backbone_precision(self._device, self._dtype):
            return self._network.stream(pixels, cache, camera)


_LOOP_STREAM_BYTES = 64 * 2**20
"""Memory of the caches of streams that loops were related to, in all."""
_GRID_ROWS, _GRID_COLUMNS = range(2, 13), range(2, 25)
"""Rows and columns of tokens that images of the correlation preset may have: narrower ones hold no window of
cells, and larger ones take more time than it was made for."""


@dataclass(frozen=True, kw_only=True)
class SeenFrame:
    """A frame as a network sees it."""

    index: int
    image: NDArray[np.uint8]
    """(h, w, 3) RGB of the network's size"""
    frame_size: tuple[int, int]
    """(H, W) of the frame"""
    intrinsics: Pinhole | None
    """of the frame"""


def _seen(frame: Frame, size: tuple[int, int]) -> SeenFrame:
    """The frame resized to (h, w)."""
    resized = cv2.resize(frame.image, (size[1], size[0]), interpolation=cv2.INTER_AREA)
    return SeenFrame(
        index=frame.index,
        image=np.asarray(resized, np.uint8),
        frame_size=(frame.image.shape[0], frame.image.shape[1]),
        intrinsics=frame.intrinsics,
    )


@dataclass
class _Stream:
    """One stream of frames through the network."""

    cache: ImageCache
    image_size: tuple[int, int]
    """(H, W) of the network's images"""
    frame_size: tuple[int, int]
    """(H, W) of the frames"""
    indices: list[int]
    """Indices of the frames that a window can name, newest first: that of a frame is at its age"""
    first_index: int
    """Index of the stream's first frame, to which a network in the `first` gauge relates all others"""
    estimator: WindowEstimator | None
    """Of the correlation preset"""

    def index_at(self, age: int, gauge: Gauge) -> int:
        """Index of a member that is so many frames old."""
        return self.indices[age] if gauge == "current" else self.first_index

    def add_index(self, index: int, window: int) -> None:
        """Takes in the current frame and forgets those that no window can name any more."""
        max_age = window - 1 if self.estimator is None else self.estimator.max_age
        self.indices = [index, *self.indices[:max_age]]


@dataclass(frozen=True, kw_only=True)
class _StreamState:
    """What a snapshot holds of a stream."""

    cache: dict[str, NDArray[Any]]
    """`ImageCache.snapshot`"""
    image_size: tuple[int, int]
    frame_size: tuple[int, int]
    indices: list[int]
    first_index: int
    estimation: EstimatorState | None


@lru_cache(maxsize=16)
def network_size(
    height: int, width: int, network: NetworkConfig, config: NetworkPredictorConfig
) -> tuple[int, int]:
    """(H, W) to which frames are resized: multiples of the patch, near the frame's aspect ratio."""
    patch, stem = network.patch_size, network.matching
    if stem is None:
        return patch_aligned_size(height, width, long_side=config.long_side, patch_size=patch)

    def misfit(grid: tuple[int, int]) -> float:
        stretch = abs(np.log(grid[1] * height / (grid[0] * width)))
        excess = abs(np.log(grid[0] * grid[1] * patch**2 / stem.area))
        return float(stretch + config.area_weight * excess)

    rows, cols = min(((h, w) for h in _GRID_ROWS for w in _GRID_COLUMNS), key=misfit)
    return rows * patch, cols * patch


def describe(tokens: Tensor) -> NDArray[np.float32]:
    """Global description (3 C,) of an image from its encoder tokens (N, C): mean, spread and peak."""
    parts = [tokens.mean(0), tokens.std(0), tokens.amax(0)]
    return np.asarray(torch.cat(parts).float().cpu().numpy(), np.float32)


def _fingerprint(frame: Frame) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(frame.image).data, digest_size=16).digest()


def _points_confidence(window: WindowEstimate, *, is_estimated: bool) -> NDArray[np.float32]:
    """Of its points, as probabilities: from the spread of estimated depths, or from what the network says."""
    if not is_estimated:
        return from_learned(window.confidence)
    with np.errstate(divide="ignore"):
        return WINDOW_ESTIMATION.probability(1 / np.sqrt(information_of(window.confidence)))


def _as_array(tensor: Tensor) -> NDArray[Any]:
    """The tensor in numpy, which has no bfloat16 and gets its bits."""
    bits = tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor
    return bits.cpu().numpy()


def _as_tensor(array: NDArray[Any], dtype: torch.dtype) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(dtype) if tensor.dtype is torch.int16 else tensor


def _camera_tensor(camera: Pinhole, device: torch.device) -> Tensor:
    return torch.tensor([[camera.fx, camera.fy, camera.cx, camera.cy]], dtype=torch.float32, device=device)


def _predicted_window(output: WindowOutput, camera: Pinhole, *, along_rays: bool) -> WindowEstimate:
    """What the network predicts of the first stream of an output; `along_rays` puts depths on the rays of
    `camera`."""
    ages = output.ages[0].cpu().numpy()
    members = np.flatnonzero(ages > 0)
    pose = output.poses[-1][0].double().cpu().numpy()[members]
    points = output.points[0].float().cpu().numpy()
    if along_rays:
        small = camera.resized(points.shape[1], points.shape[0])
        points = small.unproject_map(points[..., 2]).astype(np.float32)
    member_from_anchor = SE3(rotation_from_quat(pose[:, [6, 3, 4, 5]]), pose[:, :3])
    if output.gauge == "first":
        member_from_anchor = member_from_anchor.inverse()
    return WindowEstimate(
        ages=ages[members],
        rotation=member_from_anchor.rotation.astype(np.float64),
        translation=member_from_anchor.translation.astype(np.float64),
        points=points,
        confidence=output.confidence[0].float().cpu().numpy(),
    )


def _predicted_camera(output: WindowOutput, height: int, width: int) -> Pinhole:
    """The camera of the field of view that the camera head predicts, median over the window."""
    vertical, horizontal = output.poses[-1][0, :, 7:].median(0).values.tolist()
    return camera_from_fov(vertical, horizontal, height, width)
