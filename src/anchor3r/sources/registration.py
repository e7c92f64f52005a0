"""Depth of one camera as another one beside it would measure it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole
from anchor3r.kernels import Array, kernel


def registered(
    depth_m: NDArray[np.float32], camera: Pinhole, other_from_camera: SE3, other: Pinhole
) -> NDArray[np.float32]:
    """(H, W) along z, 0 for none -> (H', W') of the other camera; of several depths in a pixel the nearest.

    A pixel becomes as wide as it is in the other image, so that no gaps open where that is the larger one.
    """
    pose = np.column_stack([other_from_camera.rotation, other_from_camera.translation])
    lenses = np.array([[c.fx, c.fy, c.cx, c.cy] for c in (camera, other)])
    out = np.full((other.height, other.width), np.inf, np.float32)
    _splat(depth_m, lenses, pose, max(other.fx / camera.fx, other.fy / camera.fy), out)
    return np.where(np.isfinite(out), out, 0).astype(np.float32)


@kernel
def _splat(depth: Array, lenses: Array, pose: Array, magnification: float, out: Array) -> None:
    # A tenth more than the mean spacing: perspective and rotation stretch it here and there.
    reach = max(1.1 * magnification - 1, 0.0) / 2
    height, width = out.shape
    for v in range(depth.shape[0]):
        for u in range(depth.shape[1]):
            z = depth[v, u]
            if not z > 0:
                continue
            x, y = (u - lenses[0, 2]) * z / lenses[0, 0], (v - lenses[0, 3]) * z / lenses[0, 1]
            c = pose[2, 0] * x + pose[2, 1] * y + pose[2, 2] * z + pose[2, 3]
            if not c > 0:
                continue
            a = pose[0, 0] * x + pose[0, 1] * y + pose[0, 2] * z + pose[0, 3]
            b = pose[1, 0] * x + pose[1, 1] * y + pose[1, 2] * z + pose[1, 3]
            column, row = lenses[1, 0] * a / c + lenses[1, 2], lenses[1, 1] * b / c + lenses[1, 3]
            if not (column > -1 and row > -1 and column < width and row < height):
                continue
            top, bottom = max(0, int(np.round(row - reach))), min(height - 1, int(np.round(row + reach)))
            left, right = max(0, int(np.round(column - reach))), min(width - 1, int(np.round(column + reach)))
            for j in range(top, bottom + 1):
                for i in range(left, right + 1):
                    if c < out[j, i]:
                        out[j, i] = c
