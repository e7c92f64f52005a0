"""How well an online pose is known relative to the frame before, against frames that are perturbed."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from anchor3r.evaluation.metrics import step_errors
from anchor3r.geometry import SE3, so3_exp
from anchor3r.pose_graph.step_covariance import MeasuredWindow, as_pose_covariance
from measured_graphs import random_poses


def _window(anchor: int, members: list[int], poses: SE3, covariance: np.ndarray) -> MeasuredWindow:
    edges = poses[np.array(members)] @ poses[anchor].inverse()
    return MeasuredWindow.of(anchor, np.array(members), edges, covariance, 1.0)


def _covariances(count: int, seed: int) -> np.ndarray:
    root = 1e-3 * np.random.default_rng(seed).normal(size=(count, 6, 6))
    return root @ root.swapaxes(1, 2)


def _perturbed(pose: SE3, member: SE3, covariance: np.ndarray, draws: int, seed: int) -> SE3:
    """world_from_camera (draws,) of a frame whose edge to an exact member errs by its covariance."""
    rng = np.random.default_rng(seed)
    noise = rng.multivariate_normal(np.zeros(6), covariance, draws)
    edge = member @ pose.inverse()
    edges = SE3(edge.rotation @ so3_exp(noise[:, :3]), edge.translation + noise[:, 3:] @ edge.rotation.T)
    return member.inverse() @ edges


def test_two_frames_measured_against_one_member_differ_by_the_errors_of_both() -> None:
    rng = np.random.default_rng(0)
    poses = random_poses(4, rng)
    own, theirs = _covariances(2, 1), _covariances(2, 2)
    before = _window(2, [0, 1], poses, theirs)
    stated = _window(3, [0, 1], poses, own).relative_to(before)
    draws = 20_000
    earlier = _perturbed(poses[2], poses[1], theirs[1], draws, 3)
    later = _perturbed(poses[3], poses[1], own[1], draws, 4)
    true = SE3.from_matrix(np.stack([poses[2].inverse().matrix(), poses[3].inverse().matrix()]))
    errors = np.array(
        [
            step_errors(SE3.from_matrix(np.stack([earlier[k].matrix(), later[k].matrix()])), true, 1.0)[0]
            for k in range(0, draws, 5)
        ]
    )
    found = as_pose_covariance(stated, poses[3].rotation)
    assert_allclose(np.cov(errors.T), found, atol=0.08 * np.abs(found).max())


def test_a_frame_before_that_is_a_member_needs_but_its_own_edge() -> None:
    poses = random_poses(4, np.random.default_rng(1))
    own = _covariances(3, 5)
    window = _window(3, [0, 2, 1], poses, own)
    before = _window(2, [0, 1], poses, _covariances(2, 6))
    assert_allclose(window.relative_to(before), own[1])


def test_without_a_shared_member_a_frame_is_known_relative_to_its_newest() -> None:
    poses = random_poses(6, np.random.default_rng(2))
    own = _covariances(2, 7)
    window = _window(5, [3, 2], poses, own)
    assert_allclose(window.relative_to(None), own[0])
    assert_allclose(window.relative_to(_window(4, [0, 1], poses, _covariances(2, 8))), own[0])


def test_covariances_come_in_the_scale_of_the_map() -> None:
    poses = random_poses(3, np.random.default_rng(3))
    own = _covariances(1, 9)
    edges = poses[np.array([0])] @ poses[2].inverse()
    window = MeasuredWindow.of(2, np.array([0]), edges, own, 2.5)
    stretch = np.diag([1.0, 1, 1, 2.5, 2.5, 2.5])
    assert_allclose(window.covariance[0], stretch @ own[0] @ stretch)
    assert_allclose(window.member_from_anchor.translation, 2.5 * edges.translation)
