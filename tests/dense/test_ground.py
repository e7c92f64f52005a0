"""The ground that images show: a plane of known height and tilt is found again."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from anchor3r.dense.ground import GroundConfig, GroundStrip, GroundView, _sampled, travelled, upright
from anchor3r.geometry import Pinhole, so3_exp

CAMERA = Pinhole(150.0, 150.0, 99.5, 59.5, 200, 120)
FORWARD = np.array([0.0, 0.0, 1.0])


def seen(center: np.ndarray, rotation: np.ndarray, normal: np.ndarray, height: float) -> np.ndarray:
    """(h, w) grey of textured ground normal · x = height in the world, by a camera there."""
    v, u = np.mgrid[: CAMERA.height, : CAMERA.width]
    rays = CAMERA.unproject(np.stack([u, v], -1), 1.0) @ rotation
    with np.errstate(divide="ignore", invalid="ignore"):
        away = (height - center @ normal) / (rays @ normal)
        at = center + away[..., None] * rays
        texture = sum(
            np.sin(a * at[..., 0] + b * at[..., 2] + c)
            for a, b, c in [(1.1, 0.9, 0), (2.3, -1.7, 1), (0.4, 3.1, 2), (-3.3, 0.6, 3)]
        )
    grey = np.where(rays @ normal > 0.02, 128 + 25 * texture, 60)
    return np.asarray(np.nan_to_num(grey, nan=60), np.float32)


@pytest.mark.parametrize("tilt_deg", [0.0, 1.5])
def test_height_and_tilt_of_the_ground(tilt_deg: float) -> None:
    height = 1.7
    normal = so3_exp([np.radians(tilt_deg), 0.0, 0.0]) @ np.array([0.0, 1.0, 0.0])
    turn = so3_exp([0.002, 0.01, -0.004])
    anchor = seen(np.array([0.0, 0.0, 1.5]), np.eye(3), normal, height)
    height_there = height - 1.5 * normal[2]
    view_grey = 0.8 * seen(np.zeros(3), turn, normal, height) + 10  # another exposure
    view = GroundView(view_grey.astype(np.float32), turn, turn @ np.array([0.0, 0.0, 1.5]))
    assert travelled(view.rotation[None], view.translation[None])[0] == pytest.approx(FORWARD)
    strip = GroundStrip(CAMERA, FORWARD, upright(FORWARD), GroundConfig(tilt_sigma_deg=3.0))
    assert strip.is_seen
    values = strip.sampled(anchor)
    tried = np.log(height_there) + np.arange(-0.6, 0.6, 0.03)
    best = tried[np.nanargmax(strip.correlations(values, [view], tried))]
    assert best == pytest.approx(np.log(height_there), abs=0.1)
    plane = strip.fit(values, [view], float(best))
    assert plane is not None
    assert np.exp(plane.log_height) == pytest.approx(height_there, rel=0.01)
    assert plane.normal @ normal > np.cos(np.radians(0.2))
    assert plane.correlation > 0.98


def test_what_lies_outside_is_not_a_number() -> None:
    image = np.arange(20, dtype=np.float32).reshape(4, 5)
    pixels = np.array([[1, 1], [-5, 2], [2.5, 1.5], [np.nan, 1]], np.float32)
    np.testing.assert_array_equal(_sampled(image, pixels), [6, np.nan, 10, np.nan])


def test_a_camera_that_looks_up_sees_no_ground() -> None:
    up = Pinhole(150.0, 150.0, 99.5, 400.0, 200, 120)
    assert not GroundStrip(up, FORWARD, upright(FORWARD), GroundConfig()).is_seen


def test_images_without_texture_tell_no_height() -> None:
    even = np.full((CAMERA.height, CAMERA.width), 100, np.float32)
    even = np.asarray(cv2.GaussianBlur(even, (0, 0), 1.0), np.float32)
    strip = GroundStrip(CAMERA, FORWARD, upright(FORWARD), GroundConfig())
    view = GroundView(even, np.eye(3), np.array([0.0, 0.0, 1.5]))
    assert strip.fit(strip.sampled(even), [view], 0.5) is None
