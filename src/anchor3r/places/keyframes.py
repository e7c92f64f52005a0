"""What a map keeps of a keyframe to recognise its place: features, their words, and how far away each is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from anchor3r.places.features import FeatureConfig, LocalFeatures, extract, unit_vectors
from anchor3r.places.vocabulary import Vocabulary

_LEAST_CONFIDENCE = 1e-6  # keeps the spread of a depth finite that nothing is known about
_LEAST_SIGMA = 0.01
"""Relative spread of a depth at least."""
_TOLERANCE = 0.05
"""What the confidence of a point refers to: the probability that its distance is within this part."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PlaceKeyframe:
    """Features of a keyframe (n), the strongest first."""

    frame: int
    width: int
    """Of the image that pixels are of."""
    height: int
    features: LocalFeatures
    word: NDArray[np.int32]
    """(n,)"""
    signature: NDArray[np.uint64]
    """(n,)"""
    depth: NDArray[np.float32]
    """(n,) along the optical axis, in the scale of the frame's window; NaN where it is not known"""
    depth_sigma: NDArray[np.float32]
    """(n,) relative standard deviation of the depth"""

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        """(n, 128) descriptors of length 1."""
        return unit_vectors(self.features.descriptor)


def describe_keyframe(
    frame: int,
    image: NDArray[np.uint8],
    depth: NDArray[np.float32] | None,
    confidence: NDArray[np.float32] | None,
    vocabulary: Vocabulary,
    config: FeatureConfig | None = None,
) -> PlaceKeyframe:
    """Features of an image (H, W, 3), with depths from a grid (h, w) that spans it where there is one.

    confidence: (h, w) probability that a depth is within 5 %.
    """
    features = extract(image, config or FeatureConfig())
    word, signature = vocabulary.quantise(features.descriptor)
    height, width = image.shape[:2]
    known, sigma = np.full((2, len(features)), np.nan, np.float32)
    if depth is not None and len(features):
        if confidence is None:
            confidence = np.ones_like(depth)
        known, sigma = _sampled(features.pixel, (width, height), depth, confidence)
    return PlaceKeyframe(
        frame=frame, width=width, height=height, features=features, word=word, signature=signature,
        depth=known, depth_sigma=sigma,
    )  # fmt: skip


def _sampled(
    pixel: NDArray[np.float32],
    size: tuple[int, int],
    depth: NDArray[np.float32],
    confidence: NDArray[np.float32],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Depth at pixels (n, 2) and its relative spread (n,), interpolated between the four cells around.

    Cells that differ, as at an edge, add to the spread.
    """
    rows, columns = depth.shape
    grid = (pixel.astype(np.float64) + 0.5) * np.array([columns, rows]) / np.array(size) - 0.5
    grid = np.clip(grid, 0, [columns - 1, rows - 1])
    corner = np.minimum(np.floor(grid).astype(np.int64), [max(columns - 2, 0), max(rows - 2, 0)])
    part = grid - corner
    total, weights, squares, doubt = np.zeros((4, len(pixel)))
    for dx in (0, 1):
        for dy in (0, 1):
            x, y = np.minimum(corner[:, 0] + dx, columns - 1), np.minimum(corner[:, 1] + dy, rows - 1)
            z, sure = depth[y, x].astype(np.float64), np.clip(confidence[y, x], 0.0, 0.999)
            weight = np.abs(1 - dx - part[:, 0]) * np.abs(1 - dy - part[:, 1]) + 1e-6
            good = np.isfinite(z) & (z > 0) & (sure > 0)
            weight = np.where(good, weight, 0.0)
            inverse = np.where(good, 1 / np.where(good, z, 1.0), 0.0)
            total += weight * inverse
            squares += weight * inverse**2
            weights += weight
            doubt += weight * np.where(good, _sigma_of(np.where(good, sure, 0.5)), 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / weights
        spread = np.sqrt(np.maximum(squares / weights - mean**2, 0.0)) / mean
        sigma = np.hypot(np.maximum(doubt / weights, _LEAST_SIGMA), spread)
        return (1 / mean).astype(np.float32), sigma.astype(np.float32)


def _sigma_of(confidence: NDArray[np.float64]) -> NDArray[np.float64]:
    """Relative standard deviation of a normal error that is within the tolerance so often."""
    return np.asarray(_TOLERANCE / norm.ppf((1 + np.maximum(confidence, _LEAST_CONFIDENCE)) / 2))
