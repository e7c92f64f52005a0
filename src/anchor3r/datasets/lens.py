"""Pictures of a lens as those of an ideal camera."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Pinhole

Maps = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Column and row in the lens's picture of every pixel of the ideal one, as `cv2.remap` takes them."""


@lru_cache(maxsize=32)
def straightening(camera: Pinhole, distortion: tuple[float, ...]) -> tuple[Pinhole, Maps]:
    """The ideal camera that shows only what the lens saw, and where its pixels lie in the lens's picture.

    distortion: k1, k2, p1, p2, k3 … of OpenCV.
    """
    import cv2

    size = (camera.width, camera.height)
    coefficients = np.array(distortion)
    matrix, _ = cv2.getOptimalNewCameraMatrix(camera.matrix(), coefficients, size, 0)
    maps = cv2.initUndistortRectifyMap(camera.matrix(), coefficients, np.eye(3), matrix, size, cv2.CV_32FC1)
    ideal = Pinhole(matrix[0, 0], matrix[1, 1], matrix[0, 2], matrix[1, 2], *size)
    return ideal, (np.asarray(maps[0], np.float32), np.asarray(maps[1], np.float32))


def straightened(
    image: NDArray[np.uint8], camera: Pinhole, distortion: NDArray[np.float64]
) -> tuple[NDArray[np.uint8], Pinhole]:
    """An image (H, W, 3) without the distortion of its lens, and its camera."""
    import cv2

    if not np.any(distortion):
        return image, camera
    ideal, maps = straightening(camera, tuple(distortion.tolist()))
    return np.asarray(cv2.remap(image, *maps, cv2.INTER_LINEAR), np.uint8), ideal
