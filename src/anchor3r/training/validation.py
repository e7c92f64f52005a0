"""How well the averaged weights do on held-out clips: the numbers that decide which checkpoint is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anchor3r.model.network import WindowOutput
from anchor3r.training.clips import Clips, cell_depth
from anchor3r.training.data import ClipBatches
from anchor3r.training.distributed import Processes
from anchor3r.training.losses import true_correspondences
from anchor3r.training.recipes import Recipe

VALIDATION_SEED = 2**31
"""Clips drawn with this seed are looked at, never trained on; the same ones whatever a run's own seed is."""
NUM_BATCHES = 32
STRIDE = 8
"""Between the batches looked at: neighbouring clips may share a place."""


@dataclass(frozen=True)
class Scores:
    """Medians over held-out clips, and a picture."""

    numbers: dict[str, float]
    picture: NDArray[np.uint8]


@torch.no_grad()
def validate(network: nn.Module, recipe: Recipe, group: Processes) -> Scores | None:
    """Medians of neighbour rotation and direction error, depth error and match error; lower is better.

    None where the data have no sequence that is not trained on.
    """
    data = recipe.data.held_out()
    if data is None:
        return None
    held_out = ClipBatches(replace(data, seed=VALIDATION_SEED), recipe.clips_per_process)
    was_training = network.training
    network.eval()
    collected: dict[str, list[Tensor]] = {}
    picture = np.zeros((1, 1, 3), np.uint8)
    for index in range(NUM_BATCHES):
        clips = held_out[STRIDE * index].to(group.device)
        output = network(clips.images, clips.cameras)
        for name, value in _errors(output, clips).items():
            collected.setdefault(name, []).append(value.flatten())
        if index == 0:
            picture = draw_samples(output, clips)
    network.train(was_training)
    numbers = {name: float(torch.cat(values).median()) for name, values in collected.items()}
    numbers["score"] = float(np.mean([np.log(max(v, 1e-6)) for v in numbers.values()]))
    return Scores(numbers, picture)


def _errors(output: WindowOutput, clips: Clips) -> dict[str, Tensor]:
    """Of each anchor and the frame before it: degrees, degrees, relative depth; of matches: pixels."""
    b, s = clips.images.shape[:2]
    truth = clips.camera_from_world[:, :-1] @ torch.linalg.inv(clips.camera_from_world[:, 1:])
    truth = truth.flatten(0, 1)
    predicted = neighbour_poses(output, b, s)
    # The chord of the angle between two rotations, which unlike its cosine is exact for small ones.
    chord = (predicted[:, :3, :3] - truth[:, :3, :3]).flatten(1).norm(dim=1) / 8**0.5
    moved, true_move = predicted[:, :3, 3], truth[:, :3, 3]
    cosine = torch.nn.functional.cosine_similarity(moved, true_move, dim=-1).clamp(-1, 1)
    stride = clips.depth.shape[-1] // output.points.shape[2]
    depth = cell_depth(clips.depth.flatten(0, 1), stride)
    known = depth > 0
    ratio = output.points[..., 2][known] / depth[known]
    errors = {
        "rotation_deg": torch.rad2deg(2 * chord.clamp(max=1).asin()),
        "direction_deg": torch.rad2deg(cosine.acos()),
        "depth_rel": (ratio / ratio.median() - 1).abs(),
    }
    if output.matches is not None:
        found = true_correspondences(output.pairs, clips)
        distance = (found.pixel - output.matches.pixel).norm(dim=-1)
        errors["match_px"] = distance[found.visible & found.known]
    return errors


def neighbour_poses(output: WindowOutput, num_clips: int, num_frames: int) -> Tensor:
    """Predicted previous_from_anchor (B (S - 1), 4, 4) of every frame of the clips but their first one.

    A network in the `first` gauge says it only by way of the first frame: T_{t-1} T_t⁻¹.
    """
    ages = output.ages.unflatten(0, (num_clips, num_frames))
    pose = output.poses[-1].unflatten(0, (num_clips, num_frames))
    if output.gauge == "current":
        return pose_matrices(pose[ages == 1])
    camera_from_first = pose_matrices(pose[:, :, 0])
    return (camera_from_first[:, :-1] @ torch.linalg.inv(camera_from_first[:, 1:])).flatten(0, 1)


def pose_matrices(pose: Tensor) -> Tensor:
    """Translation and quaternion xyzw, first of the numbers (..., 9) -> (..., 4, 4)."""
    x, y, z, w = torch.nn.functional.normalize(pose[..., 3:7], dim=-1).unbind(-1)
    rotation = torch.stack(
        [
            1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
        ], -1,
    ).unflatten(-1, (3, 3))  # fmt: skip
    matrix = torch.eye(4, device=pose.device).expand(*pose.shape[:-1], 4, 4).clone()
    matrix[..., :3, :3], matrix[..., :3, 3] = rotation, pose[..., :3]
    return matrix


def draw_samples(output: WindowOutput, clips: Clips) -> NDArray[np.uint8]:
    """Rows: images, true depth, predicted depth, confidence of the first clip; columns: frames."""
    from matplotlib import colormaps

    s = clips.images.shape[1]
    images = (clips.images[0].permute(0, 2, 3, 1) * 255).byte().cpu().numpy()
    height, width = images.shape[1:3]
    truth = clips.depth[0].cpu().numpy()
    predicted = output.points[:s, ..., 2].cpu().numpy()
    confidence = output.confidence[:s].cpu().numpy()
    low, high = np.percentile(np.log(truth[truth > 0]), [2, 98]) if (truth > 0).any() else (0.0, 1.0)

    def coloured(values: NDArray[np.float32], start: float, end: float) -> NDArray[np.uint8]:
        factor = height // values.shape[1]
        scaled = np.clip((values - start) / (end - start + 1e-9), 0, 1).repeat(factor, 1).repeat(factor, 2)
        return (colormaps["turbo"](scaled)[..., :3] * 255).astype(np.uint8)

    rows = [
        images,
        coloured(np.log(np.maximum(truth, 1e-3)), low, high),
        coloured(np.log(np.maximum(predicted, 1e-3)), low, high),
        coloured(np.log(confidence), 0, float(np.log(confidence).max())),
    ]
    return np.concatenate([np.concatenate(list(row[:, :, :width]), 1) for row in rows])
