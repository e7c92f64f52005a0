"""Sharpens a window's poses and depths with the matches that the network itself measured.

The network's correlation stem gives, for every cell of the anchor, its pixel in each other frame of the
window and how far to trust it. Poses and inverse depths of one window are adjusted together to these (a small
bundle adjustment, robust, depths eliminated), starting from and held by what the network's heads predict:
where matches say nothing, the prediction stays.

Shapes: K members, P cells. Rays have z = 1; pixels are in ray coordinates, (u - c) / f.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import so3_exp, so3_log


@dataclass(frozen=True, kw_only=True)
class AdjustmentConfig:
    """Criteria of the adjustment."""

    iterations: int = 8
    """Gauss–Newton steps."""
    robust_scale: float = 2.0
    """Errors of a match beyond so many of its own standard deviations lose weight (Geman–McClure)."""
    depth_sigma: float = 0.8
    """Spread of the predicted log depth, on top of what its confidence says."""
    rotation_sigma_deg: float = 3.0
    """Spread of the predicted rotations; only holds where there is nothing to see."""
    translation_sigma: float = 0.3
    """Spread of the predicted translations, relative to the median depth."""


@dataclass(frozen=True)
class Adjusted:
    """A window after adjustment."""

    rotation: NDArray[np.float64]
    """(K, 3, 3) member_from_anchor"""
    translation: NDArray[np.float64]
    """(K, 3)"""
    covariance: NDArray[np.float64]
    """(K, 6, 6) of (rotation, translation), left perturbations, scaled by the residuals found"""
    inverse_depth: NDArray[np.float64]
    """(P,)"""
    depth_information: NDArray[np.float64]
    """(P,) inverse variance of the log depth"""
    residual: float
    """Median error of the matches that were believed, in their own standard deviations"""


def adjust_window(
    rays: NDArray[np.float64],
    matched: NDArray[np.float64],
    weight: NDArray[np.float64],
    depth: NDArray[np.float64],
    rotation: NDArray[np.float64],
    translation: NDArray[np.float64],
    config: AdjustmentConfig,
) -> Adjusted:
    """rays (P, 2), matched (K, P, 2) and weight (K, P) in ray units, depth (P,), poses member_from_anchor."""
    num_members, num_cells = weight.shape
    poses_r, poses_t = rotation.copy(), translation.copy()
    log_inverse = -np.log(np.maximum(depth, 1e-6))
    prior_log_inverse = log_inverse.copy()
    depth_prior = 1 / config.depth_sigma**2
    unit = float(np.median(depth))
    prior_information = np.concatenate(
        [
            np.full(3, np.radians(config.rotation_sigma_deg) ** -2.0),
            np.full(3, (config.translation_sigma * unit) ** -2.0),
        ]
    )
    hessian = np.eye(6 * num_members)
    point_information = np.ones(num_cells)
    squared = np.zeros((num_members, num_cells))
    for step in range(config.iterations):
        # Starts forgiving: the first poses may be off by more than any match is.
        scale = config.robust_scale * max(1.0, 8.0 * 0.5**step)
        hessian, gradient, cross, point_information, point_gradient, squared = _normal_equations(
            rays, matched, weight, np.exp(log_inverse), poses_r, poses_t, scale
        )
        point_information += depth_prior
        point_gradient += depth_prior * (prior_log_inverse - log_inverse)
        gradient = gradient + _pose_prior(hessian, prior_information, rotation, translation, poses_r, poses_t)
        reduced = cross / point_information
        hessian -= reduced @ cross.T
        gradient -= reduced @ point_gradient
        update = np.linalg.solve(hessian, gradient)
        log_inverse += np.clip((point_gradient - cross.T @ update) / point_information, -1, 1)
        poses_r = so3_exp(update.reshape(-1, 6)[:, :3]) @ poses_r
        poses_t = poses_t + update.reshape(-1, 6)[:, 3:]
    believed = squared[(weight > 0) & (squared < (3 * config.robust_scale) ** 2)]
    residual = float(np.sqrt(np.median(believed) / 1.386)) if believed.size else 1.0
    covariance = np.linalg.inv(hessian).astype(np.float64) * max(residual, 0.1) ** 2
    blocks = covariance.reshape(num_members, 6, num_members, 6)
    diagonal = blocks[np.arange(num_members), :, np.arange(num_members)]
    return Adjusted(poses_r, poses_t, diagonal, np.exp(log_inverse), point_information, residual)


def _pose_prior(
    hessian: NDArray,
    information: NDArray,
    rotation: NDArray,
    translation: NDArray,
    current_r: NDArray,
    current_t: NDArray,
) -> NDArray:
    """Adds the pull towards the predicted poses to the Hessian in place, returns its gradient (6K,)."""
    count = len(current_t)
    back = so3_log(rotation @ np.swapaxes(current_r, 1, 2))
    hessian[np.diag_indices(6 * count)] += np.tile(information, count)
    return (np.concatenate([back, translation - current_t], 1) * information).reshape(-1)


@numba.njit(cache=True, nogil=True)
def _normal_equations(
    rays: NDArray,
    matched: NDArray,
    weight: NDArray,
    inverse_depth: NDArray,
    rotation: NDArray,
    translation: NDArray,
    robust_scale: float,
) -> tuple[NDArray, NDArray, NDArray, NDArray, NDArray, NDArray]:
    """Poses' Hessian (6K, 6K) and gradient, cross terms (6K, P), the points' own, squared errors (K, P)."""
    num_members, num_cells = weight.shape
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
            if weight[k, p] <= 0:
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
            error = weight[k, p] * (e0 * e0 + e1 * e1)
            squared[k, p] = error
            w = weight[k, p] / (1 + error * inverse_scale) ** 2
            # Rows of d(u, v) / d(rotation, translation): the point is a + rho t, the rotation turns a alone.
            row[0, 0], row[0, 1], row[0, 2] = -u * ay * iz, (az + u * ax) * iz, -ay * iz
            row[1, 0], row[1, 1], row[1, 2] = -(az + v * ay) * iz, v * ax * iz, ax * iz
            row[0, 3], row[0, 4], row[0, 5] = rho * iz, 0.0, -u * rho * iz
            row[1, 3], row[1, 4], row[1, 5] = 0.0, rho * iz, -v * rho * iz
            d0 = rho * (t[0] - u * t[2]) * iz
            d1 = rho * (t[1] - v * t[2]) * iz
            for i in range(6):
                for j in range(i + 1):
                    block[i, j] += w * (row[0, i] * row[0, j] + row[1, i] * row[1, j])
                gradient[6 * k + i] += w * (row[0, i] * e0 + row[1, i] * e1)
                cross[6 * k + i, p] += w * (row[0, i] * d0 + row[1, i] * d1)
            point_hessian[p] += w * (d0 * d0 + d1 * d1)
            point_gradient[p] += w * (d0 * e0 + d1 * e1)
        for i in range(6):
            for j in range(i):
                block[j, i] = block[i, j]
    return hessian, gradient, cross, point_hessian, point_gradient, squared
