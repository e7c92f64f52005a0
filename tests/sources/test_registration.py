"""Depth warped into a camera beside the one that measured it."""

from __future__ import annotations

import numpy as np
import pytest

from anchor3r.geometry import SE3, Pinhole, so3_exp
from anchor3r.sources.registration import registered

CAMERA = Pinhole(585, 580, 320, 240, 640, 480).resized(160, 120)
OTHER = Pinhole(525, 525, 315, 244, 640, 480).resized(160, 120)
OTHER_FROM_CAMERA = SE3(so3_exp(np.array([0.01, -0.02, 0.005])), np.array([-0.025, 0.003, 0.01]))


def plane_depth(camera: Pinhole, normal: np.ndarray, distance: float) -> np.ndarray:
    rays = camera.unproject_map(np.ones((camera.height, camera.width)))
    return (distance / (rays @ normal)).astype(np.float32)


@pytest.mark.parametrize("back", [False, True])
def test_a_plane_stays_where_it_is(back: bool) -> None:
    """To the wider pixels and back to the narrower ones, where gaps would open."""
    cameras, motion = (CAMERA, OTHER), OTHER_FROM_CAMERA
    if back:
        cameras, motion = (OTHER, CAMERA), OTHER_FROM_CAMERA.inverse()
    normal, distance = np.array([0.1, 0.3, 0.9]), 2.0
    depth = registered(plane_depth(cameras[0], normal, distance), cameras[0], motion, cameras[1])
    # n·x = d becomes (R n)·y = d + (R n)·t.
    turned = motion.rotation @ normal
    expected = plane_depth(cameras[1], turned, distance + turned @ motion.translation)
    inner = (slice(12, -12), slice(16, -16))
    assert (depth[inner] > 0).all()
    assert depth[inner] == pytest.approx(expected[inner], rel=0.01)


def test_what_is_near_hides_what_is_far_and_no_depth_stays_none() -> None:
    depth = np.full((120, 160), 3.0, np.float32)
    depth[:, 80:] = 1.0
    depth[:10] = 0
    shift = SE3(np.eye(3), np.array([-0.1, 0, 0]))
    out = registered(depth, CAMERA, shift, CAMERA)
    assert (out[:10] == 0).all()
    moved_by = round(0.1 * CAMERA.fx)
    assert (out[10:, 80 - moved_by : 140 - moved_by] == 1).all(), "the near half has moved over the far one"
    assert (out[10:, 10 : 80 - moved_by - 1] == 3).all()
