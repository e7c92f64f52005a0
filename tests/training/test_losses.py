"""Each term against a direct computation, its gradient against finite differences."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from anchor3r.geometry import SE3, quat_from_rotation, so3_exp
from anchor3r.model.matching import DenseMatches
from anchor3r.model.network import WindowOutput, camera_rays
from anchor3r.training.clips import Clips, cell_depth, masked_mean
from anchor3r.training.losses import (
    Loss,
    LossConfig,
    l1_scale,
    match_loss,
    quaternions_xyzw,
    relative_poses,
    true_correspondences,
)

B, S, M, H, W = 2, 3, 2, 8, 12


def make_clips(seed: int = 0) -> Clips:
    rng = np.random.default_rng(seed)
    poses = SE3.exp(0.1 * rng.standard_normal((B, S, 6))).matrix()
    depth = rng.uniform(2, 5, (B, S, H, W))
    depth[:, :, :2, :3] = 0
    cameras = np.tile([10.0, 11.0, (W - 1) / 2, (H - 1) / 2], (B, S, 1))
    images = rng.random((B, S, 3, H, W))
    return Clips(*(torch.from_numpy(x) for x in (images, cameras, depth, poses)))


def make_output(seed: int = 1) -> WindowOutput:
    torch.manual_seed(seed)
    ages = torch.tensor([[0, -1], [0, 1], [0, 1]]).repeat(B, 1)
    poses = [torch.randn(B * S, M, 9, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    points = torch.rand(B * S, H, W, 3, dtype=torch.float64) + torch.tensor([-0.5, -0.5, 2])
    confidence = 1 + torch.rand(B * S, H, W, dtype=torch.float64)
    return WindowOutput(
        poses,
        ages,
        "current",
        points.requires_grad_(),
        confidence.requires_grad_(),
        torch.zeros(B * S, 1, 4),
        None,
        ages.new_zeros((0, 3)),
    )


def direct_scale(output: WindowOutput, clips: Clips, clip: int) -> float:
    """s* by brute force over the same objective."""
    points = output.points.detach().unflatten(0, (B, S))[clip].numpy().reshape(-1, 3)
    depth = clips.depth[clip].numpy().reshape(-1)
    rays = camera_rays(clips.cameras[clip], (H, W), 1).numpy().reshape(-1, 3)
    truth = rays * depth[:, None]
    known = depth > 0
    weight = known / np.maximum(depth, 0.1 * depth[known].mean())
    found = minimize_scalar(
        lambda s: (weight[:, None] * np.abs(truth - s * points)).sum(), bounds=(0.01, 100), method="bounded",
        options={"xatol": 1e-10},
    )  # fmt: skip
    return float(found.x)


def test_camera_loss_is_the_papers() -> None:
    clips, output = make_clips(), make_output()
    _, terms = Loss(LossConfig())(output, clips)
    expected = np.zeros(2)
    for clip in range(B):
        scale = direct_scale(output, clips, clip)
        depth = clips.depth[clip].numpy()
        rays = camera_rays(clips.cameras[clip], (H, W), 1).numpy()
        unit = np.linalg.norm(rays * depth[..., None], axis=-1)[depth > 0].mean()
        for k, poses in enumerate(output.poses):
            errors = []
            for t in range(S):
                for m, age in enumerate(output.ages[clip * S + t].tolist()):
                    if age < 0:
                        continue
                    pair = (clips.camera_from_world[clip, t - age], clips.camera_from_world[clip, t])
                    truth = SE3.from_matrix(pair[0].numpy()) @ SE3.from_matrix(pair[1].numpy()).inverse()
                    pose = poses[clip * S + t, m].detach().numpy()
                    wxyz = quat_from_rotation(truth.rotation)
                    rotation = np.abs(np.roll(wxyz, -1) - pose[3:7]).sum()
                    errors.append([rotation, np.abs(truth.translation - scale * pose[:3]).sum() / unit])
            expected += 0.6 ** (1 - k) * np.mean(errors, 0) / B
    assert float(terms["rotation"]) == pytest.approx(expected[0], rel=1e-9)
    assert float(terms["translation"]) == pytest.approx(expected[1], rel=1e-6)
    assert float(terms["camera"]) == pytest.approx(expected.sum(), rel=1e-6)


def test_point_map_loss_is_the_papers() -> None:
    clips, output = make_clips(), make_output()
    config = LossConfig(confidence_weight=0.3)
    _, terms = Loss(config)(output, clips)
    total = 0.0
    for clip in range(B):
        scale = direct_scale(output, clips, clip)
        depth = clips.depth[clip].numpy()
        known = depth > 0
        truth = camera_rays(clips.cameras[clip], (H, W), 1).numpy() * depth[..., None]
        unit = np.linalg.norm(truth, axis=-1)[known].mean()
        points = output.points.detach().unflatten(0, (B, S))[clip].numpy() * scale
        sigma = output.confidence.detach().unflatten(0, (B, S))[clip].numpy()
        error = (points - truth) / unit
        total += (sigma * np.linalg.norm(error, axis=-1))[known].mean()
        along_y = np.abs(np.diff(error, axis=1)).sum(-1)
        along_x = np.abs(np.diff(error, axis=2)).sum(-1)
        total += (sigma[:, :-1] * along_y)[known[:, :-1] & known[:, 1:]].mean()
        total += (sigma[:, :, :-1] * along_x)[known[:, :, :-1] & known[:, :, 1:]].mean()
        total -= 0.3 * np.log(sigma)[known].mean()
    assert float(terms["points"]) == pytest.approx(total / B, rel=1e-6)


@pytest.mark.parametrize(
    "config",
    [
        LossConfig(scale="metric"),
        LossConfig(scale="metric", points="log_depth"),
        LossConfig(scale="metric", translation="direction"),
    ],
)
def test_gradients_match_finite_differences(config: LossConfig) -> None:
    clips, output = make_clips(), make_output()
    loss = Loss(config)
    leaves = [*output.poses, output.points, output.confidence]
    gradients = torch.autograd.grad(loss(output, clips)[0], leaves)
    rng = np.random.default_rng(3)
    for leaf, gradient in zip(leaves, gradients, strict=True):
        flat = leaf.detach().view(-1)
        for index in rng.choice(flat.numel(), 12, replace=False):
            kept, values = float(flat[index]), []
            for step in (1e-6, -1e-6):
                flat[index] = kept + step
                values.append(float(loss(output, clips)[0]))
            flat[index] = kept
            numeric = (values[0] - values[1]) / 2e-6
            assert float(gradient.view(-1)[index]) == pytest.approx(numeric, rel=1e-4, abs=1e-8)


def test_directions_count_whatever_the_length_of_a_step() -> None:
    """A translation of the right direction and half the length errs by a multiple of log 2 wherever it is."""
    loss = Loss(LossConfig(translation="direction"))
    true = torch.tensor([[0.3, 0.0, 0.4], [0.03, 0.0, 0.04]])
    halved, reversed_ = loss._translation_error(true, true / 2), loss._translation_error(true, -true)
    torch.testing.assert_close(halved, torch.full((2,), 0.3 * math.log(2)))
    torch.testing.assert_close(reversed_, torch.full((2,), 2.0))
    assert float(loss._translation_error(true * 1e-6, -true * 1e-6).max()) < 1e-3, "too short to see"


def test_what_is_not_known_does_not_count() -> None:
    clips, output = make_clips(), make_output()
    before = Loss(LossConfig())(output, clips)[0]
    with torch.no_grad():
        unknown = (clips.depth == 0).flatten(0, 1)
        output.points[unknown] += 100
        output.confidence[unknown] *= 7
    assert float(Loss(LossConfig())(output, clips)[0]) == pytest.approx(float(before), rel=1e-12)


def test_a_batch_of_two_is_the_mean_of_its_halves() -> None:
    clips, output = make_clips(), make_output()
    whole = float(Loss(LossConfig())(output, clips)[0])
    halves = []
    for k in range(B):
        part = Clips(
            *(x[k : k + 1] for x in (clips.images, clips.cameras, clips.depth, clips.camera_from_world))
        )
        rows = slice(k * S, (k + 1) * S)
        half = WindowOutput(
            [p[rows] for p in output.poses], output.ages[rows], output.gauge, output.points[rows],
            output.confidence[rows], output.tokens[rows], None, output.pairs,
        )  # fmt: skip
        halves.append(float(Loss(LossConfig())(half, part)[0]))
    assert whole == pytest.approx(np.mean(halves), rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_l1_scale_is_the_minimiser(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prediction, weight = rng.uniform(0.2, 3, (1, 41)), rng.random((1, 41))
    target = 2.5 * prediction + rng.standard_cauchy((1, 41))
    weight[0, ::7] = 0
    scale = float(l1_scale(*(torch.from_numpy(x) for x in (prediction, target, weight)))[0])

    def cost(s: float) -> float:
        return float((weight * np.abs(target - s * prediction)).sum())

    best = min(cost(r) for r in (target / prediction)[0])
    assert cost(scale) == pytest.approx(best, rel=1e-12)


def test_quaternions_agree_with_geometry() -> None:
    rotation = so3_exp(np.random.default_rng(0).standard_normal((100, 3)))
    wxyz = quat_from_rotation(rotation)
    found = quaternions_xyzw(torch.from_numpy(rotation)).numpy()
    np.testing.assert_allclose(found, np.roll(wxyz, -1, 1), atol=1e-12)


def test_relative_poses_point_from_anchor_to_member() -> None:
    clips = make_clips()
    found = relative_poses(clips.camera_from_world, torch.tensor([[[0, 1, -1]] * S] * B))
    poses = clips.camera_from_world
    torch.testing.assert_close(found[:, 2, 1], poses[:, 1] @ torch.linalg.inv(poses[:, 2]))
    torch.testing.assert_close(found[:, 1, 0], torch.eye(4, dtype=torch.float64).expand(B, 4, 4))


def test_cell_depth_is_exact_on_a_plane_and_silent_at_edges() -> None:
    v, u = torch.meshgrid(torch.arange(8.0), torch.arange(12.0), indexing="ij")
    inverse = 0.3 + 0.002 * u + 0.003 * v
    depth = (1 / inverse)[None].clone()
    centre_v, centre_u = torch.meshgrid(torch.arange(2) * 4 + 1.5, torch.arange(3) * 4 + 1.5, indexing="ij")
    expected = 1 / (0.3 + 0.002 * centre_u + 0.003 * centre_v)
    torch.testing.assert_close(cell_depth(depth, 4)[0], expected)
    depth[0, 1, 1] = 9.0
    depth[0, 6, 6] = 0.0
    found = cell_depth(depth, 4)[0]
    assert found[0, 0] == 0
    assert found[1, 1] == 0
    assert (found > 0).sum() == 4


def test_cell_depth_knows_flat_ground_up_to_the_horizon_but_no_edge_of_its_height() -> None:
    """Ground 1.5 m below a camera of 85 px focal length; the horizon lies between rows 7 and 8."""
    row = torch.arange(16.0)
    ground = torch.where(row > 7, 1.5 * 85 / (row - 7.5), 0)[:, None].expand(16, 16)[None].clone()
    found = cell_depth(ground, 4)[0]
    assert (found[:2] == 0).all()
    torch.testing.assert_close(found[2], torch.full((4,), 1.5 * 85 / 2))
    step = torch.where(row > 9, 10.0, 40.0)[:, None].expand(16, 16)[None].clone()
    assert (cell_depth(step, 4)[0, 2] == 0).all()


def test_far_points_count_but_do_not_set_the_unit() -> None:
    clips, output = make_clips(), make_output()
    far = replace(clips, depth=torch.where(clips.depth > clips.depth.median(), 300.0, clips.depth))
    config = LossConfig(scale="metric", translation="l1", points="log_depth")
    all_count = Loss(config)(output, far)[1]
    within = Loss(replace(config, horizon=100.0))(output, far)[1]
    torch.testing.assert_close(all_count["points"], within["points"])
    assert within["translation"] > 2 * all_count["translation"]


def test_masked_mean_weighs_entries_alike() -> None:
    x = torch.tensor([[1.0, 3.0, 100.0], [10.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert float(masked_mean(x, mask)) == pytest.approx((2 + 10) / 2)


def wall_clips() -> Clips:
    """Two views of a wall 4 m away; the second camera is 0.4 m further right."""
    images = torch.zeros(1, 2, 3, 32, 48)
    cameras = torch.tensor([40.0, 40.0, 23.5, 15.5]).expand(1, 2, 4)
    poses = torch.eye(4).repeat(1, 2, 1, 1)
    poses[0, 1, 0, 3] = -0.4
    return Clips(images, cameras, torch.full((1, 2, 32, 48), 4.0), poses)


def test_true_correspondences_of_a_wall() -> None:
    clips = wall_clips()
    found = true_correspondences(torch.tensor([[0, 1, 1]]), clips)
    # Seen from the second camera a point lies 0.4 · 40 / 4 = 4 px further right in the first.
    shift = found.pixel[0].view(8, 12, 2)[..., 0] - (torch.arange(12) * 4 + 1.5)
    torch.testing.assert_close(shift, torch.full((8, 12), 4.0))
    assert found.visible[0].view(8, 12)[:, :-1].all()
    assert not found.visible[0].view(8, 12)[:, -1].any()
    clips.depth[0, 0, :, :24] = 2.0
    occluded = true_correspondences(torch.tensor([[0, 1, 1]]), clips).visible[0].view(8, 12)
    assert not occluded[:, :4].any()
    assert occluded[:, 6:-1].all()


def test_perfect_matches_have_the_lowest_loss() -> None:
    clips, pairs = wall_clips(), torch.tensor([[0, 1, 1]])
    truth = true_correspondences(pairs, clips)
    cells = 8 * 12

    def loss_of(pixel: torch.Tensor, best: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = 10 * torch.nn.functional.one_hot(best, cells).float()
        matches = DenseMatches(
            pixel, torch.full((1, cells), -2.0), 6.0 * (2 * truth.visible.float() - 1),
            (logits, logits.logsumexp(-1)), pixel,
        )  # fmt: skip
        return match_loss(matches, pairs, clips)

    right = (torch.arange(cells) + 1).clamp(max=cells - 1)[None]
    perfect = loss_of(truth.pixel, right)
    shifted = loss_of(truth.pixel + 1.0, (right + 2).clamp(max=cells - 1))
    assert float(perfect["match_error_px"]) == 0
    assert float(shifted["match_error_px"]) == pytest.approx(2**0.5, rel=1e-5)
    for name in ("match_coarse", "match_fine", "match"):
        assert float(perfect[name]) < float(shifted[name])


def test_metres_hold_only_where_lengths_are_metres() -> None:
    """A clip in a scale of its own is compared at its best scale, whatever that is; its neighbour is not."""
    output, clips = make_output(), make_clips()
    config = LossConfig(scale="metric")
    grown = replace(
        clips,
        depth=clips.depth * torch.tensor([1.0, 7.0])[:, None, None, None],
        camera_from_world=_with_longer_steps(clips.camera_from_world, 7.0),
    )
    one_metric = torch.tensor([True, False])
    _, free = Loss(config)(output, replace(clips, metric=one_metric))
    _, free_grown = Loss(config)(output, replace(grown, metric=one_metric))
    (
        _,
        fixed,
    ) = Loss(config)(output, clips)
    _, fixed_grown = Loss(config)(output, grown)
    for name in ("camera", "points"):
        torch.testing.assert_close(free[name], free_grown[name])
        assert not torch.isclose(fixed[name], fixed_grown[name])


def _with_longer_steps(poses: torch.Tensor, factor: float) -> torch.Tensor:
    """Of the second clip."""
    longer = poses.clone()
    longer[1, :, :3, 3] *= factor
    return longer


def test_rotations_weigh_as_told() -> None:
    output, clips = make_output(), make_clips()
    _, plain = Loss(LossConfig())(output, clips)
    _, heavy = Loss(LossConfig(rotation_weight=5.0))(output, clips)
    torch.testing.assert_close(heavy["camera"], plain["camera"] + 4 * plain["rotation"])
