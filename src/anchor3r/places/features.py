"""Local features with orientation and scale, and matches between those of two images.

Descriptors are RootSIFT: the root of the normalised histogram, whose Euclidean distance compares histograms
as such. They are kept as bytes.

Shapes: n features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

DESCRIPTOR_SIZE = 128
_BYTES_A_UNIT = 512.0
"""Entries of RootSIFT hardly exceed 0.5; what does is cut there."""


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """Which features of an image are kept and when two of them match."""

    count: int = 800
    """Features of an image at most: the strongest."""
    side: int = 640
    """Longer side in pixels that larger images are reduced to."""
    least_side: int = 256
    """Longer side in pixels that smaller images are enlarged to: features of a few pixels tell little."""
    contrast: float = 0.02
    """Least contrast of a feature; half of SIFT's own default, since walls indoors have little."""
    ratio: float = 0.85
    """A match is this much closer than the second best at most."""

    def __post_init__(self) -> None:
        if not (
            self.count >= 1
            and 32 <= self.least_side <= self.side
            and self.contrast >= 0
            and 0 < self.ratio <= 1
        ):
            raise ValueError(f"contrast or ratio cannot be: {self}")


_DEFAULT = FeatureConfig()


@dataclass(frozen=True, kw_only=True)
class LocalFeatures:
    """Features of one image."""

    pixel: NDArray[np.float32]
    """(n, 2) column and row in the image that was given; the centre of the first pixel is 0, 0"""
    descriptor: NDArray[np.uint8]
    """(n, 128)"""

    def __len__(self) -> int:
        return len(self.pixel)

    def select(self, which: NDArray[Any]) -> LocalFeatures:
        return LocalFeatures(pixel=self.pixel[which], descriptor=self.descriptor[which])


def extract(image: NDArray[np.uint8], config: FeatureConfig = _DEFAULT) -> LocalFeatures:
    """The strongest features of an image (H, W, 3) RGB or (H, W)."""
    grey = image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    height, width = grey.shape
    longer = max(height, width)
    resized = np.clip(longer, config.least_side, config.side) / longer
    size = max(1, round(width * resized)), max(1, round(height * resized))
    if size != (width, height):
        grey = cv2.resize(grey, size, interpolation=cv2.INTER_AREA if resized < 1 else cv2.INTER_LINEAR)
    sift = cv2.SIFT.create(nfeatures=config.count, contrastThreshold=config.contrast)
    points, described = sift.detectAndCompute(grey, None)
    if described is None or not len(points):
        return LocalFeatures(
            pixel=np.empty((0, 2), np.float32), descriptor=np.empty((0, DESCRIPTOR_SIZE), np.uint8)
        )
    pixel = np.array([point.pt for point in points], np.float32)
    strength = np.array([point.response for point in points])
    # Ties of the weakest may leave some more than asked for; the order must not depend on the library's.
    order = np.lexsort((pixel[:, 0], pixel[:, 1], -strength))[: config.count]
    stretch = np.array([width / size[0], height / size[1]], np.float32)
    in_image = (pixel[order] + np.float32(0.5)) * stretch - np.float32(0.5)
    return LocalFeatures(pixel=in_image, descriptor=_root(np.asarray(described[order], np.float32)))


def _root(sift: NDArray[np.float32]) -> NDArray[np.uint8]:
    total = np.maximum(np.abs(sift).sum(1, keepdims=True), 1e-12)
    return np.minimum(np.round(_BYTES_A_UNIT * np.sqrt(np.abs(sift) / total)), 255).astype(np.uint8)


def unit_vectors(descriptor: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Descriptors (n, 128) as vectors of length 1."""
    values = descriptor.astype(np.float32)
    return values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), np.float32(1e-6))


def match(
    one: NDArray[np.float32], other: NDArray[np.float32], config: FeatureConfig = _DEFAULT
) -> NDArray[np.int64]:
    """(m, 2) rows of unit vectors (n, d) that are each other's nearest, clearly so in `other`."""
    if not len(one) or len(other) < 2:
        return np.empty((0, 2), np.int64)
    cosine = one @ other.T
    best = cosine.argmax(1)
    rows = np.arange(len(one))
    mutual = cosine.argmax(0)[best] == rows
    first = cosine[rows, best]
    cosine[rows, best] = -1.0
    second = cosine.max(1)
    clear = 1 - first <= config.ratio**2 * (1 - second)  # squared distances are 2 - 2 cos
    good = np.flatnonzero(mutual & clear)
    return np.stack([good, best[good]], 1)
