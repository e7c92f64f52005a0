"""Which surface each image sample sees: a z-buffer over exact ray-plane and ray-ellipsoid depths.

A quad's matrix M = [edge_s edge_t origin] in the camera frame satisfies M (s, t, 1)ᵀ = z d for the ray
d = (x, y, 1), so (s/z, t/z, 1/z)ᵀ = M⁻¹ d: three functions affine in the pixel. Each image row of a quad is
therefore one interval, found from linear inequalities without clipping or edge walking.

Slots: a visible quad's slot is >= 0, a visible ball's is -2 - k, SKY is -1.
"""

from __future__ import annotations

import math

import numpy as np

from anchor3r.kernels import Array, Record, kernel
from anchor3r.worlds.scenes.scene import TRIANGLE, TWO_SIDED

SKY = -1
NEAR_M = 0.02
MIN_INVERSE_DEPTH = 1e-4
"""Nothing is drawn beyond 10 km: 1/z of the horizon itself is zero."""
MIN_PIXELS = 0.35
"""Surfaces whose bounding sphere has a smaller radius in the image are skipped."""


@kernel(fast=True)
def _outside(planes: Array, x: float, y: float, z: float, radius: float) -> bool:
    """Whether a sphere (camera frame) lies wholly outside one of the four sides of the view."""
    if z < -radius:
        return True
    outside = False
    for k in range(4):
        outside |= planes[k, 0] * x + planes[k, 1] * y + planes[k, 2] * z < -radius
    return outside


@kernel(fast=True)
def _view_planes(camera: Array, width: int, height: int) -> Array:
    """(4, 3) inward unit normals of the sides of the view; camera = (fx, fy, cx, cy)."""
    fx, fy, cx, cy = camera
    left, right = (-0.5 - cx) / fx, (width - 0.5 - cx) / fx
    top, bottom = (-0.5 - cy) / fy, (height - 0.5 - cy) / fy
    planes = np.array(
        [[1.0, 0.0, -left], [-1.0, 0.0, right], [0.0, 1.0, -top], [0.0, -1.0, bottom]], dtype=np.float64
    )
    for k in range(4):
        planes[k] /= math.sqrt(planes[k, 0] ** 2 + planes[k, 1] ** 2 + planes[k, 2] ** 2)
    return planes


@kernel(fast=True)
def cull_quads(
    quads: Array,
    clusters: Array,
    rotation: Array,
    translation: Array,
    camera: Array,
    width: int,
    height: int,
) -> tuple[Array, Array]:
    """The quads in view: indices (v,) and rows of M⁻¹ (v, 9), of the functions s/z, t/z, 1/z of (x, y, 1)."""
    planes = _view_planes(camera, width, height)
    centre = -(rotation.T @ translation)
    capacity = len(quads)
    index, coefs = np.empty(capacity, np.int32), np.empty((capacity, 9), np.float64)
    count = 0
    smallest = MIN_PIXELS / camera[0]
    r = rotation
    for c in range(len(clusters)):
        dx = clusters[c].sphere[0] - centre[0]
        dy = clusters[c].sphere[1] - centre[1]
        dz = clusters[c].sphere[2] - centre[2]
        x = r[0, 0] * dx + r[0, 1] * dy + r[0, 2] * dz
        y = r[1, 0] * dx + r[1, 1] * dy + r[1, 2] * dz
        z = r[2, 0] * dx + r[2, 1] * dy + r[2, 2] * dz
        if _outside(planes, x, y, z, clusters[c].sphere[3]):
            continue
        for q in range(clusters[c].start, clusters[c].stop):
            if _setup_quad(quads[q], centre, r, planes, smallest, coefs[count]):
                index[count] = q
                count += 1
    return index[:count], coefs[:count]


@kernel(fast=True)
def _setup_quad(quad: Record, centre: Array, r: Array, planes: Array, smallest: float, out: Array) -> bool:
    """Fills the nine coefficients of a quad; False if it cannot be seen."""
    ox, oy, oz = quad.origin[0] - centre[0], quad.origin[1] - centre[1], quad.origin[2] - centre[2]
    ax, ay, az = quad.edge_s[0], quad.edge_s[1], quad.edge_s[2]
    bx, by, bz = quad.edge_t[0], quad.edge_t[1], quad.edge_t[2]
    nx, ny, nz = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
    det = ox * nx + oy * ny + oz * nz
    if det > -1e-9 and (quad.flags & TWO_SIDED == 0 or det < 1e-9):
        return False
    dx, dy, dz = quad.sphere[0] - centre[0], quad.sphere[1] - centre[1], quad.sphere[2] - centre[2]
    radius = quad.sphere[3]
    x = r[0, 0] * dx + r[0, 1] * dy + r[0, 2] * dz
    y = r[1, 0] * dx + r[1, 1] * dy + r[1, 2] * dz
    z = r[2, 0] * dx + r[2, 1] * dy + r[2, 2] * dz
    if radius < smallest * z or _outside(planes, x, y, z, radius):
        return False
    inverse = 1.0 / det
    # The rows b × o, o × a, a × b over det are computed in the world frame and rotated as vectors.
    sx, sy, sz = (by * oz - bz * oy) * inverse, (bz * ox - bx * oz) * inverse, (bx * oy - by * ox) * inverse
    tx, ty, tz = (oy * az - oz * ay) * inverse, (oz * ax - ox * az) * inverse, (ox * ay - oy * ax) * inverse
    nx, ny, nz = nx * inverse, ny * inverse, nz * inverse
    for k in range(3):
        out[k] = r[k, 0] * sx + r[k, 1] * sy + r[k, 2] * sz
        out[3 + k] = r[k, 0] * tx + r[k, 1] * ty + r[k, 2] * tz
        out[6 + k] = r[k, 0] * nx + r[k, 1] * ny + r[k, 2] * nz
    return True


@kernel(fast=True)
def cull_balls(
    balls: Array, rotation: Array, translation: Array, camera: Array, width: int, height: int
) -> tuple[Array, Array]:
    """The balls in view: indices (v,) and coefficients (v, 12).

    With A the ball's quadratic form and c its centre in the camera frame, w = 1/z solves
    (cAc - 1) w² - 2 (dAc) w + dAd = 0. The numbers are Ac (3), the form A (6: xx xy xz yy yz zz), cAc - 1,
    and bounds of y/z.
    """
    planes = _view_planes(camera, width, height)
    capacity = len(balls)
    index, coefs = np.empty(capacity, np.int32), np.empty((capacity, 12), np.float64)
    count = 0
    smallest = MIN_PIXELS / camera[0]
    centre = np.empty(3)
    for b in range(capacity):
        ball = balls[b]
        for k in range(3):
            centre[k] = translation[k]
            for c in range(3):
                centre[k] += rotation[k, c] * ball.centre[c]
        radius = ball.radius
        if radius < smallest * centre[2] or _outside(planes, centre[0], centre[1], centre[2], radius):
            continue
        ball_from_camera = ball.ball_from_world @ rotation.T
        form = ball_from_camera.T @ ball_from_camera
        along = form @ centre
        outside = centre[0] * along[0] + centre[1] * along[1] + centre[2] * along[2] - 1.0
        if outside <= 0:
            continue
        index[count] = b
        coefs[count, 0:3] = along
        coefs[count, 3], coefs[count, 4], coefs[count, 5] = form[0, 0], form[0, 1], form[0, 2]
        coefs[count, 6], coefs[count, 7], coefs[count, 8] = form[1, 1], form[1, 2], form[2, 2]
        coefs[count, 9] = outside
        coefs[count, 10], coefs[count, 11] = -1e3, 1e3
        if centre[2] > 1.01 * radius:
            top, bottom = centre[1] - radius, centre[1] + radius
            coefs[count, 10] = min(top / (centre[2] - radius), top / (centre[2] + radius))
            coefs[count, 11] = max(bottom / (centre[2] - radius), bottom / (centre[2] + radius))
        count += 1
    return index[:count], coefs[:count]


@kernel(fast=True)
def _clip(low: float, high: float, slope: float, value: float) -> tuple[float, float]:
    """The part of [low, high] where value + slope * j >= 0."""
    if slope > 1e-14:
        return max(low, -value / slope), high
    if slope < -1e-14:
        return low, min(high, -value / slope)
    return (low, high) if value >= 0 else (1.0, 0.0)


@kernel(fast=True)
def _quad_rows(
    quad: Record, rotation: Array, translation: Array, fy: float, cy: float
) -> tuple[float, float]:
    """Image rows between which the quad lies, or all of them if it reaches behind the camera."""
    low, high = 1e9, -1e9
    for corner in range(4):
        s, t = float(corner & 1), float(corner >> 1)
        x = quad.origin[0] + s * quad.edge_s[0] + t * quad.edge_t[0]
        y = quad.origin[1] + s * quad.edge_s[1] + t * quad.edge_t[1]
        z = quad.origin[2] + s * quad.edge_s[2] + t * quad.edge_t[2]
        depth = rotation[2, 0] * x + rotation[2, 1] * y + rotation[2, 2] * z + translation[2]
        if depth < NEAR_M:
            return -1e9, 1e9
        row = (
            fy * (rotation[1, 0] * x + rotation[1, 1] * y + rotation[1, 2] * z + translation[1]) / depth + cy
        )
        low, high = min(low, row), max(high, row)
    return low, high


@kernel(fast=True)
def _fill(
    depth_row: Array, slot_row: Array, first: int, stop: int, w0: float, slope: float, slot: int
) -> None:
    w0_32, slope_32 = np.float32(w0), np.float32(slope)
    for j in range(first, stop):
        w = w0_32 + slope_32 * np.float32(j)
        nearer = w > depth_row[j]
        depth_row[j] = w if nearer else depth_row[j]
        slot_row[j] = slot if nearer else slot_row[j]


@kernel(fast=True)
def draw_quads(
    quads: Array, index: Array, coefs: Array, rotation: Array, translation: Array, camera: Array,
    samples: int, nearest: Array, slots: Array,
) -> None:  # fmt: skip
    """Draws the culled quads into 1/z `nearest` and `slots`, both (H samples, W samples)."""
    rows, columns = nearest.shape
    fx, fy, cx, cy = camera
    step_x, step_y = 1.0 / (samples * fx), 1.0 / (samples * fy)
    start_x = ((0.5 / samples) - 0.5 - cx) / fx
    start_y = ((0.5 / samples) - 0.5 - cy) / fy
    for slot in range(len(index)):
        quad = quads[index[slot]]
        low, high = _quad_rows(quad, rotation, translation, fy, cy)
        first_row = max(0, math.ceil((low + 0.5) * samples - 0.5))
        last_row = min(rows - 1, math.floor((high + 0.5) * samples - 0.5))
        triangle = quad.flags & TRIANGLE != 0
        advantage = 1.0 + quad.bias
        s_x, t_x, w_x = coefs[slot, 0] * step_x, coefs[slot, 3] * step_x, coefs[slot, 6] * step_x
        for i in range(first_row, last_row + 1):
            y = start_y + i * step_y
            s = coefs[slot, 0] * start_x + coefs[slot, 1] * y + coefs[slot, 2]
            t = coefs[slot, 3] * start_x + coefs[slot, 4] * y + coefs[slot, 5]
            w = coefs[slot, 6] * start_x + coefs[slot, 7] * y + coefs[slot, 8]
            lo, hi = _clip(0.0, columns - 1.0, w_x, w - MIN_INVERSE_DEPTH)
            lo, hi = _clip(lo, hi, s_x, s)
            lo, hi = _clip(lo, hi, t_x, t)
            if triangle:
                lo, hi = _clip(lo, hi, w_x - s_x - t_x, w - s - t)
            else:
                lo, hi = _clip(lo, hi, w_x - s_x, w - s)
                lo, hi = _clip(lo, hi, w_x - t_x, w - t)
            if lo <= hi:
                _fill(
                    nearest[i],
                    slots[i],
                    math.ceil(lo),
                    math.floor(hi) + 1,
                    w * advantage,
                    w_x * advantage,
                    slot,
                )


@kernel(fast=True)
def ball_inverse_depth(coefs: Array, k: int, x: float, y: float) -> float:
    """1/z of ball slot k along the ray (x, y, 1), negative where the ray misses it."""
    along = coefs[k, 0] * x + coefs[k, 1] * y + coefs[k, 2]
    form = (
        (coefs[k, 3] * x + 2 * coefs[k, 4] * y + 2 * coefs[k, 5]) * x
        + (coefs[k, 6] * y + 2 * coefs[k, 7]) * y
        + coefs[k, 8]
    )
    discriminant = along * along - coefs[k, 9] * form
    if discriminant < 0:
        return -1.0
    return (along + math.sqrt(discriminant)) / coefs[k, 9]


@kernel(fast=True)
def draw_balls(coefs: Array, camera: Array, samples: int, nearest: Array, slots: Array) -> None:
    """Draws the culled balls into `nearest` and `slots`."""
    rows, columns = nearest.shape
    fx, fy, cx, cy = camera
    step_x, step_y = 1.0 / (samples * fx), 1.0 / (samples * fy)
    start_x = ((0.5 / samples) - 0.5 - cx) / fx
    start_y = ((0.5 / samples) - 0.5 - cy) / fy
    for k in range(len(coefs)):
        along0, along1, along2 = coefs[k, 0], coefs[k, 1], coefs[k, 2]
        xx, xy, xz, yy, yz, zz, outside = coefs[k, 3:10]
        # The discriminant along a row is the quadratic qa x² + 2 half_b x + qc.
        qa = along0 * along0 - outside * xx
        first_row = max(0, math.ceil((coefs[k, 10] - start_y) / step_y))
        last_row = min(rows - 1, math.floor((coefs[k, 11] - start_y) / step_y))
        for i in range(first_row, last_row + 1):
            y = start_y + i * step_y
            half_b = along0 * (along1 * y + along2) - outside * (xy * y + xz)
            rest = along1 * y + along2
            qc = rest * rest - outside * ((yy * y + 2 * yz) * y + zz)
            root = half_b * half_b - qa * qc
            lo, hi = 0.0, columns - 1.0
            if qa < 0:  # else the ball reaches behind the camera, and each pixel of the row is tried
                if root <= 0:
                    continue
                spread = math.sqrt(root)
                lo = max(lo, ((-half_b + spread) / qa - start_x) / step_x)
                hi = min(hi, ((-half_b - spread) / qa - start_x) / step_x)
            for j in range(math.ceil(lo), math.floor(hi) + 1):
                w = np.float32(ball_inverse_depth(coefs, k, start_x + j * step_x, y))
                if w > nearest[i, j]:
                    nearest[i, j] = w
                    slots[i, j] = -2 - k
