"""Depth by a plane sweep: the planes of a few views that look most alike, smoothed by semi-global matching.

Likeness is the correlation (ZNCC) of a window of the reference with the window that a plane at some depth
shows in a source, whose mean and variance are its own, exactly. Planes are even in inverse depth. Of the
views the best few count, since what is hidden is hidden from one side.

Letters: s views, h × w pixels, p planes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.derotation import Derotated
from anchor3r.geometry import Pinhole
from anchor3r.kernels import Array, Number, kernel

RADIUS = 3
"""Of the window: 7 × 7 pixels."""
BEST_VIEWS = 3
"""Views that count."""
NOISE_VARIANCE = 4.0
"""Squared grey levels that sensor and compression add; where a window varies less, nothing correlates."""
LEAST_ZOOM = 0.2
"""A source sees a surface at no less than this part of the reference's depth: nearer, a pixel is spread over
many."""
_COST_LEVELS = 250.0
"""Cost of no correlation at all."""


def window_moments(image: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(h, w) mean and variance of every window; NaN where it leaves the image."""
    mean, variance = np.full_like(image, np.nan), np.full_like(image, np.nan)
    _window_moments(image, mean, variance)
    return mean, variance


def sweep(
    reference: NDArray[np.float32], sources: Derotated, camera: Pinhole, planes: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """Costs (h, w, p) of inverse depths `planes` (p,): 0 is perfect likeness, 250 none."""
    height, width = reference.shape
    mean, variance = window_moments(reference)
    volume = np.empty((len(planes), height, width), np.uint8)
    centre = np.array([camera.cx, camera.cy], np.float32)
    _sweep(reference, mean, variance, sources.images, sources.motion, *sources.offset, centre, planes, volume)
    return np.ascontiguousarray(volume.transpose(1, 2, 0))


def semi_global(
    costs: NDArray[np.uint8], guide: NDArray[np.float32], small: float, large: float, edge_grey: float
) -> NDArray[np.float32]:
    """Costs (h, w, p) summed along paths from the four sides, mean of the four.

    small: of a step by one plane to the neighbour; large: of any jump, less across edges:
    over 1 + |grey difference| / edge_grey.
    """
    total = np.zeros(costs.shape, np.float32)
    weights = np.float32(small), np.float32(large), np.float32(edge_grey)
    _along_lines(costs, guide, *weights, total)
    _along_lines(costs.swapaxes(0, 1), guide.T, *weights, total.swapaxes(0, 1))
    return total


def lowest(total: NDArray[np.float32], planes: NDArray[np.float32]) -> NDArray[np.float32]:
    """(h, w) inverse depths of the least cost, between planes by a parabola."""
    out = np.empty(total.shape[:2], np.float32)
    _lowest(total, planes, out)
    return out


@kernel
def _window_moments(image: Array, mean: Array, variance: Array) -> None:
    height, width = image.shape
    count = (2 * RADIUS + 1) ** 2
    for y in range(RADIUS, height - RADIUS):
        for x in range(RADIUS, width - RADIUS):
            total = square = 0.0
            origin = image[y, x]
            for v in range(-RADIUS, RADIUS + 1):
                for u in range(-RADIUS, RADIUS + 1):
                    value = image[y + v, x + u] - origin
                    total += value
                    square += value * value
            total /= count
            mean[y, x] = total + origin
            variance[y, x] = max(square / count - total * total, 0.0)


@kernel
def _sweep(
    reference: Array,
    mean: Array,
    variance: Array,
    images: Array,
    motion: Array,
    offset_x: int,
    offset_y: int,
    centre: Array,
    planes: Array,
    volume: Array,
) -> None:
    height, width = reference.shape
    num_views = len(images)
    warped = np.empty((height, width), np.float32)
    # Best correlations of a pixel so far, in falling order.
    best = np.empty((BEST_VIEWS, height, width), np.float32)
    sums = np.empty((3, height, width), np.float32)
    for p in range(len(planes)):
        best[:] = -2.0
        for s in range(num_views):
            _warp(images[s], motion[s], planes[p], offset_x, offset_y, centre, warped)
            _column_sums(reference, warped, sums)
            _keep_best(sums, mean, variance, best)
        for y in range(height):
            for x in range(width):
                total, count = np.float32(0.0), np.float32(0.0)
                for k in range(BEST_VIEWS):
                    if best[k, y, x] > -1.5:
                        total += best[k, y, x]
                        count += np.float32(1.0)
                score = total / count if count > 0 else np.float32(0.0)
                volume[p, y, x] = np.uint8(_COST_LEVELS * (1.0 - max(score, np.float32(0.0))))


@kernel
def _warp(
    image: Array, motion: Array, plane: Number, offset_x: int, offset_y: int, centre: Array, out: Array
) -> None:
    """What a derotated source shows of a plane, pixel by pixel of the reference."""
    height, width = out.shape
    rows, columns = image.shape
    scale = np.float32(1.0) + motion[2] * plane
    if scale < LEAST_ZOOM:
        out[:] = np.nan
        return
    inverse = np.float32(1.0) / scale
    first_x = (motion[0] * plane - centre[0]) * inverse + centre[0] + np.float32(offset_x)
    first_y = (motion[1] * plane - centre[1]) * inverse + centre[1] + np.float32(offset_y)
    for y in range(height):
        at_y = first_y + inverse * np.float32(y)
        top = int(np.floor(at_y))
        if top < 0 or top >= rows - 1:
            out[y, :] = np.nan
            continue
        down = at_y - np.float32(top)
        for x in range(width):
            at_x = first_x + inverse * np.float32(x)
            left = int(np.floor(at_x))
            if left < 0 or left >= columns - 1:
                out[y, x] = np.nan
                continue
            right = at_x - np.float32(left)
            above = image[top, left] + right * (image[top, left + 1] - image[top, left])
            below = image[top + 1, left] + right * (image[top + 1, left + 1] - image[top + 1, left])
            out[y, x] = above + down * (below - above)


@kernel
def _column_sums(reference: Array, warped: Array, sums: Array) -> None:
    """Of the warped image, its square and its product with the reference, over the rows of the window."""
    height, width = reference.shape
    sums[:] = 0
    for y in range(RADIUS, height - RADIUS):
        for v in range(y - RADIUS, y + RADIUS + 1):
            for x in range(width):
                value = warped[v, x]
                sums[0, y, x] += value
                sums[1, y, x] += value * value
                sums[2, y, x] += value * reference[v, x]


@kernel
def _keep_best(sums: Array, mean: Array, variance: Array, best: Array) -> None:
    """Correlations of the windows, put among the best ones of each pixel."""
    _, height, width = best.shape
    share = np.float32(1.0 / (2 * RADIUS + 1) ** 2)
    scores = np.empty(width, np.float32)
    for y in range(RADIUS, height - RADIUS):
        # A loop without branches, which the compiler turns into vector instructions.
        for x in range(RADIUS, width - RADIUS):
            first = square = product = np.float32(0.0)
            for u in range(x - RADIUS, x + RADIUS + 1):
                first += sums[0, y, u]
                square += sums[1, y, u]
                product += sums[2, y, u]
            first *= share
            own = max(square * share - first * first, np.float32(0.0)) + np.float32(NOISE_VARIANCE)
            covariance = product * share - first * mean[y, x]
            scores[x] = covariance / np.sqrt(own * (variance[y, x] + np.float32(NOISE_VARIANCE)))
        for x in range(RADIUS, width - RADIUS):
            score = scores[x]
            if not score > best[BEST_VIEWS - 1, y, x]:  # or NaN: the source does not show the whole window
                continue
            for k in range(BEST_VIEWS):
                if score > best[k, y, x]:
                    best[k, y, x], score = score, best[k, y, x]


@kernel
def _along_lines(
    costs: Array, guide: Array, small: Number, large: Number, edge_grey: Number, total: Array
) -> None:
    """Paths along the second axis, from its start and from its end; transposed arrays give the other axis."""
    lines, length, _ = costs.shape
    for i in range(lines):
        for start, step in ((0, 1), (length - 1, -1)):
            before = costs[i, start].astype(np.float32)
            total[i, start] += before
            for k in range(1, length):
                x = start + k * step
                jump = large / (1 + abs(guide[i, x] - guide[i, x - step]) / edge_grey)
                before = _advance(before, costs[i, x], small, jump, total[i, x])


@kernel
def _advance(before: Array, cost: Array, small: Number, jump: Number, total: Array) -> Array:
    """One pixel further along a path: its costs, and those of the way there."""
    count = len(before)
    least = before.min()
    far = least + max(jump, small)
    out = np.empty(count, np.float32)
    for p in range(count):
        value = min(before[p], far)
        if p > 0:
            value = min(value, before[p - 1] + small)
        if p < count - 1:
            value = min(value, before[p + 1] + small)
        out[p] = np.float32(cost[p]) + value - least
        total[p] += out[p]
    return out


@kernel
def _lowest(total: Array, planes: Array, out: Array) -> None:
    height, width, count = total.shape
    for y in range(height):
        for x in range(width):
            k = int(total[y, x].argmin())
            shift = 0.0
            if 0 < k < count - 1:
                before, here, after = total[y, x, k - 1], total[y, x, k], total[y, x, k + 1]
                bend = before - 2 * here + after
                if bend > 0:
                    shift = 0.5 * (before - after) / bend
            out[y, x] = planes[k] + shift * (planes[1] - planes[0])
