"""What a placement says of its own spread, on ways whose spread is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anchor3r.geometry import so3_exp
from anchor3r.pose_graph.online_placement import (
    OnlinePlacement,
    OnlinePlacementConfig,
    PositionedPath,
    place_online,
)
from anchor3r.pose_graph.placement import PlacementConfig


def placed(heading: float, *, length_m: float = 400.0, sigma_m: float = 0.1) -> OnlinePlacement:
    """A straight way, measured well, of a camera that looks along it and is held upright."""
    rng = np.random.default_rng(0)
    turn = so3_exp([0.0, heading, 0.0])
    along = np.stack([0 * np.arange(60.0), 0 * np.arange(60.0), np.linspace(0, length_m, 60)], 1) @ turn.T
    found = place_online(
        PositionedPath(
            along / 10, np.tile(turn.T, (60, 1, 1)), along + sigma_m * rng.normal(size=along.shape),
            np.full_like(along, sigma_m), np.arange(60.0),
        ),
        0, is_spread_known=True, antenna_in_camera=np.zeros(3), datum=None, config=OnlinePlacementConfig(),
    )  # fmt: skip
    assert found is not None
    return found


@pytest.mark.parametrize("heading", [0.0, np.pi / 2, 0.7])
def test_the_roll_about_a_straight_way_is_as_sure_as_a_camera_is_upright(heading: float) -> None:
    found = placed(heading)
    assert found.is_upright_assumed
    assert found.tilt_sigma_deg == pytest.approx(PlacementConfig().upright_sigma_deg, rel=1e-3)
    tilts = np.linalg.eigvalsh(found.covariance[np.ix_([3, 5], [3, 5])])
    assert np.degrees(np.sqrt(tilts[0])) < 0.1  # across the way positions tell it
    assert found.heading_sigma_deg < 0.1


def test_spreads_fall_with_the_length_of_the_way_and_grow_with_the_noise() -> None:
    plain, longer, noisier = placed(0.3), placed(0.3, length_m=800.0), placed(0.3, sigma_m=0.2)
    assert longer.scale_sigma == pytest.approx(plain.scale_sigma / 2, rel=0.05)
    assert noisier.heading_sigma_deg == pytest.approx(2 * plain.heading_sigma_deg, rel=0.05)


def test_a_placement_is_news_if_it_is_surer_by_a_fifth_or_elsewhere() -> None:
    told = placed(0.3)
    east = float(told.covariance[0, 0] ** 0.5)
    assert not told.is_news_after(told)
    for share, is_news in ((0.81, False), (0.79, True), (1.3, False)):
        assert replace(told, covariance=share**2 * told.covariance).is_news_after(told) == is_news
    for spreads, is_news in ((0.9, False), (1.1, True)):
        larger = told.scale * np.exp(spreads * told.scale_sigma)
        stretched = replace(told, scale=larger, translation=told.translation + (told.scale - larger) * (
            told.rotation @ told.middle
        ))  # fmt: skip
        assert stretched.is_news_after(told) == is_news
        away = replace(told, translation=told.translation + np.array([spreads * east, 0, 0]))
        assert away.is_news_after(told) == is_news


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval": 0}, {"least_positions": 4}, {"max_positions": 19}, {"confidence": 1.0},
        {"scale_within": 0.0}, {"direction_within_deg": 0.0},
    ],
)  # fmt: skip
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be positive|too small"):
        OnlinePlacementConfig(**wrong)  # type: ignore[arg-type]
    OnlinePlacementConfig(interval=1, least_positions=5, max_positions=10)
