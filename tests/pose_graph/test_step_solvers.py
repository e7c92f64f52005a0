"""Gauss–Newton steps: the direct solver against dense algebra, the two-level one against the direct one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from anchor3r.pose_graph.linalg.sparse import analyse
from anchor3r.pose_graph.linalg.step_solvers import (
    NO_TIES,
    DirectSolver,
    LinearSystem,
    ScaleTies,
    Structure,
    TwoLevelSolver,
    make_step_solver,
)
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


def structure_of(problem: LinearSystem) -> Structure:
    used = np.ones(len(problem.edges.i), bool)
    return Structure(problem.edges, problem.ties, used, *problem.gradient.shape)


def direct(problem: LinearSystem) -> np.ndarray:
    step, count = DirectSolver(structure_of(problem)).solve(problem)
    assert step is not None
    assert count == 1
    return step


@pytest.mark.parametrize("block", [6, 7])
def test_two_levels_find_the_direct_step(block: int) -> None:
    problem = system(block)
    solver = TwoLevelSolver(structure_of(problem), reach=9, tolerance=1e-9, max_iterations=300)
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
    structure = structure_of(problem)
    step, _ = DirectSolver(structure).solve(broken)
    assert step is None
    two_level = TwoLevelSolver(structure, reach=9, tolerance=0.1, max_iterations=10)
    assert two_level.solve(broken)[0] is None


def chosen(n: int, i: np.ndarray, t: np.ndarray, expected_iterations: int = 10) -> type:
    """The solver that is made for a graph of this structure."""
    m = len(i)
    edges = PoseEdges(i, t, np.tile(np.eye(3), (m, 1, 1)), np.zeros((m, 3)))
    structure = Structure(edges, NO_TIES, np.ones(m, bool), n, 6)
    return type(
        make_step_solver(
            structure, "auto", tolerance=0.1, max_iterations=100, expected_iterations=expected_iterations
        )
    )


def test_the_structure_decides_how_steps_are_found() -> None:
    anchor = np.repeat(np.arange(60, 4000), 9)
    keyframes = 6 * (anchor // 6 - np.tile(np.arange(1, 10), 3940))
    assert chosen(4000, keyframes, anchor) is DirectSolver  # windows that reach back over keyframes
    grid = np.arange(50 * 50).reshape(50, 50)
    i, t = (np.concatenate([grid[a, b].ravel() for a, b in pair]) for pair in (
        ((slice(1, None), slice(None)), (slice(None), slice(1, None))),
        ((slice(None, -1), slice(None)), (slice(None), slice(None, -1))),
    ))  # fmt: skip
    assert chosen(2500, i, t) is DirectSolver
    route = synthetic_graph(SyntheticConfig(num_frames=6000)).graph.edges
    assert chosen(6000, route.frame_i, route.frame_t) is TwoLevelSolver  # many passes of every street


def test_the_cost_of_a_factor_is_that_of_its_entries() -> None:
    """A full matrix: n³ / 3 operations and n² entries, to first order."""
    i, t = np.triu_indices(40, 1)
    operations, entries = analyse(40, i, t).factor_cost(6)
    assert operations == pytest.approx(240**3 / 3, rel=1e-3)
    assert entries == pytest.approx(240**2, rel=1e-3)
