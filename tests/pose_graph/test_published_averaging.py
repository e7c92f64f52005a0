"""Algorithm 2 of the paper against a second implementation that follows its lines with dense matrices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.optimize import linprog

from anchor3r.geometry import SE3, so3_exp, so3_log
from anchor3r.pose_graph.averaging.motion import PublishedConfig, average_motion_as_published
from anchor3r.pose_graph.edges import Edges
from anchor3r.pose_graph.online import estimate_trajectory
from measured_graphs import measure, random_poses, window_pairs

NUM_FRAMES, WINDOW = 25, 5


def noisy_graph(seed: int, outliers: float) -> tuple[SE3, Edges]:
    rng = np.random.default_rng(seed)
    poses = random_poses(NUM_FRAMES, rng)
    edges = measure(
        poses,
        *window_pairs(NUM_FRAMES, WINDOW),
        rng,
        rotation_noise_rad=0.01,
        translation_noise=0.05,
        outliers=outliers,
    )
    return poses, replace(edges, weight=rng.uniform(0.5, 2.0, len(edges)))


def incidence(edges: Edges) -> NDArray[np.float64]:
    """(m, F) with +1 at the member and -1 at the anchor."""
    matrix = np.zeros((len(edges), NUM_FRAMES))
    matrix[np.arange(len(edges)), edges.frame_i] = 1
    matrix[np.arange(len(edges)), edges.frame_t] = -1
    return matrix


def dense_rotations(edges: Edges, online: SE3, sigma: float) -> NDArray[np.float64]:
    """Lines 1 to 10, with the gauge's column taken out of A."""
    gauge, (i, t) = WINDOW - 1, (edges.frame_i, edges.frame_t)
    rotation = online.rotation @ online.rotation[gauge].T
    a = np.delete(incidence(edges), gauge, axis=1)
    for _ in range(200):
        r = so3_log(np.swapaxes(rotation[i], 1, 2) @ edges.rotation @ rotation[t])
        w = sigma**2 / (sigma**2 + (r**2).sum(1)) ** 2
        step = np.insert(np.linalg.solve(a.T @ (w[:, None] * a), a.T @ (w[:, None] * r)), gauge, 0, axis=0)
        rotation = rotation @ so3_exp(step)
        if np.linalg.norm(step, axis=1).mean() < np.radians(5e-3):
            break
    return rotation


def least_absolute(edges: Edges, rotation: NDArray[np.float64]) -> float:
    """The optimum of line 12 as a linear program a world axis: min Σ s, |A c + v| <= s."""
    v = np.einsum("eji,ej->ei", rotation[edges.frame_i], edges.translation)
    a, m = incidence(edges), len(edges)
    total = 0.0
    for k in range(3):
        above = np.hstack([a, -np.eye(m)])
        below = np.hstack([-a, -np.eye(m)])
        cost = np.concatenate([np.zeros(NUM_FRAMES), np.ones(m)])
        found = linprog(
            cost, np.vstack([above, below]), np.concatenate([-v[:, k], v[:, k]]), bounds=(None, None)
        )
        total += found.fun
    return total


def test_equals_the_dense_implementation() -> None:
    for seed, outliers in ((0, 0.0), (1, 0.1)):
        _, edges = noisy_graph(seed, outliers)
        online = estimate_trajectory(edges)
        poses, report = average_motion_as_published(edges, online)
        assert_allclose(poses[0].matrix(), online[0].matrix(), atol=1e-9)
        # The sum of absolute values is taken along the axes of the gauge's camera.
        in_gauge = poses @ poses[WINDOW - 1].inverse()
        rotation, center = dense_rotations(edges, online, np.radians(5)), in_gauge.center()
        assert_allclose(in_gauge.rotation, rotation, atol=1e-6)
        v = np.einsum("eji,ej->ei", rotation[edges.frame_i], edges.translation)
        cost = np.abs(center[edges.frame_i] - center[edges.frame_t] + v).sum()
        assert_allclose(report.cost, cost, rtol=1e-6)
        optimum = least_absolute(edges, rotation)
        assert optimum <= cost * (1 + 1e-9)
        assert cost <= optimum * (1 + 1e-3)


def test_the_width_is_a_setting() -> None:
    _, edges = noisy_graph(3, 0.1)
    online = estimate_trajectory(edges)
    wide, _ = average_motion_as_published(edges, online, PublishedConfig(sigma_deg=30.0))
    reference = dense_rotations(edges, online, np.radians(30))
    assert_allclose(wide.rotation @ wide.rotation[WINDOW - 1].T, reference, atol=1e-6)
