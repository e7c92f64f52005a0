"""Gauss–Newton steps: the direct solver against dense algebra, the two-level one against the direct one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from anchor3r.pose_graph.linalg.step_solvers import DirectSolver, LinearSystem, ScaleTies, TwoLevelSolver
from anchor3r.pose_graph.pose_system import PoseEdges, PoseState, apply_matrix, linearise
from generated_graphs import SyntheticConfig, synthetic_graph


def system(block: int, damping: float = 0.0) -> LinearSystem:
    """A short route with loops, at a state somewhat off the truth."""
    route = synthetic_graph(SyntheticConfig(num_frames=400, false_events=0.0))
    edges = route.graph.edges
    n, m = 400, len(edges)
    pose_edges = PoseEdges(edges.frame_i, edges.frame_t, edges.rotation, edges.translation)
    state = PoseState.of(route.camera_from_world)
    metric, gradient = np.empty((m, 2)), np.empty((n, block))
    linearise(pose_edges, state, np.tile([1e5, 1e2], (m, 1)), np.ones(m), metric, gradient)
    ties = ScaleTies(np.arange(1, n), np.arange(n - 1), np.zeros(n - 1), np.full(n - 1, 1e4))
    return LinearSystem(pose_edges, state, metric, gradient, ties, np.array([0]), damping)


def direct(problem: LinearSystem) -> np.ndarray:
    n, block = problem.gradient.shape
    used = np.ones(len(problem.edges.i), bool)
    step, count = DirectSolver(problem.edges, problem.ties, used, n, block).solve(problem)
    assert step is not None
    assert count == 1
    return step


@pytest.mark.parametrize("block", [6, 7])
def test_two_levels_find_the_direct_step(block: int) -> None:
    problem = system(block)
    n = len(problem.gradient)
    used = np.ones(len(problem.edges.i), bool)
    solver = TwoLevelSolver(
        problem.edges, problem.ties, used, n, block, reach=9, tolerance=1e-9, max_iterations=300
    )
    step, iterations = solver.solve(problem)
    assert step is not None
    assert iterations < 100
    assert_allclose(step, direct(problem), atol=1e-6 * np.abs(step).max())


def test_gauge_does_not_move_and_the_gradient_is_met() -> None:
    problem = system(6)
    step = direct(problem)
    assert_allclose(step[0], 0, atol=1e-9)
    image = np.zeros_like(step)
    apply_matrix(problem.edges, problem.state, problem.metric, step, image)
    assert_allclose(image[1:], -problem.gradient[1:], atol=1e-8 * np.abs(problem.gradient).max())


def test_damping_shortens_the_step() -> None:
    lengths = [np.linalg.norm(direct(system(6, damping))) for damping in (0.0, 1.0, 100.0)]
    assert lengths[0] > lengths[1] > lengths[2] > 0


def test_a_matrix_that_is_not_positive_definite_is_refused() -> None:
    problem = system(6)
    broken = problem._replace(metric=-problem.metric)
    n = len(problem.gradient)
    used = np.ones(len(problem.edges.i), bool)
    step, _ = DirectSolver(problem.edges, problem.ties, used, n, 6).solve(broken)
    assert step is None
    two_level = TwoLevelSolver(
        problem.edges, problem.ties, used, n, 6, reach=9, tolerance=0.1, max_iterations=10
    )
    assert two_level.solve(broken)[0] is None
