"""The window adjustment: recovers known poses, its Jacobian, and where there is nothing to see."""

import numpy as np
import pytest
from numpy.typing import NDArray

from anchor3r.geometry import SE3, rotation_angle, so3_exp
from anchor3r.predictors.window_adjustment import AdjustmentConfig, _normal_equations, adjust_window

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


def direction_error_deg(a: NDArray, b: NDArray) -> NDArray:
    cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    return np.degrees(np.arccos(np.clip(cosine, -1, 1)))


def test_exact_matches_give_exact_poses_up_to_scale() -> None:
    rng = np.random.default_rng(0)
    rays, depth, poses = scene(rng)
    matched = observe(rays, depth, poses)
    start = SE3.exp(0.01 * rng.standard_normal((4, 6))) @ poses
    config = AdjustmentConfig(iterations=20, depth_sigma=1e3, translation_sigma=1e3, rotation_sigma_deg=1e3)
    weight = np.full(matched.shape[:2], (0.1 / FOCAL) ** -2)
    result = adjust_window(rays, matched, weight, depth * 1.3, start.rotation, start.translation, config)
    assert np.degrees(rotation_angle(result.rotation @ np.swapaxes(poses.rotation, 1, 2))).max() < 1e-4
    assert direction_error_deg(result.translation, poses.translation).max() < 1e-3
    scale = np.linalg.norm(result.translation, axis=1) / np.linalg.norm(poses.translation, axis=1)
    assert np.ptp(scale) < 1e-4
    np.testing.assert_allclose(result.inverse_depth * depth * scale[0], 1, rtol=1e-3)


def test_outliers_and_noise_are_survived() -> None:
    rng = np.random.default_rng(1)
    rays, depth, poses = scene(rng)
    sigma = 0.3 / FOCAL
    matched = observe(rays, depth, poses) + sigma * rng.standard_normal((4, len(rays), 2))
    wrong = rng.random(matched.shape[:2]) < 0.15
    matched[wrong] += 0.3 * rng.standard_normal((wrong.sum(), 2))
    start = SE3.exp(np.radians(1) * rng.standard_normal((4, 6))) @ poses
    guessed = depth * np.exp(0.3 * rng.standard_normal(len(depth)))
    weight = np.full(wrong.shape, sigma**-2)
    result = adjust_window(
        rays, matched, weight, guessed, start.rotation, start.translation, AdjustmentConfig()
    )
    error = np.degrees(rotation_angle(result.rotation @ np.swapaxes(poses.rotation, 1, 2)))
    assert error.max() < 0.15
    assert direction_error_deg(result.translation, poses.translation).max() < 1.5
    assert 0.6 < result.residual < 1.6
    spread = np.degrees(np.sqrt(np.trace(result.covariance[:, :3, :3], axis1=1, axis2=2)))
    assert (error < 5 * spread).all()


def test_without_matches_the_prediction_stays() -> None:
    rng = np.random.default_rng(2)
    rays, depth, poses = scene(rng)
    nothing = np.zeros((4, len(rays)))
    matched = np.zeros((4, len(rays), 2))
    result = adjust_window(
        rays, matched, nothing, depth, poses.rotation, poses.translation, AdjustmentConfig()
    )
    np.testing.assert_allclose(result.rotation, poses.rotation, atol=1e-12)
    np.testing.assert_allclose(result.translation, poses.translation, atol=1e-12)
    np.testing.assert_allclose(1 / result.inverse_depth, depth, rtol=1e-12)
    assert np.isfinite(result.covariance).all()


@pytest.mark.parametrize("seed", range(3))
def test_normal_equations_against_finite_differences(seed: int) -> None:
    """Their gradient is that of the robust cost, without the weights' own derivative at large scale."""
    rng = np.random.default_rng(seed)
    rays, depth, poses = scene(rng, members=2)
    matched = observe(rays, depth, poses) + 0.01 * rng.standard_normal((2, len(rays), 2))
    weight = rng.uniform(0.5, 2, (2, len(rays)))
    log_inverse = -np.log(depth)

    def cost(twists: NDArray, change: NDArray) -> float:
        moved = SE3(so3_exp(twists[:, :3]) @ poses.rotation, poses.translation + twists[:, 3:])
        error = matched - observe(rays, np.exp(-(log_inverse + change)), moved)
        return 0.5 * float((weight[..., None] * error**2).sum())

    _, gradient, _, _, point_gradient, _ = _normal_equations(
        rays, matched, weight, np.exp(log_inverse), poses.rotation, poses.translation, 1e9
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
