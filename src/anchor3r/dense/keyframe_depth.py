"""Depth of a keyframe, how sure each pixel is and where it comes from: what stereo makes and fusion takes.

The point maps of networks become one of these as well: depth with confidence is depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Pinhole

_SAME_SURFACE = 0.1
"""Relative difference of neighbouring depths up to which they are taken to be of one surface."""


class DepthOrigin(IntEnum):
    """Where the depth of a pixel comes from."""

    NONE = 0
    """There is no depth: sky, a moving thing, or nothing that could be measured."""
    MEASURED = 1
    """Several views agree on it."""
    PLANE = 2
    """Nothing was measured here; a plane through what was measured around it."""
    INTERPOLATED = 3
    """Taken over from the predictor's own point map."""


@dataclass(frozen=True, kw_only=True)
class KeyframeDepth:
    """A depth image in the scale of the poses that it was measured with."""

    frame: int
    camera: Pinhole
    """Of the depth image, without lens distortion."""
    depth: NDArray[np.float32]
    """(h, w) along z; NaN where there is none"""
    confidence: NDArray[np.float32]
    """(h, w) probability that the depth is within 5 %; 0 where there is none"""
    normals_in_camera: NDArray[np.float32]
    """(h, w, 3) unit vectors towards the camera; NaN where there is no depth"""
    origin: NDArray[np.uint8]
    """(h, w) `DepthOrigin`"""
    colours: NDArray[np.uint8]
    """(h, w, 3) RGB"""

    def __post_init__(self) -> None:
        size = (self.camera.height, self.camera.width)
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
            "depth": (self.depth, size),
            "confidence": (self.confidence, size),
            "normals_in_camera": (self.normals_in_camera, (*size, 3)),
            "origin": (self.origin, size),
            "colours": (self.colours, (*size, 3)),
        }
        for name, (array, shape) in shapes.items():
            if array.shape != shape:
                raise ValueError(f"{name} of frame {self.frame} is {array.shape}, its camera has {shape}")

    def points_in_camera(self) -> NDArray[np.floating[Any]]:
        """(h, w, 3); NaN where there is no depth"""
        return np.asarray(self.camera.unproject_map(self.depth), np.float64)


def normals_of(depth: NDArray[np.floating], camera: Pinhole) -> NDArray[np.float32]:
    """(h, w) depth -> (h, w, 3) unit vectors towards the camera, from the differences of neighbouring depths.

    NaN at borders, holes and edges.
    """
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
