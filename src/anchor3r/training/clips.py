"""A batch of training clips, and how its ground truth is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

_EDGE = 0.1
"""Depth has an edge where four pixels differ by more than this part, and inverse depth bends as much."""


@dataclass(frozen=True)
class Clips:
    """A batch of training clips."""

    images: Tensor
    """(B, S, 3, H, W) in 0–1; of pictures as they are uint8 in 0–255, a quarter of what workers hand over,
    until `to` brings them to a device"""
    cameras: Tensor
    """(B, S, 4) fx, fy, cx, cy in pixels"""
    depth: Tensor
    """(B, S, H, W) along z, 0 where unknown"""
    camera_from_world: Tensor
    """(B, S, 4, 4)"""
    depth_weight: Tensor | None = None
    """(B, S, H, W) in 0–1, how far depth is to be trusted; None where all of it is true"""
    pose_weight: Tensor | None = None
    """(B, S) in 0–1, the same of poses"""
    metric: Tensor | None = None
    """(B,) whether lengths are metres; None where all are"""

    def to(self, device: torch.device | str) -> Clips:
        """On a device, with images in 0–1."""
        return self._each(lambda x: x.to(device).float() / 255 if x.dtype == torch.uint8 else x.to(device))

    def first_frames(self, count: int) -> Clips:
        return self._each(lambda x: x if x.ndim == 1 else x[:, :count])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Clips:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: change(x) for name, x in given.items() if x is not None})


def stack_clips(clips: Sequence[Clips]) -> Clips:
    """Batches of clips as one batch, cut to the length of the shortest."""
    if len(clips) == 1:
        return clips[0]
    length = min(clip.images.shape[1] for clip in clips)
    clips = [clip.first_frames(length) for clip in clips]
    depth_weight = pose_weight = None
    if any(clip.depth_weight is not None for clip in clips):
        depth_weight = torch.cat([_or_ones(c.depth_weight, c.depth) for c in clips])
        pose_weight = torch.cat([_or_ones(c.pose_weight, c.depth[..., 0, 0]) for c in clips])
    metric = None
    if any(clip.metric is not None for clip in clips):
        metric = torch.cat([_or_ones(c.metric, c.depth[:, 0, 0, 0]).bool() for c in clips])
    plain = ("images", "cameras", "depth", "camera_from_world")
    tensors = {name: torch.cat([getattr(clip, name) for clip in clips]) for name in plain}
    return Clips(**tensors, depth_weight=depth_weight, pose_weight=pose_weight, metric=metric)


def _or_ones(weight: Tensor | None, like: Tensor) -> Tensor:
    return torch.ones_like(like) if weight is None else weight


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of x (B, ...) where the mask holds, first within each entry of B, then over them."""
    axes = tuple(range(1, x.ndim))
    return (torch.where(mask, x, 0).sum(axes) / mask.sum(axes).clamp(min=1)).mean()


def cell_depth(depth: Tensor, stride: int) -> Tensor:
    """Depth (B, H, W) at the middle of stride × stride cells; 0 where unknown or across an edge.

    With an even stride the middle lies between four pixels, and inverse depth, which is linear on planes, is
    averaged. A plane seen at a grazing angle is no edge, however much its pixels differ.
    """
    if stride == 1:
        return depth
    inverse = torch.where(depth > 0, 1 / depth.clamp(min=1e-6), 0)
    around = F.pad(inverse[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    bend = torch.maximum(
        (around[:, :-2, 1:-1] - 2 * inverse + around[:, 2:, 1:-1]).abs(),
        (around[:, 1:-1, :-2] - 2 * inverse + around[:, 1:-1, 2:]).abs(),
    )
    four, bends = (_middle_pixels(x, stride) for x in (inverse, bend))
    smallest, largest = four.amin(0), four.amax(0)
    flat = (largest < (1 + _EDGE) * smallest) | (bends < _EDGE * four).all(0)
    return torch.where((smallest > 0) & flat, 1 / four.mean(0).clamp(min=1e-9), 0)


def _middle_pixels(x: Tensor, stride: int) -> Tensor:
    """(B, H, W) -> (4, B, H / stride, W / stride): the pixels around the middle of each cell."""
    low, high = (stride - 1) // 2, stride // 2
    return torch.stack([x[:, i::stride, j::stride] for i in (low, high) for j in (low, high)])
