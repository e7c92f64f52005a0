"""When the minimisation of poses ends."""

from __future__ import annotations

import numpy as np
import pytest

from anchor3r.pose_graph.gauss_newton import ErrorModel, PoseProblem, cost_at, minimise
from anchor3r.pose_graph.linalg.step_solvers import NO_TIES, DirectSolver, LinearSystem, Structure
from anchor3r.pose_graph.pose_system import Float, PoseEdges, PoseState
from anchor3r.pose_graph.report import Status
from measured_graphs import random_poses, window_pairs


class Overshooting:
    """After two steps, which nearly arrive, whole ones and those that are hardly damped go too far."""

    def __init__(self, solver: DirectSolver) -> None:
        self._solver, self._count = solver, 0

    def solve(self, system: LinearSystem) -> tuple[Float | None, int]:
        step, count = self._solver.solve(system)
        assert step is not None
        part = 0.5 if system.damping > 5e-6 else 2.2 if self._count >= 2 else 0.95
        self._count += 1
        return part * step, count


def test_steps_that_miss_a_flat_minimum_by_as_little_as_they_promise_end_the_search() -> None:
    rng = np.random.default_rng(4)
    poses = random_poses(12, rng)
    i, t = window_pairs(12, 4)
    measured = poses[i] @ poses[t].inverse()
    noisy = measured.rotation, measured.translation + 0.05 * rng.normal(size=(len(i), 3))
    edges = PoseEdges(i.astype(np.int32), t.astype(np.int32), *noisy)
    problem = PoseProblem(edges, np.ones(len(i), bool), NO_TIES, np.array([0]), False)
    start = PoseState.of(poses)
    start = start._replace(center=start.center + 0.3 * rng.normal(size=start.center.shape))
    errors = ErrorModel(np.full((len(i), 2), 400.0), np.inf)
    solver = DirectSolver(Structure(edges, NO_TIES, problem.used, 12, 6))

    def solved(solver: DirectSolver) -> tuple[float, Status]:
        state, outcome = minimise(
            problem, start, errors, lambda _: None, solver, max_iterations=10, relative_tolerance=1e-3
        )
        return cost_at(problem, state, errors), outcome.status

    least, _ = solved(solver)
    cost, status = solved(Overshooting(solver))
    assert status is Status.CONVERGED
    assert cost == pytest.approx(least, rel=1e-3)
