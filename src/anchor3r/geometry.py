"""Rotations, rigid motions, similarities and the pinhole camera: numpy, batched, pure.

Every function takes arrays with any leading batch axes (...). Floating input keeps its dtype; anything
else is computed in float64. Transforms are `target_from_source`: `SE3` maps source coordinates to target
coordinates, x_target = R x_source + t. Quaternions are w, x, y, z with w >= 0. Camera axes are OpenCV's
(x right, y down, z forward) and pixel (u, v) = (0, 0) is the centre of the top-left pixel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating]


def _float(x: ArrayLike) -> Array:
    x = np.asarray(x)
    return x if np.issubdtype(x.dtype, np.floating) else x.astype(np.float64)


def hat(vector: ArrayLike) -> Array:
    """(..., 3) -> (..., 3, 3), the matrix of the cross product: hat(v) @ x = v × x."""
    v = _float(vector)
    x, y, z = v[..., 0], v[..., 1], v[..., 2]
    o = np.zeros_like(x)
    return np.stack([o, -z, y, z, o, -x, -y, x, o], -1).reshape(*v.shape[:-1], 3, 3)


def so3_exp(rotation_vector: ArrayLike) -> Array:
    """Rotation vector (..., 3) in radians -> rotation matrix (..., 3, 3)."""
    w = _float(rotation_vector)
    angle_sq = np.sum(w * w, -1)[..., None, None]
    sin_over, cos_over, _ = _sinc_terms(angle_sq)
    k = hat(w)
    return np.eye(3, dtype=w.dtype) + sin_over * k + cos_over * (k @ k)


def so3_log(rotation: ArrayLike) -> Array:
    """Rotation matrix (..., 3, 3) -> rotation vector (..., 3) with norm in [0, π].

    Goes through the quaternion, whose extraction stays well-conditioned at both ends: near identity the
    vector part is accurate to the last bit, near π the largest component is taken as the pivot.
    """
    q = quat_from_rotation(rotation)
    vector, w = q[..., 1:], q[..., :1]
    norm = np.linalg.norm(vector, axis=-1, keepdims=True)
    small = norm < np.sqrt(np.finfo(q.dtype).eps)
    safe = np.where(small, 1, norm)
    # 2 atan2(n, w) / n, whose limit at n -> 0 is 2 / w.
    factor = np.where(small, 2 / np.where(small, w, 1), 2 * np.arctan2(safe, w) / safe)
    return vector * factor


def so3_left_jacobian(rotation_vector: ArrayLike) -> Array:
    """J (..., 3, 3) with Exp(w + d) ≈ Exp(J d) Exp(w)."""
    w = _float(rotation_vector)
    angle_sq = np.sum(w * w, -1)[..., None, None]
    _, cos_over, cubic = _sinc_terms(angle_sq)
    k = hat(w)
    return np.eye(3, dtype=w.dtype) + cos_over * k + cubic * (k @ k)


def so3_left_jacobian_inverse(rotation_vector: ArrayLike) -> Array:
    """The inverse of `so3_left_jacobian`, in closed form, for |w| < 2π."""
    w = _float(rotation_vector)
    angle_sq = np.sum(w * w, -1)[..., None, None]
    small = angle_sq < _small_angle_sq(w.dtype)
    safe = np.where(small, 1, angle_sq)
    half = np.sqrt(safe) / 2
    series = 1 / 12 + angle_sq / 720
    exact = (1 - half * np.cos(half) / np.sin(half)) / safe
    k = hat(w)
    return np.eye(3, dtype=w.dtype) - k / 2 + np.where(small, series, exact).astype(w.dtype) * (k @ k)


def _small_angle_sq(dtype: np.dtype) -> float:
    """Below this squared angle the truncated series beats the closed form in `dtype`."""
    return float(np.finfo(dtype).eps ** 0.5)


def _sinc_terms(angle_sq: Array) -> tuple[Array, Array, Array]:
    """sin θ/θ, (1 - cos θ)/θ², (θ - sin θ)/θ³ from θ², by series where θ is small."""
    dtype = angle_sq.dtype
    small = angle_sq < _small_angle_sq(dtype)
    safe_sq = np.where(small, 1, angle_sq)
    angle = np.sqrt(safe_sq)
    half_sin = np.sin(angle / 2)
    sin_over = np.where(small, 1 - angle_sq / 6, np.sin(angle) / angle)
    # 2 sin²(θ/2) instead of 1 - cos θ: no cancellation.
    cos_over = np.where(small, 0.5 - angle_sq / 24, 2 * half_sin * half_sin / safe_sq)
    cubic = np.where(small, 1 / 6 - angle_sq / 120, (angle - np.sin(angle)) / (safe_sq * angle))
    return sin_over.astype(dtype), cos_over.astype(dtype), cubic.astype(dtype)


def quat_from_rotation(rotation: ArrayLike) -> Array:
    """Rotation matrix (..., 3, 3) -> unit quaternion wxyz (..., 4), w >= 0.

    Each of the four rows below is the quaternion times twice one of its components; the one with the
    largest pivot is taken, so there is no division by a small number anywhere on SO(3).
    """
    m = _float(rotation)
    xx, xy, xz = m[..., 0, 0], m[..., 0, 1], m[..., 0, 2]
    yx, yy, yz = m[..., 1, 0], m[..., 1, 1], m[..., 1, 2]
    zx, zy, zz = m[..., 2, 0], m[..., 2, 1], m[..., 2, 2]
    rows = np.stack(
        [
            np.stack([1 + xx + yy + zz, zy - yz, xz - zx, yx - xy], -1),
            np.stack([zy - yz, 1 + xx - yy - zz, xy + yx, xz + zx], -1),
            np.stack([xz - zx, xy + yx, 1 - xx + yy - zz, yz + zy], -1),
            np.stack([yx - xy, xz + zx, yz + zy, 1 - xx - yy + zz], -1),
        ],
        -2,
    )
    pivot = np.argmax(np.diagonal(rows, axis1=-2, axis2=-1), -1)
    q = np.take_along_axis(rows, pivot[..., None, None], -2)[..., 0, :]
    return quat_canonical(q / np.linalg.norm(q, axis=-1, keepdims=True))


def quat_canonical(quat_wxyz: ArrayLike) -> Array:
    """The one of q and -q with w >= 0 (both are the same rotation)."""
    q = _float(quat_wxyz)
    return np.where(q[..., :1] < 0, -q, q)


def rotation_from_quat(quat_wxyz: ArrayLike) -> Array:
    """Quaternion wxyz (..., 4), normalised here -> rotation matrix (..., 3, 3)."""
    q = _float(quat_wxyz)
    w, x, y, z = np.moveaxis(q / np.linalg.norm(q, axis=-1, keepdims=True), -1, 0)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return np.stack(rows, -1).reshape(*q.shape[:-1], 3, 3)


def nearest_rotation(matrix: ArrayLike) -> Array:
    """The rotation nearest to a (..., 3, 3) matrix in the Frobenius norm."""
    u, _, vt = np.linalg.svd(_float(matrix))
    sign = np.where(np.linalg.det(u @ vt) < 0, -1, 1).astype(u.dtype)
    u = u * np.stack([np.ones_like(sign), np.ones_like(sign), sign], -1)[..., None, :]
    return u @ vt


def rotation_angle(rotation: ArrayLike) -> Array:
    """Angle (...) in radians of a rotation matrix (..., 3, 3)."""
    return np.linalg.norm(so3_log(rotation), axis=-1)


@dataclass(frozen=True)
class SE3:
    """Rigid motion, x_target = rotation @ x_source + translation."""

    rotation: Array
    """(..., 3, 3)"""
    translation: Array
    """(..., 3)"""

    @staticmethod
    def identity(*batch: int, dtype: type = np.float64) -> SE3:
        return SE3(
            np.broadcast_to(np.eye(3, dtype=dtype), (*batch, 3, 3)).copy(), np.zeros((*batch, 3), dtype)
        )

    @staticmethod
    def from_matrix(matrix: ArrayLike) -> SE3:
        """(..., 3|4, 4) -> SE3."""
        m = _float(matrix)
        return SE3(m[..., :3, :3], m[..., :3, 3])

    @staticmethod
    def from_center(rotation: Array, center: Array) -> SE3:
        """camera_from_world of a camera (..., 3, 3) whose centre is at (..., 3) in the world."""
        return SE3(rotation, -(rotation @ center[..., None])[..., 0])

    @staticmethod
    def exp(twist: ArrayLike) -> SE3:
        """Twist (..., 6), rotation part first, radians."""
        xi = _float(twist)
        w, v = xi[..., :3], xi[..., 3:]
        return SE3(so3_exp(w), (so3_left_jacobian(w) @ v[..., None])[..., 0])

    def log(self) -> Array:
        """Twist (..., 6), rotation part first, radians."""
        w = so3_log(self.rotation)
        v = (so3_left_jacobian_inverse(w) @ self.translation[..., None])[..., 0]
        return np.concatenate([w, v], -1)

    def matrix(self) -> Array:
        """(..., 4, 4)"""
        out = np.zeros((*self.translation.shape[:-1], 4, 4), self.rotation.dtype)
        out[..., :3, :3], out[..., :3, 3], out[..., 3, 3] = self.rotation, self.translation, 1
        return out

    def inverse(self) -> SE3:
        transposed = np.swapaxes(self.rotation, -1, -2)
        return SE3(transposed, -(transposed @ self.translation[..., None])[..., 0])

    def __matmul__(self, other: SE3) -> SE3:
        """(target_from_middle) @ (middle_from_source) = target_from_source."""
        return SE3(self.rotation @ other.rotation, self.apply(other.translation))

    def apply(self, points: ArrayLike) -> Array:
        """Points (..., 3) in the source frame -> in the target frame; batch axes broadcast."""
        return (self.rotation @ _float(points)[..., None])[..., 0] + self.translation

    def center(self) -> Array:
        """Where the target's origin lies in the source frame: of camera_from_world, the camera centre."""
        return self.inverse().translation

    def __getitem__(self, index: Any) -> SE3:
        """Indexes the batch axes."""
        return SE3(self.rotation[index], self.translation[index])

    def __len__(self) -> int:
        return len(self.translation)


@dataclass(frozen=True)
class Sim3:
    """Similarity, x_target = scale * rotation @ x_source + translation."""

    rotation: Array
    """(..., 3, 3)"""
    translation: Array
    """(..., 3)"""
    scale: Array
    """(...), positive"""

    @staticmethod
    def identity(*batch: int, dtype: type = np.float64) -> Sim3:
        rigid = SE3.identity(*batch, dtype=dtype)
        return Sim3(rigid.rotation, rigid.translation, np.ones(batch, dtype))

    @staticmethod
    def exp(tangent: ArrayLike) -> Sim3:
        """Tangent (..., 7): rotation, translation, log scale."""
        xi = _float(tangent)
        w, v, s = xi[..., :3], xi[..., 3:6], xi[..., 6]
        return Sim3(so3_exp(w), (_sim3_translation_jacobian(w, s) @ v[..., None])[..., 0], np.exp(s))

    def log(self) -> Array:
        """Tangent (..., 7): rotation, translation, log scale."""
        w, s = so3_log(self.rotation), np.log(self.scale)
        v = np.linalg.solve(_sim3_translation_jacobian(w, s), self.translation[..., None])[..., 0]
        return np.concatenate([w, v, s[..., None]], -1)

    def inverse(self) -> Sim3:
        transposed = np.swapaxes(self.rotation, -1, -2)
        moved = (transposed @ self.translation[..., None])[..., 0]
        return Sim3(transposed, -moved / self.scale[..., None], 1 / self.scale)

    def __matmul__(self, other: Sim3) -> Sim3:
        return Sim3(self.rotation @ other.rotation, self.apply(other.translation), self.scale * other.scale)

    def apply(self, points: ArrayLike) -> Array:
        """Points (..., 3) in the source frame -> in the target frame; batch axes broadcast."""
        rotated = (self.rotation @ _float(points)[..., None])[..., 0]
        return self.scale[..., None] * rotated + self.translation

    def apply_to_pose(self, camera_from_source: SE3) -> SE3:
        """The camera's pose once its world is moved by this similarity (its centre moves, its scale not)."""
        rotation = camera_from_source.rotation @ np.swapaxes(self.rotation, -1, -2)
        center = self.apply(camera_from_source.center())
        return SE3(rotation, -(rotation @ center[..., None])[..., 0])


def _sim3_translation_jacobian(w: Array, s: Array) -> Array:
    """V(w, s) = ∫₀¹ exp(τ s) Exp(τ w) dτ, (..., 3, 3), by 12-point Gauss–Legendre quadrature.

    The closed form has four removable singularities (θ → 0, s → 0 and both); the integrand is entire, so
    the quadrature is exact to rounding for θ ≤ π and |s| ≤ 3, without any branch.
    """
    nodes, weights = np.polynomial.legendre.leggauss(12)
    out = np.zeros((*w.shape, 3), w.dtype)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        out += (weight * np.exp(node * s))[..., None, None].astype(w.dtype) * so3_exp(w.dtype.type(node) * w)
    return out


def adjoint(pose: SE3) -> Array:
    """(6, 6) takes a perturbation (rotation, translation) from the right of a pose to its left."""
    out = np.zeros((6, 6))
    out[:3, :3] = out[3:, 3:] = pose.rotation
    out[3:, :3] = hat(pose.translation) @ pose.rotation
    return out


def umeyama(source: ArrayLike, target: ArrayLike, *, with_scale: bool = True) -> Sim3:
    """The similarity (or rigid motion) target_from_source that minimises Σ‖target - S(source)‖².

    source, target: (n, 3), n >= 1. With fewer than three points, or points on a line, the rotation about
    the remaining freedom is arbitrary but valid. Where all points of either side coincide the scale is 1,
    so that the result can always be inverted. Umeyama, PAMI 1991.
    """
    x, y = _float(source), _float(target)
    if x.shape != y.shape or x.ndim != 2 or x.shape[1] != 3 or not len(x):
        raise ValueError(f"umeyama takes two (n, 3) arrays, n >= 1, not {x.shape} and {y.shape}")
    mean_x, mean_y = x.mean(0), y.mean(0)
    dx, dy = x - mean_x, y - mean_y
    u, singular, vt = np.linalg.svd(dy.T @ dx / len(x))
    sign = np.ones(3, x.dtype)
    if np.linalg.det(u) * np.linalg.det(vt) < 0:
        sign[2] = -1
    rotation = (u * sign) @ vt
    variance = np.mean(np.sum(dx * dx, 1))
    covariance = singular @ sign
    scale = covariance / variance if with_scale and variance > 0 and covariance > 0 else x.dtype.type(1)
    return Sim3(rotation, mean_y - scale * (rotation @ mean_x), np.asarray(scale))


def align_poses(source: SE3, target: SE3) -> Sim3:
    """The similarity target_from_source that fits poses (n,) world_from_camera to others of the same frames.

    Least squares in rotations and in centres, whose distances count in units of the path's own extent, so
    that a straight path or a camera that stands still is aligned as well as any other.
    """
    arms, middles, extents = [], [], []
    for poses in (source, target):
        middles.append(poses.translation.mean(0))
        arms.append(poses.translation - middles[-1])
        extents.append(max(float(np.sqrt((arms[-1] ** 2).sum(1).mean())), 1e-150))
    moments = arms[1].T @ arms[0] / (extents[0] * extents[1])
    # A turn by a small angle moves a rotation matrix by √2 times as much.
    rotation = nearest_rotation(moments + 0.5 * np.einsum("nij,nkj->ik", target.rotation, source.rotation))
    overlap = float(np.sum(arms[1] * (arms[0] @ rotation.T)))
    scale = overlap / (len(source) * extents[0] ** 2) if overlap > 0 else 1.0
    return Sim3(rotation, middles[1] - scale * rotation @ middles[0], np.asarray(scale))


@dataclass(frozen=True)
class Pinhole:
    """An ideal camera: u = fx x/z + cx, v = fy y/z + cy, in pixels of a width × height image."""

    fx: float
    fy: float
    cx: float
    cy: float
    width: int
    height: int

    @staticmethod
    def from_fov(horizontal_fov_deg: float, width: int, height: int) -> Pinhole:
        """Square pixels, principal point in the middle of the image."""
        f = width / 2 / np.tan(np.radians(horizontal_fov_deg) / 2)
        return Pinhole(float(f), float(f), (width - 1) / 2, (height - 1) / 2, width, height)

    @staticmethod
    def from_named(values: Mapping[str, float]) -> Pinhole:
        """The camera of values that have the names of its fields, and may have others beside them."""
        fx, fy, cx, cy, width, height = (float(values[field.name]) for field in fields(Pinhole))
        return Pinhole(fx, fy, cx, cy, int(width), int(height))

    def matrix(self) -> Array:
        return np.array([[self.fx, 0, self.cx], [0, self.fy, self.cy], [0, 0, 1.0]])

    def horizontal_fov_deg(self) -> float:
        return float(np.degrees(2 * np.arctan(self.width / 2 / self.fx)))

    def resized(self, width: int, height: int) -> Pinhole:
        """The camera of the same picture resampled to another size (pixel areas stay aligned)."""
        sx, sy = width / self.width, height / self.height
        cx, cy = (self.cx + 0.5) * sx - 0.5, (self.cy + 0.5) * sy - 0.5
        return Pinhole(self.fx * sx, self.fy * sy, cx, cy, width, height)

    def cropped(self, left: int, top: int, width: int, height: int) -> Pinhole:
        return Pinhole(self.fx, self.fy, self.cx - left, self.cy - top, width, height)

    def project(self, points: ArrayLike) -> Array:
        """Points (..., 3) in the camera frame, z > 0 -> pixels (..., 2)."""
        p = _float(points)
        u = self.fx * p[..., 0] / p[..., 2] + self.cx
        v = self.fy * p[..., 1] / p[..., 2] + self.cy
        return np.stack([u, v], -1)

    def unproject(self, pixels: ArrayLike, depth: ArrayLike) -> Array:
        """Pixels (..., 2) and depth along z (...), which broadcast -> points (..., 3) in the camera frame."""
        uv, z = _float(pixels), _float(depth)
        x, y = (uv[..., 0] - self.cx) / self.fx, (uv[..., 1] - self.cy) / self.fy
        return np.stack(np.broadcast_arrays(x * z, y * z, z), -1)

    def unproject_map(self, depth: ArrayLike) -> Array:
        """Depth map (H, W) along z -> point map (H, W, 3) in the camera frame."""
        z = _float(depth)
        v, u = np.mgrid[: z.shape[-2], : z.shape[-1]].astype(z.dtype)
        return self.unproject(np.stack([u, v], -1), z)
