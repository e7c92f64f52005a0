"""A textured box seen from inside, rendered by intersecting rays: exact and fast, for tracking points."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole, so3_exp
from anchor3r.sources.frame import Frame

CAMERA = Pinhole.from_fov(75, 240, 180)
_HALF_SIZE = np.array([4.0, 2.5, 5.0])
_TEXELS_PER_UNIT = 40


class BoxRoom:
    """Six walls with smooth random patterns."""

    def __init__(self, seed: int = 0, contrast: float = 1.0) -> None:
        rng = np.random.default_rng(seed)
        side = int(2 * _HALF_SIZE.max() * _TEXELS_PER_UNIT) + 2
        self._walls = [_pattern(rng, side, contrast) for _ in range(6)]  # -x, +x, -y, +y, -z, +z

    def frame(self, index: int, camera_from_world: SE3, camera: Pinhole = CAMERA, gain: float = 1.0) -> Frame:
        rays = camera.unproject_map(np.ones((camera.height, camera.width)))
        direction = rays @ camera_from_world.rotation  # in the world
        center = camera_from_world.center()
        with np.errstate(divide="ignore"):
            distance = (np.sign(direction) * _HALF_SIZE - center) / direction
        axis = np.argmin(distance, axis=-1)
        hit = center + direction * np.take_along_axis(distance, axis[..., None], -1)
        image = np.zeros(axis.shape, np.float32)
        for wall, texture in enumerate(self._walls):
            along, positive = divmod(wall, 2)
            on = (axis == along) & (
                (np.take_along_axis(direction, axis[..., None], -1)[..., 0] > 0) == positive
            )
            u, v = ((hit[..., k] + _HALF_SIZE.max()) * _TEXELS_PER_UNIT for k in range(3) if k != along)
            seen = cv2.remap(texture, u.astype(np.float32), v.astype(np.float32), cv2.INTER_LINEAR)
            image[on] = seen[on]
        grey = np.clip(gain * image, 0, 255).astype(np.uint8)
        rgb = np.repeat(grey[..., None], 3, axis=2)
        return Frame(
            index=index,
            timestamp_s=index / 10,
            image=rgb,
            intrinsics=camera,
            camera_from_world=camera_from_world,
        )


def _pattern(rng: np.random.Generator, side: int, contrast: float) -> NDArray[np.float32]:
    octaves = [
        cv2.GaussianBlur(rng.standard_normal((side, side)), (0, 0), sigma) * sigma for sigma in (1.5, 4, 12)
    ]
    return (110 + 60 * contrast * np.sum(octaves, axis=0)).astype(np.float32)


def pose_at(center: NDArray, rotation_vector: NDArray) -> SE3:
    """camera_from_world of a camera at `center`, turned by `rotation_vector`."""
    rotation = so3_exp(rotation_vector)
    return SE3(rotation, -rotation @ center)


def stroll(num_frames: int, step: float = 0.05) -> list[SE3]:
    """A gentle arc through the room: sideways, forward, turning a little."""
    out = []
    for k in range(num_frames):
        s = step * k
        out.append(
            pose_at(
                np.array([s - 1.5, 0.15 * np.sin(s), 0.5 * s - 1.5]), np.array([0.0, 0.08 * np.sin(s), 0.0])
            )
        )
    return out
