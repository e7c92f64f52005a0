"""Which frames of a sequence make a clip, and how their pictures are varied.

Video is sampled with a random interval, sometimes with a varying one, sometimes shuffled within blocks;
unordered pictures are chained by how much of each other they see. All randomness comes from the generator
given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from anchor3r.geometry import SE3, rotation_angle
from anchor3r.kernels import Array, kernel
from anchor3r.sources.frame import Frame
from anchor3r.training.clips import Clips

_LARGEST_BILINEAR_SHRINK = 1.5
"""Pictures that shrink by more are averaged over areas; up to it bilinear weights leave no pixel out."""


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How a data set's sequences are cut into clips."""

    max_interval: int = 5
    """Largest step between frames of a clip."""
    video_probability: float = 1.0
    """Chance that a clip keeps the order of time; otherwise it is shuffled within blocks."""
    fixed_probability: float = 0.9
    """Chance that all steps of a clip are equal."""
    block: int = 16
    """Frames of a clip that are shuffled among each other; the blocks keep the order of time, so that what a
    window sees is never far apart."""
    ordered: bool = True
    """Whether the sequence is a video; pictures without order are chained by overlap."""
    overlap: Literal["pose", "depth"] = "pose"
    """What pictures without order are chained by: how near and parallel their cameras are, or how much of
    each other they see by their depths, which is measured once for a sequence and kept. Sequences without
    depth are chained by pose."""
    reverse_probability: float = 0.5
    """Chance that a clip runs backwards. The paper does not say so."""
    candidates: int = 1
    """Clips of a video that are drawn, of which the one in which the camera turns most is used. The paper
    does not say so; a car mostly goes straight, and from that nothing is learned about turning."""


def sample_video(
    length: int, count: int, rng: np.random.Generator, config: SamplingConfig
) -> NDArray[np.int64]:
    """(count,) frame indices of a clip out of a video of `length` frames."""
    if length < count:
        raise ValueError(f"a clip of {count} frames cannot come from a sequence of {length}")
    largest = min(config.max_interval, (length - 1) // max(1, count - 1))
    if rng.random() < config.fixed_probability:
        steps = np.full(count - 1, rng.integers(1, largest + 1))
    else:
        steps = rng.integers(1, largest + 1, count - 1)
    offsets = np.concatenate([[0], np.cumsum(steps)])
    indices = rng.integers(0, length - offsets[-1]) + offsets
    if rng.random() >= config.video_probability:
        indices = shuffle_within_blocks(indices, rng, config.block)
    return indices[::-1].copy() if rng.random() < config.reverse_probability else indices


def total_turn(camera_from_world: SE3) -> float:
    """Radians that a camera turns along its path, frame by frame."""
    rotation = camera_from_world.rotation
    return float(rotation_angle(rotation[1:] @ np.swapaxes(rotation[:-1], -1, -2)).sum())


def shuffle_within_blocks(
    indices: NDArray[np.int64], rng: np.random.Generator, block: int
) -> NDArray[np.int64]:
    """Indices with those of each block of neighbours in random order; the blocks stay where they are."""
    blocks = [indices[i : i + block] for i in range(0, len(indices), block)]
    return np.concatenate([rng.permutation(mixed) for mixed in blocks])


def sample_by_pose(camera_from_world: SE3, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(count,) indices of pictures without order, each chosen among those that look at what the last one saw.

    Two pictures overlap more the nearer their centres, in units of the typical spacing, and the smaller the
    angle between them; pictures of one clip are all different.
    """
    total = len(camera_from_world)
    if total < count:
        raise ValueError(f"a clip of {count} frames cannot come from a sequence of {total}")
    centers = camera_from_world.center()
    chosen = [int(rng.integers(total))]
    while len(chosen) < count:
        last = chosen[-1]
        distance = np.linalg.norm(centers - centers[last], axis=1)
        spacing = np.median(np.partition(distance, min(8, total - 1))[: min(9, total)]) + 1e-9
        turn = camera_from_world.rotation @ camera_from_world.rotation[last].T
        score = np.exp(-distance / (4 * spacing) - rotation_angle(turn) / np.radians(20)) + 1e-12
        score[chosen] = 0
        chosen.append(int(rng.choice(total, p=score / score.sum())))
    return np.array(chosen)


def sample_by_overlap(
    overlap: NDArray[np.float32], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(count,) indices of pictures without order, each chosen by how much of the last one it sees; overlap
    (n, n). Pictures of one clip are all different."""
    if len(overlap) < count:
        raise ValueError(f"a clip of {count} frames cannot come from a sequence of {len(overlap)}")
    chosen = [int(rng.integers(len(overlap)))]
    while len(chosen) < count:
        score = overlap[chosen[-1]] + 1e-6
        score[chosen] = 0
        chosen.append(int(rng.choice(len(overlap), p=score / score.sum(dtype=np.float64))))
    return np.array(chosen)


@dataclass(frozen=True, kw_only=True)
class AspectJitter:
    """Image sizes drawn from a range of aspect ratios, as the paper resizes and jitters."""

    long_side: int = 518
    """Largest side in pixels."""
    multiple: int = 14
    """Sides are multiples of the encoder's patch."""
    aspects: tuple[float, float] = (0.33, 1.0)
    """Range of the shorter side as a part of the longer one, as VGGT draws it."""
    portrait_probability: float = 0.25
    """Chance that the longer side stands."""

    def draw(self, rng: np.random.Generator) -> tuple[int, int]:
        """(H, W)"""
        long = self.long_side // self.multiple
        short = max(1, round(long * rng.uniform(*self.aspects)))
        size = (short * self.multiple, long * self.multiple)
        return size[::-1] if rng.random() < self.portrait_probability else size


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """How pictures are varied; the same for all frames of a clip unless said otherwise. None of it is the
    paper's, which varies aspect ratios alone."""

    min_crop: float = 0.6
    """Smallest share of the picture's sides that a crop keeps: narrows the field of view."""
    brightness: float = 0.2
    """Largest relative change of brightness."""
    contrast: float = 0.25
    """Largest relative change of contrast."""
    saturation: float = 0.4
    """Largest relative change of saturation."""
    grey_probability: float = 0.25
    """Chance that a clip loses its colours."""
    flicker: float = 0.05
    """Largest relative change of brightness from frame to frame."""


NO_AUGMENTATION = AugmentConfig(
    min_crop=1.0, brightness=0.0, contrast=0.0, saturation=0.0, grey_probability=0.0, flicker=0.0
)
"""Pictures as they are."""


def make_clip(
    frames: Iterable[Frame],
    count: int,
    size: tuple[int, int],
    rng: np.random.Generator,
    config: AugmentConfig,
) -> Clips:
    """`count` frames with pose and intrinsics, with or without depth -> a batch of one clip at `size` (H, W).

    Frames may differ in size: each is cropped by the same parts. They are used one by one as they come, so
    that the memory of one serves the next: asking the system for it anew takes longer than all else but
    decoding.
    """
    parts = (rng.uniform(config.min_crop, 1), rng.random(), rng.random())
    images = _handed_over((count, 3, *size), torch.uint8)
    depths = _handed_over((count, *size), torch.float32)
    weights: Tensor | None = None
    cameras, poses, confidences = [], [], []
    for k, frame in enumerate(frames):
        if frame.camera_from_world is None or frame.intrinsics is None:
            raise ValueError(f"frame {frame.index} lacks pose or intrinsics: it cannot be trained on")
        left, top, w, h = _crop(frame, size, parts)
        camera = frame.intrinsics.cropped(left, top, w, h).resized(size[1], size[0])
        crop = (slice(top, top + h), slice(left, left + w))
        cv2.split(_resized(frame.image[crop], size), list(images[k].numpy()))
        if frame.depth_m is not None:
            _sample(frame.depth_m[crop], depths[k].numpy())
        if frame.depth_confidence is not None:
            weights = (
                _handed_over(tuple(depths.shape), torch.float32).fill_(1) if weights is None else weights
            )
            _sample(frame.depth_confidence[crop], weights[k].numpy())
        cameras.append([camera.fx, camera.fy, camera.cx, camera.cy])
        poses.append(frame.camera_from_world.matrix())
        confidences.append(frame.pose_confidence)
    trusted = weights is not None or any(confidence != 1 for confidence in confidences)
    return Clips(
        _varied(images, rng, config)[None],
        torch.tensor(cameras, dtype=torch.float32)[None],
        depths[None],
        torch.from_numpy(_from_first(np.stack(poses)).astype(np.float32))[None],
        None if weights is None else weights[None],
        torch.tensor([confidences]) if trusted else None,
    )


def _handed_over(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros; in a worker it lies in the memory that the trainer sees, and is not copied there."""
    if get_worker_info() is None:
        return torch.zeros(shape, dtype=dtype)
    storage = torch.UntypedStorage._new_shared(math.prod(shape) * dtype.itemsize, device="cpu")
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)


def _varied(images: Tensor, rng: np.random.Generator, config: AugmentConfig) -> Tensor:
    """Images (S, 3, H, W) in 0–255 -> in 0–1 with their colours varied; as they are where nothing varies."""
    if replace(config, min_crop=1.0) == NO_AUGMENTATION:
        return images
    scaled = images.permute(0, 2, 3, 1).numpy().astype(np.float32) / np.float32(255)
    return torch.from_numpy(np.ascontiguousarray(vary_colours(scaled, rng, config).transpose(0, 3, 1, 2)))


def _from_first(camera_from_world: NDArray[np.float64]) -> NDArray[np.float64]:
    """Poses (S, 4, 4) with the first camera as world: relative poses stay exact in float32 far from home."""
    return camera_from_world @ np.linalg.inv(camera_from_world[0])


def _crop(
    frame: Frame, size: tuple[int, int], parts: tuple[float, float, float]
) -> tuple[int, int, int, int]:
    """left, top, width, height of a crop that becomes a picture of `size` (H, W): with its aspect ratio, its
    own size and place as parts of what the frame allows, and sides that `_whole_factor` divides."""
    full_h, full_w = frame.image.shape[:2]
    aspect = size[1] / size[0]
    width = min(full_w, full_h * aspect) * parts[0]
    w, h = max(1, round(width)), max(1, min(full_h, round(width / aspect)))
    factor = _whole_factor((h, w), size)
    w, h = w - w % factor, h - h % factor
    return int(parts[1] * (full_w - w + 0.999)), int(parts[2] * (full_h - h + 0.999)), w, h


def _whole_factor(given: Sequence[int], wanted: tuple[int, int]) -> int:
    """How many pixels a side can be averaged to one before a picture is smaller than it is wanted."""
    return max(1, min(given[0] // wanted[0], given[1] // wanted[1]))


def _resized(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Averaged over whole numbers of pixels first, in a tenth of the time that averaging over parts takes."""
    factor = _whole_factor(image.shape, size)
    if factor > 1:
        smaller = (image.shape[1] // factor, image.shape[0] // factor)
        image = np.asarray(cv2.resize(image, smaller, interpolation=cv2.INTER_AREA), np.uint8)
    if image.shape[:2] == size:
        return image
    shrunk = max(given / wanted for given, wanted in zip(image.shape[:2], size, strict=True))
    method = cv2.INTER_AREA if shrunk > _LARGEST_BILINEAR_SHRINK else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, size[::-1], interpolation=method), np.uint8)


def _sample(values: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Values (h, w) at another size, not averaged: between two surfaces there is no depth."""
    rows, columns = (
        ((np.arange(wanted) + 0.5) * given / wanted).astype(int)
        for given, wanted in zip(values.shape, out.shape, strict=True)
    )
    _pick(values, rows, columns, out)


@kernel
def _pick(values: Array, rows: Array, columns: Array, out: Array) -> None:
    for i in range(len(rows)):
        row, target = values[rows[i]], out[i]
        for j in range(len(columns)):
            target[j] = row[columns[j]]


def vary_colours(
    images: NDArray[np.float32], rng: np.random.Generator, config: AugmentConfig
) -> NDArray[np.float32]:
    """Images (S, H, W, 3) in 0–1 with brightness, contrast and saturation changed, or made grey."""
    saturation = 0.0 if rng.random() < config.grey_probability else 1 + rng.uniform(-1, 1) * config.saturation
    grey = (images @ np.array([0.299, 0.587, 0.114], np.float32))[..., None]
    images = grey + np.float32(saturation) * (images - grey)
    gain = (1 + rng.uniform(-1, 1) * config.contrast) * (1 + rng.uniform(-1, 1, len(images)) * config.flicker)
    shift = rng.uniform(-1, 1) * config.brightness
    images = (images - 0.5) * gain[:, None, None, None].astype(np.float32) + np.float32(0.5 + shift)
    return np.clip(images, 0, 1)
