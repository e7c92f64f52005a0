"""Fragments: what is seen in a pixel of one surface, the unit of shading.

Visibility is sampled several times a pixel, colour once for each surface seen in it: edges are smooth at
little more than the price of one sample. A frame's fragments pass through the stages of `surfaces` (where
is it?) and `sampling` (what colour is it, how much light falls on it?) and are put together here. Each
stage is one loop whose inner functions take numbers and records only: arrays as arguments would cost numba
a reference count at every call.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import Record, kernel
from anchor3r.worlds.render.visibility import SKY

FRAGMENT = np.dtype(
    [
        ("pixel", "i4"),
        ("slot", "i4"),  # the surface, as in `visibility`
        ("share", "f8"),  # of the pixel's samples
        ("x", "f8"),  # the ray (x, y, 1) at the centroid of those samples
        ("y", "f8"),
        ("inverse_depth", "f8"),  # 1/z there; 0 = sky
        ("centre_inverse_depth", "f8"),  # 1/z at the pixel's centre; -1 where the surface does not cover it
        ("u", "f4"),  # texture position, in tiles
        ("v", "f4"),
        ("major_u", "f4"),  # longer axis of the footprint, in tiles
        ("major_v", "f4"),
        ("lod", "f4"),  # mip level
        ("taps", "i4"),
        ("texture", "i4"),
        ("stain_texture", "i4"),
        ("stain_u", "f4"),
        ("stain_v", "f4"),
        ("stain_width", "f4"),  # footprint in tiles
        ("stain", "f4"),  # strength before, brightness factor after sampling
        ("position", "f4", 3),  # world
        ("normal", "f4", 3),
        ("ground_m", "f4"),  # footprint on the ground, 0 = takes no shadows
        ("lamp", "f4"),  # 1 = takes the light of the lamp, 0 = not
        ("occlusion", "f4"),  # share of light left by neighbouring surfaces
        ("gain", "f4", 3),
        ("offset", "f4", 3),
        ("light", "f4", 3),  # linear
        ("colour", "f4", 3),  # linear
    ],
    align=True,
)


@kernel(fast=True)
def fast_log2(value: float) -> float:
    """log2 of a positive number to 0.05, read off the bits of a float32: enough to choose a mip level."""
    return float(np.float32(value).view(np.int32)) / (1 << 23) - 126.957


@kernel(fast=True)
def _uniform(slots: NDArray, i: int, j: int, samples: int) -> bool:
    """Whether all samples of pixel (i, j) see the same surface."""
    first = slots[i * samples, j * samples]
    same = True
    for a in range(i * samples, (i + 1) * samples):
        for b in range(j * samples, (j + 1) * samples):
            same &= slots[a, b] == first
    return same


@kernel(fast=True)
def _start(fragment: Record, pixel: int, slot: int, x: float, y: float) -> None:
    fragment.pixel, fragment.slot = pixel, slot
    fragment.share, fragment.x, fragment.y = 0.0, x, y


@kernel(fast=True)
def gather_fragments(
    slots: NDArray, samples: int, camera: NDArray, first_row: int, last_row: int, fragments: NDArray
) -> int:
    """Fills in the fragments of some image rows, pixel by pixel; returns their number.

    slots: (H samples, W samples); fragments must have room for one a sample.
    """
    fx, fy, cx, cy = camera
    width, count = slots.shape[1] // samples, samples * samples
    stop = 0
    for i in range(first_row, last_row):
        for j in range(width):
            if _uniform(slots, i, j, samples):
                _start(
                    fragments[stop],
                    i * width + j,
                    slots[i * samples, j * samples],
                    (j - cx) / fx,
                    (i - cy) / fy,
                )
                fragments[stop].share = 1.0
                stop += 1
                continue
            first = stop
            for a in range(count):
                down, right = a // samples, a % samples
                slot = slots[i * samples + down, j * samples + right]
                k = first
                while k < stop and fragments[k].slot != slot:
                    k += 1
                if k == stop:
                    _start(fragments[k], i * width + j, slot, 0.0, 0.0)
                    stop += 1
                fragments[k].share += 1.0
                fragments[k].x += (right + 0.5) / samples - 0.5
                fragments[k].y += (down + 0.5) / samples - 0.5
            for k in range(first, stop):
                fragment = fragments[k]
                fragment.x = (j + fragment.x / fragment.share - cx) / fx
                fragment.y = (i + fragment.y / fragment.share - cy) / fy
                fragment.share /= count
    return stop


@kernel(fast=True)
def compose(fragments: NDArray, environments: NDArray, colour: NDArray, depth_m: NDArray) -> None:
    """Fills colour (H, W, 3) in linear light and depth_m (H, W), 0 = sky."""
    haze_per_m = environments[0].haze_per_m
    haze = environments[0].haze
    flat_colour, flat_depth = colour.reshape(-1, 3), depth_m.reshape(-1)
    f = 0
    while f < len(fragments):
        pixel = fragments[f].pixel
        nearest, fallback, most = -1.0, 0.0, 0.0
        red, green, blue = 0.0, 0.0, 0.0
        while f < len(fragments) and fragments[f].pixel == pixel:
            fragment = fragments[f]
            clear = 1.0
            if fragment.slot != SKY:
                # The first terms of 1 / exp(x): air need not be exact, and exp is slow.
                thickness = haze_per_m / fragment.inverse_depth
                clear = 1 / (1 + thickness * (1 + thickness * (0.5 + thickness * 0.1667)))
            red += fragment.share * (haze[0] + clear * (fragment.colour[0] - haze[0]))
            green += fragment.share * (haze[1] + clear * (fragment.colour[1] - haze[1]))
            blue += fragment.share * (haze[2] + clear * (fragment.colour[2] - haze[2]))
            nearest = max(nearest, fragment.centre_inverse_depth)
            # Where no seen surface covers the centre it is sky, if any is seen, else the surface seen most.
            weight = 2.0 if fragment.slot == SKY else fragment.share
            if weight > most:
                most, fallback = weight, fragment.inverse_depth
            f += 1
        flat_colour[pixel, 0], flat_colour[pixel, 1], flat_colour[pixel, 2] = red, green, blue
        nearest = nearest if nearest >= 0 else fallback
        flat_depth[pixel] = 1 / nearest if nearest > 0 else 0.0
