"""Confidence is a probability: of points that state p, about that part is within 5 % of its distance."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from anchor3r.predictors.confidence import (
    FEATURES,
    LIKELY,
    TOLERANCE,
    WINDOW_ESTIMATION,
    from_learned,
    from_old_map,
)
from anchor3r.predictors.loading import load_predictor
from anchor3r.sources import open_source


def stated_and_right(name: str, uri: str, every: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the points of some frames: confidence, whether they are right, whether they are sky."""
    predictor = load_predictor(name)
    found = []
    with open_source(uri) as source:
        for frame in source.frames():
            prediction = predictor.step(frame)
            if frame.index % every or prediction.points_in_anchor is None or frame.depth_m is None:
                continue
            assert prediction.points_confidence is not None
            depth, stated = prediction.points_in_anchor[..., 2], prediction.points_confidence
            (h, w), (height, width) = depth.shape, frame.depth_m.shape
            rows = ((np.arange(h) + 0.5) * height / h).astype(int)
            columns = ((np.arange(w) + 0.5) * width / w).astype(int)
            true = frame.depth_m[np.ix_(rows, columns)]
            here = np.isfinite(depth) & (depth > 0)
            surer = here & (true > 0) & (stated >= np.median(stated[here]))
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.log(depth / true)
            off = np.abs(ratio - np.median(ratio[surer]))
            found.append(np.stack([stated[here], (off < TOLERANCE)[here], (true == 0)[here]], 1))
    columns_of = np.concatenate(found)
    return columns_of[:, 0], columns_of[:, 1] > 0, columns_of[:, 2] > 0


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        ("features", "world:302?kind=street&motion=driving&width=320&height=240&frames=40"),
        ("tiny", "world:302?kind=street&motion=driving&frames=30"),
    ],
)
def test_on_a_world_that_no_calibration_has_seen(name: str, uri: str) -> None:
    stated, right, sky = stated_and_right(name, uri, 5)
    assert stated.min() >= 0
    assert stated.max() <= 1
    assert abs(stated.mean() - right.mean()) < 0.15
    surest, rest = stated >= 0.8, stated < 0.3
    assert right[surest].mean() > 0.7
    assert right[rest].mean() < 0.35
    assert sky.mean() > 0.05
    assert (stated[sky] >= LIKELY).mean() < 0.2, "no ceiling over the street"


def test_a_calibration_is_even_at_its_even_sigma_and_falls() -> None:
    sigma = np.array([0.0, FEATURES.even_sigma, 1.0, np.inf])
    assert_allclose(FEATURES.probability(sigma)[[0, 1, 3]], [1, 0.5, 0])
    assert (np.diff(WINDOW_ESTIMATION.probability(np.geomspace(0.001, 10, 50))) < 0).all()


def test_learned_and_old_confidences_become_probabilities() -> None:
    learned = np.linspace(1, 50, 20, dtype=np.float32)
    assert (np.diff(from_learned(learned)) >= 0).all()
    assert 0 < from_learned(learned)[0] < LIKELY < from_learned(learned)[-1] <= 1
    for predictor in ("features", "network:tiny", "vggt:weights.pt"):
        old = from_old_map(np.array([0.0, 1.0, 2.0, 30.0], np.float32), predictor)
        assert np.isfinite(old).all()
        assert (np.diff(old) >= 0).all()
        assert old.min() >= 0
        assert old.max() <= 1
