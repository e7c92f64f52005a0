"""A batch of training clips, and how its ground truth is read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Clips:
    """A batch of training clips."""

    images: Tensor
    """(B, S, 3, H, W) in 0–1"""
    cameras: Tensor
    """(B, S, 4) fx, fy, cx, cy in pixels"""
    depth: Tensor
    """(B, S, H, W) along z, 0 where unknown"""
    camera_from_world: Tensor
    """(B, S, 4, 4)"""

    def to(self, device: torch.device | str) -> Clips:
        return Clips(*(x.to(device) for x in (self.images, self.cameras, self.depth, self.camera_from_world)))


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of x (B, ...) where the mask holds, first within each entry of B, then over them."""
    axes = tuple(range(1, x.ndim))
    return (torch.where(mask, x, 0).sum(axes) / mask.sum(axes).clamp(min=1)).mean()


def cell_depth(depth: Tensor, stride: int) -> Tensor:
    """Depth (B, H, W) at the middle of stride × stride cells; 0 where unknown or across an edge.

    With an even stride the middle lies between four pixels: inverse depth, which is linear on planes, is
    averaged, unless the four differ by more than a tenth.
    """
    if stride == 1:
        return depth
    low, high = (stride - 1) // 2, stride // 2
    four = torch.stack([depth[:, y::stride, x::stride] for y in (low, high) for x in (low, high)])
    smallest, largest = four.amin(0), four.amax(0)
    smooth = (smallest > 0) & (largest < 1.1 * smallest)
    return torch.where(smooth, 1 / (1 / four.clamp(min=1e-6)).mean(0), 0)
