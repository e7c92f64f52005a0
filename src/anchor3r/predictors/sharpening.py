"""Matches made sharper on the images themselves, where the images have the texture for it.

The network finds a cell of the anchor in another image to a fraction of a pixel; a Lucas–Kanade alignment
of the small patches around the two places finds the rest. It starts at the network's match and may not leave
it: what is right, and what is visible at all, stays the network's decision.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

_PATCH = 9  # pixels a side: about two of the network's cells
_FARTHEST_PX = 2.0
_CRITERIA = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 10, 0.01)
_LEAST_TEXTURE = 1e-4  # smaller eigenvalue of the patch's structure, as OpenCV scales it


def grey(image: NDArray) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 -> (H, W)"""
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)


def sharpen(
    anchor: NDArray[np.uint8],
    member: NDArray[np.uint8],
    cells: NDArray[np.float32],
    matched: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Pixels (P, 2) of the anchor's `cells` (P, 2) in the member, from their matches (P, 2); grey images.

    A match stays where the alignment fails or goes farther than it was asked to.
    """
    found, status, _ = cv2.calcOpticalFlowPyrLK(
        anchor, member, cells[:, None], matched[:, None].copy(),
        winSize=(_PATCH, _PATCH), maxLevel=0, criteria=_CRITERIA,
        flags=cv2.OPTFLOW_USE_INITIAL_FLOW, minEigThreshold=_LEAST_TEXTURE,
    )  # fmt: skip
    pixel = found[:, 0]
    near = np.linalg.norm(pixel - matched, axis=1) < _FARTHEST_PX
    return np.where((near & (status[:, 0] > 0))[:, None], pixel, matched).astype(np.float32)
