"""Where each fragment lies: exact depth, position, texture coordinates and footprint, light of the sky."""

from __future__ import annotations

import math

from numpy.typing import NDArray

from anchor3r.kernels import Record, kernel
from anchor3r.worlds.render.fragments import fast_log2
from anchor3r.worlds.render.visibility import SKY, ball_inverse_depth
from anchor3r.worlds.scenes.scene import EMISSIVE, ON_GROUND, TRIANGLE
from anchor3r.worlds.scenes.textures import SIZE

MAX_TAPS = 4
"""Texture taps along the longer axis of a fragment's footprint, at most."""
TAPS_PER_RATIO = 0.8
"""Taps for each unit of the ratio of the longer to the shorter axis."""
DARK_RANGE_M = 0.35
"""How far the darkening near an edge between two surfaces reaches."""


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
    fragments: NDArray, quads: NDArray, index: NDArray, coefs: NDArray, width: int, camera: NDArray,
    environments: NDArray,
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
    fragments: NDArray, balls: NDArray, index: NDArray, coefs: NDArray, rotation: NDArray, centre: NDArray,
    width: int, camera: NDArray, environments: NDArray,
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
def trace_sky(fragments: NDArray, rotation: NDArray, focal: float, environments: NDArray) -> None:
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
