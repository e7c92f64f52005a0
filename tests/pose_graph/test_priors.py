"""Priors: derivatives against finite differences, robust cost, variance factors, rows."""

from __future__ import annotations

import numpy as np
import pytest

from anchor3r.geometry import so3_exp
from anchor3r.pose_graph.pose_system import PoseState, moved
from anchor3r.pose_graph.priors import (
    Directions,
    Distances,
    Headings,
    Poses,
    Positions,
    PriorKind,
    PriorSystem,
    Scales,
    SlowNoise,
    in_rows,
)

NUM_FRAMES = 5


def state_of(seed: int) -> PoseState:
    rng = np.random.default_rng(seed)
    return PoseState(
        so3_exp(rng.normal(size=(NUM_FRAMES, 3))),
        rng.normal(size=(NUM_FRAMES, 3)),
        0.3 * rng.normal(size=NUM_FRAMES),
    )


def metric(rng: np.random.Generator, k: int, d: int) -> np.ndarray:
    root = rng.normal(size=(k, d, d))
    return root @ np.swapaxes(root, 1, 2) + 0.1 * np.eye(d)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def every_kind(seed: int = 0) -> list[PriorKind]:
    rng = np.random.default_rng(seed)
    two, one = np.array([[0, 1], [3, 2], [4, 4]]), np.array([[1], [4]])
    return [
        Positions(
            rows=two,
            fraction=np.array([0.3, 0.8, 0.0]),
            position=rng.normal(size=(3, 3)),
            information=metric(rng, 3, 3),
            antenna_in_camera=np.array([0.2, -0.5, 0.1]),
        ),
        Positions(
            rows=np.array([[0, 1, 3, 4], [1, 1, 4, 4]]),
            fraction=np.array([0.3, 0.0]),
            position=rng.normal(size=(2, 3)),
            information=metric(rng, 2, 3),
            slow_fraction=np.array([0.6, 0.0]),
        ),
        SlowNoise(
            rows=np.array([[3, 3], [3, 4]]), memory=np.array([0.0, 0.8]), information=metric(rng, 2, 3)
        ),
        Distances(rows=two[:2], length=np.array([1.0, 2.0]), information=metric(rng, 2, 1)),
        Distances(
            rows=two,
            length=np.array([1.0, 2.0, 0.5]),
            information=metric(rng, 3, 1),
            points_in_camera=rng.normal(size=(3, 2, 3)),
        ),
        Directions(
            rows=one,
            in_camera=unit(rng.normal(size=(2, 3))),
            in_world=unit(rng.normal(size=(2, 3))),
            information=metric(rng, 2, 3),
        ),
        Scales(rows=one, log_scale=rng.normal(size=2), information=metric(rng, 2, 1)),
        Poses(
            rows=one,
            rotation=so3_exp(rng.normal(size=(2, 3))),
            center=rng.normal(size=(2, 3)),
            information=metric(rng, 2, 6),
        ),
        Headings(rows=one, heading=rng.uniform(-3, 3, 2), information=metric(rng, 2, 1)),
    ]


@pytest.mark.parametrize("kind", every_kind(), ids=lambda kind: kind.name)
def test_derivatives_equal_finite_differences(kind: PriorKind) -> None:
    state, step = state_of(1), 1e-6
    _, jacobian = kind.linearise(state)
    for k, rows in enumerate(kind.rows):
        for row in np.unique(rows):
            expected = jacobian[k, rows == row].sum(0)
            for unknown in range(7):
                change = np.zeros((NUM_FRAMES, 7))
                change[row, unknown] = step
                ahead = kind.linearise(moved(state, change)).residual[k]
                behind = kind.linearise(moved(state, -change)).residual[k]
                np.testing.assert_allclose((ahead - behind) / (2 * step), expected[:, unknown], atol=1e-7)


def test_the_gradient_is_that_of_the_cost_and_the_blocks_are_symmetric() -> None:
    system, state = PriorSystem(every_kind(), width=3.0), state_of(2)
    system.measure(state)
    gradient = np.zeros((NUM_FRAMES, 7))
    terms = system.linearise(state, gradient)
    for row in range(NUM_FRAMES):
        for unknown in range(7):
            change = np.zeros((NUM_FRAMES, 7))
            change[row, unknown] = 1e-6
            slope = (system.cost(moved(state, change)) - system.cost(moved(state, -change))) / 2e-6
            assert gradient[row, unknown] == pytest.approx(slope, rel=1e-5, abs=1e-6)
    dense = np.zeros((7 * NUM_FRAMES, 7 * NUM_FRAMES))
    for a, b, block in zip(*terms, strict=True):
        dense[7 * a : 7 * a + 7, 7 * b : 7 * b + 7] += block
        if a != b:
            dense[7 * b : 7 * b + 7, 7 * a : 7 * a + 7] += block.T
    np.testing.assert_allclose(dense, dense.T, atol=1e-9)
    assert np.linalg.eigvalsh(dense).min() > -1e-9
    assert np.all(terms.a <= terms.b)


def test_a_kind_that_is_noisier_than_it_says_is_found_out_though_some_are_wrong() -> None:
    rng = np.random.default_rng(3)
    state = PoseState(np.tile(np.eye(3), (400, 1, 1)), rng.normal(size=(400, 3)), np.zeros(400))
    noise = 2.0 * rng.normal(size=(400, 3))
    noise[::10] += 80
    kind = Positions(
        rows=np.repeat(np.arange(400)[:, None], 2, 1),
        fraction=np.zeros(400),
        position=state.center + noise,
        information=np.tile(np.eye(3), (400, 1, 1)),
    )
    system = PriorSystem([kind], width=7.0)
    system.measure(state)
    assert 3.0 < system.variance_factor[0] < 6.5
    wrong = system.excess(state, 1e-3)[0] > 1
    assert wrong[::10].all()
    assert wrong.sum() <= 43


def test_frames_become_rows() -> None:
    kind = Distances(
        rows=np.array([[10, 30], [30, 40]]), length=np.arange(2.0), information=np.ones((2, 1, 1))
    )
    np.testing.assert_array_equal(in_rows(kind, np.array([10, 20, 30, 40])).rows, [[0, 2], [2, 3]])
    with pytest.raises(ValueError, match="not in the graph"):
        in_rows(kind, np.array([10, 20, 30]))
