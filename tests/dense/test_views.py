"""Which frames get a depth, and which others it is measured from."""

from __future__ import annotations

import numpy as np
import pytest

from anchor3r.dense.views import ViewConfig, candidates, choose_sources, is_next_keyframe
from anchor3r.geometry import SE3, Pinhole, so3_exp

CAMERA = Pinhole.from_fov(60, 96, 72)
CONFIG = ViewConfig()
POINTS = np.random.default_rng(0).uniform([-1.5, -1, 4], [1.5, 1, 6], (200, 3))


def cameras(centers: list[tuple[float, float, float]], turns: list[float] | None = None) -> SE3:
    turn = np.zeros((len(centers), 3))
    turn[:, 1] = turns or 0.0
    return SE3.from_center(so3_exp(turn), np.array(centers, float))


def chosen(others: SE3) -> list[int]:
    return choose_sources(POINTS, CAMERA, cameras([(0, 0, 0)])[0], others, CONFIG)


def test_a_camera_that_only_turns_gives_no_source() -> None:
    assert chosen(cameras([(0, 0, 0)] * 3, [0.02, 0.05, -0.04])) == []
    assert chosen(cameras([(0.005, 0, 0), (-0.005, 0, 0)])) == []


def test_wide_views_of_the_same_things_come_first() -> None:
    looking_away = 1.5
    others = cameras([(0.05, 0, 0), (0.7, 0, 0), (0.7, 0, 0), (-0.7, 0, 0)], [0, 0, looking_away, 0])
    order = chosen(others)
    assert set(order[:2]) == {1, 3}
    assert 2 not in order


def test_sources_are_spread_instead_of_alike() -> None:
    alike = [(0.7 + 0.001 * k, 0, 0) for k in range(8)]
    order = chosen(cameras([*alike, (-0.7, 0, 0), (0, 0.7, 0)]))
    assert {8, 9} <= set(order[:3])


def test_candidates_are_near_in_space_whenever_they_were_there() -> None:
    center = np.zeros((300, 3))
    center[:, 0] = np.minimum(np.arange(300), 299 - np.arange(300))  # there and back again
    near = candidates(center, 10, 5.0, CONFIG)
    assert {9, 11, 288, 290} <= set(near.tolist())
    assert 10 not in near
    assert 150 not in near
    # At the very same place there is nothing to measure depth from.
    assert 289 not in near


def test_many_candidates_are_thinned_out_evenly() -> None:
    center = np.stack([np.linspace(0, 1, 1000), np.zeros(1000), np.zeros(1000)], 1)
    near = candidates(center, 500, 10.0, CONFIG)
    assert len(near) == CONFIG.candidates
    assert np.diff(near).max() < 25


@pytest.mark.parametrize(
    ("moved", "turned_deg", "expected"), [(0.1, 0, False), (1.1, 0, True), (0, 20, True)]
)
def test_keyframes_follow_from_motion_relative_to_depth(
    moved: float, turned_deg: float, expected: bool
) -> None:
    motion = SE3(so3_exp(np.radians([0, turned_deg, 0])), np.array([moved, 0, 0]))
    assert is_next_keyframe(motion, 10.0, CONFIG) is expected
