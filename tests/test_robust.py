"""Robust estimates: known values, resistance to outliers, spreads that match simulated ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anchor3r.robust import mad_sigma, median_log_ratio, weighted_median


def test_weighted_median_of_equal_weights_is_the_lower_median() -> None:
    assert weighted_median(np.array([3.0, 1.0, 2.0]), np.ones(3)) == 2.0
    assert weighted_median(np.array([4.0, 1.0, 2.0, 3.0]), np.ones(4)) == 2.0


def test_weighted_median_follows_the_weight() -> None:
    assert weighted_median(np.array([1.0, 2.0, 3.0]), np.array([0.2, 0.2, 10.0])) == 3.0


def test_spread_of_gaussians_is_found_despite_outliers() -> None:
    values = np.random.default_rng(1).normal(5.0, 0.3, 4000)
    values[:400] = 1e6
    assert mad_sigma(values, float(np.median(values))) == pytest.approx(0.3, rel=0.2)


def test_log_ratio_and_its_spread() -> None:
    rng = np.random.default_rng(2)
    found = [median_log_ratio(2 * np.exp(rng.normal(0, 0.1, 400)), np.ones(400)) for _ in range(300)]
    values, sigmas = np.array(found).T
    assert np.mean(values) == pytest.approx(math.log(2), abs=0.002)
    assert np.mean(sigmas) == pytest.approx(np.std(values), rel=0.15)


def test_values_that_err_together_count_once() -> None:
    values = np.exp(np.random.default_rng(4).normal(0, 0.1, 1600))
    ratio = median_log_ratio(values, np.ones(1600)), median_log_ratio(values, np.ones(1600), alike=16)
    assert ratio[1].sigma == pytest.approx(4 * ratio[0].sigma)


def test_what_is_no_ratio_is_left_out() -> None:
    ratio = median_log_ratio([1.0, -1.0, 0.0, np.nan, 2.0], [1.0, 1.0, 1.0, 1.0, 0.0])
    assert ratio.value == 0.0
    nothing = median_log_ratio([np.nan], [1.0])
    assert nothing.value == 0.0
    assert math.isnan(nothing.sigma)
