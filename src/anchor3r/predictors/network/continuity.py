"""What an anchor shares with the one before it: a unit of length, and depths.

A window of a few frames knows its depths only as well as its short baseline allows, and its unit not at all.
The anchor before has seen most of the same surfaces. Its depths, looked up where this anchor's points lie in
it, say how the two units compare; brought to one unit they are a second measurement of every depth, so that
what is known of a surface grows as long as it is in sight. Of older windows nothing is kept but this.

Shapes: P = h w cells.
"""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Pinhole
from anchor3r.model.matching import COARSE_STRIDE
from anchor3r.predictors.network.reading import Reading, confidence_of, information_of

_SMALLEST_SPREAD = 0.002
"""Ratios of units are never trusted further than this (standard deviation of the logarithm)."""
_MOTION_SPREAD = 0.4
"""Nor further than this part of the motion over the depth: on a road all matches err a little to the same
side, which the spread between cells does not show."""
_RATIO_SPREAD = 0.05
"""Of the ratio of two depths of one cell, however well both are known."""
_FEWEST = 16
"""Cells that a ratio is taken from."""

_KEPT = 0.8
"""Of what was known a frame ago."""
_FARTHEST = 30.0
"""Squared distance of two depths, over their variance, beyond which they are of different things."""
_MOST_KNOWN = 0.02**-2.0
"""Information on a log depth that frames can gather: their errors are not independent for ever."""
_PREDICTED = 0.25**-2.0
"""Information in what the network predicts, which every depth has a share of."""


def _recalled(reading: Reading, last: Reading, camera: Pinhole) -> tuple[NDArray, NDArray, NDArray]:
    """What the anchor before knows of the cells of the reading's, each (P,).

    The logarithms of: its depth over the one that the reading would have there; its depth, moved to the
    reading's anchor. And the information on it. NaN and 0 where it has not seen the cell.
    """
    k = int(np.flatnonzero(reading.ages == 1)[0])
    rotation, translation = reading.rotation[k], reading.translation[k]
    moved = reading.points.reshape(-1, 3).astype(np.float64) @ rotation.T + translation
    height, width = last.confidence.shape
    in_front = moved[:, 2] > 1e-6
    ahead = np.where(in_front[:, None], moved, [0, 0, 1])
    pixel = camera.resized(width, height).project(ahead).astype(np.float32)
    x, y = np.where(in_front[:, None], pixel, -9).T
    # Inverse depths, not depths, are linear between the pixels of a plane.
    inverse, known = (
        np.asarray(cv2.remap(part, x, y, cv2.INTER_LINEAR, borderValue=float("nan"))).reshape(-1)
        for part in (1 / last.points[..., 2].astype(np.float64), information_of(last.confidence))
    )
    inverse[~(inverse > 0)] = np.nan
    back = (ahead / (ahead[:, 2] * inverse)[:, None] - translation) @ rotation
    log_depth = np.log(np.where(back[:, 2] > 1e-6, back[:, 2], np.nan))
    return -np.log(inverse * ahead[:, 2]), log_depth, np.where(np.isnan(log_depth), 0, known)


def recalled_depth(reading: Reading, last: Reading, camera: Pinhole) -> NDArray[np.float64]:
    """(P,) logarithms of the depths that the anchor before had, moved to the reading's anchor; its own where
    that one has not seen them. Both are in one unit."""
    _, log_depth, known = _recalled(reading, last, camera)
    own = np.log(np.maximum(reading.points[..., 2].reshape(-1).astype(np.float64), 1e-6))
    return np.where(known > 0, log_depth, own)


def compare_units(reading: Reading, last: Reading | None, camera: Pinhole) -> tuple[float, float | None]:
    """log(unit of the window / unit of the one before) and its spread; None if they share too little."""
    if last is None or 1 not in reading.ages:
        return 0.0, None
    log_ratio, _, known = _recalled(reading, last, camera)
    shared = np.isfinite(log_ratio)
    log_ratio = log_ratio[shared]
    if len(log_ratio) < _FEWEST:
        return 0.0, None
    # Where little was measured, both depths are near what the network predicts, but not equally near: a
    # window is more so than what has gathered since. Such cells make a unit creep.
    weight = np.ones(len(log_ratio))
    if reading.covariance is not None:
        own = information_of(reading.confidence).reshape(-1)[shared]
        weight = 1 / (1 / np.maximum(own, 1e-6) + 1 / np.maximum(known[shared], 1e-6) + _RATIO_SPREAD**2)
    middle = _weighted_median(log_ratio, weight)
    spread = 1.4826 * float(np.median(np.abs(log_ratio - middle)))
    step = float(np.linalg.norm(reading.translation[reading.ages == 1]))
    motion = step * float(np.median(1 / reading.points[..., 2]))
    # Neighbouring cells err together: count one in sixteen.
    sigma = 1.2533 * spread / np.sqrt(len(log_ratio) / COARSE_STRIDE**2)
    return middle, max(sigma, _MOTION_SPREAD * motion, _SMALLEST_SPREAD)


def _weighted_median(values: NDArray[np.float64], weight: NDArray[np.float64]) -> float:
    order = np.argsort(values)
    mass = np.cumsum(weight[order])
    return float(values[order[np.searchsorted(mass, mass[-1] / 2)]])


def with_memory(reading: Reading, last: Reading, camera: Pinhole) -> Reading:
    """The reading, in the unit of the anchor before, with depths that both have measured."""
    _, log_depth, known = _recalled(reading, last, camera)
    measured = information_of(reading.confidence).reshape(-1)
    own = measured + _PREDICTED
    depth = np.log(reading.points[..., 2].astype(np.float64)).reshape(-1)
    off = np.where(known > 0, log_depth - depth, 0)
    known = _KEPT * known
    known = np.where(off**2 * known * own < _FARTHEST * (known + own), known, 0)
    factor = np.exp(off * known / (known + own)).reshape(reading.confidence.shape)
    confidence = confidence_of(np.minimum(measured + known, _MOST_KNOWN))
    return replace(
        reading,
        points=(reading.points * factor[..., None]).astype(np.float32),
        confidence=confidence.reshape(factor.shape).astype(np.float32),
    )
