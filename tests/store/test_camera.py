"""Images without their lens: what it showed is seen straight, what it did not show is known."""

from __future__ import annotations

import numpy as np

from anchor3r.geometry import Pinhole
from anchor3r.store.camera import shown_by_lens, without_lens

CAMERA = Pinhole.from_fov(80, 64, 48)


def test_an_image_without_its_lens_has_no_black_border() -> None:
    white = np.full((48, 64, 3), 255, np.uint8)
    for lens in ((0.0, 0.0), (0.05, 0.02), (-0.05, 0.0)):
        assert (without_lens(white, CAMERA, lens, CAMERA) == 255).all()


def test_pixels_past_the_image_of_the_lens_are_not_shown() -> None:
    assert shown_by_lens(CAMERA, (0.0, 0.0), CAMERA).all()
    assert shown_by_lens(CAMERA, (-0.05, 0.0), CAMERA).all()
    shown = shown_by_lens(CAMERA, (0.05, 0.0), CAMERA)
    # A ray at radius r is seen at r (1 + k1 r²): the middle of the left side leaves the image by so much.
    ray = CAMERA.cx / CAMERA.fx
    outside = CAMERA.cx * 0.05 * ray**2
    assert 0.5 < outside < 1.5
    assert not shown[24, 0]
    assert shown[24, 2]
    assert shown[2, 32]
    assert not shown[0, 0]
    half = CAMERA.resized(32, 24)
    assert shown_by_lens(CAMERA, (0.0, 0.0), half).shape == (24, 32)
