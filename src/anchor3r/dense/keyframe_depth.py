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
