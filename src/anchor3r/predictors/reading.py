"""Reads a network's output: tensors of one window to poses, depths and what they say about scale.

Shapes: K members, h × w points of the point map, P cells of the correlation stem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from anchor3r.geometry import Pinhole, rotation_from_quat
from anchor3r.model.matching import COARSE_STRIDE, Matches
from anchor3r.model.network import WindowOutput
from anchor3r.predictors.sharpening import align, reduced
from anchor3r.predictors.window_adjustment import AdjustmentConfig, WindowGeometry, adjust_window

_SMALLEST_SPREAD = 0.002
"""Scale ratios are never trusted further than this (standard deviation of the logarithm)."""
_MOTION_SPREAD = 0.3
"""Nor further than this part of the motion over the depth: on a road all matches err a little to the same
side, which the spread between cells does not show, and the ratio takes over what the depths then lack."""

_UNIT_SPREAD = 0.05
"""Of a window's unit, as a part of it."""
_OCTAVES = (1, 0)
"""Matches are measured in half the size, where a step reaches farther, then in full."""
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
        matched = (matches.pixel[order].double().cpu().numpy() - center) / focal
        weight = matches.weight()[order].double().cpu().numpy()
        depth = self.points[..., 2].astype(np.float64).reshape(-1)
        assert depth.size == matched.shape[1], "points and matches lie on one grid"
        rays = self.points.reshape(-1, 3).astype(np.float64)
        rays = rays[:, :2] / rays[:, 2:]
        predicted = WindowGeometry(self.rotation, self.translation, -np.log(np.maximum(depth, 1e-6)))
        information = weight[..., None, None] * np.diag(focal**2)
        result = adjust_window(
            rays, matched, information, predicted, predicted, config, iterations=6, patience=8.0
        )
        seen = matches.visible[order].double().sigmoid().cpu().numpy()[..., None, None]
        for octaves in _OCTAVES:
            start = result.settled(predicted, config)
            matched, information = self._measured(images, camera, start, octaves)
            result = adjust_window(
                rays, matched, information * seen, predicted, start, config, iterations=4, patience=2.0
            )
        settled = result.settled(predicted, config)
        points = (
            np.concatenate([rays, np.ones((len(rays), 1))], 1) / np.exp(settled.log_inverse_depth)[:, None]
        )
        # Confidence becomes what the adjustment knows of a depth, on the network's scale of 1 and more.
        confidence = 1 + 0.02 * np.sqrt(result.depth_information)
        return replace(
            self,
            rotation=settled.rotation,
            translation=settled.translation,
            covariance=_as_right_perturbation(result.covariance, settled.rotation),
            points=points.reshape(self.points.shape).astype(np.float32),
            confidence=confidence.reshape(self.confidence.shape).astype(np.float32),
        )

    def _measured(
        self, images: Sequence[NDArray[np.uint8]], camera: Pinhole, start: WindowGeometry, octaves: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Matches (K, P, 2), as rays, and information (K, P, 2, 2) from images of 2^-octaves the size."""
        anchor = reduced(images[-1], octaves)
        small = camera.resized(anchor.shape[1], anchor.shape[0])
        inverse_depth = np.exp(start.log_inverse_depth).reshape(self.points.shape[:2])
        found = [
            align(anchor, reduced(images[-1 - age], octaves), small, inverse_depth, rotation, translation)
            for age, rotation, translation in zip(self.ages, start.rotation, start.translation, strict=True)
        ]
        return np.stack([rays for rays, _ in found]), np.stack([information for _, information in found])

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
        moved = moved[moved[:, 2] > 1e-6]
        if len(moved) == 0:
            return 0.0, None
        height, width = previous.shape[:2]
        pixel = camera.resized(width, height).project(moved).astype(np.float32)
        # Inverse depths, not depths, are linear between pixels of a plane.
        seen = cv2.remap(
            1 / previous[..., 2], pixel[:, 0], pixel[:, 1], cv2.INTER_LINEAR, borderValue=float("nan")
        )
        ratio = np.asarray(seen, np.float64).reshape(-1) * moved[:, 2]
        log_ratio = -np.log(ratio[ratio > 0])  # not outside the image, where it is not a number
        if len(log_ratio) < 16:
            return 0.0, None
        middle = float(np.median(log_ratio))
        spread = 1.4826 * float(np.median(np.abs(log_ratio - middle)))
        motion = np.linalg.norm(self.translation[k]) * float(np.median(1 / self.points[..., 2]))
        # Neighbouring cells err together: count one in sixteen.
        sigma = 1.2533 * spread / np.sqrt(len(log_ratio) / COARSE_STRIDE**2)
        return middle, float(max(sigma, _MOTION_SPREAD * motion, _SMALLEST_SPREAD))


def _as_right_perturbation(
    covariance: NDArray[np.float64], rotation: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(K, 6, 6) of left rotations and added translations -> of (R, t) Exp(ξ), as the graph has it."""
    turn = np.zeros_like(covariance)
    turn[:, :3, :3] = turn[:, 3:, 3:] = np.swapaxes(rotation, 1, 2)
    return turn @ covariance @ np.swapaxes(turn, 1, 2)
