"""Pins points down: where a point's template, its first appearance, lies in an image, to sub-pixels.

Optical flow carries a point from one frame to the next; each such step is a little off, and the errors add
up. So the flow is only the search. The position that counts is found by aligning the template, warped to how
it should look now, with the current image, by inverse-compositional Gauss–Newton up to gain and bias.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Array
from anchor3r.kernels import kernel

Image = NDArray[np.uint8]

TEMPLATE_RADIUS = 11
"""Templates are (2 r + 1)² pixels, larger than the patch that is aligned, so that they can be shrunk."""
_CONVERGED_PX = 0.01
_ACCEPTED_PX = 0.1  # a last step longer than this is no convergence


def cut_templates(grey: Image, corners: Array) -> Image:
    """(n, 2r + 1, 2r + 1) surroundings of whole-pixel corners (n, 2) at least r from the border."""
    u, v = corners[:, 0].astype(np.int64), corners[:, 1].astype(np.int64)
    offsets = np.arange(-TEMPLATE_RADIUS, TEMPLATE_RADIUS + 1)
    return grey[v[:, None, None] + offsets[:, None], u[:, None, None] + offsets]


@kernel
def align(
    image: Image,
    templates: Image,
    warps: Array,
    guess: Array,
    radius: int,
    iterations: int,
) -> tuple[Array, Array]:
    """Where the templates (n, t, t) lie in the image, and how well they match there.

    warps (n, 2, 2) take offsets in the current image to offsets in the template; the patch aligned is
    (2 radius + 1)² pixels of the current image; guess (n, 2). Returns positions (n, 2) and correlation
    coefficients (n,), -1 where the template does not cover the patch or nothing converged.
    """
    count = (2 * radius + 1) ** 2
    out, score = guess.copy(), np.full(len(guess), -1.0)
    jacobian, values = np.empty((count, 4)), np.empty(count)
    for i in range(len(guess)):
        # The patch and the ring around it, which the gradient needs, must lie in the template.
        if (radius + 1) * np.abs(warps[i]).sum(axis=1).max() > TEMPLATE_RADIUS - 0.01:
            continue
        _warped_template(templates[i], warps[i], radius, jacobian)
        h = jacobian.T @ jacobian
        for a in range(4):
            h[a, a] += 1e-6 * h[a, a] + 1e-9
        if _descend(image, jacobian, np.linalg.inv(h), radius, iterations, out[i], values):
            score[i] = _correlation(jacobian[:, 2], values)
        else:
            out[i] = guess[i]
    return out, score


@kernel
def _warped_template(template: Image, warp: Array, radius: int, jacobian: Array) -> None:
    """Fills jacobian (pixels, 4) with the warped template's gradient, its values and 1."""
    side = 2 * radius + 3
    grid = np.empty((side, side))
    for y in range(side):
        for x in range(side):
            dx, dy = x - radius - 1, y - radius - 1
            u = TEMPLATE_RADIUS + warp[0, 0] * dx + warp[0, 1] * dy
            v = TEMPLATE_RADIUS + warp[1, 0] * dx + warp[1, 1] * dy
            u0, v0 = math.floor(u), math.floor(v)
            a, b = u - u0, v - v0
            top = (1 - a) * template[v0, u0] + a * template[v0, u0 + 1]
            low = (1 - a) * template[v0 + 1, u0] + a * template[v0 + 1, u0 + 1]
            grid[y, x] = (1 - b) * top + b * low
    p = 0
    for y in range(1, side - 1):
        for x in range(1, side - 1):
            jacobian[p, 0] = 0.5 * (grid[y, x + 1] - grid[y, x - 1])
            jacobian[p, 1] = 0.5 * (grid[y + 1, x] - grid[y - 1, x])
            jacobian[p, 2], jacobian[p, 3] = grid[y, x], 1
            p += 1


@kernel
def _descend(
    image: Image,
    jacobian: Array,
    inverse: Array,
    radius: int,
    iterations: int,
    at: Array,
    values: Array,
) -> bool:
    """Moves `at` (2,) to where gain · template + bias fits best; values are the image's patch there."""
    height, width = image.shape
    gain, bias, moved = 1.0, 0.0, np.inf
    for _ in range(iterations):
        if not (radius <= at[0] < width - radius - 1 and radius <= at[1] < height - radius - 1):
            return False
        _read_patch(image, at[0], at[1], radius, values)
        step = inverse @ (jacobian.T @ (values - gain * jacobian[:, 2] - bias))
        gain, bias = gain + step[2], bias + step[3]
        # An inverted or washed-out template is no match; the floor keeps its steps finite until that shows.
        step[:2] /= max(gain, 0.2)
        at -= step[:2]
        moved = math.hypot(step[0], step[1])
        if moved < _CONVERGED_PX:
            break
    return moved < _ACCEPTED_PX


@kernel
def _read_patch(image: Image, u: float, v: float, radius: int, values: Array) -> None:
    """Bilinear patch around (u, v); its weights are the same at every pixel."""
    u0, v0 = math.floor(u), math.floor(v)
    a, b = u - u0, v - v0
    w00, w01, w10, w11 = (1 - a) * (1 - b), a * (1 - b), (1 - a) * b, a * b
    p = 0
    for y in range(v0 - radius, v0 + radius + 1):
        for x in range(u0 - radius, u0 + radius + 1):
            above = w00 * image[y, x] + w01 * image[y, x + 1]
            values[p] = above + w10 * image[y + 1, x] + w11 * image[y + 1, x + 1]
            p += 1


@kernel
def _correlation(a: Array, b: Array) -> float:
    """Pearson's coefficient; 0 for a flat patch."""
    da, db = a - a.mean(), b - b.mean()
    norm = math.sqrt(np.sum(da * da) * np.sum(db * db))
    return np.sum(da * db) / norm if norm > 0 else 0.0
