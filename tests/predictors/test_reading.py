"""A window in numpy: what its covariances leave out."""

import numpy as np
import pytest

from anchor3r.geometry import SE3
from anchor3r.pose_graph.edges import MotionGraph
from anchor3r.pose_graph.joint import refine_poses
from anchor3r.predictors.network.predictor import reading
from anchor3r.predictors.network.reading import Reading

DEPTH, STEP, ERROR = 2.0, 0.01, 0.0025
"""Metres: a slow camera in a room, and errors of its motion as real video shows them."""


def length_of_a_slow_walk() -> float:
    """What is left of a straight walk after averaging, as a part of it."""
    rng = np.random.default_rng(0)
    graph = MotionGraph()
    ages = np.arange(1, 6)
    count = 80
    for anchor in range(1, count):
        k = min(anchor, len(ages))
        seen = Reading(
            ages=ages[:k],
            rotation=np.tile(np.eye(3), (k, 1, 1)),
            translation=np.stack([STEP * ages[:k], 0 * ages[:k], 0 * ages[:k]], 1)
            + rng.normal(0, ERROR, (k, 3)),
            covariance=np.tile(np.diag(np.repeat([1e-3, 2e-4], 3) ** 2), (k, 1, 1)),
            points=np.full((4, 6, 3), DEPTH, np.float32),
            confidence=np.ones((4, 6), np.float32),
        ).loosened()
        assert seen.covariance is not None
        graph.add_group(
            anchor, anchor - seen.ages, seen.rotation, seen.translation,
            information=np.linalg.inv(seen.covariance),
        )  # fmt: skip
    start = SE3(np.tile(np.eye(3), (count, 1, 1)), -STEP * np.outer(np.arange(count), [1, 0, 0]))
    center = refine_poses(graph, start)[0].camera_from_world.center()
    return float(np.linalg.norm(center[-1] - center[0]) / (STEP * (count - 1)))


def test_a_slow_walk_keeps_its_length() -> None:
    assert length_of_a_slow_walk() == pytest.approx(1, abs=0.15)


def test_it_would_not_if_errors_were_a_part_of_the_motion_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_BIAS_OF_DEPTH", 0.0)
    assert length_of_a_slow_walk() < 0.7


def test_a_window_without_covariances_stays_without() -> None:
    bare = Reading(
        np.array([1]), np.eye(3)[None], np.ones((1, 3)), None, np.ones((2, 2, 3), np.float32), np.ones((2, 2))
    )
    assert bare.loosened() is bare
