"""Clips: which frames, and what happens to their pictures and cameras."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_data import WallSequence

from anchor3r.geometry import SE3, so3_exp
from anchor3r.training.clips import stack_clips
from anchor3r.training.data import clip_indices
from anchor3r.training.sampling import (
    NO_AUGMENTATION,
    AugmentConfig,
    SamplingConfig,
    make_clip,
    sample_by_pose,
    sample_video,
    shuffle_within_blocks,
    vary_colours,
)


@pytest.mark.parametrize("seed", range(20))
def test_video_clips_keep_their_interval_and_stay_inside(seed: int) -> None:
    rng = np.random.default_rng(seed)
    indices = sample_video(50, 8, rng, SamplingConfig(max_interval=5))
    steps = np.diff(indices)
    assert indices.min() >= 0
    assert indices.max() < 50
    assert (steps > 0).all() or (steps < 0).all()
    assert np.abs(steps).max() <= 5


def test_fixed_interval_probability() -> None:
    rng = np.random.default_rng(0)
    config = SamplingConfig(max_interval=6, fixed_probability=0.3)
    fixed = [len(set(np.diff(sample_video(99, 9, rng, config)))) == 1 for _ in range(500)]
    assert 0.22 < np.mean(fixed) < 0.38


def test_short_sequences_shrink_the_interval_or_are_refused() -> None:
    rng = np.random.default_rng(0)
    assert sorted(sample_video(8, 8, rng, SamplingConfig(max_interval=9)).tolist()) == list(range(8))
    with pytest.raises(ValueError, match="cannot come from a sequence of 7"):
        sample_video(7, 8, rng, SamplingConfig())


def test_of_several_candidates_the_one_that_turns_most_is_used() -> None:
    """A path that is straight but for frames 30 to 34: with enough candidates every clip has the turn."""
    sequence = WallSequence(np.random.default_rng(0), (48, 64), 60)
    angle = np.radians(np.clip(np.arange(60) - 30, 0, 5) * 5.0)
    zero = np.zeros_like(angle)
    sequence.camera_from_world = SE3(so3_exp(np.stack([zero, angle, zero], -1)), np.zeros((60, 3)))

    def share_with_turn(candidates: int) -> float:
        config = SamplingConfig(max_interval=1, candidates=candidates)
        clips = [clip_indices(sequence, 8, np.random.default_rng(seed), config) for seed in range(40)]
        return float(np.mean([clip.min() < 35 and clip.max() > 30 for clip in clips]))

    assert share_with_turn(1) < 0.5
    assert share_with_turn(12) > 0.85


def test_blocks_are_shuffled_inside_and_keep_their_order() -> None:
    indices = np.arange(100, 124)
    shuffled = shuffle_within_blocks(indices, np.random.default_rng(3), 8)
    for start in range(0, 24, 8):
        block = shuffled[start : start + 8]
        assert sorted(block.tolist()) == indices[start : start + 8].tolist()
        assert block.tolist() != indices[start : start + 8].tolist()


def test_a_window_of_a_shuffled_clip_sees_frames_of_two_neighbouring_blocks_at_most() -> None:
    """Else its frames show places that have nothing in common, and there is nothing to be learned."""
    config = SamplingConfig(
        max_interval=4, video_probability=0.0, fixed_probability=0.5, block=16, reverse_probability=0.0
    )
    for seed in range(20):
        clip = sample_video(400, 48, np.random.default_rng(seed), config)
        assert (np.diff(clip) != np.diff(np.sort(clip))).any()
        spans = [np.ptp(clip[t : t + 10]) for t in range(39)]
        assert max(spans) <= 31 * config.max_interval


def test_pictures_without_order_are_chained_by_overlap() -> None:
    rng = np.random.default_rng(0)
    # Two places 100 m apart: a chain that starts in one must not jump to the other.
    centers = np.concatenate([rng.normal(0, 1, (20, 3)), rng.normal(100, 1, (20, 3))])
    poses = SE3(np.broadcast_to(np.eye(3), (40, 3, 3)), -centers)
    for _ in range(10):
        chain = sample_by_pose(poses, 6, rng)
        assert len(set(chain.tolist())) == 6
        assert len({int(k >= 20) for k in chain}) == 1


@pytest.mark.parametrize("size", [(48, 64), (32, 80)])
def test_a_cropped_clip_still_projects_where_it_should(size: tuple[int, int]) -> None:
    """A point of the wall has to land on the same texture in every augmented frame: depth, pose and
    intrinsics stay consistent through crop and resize."""
    rng = np.random.default_rng(5)
    sequence = WallSequence(rng, (96, 128), 4)
    frames = [sequence.read(i) for i in range(4)]
    clip = make_clip(
        frames, len(frames), size, rng, AugmentConfig(min_crop=0.5, grey_probability=0, flicker=0)
    )
    assert clip.images.shape == (1, 4, 3, *size)
    pose, camera = clip.camera_from_world[0].double().numpy(), clip.cameras[0].double().numpy()
    np.testing.assert_allclose(pose[0], np.eye(4), atol=1e-6)
    u, v = size[1] // 2, size[0] // 2
    z = float(clip.depth[0, 0, v, u])
    point = z * np.array([(u - camera[0, 2]) / camera[0, 0], (v - camera[0, 3]) / camera[0, 1], 1])
    moved = pose[2, :3, :3] @ point + pose[2, :3, 3]
    x = moved[0] / moved[2] * camera[2, 0] + camera[2, 2]
    y = moved[1] / moved[2] * camera[2, 1] + camera[2, 3]
    assert 0 <= round(x) < size[1]
    assert 0 <= round(y) < size[0]
    assert float(clip.depth[0, 2, round(y), round(x)]) == pytest.approx(moved[2], rel=0.01)
    difference = clip.images[0, 0, :, v, u] - clip.images[0, 2, :, round(y), round(x)]
    assert float(difference.abs().max()) < 0.12


def test_frames_without_truth_are_refused() -> None:
    rng = np.random.default_rng(0)
    frame = WallSequence(rng, (48, 64), 1).read(0)
    bare = type(frame)(index=7, timestamp_s=0, image=frame.image)
    with pytest.raises(ValueError, match="frame 7 lacks pose or intrinsics"):
        make_clip([bare], 1, (48, 64), rng, AugmentConfig())


def test_colours_vary_within_range_and_can_be_lost() -> None:
    images = np.random.default_rng(0).random((3, 8, 8, 3)).astype(np.float32)
    grey = vary_colours(images, np.random.default_rng(1), AugmentConfig(grey_probability=1))
    assert np.abs(grey - grey[..., :1]).max() < 1e-6
    same = AugmentConfig(brightness=0, contrast=0, saturation=0, grey_probability=0, flicker=0)
    np.testing.assert_allclose(vary_colours(images, np.random.default_rng(1), same), images, atol=1e-6)
    varied = vary_colours(images, np.random.default_rng(2), AugmentConfig())
    assert varied.min() >= 0
    assert varied.max() <= 1
    assert np.abs(varied - images).max() > 0.02


def test_pictures_as_they_are_travel_in_bytes_and_arrive_in_unit_range() -> None:
    """The same pictures as with colours varied by nothing, in a quarter of the memory."""
    sequence = WallSequence(np.random.default_rng(0), (48, 64), 3)
    frames = [sequence.read(k) for k in range(3)]
    bare = make_clip(frames, len(frames), (32, 40), np.random.default_rng(1), NO_AUGMENTATION)
    almost = replace(NO_AUGMENTATION, flicker=1e-9)
    varied = make_clip(frames, len(frames), (32, 40), np.random.default_rng(1), almost)
    assert bare.images.dtype == torch.uint8
    batch = stack_clips([bare, bare]).to("cpu")
    torch.testing.assert_close(batch.images[:1], varied.images, rtol=0, atol=1e-6)
    assert torch.equal(batch.depth[1:], varied.depth)
