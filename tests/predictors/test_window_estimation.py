"""The window step of the correlation preset: measured windows, scales, depths, covariances."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole, rotation_angle, so3_exp
from anchor3r.model.matching import DenseMatches, cell_pixels
from anchor3r.pose_graph.edges import Edges, MotionGraph
from anchor3r.pose_graph.joint import refine_poses
from anchor3r.predictors.network.window_estimation import (
    CovarianceInflationConfig,
    WindowEstimate,
    WindowEstimationConfig,
    compare_scales,
    confidence_of,
    fuse_depths,
    inflate_covariance,
    information_of,
    measure_window,
)
from anchor3r.robust import Estimate
from anchor3r.sources import open_source
from anchor3r.sources.frame import Frame

CONFIG = WindowEstimationConfig()
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


def grey_of(frame: Frame) -> NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(frame.image, cv2.COLOR_RGB2GRAY), np.uint8)


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


def matches_of(camera: Pinhole, poses: SE3, depth: NDArray, wrong: list[int]) -> DenseMatches:
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
    return DenseMatches(
        pixel=torch.from_numpy(pixel).float(),
        log_sigma=torch.full(pixel.shape[:2], float(np.log(0.5))),
        visible=torch.from_numpy(np.where(inside, 4.0, -4.0)).float(),
        coarse=None,
        fine_center=torch.empty(0),
    )


def start_of(frame: Frame, ages: NDArray, poses: SE3, depth: NDArray) -> WindowEstimate:
    """What heads might predict: turned by a degree, motions too long, depths a quarter off."""
    rng = np.random.default_rng(1)
    guessed = depth * np.exp(rng.normal(0, 0.25, depth.shape))
    points = camera_of(frame).resized(CELLS[1], CELLS[0]).unproject_map(guessed).astype(np.float32)
    rotation = so3_exp(np.radians(rng.normal(0, 0.5, (len(ages), 3)))) @ poses.rotation
    return WindowEstimate(
        ages=ages,
        rotation=rotation,
        translation=1.2 * poses.translation,
        points=points,
        confidence=np.ones(CELLS, np.float32),
    )


def window(
    frames: list[Frame],
    anchor: int,
    wrong: list[int],
    previous: WindowEstimate | None,
    *,
    older: bool = False,
) -> tuple[WindowEstimate, SE3, NDArray]:
    """The window that ends at `anchor`, measured, with its true poses and depths; `older` gives it more
    images than it has members."""
    ages, poses, depth = truth(frames, anchor)
    camera = camera_of(frames[anchor])
    matches = matches_of(camera, poses, depth, wrong)
    kept = range(0 if older else anchor - len(ages), anchor + 1)
    images = {anchor - k: grey_of(frames[k]) for k in kept}
    start = start_of(frames[anchor], ages, poses, depth)
    found = measure_window(start, matches, torch.from_numpy(ages), images, camera, previous, CONFIG)
    return found, poses, depth


def turn_errors_deg(found: WindowEstimate, poses: SE3) -> NDArray:
    return np.degrees(rotation_angle(found.rotation @ np.swapaxes(poses.rotation, 1, 2)))


def length_errors(found: WindowEstimate, poses: SE3) -> NDArray:
    """How far each motion is off the window's own scale, as a logarithm."""
    ratio = np.log(np.linalg.norm(found.translation, axis=1) / np.linalg.norm(poses.translation, axis=1))
    return np.abs(ratio - np.median(ratio))


def test_images_give_better_poses_and_depths(frames: list[Frame]) -> None:
    found, poses, depth = window(frames, 5, [], None)
    assert turn_errors_deg(found, poses).max() < 0.15
    assert length_errors(found, poses).max() < 0.03
    off = np.log(found.points[..., 2] / depth)
    assert np.median(np.abs(off - np.median(off))) < 0.1
    assert found.covariance is not None


def test_the_previous_window_helps_where_matches_fail(frames: list[Frame]) -> None:
    previous, _, _ = window(frames, 5, [], None)
    alone, poses, _ = window(frames, 6, [0, 1], None)
    helped, _, _ = window(frames, 6, [0, 1], previous)
    assert length_errors(alone, poses)[:2].max() > 0.3, "the failure is one"
    assert length_errors(helped, poses).max() < 0.05
    assert turn_errors_deg(helped, poses).max() < 0.2


def test_the_camera_goes_on_as_before_where_all_matches_fail(frames: list[Frame]) -> None:
    previous, _, _ = window(frames, 5, [], None)
    everywhere = [0, 1, 2, 3, 4]
    alone, poses, _ = window(frames, 6, everywhere, None)
    helped, _, _ = window(frames, 6, everywhere, previous)
    assert length_errors(alone, poses).max() > 0.3, "the failure is one"
    assert length_errors(helped, poses).max() < 0.05
    assert turn_errors_deg(helped, poses).max() < 0.2


def test_a_wrong_previous_window_does_no_harm(frames: list[Frame]) -> None:
    previous, _, _ = window(frames, 5, [], None)
    aside = so3_exp(np.array([0.0, 0.3, 0.0]))
    wrong = replace(previous, rotation=aside @ previous.rotation, covariance=None)
    found, poses, _ = window(frames, 6, [], wrong)
    assert turn_errors_deg(found, poses).max() < 0.15
    assert length_errors(found, poses).max() < 0.03


def test_older_frames_stay_in_sight(slow_frames: list[Frame]) -> None:
    """And the depths are better for them."""
    alone: WindowEstimate | None = None
    helped: WindowEstimate | None = None
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
    previous, _, _ = window(slow_frames, 5, [], None)
    aside = np.where((previous.ages == 5)[:, None, None], so3_exp(np.array([0.0, 0.5, 0.0])), np.eye(3))
    wrong = replace(previous, rotation=aside @ previous.rotation, covariance=None)
    found, _, _ = window(slow_frames, 6, [], wrong, older=True)
    assert found.ages.tolist() == [5, 4, 3, 2, 1]


def test_an_older_frame_is_given_up_when_it_is_far_behind(frames: list[Frame]) -> None:
    found: WindowEstimate | None = None
    for anchor in range(5, NUM_FRAMES):
        found, _, _ = window(frames, anchor, [], found, older=True)
    assert found is not None
    assert 8 not in found.ages


CAMERA = Pinhole.from_fov(70, 32, 24)
TURN, MOVE = so3_exp(np.array([0.01, -0.03, 0.005])), np.array([0.1, 0.02, 0.4])  # last from this anchor
MOTION = SE3(TURN, MOVE)
NORMAL = np.array([0.05, 0.19, 0.31])  # the scene is the plane NORMAL . point = 1 in this anchor


def plane_map(normal: NDArray, shape: tuple[int, int] = CELLS) -> NDArray[np.float32]:
    """(h, w, 3) where the camera's rays meet a plane."""
    rays = CAMERA.resized(shape[1], shape[0]).unproject_map(np.ones(shape))
    return (rays / (rays @ normal)[..., None]).astype(np.float32)


def estimate(points: NDArray[np.float32], information: float) -> WindowEstimate:
    confidence = np.full(points.shape[:2], confidence_of(np.array(information)), np.float32)
    return WindowEstimate(
        ages=np.array([1]), rotation=TURN[None], translation=MOVE[None], points=points, confidence=confidence
    )


def seen_before(shape: tuple[int, int] = CELLS) -> WindowEstimate:
    """The same plane from the previous anchor: its points are TURN p + MOVE."""
    normal = TURN @ NORMAL
    return estimate(plane_map(normal / (1 + normal @ MOVE), shape), 400.0)


@pytest.fixture
def this() -> WindowEstimate:
    return estimate(plane_map(NORMAL), 400.0)


@pytest.fixture
def last() -> WindowEstimate:
    return seen_before()


def compare(
    this: WindowEstimate, last: WindowEstimate, *, measured: bool = False, motion: SE3 = MOTION
) -> Estimate | None:
    information = information_of(this.confidence) if measured else None
    return compare_scales(this.points, motion, last, CAMERA, CONFIG.scale, information=information)


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_the_ratio_of_scales_of_one_scene(this: WindowEstimate, last: WindowEstimate, factor: float) -> None:
    """A depth that reads 2 before and 1 now: this window's scale is twice as large."""
    ratio = compare(this, replace(last, points=last.points * np.float32(factor)))
    assert ratio is not None
    assert ratio.value == pytest.approx(np.log(factor), abs=1e-4), "between cells of a plane it is exact"


def test_point_maps_of_any_size_are_compared() -> None:
    """OpenCV takes no image with a side beyond 32,767, and this one has six times as many points."""
    shape = (392, 518)
    this, last = estimate(plane_map(NORMAL, shape), 400.0), seen_before(shape)
    ratio = compare(this, replace(last, points=last.points * np.float32(2)))
    assert ratio is not None
    assert ratio.value == pytest.approx(np.log(2), abs=1e-4)
    fused = fuse_depths(this, last, CAMERA, CONFIG.fusion)
    np.testing.assert_allclose(fused.points, this.points, rtol=1e-3)


def test_a_ratio_is_not_surer_than_the_motion_allows(this: WindowEstimate, last: WindowEstimate) -> None:
    """Exact depths have no spread between cells; what matches share is a part of the motion over depth."""
    ratio = compare(this, last)
    assert ratio is not None
    nearness = np.median(1 / this.points[..., 2])
    expected = CONFIG.scale.motion_sigma * np.linalg.norm(MOVE) * nearness
    assert ratio.sigma == pytest.approx(expected, rel=1e-6)
    still = compare(this, this, motion=SE3(np.eye(3), np.zeros(3)))
    assert still is not None
    assert still.sigma == CONFIG.scale.min_sigma < expected / 2


def test_a_ratio_follows_what_was_measured(this: WindowEstimate, last: WindowEstimate) -> None:
    """Two thirds of the cells were not, and are a fifth farther away than they were."""
    points, confidence = this.points.copy(), this.confidence.copy()
    points[:16] *= 1.2
    confidence[:16] = confidence_of(np.array(1.0))
    vague = replace(this, points=points, confidence=confidence)
    weighted, plain = compare(vague, last, measured=True), compare(vague, last)
    assert weighted is not None
    assert plain is not None
    assert weighted.value == pytest.approx(0, abs=1e-3)
    # What the network predicts has a confidence of another kind, which does not count.
    assert plain.value == pytest.approx(-np.log(1.2), abs=0.05)


def test_without_a_common_view_there_is_no_ratio(this: WindowEstimate, last: WindowEstimate) -> None:
    aside = SE3(so3_exp(np.array([0.0, 2.0, 0.0])), MOVE)
    assert compare(this, last, motion=aside) is None


def test_fusion_halves_the_variance_of_noisy_depths(this: WindowEstimate, last: WindowEstimate) -> None:
    rng = np.random.default_rng(0)
    noise = np.exp(rng.normal(0, 0.05, (24, 32, 1))).astype(np.float32)
    noisy = replace(this, points=this.points * noise)
    found = fuse_depths(noisy, last, CAMERA, CONFIG.fusion)
    inside = np.s_[4:-4, 4:-4]
    before, after = (
        np.abs(np.log(window.points[..., 2] / this.points[..., 2]))[inside].mean()
        for window in (noisy, found)
    )
    assert after < 0.65 * before
    assert (information_of(found.confidence)[inside] > 1.5 * 400).all()


def test_fusion_does_not_move_what_it_cannot_have_seen(this: WindowEstimate, last: WindowEstimate) -> None:
    """Something new, at half the depth, is no second measurement of what was there."""
    points = this.points.copy()
    points[8:16, 10:20] *= 0.5
    found = fuse_depths(replace(this, points=points), last, CAMERA, CONFIG.fusion)
    np.testing.assert_allclose(found.points[9:15, 11:19], points[9:15, 11:19], rtol=1e-6)


def test_what_is_known_does_not_grow_without_end(this: WindowEstimate, last: WindowEstimate) -> None:
    sure = replace(last, confidence=np.full((24, 32), confidence_of(np.array(1e9)), np.float32))
    found = fuse_depths(this, sure, CAMERA, CONFIG.fusion)
    assert information_of(found.confidence).max() <= 1.001 * CONFIG.fusion.min_sigma**-2


DEPTH, STEP, ERROR = 2.0, 0.01, 0.0025
"""Metres: a slow camera in a room, and errors of its motion as real video shows them."""


def length_of_a_slow_walk(inflation: CovarianceInflationConfig) -> float:
    """What is left of a straight walk after averaging, as a part of it."""
    rng = np.random.default_rng(0)
    windows = []
    ages = np.arange(1, 6)
    count = 80
    for anchor in range(1, count):
        k = min(anchor, len(ages))
        adjusted = WindowEstimate(
            ages=ages[:k],
            rotation=np.tile(np.eye(3), (k, 1, 1)),
            translation=np.stack([STEP * ages[:k], 0 * ages[:k], 0 * ages[:k]], 1)
            + rng.normal(0, ERROR, (k, 3)),
            covariance=np.tile(np.diag(np.repeat([1e-3, 2e-4], 3) ** 2), (k, 1, 1)),
            points=np.full((4, 6, 3), DEPTH, np.float32),
            confidence=np.ones((4, 6), np.float32),
        )
        seen = inflate_covariance(adjusted, inflation)
        assert seen.covariance is not None
        windows.append((anchor, seen, np.linalg.inv(seen.covariance)))
    anchors = np.repeat([anchor for anchor, _, _ in windows], [len(seen.ages) for _, seen, _ in windows])
    edges = Edges.of(
        anchors - np.concatenate([seen.ages for _, seen, _ in windows]), anchors,
        np.concatenate([seen.rotation for _, seen, _ in windows]),
        np.concatenate([seen.translation for _, seen, _ in windows]),
        group=anchors, information=np.concatenate([information for _, _, information in windows]),
    )  # fmt: skip
    start = SE3(np.tile(np.eye(3), (count, 1, 1)), -STEP * np.outer(np.arange(count), [1, 0, 0]))
    center = refine_poses(MotionGraph(edges), start)[0].camera_from_world.center()
    return float(np.linalg.norm(center[-1] - center[0]) / (STEP * (count - 1)))


def test_a_slow_walk_keeps_its_length() -> None:
    assert length_of_a_slow_walk(CONFIG.inflation) == pytest.approx(1, abs=0.15)


def test_it_would_not_if_errors_were_a_part_of_the_motion_alone() -> None:
    assert length_of_a_slow_walk(replace(CONFIG.inflation, translation_sigma_of_depth=0.0)) < 0.7


def test_a_window_without_covariances_stays_without(this: WindowEstimate) -> None:
    assert inflate_covariance(this, CONFIG.inflation) is this
