"""Reads a network's output: tensors of one window to poses, depths and what they say about scale.

Shapes: K members, h × w points of the point map, P cells of the correlation stem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from anchor3r.geometry import Pinhole, rotation_from_quat
from anchor3r.model.matching import COARSE_STRIDE, Matches, cell_pixels
from anchor3r.model.network import WindowOutput
from anchor3r.predictors.sharpening import sharpen
from anchor3r.predictors.window_adjustment import AdjustmentConfig, adjust_window

_SMALLEST_SPREAD = 0.05
"""Scale ratios are never trusted further than this (standard deviation of the logarithm): along a road all
matches err a little to the same side, which the spread between cells does not show."""

_UNIT_SPREAD = 0.05
"""Of a window's unit, as a part of it."""
_BIAS, _BIAS_RAD = 0.01, float(np.radians(0.03))
"""Of a translation, as a part of it, and of a rotation: errors that all matches of a window share."""


@dataclass(frozen=True)
class Reading:
    """One window in numpy."""

    ages: NDArray[np.int64]
    """(K,) frames between each member and the anchor"""
    rotation: NDArray[np.float64]
    """(K, 3, 3) member_from_anchor"""
    translation: NDArray[np.float64]
    """(K, 3)"""
    covariance: NDArray[np.float64] | None
    """(K, 6, 6) where it is known"""
    points: NDArray[np.float32]
    """(h, w, 3) in the anchor"""
    confidence: NDArray[np.float32]
    """(h, w)"""

    @staticmethod
    def of(output: WindowOutput, camera: Pinhole, *, along_rays: bool) -> Reading:
        """The first stream of an output; `along_rays` puts depths on the rays of `camera`."""
        ages = output.ages[0].cpu().numpy()
        members = np.flatnonzero(ages > 0)
        pose = output.poses[-1][0].double().cpu().numpy()[members]
        points = output.points[0].float().cpu().numpy()
        if along_rays:
            small = camera.resized(points.shape[1], points.shape[0])
            points = small.unproject_map(points[..., 2]).astype(np.float32)
        confidence = output.confidence[0].float().cpu().numpy()
        rotation = rotation_from_quat(pose[:, [6, 3, 4, 5]]).astype(np.float64)
        return Reading(ages[members], rotation, pose[:, :3], None, points, confidence)

    def adjusted(
        self,
        matches: Matches,
        ages: Tensor,
        images: Sequence[NDArray[np.uint8]],
        camera: Pinhole,
        config: AdjustmentConfig,
    ) -> Reading:
        """Poses and depths sharpened by the stem's matches.

        ages (pairs,) says which member each is of; images are the window's, grey, oldest first.
        """
        order = [int(np.flatnonzero(ages.cpu().numpy() == age)[0]) for age in self.ages]
        focal, center = np.array([camera.fx, camera.fy]), np.array([camera.cx, camera.cy])
        cells = cell_pixels(*images[-1].shape).numpy()
        pixel = [
            sharpen(images[-1], images[-1 - age], cells, found)
            for age, found in zip(self.ages, matches.pixel[order].float().cpu().numpy(), strict=True)
        ]
        matched = (np.stack(pixel).astype(np.float64) - center) / focal
        weight = matches.weight()[order].double().cpu().numpy() * focal.prod()
        depth = self.points[..., 2].astype(np.float64).reshape(-1)
        assert depth.size == matched.shape[1], "points and matches lie on one grid"
        rays = self.points.reshape(-1, 3).astype(np.float64)
        rays = rays[:, :2] / rays[:, 2:]
        result = adjust_window(rays, matched, weight, depth, self.rotation, self.translation, config)
        points = np.concatenate([rays, np.ones((len(rays), 1))], 1) / result.inverse_depth[:, None]
        # Confidence becomes what the adjustment knows of a depth, on the network's scale of 1 and more.
        confidence = 1 + 0.02 * np.sqrt(result.depth_information)
        return replace(
            self,
            rotation=result.rotation,
            translation=result.translation,
            covariance=_as_right_perturbation(result.covariance, result.rotation),
            points=points.reshape(self.points.shape).astype(np.float32),
            confidence=confidence.reshape(self.confidence.shape).astype(np.float32),
        )

    def loosened(self) -> Reading:
        """With what an adjustment cannot see in its covariances: the window's unit, and biases of matches."""
        if self.covariance is None:
            return self
        in_anchor = np.swapaxes(self.rotation, 1, 2) @ self.translation[..., None]
        covariance = self.covariance.copy()
        covariance[:, 3:, 3:] += _UNIT_SPREAD**2 * in_anchor @ np.swapaxes(in_anchor, 1, 2)
        bias = np.concatenate(
            [np.full((len(in_anchor), 3), _BIAS_RAD), _BIAS * np.linalg.norm(in_anchor, axis=1).repeat(3, 1)],
            1,
        )
        covariance[:, range(6), range(6)] += bias**2
        return replace(self, covariance=covariance)

    def scaled(self, factor: float) -> Reading:
        """The same window in a unit that is `factor` times shorter."""
        covariance = self.covariance
        if covariance is not None:
            stretch = np.repeat([1.0, factor], 3)
            covariance = covariance * np.outer(stretch, stretch)
        return replace(
            self,
            translation=self.translation * factor,
            covariance=covariance,
            points=self.points * np.float32(factor),
        )

    def scale_against(
        self, previous: NDArray[np.float32] | None, camera: Pinhole
    ) -> tuple[float, float | None]:
        """log(unit of this window / unit of the previous one) and its spread, from what both have seen.

        `previous` is the point map of the frame before; this anchor's points are moved there and compared
        in depth.
        """
        if previous is None or 1 not in self.ages:
            return 0.0, None
        k = int(np.flatnonzero(self.ages == 1)[0])
        moved = self.points.reshape(-1, 3) @ self.rotation[k].T + self.translation[k]
        height, width = previous.shape[:2]
        pixel = camera.resized(width, height).project(moved).round()
        inside = (moved[:, 2] > 0) & (pixel >= 0).all(1) & (pixel < [width, height]).all(1)
        column, row = pixel[inside].astype(int).T
        seen = previous[row, column, 2]
        log_ratio = np.log(np.maximum(seen, 1e-6) / moved[inside, 2])
        if len(log_ratio) < 16:
            return 0.0, None
        middle = float(np.median(log_ratio))
        spread = 1.4826 * float(np.median(np.abs(log_ratio - middle)))
        # Neighbouring cells err together: count one in sixteen.
        sigma = max(_SMALLEST_SPREAD, 1.2533 * spread / np.sqrt(len(log_ratio) / COARSE_STRIDE**2))
        return middle, float(sigma)


def _as_right_perturbation(
    covariance: NDArray[np.float64], rotation: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(K, 6, 6) of left rotations and added translations -> of (R, t) Exp(ξ), as the graph has it."""
    turn = np.zeros_like(covariance)
    turn[:, :3, :3] = turn[:, 3:, 3:] = np.swapaxes(rotation, 1, 2)
    return turn @ covariance @ np.swapaxes(turn, 1, 2)
