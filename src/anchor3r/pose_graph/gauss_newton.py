"""Damped Gauss–Newton on poses under a robust loss; knows nothing of where the edges came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.pose_graph.linalg.step_solvers import (
    NO_TERMS,
    DirectSolver,
    LinearSystem,
    ScaleTies,
    TwoLevelSolver,
)
from anchor3r.pose_graph.pose_system import (
    Float,
    PoseEdges,
    PoseState,
    linearise,
    moved,
    robust_weights,
    squared_errors,
)
from anchor3r.pose_graph.priors import PriorSystem
from anchor3r.pose_graph.report import Status

_FIRST_DAMPING, _MAX_DAMPING = 1e-6, 1e6
_EXACT = 1e-20  # cost of an edge that is met to rounding
_ROUNDING = 1e-12  # part of the cost


@dataclass(frozen=True)
class ErrorModel:
    """The noise that edges are assumed to have, and the width of the loss."""

    information: Float
    """(m, 2) inverse variances of rotation and translation, or (m, 6, 6); 0 leaves an edge out"""
    width_sq: float
    """squared whitened error at which the Geman–McClure loss has reached half its height; inf for squares"""


@dataclass(frozen=True)
class PoseProblem:
    """What is to be minimised."""

    edges: PoseEdges
    used: NDArray[np.bool_]
    """(m,) edges that may have information other than 0"""
    ties: ScaleTies
    gauge: NDArray[np.int64]
    """rows that stay where they are"""
    is_free: bool
    """whether log scales are unknowns too"""
    priors: PriorSystem | None = None
    """what is known from elsewhere; only with free scales"""

    @property
    def block(self) -> int:
        return 7 if self.is_free else 6


@dataclass(frozen=True)
class Minimisation:
    """How a minimisation went."""

    status: Status
    iterations: int
    inner_iterations: int
    initial_cost: float
    cost: float


def minimise(
    problem: PoseProblem,
    state: PoseState,
    errors: ErrorModel,
    reestimate: Callable[[PoseState], ErrorModel | None],
    solver: DirectSolver | TwoLevelSolver,
    *,
    max_iterations: int,
    relative_tolerance: float,
) -> tuple[PoseState, Minimisation]:
    """Steps until the cost falls by less than relative_tolerance of itself.

    reestimate(state) is asked for the model of the errors after every step; None says that it has not
    changed. A step that does not lower the cost is tried again with more damping, unless the whole step
    promised as little: where the cost is nearly flat, steps may miss the minimum by as much as they near it.
    """
    model = _Model(problem, state, errors)
    exact = _EXACT * len(problem.edges.i)
    initial_cost, damping, inner, iterations = model.cost, 0.0, 0, 0
    status = Status.CONVERGED if model.cost <= exact else Status.MAX_ITERATIONS
    if not np.isfinite(model.cost):
        status = Status.STALLED
    while iterations < max_iterations and status is Status.MAX_ITERATIONS:
        linear = model.linear_system(damping)
        step, count = solver.solve(linear)
        iterations, inner = iterations + 1, inner + count
        trial = None if step is None else model.at(moved(model.state, step))
        if trial is None or not trial.cost < model.cost:
            if trial is not None and trial.cost <= model.cost * (1 + _ROUNDING):
                status = Status.CONVERGED
            elif step is not None and damping <= _FIRST_DAMPING:
                promised = -0.5 * float(np.vdot(linear.gradient, step))
                status = Status.CONVERGED if promised < relative_tolerance * model.cost else status
            damping = max(10 * damping, _FIRST_DAMPING)
            if damping > _MAX_DAMPING:
                status = Status.STALLED
            continue
        gain = (model.cost - trial.cost) / model.cost
        model, damping = trial, damping / 10 if damping > _FIRST_DAMPING else 0.0
        changed = reestimate(model.state)
        if changed is not None:
            model = _Model(problem, model.state, changed)
        elif (gain < relative_tolerance and damping == 0) or model.cost <= exact:
            status = Status.CONVERGED
    return model.state, Minimisation(status, iterations, inner, initial_cost, model.cost)


def cost_at(problem: PoseProblem, state: PoseState, errors: ErrorModel) -> float:
    """The objective of `minimise`."""
    return _Model(problem, state, errors).cost


def quadratic_model(problem: PoseProblem, state: PoseState, errors: ErrorModel) -> LinearSystem:
    """The normal equations of a Gauss–Newton step from the state, without damping."""
    return _Model(problem, state, errors).linear_system(0.0)


class _Model:
    """The cost at a state, and its quadratic model there."""

    def __init__(self, problem: PoseProblem, state: PoseState, errors: ErrorModel) -> None:
        self._problem, self.state, self._errors = problem, state, errors
        self._square = np.empty(len(problem.edges.i))
        squared_errors(problem.edges, state, errors.information, self._square)
        self._weight = np.empty_like(self._square)
        self.cost = robust_weights(self._square, errors.width_sq, self._weight)
        if problem.is_free:
            self.cost += 0.5 * float(problem.ties.weight @ self._tie_errors() ** 2)
        if problem.priors is not None:
            self.cost += problem.priors.cost(state)

    def at(self, state: PoseState) -> _Model:
        return _Model(self._problem, state, self._errors)

    def linear_system(self, damping: float) -> LinearSystem:
        problem, n = self._problem, len(self.state.center)
        metric = np.empty_like(self._errors.information)
        gradient = np.empty((n, problem.block))
        linearise(problem.edges, self.state, self._errors.information, self._weight, metric, gradient)
        if problem.is_free:
            pull = problem.ties.weight * self._tie_errors()
            gradient[:, 6] += np.bincount(problem.ties.a, pull, n) - np.bincount(problem.ties.b, pull, n)
        terms = NO_TERMS if problem.priors is None else problem.priors.linearise(self.state, gradient)
        return LinearSystem(
            problem.edges, self.state, metric, gradient, problem.ties, problem.gauge, damping, terms
        )

    def _tie_errors(self) -> Float:
        ties, s = self._problem.ties, self.state.log_scale
        return s[ties.a] - s[ties.b] - ties.value
