"""Cameras as lines: pyramids whose base is what the camera sees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Pinhole
from anchor3r.trajectory import Trajectory

_OUTLINE = (0, 1, 2, 0, 3, 4, 0, 4, 1, 2, 3)
"""Through the centre (0) and the corners, every edge at least once."""


def frustum_lines(trajectory: Trajectory, camera: Pinhole | None, depth: float) -> NDArray[np.float64]:
    """(n, 11, 3) polylines in the world, one a pose, their base at this depth; 4:3 without a camera."""
    shape = camera or Pinhole.from_fov(60, 4, 3)
    right, bottom = shape.width - 0.5, shape.height - 0.5
    corners = np.array([[-0.5, -0.5], [right, -0.5], [right, bottom], [-0.5, bottom]])
    corners_in_camera = np.concatenate([np.zeros((1, 3)), shape.unproject(corners, np.full(4, depth))])
    world_from_camera = trajectory.world_from_camera
    rotated = corners_in_camera[list(_OUTLINE)] @ np.swapaxes(world_from_camera.rotation, -1, -2)
    return np.asarray(rotated + world_from_camera.translation[:, None], np.float64)


def frustum_depth(trajectory: Trajectory) -> float:
    """A size at which the cameras of a path can be told from each other and from the path."""
    extent = float(np.ptp(trajectory.center, axis=0).max()) if len(trajectory) else 0.0
    return 0.02 * extent or 0.1
