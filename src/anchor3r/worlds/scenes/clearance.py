"""Keeps things out of the camera's way."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_POSITIONS = 600


def box_clearance(
    path: NDArray, x: NDArray, z: NDArray, size: NDArray, yaw: ArrayLike, base: ArrayLike = 0.0
) -> NDArray:
    """(n,) metres between upright boxes (as `SceneBuilder.boxes` takes them) and camera positions (p, 3)."""
    path = path[:: max(1, len(path) // MAX_POSITIONS)]
    yaw, base = np.broadcast_to(yaw, x.shape), np.broadcast_to(base, x.shape)
    dx, dz = path[:, 0, None] - x, path[:, 2, None] - z
    right, forward = dx * np.cos(yaw) - dz * np.sin(yaw), dx * np.sin(yaw) + dz * np.cos(yaw)
    above = -path[:, 1, None] - (base + size[:, 1] / 2)
    gaps = [np.abs(offset) - size[:, k] / 2 for k, offset in ((0, right), (1, above), (2, forward))]
    return np.sqrt(sum(np.maximum(gap, 0) ** 2 for gap in gaps)).min(0)
