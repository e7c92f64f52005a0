"""Normals of a depth image from the differences of neighbouring depths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Pinhole

_SAME_SURFACE = 0.1
"""Relative difference of neighbouring depths up to which they are taken to be of one surface."""


def normals_of(depth: NDArray[np.floating], camera: Pinhole) -> NDArray[np.float32]:
    """(h, w) -> (h, w, 3) unit vectors towards the camera; NaN at borders, holes and edges."""
    points = camera.unproject_map(np.asarray(depth, np.float64))
    normals = np.full(points.shape, np.nan, np.float32)
    across, down = points[1:-1, 2:] - points[1:-1, :-2], points[2:, 1:-1] - points[:-2, 1:-1]
    apart = np.maximum(np.abs(across[..., 2]), np.abs(down[..., 2]))
    # x right and y down span the image, so that the cross product of y and x points to the camera.
    found = np.cross(down, across)
    with np.errstate(invalid="ignore", divide="ignore"):
        found /= np.linalg.norm(found, axis=-1, keepdims=True)
        smooth = apart < _SAME_SURFACE * points[1:-1, 1:-1, 2]
    normals[1:-1, 1:-1] = np.where(smooth[..., None], found, np.nan)
    return normals
