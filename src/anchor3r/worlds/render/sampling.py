"""What colour each fragment has: filtered textures, stains, clouds, shadows and lamp.

Textures are averaged over the pixel's footprint (between mip levels, and with several taps along its longer
axis where a surface is seen at a grazing angle), so nothing shimmers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import Record, kernel
from anchor3r.worlds.render.fragments import fast_log2
from anchor3r.worlds.render.visibility import SKY
from anchor3r.worlds.scenes.textures import CHAIN, LEVEL_START, LEVELS, SIZE

_STARTS = np.array(LEVEL_START, np.int64)
_BYTES = np.uint64(0x00FF00FF00FF00FF)


@kernel(fast=True)
def _lanes(texel: np.uint32) -> np.uint64:
    """Spreads the bytes of a texel over 16-bit lanes, so that one multiplication weighs all channels."""
    wide = np.uint64(texel)
    wide = (wide | (wide << np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    return (wide | (wide << np.uint64(8))) & _BYTES


@kernel(fast=True)
def _red(texel: np.uint32) -> float:
    return float(np.int32(texel) & np.int32(255))


@kernel(fast=True)
def sample_textures(fragments: NDArray, texels: NDArray) -> None:
    """Fills in the colour, still without light."""
    flat = texels.reshape(-1)
    for f in range(len(fragments)):
        fragment = fragments[f]
        if fragment.slot == SKY:
            continue
        first, taps = fragment.texture * CHAIN, fragment.taps
        level = min(max(int(fragment.lod), 0), LEVELS - 2)
        blend = np.int64(min(max(fragment.lod - level, 0.0), 1.0) * 256)
        red = green = blue = np.uint64(0)
        for tap in range(taps):
            at = (tap + 0.5) / taps - 0.5
            u, v = fragment.u + at * fragment.major_u, fragment.v + at * fragment.major_v
            mixed = np.uint64(0)
            for k in range(2):
                weight = blend if k == 1 else 256 - blend
                if weight == 0:
                    continue
                size = SIZE >> (level + k)
                x, y = u * size - 0.5, v * size - 0.5
                x0, y0 = math.floor(x), math.floor(y)
                fx, fy = np.int64((x - x0) * 16), np.int64((y - y0) * 16)
                left, right = np.int64(x0) & (size - 1), np.int64(x0 + 1) & (size - 1)
                top = first + _STARTS[level + k] + (np.int64(y0) & (size - 1)) * size
                bottom = first + _STARTS[level + k] + (np.int64(y0 + 1) & (size - 1)) * size
                # Sixteenths by sixteenths: the weights sum to 256 and no lane overflows.
                total = _lanes(flat[np.uint64(top + left)]) * np.uint64((16 - fx) * (16 - fy))
                total += _lanes(flat[np.uint64(top + right)]) * np.uint64(fx * (16 - fy))
                total += _lanes(flat[np.uint64(bottom + left)]) * np.uint64((16 - fx) * fy)
                total += _lanes(flat[np.uint64(bottom + right)]) * np.uint64(fx * fy)
                mixed += ((total >> np.uint64(8)) & _BYTES) * np.uint64(weight)
            red += mixed & np.uint64(0xFFFF)
            green += (mixed >> np.uint64(16)) & np.uint64(0xFFFF)
            blue += (mixed >> np.uint64(32)) & np.uint64(0xFFFF)
        scale = 1 / (256.0 * taps)
        fragment.colour[0] = np.int64(red) * scale * fragment.gain[0] + fragment.offset[0]
        fragment.colour[1] = np.int64(green) * scale * fragment.gain[1] + fragment.offset[1]
        fragment.colour[2] = np.int64(blue) * scale * fragment.gain[2] + fragment.offset[2]


@kernel(fast=True)
def sample_stains(fragments: NDArray, texels: NDArray, environments: NDArray) -> None:
    """Applies the stains of surfaces and the clouds of the sky, both from red channels of noise textures."""
    e = environments[0]
    cloud_light = 1.25 * max(e.haze[0], e.haze[1], e.haze[2])
    flat = texels.reshape(-1)
    for f in range(len(fragments)):
        fragment = fragments[f]
        if fragment.stain <= 0:
            continue
        first = fragment.stain_texture * CHAIN
        level = min(LEVELS - 1, max(0, int(fast_log2(fragment.stain_width * SIZE + 1e-9) + 0.5)))
        size = SIZE >> level
        x, y = fragment.stain_u * size - 0.5, fragment.stain_v * size - 0.5
        x0, y0 = math.floor(x), math.floor(y)
        fx, fy = x - x0, y - y0
        left, right = np.int64(x0) & (size - 1), np.int64(x0 + 1) & (size - 1)
        top = first + _STARTS[level] + (np.int64(y0) & (size - 1)) * size
        bottom = first + _STARTS[level] + (np.int64(y0 + 1) & (size - 1)) * size
        upper = _red(flat[np.uint64(top + left)]) * (1 - fx) + _red(flat[np.uint64(top + right)]) * fx
        lower = _red(flat[np.uint64(bottom + left)]) * (1 - fx) + _red(flat[np.uint64(bottom + right)]) * fx
        value = ((1 - fy) * upper + fy * lower) / 255
        if fragment.slot == SKY:
            amount = min(1.0, max(0.0, (value - 1 + e.cloud_cover) / e.cloud_softness)) * fragment.stain
            for c in range(3):
                fragment.colour[c] += amount * (cloud_light * (0.7 + 0.3 * value) - fragment.colour[c])
        else:
            factor = 1 + fragment.stain * (value - 0.5)
            for c in range(3):
                fragment.colour[c] *= factor


@kernel(fast=True)
def _lamp_light(fragment: Record, environment: Record) -> float:
    """Lambert's cosine over a softened inverse square, for a lamp of strength 1."""
    square, cosine = 0.0, 0.0
    for c in range(3):
        towards = environment.lamp_position[c] - fragment.position[c]
        square += towards * towards
        cosine += towards * fragment.normal[c]
    return max(0.0, cosine) / (math.sqrt(square + 1e-6) * (1 + 0.5 * square))


@kernel(fast=True)
def light_fragments(fragments: NDArray, environments: NDArray, lightmap: NDArray, frame: NDArray) -> None:
    """Turns encoded colour into linear light that reaches the camera; lightmap and frame as in `Lightmap`."""
    environment = environments[0]
    texels_per_m, finest = frame[2], int(frame[3])
    for f in range(len(fragments)):
        fragment = fragments[f]
        if fragment.slot == SKY:
            continue
        share = float(fragment.occlusion)
        if fragment.ground_m > 0:
            level = max(0, int(fast_log2(fragment.ground_m * texels_per_m + 1e-9) + 0.5))
            start, size = 0, finest
            while level > 0 and size > 1:
                start += size * size
                size >>= 1
                level -= 1
            scale = texels_per_m * size / finest
            x = min(max((fragment.position[0] - frame[0]) * scale - 0.5, 0.0), size - 1.001)
            z = min(max((fragment.position[2] - frame[1]) * scale - 0.5, 0.0), size - 1.001)
            column, row = int(x), int(z)
            fx, fz = x - column, z - row
            near, far = start + row * size, start + min(row + 1, size - 1) * size
            right = min(column + 1, size - 1)
            front = (1 - fx) * lightmap[near + column] + fx * lightmap[near + right]
            back = (1 - fx) * lightmap[far + column] + fx * lightmap[far + right]
            share *= ((1 - fz) * front + fz * back) / 255
        lamp = 0.0
        if fragment.lamp > 0 and environment.lamp[0] > 0:
            lamp = _lamp_light(fragment, environment)
        for c in range(3):
            colour = max(fragment.colour[c], np.float32(0))
            fragment.colour[c] = colour * colour * (fragment.light[c] + lamp * environment.lamp[c]) * share
