"""Bakes the shadows on the ground: cast by the sun, and the soft darkening where things stand on it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import Array, kernel
from anchor3r.worlds.scenes.scene import Lightmap

MAX_SIZE = 4096
CONTACT_DARKNESS = 0.65


class Occluders(NamedTuple):
    """n upright boxes over parallelograms of the ground (x, z)."""

    corner: Array
    """(n, 2)"""
    right: Array
    """(n, 2)"""
    forward: Array
    """(n, 2)"""
    base: Array
    """(n,) height of the underside"""
    height: Array
    """(n,) from underside to top"""


def bake_lightmap(
    occluders: list[Occluders],
    ground: tuple[float, float, float, float],
    shift: Array,
    sun_share: float,
    texel_m: float,
) -> Lightmap:
    """Light that is left on the ground (x0, z0, x1, z1).

    shift: (2,) how far the shadow of a point moves along the ground per metre of its height.
    sun_share: the part of the light on open ground that comes from the sun.
    texel_m: the coarsest texel wanted, within MAX_SIZE.
    """
    x0, z0, x1, z1 = ground
    extent = max(x1 - x0, z1 - z0, 1.0)
    size = 1 << min(MAX_SIZE.bit_length() - 1, max(6, math.ceil(math.log2(extent / texel_m))))
    texels_per_m = size / extent
    corner = np.array([x0, z0])
    sunlit, open_sky = np.ones((size, size), np.float32), np.ones((size, size), np.float32)
    if occluders:
        all_boxes = Occluders(*(np.concatenate(field) for field in zip(*occluders, strict=True)))
        outlines = (
            (all_boxes.corner - corner) * texels_per_m,
            all_boxes.right * texels_per_m,
            all_boxes.forward * texels_per_m,
        )
        standing = all_boxes.base < 0.6
        _fill_all(open_sky, *(np.ascontiguousarray(o[standing]) for o in outlines))
        if sun_share > 0.02:
            top = all_boxes.base + all_boxes.height
            _fill_shadows(sunlit, *outlines, all_boxes.base, top, shift * texels_per_m)
    penumbra = max(1, round(0.12 * texels_per_m))
    reach = max(1, round(0.5 * texels_per_m))
    light = 1 - sun_share * (1 - _box_blur(sunlit, penumbra))
    light *= 1 - CONTACT_DARKNESS * (1 - _box_blur(open_sky, reach))
    return Lightmap(_chain(light), np.array([x0, z0, texels_per_m, size]))


def _chain(light: Array) -> NDArray[np.uint8]:
    level: Array = light * np.float32(255)
    flat = []
    while True:
        flat.append((level + 0.5).astype(np.uint8).ravel())
        if len(level) == 1:
            return np.concatenate(flat)
        level = (level[0::2, 0::2] + level[1::2, 0::2] + level[0::2, 1::2] + level[1::2, 1::2]) / 4


@kernel(fast=True)
def _fill(field: Array, ox: float, oz: float, ax: float, az: float, bx: float, bz: float) -> None:
    """Sets field to 0 in the parallelogram o + s a + t b, in texels (x = column, z = row)."""
    det = ax * bz - az * bx
    if abs(det) < 1e-6:
        return
    size = field.shape[0]
    low_x = max(0, math.floor(ox + min(0.0, ax) + min(0.0, bx)))
    high_x = min(size - 1, math.ceil(ox + max(0.0, ax) + max(0.0, bx)))
    low_z = max(0, math.floor(oz + min(0.0, az) + min(0.0, bz)))
    high_z = min(size - 1, math.ceil(oz + max(0.0, az) + max(0.0, bz)))
    for row in range(low_z, high_z + 1):
        for column in range(low_x, high_x + 1):
            x, z = column + 0.5 - ox, row + 0.5 - oz
            s, t = (x * bz - z * bx) / det, (ax * z - az * x) / det
            if 0 <= s <= 1 and 0 <= t <= 1:
                field[row, column] = 0


@kernel(fast=True)
def _fill_all(field: Array, corner: Array, right: Array, forward: Array) -> None:
    for k in range(len(corner)):
        _fill(field, corner[k, 0], corner[k, 1], right[k, 0], right[k, 1], forward[k, 0], forward[k, 1])


@kernel(fast=True)
def _fill_shadows(
    field: Array,
    corner: Array,
    right: Array,
    forward: Array,
    base: Array,
    top: Array,
    shift: Array,
) -> None:
    """Each box's outline, swept along the ground from the shadow of its underside to that of its top."""
    for k in range(len(corner)):
        ax, az, bx, bz = right[k, 0], right[k, 1], forward[k, 0], forward[k, 1]
        x0, z0 = corner[k, 0] + base[k] * shift[0], corner[k, 1] + base[k] * shift[1]
        sx, sz = (top[k] - base[k]) * shift[0], (top[k] - base[k]) * shift[1]
        _fill(field, x0, z0, ax, az, bx, bz)
        _fill(field, x0 + sx, z0 + sz, ax, az, bx, bz)
        for corner_x, corner_z, edge_x, edge_z in (
            (x0, z0, ax, az), (x0, z0, bx, bz), (x0 + bx, z0 + bz, ax, az), (x0 + ax, z0 + az, bx, bz)
        ):  # fmt: skip
            _fill(field, corner_x, corner_z, edge_x, edge_z, sx, sz)


@kernel(fast=True)
def _box_blur(field: Array, reach: int) -> Array:
    """Mean over (2 reach + 1)² texels by running sums, borders repeated."""
    size = field.shape[0]
    scale = np.float32(1.0 / (2 * reach + 1))
    across, out = np.empty_like(field), np.empty_like(field)
    for i in range(size):
        total = np.float32(0)
        for j in range(-reach, reach + 1):
            total += field[i, min(max(j, 0), size - 1)]
        for j in range(size):
            across[i, j] = total * scale
            total += field[i, min(j + reach + 1, size - 1)] - field[i, max(j - reach, 0)]
    column = np.zeros(size, np.float32)
    for i in range(-reach, reach + 1):
        column += across[min(max(i, 0), size - 1)]
    for i in range(size):
        entering, leaving = min(i + reach + 1, size - 1), max(i - reach, 0)
        for j in range(size):
            out[i, j] = column[j] * scale
            column[j] += across[entering, j] - across[leaving, j]
    return out
