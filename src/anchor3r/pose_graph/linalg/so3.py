"""Scalar SO(3) kernels for compiled code: what `geometry` does in batches, one rotation at a time.

A vector is a tuple of three floats and a matrix a tuple of nine in row order, so that nothing is allocated
and everything stays in registers once inlined. `load*` and `store*` move them from and to arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import kernel

AnyArray = NDArray[Any]

Vector = tuple[float, float, float]
Matrix = tuple[float, float, float, float, float, float, float, float, float]

_SMALL_ANGLE_SQ = 1e-8  # below it the truncated series are exact to the last bit


@kernel
def load3(v: AnyArray) -> Vector:
    return (v[0], v[1], v[2])


@kernel
def store3(out: AnyArray, v: Vector) -> None:
    out[0], out[1], out[2] = v


@kernel
def load33(m: AnyArray) -> Matrix:
    return (m[0, 0], m[0, 1], m[0, 2], m[1, 0], m[1, 1], m[1, 2], m[2, 0], m[2, 1], m[2, 2])


@kernel
def store33(out: AnyArray, m: Matrix) -> None:
    out[0, 0], out[0, 1], out[0, 2] = m[0], m[1], m[2]
    out[1, 0], out[1, 1], out[1, 2] = m[3], m[4], m[5]
    out[2, 0], out[2, 1], out[2, 2] = m[6], m[7], m[8]


@kernel
def norm_sq(v: Vector) -> float:
    return v[0] * v[0] + v[1] * v[1] + v[2] * v[2]


@kernel
def transpose(a: Matrix) -> Matrix:
    return (a[0], a[3], a[6], a[1], a[4], a[7], a[2], a[5], a[8])


@kernel
def mul(a: Matrix, b: Matrix) -> Matrix:
    """a b"""
    return (
        a[0] * b[0] + a[1] * b[3] + a[2] * b[6],
        a[0] * b[1] + a[1] * b[4] + a[2] * b[7],
        a[0] * b[2] + a[1] * b[5] + a[2] * b[8],
        a[3] * b[0] + a[4] * b[3] + a[5] * b[6],
        a[3] * b[1] + a[4] * b[4] + a[5] * b[7],
        a[3] * b[2] + a[4] * b[5] + a[5] * b[8],
        a[6] * b[0] + a[7] * b[3] + a[8] * b[6],
        a[6] * b[1] + a[7] * b[4] + a[8] * b[7],
        a[6] * b[2] + a[7] * b[5] + a[8] * b[8],
    )


@kernel
def mul_tn(a: Matrix, b: Matrix) -> Matrix:
    """aᵀ b"""
    return mul(transpose(a), b)


@kernel
def mul_nt(a: Matrix, b: Matrix) -> Matrix:
    """a bᵀ"""
    return mul(a, transpose(b))


@kernel
def apply(a: Matrix, v: Vector) -> Vector:
    """a v"""
    return (
        a[0] * v[0] + a[1] * v[1] + a[2] * v[2],
        a[3] * v[0] + a[4] * v[1] + a[5] * v[2],
        a[6] * v[0] + a[7] * v[1] + a[8] * v[2],
    )


@kernel
def apply_t(a: Matrix, v: Vector) -> Vector:
    """aᵀ v"""
    return apply(transpose(a), v)


@kernel
def exp(w: Vector) -> Matrix:
    """Rotation vector in radians -> rotation matrix."""
    x, y, z = w
    angle_sq = norm_sq(w)
    if angle_sq < _SMALL_ANGLE_SQ:
        s = 1 - angle_sq / 6
        c = 0.5 - angle_sq / 24
    else:
        angle = np.sqrt(angle_sq)
        half_sin = np.sin(0.5 * angle)
        s = np.sin(angle) / angle
        c = 2 * half_sin * half_sin / angle_sq
    return (
        1 - c * (y * y + z * z), c * x * y - s * z, c * x * z + s * y,
        c * x * y + s * z, 1 - c * (x * x + z * z), c * y * z - s * x,
        c * x * z - s * y, c * y * z + s * x, 1 - c * (x * x + y * y),
    )  # fmt: skip


@kernel
def log(m: Matrix) -> Vector:
    """Rotation matrix -> rotation vector with norm in [0, π], through the quaternion with a large pivot."""
    xx, yy, zz = m[0], m[4], m[8]
    trace = xx + yy + zz
    if trace > 0:
        w, x, y, z = 1 + trace, m[7] - m[5], m[2] - m[6], m[3] - m[1]
    elif xx >= yy and xx >= zz:
        w, x, y, z = m[7] - m[5], 1 + xx - yy - zz, m[1] + m[3], m[2] + m[6]
    elif yy >= zz:
        w, x, y, z = m[2] - m[6], m[1] + m[3], 1 - xx + yy - zz, m[5] + m[7]
    else:
        w, x, y, z = m[3] - m[1], m[2] + m[6], m[5] + m[7], 1 - xx - yy + zz
    n_sq = x * x + y * y + z * z
    if w < 0:
        w, x, y, z = -w, -x, -y, -z
    if n_sq < 0.25 * _SMALL_ANGLE_SQ * w * w:
        ratio_sq = n_sq / (w * w)
        f = 2 / w * (1 - ratio_sq / 3)
    else:
        n = np.sqrt(n_sq)
        f = 2 * np.arctan2(n, w) / n
    return (f * x, f * y, f * z)


@kernel
def right_jacobian_inverse(w: Vector) -> Matrix:
    """J with Log(Exp(w) Exp(d)) ≈ w + J d, for |w| < 2π: I + [w]/2 + c [w]²."""
    x, y, z = w
    angle_sq = norm_sq(w)
    if angle_sq < 1e-4:  # the closed form loses digits to 1 - cos sooner than `exp` does
        c = 1 / 12 + angle_sq / 720 + angle_sq * angle_sq / 30240
    else:
        half = 0.5 * np.sqrt(angle_sq)
        c = (1 - half / np.tan(half)) / angle_sq
    return (
        1 - c * (y * y + z * z), c * x * y - 0.5 * z, c * x * z + 0.5 * y,
        c * x * y + 0.5 * z, 1 - c * (x * x + z * z), c * y * z - 0.5 * x,
        c * x * z - 0.5 * y, c * y * z + 0.5 * x, 1 - c * (x * x + y * y),
    )  # fmt: skip


@kernel
def orthonormalised(m: Matrix) -> Matrix:
    """A matrix that is a rotation up to rounding, one Newton step nearer to SO(3): m (3 - mᵀm) / 2."""
    g = mul_tn(m, m)
    return mul(
        m,
        (
            1.5 - 0.5 * g[0], -0.5 * g[1], -0.5 * g[2],
            -0.5 * g[3], 1.5 - 0.5 * g[4], -0.5 * g[5],
            -0.5 * g[6], -0.5 * g[7], 1.5 - 0.5 * g[8],
        ),
    )  # fmt: skip
