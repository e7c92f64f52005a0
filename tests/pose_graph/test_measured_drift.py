"""Drift of odometry and noise of positions, measured on paths whose drift and noise are known."""

from __future__ import annotations

import numpy as np
import pytest

from anchor3r.geometry import so3_exp
from anchor3r.pose_graph.drift import WindowNoise
from anchor3r.pose_graph.measured_drift import SlowNoiseKnots, _Process, drift_rate, measure_drift
from anchor3r.pose_graph.placement import MeasuredDrift
from anchor3r.pose_graph.pose_system import PoseState
from anchor3r.pose_graph.priors import Positions, PriorSystem

NUM_FRAMES = 1500
EXPECTED = WindowNoise(rotation_rad=1e-3, relative=1e-3, num_frames=10.0)
WRONG = slice(4, None, 11)


def measured(
    turn: float, stretch: float, white_m: float, *, slow_m: float = 0.0, seed: int = 0, count: int = 150
) -> MeasuredDrift | None:
    """Of a drive around bends, with random walks of rotation and log scale, and a tenth of fixes wrong."""
    rng = np.random.default_rng(seed)
    heading = np.cumsum(0.02 * np.sin(np.arange(NUM_FRAMES) / 60))
    step = np.stack([np.cos(heading), np.zeros(NUM_FRAMES), np.sin(heading)], 1)
    true = np.cumsum(step, 0)
    turned = so3_exp(np.cumsum(turn * rng.normal(size=(NUM_FRAMES, 3)), 0))
    size = np.exp(np.cumsum(stretch * rng.normal(size=NUM_FRAMES)))
    drifted = np.cumsum(size[:, None] * (turned @ step[..., None])[..., 0], 0)
    odometry = PoseState(np.tile(np.eye(3), (NUM_FRAMES, 1, 1)), drifted, np.zeros(NUM_FRAMES))
    rows = np.linspace(0, NUM_FRAMES - 2, count).astype(np.int64)
    slow, memory = np.zeros((count, 3)), np.exp(-1 / 30)
    for k in range(1, count):
        slow[k] = memory * slow[k - 1] + slow_m * np.sqrt(1 - memory**2) * rng.normal(size=3)
    fixes = true[rows] + white_m * rng.normal(size=(count, 3)) + slow
    fixes[WRONG] += 50.0
    positions = Positions(
        rows=np.stack([rows, rows + 1], 1),
        fraction=np.zeros(count),
        position=fixes,
        information=np.tile(np.eye(3), (count, 1, 1)),
        moment_s=np.arange(count, dtype=np.float64),
        is_spread_known=False,
    )
    return measure_drift(odometry, np.arange(NUM_FRAMES), positions, EXPECTED, significance=1e-3)


@pytest.mark.parametrize(("turn", "stretch"), [(1e-3, 1e-3), (3e-4, 3e-3), (3e-3, 3e-4)])
def test_drift_and_noise_are_found_though_some_positions_are_wrong(turn: float, stretch: float) -> None:
    """One drive shows one random walk, whose rate it tells to a factor: the median of three is compared."""
    drifts = [measured(turn, stretch, 1.0, slow_m=0.5, seed=seed) for seed in range(3)]
    found = np.median([drift for drift in drifts if drift is not None], axis=0)
    assert all(drift is not None for drift in drifts)
    rotation_rate, scale_rate, white, _, _ = found
    assert np.sqrt(white) == pytest.approx(1.0, rel=0.2)
    assert rotation_rate == pytest.approx(turn, rel=0.6)
    assert scale_rate == pytest.approx(stretch, rel=0.6)


def test_the_slow_noise_of_a_receiver_is_not_taken_for_drift() -> None:
    drift = measured(1e-5, 1e-5, 0.5, slow_m=2.0)
    assert drift is not None
    assert np.sqrt(drift.slow) > 1.0
    assert drift.rotation_rate < 3e-4
    assert drift.scale_rate < 1e-3


def test_the_slope_of_the_likelihood_is_that_of_its_differences() -> None:
    rng = np.random.default_rng(2)
    center = np.cumsum(rng.normal(size=(200, 3)), 0)
    rows = np.arange(0, 198, 9)[:, None] + np.array([0, 1])
    positions = Positions(
        rows=rows,
        fraction=np.full(len(rows), 0.3),
        position=center[rows[:, 0]] + rng.normal(size=(len(rows), 3)),
        information=np.tile(np.diag([1.0, 0.25, 1.0]), (len(rows), 1, 1)),
        velocity_per_way=np.full(len(rows), 10.0),
        moment_s=0.9 * np.arange(len(rows)),
    )
    state = PoseState(np.tile(np.eye(3), (200, 1, 1)), center, np.zeros(200))
    process = _Process(state, np.arange(200), positions)
    logs = np.log([1e-6, 4e-5, 1.3, 0.4, 12.0])
    _, slope, information = process._negative_likelihood(np.exp(logs))
    for axis in range(5):
        off = 1e-5 * np.eye(5)[axis]
        ahead, behind = (process._negative_likelihood(np.exp(logs + sign * off))[0] for sign in (1, -1))
        assert slope[axis] == pytest.approx((ahead - behind) / 2e-5, rel=1e-4, abs=1e-4)
    assert np.linalg.eigvalsh(information).min() > -1e-12


def test_few_positions_tell_nothing() -> None:
    assert measured(1e-3, 1e-3, 1.0, count=12) is None


def test_slow_noise_as_unknowns_has_its_covariance_at_every_position() -> None:
    count, first_row, drift = 60, 7, MeasuredDrift(1e-4, 1e-4, 1.0, 0.25, 30.0)
    positions = Positions(
        rows=np.zeros((count, 2), np.int64),
        fraction=np.zeros(count),
        position=np.zeros((count, 3)),
        information=np.tile(np.diag([1.0, 0.25, 1.0]), (count, 1, 1)),
        moment_s=5.0 * np.arange(count),
    )
    knots = SlowNoiseKnots(positions, drift, first_row)
    state = PoseState(*(np.zeros((first_row + len(knots.rows), *shape)) for shape in ((3, 3), (3,), ())))
    state.rotation[:] = np.eye(3)
    terms = PriorSystem([], [knots.prior], width=np.inf).linearise(state, np.zeros((len(state.center), 7)))
    precision = np.zeros((len(knots.rows), len(knots.rows), 3, 3))
    for a, b, block in zip(*terms, strict=True):
        precision[a - first_row, b - first_row] += block[3:6, 3:6]
        if a != b:
            precision[b - first_row, a - first_row] += block[3:6, 3:6].T
    jacobian = knots.added_to(positions).linearise(state).jacobian[:, 2:, 0, 3]
    seen = np.zeros((count, len(knots.rows)))
    rows = knots.added_to(positions).rows[:, 2:] - first_row
    np.add.at(seen, (np.arange(count)[:, None], rows), jacobian)
    apart = 5.0 * np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    for axis, variance in enumerate([0.25, 1.0, 0.25]):
        found = seen @ np.linalg.inv(precision[:, :, axis, axis]) @ seen.T
        np.testing.assert_allclose(found, variance * np.exp(-apart / 30.0), atol=0.13 * variance)
    np.testing.assert_allclose(precision[:, :, 0, 1], 0, atol=1e-12)


@pytest.mark.parametrize("rate", [0.001, 0.004])
def test_the_drift_of_scales_is_found_under_noise_that_neighbours_share(rate: float) -> None:
    rng = np.random.default_rng(7)
    found = []
    for _ in range(20):
        frames = np.arange(0, 1500, 5)
        walk = np.cumsum(rng.normal(size=len(frames))) * rate * np.sqrt(5)
        shared = np.convolve(rng.normal(size=len(frames) + 2), [0.5, 0.7, 0.5], "valid")
        measured = walk + 0.01 * shared
        measured[::10] += rng.normal(size=len(measured[::10]))  # wrong ones
        estimate = drift_rate(measured, frames)
        assert estimate is not None
        found.append(estimate)
    assert 0.7 * rate < np.median(found) < 1.4 * rate
    assert drift_rate(measured[:10], frames[:10]) is None
