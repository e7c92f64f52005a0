"""From depth on a coarse grid to depth and slope of every pixel, by windows that lie on slanted planes.

Every pixel has a plane, whose inverse depth is linear in the image: d, with slopes along x and y. A plane
is as good as the correlation of the window that it shows in the sources. Pixels try the planes of their
neighbours, as PatchMatch does, then a Gauss–Newton step makes each depth precise; slopes are those of the
depths around.

Letters: s views, h × w pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.derotation import Derotated
from anchor3r.dense.dominant_planes import dominant_planes
from anchor3r.dense.plane_sweep import BEST_VIEWS, LEAST_ZOOM, NOISE_VARIANCE, RADIUS, window_moments
from anchor3r.geometry import Pinhole
from anchor3r.kernels import Array, Number, kernel

_LONGEST_STEP_PX = 1.0
"""Of a Gauss–Newton step: image motion in the view where it is largest."""
_SAME_PX = 0.15
"""Planes that differ by less image motion than this are one."""
_FIT_RADIUS = 3
"""Of the window in which slopes are fitted to depths."""
_FIT_STEPS = 3.0
"""Depths that differ by more than so many steps, on top of the slope, are of another surface."""
_GOOD_SCORE = 0.6
"""Correlation of pixels that large planes are looked for among."""
_CLEARLY_BETTER = 0.03
"""By which a large plane has to correlate better than what a sweep found,"""
_SAME_PLANE = 0.01
"""where it differs from that by more than this part of the inverse depth."""
_LARGEST_REACH_PX = 40.0
"""From the middle of a window to its sides in a source: larger ones are degenerate."""
_LEAST_RESIDUAL = 0.02
"""Mean square by which normalised windows differ at least: noise, and what interpolation blurs."""
_WINDOW = 2 * RADIUS + 1


@dataclass(frozen=True, kw_only=True)
class PixelPlanes:
    """(h, w) each."""

    inverse: NDArray[np.float32]
    """Inverse depth."""
    slope_x: NDArray[np.float32]
    """Its change per column,"""
    slope_y: NDArray[np.float32]
    """and per row."""
    score: NDArray[np.float32]
    """Mean correlation of the best views; -1 without any."""
    curvature: NDArray[np.float32]
    """How sharply the likeness falls with a change of inverse depth, summed over the best views."""

    def relative_sigma(self) -> NDArray[np.float32]:
        """(h, w) standard deviation of the depth, as a part of it, by what differs between the windows.

        Normalised windows of correlation ρ differ by 2 (1 - ρ) in the mean square; infinite where nothing
        tells the depth.
        """
        residual = 2 * (1 - np.clip(self.score, -1, 1)) + np.float32(_LEAST_RESIDUAL)
        with np.errstate(divide="ignore", invalid="ignore"):
            sigma = np.sqrt(residual / (_WINDOW * _WINDOW * self.curvature)) / self.inverse
        return np.where(sigma > 0, sigma, np.float32(np.inf)).astype(np.float32)


def plane_normals(
    inverse: NDArray[np.float32], slope_x: NDArray[np.float32], slope_y: NDArray[np.float32], camera: Pinhole
) -> NDArray[np.float32]:
    """(h, w, 3) of planes whose inverse depth is linear in the image: unit vectors towards the camera."""
    v, u = np.mgrid[: inverse.shape[0], : inverse.shape[1]].astype(np.float32)
    ahead = inverse + slope_x * (np.float32(camera.cx) - u) + slope_y * (np.float32(camera.cy) - v)
    away = np.stack([slope_x * np.float32(camera.fx), slope_y * np.float32(camera.fy), ahead], -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(-away / np.linalg.norm(away, axis=-1, keepdims=True), np.float32)


class _Stack(NamedTuple):
    """What kernels look at: the reference with the moments of its windows, and the derotated sources."""

    reference: Array
    """(h, w), as the next two"""
    mean: Array
    variance: Array
    images: Array
    """(s, rows, columns)"""
    motion: Array
    """(s, 3)"""
    offset_x: int
    """Of the reference's first column in the sources,"""
    offset_y: int
    """and of its first row."""
    centre: Array
    """(2,)"""


class SlantedWindows:
    """A reference and its sources at one size: how well planes show its pixels, and better planes."""

    def __init__(self, reference: NDArray[np.float32], sources: Derotated, camera: Pinhole) -> None:
        mean, variance = window_moments(reference)
        centre = np.array([camera.cx, camera.cy], np.float32)
        self._stack = _Stack(
            reference, mean, variance, sources.images, sources.motion, *sources.offset, centre
        )
        self.shape: tuple[int, int] = reference.shape

    def choose(self, planes: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """The best views of every pixel's plane (3, h, w), (h, w, best), and the likeness there."""
        score = np.full(self.shape, -1, np.float32)
        views = np.full((*self.shape, BEST_VIEWS), -1, np.int8)
        _choose_views(self._stack, planes, np.empty((0, 3), np.float32), views, score)
        return views, score

    def try_planes(
        self,
        others: NDArray[np.float32],
        planes: NDArray[np.float32],
        views: NDArray[np.int8],
        score: NDArray[np.float32],
    ) -> None:
        """Lets pixels take one of the planes a x + b y + c, (k, 3), that shows them clearly better."""
        _choose_views(self._stack, planes, others, views, score)

    def propagate(
        self, planes: NDArray[np.float32], views: NDArray[np.int8], score: NDArray[np.float32]
    ) -> None:
        """Lets pixels take over the planes of their neighbours, in reading order and back."""
        _propagate(self._stack, views, False, planes, score)
        _propagate(self._stack, views, True, planes, score)

    def sharpen(
        self, planes: NDArray[np.float32], views: NDArray[np.int8]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Moves every plane to where it shows its pixel best; the likeness before that, and its curvature."""
        score, curvature = np.full(self.shape, -1, np.float32), np.zeros(self.shape, np.float32)
        _sharpen(self._stack, views, planes, score, curvature)
        return score, curvature


def refine_coarse(
    windows: SlantedWindows, inverse: NDArray[np.float32], step: float, num_planes: int
) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Planes (3, h, w) and best views (h, w, best) from inverse depths of a sweep; step: between its planes.

    num_planes: large planes to look for, and to try everywhere.
    """
    planes = np.stack([inverse, *fitted_slopes(inverse, step)])
    views, score = windows.choose(planes)
    windows.try_planes(dominant_planes(inverse, score > _GOOD_SCORE, num_planes), planes, views, score)
    windows.propagate(planes, views, score)
    windows.sharpen(planes, views)
    planes[1:] = fitted_slopes(planes[0], step)
    return planes, views


def refine(
    windows: SlantedWindows, planes: NDArray[np.float32], views: NDArray[np.int8], step: float
) -> PixelPlanes:
    """The same at full size, from a coarser grid that spans the same image."""
    size = windows.shape
    planes, views = _upsampled(planes, views, size)
    score, _ = windows.sharpen(planes, views)
    windows.propagate(planes, views, score)
    planes[1:] = fitted_slopes(planes[0], step)
    score, curvature = windows.sharpen(planes, views)
    return _with_borders(planes, score, curvature)


def _with_borders(
    planes: NDArray[np.float32], score: NDArray[np.float32], curvature: NDArray[np.float32]
) -> PixelPlanes:
    """Pixels at the border, around which there is no window, take the plane whose window has them in it."""
    height, width = score.shape
    y, x = np.arange(height)[:, None], np.arange(width)[None]
    row, column = np.clip(y, RADIUS, height - 1 - RADIUS), np.clip(x, RADIUS, width - 1 - RADIUS)
    inverse, slope_x, slope_y = planes[:, row, column]
    inverse = inverse + slope_x * (x - column).astype(np.float32) + slope_y * (y - row).astype(np.float32)
    return PixelPlanes(
        inverse=inverse,
        slope_x=slope_x,
        slope_y=slope_y,
        score=score[row, column],
        curvature=curvature[row, column],
    )


def fitted_slopes(
    inverse: NDArray[np.float32], step: float = 0.0, *, part: float = 0.0, radius: int = _FIT_RADIUS
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Slopes (h, w) along x and y of the inverse depths around each pixel that are of the same surface.

    Those are less than a few steps apart, or than a part of the pixel's own.
    """
    slope_x, slope_y = np.zeros_like(inverse), np.zeros_like(inverse)
    _fit_slopes(inverse, np.float32(_FIT_STEPS * step), np.float32(part), radius, slope_x, slope_y)
    return slope_x, slope_y


def _upsampled(
    planes: NDArray[np.float32], views: NDArray[np.int8], size: tuple[int, int]
) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """The planes of the nearest cells of a coarse grid, continued to each pixel, and their views."""
    rows, columns = planes.shape[1:]
    down, along = rows / size[0], columns / size[1]
    y, x = (np.arange(size[0]) + 0.5) * down - 0.5, (np.arange(size[1]) + 0.5) * along - 0.5
    # Cells at the border have no views.
    row = np.clip(np.round(y).astype(int), RADIUS, rows - 1 - RADIUS)
    column = np.clip(np.round(x).astype(int), RADIUS, columns - 1 - RADIUS)
    cell = np.ix_(row, column)
    inverse, slope_x, slope_y = (plane[cell] for plane in planes)
    continued = inverse + slope_x * (x - column) + slope_y * (y - row)[:, None]
    out = np.stack([continued, slope_x * along, slope_y * down]).astype(np.float32)
    return out, np.ascontiguousarray(views[cell])


@kernel
def _fit_slopes(
    inverse: Array, steps: Number, part: Number, radius: int, slope_x: Array, slope_y: Array
) -> None:
    """Least squares over the window of what lies within the tolerance of the pixel's own depth."""
    height, width = inverse.shape
    for y in range(height):
        for x in range(width):
            here = inverse[y, x]
            tolerance = steps + part * here
            n = sx = sy = sxx = sxy = syy = sd = sxd = syd = np.float32(0.0)
            for v in range(max(-radius, -y), min(radius, height - 1 - y) + 1):
                for u in range(max(-radius, -x), min(radius, width - 1 - x) + 1):
                    d = inverse[y + v, x + u] - here
                    # NaN is not of this surface either.
                    if not abs(d) < tolerance:
                        continue
                    fu, fv = np.float32(u), np.float32(v)
                    n += np.float32(1.0)
                    sx += fu
                    sy += fv
                    sxx += fu * fu
                    sxy += fu * fv
                    syy += fv * fv
                    sd += d
                    sxd += fu * d
                    syd += fv * d
            if n < 6:
                continue
            xx, yy, xy = sxx - sx * sx / n, syy - sy * sy / n, sxy - sx * sy / n
            xd, yd = sxd - sx * sd / n, syd - sy * sd / n
            determinant = xx * yy - xy * xy
            if determinant > np.float32(1.0):
                slope_x[y, x] = (yy * xd - xy * yd) / determinant
                slope_y[y, x] = (xx * yd - xy * xd) / determinant


@kernel
def _placed(
    stack: _Stack,
    s: int,
    x: int,
    y: int,
    d: Number,
    a: Number,
    b: Number,
) -> tuple[bool, Number, Number, Number, Number, Number, Number, Number, Number]:
    """Where a source shows the window around pixel (x, y) that lies on a plane, and whether all of it.

    Position of the middle, derivatives of u and v by x and y, which hold for the whole window, and of the
    middle by d.
    """
    motion, centre = stack.motion[s], stack.centre
    scale = max(np.float32(1.0) + motion[2] * d, np.float32(LEAST_ZOOM))
    inverse = np.float32(1.0) / scale
    from_x, from_y = np.float32(x) - centre[0], np.float32(y) - centre[1]
    at_x, at_y = (from_x + motion[0] * d) * inverse, (from_y + motion[1] * d) * inverse
    by_d_x, by_d_y = (motion[0] - at_x * motion[2]) * inverse, (motion[1] - at_y * motion[2]) * inverse
    xx, xy = inverse + by_d_x * a, by_d_x * b
    yx, yy = by_d_y * a, inverse + by_d_y * b
    at_x += centre[0] + np.float32(stack.offset_x)
    at_y += centre[1] + np.float32(stack.offset_y)
    radius = np.float32(RADIUS)
    reach_x, reach_y = radius * (abs(xx) + abs(xy)), radius * (abs(yx) + abs(yy))
    _, rows, columns = stack.images.shape
    inside = (
        scale > LEAST_ZOOM
        and reach_x < at_x < np.float32(columns - 1) - reach_x
        and reach_y < at_y < np.float32(rows - 1) - reach_y
        and reach_x + reach_y < _LARGEST_REACH_PX
    )
    return inside, at_x, at_y, xx, xy, yx, yy, by_d_x, by_d_y


@kernel
def _correlation(
    stack: _Stack,
    s: int,
    x: int,
    y: int,
    d: Number,
    a: Number,
    b: Number,
) -> Number:
    """Of the window around pixel (x, y) with what its plane shows in one source; -2 if that is outside.

    Indices are unsigned: signed ones may count from the end, and to ask each whether it does costs a
    quarter of the time.
    """
    inside, at_x, at_y, xx, xy, yx, yy, _, _ = _placed(stack, s, x, y, d, a, b)
    if not inside:
        return np.float32(-2.0)
    reference, image = stack.reference, stack.images[s]
    first = square = product = np.float32(0.0)
    for v in range(-RADIUS, RADIUS + 1):
        for u in range(-RADIUS, RADIUS + 1):
            fu, fv = np.float32(u), np.float32(v)
            sx, sy = at_x + xx * fu + xy * fv, at_y + yx * fu + yy * fv
            column, row = int(sx), int(sy)
            x_part, y_part = sx - np.float32(column), sy - np.float32(row)
            left, right = np.uintp(column), np.uintp(column + 1)
            top, bottom = np.uintp(row), np.uintp(row + 1)
            above = image[top, left] + x_part * (image[top, right] - image[top, left])
            below = image[bottom, left] + x_part * (image[bottom, right] - image[bottom, left])
            value = above + y_part * (below - above)
            first += value
            square += value * value
            product += value * reference[np.uintp(y + v), np.uintp(x + u)]
    share = np.float32(1.0 / (_WINDOW * _WINDOW))
    first *= share
    own = max(square * share - first * first, np.float32(0.0)) + np.float32(NOISE_VARIANCE)
    expected = stack.variance[y, x] + np.float32(NOISE_VARIANCE)
    score = (product * share - first * stack.mean[y, x]) / np.sqrt(own * expected)
    return score if score > -1.5 else np.float32(-2.0)


@kernel
def _choose_views(
    stack: _Stack,
    planes: Array,
    others: Array,
    views: Array,
    score: Array,
) -> None:
    """Of each pixel's plane and the others, the best one, how well it is seen, and in which views.

    A pixel that has views already is not measured again.
    """
    height, width = stack.reference.shape
    best = np.empty(BEST_VIEWS, np.float32)
    which = np.empty(BEST_VIEWS, np.int8)
    for y in range(RADIUS, height - RADIUS):
        for x in range(RADIUS, width - RADIUS):
            first = -1 if views[y, x, 0] < 0 else 0
            for k in range(first, len(others)):
                d, a, b = planes[0, y, x], planes[1, y, x], planes[2, y, x]
                if k >= 0:
                    a, b = others[k, 0], others[k, 1]
                    d = a * np.float32(x) + b * np.float32(y) + others[k, 2]
                    same = abs(d - planes[0, y, x]) < np.float32(_SAME_PLANE) * d
                    if d <= 0 or same or score[y, x] > np.float32(1 - _CLEARLY_BETTER):
                        continue
                best[:] = -2.0
                which[:] = -1
                for s in range(len(stack.images)):
                    found = _correlation(stack, s, x, y, d, a, b)
                    view = np.int8(s)
                    for j in range(BEST_VIEWS):
                        if found > best[j]:
                            best[j], found = found, best[j]
                            which[j], view = view, which[j]
                total, count = np.float32(0.0), 0
                for j in range(BEST_VIEWS):
                    if which[j] >= 0:
                        total += best[j]
                        count += 1
                if count == 0:
                    continue
                total /= np.float32(count)
                if k < 0 or total > score[y, x] + np.float32(_CLEARLY_BETTER):
                    score[y, x] = total
                    planes[0, y, x], planes[1, y, x], planes[2, y, x] = d, a, b
                    for j in range(BEST_VIEWS):
                        views[y, x, j] = which[j]


@kernel
def _mean_correlation(
    stack: _Stack,
    views: Array,
    x: int,
    y: int,
    d: Number,
    a: Number,
    b: Number,
) -> Number:
    """Over the views of a pixel; -1 where none shows the plane."""
    total, count = np.float32(0.0), 0
    for k in range(BEST_VIEWS):
        s = views[k]
        if s < 0:
            continue
        found = _correlation(stack, s, x, y, d, a, b)
        if found > -1.5:
            total += found
            count += 1
    return total / np.float32(count) if count else np.float32(-1.0)


@kernel
def _largest_motion(stack: _Stack, views: Array, x: int, y: int, d: Number) -> Number:
    """Of a pixel in its views, per inverse depth."""
    motion, centre = stack.motion, stack.centre
    largest = np.float32(0.0)
    for k in range(BEST_VIEWS):
        s = views[k]
        if s < 0:
            continue
        inverse = np.float32(1.0) / max(np.float32(1.0) + motion[s, 2] * d, np.float32(LEAST_ZOOM))
        at_x = (np.float32(x) - centre[0] + motion[s, 0] * d) * inverse
        at_y = (np.float32(y) - centre[1] + motion[s, 1] * d) * inverse
        by_x = (motion[s, 0] - at_x * motion[s, 2]) * inverse
        by_y = (motion[s, 1] - at_y * motion[s, 2]) * inverse
        largest = max(largest, by_x * by_x + by_y * by_y)
    return np.sqrt(largest)


@kernel
def _propagate(
    stack: _Stack,
    views: Array,
    backwards: bool,
    planes: Array,
    score: Array,
) -> None:
    """Each pixel takes the plane of the neighbours before it where that shows it better, in reading order."""
    height, width = stack.reference.shape
    sign = 1 if backwards else -1
    for row in range(RADIUS, height - RADIUS):
        y = height - 1 - row if backwards else row
        for column in range(RADIUS, width - RADIUS):
            x = width - 1 - column if backwards else column
            if views[y, x, 0] < 0:
                continue
            largest = _largest_motion(stack, views[y, x], x, y, planes[0, y, x])
            for way in range(2):
                nx, ny = (x + sign, y) if way == 0 else (x, y + sign)
                if not (RADIUS <= nx < width - RADIUS and RADIUS <= ny < height - RADIUS):
                    continue
                a, b = planes[1, ny, nx], planes[2, ny, nx]
                d = planes[0, ny, nx] + a * np.float32(x - nx) + b * np.float32(y - ny)
                if abs(d - planes[0, y, x]) * largest < np.float32(_SAME_PX) or d <= 0:
                    continue
                found = _mean_correlation(stack, views[y, x], x, y, d, a, b)
                if found > score[y, x]:
                    score[y, x] = found
                    planes[0, y, x], planes[1, y, x], planes[2, y, x] = d, a, b


@kernel
def _alignment(
    stack: _Stack,
    s: int,
    x: int,
    y: int,
    d: Number,
    a: Number,
    b: Number,
) -> tuple[Number, Number, Number]:
    """As `_correlation`, with gradient and curvature of a Gauss–Newton step in d of the windows."""
    nothing = (np.float32(-2.0), np.float32(0.0), np.float32(0.0))
    inside, at_x, at_y, xx, xy, yx, yy, by_d_x, by_d_y = _placed(stack, s, x, y, d, a, b)
    if not inside:
        return nothing
    reference, image, mean = stack.reference, stack.images[s], stack.mean[y, x]
    first = square = product = np.float32(0.0)
    change = change_square = change_value = change_product = np.float32(0.0)
    for v in range(-RADIUS, RADIUS + 1):
        for u in range(-RADIUS, RADIUS + 1):
            fu, fv = np.float32(u), np.float32(v)
            sx, sy = at_x + xx * fu + xy * fv, at_y + yx * fu + yy * fv
            column, row = int(sx), int(sy)
            x_part, y_part = sx - np.float32(column), sy - np.float32(row)
            left, right = np.uintp(column), np.uintp(column + 1)
            top, bottom = np.uintp(row), np.uintp(row + 1)
            step_above = image[top, right] - image[top, left]
            step_below = image[bottom, right] - image[bottom, left]
            above = image[top, left] + x_part * step_above
            below = image[bottom, left] + x_part * step_below
            value = above + y_part * (below - above)
            slope = by_d_x * (step_above + y_part * (step_below - step_above)) + by_d_y * (below - above)
            seen = reference[np.uintp(y + v), np.uintp(x + u)]
            first += value
            square += value * value
            product += value * seen
            change += slope
            change_square += slope * slope
            change_value += slope * value
            change_product += slope * seen
    share = np.float32(1.0 / (_WINDOW * _WINDOW))
    first, change = first * share, change * share
    own = max(square * share - first * first, np.float32(0.0)) + np.float32(NOISE_VARIANCE)
    variance = stack.variance[y, x] + np.float32(NOISE_VARIANCE)
    score = (product * share - first * mean) / np.sqrt(own * variance)
    if not score > -1.5:
        return nothing
    with_value = change_value * share - change * first
    with_seen = change_product * share - change * mean
    gradient = with_seen / np.sqrt(own * variance) - score * with_value / own
    curvature = (change_square * share - change * change - with_value * with_value / own) / own
    return score, gradient, max(curvature, np.float32(0.0))


@kernel
def _sharpen(
    stack: _Stack,
    views: Array,
    planes: Array,
    score: Array,
    curvature: Array,
) -> None:
    """One Gauss–Newton step in the depth of each pixel's plane, over its views together."""
    height, width = stack.reference.shape
    for y in range(RADIUS, height - RADIUS):
        for x in range(RADIUS, width - RADIUS):
            if views[y, x, 0] < 0:
                continue
            d = planes[0, y, x]
            total = slope = bend = np.float32(0.0)
            count = 0
            for k in range(BEST_VIEWS):
                s = views[y, x, k]
                if s < 0:
                    continue
                found, along, around = _alignment(stack, s, x, y, d, planes[1, y, x], planes[2, y, x])
                if found > -1.5:
                    total += found
                    slope += along
                    bend += around
                    count += 1
            score[y, x] = total / np.float32(count) if count else np.float32(-1.0)
            curvature[y, x] = bend
            if bend <= 0:
                continue
            largest = np.float32(_LONGEST_STEP_PX) / _largest_motion(stack, views[y, x], x, y, d)
            step = min(max(slope / bend, -largest), largest)
            if d + step > 0:
                planes[0, y, x] = d + step
