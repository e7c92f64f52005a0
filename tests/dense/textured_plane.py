"""A textured plane seen by several cameras, rendered exactly: what stereo measures has a known answer."""

from __future__ import annotations

import cv2
import numpy as np

from anchor3r.dense.stereo import View
from anchor3r.geometry import SE3, Pinhole, so3_exp

CAMERA = Pinhole.from_fov(60, 96, 72)
_TEXELS_A_UNIT = 40.0


def _texture() -> np.ndarray:
    """Smooth noise, 1000 × 1000."""
    noise = np.random.default_rng(3).normal(size=(1000, 1000)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), 1.5)
    return smooth * (40 / smooth.std())


_TEXTURE = _texture()


def inverse_depth(normal: np.ndarray, distance: float, camera_from_world: SE3) -> np.ndarray:
    """(h, w) of the plane normal · x = distance, as a camera sees it."""
    v, u = np.mgrid[: CAMERA.height, : CAMERA.width]
    rays = CAMERA.unproject(np.stack([u, v], -1).astype(float), np.ones(u.shape))
    own_normal = camera_from_world.rotation @ normal
    return rays @ own_normal / (distance - normal @ camera_from_world.center())


def view_of(normal: np.ndarray, distance: float, camera_from_world: SE3, frame: int = 0) -> View:
    """What a camera sees of that plane."""
    depth = 1 / inverse_depth(normal, distance, camera_from_world)
    points = camera_from_world.inverse().apply(CAMERA.unproject_map(depth))
    u, v = (points[..., :2] * _TEXELS_A_UNIT + 500).astype(np.float32).transpose(2, 0, 1)
    grey = cv2.remap(_TEXTURE, u, v, cv2.INTER_CUBIC)
    return View(frame=frame, grey=grey, camera_from_world=camera_from_world)


def camera_at(center: tuple[float, float, float], turn: tuple[float, float, float] = (0, 0, 0)) -> SE3:
    """camera_from_world"""
    return SE3.from_center(so3_exp(np.array(turn)), np.array(center, float))
