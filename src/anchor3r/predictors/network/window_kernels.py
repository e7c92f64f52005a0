"""Numerical parts of the window estimation: photometric alignment, and bundle adjustment of one window.

Photometric alignment measures matches on the images themselves, around the places where poses and depths
expect them. Bundle adjustment changes poses and depths to fit such matches. Both know one window and nothing
of the stream; `window_estimation` says when they are used.

Shapes: H × W pixels, h × w cells of the anchor, P = h w, K members. Rays have z = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole, so3_exp
from anchor3r.kernels import Record, kernel

Floats = NDArray[np.float64]
GreyImage = NDArray[np.float32]
"""(H, W) in grey levels 0–255."""

_BLUR_SIDE = 5
"""Cells or pixels a side of the blurs: beyond two, the Gaussians that are used here have faded."""
_MIN_DEPTH = 1e-3
"""Points are not nearer to a member's camera plane than this part of their depth in the anchor."""
_MEDIAN_SQUARED_ERROR = 1.386
"""Median of a squared Mahalanobis distance in two dimensions: 2 log 2."""


@dataclass(frozen=True, kw_only=True)
class PhotometricAlignmentConfig:
    """How two images are compared around expected matches."""

    patch_sigma_px: float = 2.0
    """Standard deviation of the Gaussian that weighs the pixels of a patch."""
    max_step_px: float = 1.5
    """Longest displacement that one linear step is good for."""
    noise_grey: float = 2.0
    """Standard deviation of the difference of two images that are aligned, in grey levels."""
    residual_factor: float = 4.0
    """How many times the squared difference that is left after the step counts as variance. It is more than
    once, since a difference that remains has a cause which the next patch shares."""
    noise_squared_gradient: float = 0.5
    """Squared gradient, in grey levels per pixel, below which texture is noise."""
    edge_discount: float = 0.05
    """Part of a patch's strongest texture that is taken off in all directions: edges are never quite
    straight, so that they tell little along themselves."""
    min_cover: float = 0.7
    """Part of a patch that has to lie inside the member for its match to count."""
    min_overlap: float = 0.25
    """Part of the anchor that a member has to see for the two images to be compared as a whole."""
    half_size_blur_px: float = 0.8
    """Standard deviation of the blur before an image is reduced to half its size."""

    def __post_init__(self) -> None:
        require_positive(self, "patch_sigma_px", "max_step_px", "noise_grey", "noise_squared_gradient")


@dataclass(frozen=True, kw_only=True)
class WindowAdjustmentConfig:
    """Bundle adjustment of one window: robust loss, priors, and how depths that no match tells are filled."""

    iterations: int = 3
    """Gauss–Newton steps of every adjustment."""
    robust_scale: float = 2.0
    """Errors of a match beyond so many of its own standard deviations lose weight (Geman–McClure loss)."""
    inlier_factor: float = 3.0
    """Errors below so many robust scales count as those of inliers, from which the noise is estimated."""
    min_noise: float = 0.1
    """Least noise of the matches that a covariance is scaled with, in their own standard deviations."""
    match_patience: float = 4.0
    """Factor of the robust scale in the first step of the adjustment to the network's matches; it is halved
    in each step, since the first poses may be off by more than any match is."""
    image_patience: float = 2.0
    """Factor of the robust scale in the first step of adjustments to matches measured on the images."""
    max_log_depth_step: float = 1.0
    """Largest change of a log depth in one step."""
    match_depth_sigma: float = 0.8
    """Standard deviation of the predicted log depths in the adjustment to the network's matches: of the two
    motions that a plane allows, predicted depths tell the right one."""
    image_depth_sigma: float = 3.0
    """Standard deviation of the predicted log depths in adjustments to the images, as if cells were
    independent. They are not: a network draws all that is far nearer, and a short window can hardly
    object."""
    rotation_sigma_deg: float = 3.0
    """Standard deviation of the predicted rotations; it matters only where there is nothing to see."""
    translation_sigma: float = 0.3
    """Standard deviation of the predicted translations, relative to the median depth."""
    blend_sigma: float = 0.25
    """Standard deviation of the predicted log depths, in the window's own scale, when adjusted and predicted
    depths are blended."""
    neighbour_cells: float = 2.0
    """Standard deviation, in cells, of the Gaussian over which adjusted depths correct the predicted ones of
    their neighbours."""
    min_neighbour_information: float = 20.0
    """Information on a log depth by which a neighbourhood is drawn to the scale of the whole window."""
    max_neighbour_information: float = 400.0
    """Largest information that one cell contributes to its neighbourhood."""
    max_neighbour_log_ratio: float = 1.5
    """Largest logarithm of adjusted over predicted depth that a cell contributes to its neighbourhood."""

    def __post_init__(self) -> None:
        require_positive(
            self, "iterations", "robust_scale", "match_depth_sigma", "image_depth_sigma",
            "rotation_sigma_deg", "translation_sigma", "blend_sigma", "neighbour_cells",
            "min_neighbour_information",
        )  # fmt: skip


def require_positive(config: Any, *names: str) -> None:
    """Raises ValueError if one of a config's numbers is not positive."""
    for name in names:
        if not getattr(config, name) > 0:
            raise ValueError(f"{type(config).__name__}.{name} must be positive, not {getattr(config, name)}")


@dataclass(frozen=True)
class WindowImages:
    """The images of a window, all of one size and camera."""

    anchor: GreyImage
    members: list[GreyImage]
    camera: Pinhole

    @staticmethod
    def of_ages(images: Mapping[int, GreyImage], ages: NDArray[np.int64], camera: Pinhole) -> WindowImages:
        """From images by age, of which the anchor has 0; the camera may be of another size."""
        anchor, *members = (images[age] for age in (0, *ages))
        return WindowImages(anchor, members, camera.resized(anchor.shape[1], anchor.shape[0]))


@dataclass(frozen=True)
class WindowGeometry:
    """Poses and inverse depths of a window, which bundle adjustment changes, and what it knows of them."""

    ages: NDArray[np.int64]
    """(K,) frames between each member and the anchor"""
    rotation: Floats
    """(K, 3, 3) member_from_anchor"""
    translation: Floats
    """(K, 3) member_from_anchor"""
    rays: Floats
    """(h, w, 2) of the anchor's cells"""
    log_inverse_depth: Floats
    """(h, w) of the anchor's cells"""
    covariance: Floats | None = None
    """(K, 6, 6) of (rotation, translation), left perturbations, by the last adjustment if there was one"""
    depth_information: Floats | None = None
    """(h, w) inverse variance of the log depths, by the matches of the last adjustment alone"""

    @property
    def poses(self) -> SE3:
        """(K,) member_from_anchor"""
        return SE3(self.rotation, self.translation)

    @property
    def inverse_depth(self) -> Floats:
        """(h, w)"""
        return np.exp(self.log_inverse_depth)

    def points(self) -> NDArray[np.float32]:
        """(h, w, 3) in the anchor."""
        homogeneous = np.concatenate([self.rays, np.ones((*self.rays.shape[:2], 1))], 2)
        return (homogeneous / self.inverse_depth[..., None]).astype(np.float32)


def halved(image: GreyImage, config: PhotometricAlignmentConfig) -> GreyImage:
    """(H, W) -> (H / 2, W / 2)"""
    smooth = cv2.GaussianBlur(image, (_BLUR_SIDE, _BLUR_SIDE), config.half_size_blur_px)
    size = (image.shape[1] // 2, image.shape[0] // 2)
    return np.asarray(cv2.resize(smooth, size, interpolation=cv2.INTER_AREA), np.float32)


def align_images(
    images: WindowImages, inverse_depth: Floats, poses: SE3, config: PhotometricAlignmentConfig
) -> tuple[Floats, Floats]:
    """Rays (K, P, 2) of the anchor's cells in the members, and the information (K, P, 2, 2) on them.

    Each member is warped into the anchor with the geometry at hand; where that is right, the two images
    agree. How far a patch around each cell has to be moved for the best agreement, and how firmly its texture
    says so and in which direction, is one linear least-squares step (Lucas–Kanade, the gradient taken half
    from either image, brightness free). An edge says nothing along itself, so what is known of a match is a
    2 × 2 matrix, not a number.

    inverse_depth is (h, w), poses (K,) are member_from_anchor. Inverse depth between cells is interpolated,
    which is exact on a plane.
    """
    camera, (rows, columns) = images.camera, inverse_depth.shape
    sigma = config.patch_sigma_px * columns / images.anchor.shape[1]
    expected, patches = [], []
    for x, y, warped in _warped_members(images, inverse_depth, poses, cv2.INTER_LANCZOS4):
        expected.append((x, y))
        moments = _patch_moments(images.anchor, warped, x, y, rows, columns)
        side = (_BLUR_SIDE, _BLUR_SIDE)
        patches.append(cv2.GaussianBlur(moments, side, sigma, borderType=cv2.BORDER_REPLICATE))
    step, information = _patch_steps(np.array(patches), _as_record(config))
    pixel = np.stack([_displaced(x, y, by) for (x, y), by in zip(expected, step, strict=True)])
    focal, center = np.array([camera.fx, camera.fy]), np.array([camera.cx, camera.cy])
    information = information.reshape(*pixel.shape, 2)
    return (pixel - center) / focal, information * np.outer(focal, focal)


def image_differences(
    images: WindowImages, inverse_depth: Floats, poses: SE3, config: PhotometricAlignmentConfig
) -> Floats:
    """(K,) mean difference in grey levels of the members, warped into the anchor, brightness free.

    inverse_depth is (h, w). The difference is infinite for members that see too little of the anchor.
    """
    warped = _warped_members(images, inverse_depth, poses, cv2.INTER_LINEAR)
    fewest = config.min_overlap * images.anchor.size
    return np.array([_mean_difference(images.anchor, seen, x, y, fewest) for x, y, seen in warped])


def _warped_members(
    images: WindowImages, inverse_depth: Floats, poses: SE3, interpolation: int
) -> Iterator[tuple[GreyImage, GreyImage, GreyImage]]:
    """For each member, where the anchor's pixels are in it, x and y, and how it looks from there."""
    size = (images.anchor.shape[1], images.anchor.shape[0])
    resized = cv2.resize(inverse_depth.astype(np.float32), size, interpolation=cv2.INTER_LINEAR)
    dense = np.asarray(resized, np.float32)
    camera = images.camera
    intrinsics = np.array([camera.fx, camera.fy, camera.cx, camera.cy])
    for member, rotation, translation in zip(images.members, poses.rotation, poses.translation, strict=True):
        x, y = _expected_pixels(dense, intrinsics, rotation, translation)
        warped = cv2.remap(member, x, y, interpolation, borderMode=cv2.BORDER_REPLICATE)
        yield x, y, np.asarray(warped, np.float32)


def _as_record(config: PhotometricAlignmentConfig) -> Record:
    """The config's numbers, as attributes of what a kernel can take."""
    values = asdict(config)
    return np.array([tuple(values.values())], [(name, np.float64) for name in values])[0]


@kernel
def _expected_pixels(
    inverse_depth: NDArray[np.float32], intrinsics: Floats, rotation: Floats, translation: Floats
) -> tuple[GreyImage, GreyImage]:
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
            z = max(r[2, 0] * ray_x + r[2, 1] * ray_y + r[2, 2] + rho * t[2], _MIN_DEPTH)
            at_x[i, j], at_y[i, j] = x / z * fx + cx, y / z * fy + cy
    return at_x, at_y


@kernel
def _patch_moments(
    anchor: GreyImage,
    warped: GreyImage,
    expected_x: GreyImage,
    expected_y: GreyImage,
    rows: int,
    columns: int,
) -> NDArray[np.float32]:
    """(h, w, 10): means over each cell's block, of pixels that lie inside the member, of 1, gx, gy, e, gx²,
    gx gy, gy², gx e, gy e, e²: the gradient is the mean of both images', e their difference."""
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
def _patch_steps(patches: NDArray[np.float32], config: Record) -> tuple[Floats, Floats]:
    """From moments (K, h, w, 10) of patches: steps (K, h, w, 2) in pixels, information (K, h, w, 2, 2)."""
    count, rows, columns = patches.shape[:3]
    steps, information = np.zeros((count, rows, columns, 2)), np.zeros((count, rows, columns, 2, 2))
    for k in range(count):
        for i in range(rows):
            for j in range(columns):
                _patch_step(patches[k, i, j], config, steps[k, i, j], information[k, i, j])
    return steps, information


@kernel
def _patch_step(moments: NDArray[np.float32], config: Record, step: Floats, information: Floats) -> None:
    """Fills in the step (2,) of one patch and the information on it (2, 2); see `_patch_moments`."""
    cover = np.float64(moments[0])
    share = 1 / max(cover, 1e-3)
    gx, gy, e = share * moments[1], share * moments[2], share * moments[3]
    xx, xy, yy = share * moments[4] - gx**2, share * moments[5] - gx * gy, share * moments[6] - gy**2
    bx, by, variance = share * moments[7] - gx * e, share * moments[8] - gy * e, share * moments[9] - e**2
    a, d = xx + config.noise_squared_gradient, yy + config.noise_squared_gradient
    determinant = a * d - xy**2
    dx, dy = (d * bx - xy * by) / determinant, (a * by - xy * bx) / determinant
    left_over = max(variance - bx * dx - by * dy, 0.0)
    shorter = min(1.0, config.max_step_px / max(np.hypot(dx, dy), 1e-9))
    step[0], step[1] = shorter * dx, shorter * dy
    if cover <= config.min_cover:
        return
    pixels = 4 * np.pi * config.patch_sigma_px**2 * cover
    weight = pixels / (config.noise_grey**2 + config.residual_factor * left_over)
    # Both eigenvalues are lowered by a part of the larger one, to 0 at least.
    middle, half = (xx + yy) / 2, (xx - yy) / 2
    radius = np.hypot(half, xy)
    loss = config.edge_discount * (middle + radius)
    larger, smaller = middle + radius - loss, max(middle - radius - loss, 0.0)
    both, turn = (larger + smaller) / 2, (larger - smaller) / (2 * max(radius, 1e-12))
    information[0, 0], information[1, 1] = weight * (both + turn * half), weight * (both - turn * half)
    information[0, 1] = information[1, 0] = weight * turn * xy


@kernel
def _displaced(expected_x: GreyImage, expected_y: GreyImage, step: Floats) -> Floats:
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


@kernel
def _mean_difference(
    anchor: GreyImage, warped: GreyImage, expected_x: GreyImage, expected_y: GreyImage, fewest: float
) -> float:
    """Mean absolute difference of the pixels inside the member, less their median; inf if they are not more
    than `fewest`."""
    height, width = anchor.shape
    off = np.empty(anchor.size, np.float32)
    count = 0
    for i in range(height):
        for j in range(width):
            x, y = expected_x[i, j], expected_y[i, j]
            if x >= 0 and y >= 0 and x <= width - 1 and y <= height - 1:
                off[count] = anchor[i, j] - warped[i, j]
                count += 1
    if count <= fewest:
        return np.inf
    off = off[:count]
    return float(np.mean(np.abs(off - np.median(off))))


def adjust_window(
    matched: Floats,
    information: Floats,
    predicted: WindowGeometry,
    start: WindowGeometry,
    config: WindowAdjustmentConfig,
    *,
    depth_sigma: float,
    patience: float,
) -> WindowGeometry:
    """Bundle adjustment: poses and inverse depths that fit the matches, with their covariances.

    matched (K, P, 2) are rays of the cells in the members, information (K, P, 2, 2) is how far to trust them.
    The loss is robust and depths are eliminated. Priors hold poses and depths near the predicted ones, so
    that the prediction stays where matches say nothing. `patience` multiplies the robust scale in the first
    step and is halved in each.
    """
    rotation, translation, shape = start.rotation, start.translation, start.log_inverse_depth.shape
    rays, depth = start.rays.reshape(-1, 2), start.log_inverse_depth.reshape(-1)
    predicted_depth = predicted.log_inverse_depth.reshape(-1)
    num_members = len(rotation)
    depth_prior = depth_sigma**-2.0
    scale = float(np.exp(-np.median(predicted_depth)))
    sigmas = np.repeat([np.radians(config.rotation_sigma_deg), config.translation_sigma * scale], 3)
    hessian, point_information = np.eye(6 * num_members), np.ones(len(rays))
    squared = np.zeros(matched.shape[:2])
    largest = config.max_log_depth_step
    for step in range(config.iterations):
        robust_scale = config.robust_scale * max(1.0, patience * 0.5**step)
        hessian, gradient, cross, point_information, point_gradient, squared = _normal_equations(
            rays, matched, information, np.exp(depth), rotation, translation, robust_scale
        )
        point_information += depth_prior
        point_gradient += depth_prior * (predicted_depth - depth)
        gradient = gradient + _add_pose_prior(hessian, sigmas**-2.0, predicted, rotation, translation)
        _eliminate_points(hessian, gradient, cross, point_information, point_gradient)
        update = np.linalg.solve(hessian, gradient)
        depth = depth + np.clip((point_gradient - cross.T @ update) / point_information, -largest, largest)
        rotation = so3_exp(update.reshape(-1, 6)[:, :3]) @ rotation
        translation = translation + update.reshape(-1, 6)[:, 3:]
    covariance = np.linalg.inv(hessian).astype(np.float64) * match_noise(squared, config) ** 2
    blocks = covariance.reshape(num_members, 6, num_members, 6)
    return replace(
        start,
        rotation=rotation,
        translation=translation,
        log_inverse_depth=depth.reshape(shape),
        covariance=blocks[np.arange(num_members), :, np.arange(num_members)],
        depth_information=np.maximum(point_information - depth_prior, 0).reshape(shape),
    )


def match_noise(squared: Floats, config: WindowAdjustmentConfig) -> float:
    """Standard deviation of the inliers' errors in units of what was expected, from their squares (K, P)."""
    inliers = squared[(squared > 0) & (squared < (config.inlier_factor * config.robust_scale) ** 2)]
    if not inliers.size:
        return 1.0
    return max(float(np.sqrt(np.median(inliers) / _MEDIAN_SQUARED_ERROR)), config.min_noise)


def blend_depths(
    adjusted: WindowGeometry, predicted: WindowGeometry, config: WindowAdjustmentConfig
) -> WindowGeometry:
    """The adjusted window with depths drawn to the predicted ones where matches say little.

    The predicted ones are brought to the window's scale first, and to what was measured around them: a
    network that takes a wall for nearer than it is does so all along the wall.
    """
    depth, known = adjusted.log_inverse_depth, adjusted.depth_information
    assert known is not None, "an adjustment tells what is known of depths"
    off = depth - predicted.log_inverse_depth
    log_scale = float(np.median(off[known >= np.median(known)]))
    weight = np.minimum(known, config.max_neighbour_information)
    limit = config.max_neighbour_log_ratio
    locally = np.clip(off - log_scale, -limit, limit)
    blurred = [cv2.GaussianBlur(part, (0, 0), config.neighbour_cells) for part in (weight * locally, weight)]
    around = blurred[0] / (blurred[1] + config.min_neighbour_information)
    kept = known / (known + config.blend_sigma**-2.0)
    corrected = predicted.log_inverse_depth + log_scale + around
    return replace(adjusted, log_inverse_depth=kept * depth + (1 - kept) * corrected)


def _add_pose_prior(
    hessian: Floats,
    information: Floats,
    predicted: WindowGeometry,
    rotation: Floats,
    translation: Floats,
) -> Floats:
    """Adds the poses' prior of that information (6,) to the Hessian in place, returns its gradient (6K,)."""
    count = len(translation)
    off = predicted.rotation @ np.swapaxes(rotation, 1, 2)
    # Sines instead of angles: the prior is weak and the angles are small.
    back = (off - np.swapaxes(off, 1, 2))[:, [2, 0, 1], [1, 2, 0]] / 2
    hessian[np.diag_indices(6 * count)] += np.tile(information, count)
    pull = np.concatenate([back, predicted.translation - translation], 1) * information
    return np.asarray(pull.reshape(-1), np.float64)


@kernel
def _eliminate_points(
    hessian: Floats, gradient: Floats, cross: Floats, point_information: Floats, point_gradient: Floats
) -> None:
    """Takes the points out of the poses' equations, in place (Schur complement).

    A product of matrices as large as this is where linear algebra libraries start threads, which on a few
    cores cost ten times what they do.
    """
    by_cell = cross.T.copy()
    size = len(gradient)
    for p in range(len(by_cell)):
        row = by_cell[p]
        for i in range(size):
            if row[i] != 0:
                share = row[i] / point_information[p]
                gradient[i] -= share * point_gradient[p]
                for j in range(i + 1):
                    hessian[i, j] -= share * row[j]
    for i in range(size):
        for j in range(i):
            hessian[j, i] = hessian[i, j]


@kernel
def _normal_equations(
    rays: Floats,
    matched: Floats,
    information: Floats,
    inverse_depth: Floats,
    rotation: Floats,
    translation: Floats,
    robust_scale: float,
) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
    """Poses' Hessian (6K, 6K) and gradient, cross terms (6K, P), the points' own, squared errors (K, P)."""
    num_members, num_cells = matched.shape[:2]
    hessian = np.zeros((6 * num_members, 6 * num_members))
    gradient = np.zeros(6 * num_members)
    cross = np.zeros((6 * num_members, num_cells))
    point_hessian = np.zeros(num_cells)
    point_gradient = np.zeros(num_cells)
    squared = np.zeros((num_members, num_cells))
    row = np.empty((2, 6))
    inverse_scale = 1 / robust_scale**2
    for k in range(num_members):
        r, t = rotation[k], translation[k]
        block = hessian[6 * k : 6 * k + 6, 6 * k : 6 * k + 6]
        for p in range(num_cells):
            i00, i01, i11 = information[k, p, 0, 0], information[k, p, 0, 1], information[k, p, 1, 1]
            if i00 + i11 <= 0:
                continue
            rho, rx, ry = inverse_depth[p], rays[p, 0], rays[p, 1]
            ax = r[0, 0] * rx + r[0, 1] * ry + r[0, 2]
            ay = r[1, 0] * rx + r[1, 1] * ry + r[1, 2]
            az = r[2, 0] * rx + r[2, 1] * ry + r[2, 2]
            x, y, z = ax + rho * t[0], ay + rho * t[1], az + rho * t[2]
            if z < _MIN_DEPTH:
                continue
            iz = 1 / z
            u, v = x * iz, y * iz
            e0, e1 = matched[k, p, 0] - u, matched[k, p, 1] - v
            squared[k, p] = i00 * e0 * e0 + 2 * i01 * e0 * e1 + i11 * e1 * e1
            w = 1 / (1 + squared[k, p] * inverse_scale) ** 2
            i00, i01, i11 = w * i00, w * i01, w * i11
            f0, f1 = i00 * e0 + i01 * e1, i01 * e0 + i11 * e1
            # Rows of d(u, v) / d(rotation, translation): the point is a + rho t, the rotation turns a alone.
            row[0, 0], row[0, 1], row[0, 2] = -u * ay * iz, (az + u * ax) * iz, -ay * iz
            row[1, 0], row[1, 1], row[1, 2] = -(az + v * ay) * iz, v * ax * iz, ax * iz
            row[0, 3], row[0, 4], row[0, 5] = rho * iz, 0.0, -u * rho * iz
            row[1, 3], row[1, 4], row[1, 5] = 0.0, rho * iz, -v * rho * iz
            d0 = rho * (t[0] - u * t[2]) * iz
            d1 = rho * (t[1] - v * t[2]) * iz
            for i in range(6):
                w0, w1 = row[0, i] * i00 + row[1, i] * i01, row[0, i] * i01 + row[1, i] * i11
                for j in range(i + 1):
                    block[i, j] += w0 * row[0, j] + w1 * row[1, j]
                gradient[6 * k + i] += row[0, i] * f0 + row[1, i] * f1
                cross[6 * k + i, p] += w0 * d0 + w1 * d1
            point_hessian[p] += d0 * (i00 * d0 + i01 * d1) + d1 * (i01 * d0 + i11 * d1)
            point_gradient[p] += d0 * f0 + d1 * f1
        for i in range(6):
            for j in range(i):
                block[j, i] = block[i, j]
    return hessian, gradient, cross, point_hessian, point_gradient, squared
