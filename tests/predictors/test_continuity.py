"""What an anchor takes over from the one before: its unit, and depths."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from anchor3r.geometry import Pinhole, so3_exp
from anchor3r.predictors.network.continuity import _MOST_KNOWN, compare_units, with_memory
from anchor3r.predictors.network.reading import Reading, confidence_of, information_of

CAMERA = Pinhole.from_fov(70, 32, 24)
TURN, MOVE = so3_exp(np.array([0.01, -0.03, 0.005])), np.array([0.1, 0.02, 0.4])  # last from this anchor
NORMAL = np.array([0.05, 0.19, 0.31])  # the scene is the plane NORMAL . point = 1 in this anchor


def plane_map(normal: NDArray) -> NDArray[np.float32]:
    """(24, 32, 3) where the camera's rays meet a plane."""
    rays = CAMERA.unproject_map(np.ones((24, 32)))
    return (rays / (rays @ normal)[..., None]).astype(np.float32)


def reading_of(points: NDArray[np.float32], information: float) -> Reading:
    confidence = np.full(points.shape[:2], confidence_of(np.array(information)), np.float32)
    return Reading(np.array([1]), TURN[None], MOVE[None], None, points, confidence)


@pytest.fixture
def this() -> Reading:
    return reading_of(plane_map(NORMAL), 400.0)


@pytest.fixture
def last() -> Reading:
    """The same plane from the anchor before: its points are TURN p + MOVE."""
    normal = TURN @ NORMAL
    return reading_of(plane_map(normal / (1 + normal @ MOVE)), 400.0)


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_the_ratio_of_units_of_one_scene(this: Reading, last: Reading, factor: float) -> None:
    """A depth that reads 2 before and 1 now: this window's unit is twice as long."""
    ratio, sigma = compare_units(this, replace(last, points=last.points * np.float32(factor)), CAMERA)
    assert sigma is not None
    assert ratio == pytest.approx(np.log(factor), abs=1e-4), "between cells of a plane it is exact"


def test_a_ratio_follows_what_was_measured(this: Reading, last: Reading) -> None:
    """Two thirds of the cells were not, and are a fifth farther away than they were."""
    points, confidence = this.points.copy(), this.confidence.copy()
    points[:16] *= 1.2
    confidence[:16] = confidence_of(np.array(1.0))
    vague = replace(this, points=points, confidence=confidence)
    measured = replace(vague, covariance=np.eye(6)[None])
    assert compare_units(measured, last, CAMERA)[0] == pytest.approx(0, abs=1e-3)
    # What is not adjusted has a confidence of another kind, which does not count.
    assert compare_units(vague, last, CAMERA)[0] == pytest.approx(-np.log(1.2), abs=0.05)


def test_without_a_common_view_there_is_no_ratio(this: Reading, last: Reading) -> None:
    assert compare_units(this, None, CAMERA) == (0.0, None)
    aside = replace(this, rotation=so3_exp(np.array([0.0, 2.0, 0.0]))[None])
    assert compare_units(aside, last, CAMERA) == (0.0, None)
    assert compare_units(replace(this, ages=np.array([2])), last, CAMERA) == (0.0, None)


def test_memory_halves_the_variance_of_noisy_depths(this: Reading, last: Reading) -> None:
    rng = np.random.default_rng(0)
    noise = np.exp(rng.normal(0, 0.05, (24, 32, 1))).astype(np.float32)
    noisy = replace(this, points=this.points * noise)
    found = with_memory(noisy, last, CAMERA)
    inside = np.s_[4:-4, 4:-4]
    before, after = (
        np.abs(np.log(reading.points[..., 2] / this.points[..., 2]))[inside].mean()
        for reading in (noisy, found)
    )
    assert after < 0.65 * before
    assert (information_of(found.confidence)[inside] > 1.5 * 400).all()


def test_memory_does_not_move_what_it_cannot_have_seen(this: Reading, last: Reading) -> None:
    """Something new, at half the depth, is no second measurement of what was there."""
    points = this.points.copy()
    points[8:16, 10:20] *= 0.5
    found = with_memory(replace(this, points=points), last, CAMERA)
    np.testing.assert_allclose(found.points[9:15, 11:19], points[9:15, 11:19], rtol=1e-6)


def test_what_is_known_does_not_grow_without_end(this: Reading, last: Reading) -> None:
    sure = replace(last, confidence=np.full((24, 32), confidence_of(np.array(1e9)), np.float32))
    found = with_memory(this, sure, CAMERA)
    assert information_of(found.confidence).max() <= _MOST_KNOWN * 1.001
