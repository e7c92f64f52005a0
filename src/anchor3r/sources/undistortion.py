"""Images of a lens as those of an ideal camera: the one way for stated cameras, benchmarks and data sets."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Pinhole

FISHEYE_MODELS = ("equidistant", "fisheye", "kannala_brandt")
"""What recordings and data sets call the one lens of these that is OpenCV's fisheye."""
Maps = tuple[NDArray[Any], NDArray[Any]]
"""Where the pixels of the ideal image lie in the lens's, as `cv2.remap` takes them."""


def undistorted(
    image: NDArray[np.uint8], camera: Pinhole, distortion: tuple[float, ...], *, fisheye: bool = False
) -> NDArray[np.uint8]:
    """An image (H, W, 3) without the distortion of its lens, seen with the same focal lengths and centre.

    distortion: k1[, k2[, p1, p2[, k3 …]]] of OpenCV, or k1 … k4 of its equidistant fisheye.
    """
    return _remapped(image, _maps(camera, camera, distortion, fisheye))


def undistorted_and_cropped(
    image: NDArray[np.uint8], camera: Pinhole, distortion: tuple[float, ...]
) -> tuple[NDArray[np.uint8], Pinhole]:
    """An image without distortion that shows only what the lens saw, in its size, and its camera."""
    if not np.any(distortion):
        return image, camera
    inner = _without_borders(camera, distortion)
    return _remapped(image, _maps(camera, inner, distortion, False)), inner


def _remapped(image: NDArray[np.uint8], maps: Maps) -> NDArray[np.uint8]:
    import cv2

    return np.asarray(cv2.remap(image, *maps, cv2.INTER_LINEAR), np.uint8)


@lru_cache(maxsize=32)
def _maps(camera: Pinhole, ideal: Pinhole, distortion: tuple[float, ...], fisheye: bool) -> Maps:
    import cv2

    coefficients = np.array(distortion)
    if not fisheye:
        coefficients = np.concatenate([coefficients, np.zeros(max(0, 5 - len(coefficients)))])
    find = cv2.fisheye.initUndistortRectifyMap if fisheye else cv2.initUndistortRectifyMap
    size = (ideal.width, ideal.height)
    return find(camera.matrix(), coefficients, np.eye(3), ideal.matrix(), size, cv2.CV_16SC2)


@lru_cache(maxsize=32)
def _without_borders(camera: Pinhole, distortion: tuple[float, ...]) -> Pinhole:
    """The largest ideal camera all of whose pixels the lens saw."""
    import cv2

    size = (camera.width, camera.height)
    matrix, _ = cv2.getOptimalNewCameraMatrix(camera.matrix(), np.array(distortion), size, 0)
    return Pinhole(matrix[0, 0], matrix[1, 1], matrix[0, 2], matrix[1, 2], *size)
