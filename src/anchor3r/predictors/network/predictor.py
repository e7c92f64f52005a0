"""The network as a predictor: frames in, window-relative poses and the anchor's point map out."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.model.cache import ImageCache
from anchor3r.model.checkpoints import file_digest, load_tensors, read_tensors
from anchor3r.model.config import NetworkConfig
from anchor3r.model.network import Anchor3RNetwork, WindowOutput
from anchor3r.predictors.images import patch_aligned_size
from anchor3r.predictors.interface import Predictor, WindowPrediction
from anchor3r.predictors.network.continuity import compare_units, with_memory
from anchor3r.predictors.network.photometric_alignment import grey
from anchor3r.predictors.network.reading import Reading
from anchor3r.predictors.network.refining import refined
from anchor3r.predictors.network.window_adjustment import AdjustmentConfig
from anchor3r.sources.frame import Frame


def load_network(path: Path | str, *, window: int | None = None) -> Anchor3RNetwork:
    """A network from one of our checkpoints, ready for inference; `window` None is the trained one."""
    tensors, text = read_tensors(path)
    if text is None:
        raise Anchor3RError(f"{path}: holds no network configuration; convert foreign weights first")
    config = NetworkConfig.from_json(text)
    if window is not None and window != config.window:
        if config.offset_embedding:
            raise Anchor3RError(f"{path}: was trained for windows of {config.window} frames, not {window}")
        config = replace(config, window=window)
    network = Anchor3RNetwork(config)
    load_tensors(network, tensors, source=str(path))
    return network.eval().requires_grad_(False)


@dataclass(frozen=True, kw_only=True)
class NetworkPredictorConfig:
    """How frames are brought to the network and its matches used."""

    long_side: int = 518
    """Longer image side of the transformer presets, in pixels."""
    area: int = 12_800
    """Pixels of an image of the correlation preset; its sides follow the aspect ratio."""
    compile: bool = False
    """Whether `torch.compile` translates encoder and heads: a minute at the start, faster steps after it."""
    adjust: bool = True
    """Whether the correlation preset's matches sharpen poses and depths."""
    adjustment: AdjustmentConfig = AdjustmentConfig()
    """How."""
    keyframe_interval: int = 8
    """Every so many frames one stays in sight when it is too old for the network."""
    keyframes: int = 3
    """How many such frames windows are measured on besides their own: more are slower and more exact."""
    unit_sigma: float = 0.3
    """Spread of the logarithm of a window's predicted size, counted as if windows were independent."""


class NetworkPredictor(Predictor):
    """Streams frames through a network with a bounded cache."""

    def __init__(
        self,
        network: Anchor3RNetwork,
        *,
        name: str,
        config: NetworkPredictorConfig | None = None,
        device: torch.device | str | None = None,
        digest: str | None = None,
    ) -> None:
        """`device` None is a GPU if there is one; `digest` is that of the file of weights."""
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._network = network.to(self._device)
        self._name, self._config = name, config or NetworkPredictorConfig()
        self._digest = digest
        self._stream: _Stream | None = None
        self._places: OrderedDict[Hashable, _Stream] = OrderedDict()
        if self._config.compile:
            self._network.compile_parts()
        if network.config.matching is not None:
            cv2.setNumThreads(1)  # on images of some thousand pixels its threads cost more than they do
            # Convolutions take a quarter less of the time.
            self._network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @staticmethod
    def load(path: Path | str, *, window: int | None = None) -> NetworkPredictor:
        """From one of our checkpoints."""
        network, digest = load_network(path, window=window), file_digest(path)
        return NetworkPredictor(network, name=f"network:{Path(path).stem}", digest=digest)

    @property
    def name(self) -> str:
        return self._name

    @property
    def window(self) -> int:
        return self._network.config.window

    @property
    def settings(self) -> dict[str, Any]:
        return {"weights": self._digest, **asdict(self._config)}

    def reset(self) -> None:
        self._stream = None

    def step(self, frame: Frame) -> WindowPrediction:
        if self._stream is None:
            self._stream = self._new_stream(frame)
        return self._advance(self._stream, frame)

    def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
        if not 0 < len(members) < self.window:
            raise ValueError(
                f"a window of {self.window} takes 1 to {self.window - 1} members, not {len(members)}"
            )
        return self._advance(self._prepared(members, anchor), anchor)

    def snapshot(self) -> dict[str, NDArray]:
        if self._stream is None:
            return {}
        state = {f"cache.{k}": v.cpu().numpy() for k, v in self._stream.cache.snapshot().items()}
        state["num_frames"] = np.array(self._stream.num_frames)
        state["numbers"] = np.array(list(self._stream.seen), np.int64)
        state["indices"] = np.array([seen.index for seen in self._stream.seen.values()], np.int64)
        state["images"] = np.stack([seen.image for seen in self._stream.seen.values()])
        state["size"] = np.array(self._stream.size)
        state["frame_size"] = np.array(self._stream.frame_size)
        state["unit_variance"] = np.array(self._stream.unit_variance)
        if self._stream.last is not None:
            last = self._stream.last
            state |= {f"last.{part}": getattr(last, part) for part in _KEPT_OF_LAST}
        return state

    def restore(self, state: Mapping[str, NDArray]) -> None:
        if not state:
            self._stream = None
            return
        height, width = (int(v) for v in state["size"])
        cache = self._network.new_cache(height, width)
        prefix = "cache."
        cache.restore(
            {k[len(prefix) :]: torch.from_numpy(v) for k, v in state.items() if k.startswith(prefix)}
        )
        frame_height, frame_width = (int(v) for v in state["frame_size"])
        last = None
        if "last.points" in state:
            last = Reading(covariance=None, **{part: state[f"last.{part}"] for part in _KEPT_OF_LAST})
        self._stream = _Stream(
            cache,
            (height, width),
            (frame_height, frame_width),
            int(state["num_frames"]),
            {
                int(number): _Seen(int(index), image)
                for number, index, image in zip(
                    state["numbers"], state["indices"], state["images"], strict=True
                )
            },
            last,
            float(state["unit_variance"]),
        )

    def _prepared(self, members: Sequence[Frame], anchor: Frame) -> _Stream:
        """A stream that has seen the members. Loops come in groups that share them, so the last are kept."""
        key = (
            anchor.image.shape,
            *((frame.index, frame.intrinsics, _fingerprint(frame)) for frame in members),
        )
        ready = self._places.pop(key, None)
        if ready is None:
            ready = self._new_stream(anchor)
            for frame in members:
                self._advance(ready, frame)
        if ready.cache.nbytes > _PLACES_BYTES:
            return ready  # a copy of a large network's cache costs more than it spares
        self._places[key] = ready
        while sum(stream.cache.nbytes for stream in self._places.values()) > _PLACES_BYTES:
            self._places.popitem(last=False)
        cache = self._network.new_cache(*ready.size)
        cache.restore(ready.cache.snapshot())
        return replace(ready, cache=cache)

    def _remember(self, stream: _Stream, seen: _Seen) -> None:
        """Takes the newest frame into a stream and forgets those that are neither recent nor keyframes."""
        frames = {**stream.seen, stream.num_frames: seen}
        stream.num_frames += 1
        oldest = stream.num_frames - self.window
        keyframes = [n for n in frames if n < oldest and n % self._config.keyframe_interval == 0]
        kept = keyframes[max(0, len(keyframes) - self._config.keyframes) :]
        stream.seen = {n: frame for n, frame in frames.items() if n >= oldest or n in kept}

    def _steadied(self, stream: _Stream, reading: Reading, camera: Pinhole) -> Reading:
        """The window in the stream's unit: carried over from window to window, pulled to the network's own.

        A Kalman filter on one number, the logarithm of the window's unit. Geometry that two windows share
        ties their units closely but drifts in the long run; what the network has learned about sizes is
        vague but does not drift.
        """
        log_unit, sigma = compare_units(reading, stream.last, camera)
        if stream.last is not None and sigma is not None:
            predicted = stream.unit_variance + sigma**2
            gain = predicted / (predicted + self._config.unit_sigma**2)
            stream.unit_variance = (1 - gain) * predicted
            reading = reading.scaled(float(np.exp((1 - gain) * log_unit)))
            if reading.covariance is not None:  # it was adjusted, and its confidence is one in depths
                reading = with_memory(reading, stream.last, camera)
        stream.last = replace(reading, covariance=None)
        return reading

    def _new_stream(self, frame: Frame) -> _Stream:
        frame_size = (frame.image.shape[0], frame.image.shape[1])
        size = network_size(*frame_size, self._network.config, self._config)
        unit_variance = self._config.unit_sigma**2
        return _Stream(self._network.new_cache(*size), size, frame_size, 0, {}, None, unit_variance)

    def _advance(self, stream: _Stream, frame: Frame) -> WindowPrediction:
        """One network step and what follows from it."""
        height, width = stream.size
        image = cv2.resize(frame.image, (width, height), interpolation=cv2.INTER_AREA)
        # Colours lie together, here as in an image file: (1, 3, H, W), but in that order only by name.
        pixels = torch.from_numpy(image).to(self._device)[None].permute(0, 3, 1, 2).float() / 255
        known = None if frame.intrinsics is None else frame.intrinsics.resized(width, height)
        camera = None if known is None else _camera_tensor(known, self._device)
        with torch.inference_mode():
            output = self._network.stream(pixels, stream.cache, camera)
        self._remember(stream, _Seen(frame.index, grey(image)))
        seen_with = known or _estimated_camera(output, height, width)
        reading = Reading.of(output, seen_with, along_rays=self._network.config.point_kind == "depth")
        if output.matches is not None and self._config.adjust:
            images = {age: seen.image for age, seen in stream.by_age().items()}
            reading = refined(
                reading, output.matches, output.pairs[:, 2], images, seen_with, stream.last,
                self._config.adjustment,
            )  # fmt: skip
        reading = self._steadied(stream, reading, seen_with).loosened()
        by_age = stream.by_age()
        members = np.array([by_age[int(age)].index for age in reading.ages], np.int64)
        order = np.argsort(members)
        return WindowPrediction(
            anchor=frame.index,
            members=members[order],
            member_from_anchor_rotation=reading.rotation[order],
            member_from_anchor_translation=reading.translation[order],
            confidence=np.ones(len(members)),
            covariance=None if reading.covariance is None else reading.covariance[order],
            points_in_anchor=reading.points,
            points_confidence=reading.confidence,
            intrinsics=frame.intrinsics or seen_with.resized(stream.frame_size[1], stream.frame_size[0]),
            descriptor=describe(output.tokens[0]),
        )


_PLACES_BYTES = 64 * 2**20
"""Of the caches of places that loops were related to, in all."""
_KEPT_OF_LAST = ("ages", "rotation", "translation", "points", "confidence")


@dataclass(frozen=True)
class _Seen:
    """What is kept of a frame."""

    index: int
    image: NDArray[np.uint8]
    """(H, W), grey, of the network's size"""


@dataclass
class _Stream:
    """State of one stream."""

    cache: ImageCache
    size: tuple[int, int]
    """(H, W) of the network's images"""
    frame_size: tuple[int, int]
    """(H, W) of the frames"""
    num_frames: int
    """Taken so far"""
    seen: dict[int, _Seen]
    """Frames of the window and older keyframes, oldest first, by how many came before them"""
    last: Reading | None
    """The window before, in the stream's unit, without covariances"""
    unit_variance: float
    """Of the logarithm of the stream's unit"""

    def by_age(self) -> dict[int, _Seen]:
        """The same frames by how many came after them."""
        return {self.num_frames - 1 - number: seen for number, seen in self.seen.items()}


def network_size(
    height: int, width: int, network: NetworkConfig, config: NetworkPredictorConfig
) -> tuple[int, int]:
    """(H, W) to which frames are resized: multiples of the patch, near the frame's aspect ratio."""
    patch = network.patch_size
    if network.matching is None:
        return patch_aligned_size(height, width, long_side=config.long_side, patch_size=patch)

    def misfit(grid: tuple[int, int]) -> float:
        stretch = abs(np.log(grid[1] * height / (grid[0] * width)))
        return float(stretch + 0.5 * abs(np.log(grid[0] * grid[1] * patch**2 / config.area)))

    rows, cols = min(((h, w) for h in range(2, 13) for w in range(2, 25)), key=misfit)
    return rows * patch, cols * patch


def describe(tokens: Tensor) -> NDArray[np.float32]:
    """Global description (3 C,) of an image from its encoder tokens (N, C): mean, spread and peak."""
    parts = [tokens.mean(0), tokens.std(0), tokens.amax(0)]
    return torch.cat(parts).float().cpu().numpy()


def _fingerprint(frame: Frame) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(frame.image).data, digest_size=16).digest()


def _camera_tensor(camera: Pinhole, device: torch.device) -> Tensor:
    return torch.tensor([[camera.fx, camera.fy, camera.cx, camera.cy]], dtype=torch.float32, device=device)


def _estimated_camera(output: WindowOutput, height: int, width: int) -> Pinhole:
    """The camera of the field of view that the camera head predicts, median over the window."""
    fov = output.poses[-1][0, :, 7:].median(0).values.clamp(0.2, 2.8)
    fy, fx = (torch.tensor([height, width], device=fov.device) / 2 / torch.tan(fov / 2)).tolist()
    return Pinhole(fx, fy, (width - 1) / 2, (height - 1) / 2, width, height)
