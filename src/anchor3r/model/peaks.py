"""Where each row of similarities peaks: the kernel behind a coarse match where no gradient is wanted.

In plain torch, finding the place of a maximum and summing exponentials over all pairs of cells took a quarter
of a streaming step on one core; the compiled loop passes over a row while it is near, and takes a fifth of
that.

Shapes: P cells, Q = h w cells of the other image.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anchor3r.kernels import kernel

_BLOCK = 16
_LOWEST = np.float32(-100)
"""Differences of similarities below this are taken for this: their exponentials are nothing."""


def peaks(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """logits (P, Q) float32 on the CPU -> cell (P, 2) x, y of the soft maximum in the 3×3 cells around the
    best one, and the share (P,) of all mass in them."""
    cell, share = logits.new_empty(len(logits), 2), logits.new_empty(len(logits))
    _peaks(logits.numpy(), width, cell.numpy(), share.numpy())
    return cell, share


def has_kernel(descriptors: Tensor) -> bool:
    """Whether `peaks` takes products of such descriptors."""
    return descriptors.device.type == "cpu" and descriptors.dtype == torch.float32


@kernel(fast=True)
def _exponential(x: np.float32) -> np.float32:
    """e^x for x <= 0 to 5e-5, by operations that a processor does eight at a time."""
    x = (x if x > _LOWEST else _LOWEST) * np.float32(1 / 256)
    power = np.float32(1) + x * (np.float32(1) + np.float32(0.5) * x)
    for _ in range(8):
        power *= power
    return power


@kernel(fast=True)
def _peaks(logits: NDArray, width: int, cell: NDArray, share: NDArray) -> None:
    num_rows, num_cells = logits.shape
    height = num_cells // width
    num_blocks = num_cells // _BLOCK  # and a rest
    highest = np.empty(num_blocks + 1, np.float32)
    for p in range(num_rows):
        row = logits[p]
        for block in range(num_blocks):
            value = row[block * _BLOCK]
            for q in range(_BLOCK):
                value = max(value, row[block * _BLOCK + q])
            highest[block] = value
        highest[num_blocks] = row[num_cells - 1]
        for q in range(num_blocks * _BLOCK, num_cells):
            highest[num_blocks] = max(highest[num_blocks], row[q])
        top = highest.max()
        total = np.float32(0)
        for q in range(num_cells):
            total += _exponential(row[q] - top)
        best = _BLOCK * int(np.argmax(highest))
        while row[best] < top:
            best += 1
        x, y = best % width, best // width
        mass, sum_x, sum_y = np.float32(0), np.float32(0), np.float32(0)
        for v in range(max(y - 1, 0), min(y + 2, height)):
            for u in range(max(x - 1, 0), min(x + 2, width)):
                weight = _exponential(row[v * width + u] - top)
                mass += weight
                sum_x += weight * u
                sum_y += weight * v
        cell[p, 0], cell[p, 1], share[p] = sum_x / mass, sum_y / mass, mass / total
