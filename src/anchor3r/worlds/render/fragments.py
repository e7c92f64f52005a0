"""Fragments: what is seen in a pixel of one surface, the unit of shading.

Visibility is sampled several times a pixel, colour once for each surface seen in it: edges are smooth at
little more than the price of one sample. Textures are averaged over the pixel's footprint (between mip
levels, and with several taps along its longer axis where a surface is seen at a grazing angle), so nothing
shimmers. A frame's fragments are gathered, traced (where is it?), sampled and lit (what colour is it, how
much light falls on it?) and composed. Each stage is one loop whose inner functions take numbers and records
only: arrays as arguments would cost numba a reference count at every call.
"""

from __future__ import annotations

import math

import numpy as np

from anchor3r.kernels import Array, Record, kernel
from anchor3r.worlds.render.visibility import SKY, ball_inverse_depth
from anchor3r.worlds.scenes.scene import EMISSIVE, ON_GROUND, TRIANGLE
from anchor3r.worlds.scenes.textures import CHAIN, LEVEL_START, LEVELS, SIZE

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
MAX_TAPS = 4
"""Texture taps along the longer axis of a fragment's footprint, at most."""
TAPS_PER_RATIO = 0.8
"""Taps for each unit of the ratio of the longer to the shorter axis."""
DARK_RANGE_M = 0.35
"""How far the darkening near an edge between two surfaces reaches."""
_STARTS = np.array(LEVEL_START, np.int64)
_BYTES = np.uint64(0x00FF00FF00FF00FF)


@kernel(fast=True)
def fast_log2(value: float) -> float:
    """log2 of a positive number to 0.05, read off the bits of a float32: enough to choose a mip level."""
    return float(np.float32(value).view(np.int32)) / (1 << 23) - 126.957


@kernel(fast=True)
def _uniform(slots: Array, i: int, j: int, samples: int) -> bool:
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
    slots: Array, samples: int, camera: Array, first_row: int, last_row: int, fragments: Array
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
def compose(fragments: Array, environments: Array, colour: Array, depth_m: Array) -> None:
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


@kernel(fast=True)
def _set_footprint(fragment: Record, ux: float, vx: float, uy: float, vy: float) -> None:
    """Mip level and taps for a pixel that spans (ux, vx) and (uy, vy) of the texture, in tiles."""
    square_x, square_y = ux * ux + vx * vx, uy * uy + vy * vy
    fragment.major_u, fragment.major_v = ux, vx
    if square_y > square_x:
        fragment.major_u, fragment.major_v = uy, vy
    major = math.sqrt(max(square_x, square_y)) + 1e-12
    minor = abs(ux * vy - uy * vx) / major
    taps = 1
    if major * SIZE > 1:
        taps = max(1, min(MAX_TAPS, int(TAPS_PER_RATIO * major / (minor + 1e-3 * major) + 0.5)))
    fragment.taps = taps
    fragment.lod = fast_log2(max(minor, major / taps) * SIZE)


@kernel(fast=True)
def _occlusion(quad: Record, s: float, t: float) -> float:
    """How much light is left near the edges where the quad meets other surfaces."""
    left = 1.0
    for k in range(4):
        strength = quad.dark[k]
        if strength > 0:
            share = s if k == 0 else 1 - s if k == 1 else t if k == 2 else 1 - t
            gap = share * quad.size[k >> 1] / DARK_RANGE_M
            left *= 1 - strength / (1 + gap * (1 + gap))
    return left


@kernel(fast=True)
def _paint_quad(
    fragment: Record, quad: Record, s: float, t: float, sx: float, tx: float, sy: float, ty: float
) -> None:
    """Texture, stains, shadow and light of a quad at (s, t), which change by (sx, tx), (sy, ty) a pixel."""
    su, sv = quad.uv[2], quad.uv[3]
    fragment.texture = quad.texture
    fragment.u, fragment.v = quad.uv[0] + s * su, quad.uv[1] - t * sv
    _set_footprint(fragment, sx * su, -tx * sv, sy * su, -ty * sv)
    gu, gv = quad.grime[1], quad.grime[2]
    fragment.stain = quad.grime[0]
    fragment.stain_u, fragment.stain_v = quad.uv[0] + s * gu, quad.uv[1] + t * gv
    fragment.stain_width = max(abs(sx) * gu + abs(tx) * gv, abs(sy) * gu + abs(ty) * gv)
    length_s, length_t = quad.size[0], quad.size[1]
    fragment.ground_m = 0.0
    if quad.flags & ON_GROUND != 0:
        fragment.ground_m = max(
            abs(sx) * length_s + abs(tx) * length_t, abs(sy) * length_s + abs(ty) * length_t
        )
    shining = quad.flags & EMISSIVE != 0
    fragment.lamp = 0.0 if shining else 1.0
    fragment.occlusion = 1.0 if shining else _occlusion(quad, s, t)
    for c in range(3):
        fragment.position[c] = quad.origin[c] + s * quad.edge_s[c] + t * quad.edge_t[c]
        fragment.normal[c] = quad.normal[c]
        fragment.gain[c], fragment.offset[c] = quad.gain[c], quad.offset[c]
        fragment.light[c] = quad.light[c]


@kernel(fast=True)
def trace_quads(
    fragments: Array, quads: Array, index: Array, coefs: Array, width: int, camera: Array,
    environments: Array,
) -> None:  # fmt: skip
    """Fills in the fragments that see a quad."""
    fx, fy, cx, cy = camera
    stain_texture = environments[0].stain_texture
    for f in range(len(fragments)):
        fragment = fragments[f]
        slot = fragment.slot
        if slot < 0:
            continue
        quad = quads[index[slot]]
        a0, a1, a2 = coefs[slot, 0], coefs[slot, 1], coefs[slot, 2]
        b0, b1, b2 = coefs[slot, 3], coefs[slot, 4], coefs[slot, 5]
        w0, w1, w2 = coefs[slot, 6], coefs[slot, 7], coefs[slot, 8]
        x, y = fragment.x, fragment.y
        w = w0 * x + w1 * y + w2
        z = 1.0 / w
        s, t = (a0 * x + a1 * y + a2) * z, (b0 * x + b1 * y + b2) * z
        fragment.inverse_depth = fragment.centre_inverse_depth = w
        if fragment.share < 1:
            u, v = fragment.pixel % width, fragment.pixel // width
            mid_x, mid_y = (u - cx) / fx, (v - cy) / fy
            mid_w = w0 * mid_x + w1 * mid_y + w2
            mid_s, mid_t = a0 * mid_x + a1 * mid_y + a2, b0 * mid_x + b1 * mid_y + b2
            reach = mid_s + mid_t if quad.flags & TRIANGLE != 0 else max(mid_s, mid_t)
            covered = mid_s >= 0 and mid_t >= 0 and reach <= mid_w
            fragment.centre_inverse_depth = mid_w if covered else -1.0
        fragment.stain_texture = stain_texture
        _paint_quad(
            fragment, quad, s, t, (a0 - s * w0) * z / fx, (b0 - t * w0) * z / fx, (a1 - s * w1) * z / fy,
            (b1 - t * w1) * z / fy,
        )  # fmt: skip


@kernel(fast=True)
def _paint_ball(fragment: Record, ball: Record, environment: Record, cosine: float, pixel: float) -> None:
    """Texture and light of a ball at the fragment's position; `pixel` is a pixel's width there in metres."""
    m = ball.ball_from_world
    dx = fragment.position[0] - ball.centre[0]
    dy = fragment.position[1] - ball.centre[1]
    dz = fragment.position[2] - ball.centre[2]
    bx = m[0, 0] * dx + m[0, 1] * dy + m[0, 2] * dz
    by = m[1, 0] * dx + m[1, 1] * dy + m[1, 2] * dz
    bz = m[2, 0] * dx + m[2, 1] * dy + m[2, 2] * dz
    # The texture lies on the faces of the cube around the ball: no poles.
    if abs(bx) >= abs(by) and abs(bx) >= abs(bz):
        u, v = bz / (2 * bx), by / (2 * abs(bx))
    elif abs(by) >= abs(bz):
        u, v = bx / (2 * by), bz / (2 * abs(by))
    else:
        u, v = bx / (2 * bz) + 0.3, by / (2 * abs(bz))
    fragment.texture = ball.texture
    fragment.u, fragment.v = u * ball.tiles, v * ball.tiles
    span = ball.tiles * pixel / (2 * ball.radius) / max(0.35, cosine)
    _set_footprint(fragment, span, 0.0, 0.0, span)
    e = environment
    n = fragment.normal
    sun = max(0.0, n[0] * e.sun_direction[0] + n[1] * e.sun_direction[1] + n[2] * e.sun_direction[2])
    up = 0.5 - 0.5 * n[1]
    for c in range(3):
        fragment.gain[c], fragment.offset[c] = ball.gain[c], ball.offset[c]
        fragment.light[c] = sun * e.sun[c] + up * e.ambient_up[c] + (1 - up) * e.ambient_down[c]


@kernel(fast=True)
def trace_balls(
    fragments: Array, balls: Array, index: Array, coefs: Array, rotation: Array, centre: Array,
    width: int, camera: Array, environments: Array,
) -> None:  # fmt: skip
    """Fills in the fragments that see a ball; rotation is camera_from_world, centre the camera's."""
    fx, fy, cx, cy = camera
    environment = environments[0]
    for f in range(len(fragments)):
        fragment = fragments[f]
        if fragment.slot >= SKY:
            continue
        k = -2 - fragment.slot
        ball = balls[index[k]]
        x, y = fragment.x, fragment.y
        w = ball_inverse_depth(coefs, k, x, y)
        if w <= 0:  # rounding at the rim: the point where the ray is tangent
            w = max(1e-4, (coefs[k, 0] * x + coefs[k, 1] * y + coefs[k, 2]) / coefs[k, 9])
        fragment.inverse_depth = fragment.centre_inverse_depth = w
        if fragment.share < 1:
            u, v = fragment.pixel % width, fragment.pixel // width
            fragment.centre_inverse_depth = ball_inverse_depth(coefs, k, (u - cx) / fx, (v - cy) / fy)
        fragment.stain, fragment.ground_m, fragment.lamp, fragment.occlusion = 0.0, 0.0, 1.0, 1.0
        m = ball.ball_from_world
        for c in range(3):
            ray = rotation[0, c] * x + rotation[1, c] * y + rotation[2, c]
            fragment.position[c] = centre[c] + ray / w
            fragment.normal[c] = 0.0
        for r in range(3):
            inner = 0.0
            for c in range(3):
                inner += m[r, c] * (fragment.position[c] - ball.centre[c])
            for c in range(3):
                fragment.normal[c] += m[r, c] * inner
        n = fragment.normal
        length = math.sqrt(n[0] * n[0] + n[1] * n[1] + n[2] * n[2]) + 1e-12
        facing = 0.0
        for c in range(3):
            n[c] /= length
            facing -= n[c] * (fragment.position[c] - centre[c])
        cosine = facing * w / math.sqrt(x * x + y * y + 1)
        _paint_ball(fragment, ball, environment, cosine, 1 / (w * fx))


@kernel(fast=True)
def trace_sky(fragments: Array, rotation: Array, focal: float, environments: Array) -> None:
    """Fills in the fragments that see the sky: a gradient from haze to zenith, and a place in the clouds."""
    e = environments[0]
    for f in range(len(fragments)):
        fragment = fragments[f]
        if fragment.slot != SKY:
            continue
        x, y = fragment.x, fragment.y
        dx = rotation[0, 0] * x + rotation[1, 0] * y + rotation[2, 0]
        dy = rotation[0, 1] * x + rotation[1, 1] * y + rotation[2, 1]
        dz = rotation[0, 2] * x + rotation[1, 2] * y + rotation[2, 2]
        length = math.sqrt(x * x + y * y + 1)
        up = max(0.0, -dy / length)
        blend = 1 - (1 - up) * (1 - up) * (1 - up)
        for c in range(3):
            fragment.colour[c] = e.haze[c] + blend * (e.zenith[c] - e.haze[c])
        fragment.inverse_depth, fragment.centre_inverse_depth = 0.0, -1.0 if fragment.share < 1 else 0.0
        fragment.stain_texture = e.cloud_texture
        fragment.stain = min(1.0, up * 6) if e.cloud_cover > 0 else 0.0
        scale = e.cloud_tiles / (length * max(up, 0.01))
        fragment.stain_u, fragment.stain_v = dx * scale, dz * scale
        fragment.stain_width = scale / (focal * max(up, 0.01))


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
def sample_textures(fragments: Array, texels: Array) -> None:
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
def sample_stains(fragments: Array, texels: Array, environments: Array) -> None:
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
def light_fragments(fragments: Array, environments: Array, lightmap: Array, frame: Array) -> None:
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
