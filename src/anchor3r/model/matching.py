"""The correlation stem of the `tiny` preset: tokens and descriptors by convolution, matches by correlation.

A transformer of this size does not learn to compare images in the time a CPU has; a correlation does it by
construction. Descriptors depend on one image alone, so the cache rule holds. Pixel (0, 0) is the centre of
the top-left pixel: cell k of a map of stride s is centred on pixel s k + (s - 1) / 2.

Shapes: B images or pairs, H × W pixels, P = (H/4)(W/4) coarse cells, N = (H/16)(W/16) tokens, K window slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from anchor3r.kernels import kernel
from anchor3r.model.config import MatchingConfig

COARSE_STRIDE = 4
FINE_STRIDE = 2
TOKEN_STRIDE = 16
_CELLS_PER_TOKEN = (TOKEN_STRIDE // COARSE_STRIDE) ** 2
_NUMBERS_PER_MATCH = 4
_NUMBERS_PER_RAY = 5
_CONTRAST_FLOOR = 0.02
"""Added to the standard deviation that an image is divided by: a grey wall stays one."""
_FINE_SHARPNESS = 10.0
"""Factor of the fine correlations in their softmax. This and the next three belong to the trained weights:
others would need another training."""
_MAX_LOG_SIGMA = 5.0
"""Limit of the logarithm of a match's expected error, in both directions."""
_DISPLACEMENT_SCALE = 8.0
"""Brings displacements between neighbouring frames, in focal lengths, to the size of the other numbers."""
_MAX_DISPLACEMENT = 4.0
"""Limit of a scaled displacement."""
_PEAK_BLOCK = 16
"""Similarities of which the maximum is taken at once."""
_LOWEST_LOGIT = np.float32(-100)
"""Differences of similarities below this are taken for this: their exponentials are nothing."""


@dataclass(frozen=True)
class DenseMatches:
    """Where each coarse cell of the current image is found in another one."""

    pixel: Tensor
    """(B, P, 2) x, y in the other image, in pixels"""
    log_sigma: Tensor
    """(B, P) logarithm of the expected error, in pixels"""
    visible: Tensor
    """(B, P) logit of the cell being visible in the other image at all"""
    coarse: tuple[Tensor, Tensor] | None
    """Where gradients are wanted: similarities (B, P, P) of all cells with all of the other image, and the
    logarithm (B, P) of the sum of their exponentials"""
    fine_center: Tensor
    """(B, P, 2) pixel around which the refinement looked"""

    def weight(self) -> Tensor:
        """(B, P) inverse variance, discounted by the chance that there is nothing to find."""
        return torch.sigmoid(self.visible) * torch.exp(-2 * self.log_sigma)


class Residual(nn.Module):
    """Two 3×3 convolutions beside an identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        # Without normalisation layers a branch has to start small for the sum to keep its size.
        nn.init.kaiming_normal_(self.conv1.weight, nonlinearity="relu")
        nn.init.normal_(self.conv2.weight, std=0.3 * (2 / (9 * channels)) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.conv2(F.relu(self.conv1(x))))


class ConvStem(nn.Module):
    """Image -> tokens at stride 16, unit-norm descriptors at strides 4 and 2, and detail at stride 4."""

    def __init__(self, config: MatchingConfig, dim: int) -> None:
        super().__init__()
        c2, c4, c8 = config.channels
        self.stage2 = nn.Sequential(nn.Conv2d(3, c2, 5, 2, 2), nn.ReLU(), Residual(c2))
        self.stage4 = nn.Sequential(nn.Conv2d(c2, c4, 3, 2, 1), nn.ReLU(), Residual(c4), Residual(c4))
        self.stage8 = nn.Sequential(nn.Conv2d(c4, c8, 3, 2, 1), nn.ReLU(), Residual(c8))
        self.stage16 = nn.Conv2d(c8, dim, 3, 2, 1)
        self.coarse_from_4 = nn.Conv2d(c4, config.coarse_dim, 1)
        self.coarse_from_8 = nn.Conv2d(c8, config.coarse_dim, 1)
        self.fine_from_2 = nn.Conv2d(c2, config.fine_dim, 1)
        self.fine_from_4 = nn.Conv2d(c4, config.fine_dim, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """images (B, 3, H, W) in 0–1 -> tokens (B, N, C), [coarse (B, P, c), fine (B, H/2, W/2, f)], detail
        (B, d, H/4, W/4)."""
        # Brightness and contrast say nothing about where a point has gone.
        mean = images.mean((1, 2, 3), keepdim=True)
        spread = images.std((1, 2, 3), keepdim=True)
        x2 = self.stage2((images - mean) / (spread + _CONTRAST_FLOOR))
        x4 = self.stage4(x2)
        x8 = self.stage8(x4)
        tokens = self.stage16(x8).flatten(2).transpose(1, 2)
        coarse = self.coarse_from_4(x4) + _twice(self.coarse_from_8(x8))
        fine = self.fine_from_2(x2) + _twice(self.fine_from_4(x4))
        coarse = F.normalize(coarse.flatten(2).transpose(1, 2), dim=-1)
        return tokens, [coarse, F.normalize(fine.permute(0, 2, 3, 1), dim=-1)], x4


def _twice(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


class Matcher(nn.Module):
    """Finds every coarse cell of one image in another: best cell of all, then a learned sub-pixel step."""

    def __init__(self, config: MatchingConfig) -> None:
        super().__init__()
        self.radius = config.fine_radius
        self.side = 2 * config.fine_radius + 1
        self.log_temperature = nn.Parameter(torch.tensor([3.0]))
        last = nn.Linear(config.hidden, _NUMBERS_PER_MATCH)
        nn.init.normal_(last.weight, std=0.01)
        nn.init.zeros_(last.bias)
        self.refine = nn.Sequential(
            nn.Linear(4 * self.side**2 + 3, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, config.hidden),
            nn.ReLU(),
            last,
        )

    def forward(self, current: list[Tensor], other: list[Tensor]) -> DenseMatches:
        """Descriptors of B current and B other images, as `ConvStem` gives them."""
        height, width = (side * FINE_STRIDE // COARSE_STRIDE for side in current[1].shape[1:3])
        # The temperature goes onto the small side: the product has P² entries.
        scaled = current[0] * self.log_temperature.exp()
        if not scaled.requires_grad and _is_float32_on_cpu(scaled):
            # One pair at a time, so that its similarities stay in the processor's cache.
            kept = None
            found = [
                correlation_peaks(one @ another.T, width)
                for one, another in zip(scaled, other[0], strict=True)
            ]
            cell, confidence = (torch.stack(part) for part in zip(*found, strict=True))
        else:
            logits = torch.bmm(scaled, other[0].transpose(1, 2))
            kept = (logits, logits.logsumexp(-1))
            with torch.no_grad():
                cell, confidence = _local_mean(*kept, height, width)
        coarse = cell * COARSE_STRIDE + (COARSE_STRIDE - 1) / 2
        correlations, center = self._fine_patch(current[1], other[1], coarse)
        remainder = (coarse - center) / FINE_STRIDE
        out = self.refine(torch.cat([correlations.flatten(2), confidence[..., None], remainder], -1))
        weights = torch.softmax(correlations.mean(2) * _FINE_SHARPNESS, -1)
        pixel = center + FINE_STRIDE * (weights @ self._offsets(weights) + out[..., :2])
        return DenseMatches(
            pixel, out[..., 2].clamp(-_MAX_LOG_SIGMA, _MAX_LOG_SIGMA), out[..., 3], kept, center
        )

    def _offsets(self, like: Tensor) -> Tensor:
        """(side², 2) x, y of the searched cells relative to the middle one."""
        steps = torch.arange(-self.radius, self.radius + 1, device=like.device, dtype=like.dtype)
        y, x = torch.meshgrid(steps, steps, indexing="ij")
        return torch.stack([x.flatten(), y.flatten()], -1)

    def _fine_patch(self, current: Tensor, other: Tensor, pixel: Tensor) -> tuple[Tensor, Tensor]:
        """Correlations (B, P, 4, side²) of a coarse cell's four fine cells with those around `pixel`."""
        b, fine_h, fine_w, channels = other.shape
        cell = ((pixel - (FINE_STRIDE - 1) / 2) / FINE_STRIDE).round()
        limit = cell.new_tensor([fine_w, fine_h]) - 1 - self.radius
        cell = torch.minimum(cell.clamp(min=self.radius), limit)
        own = current.reshape(b, fine_h // 2, 2, fine_w // 2, 2, channels).permute(0, 1, 3, 2, 4, 5)
        corner = cell.long() - self.radius
        correlations = local_correlation(own.reshape(b, -1, 4, channels), other, corner, self.side)
        return correlations, cell * FINE_STRIDE + (FINE_STRIDE - 1) / 2


def _local_mean(logits: Tensor, log_sum: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Cell of the soft maximum in the 3×3 cells around the best one, and the share of all mass in them.

    logits (B, P, P), log_sum (B, P) -> (B, P, 2) x, y, (B, P)
    """
    best = logits.argmax(-1)
    y, x = best // width, best % width
    steps = torch.tensor([-1, 0, 1], device=best.device)
    ys = (y[..., None, None] + steps[:, None]).expand(*best.shape, 3, 3).flatten(2)
    xs = (x[..., None, None] + steps).expand(*best.shape, 3, 3).flatten(2)
    inside = (ys >= 0) & (ys < height) & (xs >= 0) & (xs < width)
    index = ys.clamp(0, height - 1) * width + xs.clamp(0, width - 1)
    near = logits.gather(2, index).masked_fill(~inside, -torch.inf)
    weights = torch.softmax(near, -1)
    cell = torch.stack([(weights * xs).sum(-1), (weights * ys).sum(-1)], -1)
    return cell, (near.logsumexp(-1) - log_sum).exp()


def cell_pixels(height: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """(P, 2) x, y of the pixels on which the coarse cells of an H × W image are centred."""
    ys = torch.arange(height // COARSE_STRIDE, device=device) * COARSE_STRIDE + (COARSE_STRIDE - 1) / 2
    xs = torch.arange(width // COARSE_STRIDE, device=device) * COARSE_STRIDE + (COARSE_STRIDE - 1) / 2
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], -1)


class MatchEmbedding(nn.Module):
    """Tells patch tokens and query groups what the correlation found, and along which rays.

    A patch token gets the matches with all members of the window. The group of one member gets those of all
    patches: what each
    says of that member, on average, which is where a motion shows.
    """

    def __init__(self, num_slots: int, dim: int) -> None:
        super().__init__()
        self.num_slots = num_slots
        numbers = _CELLS_PER_TOKEN * _NUMBERS_PER_MATCH
        self.matches = nn.Sequential(
            nn.Linear(num_slots * numbers, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim)
        )
        self.rays = nn.Sequential(nn.Linear(_NUMBERS_PER_RAY, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.members = nn.Sequential(
            nn.Linear(numbers + _NUMBERS_PER_RAY, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim)
        )

    def forward(
        self, summary: Tensor, camera: Tensor, known: Tensor, size: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """summary (B, K, P, 4), camera (B, 4) fx, fy, cx, cy in pixels, known (B,) 0/1 -> for the tokens
        (B, N, C), for the members (B, K, C)."""
        h, w = size[0] // COARSE_STRIDE, size[1] // COARSE_STRIDE
        side = TOKEN_STRIDE // COARSE_STRIDE
        cells = summary.view(len(summary), self.num_slots, h // side, side, w // side, side, -1)
        cells = cells.permute(0, 2, 4, 1, 3, 5, 6).flatten(4).flatten(1, 2)
        pixels = cell_pixels(*size, device=summary.device).view(h // side, side, w // side, side, 2)
        middle = pixels.mean((1, 3)).flatten(0, 1)
        rays = (middle - camera[:, None, 2:]) / camera[:, None, :2]
        fov = (size[1] / 2 / camera[:, :1]).expand(-1, len(middle))[..., None]
        flags = known[:, None, None].expand(-1, len(middle), 1)
        extra = torch.cat([rays, fov, flags, rays.square().sum(-1, keepdim=True)], -1)
        of_member = torch.cat([cells, extra[:, :, None].expand(-1, -1, self.num_slots, -1)], -1)
        return self.matches(cells.flatten(2)) + self.rays(extra), self.members(of_member).mean(1)


def summarise(matches: DenseMatches, pixels: Tensor, camera: Tensor) -> Tensor:
    """Matches of B pairs -> (B, P, 4): displacement along the ray's axes, certainty, chance of visibility."""
    visible = torch.sigmoid(matches.visible)
    displacement = (matches.pixel - pixels) / camera[:, None, :2]
    displacement = (_DISPLACEMENT_SCALE * displacement).clamp(-_MAX_DISPLACEMENT, _MAX_DISPLACEMENT)
    displacement = displacement * visible[..., None]
    return torch.cat([displacement, (-matches.log_sigma * visible)[..., None], visible[..., None]], -1)


def local_correlation(own: Tensor, other: Tensor, corner: Tensor, side: int) -> Tensor:
    """Dot products of a cell's descriptors with those in a small square of another map, with gradients.

    own (B, P, A, c), other (B, h, w, c), corner (B, P, 2) x, y of the first cell -> (B, P, A, side²). In
    plain torch this gathers a (pairs, cells, side², channels) tensor and scatters its gradient, which took a
    third of a training step on the CPU; compiled loops touch each descriptor in place and take a tenth of
    that. Other devices and types gather.
    """
    if _is_float32_on_cpu(own):
        apply: Callable[..., Tensor] = _LocalCorrelation.apply
        return apply(own.contiguous(), other.contiguous(), corner, side)
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
def _correlate(
    own: NDArray[Any], other: NDArray[Any], corner: NDArray[Any], side: int, out: NDArray[Any]
) -> None:
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
    own: NDArray[Any],
    other: NDArray[Any],
    corner: NDArray[Any],
    side: int,
    grad: NDArray[Any],
    grad_own: NDArray[Any],
    grad_other: NDArray[Any],
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


def correlation_peaks(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """What `_local_mean` computes, of one pair, float32 on the CPU and without gradients.

    logits (P, Q) of P cells with the Q = h w cells of the other image -> cell (P, 2) x, y of the soft maximum
    in the 3×3 cells around the best one, and the share (P,) of all mass in them. In plain torch this took a
    quarter of a streaming step on one core; the compiled loop passes over a row while it is near, and takes a
    fifth of that.
    """
    cell, share = logits.new_empty(len(logits), 2), logits.new_empty(len(logits))
    _peaks(logits.numpy(), width, cell.numpy(), share.numpy())
    return cell, share


def _is_float32_on_cpu(descriptors: Tensor) -> bool:
    """Whether the compiled loops can read such descriptors."""
    return descriptors.device.type == "cpu" and descriptors.dtype == torch.float32


@kernel(fast=True)
def _exponential(x: Any) -> Any:
    """e^x for x <= 0 to 5e-5, by operations that a processor does eight at a time."""
    x = (x if x > _LOWEST_LOGIT else _LOWEST_LOGIT) * np.float32(1 / 256)
    power = np.float32(1) + x * (np.float32(1) + np.float32(0.5) * x)
    for _ in range(8):
        power *= power
    return power


@kernel(fast=True)
def _peaks(logits: NDArray[Any], width: int, cell: NDArray[Any], share: NDArray[Any]) -> None:
    num_rows, num_cells = logits.shape
    height = num_cells // width
    num_blocks = num_cells // _PEAK_BLOCK  # and a rest
    highest = np.empty(num_blocks + 1, np.float32)
    for p in range(num_rows):
        row = logits[p]
        for block in range(num_blocks):
            value = row[block * _PEAK_BLOCK]
            for q in range(_PEAK_BLOCK):
                value = max(value, row[block * _PEAK_BLOCK + q])
            highest[block] = value
        highest[num_blocks] = row[num_cells - 1]
        for q in range(num_blocks * _PEAK_BLOCK, num_cells):
            highest[num_blocks] = max(highest[num_blocks], row[q])
        top = highest.max()
        total = np.float32(0)
        for q in range(num_cells):
            total += _exponential(row[q] - top)
        best = _PEAK_BLOCK * int(np.argmax(highest))
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
