"""How well refined poses are known: blocks of the inverse of the normal matrix, by a selected inverse.

A map has no place, direction and scale of its own, so a pose is only known relative to something: here to the
trajectory of its component as a whole. The covariance is that of the error which is left once a similarity
has aligned all poses of the component with the true ones (`geometry.align_poses`). To first order this is a
projection P = I - G A, where G (6 n × 7) are the motions of all frames alike and A (7 × 6 n) finds them
by least squares, so that a block of P Σ Pᵀ takes the block of Σ = H⁻¹ and seven solves: H⁻¹ Aᵀ. With priors
poses are known in the world of the priors instead; errors that many priors share (the slow noise of a
receiver, a clock) are carried into the poses one by one.

Edges count with the weights and the noise that the refinement ended with. Overlapping windows see the same
images, so that their edges err alike and agree far better than their matrices promise, and the inverse takes
each copy of an error for another measurement. `shared_inflation` says how many copies there are of what
windows, and the ties between their scales, know; edges of loops are copies of one another within an event and
a revisit, and no copies of windows (`without_copies`). With priors the drift that they measure takes the
place of copies (`measured_drift`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import hat
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.gauss_newton import ErrorModel, PoseProblem, quadratic_model
from anchor3r.pose_graph.linalg.sparse import Cholesky
from anchor3r.pose_graph.linalg.step_solvers import NO_TERMS, BlockTerms, Structure, factorised
from anchor3r.pose_graph.noise import LEAST_REDUNDANCY, MEDIAN_CHI_SQ_6
from anchor3r.pose_graph.pose_system import PoseEdges, PoseState, robust_weights, squared_errors
from anchor3r.pose_graph.topology import Topology

_MAX_OPERATIONS = 2e11  # of one factorisation, some ten seconds; the inverse costs a few of them
_MAX_BYTES = 2e9
_HELD = 1e8  # stiffness of the gauge, over that of the frame itself

Float = NDArray[np.float64]


def pose_covariances(
    problem: PoseProblem,
    state: PoseState,
    errors: ErrorModel,
    component: NDArray[np.int64] | None,
    inflation: float = 1.0,
    *,
    terms: BlockTerms = NO_TERMS,
    shared: Float | None = None,
) -> Float | None:
    """(n, 6, 6) of every pose: rotation (camera axes, rad²), then centre (world axes).

    component: (n,) numbers from 0, one for each frame of the gauge, which poses are known relative to; None
    with priors, which are in the world. inflation: how many times larger all variances are than the errors'
    model says. terms: those of the problem's priors. shared: (m, n, b) gradients of the cost by m independent
    errors of one standard deviation that many priors have in common, and that the normal matrix does not know
    of.
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
    if component is None:
        covariance = inflation * cholesky.inverse_diagonal()[:, :6, :6]
    else:
        covariance = inflation * _aligned(cholesky, state.center, component)
    if shared is not None and len(shared):
        moved = cholesky.solve(np.ascontiguousarray(shared.transpose(1, 2, 0)))[:, :6]
        covariance += np.einsum("nxm,nym->nxy", moved, moved)
    # Unknowns turn a camera about world axes.
    axes = np.zeros((n, 6, 6))
    axes[:, :3, :3], axes[:, 3:, 3:] = state.rotation, np.eye(3)
    return np.asarray(axes @ covariance @ np.swapaxes(axes, 1, 2), np.float64)


def without_copies(
    problem: PoseProblem, state: PoseState, errors: ErrorModel, factor: Float, of_ties: float
) -> tuple[PoseProblem, ErrorModel]:
    """The problem as if each error counted once, with the weights that its edges had under the loss.

    factor: (m,) how many times larger variances of edges are than the errors' model says; of_ties: those of
    the ties of scales.
    """
    square, weight = np.empty(len(factor)), np.empty(len(factor))
    squared_errors(problem.edges, state, errors.information, square)
    robust_weights(square, errors.width_sq, weight)
    weight = (weight / factor).reshape(-1, *[1] * (errors.information.ndim - 1))
    ties = problem.ties._replace(weight=problem.ties.weight / of_ties)
    return replace(problem, ties=ties), ErrorModel(errors.information * weight, np.inf)


def shared_inflation(edges: Edges, topology: Topology, state: PoseState) -> float:
    """How many times larger variances are than if the errors of window edges were independent; at least 1.

    state: as windows alone have it, since what loops bend a trajectory by is no disagreement of windows.

    If windows that overlap have one error in common, all they know of the motion is what a chain of the
    longest edges knows, end to end: an edge over k frames of information λ adds k² λ to what is known of a
    rate, and such a chain has n / k of them. What all edges claim to know over that is the number of copies.
    How large the common part of the variance is, residuals tell: by so much they are smaller than matrices
    promise. Edges without a matrix, whose noise is taken from the residuals, tell nothing of it.
    """
    windows = np.flatnonzero((edges.kind == EdgeKind.WINDOW) & (edges.weight > 0) & edges.has_information())
    i, t = topology.i[windows], topology.t[windows]
    num_frames = len(np.unique(np.concatenate([i, t])))
    if len(windows) < max(1.0, LEAST_REDUNDANCY * num_frames):
        return 1.0
    information = edges.information[windows] * edges.weight[windows, None, None]
    square = np.empty(len(windows))
    part = PoseEdges(
        i.astype(np.int32), t.astype(np.int32), edges.rotation[windows], edges.translation[windows]
    )
    squared_errors(part, state, information, square)
    independent = float(np.median(square)) / MEDIAN_CHI_SQ_6 / (1 - num_frames / len(windows))
    span, known = np.abs(t - i).astype(np.float64), np.einsum("mkk->m", information[:, :3, :3])
    order = np.lexsort((-span, edges.group[windows]))
    _, first = np.unique(edges.group[windows][order], return_index=True)
    longest = order[first]
    chain = num_frames * float(np.mean(span[longest] * known[longest]))
    copies = max(1.0, float(span**2 @ known) / max(chain, 1e-300))
    return copies + min(independent, 1.0) * (1 - copies)


def _aligned(cholesky: Cholesky, center: Float, component: NDArray[np.int64]) -> Float:
    """(n, 6, 6) blocks of P Σ Pᵀ on the diagonal; unknowns are in world axes."""
    motions, finder = _similarities(center, component)
    n, block = len(center), cholesky.block_size
    # Components do not share an edge, so that all of them are solved at once.
    padded = np.zeros((n, block, 7))
    padded[:, :6] = finder
    shared = cholesky.solve(padded)[:, :6]  # Σ Aᵀ
    of_motions = np.zeros((int(component.max()) + 1, 7, 7))  # A Σ Aᵀ
    np.add.at(of_motions, component, np.swapaxes(finder, 1, 2) @ shared)
    carried = shared @ np.swapaxes(motions, 1, 2)
    covariance = cholesky.inverse_diagonal()[:, :6, :6] - carried - np.swapaxes(carried, 1, 2)
    return covariance + motions @ of_motions[component] @ np.swapaxes(motions, 1, 2)


def _similarities(center: Float, component: NDArray[np.int64]) -> tuple[Float, Float]:
    """G (n, 6, 7), what turn, shift and stretch of a component do to its frames, and Aᵀ (n, 6, 7).

    They are about the middle of the component, where they do not depend on one another: `align_poses` to
    first order.
    """
    count = np.bincount(component).astype(np.float64)
    middle = np.stack([np.bincount(component, axis) for axis in center.T], 1) / count[:, None]
    arm = center - middle[component]
    square = np.maximum(np.bincount(component, np.einsum("nk,nk->n", arm, arm)), 1e-300)
    motions = np.zeros((len(center), 6, 7))
    motions[:, :3, :3], motions[:, 3:, :3] = -np.eye(3), -hat(arm)
    motions[:, 3:, 3:6], motions[:, 3:, 6] = np.eye(3), arm
    finder = motions.copy()
    finder[:, 3:, :3] *= (count / square)[component, None, None]  # lengths in those of the path
    normal = np.zeros((len(count), 3, 3))
    np.add.at(normal, component, np.swapaxes(motions[:, :, :3], 1, 2) @ finder[:, :, :3])
    finder[:, :, :3] = finder[:, :, :3] @ np.linalg.inv(normal)[component]
    finder[:, 3:, 3:6] /= count[component, None, None]
    finder[:, 3:, 6] /= square[component, None]
    return motions, finder
