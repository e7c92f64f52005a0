"""Dot products of a cell's descriptors with those in a small square of another map, and their gradient.

In plain torch this gathers a (pairs, cells, side², channels) tensor and scatters its gradient, which took a
third of a training step on the CPU; the compiled loops below touch each descriptor in place and take a tenth
of that. Other devices gather.

Shapes: B pairs, P cells, A descriptors a cell, h × w fine cells, c channels, K = side² neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from anchor3r.kernels import kernel


def local_correlation(own: Tensor, other: Tensor, corner: Tensor, side: int) -> Tensor:
    """own (B, P, A, c), other (B, h, w, c), corner (B, P, 2) x, y of the first cell -> (B, P, A, K)."""
    if own.device.type == "cpu" and own.dtype == torch.float32:
        return _LocalCorrelation.apply(own.contiguous(), other.contiguous(), corner, side)
    b, h, w, c = other.shape
    steps = torch.arange(side, device=corner.device)
    index = ((corner[..., 1, None] + steps) * w)[..., :, None] + (corner[..., 0, None] + steps)[..., None, :]
    index = index.flatten(2) + torch.arange(b, device=corner.device)[:, None, None] * (h * w)
    return own @ F.embedding(index, other.reshape(-1, c)).transpose(2, 3)


class _LocalCorrelation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, other: Tensor, corner: Tensor, side: int) -> Tensor:
        ctx.save_for_backward(own, other, corner)
        ctx.side = side
        out = own.new_empty(*own.shape[:3], side * side)
        _correlate(own.detach().numpy(), other.detach().numpy(), corner.numpy(), side, out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None, None]:
        own, other, corner = ctx.saved_tensors
        grad_own, grad_other = torch.empty_like(own), torch.zeros_like(other)
        _correlate_backward(
            own.detach().numpy(),
            other.detach().numpy(),
            corner.numpy(),
            ctx.side,
            grad_outputs[0].contiguous().numpy(),
            grad_own.numpy(),
            grad_other.numpy(),
        )
        return grad_own, grad_other, None, None


@kernel(fast=True)
def _correlate(own: NDArray, other: NDArray, corner: NDArray, side: int, out: NDArray) -> None:
    channels = own.shape[3]
    for b in range(own.shape[0]):
        for p in range(own.shape[1]):
            x0, y0 = corner[b, p, 0], corner[b, p, 1]
            for a in range(own.shape[2]):
                for dy in range(side):
                    for dx in range(side):
                        dot = np.float32(0)
                        for c in range(channels):
                            dot += own[b, p, a, c] * other[b, y0 + dy, x0 + dx, c]
                        out[b, p, a, dy * side + dx] = dot


@kernel(fast=True)
def _correlate_backward(
    own: NDArray,
    other: NDArray,
    corner: NDArray,
    side: int,
    grad: NDArray,
    grad_own: NDArray,
    grad_other: NDArray,
) -> None:
    channels = own.shape[3]
    for b in range(own.shape[0]):
        for p in range(own.shape[1]):
            x0, y0 = corner[b, p, 0], corner[b, p, 1]
            for a in range(own.shape[2]):
                for c in range(channels):
                    grad_own[b, p, a, c] = 0
                for dy in range(side):
                    for dx in range(side):
                        g = grad[b, p, a, dy * side + dx]
                        for c in range(channels):
                            grad_own[b, p, a, c] += g * other[b, y0 + dy, x0 + dx, c]
                            grad_other[b, y0 + dy, x0 + dx, c] += g * own[b, p, a, c]
