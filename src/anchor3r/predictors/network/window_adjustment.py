"""Sharpens a window's poses and depths with matches between its frames.

For every cell of the anchor a match is a ray in each other frame of the window and a 2 × 2 matrix that says
how far to trust it, in which direction. Poses and inverse depths of one window are adjusted together to these
(a small bundle adjustment, robust, depths eliminated), held by what the network's heads predict: where
matches say nothing, the prediction stays.

Shapes: K members, P cells. Rays have z = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import so3_exp
from anchor3r.kernels import kernel


@dataclass(frozen=True, kw_only=True)
class AdjustmentConfig:
    """Criteria of the adjustment."""

    robust_scale: float = 2.0
    """Errors of a match beyond so many of its own standard deviations lose weight (Geman–McClure)."""
    start_sigma: float = 0.8
    """Spread of the predicted log depths while poses are sought: of two motions that a plane allows, they
    tell the right one."""
    depth_sigma: float = 3.0
    """The same once they are found, counted as if cells were independent. They are not: a network draws all
    that is far nearer, and a short window can hardly object."""
    blend_sigma: float = 0.25
    """Spread of the predicted log depths, about the window's own unit, when depths are settled."""
    rotation_sigma_deg: float = 3.0
    """Spread of the predicted rotations; only holds where there is nothing to see."""
    translation_sigma: float = 0.3
    """Spread of the predicted translations, relative to the median depth."""


_AROUND_CELLS = 2.0
"""How far a measured depth speaks for its neighbours."""
_LEAST_AROUND, _MOST_AROUND = 20.0, 400.0
"""Information that a neighbourhood has against the window's unit, and a cell at most within it."""
_FARTHEST_OFF = 1.5
"""Logarithms of depths farther off than this are not the network's."""


@dataclass(frozen=True)
class WindowGeometry:
    """Where a window's frames and the anchor's cells are."""

    rotation: NDArray[np.float64]
    """(K, 3, 3) member_from_anchor"""
    translation: NDArray[np.float64]
    """(K, 3)"""
    log_inverse_depth: NDArray[np.float64]
    """(P,)"""


@dataclass(frozen=True)
class Adjusted:
    """A window after adjustment."""

    geometry: WindowGeometry
    covariance: NDArray[np.float64]
    """(K, 6, 6) of (rotation, translation), left perturbations, scaled by the residuals found"""
    depth_information: NDArray[np.float64]
    """(P,) inverse variance of the log depths, by the matches alone"""
    residual: float
    """Median error of the matches that were believed, in their own standard deviations"""

    def settled(
        self, predicted: WindowGeometry, config: AdjustmentConfig, cells: tuple[int, int]
    ) -> WindowGeometry:
        """Depths drawn to the predicted ones where matches say little; `cells` is (h, w), h w = P.

        The predicted ones are brought to the window's unit first, and to what was measured around them: a
        network that takes a wall for nearer than it is does so all along the wall.
        """
        depth, known = self.geometry.log_inverse_depth, self.depth_information
        off = depth - predicted.log_inverse_depth
        unit = float(np.median(off[known >= np.median(known)]))
        weight = np.minimum(known, _MOST_AROUND).reshape(cells)
        locally = np.clip(off - unit, -_FARTHEST_OFF, _FARTHEST_OFF).reshape(cells)
        blurred = [cv2.GaussianBlur(part, (0, 0), _AROUND_CELLS) for part in (weight * locally, weight)]
        around = (blurred[0] / (blurred[1] + _LEAST_AROUND)).reshape(-1)
        kept = known / (known + config.blend_sigma**-2.0)
        return replace(
            self.geometry,
            log_inverse_depth=kept * depth + (1 - kept) * (predicted.log_inverse_depth + unit + around),
        )


def adjust_window(
    rays: NDArray[np.float64],
    matched: NDArray[np.float64],
    information: NDArray[np.float64],
    predicted: WindowGeometry,
    start: WindowGeometry,
    config: AdjustmentConfig,
    *,
    iterations: int,
    patience: float,
) -> Adjusted:
    """rays (P, 2) of the cells, matched (K, P, 2) and information (K, P, 2, 2) in the members.

    `patience` multiplies the robust scale in the first step and is halved in each: the first poses may be
    off by more than any match is.
    """
    rotation, translation, depth = start.rotation, start.translation, start.log_inverse_depth
    num_members = len(rotation)
    depth_prior = config.depth_sigma**-2.0
    unit = float(np.exp(-np.median(predicted.log_inverse_depth)))
    sigmas = np.repeat([np.radians(config.rotation_sigma_deg), config.translation_sigma * unit], 3)
    hessian, point_information = np.eye(6 * num_members), np.ones(len(rays))
    squared = np.zeros(matched.shape[:2])
    for step in range(iterations):
        scale = config.robust_scale * max(1.0, patience * 0.5**step)
        hessian, gradient, cross, point_information, point_gradient, squared = _normal_equations(
            rays, matched, information, np.exp(depth), rotation, translation, scale
        )
        point_information += depth_prior
        point_gradient += depth_prior * (predicted.log_inverse_depth - depth)
        gradient = gradient + _pose_prior(hessian, sigmas**-2.0, predicted, rotation, translation)
        _eliminate(hessian, gradient, cross, point_information, point_gradient)
        update = np.linalg.solve(hessian, gradient)
        depth = depth + np.clip((point_gradient - cross.T @ update) / point_information, -1, 1)
        rotation = so3_exp(update.reshape(-1, 6)[:, :3]) @ rotation
        translation = translation + update.reshape(-1, 6)[:, 3:]
    believed = squared[(squared > 0) & (squared < (3 * config.robust_scale) ** 2)]
    residual = float(np.sqrt(np.median(believed) / 1.386)) if believed.size else 1.0
    covariance = np.linalg.inv(hessian).astype(np.float64) * max(residual, 0.1) ** 2
    blocks = covariance.reshape(num_members, 6, num_members, 6)
    diagonal = blocks[np.arange(num_members), :, np.arange(num_members)]
    geometry = WindowGeometry(rotation, translation, depth)
    return Adjusted(geometry, diagonal, np.maximum(point_information - depth_prior, 0), residual)


def _pose_prior(
    hessian: NDArray,
    information: NDArray,
    predicted: WindowGeometry,
    rotation: NDArray,
    translation: NDArray,
) -> NDArray:
    """Adds the pull towards the predicted poses to the Hessian in place, returns its gradient (6K,)."""
    count = len(translation)
    off = predicted.rotation @ np.swapaxes(rotation, 1, 2)
    back = (off - np.swapaxes(off, 1, 2))[
        :, [2, 0, 1], [1, 2, 0]
    ] / 2  # sines: the pull is weak, angles small
    hessian[np.diag_indices(6 * count)] += np.tile(information, count)
    return (np.concatenate([back, predicted.translation - translation], 1) * information).reshape(-1)


@kernel
def _eliminate(
    hessian: NDArray,
    gradient: NDArray,
    cross: NDArray,
    point_information: NDArray,
    point_gradient: NDArray,
) -> None:
    """Takes the points out of the poses' equations, in place.

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
    rays: NDArray,
    matched: NDArray,
    information: NDArray,
    inverse_depth: NDArray,
    rotation: NDArray,
    translation: NDArray,
    robust_scale: float,
) -> tuple[NDArray, NDArray, NDArray, NDArray, NDArray, NDArray]:
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
            if z < 1e-3:
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
