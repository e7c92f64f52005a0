"""Spreads of edges and scales against perturbed poses."""

import numpy as np
import pytest

from anchor3r.geometry import SE3, adjoint, so3_exp, so3_log
from anchor3r.predictors.features.projection import CALIBRATION_SIZE
from anchor3r.predictors.features.uncertainty import (
    carried,
    edges_to_newest,
    in_one_scale,
    log_scale_sigma,
    noise_variance,
    of_poses,
)


def _poses(count: int, seed: int = 0) -> SE3:
    rng = np.random.default_rng(seed)
    return SE3(so3_exp(rng.normal(0, 0.3, (count, 3))), rng.normal(0, 1, (count, 3)))


def _perturbation(step: np.ndarray) -> SE3:
    """x + ω × x + v, to first order."""
    return SE3(so3_exp(step[..., :3]), step[..., 3:])


def _right_error(edge: SE3, perturbed: SE3) -> np.ndarray:
    error = edge.inverse() @ perturbed
    return np.concatenate([so3_log(error.rotation), error.translation], axis=-1)


def test_adjoint_carries_from_the_right_to_the_left() -> None:
    pose, step = _poses(1)[0], 1e-6 * np.arange(1.0, 7.0)
    left = _perturbation(adjoint(pose) @ step) @ pose
    right = pose @ _perturbation(step)
    np.testing.assert_allclose(left.matrix(), right.matrix(), atol=1e-11)


def test_edges_spread_as_perturbed_keyframes_do() -> None:
    rng, poses, num_free = np.random.default_rng(0), _poses(4), 2
    root = rng.normal(0, 1, (12, 12))
    covariance = 1e-8 * (root @ root.T + np.eye(12))
    information = np.zeros((12 + CALIBRATION_SIZE, 12 + CALIBRATION_SIZE))
    information[:12, :12] = np.linalg.inv(covariance)
    steps = np.zeros((20_000, 4, 6))
    steps[:, 2:] = rng.multivariate_normal(np.zeros(12), covariance, 20_000).reshape(-1, 2, 6)
    newest = _perturbation(steps[:, 3]) @ poses[3][None]
    expected = edges_to_newest(poses, of_poses(information), num_free)
    for k in range(3):
        moved = _perturbation(steps[:, k]) @ poses[k][None]
        errors = _right_error((poses[k] @ poses[3].inverse())[None], moved @ newest.inverse())
        np.testing.assert_allclose(np.cov(errors.T), expected[k], atol=0.05 * np.abs(expected[k]).max())
    np.testing.assert_allclose(expected[3], 0, atol=1e-6 * np.abs(expected[0]).max())


def test_a_scale_that_nothing_holds_is_that_from_before() -> None:
    rng, poses, num_free = np.random.default_rng(1), _poses(4), 3
    root = rng.normal(0, 1e-3, (18, 18))
    known = root @ root.T + 1e-6 * np.eye(18)
    step, grown = 1e-6, np.zeros((3, 6))
    for k in range(3):  # what a larger scale does to the poses, seen from the one that is held
        arm = poses[k + 1].center() - poses[0].center()
        moved = SE3.from_center(poses[k + 1].rotation, poses[0].center() + (1 + step) * arm)
        error = moved @ poses[k + 1].inverse()
        grown[k] = np.concatenate([so3_log(error.rotation), error.translation]) / step
    free = known + 100.0 * np.outer(grown, grown)
    found = in_one_scale(poses, free, num_free)
    variance = grown.ravel() @ found @ grown.ravel() / (grown.ravel() @ grown.ravel()) ** 2
    distance_sq = float(np.sum(grown[-1] ** 2))
    moved_sigma = np.sqrt(np.linalg.eigvalsh(free[-3:, -3:])[:2] / distance_sq)
    assert moved_sigma[0] < np.sqrt(variance) < moved_sigma[1]  # as well as the direction of the way
    # What has nothing to do with the scale is as it was.
    other = rng.normal(0, 1, 18)
    other -= (grown.ravel() @ free @ other) / (grown.ravel() @ free @ grown.ravel()) * grown.ravel()
    np.testing.assert_allclose(found @ other, free @ other, atol=1e-7)
    assert np.linalg.eigvalsh(found).min() > 0


def test_carried_edges_add_up() -> None:
    edge, later = _poses(1)[0], _poses(1, seed=1)[0]
    step = 1e-6 * np.arange(1.0, 7.0)
    shift = _right_error(edge @ later, edge @ _perturbation(step) @ later)
    found = carried(np.outer(step, step)[None], later, 1e-12 * np.eye(6))[0]
    np.testing.assert_allclose(found, np.outer(shift, shift) + 1e-12 * np.eye(6), rtol=1e-4, atol=1e-18)


def test_scale_is_as_sure_as_the_distance() -> None:
    edge = SE3(so3_exp(np.array([0.1, 0.5, 0.0])), np.array([0.0, 0.0, 2.0]))
    along = edge.rotation.T @ np.array([0.0, 0.0, 1.0])
    covariance = np.zeros((6, 6))
    covariance[3:, 3:] = 0.02**2 * np.outer(along, along)
    assert log_scale_sigma(edge, covariance, 3) == pytest.approx(0.01)
    assert log_scale_sigma(edge, covariance, 12) == pytest.approx(0.005)
    standing = SE3(np.eye(3), np.array([0.0, 0.0, 1e-9]))
    assert 0.1 < log_scale_sigma(standing, np.eye(6), 3) < 1  # nothing is known, and it says so


def test_noise_is_that_of_most_observations() -> None:
    rng = np.random.default_rng(0)
    errors = np.linalg.norm(rng.normal(0, 0.3, (4000, 2)), axis=1)
    clean = noise_variance(errors)
    assert noise_variance(np.concatenate([errors, np.full(400, 2.0)])) == pytest.approx(clean, rel=0.3)
    assert noise_variance(2 * errors) == pytest.approx(4 * clean)
    assert noise_variance(np.empty(0)) > 0


def test_noise_is_inflated_since_observations_of_a_point_err_alike() -> None:
    """A pose from n observations that err in fours is known as well as one from n / 4 independent ones."""
    rng = np.random.default_rng(1)
    independent = rng.normal(0, 0.3, (4000, 2))
    in_fours = np.repeat(independent[:1000], 4, axis=0)
    variance_of_mean = noise_variance(np.linalg.norm(in_fours, axis=1)) / len(in_fours)
    assert variance_of_mean == pytest.approx(0.3**2 / 1000, rel=0.1)
