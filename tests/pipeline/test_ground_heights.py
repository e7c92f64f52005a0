"""How sure heights are that errors of neighbours make alike."""

from __future__ import annotations

import numpy as np
import pytest

from anchor3r.pipeline.ground_heights import spread_of_heights, typical_log_height


def test_errors_that_neighbours_share_count_once() -> None:
    rng = np.random.default_rng(3)
    white = 0.03 * rng.normal(size=4000)
    assert spread_of_heights(white) == pytest.approx(0.03, rel=0.15)
    shared = np.convolve(white, np.ones(3) / np.sqrt(3), "valid")
    # Of three that are alike a mean is as sure as of one; so much larger is what each has to state.
    assert spread_of_heights(shared) == pytest.approx(0.03 * np.sqrt(3), rel=0.2)


def test_a_drift_is_no_error_of_heights() -> None:
    rng = np.random.default_rng(4)
    heights = 0.03 * rng.normal(size=400) + np.linspace(0, 0.5, 400)
    assert spread_of_heights(heights) == pytest.approx(0.03, rel=0.3)


def test_few_heights_have_the_spread_that_is_assumed() -> None:
    assert spread_of_heights(np.zeros(5)) == 0.05


def test_what_is_below_the_camera_tells_a_first_height() -> None:
    points = np.full((4, 5, 3), np.nan, np.float32)
    assert typical_log_height(points, np.array([0.0, 1.0, 0.0])) is None
    points[2:] = [0.0, 1.5, 4.0]
    points[0, :2] = [0.0, -3.0, 4.0]
    assert typical_log_height(points, np.array([0.0, 1.0, 0.0])) == pytest.approx(np.log(1.5))
