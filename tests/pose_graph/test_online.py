"""Online medians: Algorithm 1 against a plain reading of it, what they withstand, and the whole pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from anchor3r.geometry import SE3, rotation_angle, so3_exp, so3_log
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.online import OnlineConfig, OnlineEstimate, estimate_pose, estimate_trajectory
from anchor3r.pose_graph.topology import topology_of
from measured_graphs import measure, random_poses, window_pairs

ALL_STARTS = OnlineConfig(num_starts=64)


def votes_of(
    count: int, seed: int, *, noise_rad: float = 0.003, outliers: int = 0
) -> tuple[SE3, tuple[np.ndarray, ...]]:
    """The true pose of the last of count + 1 frames, and what its members say about it."""
    rng = np.random.default_rng(seed)
    poses = random_poses(count + 1, rng)
    members, frame = poses[:-1], poses[-1]
    edges = members @ SE3(frame.rotation[None], frame.translation[None]).inverse()
    rotation = edges.rotation @ so3_exp(noise_rad * rng.normal(size=(count, 3)))
    translation = edges.translation + noise_rad * rng.normal(size=(count, 3))
    wrong = rng.permutation(count)[:outliers]
    rotation[wrong] = so3_exp(2 * rng.normal(size=(outliers, 3)))
    translation[wrong] += 10 * rng.normal(size=(outliers, 3))
    return frame, (members.rotation, members.center(), rotation, translation)


def reference_rotation(votes: np.ndarray, config: OnlineConfig) -> np.ndarray:
    """Algorithm 1 as printed, from every vote."""
    best, lowest = votes[0], np.inf
    for start in votes:
        hypothesis = start
        for _ in range(config.max_iterations):
            residuals = so3_log(votes @ hypothesis.T)
            step = np.median(residuals, 0)
            if np.linalg.norm(step) < config.tolerance_rad:
                score = np.median(np.linalg.norm(residuals, axis=1))
                if score < lowest:
                    best, lowest = hypothesis, score
                break
            hypothesis = so3_exp(step) @ hypothesis
    return best


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.floats(1e-4, 0.5), st.integers(0, 2**32 - 1))
def test_agrees_with_the_algorithm_as_printed(count: int, noise_rad: float, seed: int) -> None:
    _, votes = votes_of(count, seed, noise_rad=noise_rad)
    member_rotation, member_center, edge_rotation, edge_translation = votes
    estimate = estimate_pose(*votes, frame=3, config=ALL_STARTS)
    candidates = np.swapaxes(edge_rotation, 1, 2) @ member_rotation
    expected = reference_rotation(candidates, ALL_STARTS)
    assert_allclose(estimate.rotation, expected, atol=1e-9)
    angles = rotation_angle(candidates @ expected.T)
    assert estimate.residual_rad == pytest.approx(np.median(angles), abs=1e-9)
    moved = (np.swapaxes(member_rotation, 1, 2) @ edge_translation[..., None])[..., 0]
    assert_allclose(estimate.center, np.median(member_center + moved, 0), atol=1e-12)
    assert estimate.num_votes == count


@pytest.mark.parametrize("outliers", [0, 2, 3])
def test_outvotes_outliers(outliers: int) -> None:
    for seed in range(20):
        truth, votes = votes_of(9, seed, outliers=outliers)
        estimate = estimate_pose(*votes, frame=seed)
        assert estimate.converged
        assert np.degrees(rotation_angle(estimate.rotation @ truth.rotation.T)) < 1
        assert np.abs(estimate.center - truth.center()).max() < 0.05


def test_one_vote_is_taken_as_it_is_with_the_stated_uncertainty() -> None:
    truth, votes = votes_of(1, 0, noise_rad=0.0)
    estimate = estimate_pose(*votes, frame=0)
    assert estimate.converged
    assert_allclose(estimate.rotation, truth.rotation, atol=1e-12)
    assert_allclose(estimate.center, truth.center(), atol=1e-12)
    config = OnlineConfig()
    length = np.linalg.norm(votes[3])
    sigmas = np.repeat([config.single_vote_sigma_rad, config.single_vote_sigma_relative * length], 3)
    assert_allclose(np.diag(estimate.covariance), sigmas**2)


def test_covariance_follows_the_spread_of_the_votes() -> None:
    """The same errors, ten times larger, have a hundred times the variance; outliers do not count."""
    spread = {}
    for noise_rad in (0.001, 0.01):
        variances = [
            np.diag(estimate_pose(*votes_of(9, s, noise_rad=noise_rad, outliers=1)[1], frame=s).covariance)
            for s in range(100)
        ]
        spread[noise_rad] = np.median(variances, 0)
    assert_allclose(spread[0.01] / spread[0.001], 100, rtol=0.2)
    assert_allclose(np.sqrt(spread[0.01][:3]), 0.01, rtol=0.35)


def test_depends_on_seed_and_frame_only() -> None:
    _, votes = votes_of(9, 5, noise_rad=0.5)

    def estimates(frames: range, seed: int) -> dict[int, OnlineEstimate]:
        return {
            f: estimate_pose(*votes, frame=f, config=OnlineConfig(num_starts=1, seed=seed)) for f in frames
        }

    forward, backward = estimates(range(40), 0), estimates(range(39, -1, -1), 0)
    for frame in range(40):
        assert_array_equal(forward[frame].rotation, backward[frame].rotation)
    different = {e.rotation.tobytes() for e in forward.values()}
    assert len(different) > 1, "a single start should matter on votes that disagree by half a radian"
    other = estimates(range(40), 1)
    assert any(np.any(forward[f].rotation != other[f].rotation) for f in range(40))


def test_falls_back_to_the_first_vote() -> None:
    _, votes = votes_of(8, 3, noise_rad=0.3)
    estimate = estimate_pose(*votes, frame=0, config=OnlineConfig(max_iterations=1))
    assert not estimate.converged
    assert_allclose(estimate.rotation, votes[2][0].T @ votes[0][0], atol=1e-12)
    assert np.isfinite(estimate.covariance).all()


def test_a_moved_world_moves_the_estimate() -> None:
    _, votes = votes_of(7, 2, noise_rad=0.1)
    base = estimate_pose(*votes, frame=0)
    turn, shift = so3_exp([0.3, 1.0, -2.0]), np.array([5.0, -3.0, 2.0])
    turned = estimate_pose(votes[0] @ turn.T, votes[1] @ turn.T, votes[2], votes[3], frame=0)
    assert_allclose(turned.rotation, base.rotation @ turn.T, atol=1e-9)
    shifted = estimate_pose(votes[0], votes[1] + shift, votes[2], votes[3], frame=0)
    assert_allclose(shifted.center, base.center + shift, atol=1e-9)


def test_refuses_no_votes_and_bad_configs() -> None:
    with pytest.raises(ValueError, match="at least one vote"):
        estimate_pose(np.empty((0, 3, 3)), np.empty((0, 3)), np.empty((0, 3, 3)), np.empty((0, 3)), frame=0)
    for bad in (
        {"num_starts": 0},
        {"max_iterations": 0},
        {"tolerance_rad": 0.0},
        {"single_vote_sigma_rad": 0.0},
    ):
        with pytest.raises(ValueError, match="must be"):
            OnlineConfig(**bad)


def sequence(count: int = 60, seed: int = 0) -> tuple[SE3, Edges]:
    rng = np.random.default_rng(seed)
    poses = random_poses(count, rng)
    i, t = window_pairs(count, 6)
    return poses, measure(poses, i, t, rng, rotation_noise_rad=0.002, translation_noise=0.01, outliers=0.05)


def test_the_whole_pass_is_frame_after_frame() -> None:
    poses, edges = sequence()
    trajectory = estimate_trajectory(edges)
    rotation, center = [np.eye(3)], [np.zeros(3)]
    for frame in range(1, len(poses)):
        e = edges.select(edges.frame_t == frame)
        members = e.frame_i
        estimate = estimate_pose(
            np.array(rotation)[members], np.array(center)[members], e.rotation, e.translation, frame=frame
        )
        rotation.append(estimate.rotation)
        center.append(estimate.center)
    assert_array_equal(trajectory.rotation, np.array(rotation))
    assert_allclose(trajectory.center(), center, atol=1e-12)
    assert np.degrees(rotation_angle(trajectory.rotation @ np.swapaxes(poses.rotation, 1, 2))).max() < 5


def test_edges_may_point_either_way_and_frames_may_have_gaps() -> None:
    _, edges = sequence(30)
    back = SE3(edges.rotation, edges.translation).inverse()
    spread = replace(
        edges, frame_i=10 + 3 * edges.frame_t, frame_t=10 + 3 * edges.frame_i,
        rotation=back.rotation, translation=back.translation,
    )  # fmt: skip
    config = OnlineConfig(num_starts=16)
    forward, backward = estimate_trajectory(edges, config=config), estimate_trajectory(spread, config=config)
    assert_allclose(backward.rotation, forward.rotation, atol=1e-9)
    assert_allclose(backward.translation, forward.translation, atol=1e-9)


def test_tracks_that_a_loop_joins_share_a_world() -> None:
    poses, edges = sequence(60)
    broken = edges.select((edges.frame_i >= 30) | (edges.frame_t < 30))
    apart = estimate_trajectory(broken)
    assert_array_equal(apart.rotation[30], np.eye(3))
    rng = np.random.default_rng(1)
    loop = measure(poses, np.arange(5, 10), np.arange(50, 55), rng, rotation_noise_rad=0.001)
    loop = replace(loop, kind=np.full(5, EdgeKind.LOOP, np.int8))
    columns = {name: np.concatenate([getattr(broken, name), getattr(loop, name)]) for name in vars(broken)}
    joined = Edges(**columns)
    assert topology_of(joined).num_components == 1
    together = estimate_trajectory(joined)
    assert np.degrees(rotation_angle(together.rotation @ np.swapaxes(poses.rotation, 1, 2))).max() < 5
    assert np.abs(together.center() - poses.center()).max() < 0.5
    assert np.abs(apart.center() - poses.center()).max() > 1, (
        "without the loop the second half has its own world"
    )


def test_a_graph_without_windows_still_gets_one_world() -> None:
    """Public pose graphs in any order of frames: everything hangs together through other edges."""
    rng = np.random.default_rng(4)
    poses = random_poses(12, rng)
    i, t = np.array([0, 11, 5, 7, 3, 9, 1, 2, 4, 6, 8]), np.array([11, 5, 7, 3, 9, 1, 2, 4, 6, 8, 10])
    edges = replace(measure(poses, i, t, rng), kind=np.full(11, EdgeKind.LOOP, np.int8))
    trajectory = estimate_trajectory(edges)
    assert_allclose(trajectory.rotation, poses.rotation, atol=1e-9)
    assert_allclose(trajectory.translation, poses.translation, atol=1e-8)
