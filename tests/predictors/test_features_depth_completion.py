"""Sparse depths to point maps: planes come out as planes, edges hold, movers leave holes."""

import numpy as np
import pytest

from anchor3r.predictors.features.depth_completion import densified, grid_size

CAMERA = np.array([200.0, 200.0, 99.5, 74.5, 0.0, 0.0])
NOBODY = np.empty((0, 2))


def _pixels(count: int = 300) -> np.ndarray:
    return np.random.default_rng(0).uniform([0, 0], [199, 149], (count, 2))


def test_a_slanted_plane_stays_one() -> None:
    pixel, normal = _pixels(), np.array([0.1, 0.3, 0.2])
    rays = np.column_stack([(pixel - CAMERA[2:4]) / CAMERA[:2], np.ones(len(pixel))])
    points, sigma = densified(np.full((150, 200), 90, np.uint8), CAMERA, pixel, 1 / (rays @ normal), NOBODY)
    there = np.isfinite(points[..., 0])
    assert there.mean() > 0.95
    assert np.array_equal(there, np.isfinite(sigma))
    off = np.abs(points[there] @ normal - 1)
    assert np.quantile(off, 0.95) < 0.02
    assert off.max() < 0.1  # in a corner, beyond the last point


def test_depth_does_not_cross_an_edge() -> None:
    grey = np.full((150, 200), 30, np.uint8)
    grey[:, 100:] = 220
    pixel = _pixels()
    points, _ = densified(grey, CAMERA, pixel, np.where(pixel[:, 0] < 100, 2.0, 8.0), NOBODY)
    columns = points.shape[1]
    middle = columns // 2
    np.testing.assert_allclose(np.median(points[..., 2], axis=0)[: middle - 2], 2, rtol=0.05)
    np.testing.assert_allclose(np.median(points[..., 2], axis=0)[middle + 2 :], 8, rtol=0.15)
    # Without an edge in the image there is no reason to jump.
    flat, _ = densified(np.full_like(grey, 90), CAMERA, pixel, np.where(pixel[:, 0] < 100, 2.0, 8.0), NOBODY)
    assert 2.2 < np.median(flat[:, middle, 2]) < 7.5


def test_scattered_depths_are_less_sure_than_agreeing_ones() -> None:
    pixel, rng = _pixels(), np.random.default_rng(1)
    depth = np.where(pixel[:, 0] < 100, 3.0, 3.0 * np.exp(rng.normal(0, 0.3, len(pixel))))
    _, sigma = densified(np.full((150, 200), 90, np.uint8), CAMERA, pixel, depth, NOBODY)
    middle = sigma.shape[1] // 2
    assert 3 * np.median(sigma[:, : middle - 5]) < np.median(sigma[:, middle + 5 :])


def test_around_movers_and_far_from_points_there_is_nothing() -> None:
    pixel = _pixels()
    pixel = pixel[(pixel[:, 0] < 60) | (pixel[:, 0] > 140)]
    moving = np.random.default_rng(2).uniform([80, 0], [120, 149], (60, 2))
    points, _ = densified(np.full((150, 200), 90, np.uint8), CAMERA, pixel, np.full(len(pixel), 3.0), moving)
    columns = points.shape[1]
    assert np.isnan(points[:, columns * 85 // 200 : columns * 115 // 200]).all()
    assert np.isfinite(points[:, : columns * 50 // 200]).mean() > 0.95
    empty, nothing = densified(np.full((150, 200), 90, np.uint8), CAMERA, NOBODY, np.empty(0), NOBODY)
    assert np.isnan(empty).all()
    assert np.isinf(nothing).all()


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_copies_of_an_image_have_one_grid(scale: int) -> None:
    assert grid_size(480 * scale, 640 * scale) == grid_size(480, 640) == (96, 128)
