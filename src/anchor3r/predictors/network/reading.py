"""Reads a network's output: tensors of one window to poses and depths.

Shapes: K members, h × w points of the point map.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Pinhole, rotation_from_quat
from anchor3r.model.network import WindowOutput

_UNIT_SPREAD = 0.6
"""Of a window's unit, as a part of it. Units wander by some hundredths, but return only after tens of frames:
so far apart would independent ones have to be, for chains of windows to drift as they do."""
_BIAS_RAD = float(np.radians(0.1))
_BIAS, _BIAS_OF_DEPTH = 0.01, 0.003
"""Of a rotation, and of a translation as a part of itself and of the depth: errors that all matches of a
window share, and of neighbouring windows, too. Without the last one a slow camera, of whose motion little but
such errors is seen, would be thought to go to and fro, and the path averaged to a fraction of its length."""


_CONFIDENCE = 0.02


def confidence_of(information: NDArray[np.float64]) -> NDArray[np.float64]:
    """What an adjustment knows of log depths (inverse variance), on the network's scale of 1 and more."""
    return 1 + _CONFIDENCE * np.sqrt(information)


def information_of(confidence: NDArray) -> NDArray[np.float64]:
    """And back."""
    return ((confidence.astype(np.float64) - 1) / _CONFIDENCE) ** 2


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

    def loosened(self) -> Reading:
        """With what an adjustment cannot see in its covariances: the window's unit, and biases of matches."""
        if self.covariance is None:
            return self
        in_anchor = np.swapaxes(self.rotation, 1, 2) @ self.translation[..., None]
        covariance = self.covariance.copy()
        covariance[:, 3:, 3:] += _UNIT_SPREAD**2 * in_anchor @ np.swapaxes(in_anchor, 1, 2)
        length, depth = np.linalg.norm(in_anchor, axis=1), float(np.median(self.points[..., 2]))
        covariance[:, range(3), range(3)] += _BIAS_RAD**2
        covariance[:, range(3, 6), range(3, 6)] += (_BIAS * length) ** 2 + (_BIAS_OF_DEPTH * depth) ** 2
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
