"""Feature tracks: where corners are started, where optical flow carries them, and what pins them down.

Optical flow carries a point from one frame to the next; each such step is a little off, and the errors add
up. So the flow is only the search. The position that counts is found by aligning the template, the point's
first appearance, warped to how it should look now, with the current image, by inverse-compositional
Gauss–Newton up to gain and bias.
"""

from __future__ import annotations

import math

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Array
from anchor3r.kernels import kernel
from anchor3r.predictors.features.cholesky import factorise, substitute

Image = NDArray[np.uint8]

TEMPLATE_RADIUS = 11
"""Templates are (2 r + 1)² pixels, larger than the patch that is aligned, so that they can be shrunk."""
_PER_CELL = 2
"""Points followed in a cell before no new corner is started there."""
_MIN_CELL_PX = 8
"""Side of the smallest cell, so that the points of a small image do not crowd."""
_MIN_QUALITY = 0.01
"""Weakest corner to start, relative to the strong ones of the image; Shi and Tomasi's usual value."""
_STRUCTURE_WINDOW_PX = 5
"""Side of the window that a corner's structure tensor is summed over."""
_FLOW_ITERATIONS, _FLOW_CONVERGED_PX = 20, 0.03
"""Optical flow stops after so many steps on a pyramid level, or at one as short as that."""
_MAX_RETURN_PX = 1.0
"""Flow there and back that misses its start by more is not believed."""
_ALIGN_ITERATIONS, _ALIGN_CONVERGED_PX = 10, 0.01
"""Alignment stops after so many steps, or at one as short as that,"""
_ACCEPTED_PX = 0.1
"""and has not converged if its last step was longer than this."""
_NO_MATCH = -2.0
"""In place of a correlation coefficient."""
_MIN_GAIN = 0.2
"""An inverted or washed-out template is no match; this floor keeps its steps finite until that shows."""


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
    before: Image,
    after: Image,
    start: NDArray[np.float32],
    guess: NDArray[np.float32],
    window: int,
    levels: int,
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    criteria = (
        cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, _FLOW_ITERATIONS, _FLOW_CONVERGED_PX,
    )  # fmt: skip
    there, found, _ = cv2.calcOpticalFlowPyrLK(
        before, after, start, guess, winSize=(window, window), maxLevel=levels, criteria=criteria,
        flags=cv2.OPTFLOW_USE_INITIAL_FLOW,
    )  # fmt: skip
    return np.asarray(there), np.asarray(found)[:, 0] > 0


def detect(grey: Image, occupied: Array, num_points: int) -> Array:
    """New corners (n, 2) at whole pixels that fill the occupied (m, 2) up to num_points, evenly spread."""
    response = np.asarray(cv2.cornerMinEigenVal(grey, _STRUCTURE_WINDOW_PX), np.float32)
    peak = response >= cv2.dilate(response, np.ones((3, 3), np.uint8))
    response[~peak] = 0
    cell = max(_MIN_CELL_PX, round(math.sqrt(grey.size * _PER_CELL / num_points)))
    # A corner must stand out against its own image's best; the percentile makes "best" robust.
    floor = max(1e-6, _MIN_QUALITY * float(np.percentile(response[peak], 99)))
    corners = np.empty((_PER_CELL * (grey.shape[0] // cell + 1) * (grey.shape[1] // cell + 1), 2))
    return corners[: _pick_corners(response, np.ascontiguousarray(occupied), floor, cell, corners)]


@kernel
def _pick_corners(
    response: NDArray[np.float32], occupied: Array, floor: float, cell: int, corners: Array
) -> int:
    """Greedy per cell: repeatedly the strongest free peak, until the cell is full. Returns how many corners
    (n, 2) were found."""
    border, reach = TEMPLATE_RADIUS + 1, int(cell / 2.5)
    height, width = response.shape
    rows, columns = height // cell + 1, width // cell + 1
    counts, num_found = np.zeros((rows, columns), np.int64), 0
    for i in range(len(occupied)):
        u, v = int(occupied[i, 0] + 0.5), int(occupied[i, 1] + 0.5)
        if 0 <= u < width and 0 <= v < height:
            counts[v // cell, u // cell] += 1
            _clear(response, u, v, reach)
    for row in range(rows):
        for column in range(columns):
            while counts[row, column] < _PER_CELL:
                best, best_u, best_v = floor, -1, -1
                for v in range(max(border, row * cell), min(height - border, (row + 1) * cell)):
                    for u in range(max(border, column * cell), min(width - border, (column + 1) * cell)):
                        if response[v, u] > best:
                            best, best_u, best_v = float(response[v, u]), u, v
                if best_u < 0:
                    break
                corners[num_found, 0], corners[num_found, 1] = best_u, best_v
                num_found += 1
                counts[row, column] += 1
                _clear(response, best_u, best_v, reach)
    return num_found


@kernel
def _clear(response: NDArray[np.float32], u: int, v: int, reach: int) -> None:
    """No other corner is started so near to this one."""
    for y in range(max(0, v - reach), min(response.shape[0], v + reach + 1)):
        for x in range(max(0, u - reach), min(response.shape[1], u + reach + 1)):
            response[y, x] = 0.0


def cut_templates(grey: Image, corners: Array) -> Image:
    """(n, 2r + 1, 2r + 1) surroundings of whole-pixel corners (n, 2) at least r from the border."""
    u, v = corners[:, 0].astype(np.int64), corners[:, 1].astype(np.int64)
    offsets = np.arange(-TEMPLATE_RADIUS, TEMPLATE_RADIUS + 1)
    return grey[v[:, None, None] + offsets[:, None], u[:, None, None] + offsets]


def align(image: Image, templates: Image, warps: Array, guess: Array, radius: int) -> tuple[Array, Array]:
    """Where the templates (n, t, t) lie in the image, and how well they match there.

    warps (n, 2, 2) take offsets in the current image to offsets in the template; the patch aligned is
    (2 radius + 1)² pixels of the current image; guess (n, 2). Returns positions (n, 2) and correlation
    coefficients (n,), _NO_MATCH where the template does not cover the patch or nothing converged.
    """
    at, score = np.array(guess, order="C"), np.full(len(guess), _NO_MATCH)
    # The patch and the ring around it, which the gradient needs, must lie in the template.
    covered = (radius + 1) * np.abs(warps).sum(axis=2).max(axis=1) <= TEMPLATE_RADIUS - 0.01
    _align(image, templates, np.ascontiguousarray(warps), covered, radius, at, score)
    at[score == _NO_MATCH] = guess[score == _NO_MATCH]
    return at, score


@kernel
def _align(
    image: Image, templates: Image, warps: Array, covered: NDArray[np.bool_], radius: int,
    at: Array, score: Array,
) -> None:  # fmt: skip
    """`align` in place: at (n, 2), score (n,)."""
    count = (2 * radius + 1) ** 2
    jacobian, values, h = np.empty((count, 4)), np.empty(count), np.empty((4, 4))
    grid = np.empty((2 * radius + 3, 2 * radius + 3))
    for i in range(len(at)):
        if not covered[i]:
            continue
        _warped_template(templates[i], warps[i], grid, jacobian)
        for a in range(4):
            for b in range(a + 1):
                total = 0.0
                for p in range(count):
                    total += jacobian[p, a] * jacobian[p, b]
                h[a, b] = total
            h[a, a] += 1e-6 * h[a, a] + 1e-9
        if factorise(h) and _descend(image, jacobian, h, radius, at[i], values):
            score[i] = _correlation(jacobian, values)


@kernel
def _warped_template(template: Image, warp: Array, grid: Array, jacobian: Array) -> None:
    """Fills jacobian (pixels, 4) with the warped template's gradient, its values and 1.

    grid is space for the patch and the ring around it.
    """
    side = len(grid)
    middle = side // 2
    for y in range(side):
        for x in range(side):
            dx, dy = x - middle, y - middle
            u = TEMPLATE_RADIUS + warp[0, 0] * dx + warp[0, 1] * dy
            v = TEMPLATE_RADIUS + warp[1, 0] * dx + warp[1, 1] * dy
            u0, v0 = int(u), int(v)  # positive: the patch lies in the template
            a, b = u - u0, v - v0
            top = (1 - a) * template[v0, u0] + a * template[v0, u0 + 1]
            low = (1 - a) * template[v0 + 1, u0] + a * template[v0 + 1, u0 + 1]
            grid[y, x] = (1 - b) * top + b * low
    p = 0
    for y in range(1, side - 1):
        for x in range(1, side - 1):
            jacobian[p, 0] = 0.5 * (grid[y, x + 1] - grid[y, x - 1])
            jacobian[p, 1] = 0.5 * (grid[y + 1, x] - grid[y - 1, x])
            jacobian[p, 2], jacobian[p, 3] = grid[y, x], 1.0
            p += 1


@kernel
def _descend(image: Image, jacobian: Array, factor: Array, radius: int, at: Array, values: Array) -> bool:
    """Moves `at` (2,) to where gain · template + bias fits best; values are the image's patch there."""
    height, width = image.shape
    gain, bias, moved = 1.0, 0.0, np.inf
    step = np.empty(4)
    for _ in range(_ALIGN_ITERATIONS):
        if not (radius <= at[0] < width - radius - 1 and radius <= at[1] < height - radius - 1):
            return False
        _read_patch(image, at[0], at[1], radius, values)
        step.fill(0.0)
        for p in range(len(values)):
            error = values[p] - gain * jacobian[p, 2] - bias
            for a in range(4):
                step[a] += jacobian[p, a] * error
        substitute(factor, step)
        gain, bias = gain + step[2], bias + step[3]
        du, dv = step[0] / max(gain, _MIN_GAIN), step[1] / max(gain, _MIN_GAIN)
        at[0] -= du
        at[1] -= dv
        moved = math.hypot(du, dv)
        if moved < _ALIGN_CONVERGED_PX:
            break
    return moved < _ACCEPTED_PX


@kernel
def _read_patch(image: Image, u: float, v: float, radius: int, values: Array) -> None:
    """Bilinear patch around (u, v); its weights are the same at every pixel."""
    u0, v0 = int(u), int(v)  # positive: the patch lies in the image
    a, b = u - u0, v - v0
    w00, w01, w10, w11 = (1 - a) * (1 - b), a * (1 - b), (1 - a) * b, a * b
    p = 0
    for y in range(v0 - radius, v0 + radius + 1):
        for x in range(u0 - radius, u0 + radius + 1):
            above = w00 * image[y, x] + w01 * image[y, x + 1]
            values[p] = above + w10 * image[y + 1, x] + w11 * image[y + 1, x + 1]
            p += 1


@kernel
def _correlation(jacobian: Array, values: Array) -> float:
    """Pearson's coefficient of the warped template and the image's patch; 0 for a flat patch."""
    mean_a, mean_b = 0.0, 0.0
    for p in range(len(values)):
        mean_a += jacobian[p, 2]
        mean_b += values[p]
    mean_a, mean_b = mean_a / len(values), mean_b / len(values)
    aa, ab, bb = 0.0, 0.0, 0.0
    for p in range(len(values)):
        da, db = jacobian[p, 2] - mean_a, values[p] - mean_b
        aa, ab, bb = aa + da * da, ab + da * db, bb + db * db
    norm = math.sqrt(aa * bb)
    return ab / norm if norm > 0 else 0.0
