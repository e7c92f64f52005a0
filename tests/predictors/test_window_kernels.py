"""Photometric alignment and bundle adjustment of one window, on geometry that is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole, rotation_angle, so3_exp
from anchor3r.predictors.network.window_kernels import (
    GreyImage,
    PhotometricAlignmentConfig,
    WindowAdjustmentConfig,
    WindowGeometry,
    WindowImages,
    _normal_equations,
    adjust_window,
    align_images,
    blend_depths,
    halved,
    image_differences,
    match_noise,
)

ALIGNMENT = PhotometricAlignmentConfig()
CAMERA = Pinhole(100.0, 100.0, 47.5, 31.5, 96, 64)
GRID = (16, 24)
TILT = np.array([0.003, 0.002])  # inverse depth per ray unit of the plane that is seen
MOVE = np.array([0.12, -0.05, 0.3])
TURN = so3_exp(np.array([0.01, -0.015, 0.02]))


def align(
    anchor: GreyImage,
    member: GreyImage,
    camera: Pinhole,
    inverse_depth: NDArray,
    rotation: NDArray,
    translation: NDArray,
) -> tuple[NDArray, NDArray]:
    images = WindowImages(anchor, [member], camera)
    poses = SE3(rotation[None], translation[None])
    found, information = align_images(images, inverse_depth, poses, ALIGNMENT)
    return found[0], information[0]


def rays_of(columns: NDArray, rows: NDArray, camera: Pinhole) -> NDArray:
    return np.stack([(columns - camera.cx) / camera.fx, (rows - camera.cy) / camera.fy], -1)


def cell_rays() -> NDArray:
    columns, rows = np.meshgrid(4 * np.arange(GRID[1]) + 1.5, 4 * np.arange(GRID[0]) + 1.5)
    return rays_of(columns, rows, CAMERA)


def inverse_depth_at(rays: NDArray) -> NDArray:
    return 0.2 + rays @ TILT * 10


def seen_from_member(rays: NDArray) -> NDArray:
    """Where the plane's points on the anchor's rays lie in the member, as rays."""
    homogeneous = np.concatenate([rays, np.ones((*rays.shape[:-1], 1))], -1)
    moved = homogeneous @ TURN.T + inverse_depth_at(rays)[..., None] * MOVE
    return moved[..., :2] / moved[..., 2:]


def texture(rays: NDArray) -> GreyImage:
    """A pattern painted on the anchor's rays, at any place: waves of many directions."""
    rng = np.random.default_rng(3)
    value = np.zeros(rays.shape[:-1])
    for angle, length, phase in rng.uniform([0, 9, 0], [np.pi, 20, 2 * np.pi], (12, 3)):
        value += np.sin(2 * np.pi * 100 / length * (rays @ [np.cos(angle), np.sin(angle)]) + phase)
    return np.asarray(128 + 25 * value, np.float32)


@pytest.fixture(scope="module")
def images() -> tuple[GreyImage, GreyImage]:
    """The anchor, and the member: its pixels looked up by inverting the plane's warp."""
    columns, rows = np.meshgrid(np.arange(96.0), np.arange(64.0))
    wanted = rays_of(columns, rows, CAMERA)
    rays = wanted.copy()
    for _ in range(30):
        rays = rays + wanted - seen_from_member(rays)
    return texture(wanted), texture(rays)


def errors_px(found: NDArray) -> NDArray:
    return np.linalg.norm(found.reshape(*GRID, 2) - seen_from_member(cell_rays()), axis=-1)[2:-2, 2:-2] * 100


def test_the_right_geometry_needs_no_step(images: tuple[GreyImage, GreyImage]) -> None:
    found, _ = align(*images, CAMERA, inverse_depth_at(cell_rays()), TURN, MOVE)
    assert np.median(errors_px(found)) < 0.02


@pytest.mark.parametrize(("half", "better"), [(False, 0.3), (True, 0.5)])
def test_a_wrong_pose_is_put_right_by_the_images(
    images: tuple[GreyImage, GreyImage], half: bool, better: float
) -> None:
    off = TURN @ so3_exp(np.array([0.006, -0.008, 0.0]))  # about a pixel
    depth = inverse_depth_at(cell_rays())
    flat = [np.full((64, 96), 128, np.float32)] * 2
    expected, nothing = align(flat[0], flat[1], CAMERA, depth, off, MOVE)
    assert np.abs(nothing).max() < 1, "flat images tell nothing, and a match stays where it was expected"
    small = [halved(image, ALIGNMENT) if half else image for image in images]
    camera = CAMERA.resized(small[0].shape[1], small[0].shape[0])
    found, _ = align(small[0], small[1], camera, depth, off, MOVE)
    assert 0.7 < np.median(errors_px(expected)) < ALIGNMENT.max_step_px
    assert np.median(errors_px(found)) < better * np.median(errors_px(expected))


def test_brightness_may_change(images: tuple[GreyImage, GreyImage]) -> None:
    anchor, member = images
    args = (CAMERA, inverse_depth_at(cell_rays()), TURN, MOVE)
    np.testing.assert_allclose(
        align(anchor, member + 40, *args)[0], align(anchor, member, *args)[0], atol=1e-5
    )


def test_an_edge_informs_across_itself_alone() -> None:
    columns = np.tile(np.arange(96.0), (64, 1))
    edge = np.asarray(128 + 100 * np.tanh((columns - 47.5) / 3), np.float32)
    still = np.full(GRID, 0.1)
    _, information = align(edge, edge, CAMERA, still, np.eye(3), np.zeros(3))
    at_edge = information.reshape(*GRID, 2, 2)[8, 12]
    assert at_edge[0, 0] > 0
    assert abs(at_edge[1, 1]) < 1e-6 * at_edge[0, 0]


def test_information_foretells_the_error_under_noise(images: tuple[GreyImage, GreyImage]) -> None:
    """Mahalanobis distances of two numbers with a standard deviation each: 2 in the mean."""
    rng = np.random.default_rng(0)
    depth, truth = inverse_depth_at(cell_rays()), seen_from_member(cell_rays()).reshape(-1, 2)
    squared = []
    for _ in range(5):
        noisy = [image + rng.normal(0, 2, image.shape).astype(np.float32) for image in images]
        found, information = align(noisy[0], noisy[1], CAMERA, depth, TURN, MOVE)
        error = found - truth
        known = np.trace(information, axis1=1, axis2=2) > 0
        squared.append(np.einsum("pi,pij,pj->p", error, information, error)[known])
    assert 0.3 < np.mean(np.concatenate(squared)) < 3


def test_outside_the_member_nothing_is_known(images: tuple[GreyImage, GreyImage]) -> None:
    aside = so3_exp(np.array([0.0, 0.5, 0.0]))
    found, information = align(*images, CAMERA, inverse_depth_at(cell_rays()), aside, MOVE)
    columns = found[:, 0] * 100 + 47.5
    assert (columns > 100).any()
    assert not information[columns > 100].any()


def test_images_differ_least_under_the_right_geometry(images: tuple[GreyImage, GreyImage]) -> None:
    anchor, member = images
    away = so3_exp(np.array([0.0, 0.9, 0.0]))
    poses = SE3(np.stack([TURN, np.eye(3), TURN, away]), np.stack([MOVE, MOVE, MOVE, MOVE]))
    seen = WindowImages(anchor, [member, member, member + 40, member], CAMERA)
    right, wrong, brighter, unseen = image_differences(seen, inverse_depth_at(cell_rays()), poses, ALIGNMENT)
    assert right < 0.3 * wrong
    assert brighter == pytest.approx(right, rel=1e-4)
    assert unseen == np.inf


def test_a_halved_image_keeps_its_brightness(images: tuple[GreyImage, GreyImage]) -> None:
    small = halved(images[0], ALIGNMENT)
    assert small.shape == (32, 48)
    assert small.mean() == pytest.approx(images[0].mean(), abs=0.5)


FOCAL = 100.0


def scene(rng: np.random.Generator, members: int = 4) -> tuple[NDArray, NDArray, SE3]:
    """Rays (P, 2), depths (P,) and poses member_from_anchor of a short drive; P = 12 × 16."""
    y, x = np.mgrid[0:12, 0:16]
    rays = np.stack([(x.ravel() * 8 - 60) / FOCAL, (y.ravel() * 8 - 44) / FOCAL], 1)
    steps = np.arange(1, members + 1)[:, None]
    rotation = so3_exp(steps * [0.002, 0.012, -0.003])
    return rays, rng.uniform(3, 25, len(rays)), SE3(rotation, steps * [0.03, 0.01, 0.7])


def geometry(poses: SE3, rays: NDArray, depth: NDArray) -> WindowGeometry:
    return WindowGeometry(
        ages=np.arange(1, len(poses) + 1),
        rotation=poses.rotation,
        translation=poses.translation,
        rays=rays.reshape(12, 16, 2),
        log_inverse_depth=-np.log(depth).reshape(12, 16),
    )


def adjust(
    matched: NDArray,
    information: NDArray,
    guess: WindowGeometry,
    config: WindowAdjustmentConfig | None = None,
    *,
    iterations: int = 8,
) -> WindowGeometry:
    config = replace(config or WindowAdjustmentConfig(), iterations=iterations)
    sigma = config.image_depth_sigma
    return adjust_window(matched, information, guess, guess, config, depth_sigma=sigma, patience=8.0)


def observe(rays: NDArray, depth: NDArray, poses: SE3) -> NDArray:
    points = np.concatenate([rays, np.ones((len(rays), 1))], 1) * depth[:, None]
    moved = np.einsum("kij,pj->kpi", poses.rotation, points) + poses.translation[:, None]
    return moved[..., :2] / moved[..., 2:]


def alike(shape: tuple[int, ...], sigma: float) -> NDArray:
    """Information (*shape, 2, 2) of matches that are all known as well, in all directions."""
    return np.tile(np.eye(2) / sigma**2, (*shape, 1, 1))


def direction_error_deg(a: NDArray, b: NDArray) -> NDArray:
    cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    return np.degrees(np.arccos(np.clip(cosine, -1, 1)))


def test_exact_matches_give_exact_poses_up_to_scale() -> None:
    rng = np.random.default_rng(0)
    rays, depth, poses = scene(rng)
    matched = observe(rays, depth, poses)
    start = SE3.exp(0.01 * rng.standard_normal((4, 6))) @ poses
    config = WindowAdjustmentConfig(image_depth_sigma=1e3, translation_sigma=1e3, rotation_sigma_deg=1e3)
    guess = geometry(start, rays, depth * 1.3)
    information = alike(matched.shape[:2], 0.1 / FOCAL)
    result = adjust(matched, information, guess, config, iterations=20)
    assert np.degrees(rotation_angle(result.rotation @ np.swapaxes(poses.rotation, 1, 2))).max() < 1e-4
    assert direction_error_deg(result.translation, poses.translation).max() < 1e-3
    scale = np.linalg.norm(result.translation, axis=1) / np.linalg.norm(poses.translation, axis=1)
    assert np.ptp(scale) < 1e-4
    np.testing.assert_allclose(result.inverse_depth.reshape(-1) * depth * scale[0], 1, rtol=1e-3)


def test_outliers_and_noise_are_survived() -> None:
    rng = np.random.default_rng(1)
    rays, depth, poses = scene(rng)
    sigma = 0.3 / FOCAL
    matched = observe(rays, depth, poses) + sigma * rng.standard_normal((4, len(rays), 2))
    wrong = rng.random(matched.shape[:2]) < 0.15
    matched[wrong] += 0.3 * rng.standard_normal((wrong.sum(), 2))
    start = SE3.exp(np.radians(1) * rng.standard_normal((4, 6))) @ poses
    guessed = depth * np.exp(0.3 * rng.standard_normal(len(depth)))
    result = adjust(matched, alike(wrong.shape, sigma), geometry(start, rays, guessed))
    error = np.degrees(rotation_angle(result.rotation @ np.swapaxes(poses.rotation, 1, 2)))
    assert error.max() < 0.15
    assert direction_error_deg(result.translation, poses.translation).max() < 1.5
    assert result.covariance is not None
    spread = np.degrees(np.sqrt(np.trace(result.covariance[:, :3, :3], axis1=1, axis2=2)))
    assert (error < 5 * spread).all()


def test_without_matches_the_prediction_stays() -> None:
    rng = np.random.default_rng(2)
    rays, depth, poses = scene(rng)
    nothing = np.zeros((4, len(rays), 2, 2))
    matched = np.zeros((4, len(rays), 2))
    guess = geometry(poses, rays, depth)
    result = adjust(matched, nothing, guess)
    np.testing.assert_allclose(result.rotation, poses.rotation, atol=1e-12)
    np.testing.assert_allclose(result.translation, poses.translation, atol=1e-12)
    np.testing.assert_allclose(result.log_inverse_depth, guess.log_inverse_depth, rtol=1e-12)
    assert result.covariance is not None
    assert result.depth_information is not None
    np.testing.assert_allclose(result.depth_information, 0, atol=1e-12)
    assert np.isfinite(result.covariance).all()


@pytest.mark.parametrize("noise", [0.5, 0.25])
def test_covariances_follow_the_noise_that_is_found(noise: float) -> None:
    """Matches that err by a part of what they state are known as much better."""
    rng = np.random.default_rng(5)
    rays, depth, poses = scene(rng)
    sigma = 0.1 / FOCAL
    exact, errors = observe(rays, depth, poses), rng.standard_normal((4, len(rays), 2))
    guess, information = geometry(poses, rays, depth), alike((4, len(rays)), sigma)
    stated, better = (
        adjust(exact + part * sigma * errors, information, guess).covariance for part in (1.0, noise)
    )
    assert stated is not None
    assert better is not None
    ratio = np.sqrt(np.diagonal(better, axis1=1, axis2=2) / np.diagonal(stated, axis1=1, axis2=2))
    # Robust weights rise with smaller errors, too, which adds to the gain.
    assert (ratio < 1.1 * noise).all()
    assert (ratio > 0.6 * noise).all()


@pytest.mark.parametrize("noise", [0.3, 1.0, 2.0])
def test_noise_is_measured_on_inliers_alone(noise: float) -> None:
    rng = np.random.default_rng(6)
    squared = ((noise * rng.standard_normal((4, 5000, 2))) ** 2).sum(-1)
    squared[:, ::10] = 1e6
    squared[:, 1::10] = 0.0  # where nothing was matched
    assert match_noise(squared, WindowAdjustmentConfig()) == pytest.approx(noise, rel=0.05)


def test_noise_has_a_floor_and_is_as_stated_where_there_is_nothing_to_measure() -> None:
    config = WindowAdjustmentConfig()
    assert match_noise(np.full((1, 9), 1e-12), config) == config.min_noise
    assert match_noise(np.zeros((1, 9)), config) == 1.0


def test_along_an_edge_a_match_may_err_as_it_likes() -> None:
    rng = np.random.default_rng(4)
    rays, depth, poses = scene(rng)
    exact = observe(rays, depth, poses)
    angle = rng.uniform(0, np.pi, exact.shape[:2])
    along = np.stack([np.cos(angle), np.sin(angle)], -1)
    across = np.stack([-along[..., 1], along[..., 0]], -1)
    matched = exact + rng.normal(0, 3 / FOCAL, angle.shape)[..., None] * along
    information = np.einsum("kpi,kpj->kpij", across, across) * (0.1 / FOCAL) ** -2
    start = SE3.exp(0.005 * rng.standard_normal((4, 6))) @ poses
    result = adjust(matched, information, geometry(start, rays, depth), iterations=15)
    assert np.degrees(rotation_angle(result.rotation @ np.swapaxes(poses.rotation, 1, 2))).max() < 0.01
    assert direction_error_deg(result.translation, poses.translation).max() < 0.1


def depths(log_inverse_depth: NDArray, information: NDArray | None = None) -> WindowGeometry:
    """A window of which only depths (h, w) matter."""
    rays = np.zeros((*log_inverse_depth.shape, 2))
    still = (np.array([1]), np.eye(3)[None], np.zeros((1, 3)), rays)
    return WindowGeometry(*still, log_inverse_depth, depth_information=information)


def test_blended_depths_follow_the_matches_or_else_the_prediction_in_their_scale() -> None:
    known = np.where(np.arange(9) < 6, 1e9, 0.0).reshape(3, 3)
    adjusted = depths(np.where(known > 0, 0.7, 0.0), known)
    found = blend_depths(adjusted, depths(np.zeros((3, 3))), WindowAdjustmentConfig())
    np.testing.assert_allclose(found.log_inverse_depth, 0.7)


def test_blended_depths_follow_what_was_measured_around_them() -> None:
    """A prediction that is too near on the left and too far on the right; every other cell is measured."""
    truth = np.repeat(np.repeat([[0.3, -0.3]], 12, 1), 16, 0)
    known = np.where(np.indices((16, 24)).sum(0) % 2, 1e4, 0.0)
    adjusted = depths(np.where(known > 0, truth, 0), known)
    found = blend_depths(adjusted, depths(np.zeros((16, 24))), WindowAdjustmentConfig())
    off = found.log_inverse_depth - truth
    assert np.abs(off[:, 2:8]).max() < 0.1
    assert np.abs(off[:, -8:-2]).max() < 0.1


@pytest.mark.parametrize("seed", range(3))
def test_normal_equations_against_finite_differences(seed: int) -> None:
    """Their gradient is that of the robust cost, without the weights' own derivative at large scale."""
    rng = np.random.default_rng(seed)
    rays, depth, poses = scene(rng, members=2)
    matched = observe(rays, depth, poses) + 0.01 * rng.standard_normal((2, len(rays), 2))
    root = rng.standard_normal((2, len(rays), 2, 2))
    information = root @ np.swapaxes(root, 2, 3)
    log_inverse = -np.log(depth)

    def cost(twists: NDArray, change: NDArray) -> float:
        moved = SE3(so3_exp(twists[:, :3]) @ poses.rotation, poses.translation + twists[:, 3:])
        error = matched - observe(rays, np.exp(-(log_inverse + change)), moved)
        return 0.5 * float(np.einsum("kpi,kpij,kpj->", error, information, error))

    _, gradient, _, _, point_gradient, _ = _normal_equations(
        rays, matched, information, np.exp(log_inverse), poses.rotation, poses.translation, 1e9
    )
    zero, still, h = np.zeros((2, 6)), np.zeros(len(rays)), 1e-6
    for index in range(12):
        step = np.zeros(12)
        step[index] = h
        numeric = (cost(step.reshape(2, 6), still) - cost(-step.reshape(2, 6), still)) / (2 * h)
        assert gradient[index] == pytest.approx(-numeric, rel=1e-5, abs=1e-7)
    for index in rng.choice(len(rays), 8, replace=False):
        change = np.zeros(len(rays))
        change[index] = h
        numeric = (cost(zero, change) - cost(zero, -change)) / (2 * h)
        assert point_gradient[index] == pytest.approx(-numeric, rel=1e-5, abs=1e-7)
