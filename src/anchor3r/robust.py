"""Medians and what they say: robust centres, their spreads, and the ratio of two scales."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

SIGMA_PER_MAD = 1.4826
"""Standard deviation of a Gaussian over its median absolute deviation."""
MEDIAN_OVER_MEAN = 1.2533
"""Standard deviation of a median over that of a mean, for Gaussians: √(π/2)."""
MEDIAN_NORM_3 = 1.5382
"""Median length of a 3-vector of unit Gaussians."""


class Estimate(NamedTuple):
    """A value and how far to trust it."""

    value: float
    sigma: float
    """standard deviation; NaN where it was not measured"""


def weighted_median(values: NDArray[np.float64], weight: NDArray[np.float64]) -> float:
    """The smallest of the values (n,) with at least half of the weight (n,) at or below it."""
    order = np.argsort(values)
    mass = np.cumsum(weight[order])
    return float(values[order[np.searchsorted(mass, mass[-1] / 2)]])


def medians_by(
    label: NDArray[np.integer[Any]], values: NDArray[np.floating[Any]]
) -> NDArray[np.floating[Any]]:
    """The median of the values (n,) of each label (n,), by ascending label."""
    order = np.lexsort((values, label))
    _, start, size = np.unique(label[order], return_index=True, return_counts=True)
    return 0.5 * (values[order[start + (size - 1) // 2]] + values[order[start + size // 2]])


def mad_sigma(values: NDArray[np.float64], middle: float) -> float:
    """Standard deviation of values (n,) about `middle`, from their median absolute deviation."""
    return SIGMA_PER_MAD * float(np.median(np.abs(values - middle)))


def median_log_ratio(numerator: ArrayLike, denominator: ArrayLike, *, alike: float = 1.0) -> Estimate:
    """Median of log(numerator / denominator), where that is a finite number; (0, NaN) if it is nowhere.

    alike: how many neighbouring values err together, and count as one measurement in the spread.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.log(np.asarray(numerator, np.float64) / np.asarray(denominator))
    log_ratio = log_ratio[np.isfinite(log_ratio)]
    if not log_ratio.size:
        return Estimate(0.0, math.nan)
    middle = float(np.median(log_ratio))
    independent = max(1.0, log_ratio.size / alike)
    return Estimate(middle, MEDIAN_OVER_MEAN * mad_sigma(log_ratio, middle) / math.sqrt(independent))
