"""How the scales of two predictors of one stream lie to each other: measured on depths, kept by a filter."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Array
from anchor3r.predictors.interface import WindowPrediction
from anchor3r.robust import Estimate, median_log_ratio

_UNKNOWN = 1e4
"""Variance of the logarithm of a scale of which nothing is known."""


@dataclass
class StreamScales:
    """Logarithms of the scales of `features` and of the network over that of the stream."""

    mean: Array = field(default_factory=lambda: np.zeros(2))
    """(2,)"""
    covariance: Array = field(default_factory=lambda: np.zeros((2, 2)))
    """(2, 2)"""

    def forget(self, which: int) -> None:
        """Nothing is known of one of the two any more."""
        self.covariance[which] = self.covariance[:, which] = 0.0
        self.covariance[which, which] = _UNKNOWN

    def is_known(self, which: int) -> bool:
        """Whether it is known to better than a factor of e."""
        return bool(self.covariance[which, which] < 1.0)

    def walk(self, which: int, sigma: float) -> None:
        self.covariance[which, which] += sigma**2

    def measure(self, ratio: Estimate) -> None:
        """ratio: log(depths of `features` / depths of the network), which is network over `features`."""
        row = np.array([-1.0, 1.0])
        gain = self.covariance @ row / (self.ratio_sigma**2 + ratio.sigma**2)
        self.mean = self.mean + gain * (ratio.value - row @ self.mean)
        self.covariance = self.covariance - np.outer(gain, row @ self.covariance)

    @property
    def ratio_sigma(self) -> float:
        """Standard deviation of the ratio of the two."""
        row = np.array([-1.0, 1.0])
        return math.sqrt(max(float(row @ self.covariance @ row), 0.0))


@dataclass(frozen=True, kw_only=True)
class Depths:
    """What a window knows of its anchor's depths."""

    frame: int
    depth: NDArray[np.float32]
    """(h, w) in the window's own scale, NaN where unknown"""
    confidence: NDArray[np.float32]
    """(h, w)"""

    @staticmethod
    def of(window: WindowPrediction) -> Depths | None:
        points, confidence = window.points_in_anchor, window.points_confidence
        if points is None or confidence is None:
            return None
        return Depths(frame=window.anchor, depth=points[..., 2], confidence=confidence)


def compare_depths(one: Depths | None, other: Depths | None, *, alike: float, least_sigma: float) -> Estimate:
    """log(depths of the one / of the other) in the surer half of both; of no weight without any.

    alike: neighbouring depths that err together. least_sigma is added: errors that all depths share.
    """
    found = Estimate(0.0, math.nan)
    if one is not None and other is not None:
        depths, sure = zip(*(_on_grid(depths, other.depth.shape) for depths in (one, other)), strict=True)
        both = sure[0] & sure[1]
        found = median_log_ratio(depths[0][both], depths[1][both], alike=alike)
    if math.isnan(found.sigma):
        return Estimate(0.0, math.sqrt(_UNKNOWN))
    return found._replace(sigma=math.hypot(found.sigma, least_sigma))


def _on_grid(depths: Depths, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Depths at the middles of the cells of a grid over the same image, and which are surer than most."""
    rows, columns = (
        ((np.arange(size) + 0.5) / size * own).astype(np.int64)
        for size, own in zip(shape, depths.depth.shape, strict=True)
    )
    depth, confidence = (part[np.ix_(rows, columns)] for part in (depths.depth, depths.confidence))
    known = np.isfinite(depth) & (depth > 0) & (confidence > 0)
    if not known.any():
        return depth, known
    return depth, known & (confidence >= np.median(confidence[known]))
