"""Matches measured on the images themselves, around the places where the geometry expects them.

With the poses and depths at hand a member of the window is warped into the anchor; where they are right, the
two pictures agree. How far a patch around each cell has to be moved for the best agreement, and how firmly
its texture says so and in which direction, is one linear least-squares step (Lucas–Kanade, the gradient
taken half from either picture, brightness free). An edge says nothing along itself, so what is known of a
match is a 2 × 2 matrix, not a number.

Shapes: H × W pixels, h × w cells, P = h w, K members.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole
from anchor3r.kernels import kernel

_PATCH_SIGMA_PX = 2.0
_FARTHEST_PX = 1.5
"""One step is good for about this much."""
_NOISE = 2.0
"""Grey levels, of a picture that is warped rightly."""
_MISFIT = 4.0
"""What is left over after the step counts so many times its square: it has a cause."""
_DULL = 0.5
"""Squared gradient, below which a texture is noise."""
_ALONG_EDGES = 0.05
"""Part of a patch's strongest texture that is not believed across it: edges are never quite straight."""
_LEAST_COVER = 0.7
"""Of a patch, that has to lie inside the member."""

Grey = NDArray[np.float32]


def grey(image: NDArray) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 -> (H, W)"""
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)


def halved(image: Grey) -> Grey:
    """(H, W) -> (H / 2, W / 2)"""
    smooth = cv2.GaussianBlur(image, (5, 5), 0.8)
    size = (image.shape[1] // 2, image.shape[0] // 2)
    return np.asarray(cv2.resize(smooth, size, interpolation=cv2.INTER_AREA), np.float32)


@dataclass(frozen=True)
class WindowView:
    """The pictures of a window, all of one camera."""

    anchor: Grey
    members: list[Grey]
    camera: Pinhole

    @staticmethod
    def of(images: Mapping[int, Grey], ages: NDArray[np.int64], camera: Pinhole) -> WindowView:
        """Of images, by age, of which the anchor has 0; the camera may be of another size."""
        anchor, *members = (images[age] for age in (0, *ages))
        return WindowView(anchor, members, camera.resized(anchor.shape[1], anchor.shape[0]))

    def align(
        self, inverse_depth: NDArray[np.float64], poses: SE3
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Rays (K, P, 2) of the anchor's cells in the members, and the information (K, P, 2, 2) on them.

        inverse_depth is (h, w), poses (K,) are member_from_anchor. Inverse depth between cells is
        interpolated, which is exact on a plane.
        """
        camera, (rows, columns) = self.camera, inverse_depth.shape
        sigma = _PATCH_SIGMA_PX * columns / self.anchor.shape[1]
        expected, patches = [], []
        for x, y, warped in self._warped(inverse_depth, poses, cv2.INTER_LANCZOS4):
            expected.append((x, y))
            moments = _moments(self.anchor, warped, x, y, rows, columns)
            patches.append(cv2.GaussianBlur(moments, (5, 5), sigma, borderType=cv2.BORDER_REPLICATE))
        step, information = _steps(np.array(patches))
        pixel = np.stack([_sample(x, y, by) for (x, y), by in zip(expected, step, strict=True)])
        focal, center = np.array([camera.fx, camera.fy]), np.array([camera.cx, camera.cy])
        information = information.reshape(*pixel.shape, 2)
        return (pixel - center) / focal, information * np.outer(focal, focal)

    def misfit(self, inverse_depth: NDArray[np.float64], poses: SE3) -> NDArray[np.float64]:
        """(K,) mean difference in grey levels of the members, warped into the anchor, brightness free.

        Infinite for those that the anchor sees less than a quarter of.
        """
        warped = self._warped(inverse_depth, poses, cv2.INTER_LINEAR)
        return np.array([_difference(self.anchor, seen, x, y) for x, y, seen in warped])

    def _warped(
        self, inverse_depth: NDArray[np.float64], poses: SE3, interpolation: int
    ) -> Iterator[tuple[Grey, Grey, Grey]]:
        """For each member, where the anchor's pixels are in it, x and y, and how it looks from there."""
        size = (self.anchor.shape[1], self.anchor.shape[0])
        dense = cv2.resize(inverse_depth.astype(np.float32), size, interpolation=cv2.INTER_LINEAR)
        intrinsics = np.array([self.camera.fx, self.camera.fy, self.camera.cx, self.camera.cy])
        for member, rotation, translation in zip(
            self.members, poses.rotation, poses.translation, strict=True
        ):
            x, y = _expected(dense, intrinsics, rotation, translation)
            warped = cv2.remap(member, x, y, interpolation, borderMode=cv2.BORDER_REPLICATE)
            yield x, y, np.asarray(warped, np.float32)


@kernel
def _steps(patches: NDArray) -> tuple[NDArray, NDArray]:
    """From moments (K, h, w, 10) of patches: steps (K, h, w, 2) in pixels, information (K, h, w, 2, 2)."""
    count, rows, columns = patches.shape[:3]
    steps, information = np.zeros((count, rows, columns, 2)), np.zeros((count, rows, columns, 2, 2))
    for k in range(count):
        for i in range(rows):
            for j in range(columns):
                _step(patches[k, i, j], steps[k, i, j], information[k, i, j])
    return steps, information


@kernel
def _step(moments: NDArray, step: NDArray, information: NDArray) -> None:
    """Fills in the step (2,) of one patch and what is known of it (2, 2); moments as `_moments` has them."""
    cover = np.float64(moments[0])
    share = 1 / max(cover, 1e-3)
    gx, gy, e = share * moments[1], share * moments[2], share * moments[3]
    xx, xy, yy = share * moments[4] - gx**2, share * moments[5] - gx * gy, share * moments[6] - gy**2
    bx, by, variance = share * moments[7] - gx * e, share * moments[8] - gy * e, share * moments[9] - e**2
    determinant = (xx + _DULL) * (yy + _DULL) - xy**2
    dx, dy = ((yy + _DULL) * bx - xy * by) / determinant, ((xx + _DULL) * by - xy * bx) / determinant
    left_over = max(variance - bx * dx - by * dy, 0.0)
    shorter = min(1.0, _FARTHEST_PX / max(np.hypot(dx, dy), 1e-9))
    step[0], step[1] = shorter * dx, shorter * dy
    if cover <= _LEAST_COVER:
        return
    pixels = 4 * np.pi * _PATCH_SIGMA_PX**2 * cover
    weight = pixels / (_NOISE**2 + _MISFIT * left_over)
    # Both eigenvalues are lowered by a part of the larger one, to 0 at least.
    middle, half = (xx + yy) / 2, (xx - yy) / 2
    radius = np.hypot(half, xy)
    loss = _ALONG_EDGES * (middle + radius)
    larger, smaller = middle + radius - loss, max(middle - radius - loss, 0.0)
    both, turn = (larger + smaller) / 2, (larger - smaller) / (2 * max(radius, 1e-12))
    information[0, 0], information[1, 1] = weight * (both + turn * half), weight * (both - turn * half)
    information[0, 1] = information[1, 0] = weight * turn * xy


@kernel
def _difference(anchor: NDArray, warped: NDArray, expected_x: NDArray, expected_y: NDArray) -> float:
    """Mean absolute difference of the pixels inside the member, less their median; inf if they are few."""
    height, width = anchor.shape
    off = np.empty(anchor.size, np.float32)
    count = 0
    for i in range(height):
        for j in range(width):
            x, y = expected_x[i, j], expected_y[i, j]
            if x >= 0 and y >= 0 and x <= width - 1 and y <= height - 1:
                off[count] = anchor[i, j] - warped[i, j]
                count += 1
    if 4 * count <= anchor.size:
        return np.inf
    off = off[:count]
    return float(np.mean(np.abs(off - np.median(off))))


@kernel
def _expected(
    inverse_depth: NDArray, intrinsics: NDArray, rotation: NDArray, translation: NDArray
) -> tuple[NDArray, NDArray]:
    """Where each pixel (H, W) of the anchor lies in the member: x and y, (H, W) float32."""
    height, width = inverse_depth.shape
    at_x, at_y = np.empty((height, width), np.float32), np.empty((height, width), np.float32)
    fx, fy, cx, cy = intrinsics
    r, t = rotation, translation
    for i in range(height):
        ray_y = (i - cy) / fy
        for j in range(width):
            ray_x, rho = (j - cx) / fx, inverse_depth[i, j]
            x = r[0, 0] * ray_x + r[0, 1] * ray_y + r[0, 2] + rho * t[0]
            y = r[1, 0] * ray_x + r[1, 1] * ray_y + r[1, 2] + rho * t[1]
            z = max(r[2, 0] * ray_x + r[2, 1] * ray_y + r[2, 2] + rho * t[2], 1e-3)
            at_x[i, j], at_y[i, j] = x / z * fx + cx, y / z * fy + cy
    return at_x, at_y


@kernel
def _moments(
    anchor: NDArray, warped: NDArray, expected_x: NDArray, expected_y: NDArray, rows: int, columns: int
) -> NDArray:
    """(h, w, 10): means over each cell's block, of pixels that lie inside the member, of 1, gx, gy, e, gx²,
    gx gy, gy², gx e, gy e, e²: the gradient is the mean of both pictures', e their difference."""
    height, width = anchor.shape
    stride = width // columns
    sums = np.zeros((rows, columns, 10), np.float32)
    for i in range(1, height - 1):
        for j in range(1, width - 1):
            x, y = expected_x[i, j], expected_y[i, j]
            if x < 0 or y < 0 or x > width - 1 or y > height - 1:
                continue
            gx = (anchor[i, j + 1] - anchor[i, j - 1] + warped[i, j + 1] - warped[i, j - 1]) / 4
            gy = (anchor[i + 1, j] - anchor[i - 1, j] + warped[i + 1, j] - warped[i - 1, j]) / 4
            e = anchor[i, j] - warped[i, j]
            cell = sums[i // stride, j // stride]
            cell[0] += 1
            cell[1] += gx
            cell[2] += gy
            cell[3] += e
            cell[4] += gx * gx
            cell[5] += gx * gy
            cell[6] += gy * gy
            cell[7] += gx * e
            cell[8] += gy * e
            cell[9] += e * e
    return sums / np.float32(stride * stride)


@kernel
def _sample(expected_x: NDArray, expected_y: NDArray, step: NDArray) -> NDArray:
    """(P, 2): the expected pixels at `step` (h, w, 2) from each cell's centre, between four neighbours."""
    height, width = expected_x.shape
    rows, columns = step.shape[:2]
    stride = width // columns
    pixel = np.empty((rows * columns, 2))
    for i in range(rows):
        for j in range(columns):
            x = min(max(stride * j + (stride - 1) / 2 + step[i, j, 0], 0.0), width - 1.0)
            y = min(max(stride * i + (stride - 1) / 2 + step[i, j, 1], 0.0), height - 1.0)
            left, top = min(int(x), width - 2), min(int(y), height - 2)
            for k, part in enumerate((expected_x, expected_y)):
                above = part[top, left] + (x - left) * (part[top, left + 1] - part[top, left])
                below = part[top + 1, left] + (x - left) * (part[top + 1, left + 1] - part[top + 1, left])
                pixel[i * columns + j, k] = above + (y - top) * (below - above)
    return pixel
