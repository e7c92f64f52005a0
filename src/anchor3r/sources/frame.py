"""What a source yields and a predictor takes: one image with whatever is known about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One image of a stream."""

    index: int
    """Position in the source, counted from 0; a frame that could not be read leaves a gap."""
    timestamp_s: float
    """Seconds, on the source's own clock."""
    image: NDArray[np.uint8]
    """(H, W, 3) RGB; grey sources repeat their one channel."""
    intrinsics: Pinhole | None = None
    """Of this image, where the source knows them."""
    is_nominal: bool = False
    """Whether these are no calibration but a nominal figure, good to some per cent: a field of view, or what
    a photograph says of its lens."""
    depth_m: NDArray[np.float32] | None = None
    """(H, W) ground-truth depth along z, 0 where unknown."""
    camera_from_world: SE3 | None = None
    """Ground-truth pose, where the source has one."""
    depth_confidence: NDArray[np.float32] | None = None
    """(H, W) in 0–1, how far the depth is to be trusted; None where it is the truth."""
    pose_confidence: float = 1.0
    """In 0–1, the same of the pose."""
