"""The few colours of the view."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Six stops of viridis, dark and blue to bright and yellow.
_RAMP = np.array([[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 209, 81], [253, 231, 37]])
UNKNOWN = np.array([150, 150, 150], np.uint8)
TRUTH = (235, 235, 235)
ACCEPTED = (70, 210, 90)
REJECTED = (230, 70, 60)
CAMERA = (90, 160, 255)
CURRENT = (255, 170, 40)
MEASURE = (255, 80, 200)


def ramp(values: ArrayLike) -> NDArray[np.uint8]:
    """(n,) in [0, 1] -> (n, 3) RGB; grey where NaN."""
    x = np.asarray(values, np.float64)
    stops = np.linspace(0, 1, len(_RAMP))
    colours = np.stack([np.interp(np.nan_to_num(x), stops, channel) for channel in _RAMP.T], -1)
    return np.where(np.isnan(x)[:, None], UNKNOWN, colours.astype(np.uint8))


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """(n,) -> where each value stands among all, 0 … 1, so that no outlier takes the colours; NaN stays."""
    x = np.asarray(values, np.float64)
    known = np.isfinite(x)
    out = np.full(len(x), np.nan)
    order = np.argsort(np.argsort(x[known], kind="stable"), kind="stable")
    out[known] = order / max(1, known.sum() - 1)
    return out
