"""Alignment of matches on the images."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from anchor3r.predictors.sharpening import grey, sharpen

SHIFT = np.array([1.3, -0.6], np.float32)


def texture(shift: np.ndarray) -> np.ndarray:
    """(64, 96, 3) smooth noise, moved by `shift` pixels."""
    noise = np.random.default_rng(3).uniform(0, 255, (64, 96)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), 2.0)
    smooth = cv2.normalize(smooth, None, 20, 235, cv2.NORM_MINMAX)
    moved = cv2.warpAffine(smooth, np.float32([[1, 0, shift[0]], [0, 1, shift[1]]]), (96, 64))
    return np.repeat(moved.astype(np.uint8)[..., None], 3, 2)


@pytest.fixture
def cells() -> np.ndarray:
    x, y = np.meshgrid(np.arange(12, 84, 4) + 1.5, np.arange(12, 52, 4) + 1.5)
    return np.stack([x.ravel(), y.ravel()], 1).astype(np.float32)


def test_half_a_pixel_off_is_put_right(cells: np.ndarray) -> None:
    rough = cells + SHIFT + np.random.default_rng(0).uniform(-0.5, 0.5, cells.shape).astype(np.float32)
    fine = sharpen(grey(texture(np.zeros(2))), grey(texture(SHIFT)), cells, rough)
    before, after = (np.median(np.linalg.norm(p - cells - SHIFT, axis=1)) for p in (rough, fine))
    assert before > 0.3
    assert after < 0.05


def test_a_match_without_texture_stays(cells: np.ndarray) -> None:
    flat = np.full((64, 96), 128, np.uint8)
    np.testing.assert_array_equal(sharpen(flat, flat, cells, cells + SHIFT), cells + SHIFT)


def test_a_match_is_not_carried_away(cells: np.ndarray) -> None:
    """The network's decision stands, even if there is something else not far from it."""
    away = cells + SHIFT + np.float32(4)
    fine = sharpen(grey(texture(np.zeros(2))), grey(texture(SHIFT)), cells, away)
    assert np.linalg.norm(fine - away, axis=1).max() < 2
