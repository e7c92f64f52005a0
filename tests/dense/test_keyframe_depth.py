"""The depth image of a keyframe insists on arrays of one size."""

from __future__ import annotations

import numpy as np
import pytest

from anchor3r.dense.keyframe_depth import DepthOrigin, KeyframeDepth
from anchor3r.geometry import Pinhole


def made(depth: np.ndarray) -> KeyframeDepth:
    h, w = 3, 4
    return KeyframeDepth(
        frame=7,
        camera=Pinhole(10.0, 10.0, 1.5, 1.0, w, h),
        depth=depth.astype(np.float32),
        confidence=np.ones((h, w), np.float32),
        normals_in_camera=np.broadcast_to(np.float32([0, 0, -1]), (h, w, 3)),
        origin=np.full((h, w), DepthOrigin.MEASURED, np.uint8),
        colours=np.zeros((h, w, 3), np.uint8),
    )


def test_points_lie_at_the_depth_along_the_pixels_rays() -> None:
    points = made(np.full((3, 4), 2.0)).points_in_camera()
    np.testing.assert_allclose(points[..., 2], 2.0)
    np.testing.assert_allclose(points[1, 3], [2 * 1.5 / 10, 0, 2])


def test_arrays_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="depth of frame 7"):
        made(np.ones((4, 4)))
