"""The window adjustment: recovers known poses, its Jacobian, and where there is nothing to see."""

import numpy as np
import pytest
from numpy.typing import NDArray

from anchor3r.geometry import SE3, rotation_angle, so3_exp
from anchor3r.predictors.network.window_adjustment import (
    Adjusted,
    AdjustmentConfig,
    WindowGeometry,
    _normal_equations,
    adjust_window,
)

FOCAL = 100.0


def scene(rng: np.random.Generator, members: int = 4) -> tuple[NDArray, NDArray, SE3]:
    """Rays (P, 2), depths (P,) and poses member_from_anchor of a short drive."""
    y, x = np.mgrid[0:12, 0:16]
    rays = np.stack([(x.ravel() * 8 - 60) / FOCAL, (y.ravel() * 8 - 44) / FOCAL], 1)
    steps = np.arange(1, members + 1)[:, None]
    rotation = so3_exp(steps * [0.002, 0.012, -0.003])
    return rays, rng.uniform(3, 25, len(rays)), SE3(rotation, steps * [0.03, 0.01, 0.7])


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
    config = AdjustmentConfig(depth_sigma=1e3, translation_sigma=1e3, rotation_sigma_deg=1e3)
    guess = WindowGeometry(start.rotation, start.translation, -np.log(depth * 1.3))
    information = alike(matched.shape[:2], 0.1 / FOCAL)
    found = adjust_window(rays, matched, information, guess, guess, config, iterations=20, patience=8.0)
    result = found.geometry
    assert np.degrees(rotation_angle(result.rotation @ np.swapaxes(poses.rotation, 1, 2))).max() < 1e-4
    assert direction_error_deg(result.translation, poses.translation).max() < 1e-3
    scale = np.linalg.norm(result.translation, axis=1) / np.linalg.norm(poses.translation, axis=1)
    assert np.ptp(scale) < 1e-4
    np.testing.assert_allclose(np.exp(result.log_inverse_depth) * depth * scale[0], 1, rtol=1e-3)


def test_outliers_and_noise_are_survived() -> None:
    rng = np.random.default_rng(1)
    rays, depth, poses = scene(rng)
    sigma = 0.3 / FOCAL
    matched = observe(rays, depth, poses) + sigma * rng.standard_normal((4, len(rays), 2))
    wrong = rng.random(matched.shape[:2]) < 0.15
    matched[wrong] += 0.3 * rng.standard_normal((wrong.sum(), 2))
    start = SE3.exp(np.radians(1) * rng.standard_normal((4, 6))) @ poses
    guessed = depth * np.exp(0.3 * rng.standard_normal(len(depth)))
    guess = WindowGeometry(start.rotation, start.translation, -np.log(guessed))
    result = adjust_window(
        rays, matched, alike(wrong.shape, sigma), guess, guess, AdjustmentConfig(), iterations=8, patience=8.0
    )
    error = np.degrees(rotation_angle(result.geometry.rotation @ np.swapaxes(poses.rotation, 1, 2)))
    assert error.max() < 0.15
    assert direction_error_deg(result.geometry.translation, poses.translation).max() < 1.5
    assert 0.6 < result.residual < 1.6
    spread = np.degrees(np.sqrt(np.trace(result.covariance[:, :3, :3], axis1=1, axis2=2)))
    assert (error < 5 * spread).all()


def test_without_matches_the_prediction_stays() -> None:
    rng = np.random.default_rng(2)
    rays, depth, poses = scene(rng)
    nothing = np.zeros((4, len(rays), 2, 2))
    matched = np.zeros((4, len(rays), 2))
    guess = WindowGeometry(poses.rotation, poses.translation, -np.log(depth))
    result = adjust_window(
        rays, matched, nothing, guess, guess, AdjustmentConfig(), iterations=8, patience=8.0
    )
    np.testing.assert_allclose(result.geometry.rotation, poses.rotation, atol=1e-12)
    np.testing.assert_allclose(result.geometry.translation, poses.translation, atol=1e-12)
    np.testing.assert_allclose(result.geometry.log_inverse_depth, -np.log(depth), rtol=1e-12)
    np.testing.assert_allclose(result.depth_information, 0, atol=1e-12)
    assert np.isfinite(result.covariance).all()


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
    guess = WindowGeometry(start.rotation, start.translation, -np.log(depth))
    result = adjust_window(
        rays, matched, information, guess, guess, AdjustmentConfig(), iterations=15, patience=8.0
    ).geometry
    assert np.degrees(rotation_angle(result.rotation @ np.swapaxes(poses.rotation, 1, 2))).max() < 0.01
    assert direction_error_deg(result.translation, poses.translation).max() < 0.1


def test_settled_depths_follow_the_matches_or_else_the_prediction_in_their_unit() -> None:
    predicted = WindowGeometry(np.eye(3)[None], np.zeros((1, 3)), np.zeros(9))
    known = np.where(np.arange(9) < 6, 1e9, 0.0)
    measured = WindowGeometry(np.eye(3)[None], np.zeros((1, 3)), np.where(known > 0, 0.7, 0.0))
    found = Adjusted(measured, np.eye(6)[None], known, 1.0)
    np.testing.assert_allclose(found.settled(predicted, AdjustmentConfig(), (3, 3)).log_inverse_depth, 0.7)


def test_settled_depths_follow_what_was_measured_around_them() -> None:
    """A prediction that is too near on the left and too far on the right; every other cell is measured."""
    truth = np.repeat(np.repeat([[0.3, -0.3]], 12, 1), 16, 0)
    known = np.where(np.indices((16, 24)).sum(0) % 2, 1e4, 0.0)
    measured = WindowGeometry(np.eye(3)[None], np.zeros((1, 3)), np.where(known > 0, truth, 0).reshape(-1))
    predicted = WindowGeometry(np.eye(3)[None], np.zeros((1, 3)), np.zeros(truth.size))
    found = Adjusted(measured, np.eye(6)[None], known.reshape(-1), 1.0)
    off = found.settled(predicted, AdjustmentConfig(), (16, 24)).log_inverse_depth.reshape(16, 24) - truth
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
