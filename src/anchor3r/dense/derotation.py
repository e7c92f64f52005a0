"""Source images turned as if their camera had looked along the reference's axes.

Between two such views a surface at inverse depth d moves pixel x to (x - c + f t d) / (1 + t_z d) + c: along
rows and columns separately, so that a plane sweep needs no homography for each plane.

Letters: s views, h × w pixels, p planes.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole

_MARGIN = 0.6
"""Of the width and of the height, on each side: what lies further outside of the reference is not kept."""


@dataclass(frozen=True, kw_only=True)
class Derotated:
    """The sources of one reference; their axes are its own."""

    images: NDArray[np.float32]
    """(s, h + 2 my, w + 2 mx) grey, NaN where a source shows nothing"""
    offset: tuple[int, int]
    """(mx, my) columns and rows before the reference's first pixel"""
    motion: NDArray[np.float32]
    """(s, 3) translation source_from_reference in the reference's axes, its x and y in focal lengths:
    pixels × depth"""


def derotated(
    images: list[NDArray[np.float32]], camera: Pinhole, source_from_reference: SE3, nearest: float
) -> Derotated:
    """Sources (h, w) with the reference's camera; source_from_reference (s,); nearest: depth of the sweep."""
    rotation = source_from_reference.rotation
    in_reference = (np.swapaxes(rotation, 1, 2) @ source_from_reference.translation[..., None])[..., 0]
    motion = in_reference * np.array([camera.fx, camera.fy, 1.0])
    mx, my = _margins(camera, motion, 1 / nearest)
    matrix, shift = camera.matrix(), np.array([[1.0, 0, -mx], [0, 1, -my], [0, 0, 1]])
    size = camera.width + 2 * mx, camera.height + 2 * my
    turned = np.empty((len(images), size[1], size[0]), np.float32)
    for k, image in enumerate(images):
        source_from_canvas = matrix @ rotation[k] @ np.linalg.inv(matrix) @ shift
        cv2.warpPerspective(
            image,
            source_from_canvas,
            size,
            dst=turned[k],
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=(float("nan"),) * 4,
        )
        _drop_behind(turned[k], source_from_canvas)
    return Derotated(images=turned, offset=(mx, my), motion=motion.astype(np.float32))


def _margins(camera: Pinhole, motion: NDArray[np.float64], largest: float) -> tuple[int, int]:
    """Columns and rows that the corners leave the reference by, between infinity and the nearest plane."""
    out = []
    for axis, (centre, size) in enumerate(((camera.cx, camera.width), (camera.cy, camera.height))):
        corner = np.array([0.0, size - 1])
        scale = np.maximum(1 + motion[:, 2:] * largest, 0.3)
        moved = (corner - centre + motion[:, axis : axis + 1] * largest) / scale + centre
        outside = max(-moved.min(initial=0), moved.max(initial=0) - (size - 1), 0)
        out.append(int(min(np.ceil(outside) + 2, round(_MARGIN * size))))
    return out[0], out[1]


def _drop_behind(image: NDArray[np.float32], source_from_canvas: NDArray[np.float64]) -> None:
    """A homography also maps what lies behind the source into its image."""
    height, width = image.shape
    a, b, c = source_from_canvas[2]
    depth = a * np.arange(width) + b * np.arange(height)[:, None] + c
    image[depth <= 0.1] = np.nan
