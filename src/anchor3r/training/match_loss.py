"""Supervision of the correlation stem: where every cell truly went is known from depth and pose.

Shapes: n pairs as the network lists them (clip, anchor, age), P coarse cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anchor3r.model.matching import COARSE_STRIDE, DenseMatches
from anchor3r.model.network import camera_rays
from anchor3r.training.clips import Clips, cell_depth, masked_mean


@dataclass(frozen=True)
class Correspondences:
    """Where the cells of an anchor truly lie in a member's image."""

    pixel: Tensor
    """(pairs, P, 2)"""
    visible: Tensor
    """(pairs, P) in the image and not occluded"""
    known: Tensor
    """(pairs, P) the anchor's depth is known there, so the above can be trusted"""


def true_correspondences(pairs: Tensor, clips: Clips) -> Correspondences:
    """From depth and pose; pairs (n, 3) as the network lists them."""
    height, width = clips.images.shape[-2:]
    clip, anchor = pairs[:, 0], pairs[:, 1]
    member = anchor - pairs[:, 2]
    depth = cell_depth(clips.depth[clip, anchor], COARSE_STRIDE).flatten(1)
    rays = camera_rays(clips.cameras[clip, anchor], (height, width), COARSE_STRIDE).flatten(1, 2)
    motion = clips.camera_from_world[clip, member] @ torch.linalg.inv(clips.camera_from_world[clip, anchor])
    points = (rays * depth[..., None]) @ motion[:, :3, :3].transpose(1, 2) + motion[:, None, :3, 3]
    z = points[..., 2]
    camera = clips.cameras[clip, member][:, None]
    pixel = points[..., :2] / z.clamp(min=1e-3)[..., None] * camera[..., :2] + camera[..., 2:]
    limit = pixel.new_tensor([width, height])
    inside = (z > 0.05) & (pixel > -0.5).all(-1) & (pixel < limit - 0.5).all(-1)
    nearest = torch.minimum(pixel.round().clamp(min=0), limit - 1).long()
    index = nearest[..., 1] * width + nearest[..., 0]
    seen = clips.depth[clip, member].flatten(1).gather(1, index)
    # The surface there has to be the same one, up to its slope over half a pixel.
    visible = inside & (seen > 0) & ((seen - z).abs() < 0.05 * z)
    return Correspondences(pixel, visible, depth > 0)


def match_loss(matches: DenseMatches, pairs: Tensor, clips: Clips) -> dict[str, Tensor]:
    """Cross-entropy over all cells, Laplace likelihood of the refined pixel, visibility."""
    height, width = clips.images.shape[-2:]
    with torch.no_grad():
        truth = true_correspondences(pairs, clips)
        counted = truth.visible & truth.known
        index, weight = _bilinear_cells(truth.pixel, height // COARSE_STRIDE, width // COARSE_STRIDE)
    assert matches.coarse is not None, "matches made without gradients cannot be trained on"
    logits, log_sum = matches.coarse
    coarse = masked_mean(log_sum - (logits.gather(2, index) * weight).sum(-1), counted)
    # The refinement can only answer for cells whose coarse match put the truth within its reach.
    reach = ((truth.pixel - matches.fine_center).abs().amax(-1) < 5.0) & counted
    error = (truth.pixel - matches.pixel).norm(dim=-1)
    fine = masked_mean(error * torch.exp(-matches.log_sigma) + matches.log_sigma, reach)
    found = (counted & (error.detach() < 8)).to(matches.visible.dtype)
    visible = F.binary_cross_entropy_with_logits(matches.visible, found, reduction="none")
    visible = masked_mean(visible, truth.known | ~truth.visible)
    median = error.detach()[counted].median() if counted.any() else error.new_zeros(())
    return {
        "match": coarse + fine + visible,
        "match_coarse": coarse,
        "match_fine": fine,
        "match_visible": visible,
        "match_error_px": median,
    }


def _bilinear_cells(pixel: Tensor, rows: int, cols: int) -> tuple[Tensor, Tensor]:
    """The four coarse cells around pixels (n, P, 2): flat indices and weights (n, P, 4), which sum to 1."""
    cell = (pixel - (COARSE_STRIDE - 1) / 2) / COARSE_STRIDE
    limit = cell.new_tensor([cols - 1, rows - 1])
    cell = torch.minimum(cell.clamp(min=0), limit)
    low = cell.floor()
    fraction = cell - low
    low = low.long()
    high = torch.minimum(low + 1, limit.long())
    index = [y * cols + x for y in (low[..., 1], high[..., 1]) for x in (low[..., 0], high[..., 0])]
    fx, fy = fraction.unbind(-1)
    weight = [wy * wx for wy in (1 - fy, fy) for wx in (1 - fx, fx)]
    return torch.stack(index, -1), torch.stack(weight, -1)
