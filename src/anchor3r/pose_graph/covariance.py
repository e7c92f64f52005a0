"""How well refined poses are known: blocks of the inverse of the normal matrix, by a selected inverse.

The gauge is that of the poses themselves: the first frame of each component is exact, and the others are
known relative to it. With priors there is none, and poses are known in the world of the priors; errors that
many priors share (the slow noise of a receiver, a clock) are carried into the poses one by one. Edges
count with the weights and the noise that the refinement ended with, which holds what verified loops told of
the errors that windows share (`verification`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.pose_graph.gauss_newton import ErrorModel, PoseProblem, quadratic_model
from anchor3r.pose_graph.linalg.step_solvers import NO_TERMS, BlockTerms, Structure, factorised
from anchor3r.pose_graph.pose_system import PoseState

_MAX_OPERATIONS = 2e11  # of one factorisation, some ten seconds; the inverse costs a few of them
_MAX_BYTES = 2e9
_HELD = 1e8  # stiffness of the gauge, over that of the frame itself


def pose_covariances(
    problem: PoseProblem,
    state: PoseState,
    errors: ErrorModel,
    inflation: float = 1.0,
    *,
    terms: BlockTerms = NO_TERMS,
    shared: NDArray[np.float64] | None = None,
) -> NDArray[np.float64] | None:
    """(n, 6, 6) of every pose: rotation (camera axes, rad²), then centre (world axes).

    inflation: how many times larger all variances are than the errors' model says.
    terms: those of the problem's priors. shared: (m, n, b) gradients of the cost by m independent errors of
    one standard deviation that many priors have in common, and that the normal matrix does not know of.
    None where the factor would be too large, as on routes of tens of thousands of frames with many revisits.
    """
    n = len(state.center)
    structure = Structure(problem.edges, problem.ties, problem.used, n, problem.block, terms)
    nodes = structure.nodes(np.arange(n))
    operations, size = nodes.analysis.factor_cost(problem.block)
    if operations > _MAX_OPERATIONS or 8 * size > _MAX_BYTES:
        return None
    cholesky = factorised(quadratic_model(problem, state, errors), nodes, held=_HELD)
    if cholesky is None:
        return None
    covariance = inflation * cholesky.inverse_diagonal()[:, :6, :6]
    if shared is not None and len(shared):
        moved = cholesky.solve(np.ascontiguousarray(shared.transpose(1, 2, 0)))[:, :6]
        covariance += np.einsum("nxm,nym->nxy", moved, moved)
    covariance[problem.gauge] = 0
    # Unknowns turn a camera about world axes.
    axes = np.zeros((n, 6, 6))
    axes[:, :3, :3], axes[:, 3:, 3:] = state.rotation, np.eye(3)
    return np.asarray(axes @ covariance @ np.swapaxes(axes, 1, 2), np.float64)
