"""The scalar kernels agree with the batched geometry, also where formulas change branch."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from anchor3r import geometry
from anchor3r.pose_graph.linalg import so3

ANGLES = [0.0, 1e-12, 1e-8, 0.99e-4, 1.01e-4, 0.99e-2, 1.01e-2, 0.5, 2.0, 3.0, np.pi - 1e-7]


def vectors(angle: float) -> np.ndarray:
    axes = np.concatenate([np.eye(3), -np.eye(3), np.random.default_rng(0).normal(size=(20, 3))])
    return angle * axes / np.linalg.norm(axes, axis=1, keepdims=True)


def matrix(values: so3.Matrix) -> np.ndarray:
    return np.array(values).reshape(3, 3)


@pytest.mark.parametrize("angle", ANGLES)
def test_exp_and_log_agree_with_the_batched_ones(angle: float) -> None:
    for w in vectors(angle):
        rotation = matrix(so3.exp(tuple(w)))
        assert_allclose(rotation, geometry.so3_exp(w), atol=1e-15)
        assert_allclose(so3.log(tuple(rotation.ravel())), w, rtol=1e-7, atol=1e-15)


@pytest.mark.parametrize("angle", ANGLES)
def test_right_jacobian_inverse_is_the_derivative_of_log(angle: float) -> None:
    step = 1e-6
    for w in vectors(min(angle, 3.0)):
        rotation = geometry.so3_exp(w)
        ahead, behind = (
            geometry.so3_log(rotation @ geometry.so3_exp(sign * step * np.eye(3))) for sign in (1, -1)
        )
        numeric = (ahead - behind).T / (2 * step)
        assert_allclose(matrix(so3.right_jacobian_inverse(tuple(w))), numeric, atol=2e-7)


def test_products() -> None:
    rng = np.random.default_rng(1)
    a, b, v = rng.normal(size=(3, 3)), rng.normal(size=(3, 3)), rng.normal(size=3)
    ta, tb = tuple(a.ravel()), tuple(b.ravel())
    assert_allclose(matrix(so3.mul(ta, tb)), a @ b)
    assert_allclose(matrix(so3.mul_tn(ta, tb)), a.T @ b)
    assert_allclose(matrix(so3.mul_nt(ta, tb)), a @ b.T)
    assert_allclose(so3.apply(ta, tuple(v)), a @ v)
    assert_allclose(so3.apply_t(ta, tuple(v)), a.T @ v)


def test_orthonormalised_squares_the_error() -> None:
    rotation = geometry.so3_exp([0.3, -1.0, 2.0])
    spoiled = rotation + 1e-5 * np.random.default_rng(2).normal(size=(3, 3))
    restored = matrix(so3.orthonormalised(tuple(spoiled.ravel())))
    assert np.abs(restored.T @ restored - np.eye(3)).max() < 1e-8
    assert np.abs(restored - rotation).max() < 1e-4
