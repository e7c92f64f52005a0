"""A window sharpened by matches, the window before, and the pictures of a rendered world."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole, rotation_angle, so3_exp
from anchor3r.model.matching import Matches, cell_pixels
from anchor3r.predictors.network.photometric_alignment import grey
from anchor3r.predictors.network.reading import Reading
from anchor3r.predictors.network.refining import refined
from anchor3r.predictors.network.window_adjustment import AdjustmentConfig
from anchor3r.sources import open_source
from anchor3r.sources.frame import Frame

CELLS = (24, 32)
NUM_FRAMES = 9


@pytest.fixture(scope="module")
def frames() -> list[Frame]:
    uri = "world:201?kind=street&motion=driving&width=128&height=96&frames=60"
    return list(open_source(uri, stop=NUM_FRAMES))


@pytest.fixture(scope="module")
def slow_frames() -> list[Frame]:
    uri = "world:203?kind=open&motion=handheld&width=128&height=96&frames=300"
    return list(open_source(uri, stop=NUM_FRAMES))


def camera_of(frame: Frame) -> Pinhole:
    assert frame.intrinsics is not None
    return frame.intrinsics


def truth(frames: list[Frame], anchor: int) -> tuple[NDArray, SE3, NDArray]:
    """Ages, member_from_anchor and depths (24, 32) of the window that ends at `anchor`."""
    ages = np.arange(min(anchor, 5), 0, -1)
    poses = [frames[anchor - age].camera_from_world for age in (0, *ages)]
    relative = [pose @ poses[0].inverse() for pose in poses[1:] if pose is not None and poses[0] is not None]
    depth = frames[anchor].depth_m
    assert depth is not None
    inverse = 1 / np.where(depth > 0, depth, 1e3)
    blocks = inverse.reshape(24, 4, 32, 4)[:, 1:3, :, 1:3].mean((1, 3))
    return (
        ages,
        SE3(np.stack([p.rotation for p in relative]), np.stack([p.translation for p in relative])),
        1 / blocks,
    )


def matches_of(camera: Pinhole, poses: SE3, depth: NDArray, wrong: list[int]) -> Matches:
    """True matches with half a pixel of noise; of the `wrong` members, all as if nothing had moved."""
    rng = np.random.default_rng(0)
    cells = cell_pixels(96, 128).numpy().astype(np.float64)
    points = camera.unproject(cells, depth.reshape(-1))
    pixel = np.stack(
        [camera.project(points @ r.T + t) for r, t in zip(poses.rotation, poses.translation, strict=True)]
    )
    pixel += rng.normal(0, 0.5, pixel.shape)
    pixel[wrong] = cells
    inside = ((pixel >= 0) & (pixel <= [127, 95])).all(-1)
    return Matches(
        pixel=torch.from_numpy(pixel).float(),
        log_sigma=torch.full(pixel.shape[:2], float(np.log(0.5))),
        visible=torch.from_numpy(np.where(inside, 4.0, -4.0)).float(),
        coarse=None,
        fine_center=torch.empty(0),
    )


def start_of(frame: Frame, ages: NDArray, poses: SE3, depth: NDArray) -> Reading:
    """What heads might predict: turned by a degree, motions too long, depths a quarter off."""
    rng = np.random.default_rng(1)
    guessed = depth * np.exp(rng.normal(0, 0.25, depth.shape))
    points = camera_of(frame).resized(CELLS[1], CELLS[0]).unproject_map(guessed).astype(np.float32)
    rotation = so3_exp(np.radians(rng.normal(0, 0.5, (len(ages), 3)))) @ poses.rotation
    return Reading(ages, rotation, 1.2 * poses.translation, None, points, np.ones(CELLS, np.float32))


def window(
    frames: list[Frame], anchor: int, wrong: list[int], last: Reading | None, *, older: bool = False
) -> tuple[Reading, SE3, NDArray]:
    """The window that ends at `anchor`, refined, with its true poses and depths; `older` gives it more
    images than it has members."""
    ages, poses, depth = truth(frames, anchor)
    camera = camera_of(frames[anchor])
    matches = matches_of(camera, poses, depth, wrong)
    kept = range(0 if older else anchor - len(ages), anchor + 1)
    images = {anchor - k: grey(frames[k].image) for k in kept}
    start = start_of(frames[anchor], ages, poses, depth)
    config = AdjustmentConfig()
    return refined(start, matches, torch.from_numpy(ages), images, camera, last, config), poses, depth


def turn_errors_deg(found: Reading, poses: SE3) -> NDArray:
    return np.degrees(rotation_angle(found.rotation @ np.swapaxes(poses.rotation, 1, 2)))


def length_errors(found: Reading, poses: SE3) -> NDArray:
    """How far each motion is off the window's own unit, as a logarithm."""
    ratio = np.log(np.linalg.norm(found.translation, axis=1) / np.linalg.norm(poses.translation, axis=1))
    return np.abs(ratio - np.median(ratio))


def test_pictures_sharpen_poses_and_depths(frames: list[Frame]) -> None:
    found, poses, depth = window(frames, 5, [], None)
    assert turn_errors_deg(found, poses).max() < 0.15
    assert length_errors(found, poses).max() < 0.03
    off = np.log(found.points[..., 2] / depth)
    assert np.median(np.abs(off - np.median(off))) < 0.1
    assert found.covariance is not None


def test_the_window_before_helps_where_matches_fail(frames: list[Frame]) -> None:
    last, _, _ = window(frames, 5, [], None)
    alone, poses, _ = window(frames, 6, [0, 1], None)
    helped, _, _ = window(frames, 6, [0, 1], last)
    assert length_errors(alone, poses)[:2].max() > 0.3, "the failure is one"
    assert length_errors(helped, poses).max() < 0.05
    assert turn_errors_deg(helped, poses).max() < 0.2


def test_the_camera_goes_on_as_before_where_all_matches_fail(frames: list[Frame]) -> None:
    last, _, _ = window(frames, 5, [], None)
    everywhere = [0, 1, 2, 3, 4]
    alone, poses, _ = window(frames, 6, everywhere, None)
    helped, _, _ = window(frames, 6, everywhere, last)
    assert length_errors(alone, poses).max() > 0.3, "the failure is one"
    assert length_errors(helped, poses).max() < 0.05
    assert turn_errors_deg(helped, poses).max() < 0.2


def test_a_wrong_window_before_does_no_harm(frames: list[Frame]) -> None:
    last, _, _ = window(frames, 5, [], None)
    aside = so3_exp(np.array([0.0, 0.3, 0.0]))
    wrong = Reading(last.ages, aside @ last.rotation, last.translation, None, last.points, last.confidence)
    found, poses, _ = window(frames, 6, [], wrong)
    assert turn_errors_deg(found, poses).max() < 0.15
    assert length_errors(found, poses).max() < 0.03


def test_older_frames_stay_in_sight(slow_frames: list[Frame]) -> None:
    """And the depths are better for them."""
    alone: Reading | None = None
    helped: Reading | None = None
    for anchor in (5, 6, 7, 8):
        alone, _, depth = window(slow_frames, anchor, [], alone)
        helped, _, _ = window(slow_frames, anchor, [], helped, older=True)
    assert alone is not None
    assert alone.ages.tolist() == [5, 4, 3, 2, 1]
    assert helped is not None
    assert sorted(helped.ages.tolist()) == [1, 2, 3, 4, 5, 6, 7, 8]
    first, anchor_pose = slow_frames[0].camera_from_world, slow_frames[8].camera_from_world
    assert first is not None
    assert anchor_pose is not None
    oldest = helped.ages.tolist().index(8)
    true = (first @ anchor_pose.inverse()).rotation
    assert np.degrees(rotation_angle(helped.rotation[oldest] @ true.T)) < 0.15
    spread = [
        np.median(np.abs(off - np.median(off)))
        for off in (np.log(found.points[..., 2] / depth) for found in (alone, helped))
    ]
    assert spread[1] < spread[0]


def test_an_older_frame_that_looks_different_is_lost(slow_frames: list[Frame]) -> None:
    last, _, _ = window(slow_frames, 5, [], None)
    aside = np.where((last.ages == 5)[:, None, None], so3_exp(np.array([0.0, 0.5, 0.0])), np.eye(3))
    wrong = Reading(last.ages, aside @ last.rotation, last.translation, None, last.points, last.confidence)
    found, _, _ = window(slow_frames, 6, [], wrong, older=True)
    assert found.ages.tolist() == [5, 4, 3, 2, 1]


def test_an_older_frame_is_given_up_when_it_is_far_behind(frames: list[Frame]) -> None:
    found: Reading | None = None
    for anchor in range(5, NUM_FRAMES):
        found, _, _ = window(frames, anchor, [], found, older=True)
    assert found is not None
    assert 8 not in found.ages
