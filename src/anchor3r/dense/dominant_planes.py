"""The few planes that much of an image lies on: ground, walls, fronts of houses.

The inverse depth of a plane is linear in the image. Windows on a plane that is seen at a grazing angle look
alike only if they lie on that plane, so that a sweep, whose planes face the camera, misses parts of it; these
planes are tried there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_TRIALS = 300
"""Planes through three pixels each, of which the one that fits most pixels is taken."""
_SAMPLES = 1500
"""Pixels that a plane is tried on."""
_NEARBY = 0.25
"""The three pixels lie within this part of the image's size."""
_TOLERANCE = 0.02
"""Relative difference of inverse depths that fit."""
_LEAST_SHARE = 0.03
"""Of the pixels: planes that fit fewer are none."""


def dominant_planes(
    inverse: NDArray[np.float32], good: NDArray[np.bool_], count: int, seed: int = 0
) -> NDArray[np.float32]:
    """(k, 3) planes a x + b y + c through inverse depths (h, w), at most `count`; good: which to look at."""
    rng = np.random.default_rng(seed)
    height, width = inverse.shape
    rows, columns = np.nonzero(good & (inverse > 0))
    planes: list[NDArray[np.float64]] = []
    if len(rows):
        some = rng.permutation(len(rows))[:_SAMPLES]
        rows, columns = rows[some], columns[some]
    fewest, extent = _LEAST_SHARE * len(rows), np.array([width, height])
    while len(planes) < count and len(rows) > max(fewest, 3):
        at = np.stack([columns, rows, np.ones_like(rows)], 1).astype(np.float64)
        value = inverse[rows, columns].astype(np.float64)
        first = rng.integers(len(at), size=_TRIALS)
        others = at[first, None, :2] + _NEARBY * extent * rng.uniform(-1, 1, (_TRIALS, 2, 2))
        others = np.clip(others.round(), 0, extent - 1)
        corner = np.concatenate([at[first, None, :2], others], 1)
        x, y = corner[..., 0].astype(int), corner[..., 1].astype(int)
        matrix = np.concatenate([corner, np.ones((_TRIALS, 3, 1))], -1)
        sound = (np.abs(np.linalg.det(matrix)) > 1e-2 * extent.prod() * _NEARBY**2) & good[y, x].all(1)
        if not sound.any():
            break
        found = np.linalg.solve(matrix[sound], inverse[y, x][sound].astype(np.float64)[..., None])[..., 0]
        fits = np.abs(found @ at.T - value) < _TOLERANCE * value
        fitting = fits[np.argmax(fits.sum(1))]
        if fitting.sum() < fewest:
            break
        weighted = at[fitting] / value[fitting, None]
        planes.append(np.linalg.lstsq(weighted, np.ones(len(weighted)), rcond=None)[0])
        rows, columns = rows[~fitting], columns[~fitting]
    return np.array(planes, np.float32).reshape(-1, 3)
