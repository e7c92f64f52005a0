"""Points followed from image to image: where to start them, and where optical flow carries them."""

from __future__ import annotations

import math

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Array
from anchor3r.kernels import kernel
from anchor3r.predictors.features.alignment import TEMPLATE_RADIUS, Image

_PER_CELL = 2
"""Points followed in a cell before no new corner is started there."""
_MIN_CELL = 8
_MIN_QUALITY = 0.01
"""Weakest corner to start, relative to the strong ones of the image."""
_MAX_RETURN_PX = 1.0
"""Flow there and back that misses its start by more is not believed."""


def to_grey(image: Image, min_side: int, max_side: int) -> Image:
    """(H, W, 3) RGB -> grey working image, its longer side from min_side to max_side."""
    grey = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)
    longer = max(grey.shape)
    scale = float(np.clip(longer, min_side, max_side)) / longer
    if scale != 1:
        size = (round(grey.shape[1] * scale), round(grey.shape[0] * scale))
        how = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
        grey = np.asarray(cv2.resize(grey, size, interpolation=how), np.uint8)
    return grey


def match_brightness(image: Image, to: Image) -> Image:
    """The image with the mean and contrast of another."""
    gain = float(to.std()) / max(float(image.std()), 1.0)
    matched = (image - float(image.mean())) * gain + float(to.mean())
    return np.clip(matched, 0, 255).astype(np.uint8)


def follow(
    before: Image, after: Image, points: Array, guess: Array, window: int, levels: int
) -> tuple[Array, NDArray[np.bool_]]:
    """Optical flow of points (n, 2) to the next image; and whether it stays inside and comes back."""
    if len(points) == 0:
        return np.empty((0, 2)), np.empty(0, bool)
    start, there = points.astype(np.float32), guess.astype(np.float32)
    there, found = _flow(before, after, start, there, window, levels)
    # On the way back the start is known to a pixel or so: one pyramid level is enough.
    back, found_back = _flow(after, before, there, start.copy(), window, 1)
    returned = np.linalg.norm(back - start, axis=1) < _MAX_RETURN_PX
    inside = ((there >= 0) & (there <= [after.shape[1] - 1, after.shape[0] - 1])).all(axis=1)
    return there.astype(np.float64), found & found_back & returned & inside


def _flow(
    before: Image, after: Image, start: NDArray, guess: NDArray, window: int, levels: int
) -> tuple[NDArray, NDArray[np.bool_]]:
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 20, 0.03)
    there, found, _ = cv2.calcOpticalFlowPyrLK(
        before, after, start, guess, winSize=(window, window), maxLevel=levels, criteria=criteria,
        flags=cv2.OPTFLOW_USE_INITIAL_FLOW,
    )  # fmt: skip
    return np.asarray(there), np.asarray(found)[:, 0] > 0


def detect(grey: Image, occupied: Array, num_points: int) -> Array:
    """New corners (n, 2) at whole pixels that fill the occupied (m, 2) up to num_points, evenly spread."""
    response = np.asarray(cv2.cornerMinEigenVal(grey, 5), np.float32)
    peak = response >= cv2.dilate(response, np.ones((3, 3), np.uint8))
    response[~peak] = 0
    cell = max(_MIN_CELL, round(math.sqrt(grey.size * _PER_CELL / num_points)))
    # A corner must stand out against its own image's best; the percentile makes "best" robust.
    floor = max(1e-6, _MIN_QUALITY * float(np.percentile(response[peak], 99)))
    return _pick_corners(response, occupied, floor, cell)


@kernel
def _pick_corners(response: NDArray[np.float32], occupied: Array, floor: float, cell: int) -> Array:
    """Greedy per cell: repeatedly the strongest free peak, until the cell is full."""
    border = TEMPLATE_RADIUS + 1
    height, width = response.shape
    free = np.ones((height, width), np.bool_)
    counts = np.zeros((height // cell + 1, width // cell + 1), np.int64)
    reach = int(cell / 2.5)
    for i in range(len(occupied)):
        u, v = int(occupied[i, 0] + 0.5), int(occupied[i, 1] + 0.5)
        if 0 <= u < width and 0 <= v < height:
            counts[v // cell, u // cell] += 1
            free[max(0, v - reach) : v + reach + 1, max(0, u - reach) : u + reach + 1] = False
    found = []
    for row in range(counts.shape[0]):
        for col in range(counts.shape[1]):
            while counts[row, col] < _PER_CELL:
                best, best_u, best_v = floor, -1, -1
                for v in range(max(border, row * cell), min(height - border, (row + 1) * cell)):
                    for u in range(max(border, col * cell), min(width - border, (col + 1) * cell)):
                        if response[v, u] > best and free[v, u]:
                            best, best_u, best_v = response[v, u], u, v
                if best_u < 0:
                    break
                found.append((best_u, best_v))
                counts[row, col] += 1
                u0, v0 = max(0, best_u - reach), max(0, best_v - reach)
                free[v0 : best_v + reach + 1, u0 : best_u + reach + 1] = False
    corners = np.empty((len(found), 2))
    for i in range(len(found)):
        corners[i, 0], corners[i, 1] = found[i][0], found[i][1]
    return corners
