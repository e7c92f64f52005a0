"""What the network is trained to minimise (paper: section 3.5), on every window of an unrolled clip.

L = λ_cam L_cam + L_pmap, and L_match where the network has a correlation stem. One scale s* aligns a clip's
predicted translations and points with the truth; it is the exact minimiser of Σ w |X - s X̂|₁, without
gradient.

Every mean is taken clip by clip first, so that a batch split over processes has the loss of the whole.

Shapes: B clips, S frames, M query groups, h × w points of a point map; of matches: n pairs as the network
lists them (clip, anchor, age), P coarse cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anchor3r.model.config import Gauge
from anchor3r.model.matching import COARSE_STRIDE, DenseMatches
from anchor3r.model.network import WindowOutput, camera_rays
from anchor3r.training.clips import Clips, cell_depth, masked_mean

_SHORT_STEP = 0.005
"""Translations below this, in mean distances of the points, count less where directions are measured."""
_SHORT_PREDICTION = 0.2
"""Predicted translations below this part of the true one count as shorter instead of less certain."""
_LENGTH_WEIGHT = 0.3
"""Of an error in log length against one in direction."""
_LONGEST_ERROR = 100.0
"""Errors of translations are cut off here, in mean distances of the points: one broken clip must not count
as much as all others together."""
_LARGEST_LOG_ERROR = 3.0
"""Errors of log lengths are cut off here, for the same reason."""
_SCALE_POINTS = 4096
"""Most points of a clip that its scale is taken from: its median does not need all."""
_NEAREST_OF_MEAN = 0.1
"""Depths count as no nearer than this part of the mean depth where points are weighted by 1 / depth."""
_MIN_PIXEL_DEPTH_M = 1e-3
"""Depths are floored at this where pixels are computed; such cells do not count anyway."""
_NEAREST_VISIBLE_M = 0.05
"""A cell nearer to a member's camera plane than this is not visible in it."""
_SAME_SURFACE = 0.05
"""Two depths of one pixel that differ by less than this part are of one surface, seen at a slope."""
_FINE_REACH_PX = 5.0
"""How far from the middle of its search the refinement of a match can answer: two cells of two pixels each,
and half a cell."""
_FOUND_PX = 8.0
"""A match that is off by more counts as not found: two coarse cells."""


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights and forms of the terms."""

    camera_weight: float = 5.0
    """λ_cam"""
    rotation_weight: float = 1.0
    """Weight of rotations against translations within the camera term; the paper's is 1. Above where motions
    between frames are small: a degree is no more than 0.009 in a quaternion."""
    round_decay: float = 0.6
    """A refinement round weighs this times the one after it."""
    confidence_weight: float = 0.2
    """α, the reward for being confident."""
    gradient_weight: float = 1.0
    """Weight of the term on differences between neighbouring points."""
    fov_weight: float = 0.1
    """Weight of the auxiliary field of view."""
    scale: Literal["median", "metric"] = "median"
    """`median` frees the prediction's scale clip by clip (the paper); `metric` holds it to the truth's."""
    translation: Literal["l1", "direction"] = "l1"
    """`l1` is the paper's; `direction` measures direction and log length apart, so that a short step counts
    as much as a long one."""
    points: Literal["xyz", "log_depth"] = "xyz"
    """Where errors of points are measured; log depth neither favours near nor far, small nor large."""
    horizon: float = float("inf")
    """Points farther away do not count in the mean distance that errors are divided by: a few hills would set
    it."""
    match_weight: float = 0.0
    """Weight of the correlation stem's own supervision: where every cell truly went is known from depth and
    pose."""


def relative_poses(camera_from_world: Tensor, ages: Tensor, gauge: Gauge = "current") -> Tensor:
    """What query groups should predict at every frame t: T_{i<-t} = T_i T_t⁻¹ (B, S, M, 4, 4) of the frame
    i = t - age, and with the `first` gauge, where i is the first frame, T_{t<-i} = T_t T_1⁻¹.

    ages (B, S, M); -1 gives the identity.
    """
    b, s, m = ages.shape
    clip = torch.arange(b, device=ages.device)[:, None, None].expand(b, s, m)
    time = torch.arange(s, device=ages.device)[None, :, None]
    member = (time - ages.clamp(min=0)).clamp(min=0)
    member_from_world, anchor_from_world = camera_from_world[clip, member], camera_from_world[:, :, None]
    if gauge == "first":
        return anchor_from_world @ torch.linalg.inv(member_from_world)
    return member_from_world @ torch.linalg.inv(anchor_from_world)


def quaternions_xyzw(rotation: Tensor) -> Tensor:
    """Rotation matrices (..., 3, 3) -> unit quaternions (..., 4) with w >= 0, for angles below π."""
    trace = rotation.diagonal(dim1=-2, dim2=-1).sum(-1)
    w = 0.5 * (1 + trace).clamp(min=1e-8).sqrt()
    r = rotation
    x, y, z = r[..., 2, 1] - r[..., 1, 2], r[..., 0, 2] - r[..., 2, 0], r[..., 1, 0] - r[..., 0, 1]
    return F.normalize(torch.stack([x / (4 * w), y / (4 * w), z / (4 * w), w], -1), dim=-1)


def l1_scale(prediction: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """(B,) s* = argmin_s Σ w |target - s prediction|, exactly: a weighted median of ratios, >= a tiny floor.

    prediction, target, weight: (B, n); entries with weight 0 do not count.
    """
    usable = (weight > 0) & (prediction.abs() > 1e-8)
    ratio = torch.where(usable, target / torch.where(usable, prediction, 1), torch.inf)
    mass = torch.where(usable, weight * prediction.abs(), 0)
    order = ratio.argsort(-1)
    cumulative = mass.gather(-1, order).cumsum(-1)
    index = (cumulative < cumulative[..., -1:] / 2).sum(-1, keepdim=True).clamp(max=ratio.shape[-1] - 1)
    scale = ratio.gather(-1, order).gather(-1, index)[..., 0]
    return torch.where(scale.isfinite(), scale, 1).clamp(min=1e-3)


class Loss:
    """Evaluates a network's output on a batch of clips; every term is reported by name."""

    def __init__(self, config: LossConfig) -> None:
        self.config = config

    def __call__(self, output: WindowOutput, clips: Clips) -> tuple[Tensor, dict[str, Tensor]]:
        c = self.config
        b, s = clips.images.shape[:2]
        size = (clips.images.shape[-2], clips.images.shape[-1])
        points, confidence = (x.unflatten(0, (b, s)) for x in (output.points, output.confidence))
        target, valid = _target_points(clips, size, points.shape[2:4])
        distance = _mean_distance(target, valid & (target[..., 2] < c.horizon))
        scale = self._scale(points.detach(), target, valid, clips.metric)
        scale, distance = self._without_depth(output, clips, valid, scale, distance)
        terms = self._camera(output, clips, scale, distance)
        trusted = None if clips.depth_weight is None else _on_grid(clips.depth_weight, points.shape[2:4])
        terms |= self._point_map(points, confidence, target, valid, scale, distance, trusted)
        total = c.camera_weight * terms["camera"] + terms["points"] + c.fov_weight * terms["fov"]
        if output.matches is not None and c.match_weight:
            terms |= match_loss(output.matches, output.pairs, clips)
            total = total + c.match_weight * terms["match"]
        terms["total"] = total
        return total, {name: value.detach() for name, value in terms.items()}

    def _scale(self, points: Tensor, target: Tensor, valid: Tensor, metric: Tensor | None) -> Tensor:
        """(B,) s* over some points of each clip; weights 1/z, with z floored at a part of its mean. 1 where
        metres are asked for and known."""
        if self.config.scale == "metric":
            fixed = points.new_ones(len(points))
            if metric is None or metric.all():
                return fixed
            return torch.where(metric, fixed, self._best_scale(points, target, valid))
        return self._best_scale(points, target, valid)

    def _best_scale(self, points: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        step = max(1, valid[0].numel() // _SCALE_POINTS)
        flat = [x.flatten(1, 3)[:, ::step] for x in (points, target, valid)]
        depth = flat[1][..., 2]
        mean = (depth * flat[2]).sum(1) / flat[2].sum(1).clamp(min=1)
        weight = flat[2] / torch.maximum(depth, _NEAREST_OF_MEAN * mean[:, None]).clamp(min=1e-6)
        return l1_scale(flat[0].flatten(1), flat[1].flatten(1), weight.repeat_interleave(3, 1))

    def _without_depth(
        self, output: WindowOutput, clips: Clips, valid: Tensor, scale: Tensor, distance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scale and distance (B,) of clips; those without any depth take them from their translations."""
        lacking = ~valid.flatten(1).any(1)
        if not lacking.any():
            return scale, distance
        ages = output.ages.unflatten(0, clips.images.shape[:2])
        truth = relative_poses(clips.camera_from_world, ages)[..., :3, 3]
        found = output.poses[-1].unflatten(0, clips.images.shape[:2])[..., :3].detach()
        counted = (ages > 0)[..., None].expand_as(truth).flatten(1).to(truth.dtype)
        by_motion = l1_scale(found.flatten(1), truth.flatten(1), counted)
        length = (truth.norm(dim=-1) * (ages > 0)).sum((1, 2)) / (ages > 0).sum((1, 2)).clamp(min=1)
        if self.config.scale == "metric":
            known = torch.ones_like(lacking) if clips.metric is None else clips.metric
            by_motion = torch.where(known, 1, by_motion)
        length = torch.where(length > 0, length, 1)
        return torch.where(lacking, by_motion, scale), torch.where(lacking, length, distance)

    def _camera(
        self, output: WindowOutput, clips: Clips, scale: Tensor, distance: Tensor
    ) -> dict[str, Tensor]:
        """L1 on q and s* t over every group that exists, refinement rounds weighted (paper: L_cam)."""
        b, s = clips.images.shape[:2]
        ages = output.ages.unflatten(0, (b, s))
        truth = relative_poses(clips.camera_from_world, ages, output.gauge)
        translation = truth[..., :3, 3] / distance[:, None, None, None]
        quaternion = quaternions_xyzw(truth[..., :3, :3])
        half = clips.images.new_tensor([clips.images.shape[-2] / 2, clips.images.shape[-1] / 2])
        fov = 2 * torch.atan(half / clips.cameras[..., [1, 0]])[:, :, None]
        sums = {
            "rotation": truth.new_zeros(()),
            "translation": truth.new_zeros(()),
            "fov": truth.new_zeros(()),
        }
        for index, raw in enumerate(output.poses):
            pose = raw.unflatten(0, (b, s))
            weight = self.config.round_decay ** (len(output.poses) - 1 - index)
            moved = pose[..., :3] * (scale / distance)[:, None, None, None]
            errors = {
                "translation": self._translation_error(translation, moved),
                "rotation": (quaternion - pose[..., 3:7]).abs().sum(-1),
                "fov": (fov - pose[..., 7:]).abs().sum(-1),
            }
            if clips.pose_weight is not None:
                errors = {name: error * clips.pose_weight[:, :, None] for name, error in errors.items()}
            for name, error in errors.items():
                sums[name] = sums[name] + weight * masked_mean(error, ages >= 0)
        camera = self.config.rotation_weight * sums["rotation"] + sums["translation"]
        return sums | {"camera": camera}

    def _translation_error(self, true: Tensor, predicted: Tensor) -> Tensor:
        """(..., 3), both in mean distances of the clip's points -> (...)"""
        if self.config.translation == "l1":
            return (true - predicted).abs().clamp(max=_LONGEST_ERROR).sum(-1)
        length, found = (x.norm(dim=-1).clamp(min=1e-6) for x in (true, predicted))
        # A prediction of nearly no motion would have a gradient without bound.
        direction = predicted / torch.maximum(found, _SHORT_PREDICTION * length)[..., None]
        turned = (true / length[..., None] - direction).norm(dim=-1)
        stretched = (length / found).log().abs().clamp(max=_LARGEST_LOG_ERROR)
        # A step too short to see has no direction.
        return (length / _SHORT_STEP).clamp(max=1) * (turned + _LENGTH_WEIGHT * stretched)

    def _point_map(
        self,
        points: Tensor,
        confidence: Tensor,
        target: Tensor,
        valid: Tensor,
        scale: Tensor,
        distance: Tensor,
        trusted: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Confidence-weighted errors of points and of their differences, less α log Σ (paper: L_pmap).

        `trusted` (B, S, h, w) weighs targets that are not the truth.
        """
        if self.config.points == "log_depth":
            predicted = (points[..., 2:] * scale[:, None, None, None, None]).clamp(min=1e-4).log()
            target = target[..., 2:].clamp(min=1e-4).log()
        else:
            predicted = points * (scale / distance)[:, None, None, None, None]
            target = target / distance[:, None, None, None, None]
        difference = predicted - target
        if trusted is not None:
            difference = difference * trusted[..., None]
        error = difference.norm(dim=-1) if difference.shape[-1] > 1 else difference[..., 0].abs()
        reconstruction = masked_mean(confidence * error, valid)
        gradient = points.new_zeros(())
        for axis in (2, 3):
            near, far = (difference.narrow(axis, k, difference.shape[axis] - 1) for k in (0, 1))
            both = valid.narrow(axis, 0, near.shape[axis]) & valid.narrow(axis, 1, near.shape[axis])
            sigma = confidence.narrow(axis, 0, near.shape[axis])
            gradient = gradient + masked_mean(sigma * (far - near).abs().sum(-1), both)
        reward = masked_mean(confidence.log() if trusted is None else trusted * confidence.log(), valid)
        total = reconstruction + self.config.gradient_weight * gradient
        total = total - self.config.confidence_weight * reward
        return {"points": total, "point_error": masked_mean(error, valid)}


def _on_grid(weight: Tensor, grid: torch.Size) -> Tensor:
    """Weights (B, S, H, W) at the cells of the network's grid (h, w)."""
    rows, columns = weight.shape[2] // grid[0], weight.shape[3] // grid[1]
    return weight[:, :, rows // 2 :: rows, columns // 2 :: columns]


def _mean_distance(points: Tensor, valid: Tensor) -> Tensor:
    """(B,) mean distance of a clip's points from their cameras, which errors are divided by."""
    distance = (points.norm(dim=-1) * valid).sum((1, 2, 3)) / valid.sum((1, 2, 3)).clamp(min=1)
    return torch.where(distance > 0, distance, 1)


def _target_points(clips: Clips, size: tuple[int, int], grid: torch.Size) -> tuple[Tensor, Tensor]:
    """True points (B, S, h, w, 3) on the network's grid, and where they are known."""
    stride = size[0] // grid[0]
    depth = cell_depth(clips.depth.flatten(0, 1), stride).unflatten(0, clips.depth.shape[:2])
    rays = camera_rays(clips.cameras.flatten(0, 1), size, stride).unflatten(0, clips.depth.shape[:2])
    return rays * depth[..., None], depth > 0


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
    """Where the cells of anchors truly lie, from depth and pose; pairs (n, 3) as the network lists them."""
    height, width = clips.images.shape[-2:]
    clip, anchor = pairs[:, 0], pairs[:, 1]
    member = anchor - pairs[:, 2]
    depth = cell_depth(clips.depth[clip, anchor], COARSE_STRIDE).flatten(1)
    rays = camera_rays(clips.cameras[clip, anchor], (height, width), COARSE_STRIDE).flatten(1, 2)
    motion = clips.camera_from_world[clip, member] @ torch.linalg.inv(clips.camera_from_world[clip, anchor])
    points = (rays * depth[..., None]) @ motion[:, :3, :3].transpose(1, 2) + motion[:, None, :3, 3]
    z = points[..., 2]
    camera = clips.cameras[clip, member][:, None]
    pixel = points[..., :2] / z.clamp(min=_MIN_PIXEL_DEPTH_M)[..., None] * camera[..., :2] + camera[..., 2:]
    limit = pixel.new_tensor([width, height])
    inside = (z > _NEAREST_VISIBLE_M) & (pixel > -0.5).all(-1) & (pixel < limit - 0.5).all(-1)
    nearest = torch.minimum(pixel.round().clamp(min=0), limit - 1).long()
    index = nearest[..., 1] * width + nearest[..., 0]
    seen = clips.depth[clip, member].flatten(1).gather(1, index)
    # The surface there has to be the same one, up to its slope over half a pixel.
    visible = inside & (seen > 0) & ((seen - z).abs() < _SAME_SURFACE * z)
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
    reach = ((truth.pixel - matches.fine_center).abs().amax(-1) < _FINE_REACH_PX) & counted
    error = (truth.pixel - matches.pixel).norm(dim=-1)
    fine = masked_mean(error * torch.exp(-matches.log_sigma) + matches.log_sigma, reach)
    found = (counted & (error.detach() < _FOUND_PX)).to(matches.visible.dtype)
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
