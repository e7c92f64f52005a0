"""Global descriptors of images for place retrieval, where the predictor that made a map left none.

A map's own descriptors ("tokens") come from its predictor's encoder while it streams. The ones here are made
from the kept images: gradient histograms, which need no weights, or NetVLAD.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anchor3r.errors import Anchor3RError

TOKENS, PLACES, GRADIENTS, NETVLAD = "tokens", "places", "gradients", "netvlad"


class PlaceDescriptor(Protocol):
    """Whatever turns an image into a vector whose cosine tells places apart."""

    @property
    def name(self) -> str:
        """What to write into a map about where its loops came from."""

    def describe(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(H, W, 3) RGB -> (d,)"""


def load_descriptor(name: str) -> PlaceDescriptor | None:
    """The descriptor of a name on the command line; None is what the map holds already ("tokens")."""
    kind, _, path = name.partition(":")
    if name == TOKENS:
        return None
    if name == GRADIENTS:
        return GradientHistograms()
    if kind == NETVLAD and path:
        from anchor3r.loops.netvlad import NetVLADDescriptor

        return NetVLADDescriptor.load(Path(path))
    raise Anchor3RError(
        f"there is no descriptor {name!r}; there are: {TOKENS}, {PLACES}, {GRADIENTS}, {NETVLAD}:PATH (the "
        "public Pittsburgh weights, .mat or .pth)"
    )


class GradientHistograms:
    """Directions of grey-level gradients over a grid of cells: where the image has which edges."""

    name = GRADIENTS
    _ROWS, _COLS, _CELL, _BINS = 6, 8, 8, 8

    def describe(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        size = self._COLS * self._CELL, self._ROWS * self._CELL
        grey = np.asarray(Image.fromarray(image).convert("L").resize(size, Image.Resampling.BOX), np.float32)
        dy, dx = np.gradient(grey)
        strength = np.hypot(dx, dy)
        direction = np.floor(np.arctan2(dy, dx) % np.pi / np.pi * self._BINS).astype(np.int64) % self._BINS
        row, col = np.indices(grey.shape) // self._CELL
        place = (row * self._COLS + col) * self._BINS + direction
        histogram = np.bincount(place.ravel(), strength.ravel(), self._ROWS * self._COLS * self._BINS)
        cells = histogram.reshape(-1, self._BINS)
        # A cell counts by what its edges look like, not by its contrast; flat ones count little.
        cells = cells / (np.linalg.norm(cells, axis=1, keepdims=True) + self._CELL**2)
        return cells.astype(np.float32).ravel()
