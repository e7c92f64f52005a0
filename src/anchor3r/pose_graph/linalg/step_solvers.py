"""Two ways to a Gauss–Newton step on a motion graph: exactly, and by conjugate gradients on two levels.

Factorising the whole matrix in a fill-reducing order is best for graphs whose factor stays sparse: small
ones, grids, spheres, and drives whose windows reach back over keyframes. On a route with many revisits every
pass of a street costs a window's worth of frames in every separator, so the exact factor grows out of hand
(hundreds of megabytes at 20 thousand frames). There the step is found by conjugate gradients with two factors
that stay small: the chain of window edges, a band matrix that settles everything local, and the graph of
nodes, each a window's length of frames that move as one body, which settles everything far.
`make_step_solver` counts what both would cost and takes the cheaper one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpbtrf, dpbtrs

from anchor3r.geometry import hat
from anchor3r.kernels import kernel
from anchor3r.pose_graph.linalg.sparse import Analysis, Cholesky, analyse
from anchor3r.pose_graph.pose_system import (
    Float,
    Index,
    Nodes,
    PoseEdges,
    PoseState,
    apply_matrix,
    assemble,
    assemble_band,
)

_HUGE = 500_000  # frames
_MAX_REACH = 32  # frames that an edge of the chain spans at most; longer ones are left to the nodes
_IN_BAND = 0.6  # part of the edges that the chain must hold, or conjugate gradients take long
# Floating-point operations a second on one thread, as measured on a server's core; only their ratios matter.
# Dense fronts are bound by arithmetic, narrow bands, triangular solves and passes over the edges by memory.
_FRONT_RATE, _BAND_RATE, _MEMORY_RATE = 2e10, 5e9, 2e9
_OPERATIONS_PER_EDGE = 400  # of one product with H
_MAX_FACTOR_BYTES = 4e9
_STALE_FACTOR = 3.0  # a preconditioner that takes so many times its first iterations is made anew


class ScaleTies(NamedTuple):
    """Measured differences of log scales, log_scale[a] - log_scale[b] = value; q of them."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    value: NDArray[np.float64]
    weight: NDArray[np.float64]
    """(q,) inverse variance"""


NO_TIES = ScaleTies(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


class BlockTerms(NamedTuple):
    """Blocks that something other than edges adds to H; q of them."""

    a: NDArray[np.int64]
    """(q,) row"""
    b: NDArray[np.int64]
    """(q,) row, >= a; of a pair only H[a, b] is here, H[b, a] is its transpose"""
    block: Float
    """(q, 7, 7)"""


NO_TERMS = BlockTerms(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 7, 7)))


class LinearSystem(NamedTuple):
    """The quadratic model at a state: H is the edges in their metric, ties, terms, gauge and damping."""

    edges: PoseEdges
    state: PoseState
    metric: Float
    gradient: Float
    """(n, b)"""
    ties: ScaleTies
    gauge: Index
    """rows that must not move"""
    damping: float
    """times the diagonal of H is added to H"""
    terms: BlockTerms = NO_TERMS


class Structure(NamedTuple):
    """What a step solver is made for."""

    edges: PoseEdges
    ties: ScaleTies
    used: NDArray[np.bool_]
    """(m,) edges that will ever have a metric other than 0"""
    num_frames: int
    block: int
    """6 unknowns a frame, or 7 with scales free"""
    terms: BlockTerms = NO_TERMS
    """whose rows are those of every system to come"""

    def nodes(self, node: Index) -> NodeStructure:
        """The structure of the block matrix of some nodes, by the node (n,) of each frame."""
        pairs = [
            (node[self.edges.i], node[self.edges.t], self.used),
            (node[self.ties.a], node[self.ties.b], np.full(len(self.ties.a), self.block == 7)),
            (node[self.terms.a], node[self.terms.b], np.ones(len(self.terms.a), bool)),
        ]
        paired = [used & (i != t) for i, t, used in pairs]
        analysis = analyse(
            int(node[-1]) + 1,
            np.concatenate([i[where] for (i, _, _), where in zip(pairs, paired, strict=True)]),
            np.concatenate([t[where] for (_, t, _), where in zip(pairs, paired, strict=True)]),
        )
        ends = np.cumsum([np.count_nonzero(where) for where in paired])
        slots = np.split(analysis.slot[: ends[-1]], ends[:-1])
        return NodeStructure(
            analysis, *(_scattered(s, where) for s, where in zip(slots, paired, strict=True))
        )


class NodeStructure(NamedTuple):
    """Of the block matrix of some nodes."""

    analysis: Analysis
    slot: NDArray[np.int32]
    """(m,) pair of each edge, -1 if it has none"""
    tie_slot: NDArray[np.int32]
    """(q,) likewise of the ties"""
    term_slot: NDArray[np.int32]
    """(q,) likewise of the terms"""


def make_step_solver(
    structure: Structure,
    choice: Literal["auto", "direct", "iterative"],
    *,
    tolerance: float,
    max_iterations: int,
    expected_iterations: int,
) -> DirectSolver | TwoLevelSolver:
    """The solver that is expected to find a step sooner, or the one that is asked for.

    tolerance, max_iterations, expected_iterations: of conjugate gradients.
    """
    span = np.abs(structure.edges.i - structure.edges.t)[structure.used]
    in_chain = span[span <= _MAX_REACH]
    reach = int(np.quantile(in_chain, 0.9)) if len(in_chain) else 1
    n, b, width = structure.num_frames, structure.block, (reach + 1) * structure.block
    is_chain = np.count_nonzero(span <= reach) >= _IN_BAND * len(span)
    # With more long edges than frames on a chain the factor is known to fill up, without analysing it.
    is_revisited = is_chain and np.count_nonzero(span > _MAX_REACH) > n
    if choice == "direct" or (choice == "auto" and not is_revisited):
        frames = structure.nodes(np.arange(n))
        operations, size = frames.analysis.factor_cost(b)
        per_iteration = (4 * n * b * width + _OPERATIONS_PER_EDGE * len(span)) / _MEMORY_RATE
        iterative = n * b * width**2 / _BAND_RATE + expected_iterations * per_iteration
        is_cheaper = (operations / _FRONT_RATE <= iterative or not is_chain) and 8 * size <= _MAX_FACTOR_BYTES
        if choice == "direct" or is_cheaper:
            return DirectSolver(structure, frames)
    return TwoLevelSolver(structure, reach=reach, tolerance=tolerance, max_iterations=max_iterations)


class DirectSolver:
    """Factorises H."""

    def __init__(
        self, structure: Structure, frames: NodeStructure | None = None, *, keeps_factor: bool = False
    ) -> None:
        """frames: the structure with every frame a node, if it is at hand already.

        keeps_factor: solve with the factor of the first H until damping asks for another: steps that are a
        little shorter, of a matrix that hardly changes, for the price of a substitution.
        """
        self._keeps_factor, self._made_for = keeps_factor, np.nan
        node = np.arange(structure.num_frames)
        self._frames = Nodes(node, np.zeros((structure.num_frames, 3)))
        self._matrix = _NodeMatrix(frames or structure.nodes(node), structure.block)

    def solve(self, system: LinearSystem) -> tuple[Float | None, int]:
        """The step (n, b), None if H is not positive definite; and the number of systems solved, 1."""
        if not (self._keeps_factor and system.damping == self._made_for):
            self._made_for = system.damping
            if not self._matrix.factorise(system, self._frames):
                self._made_for = np.nan
                return None, 1
        return -self._matrix.cholesky.solve(system.gradient[:, :, None])[:, :, 0], 1


def factorised(system: LinearSystem, frames: NodeStructure, *, held: float) -> Cholesky | None:
    """The factor of H with every frame a node, the gauge `held` so stiffly; None if it is not definite."""
    n, block = system.gradient.shape
    matrix = _NodeMatrix(frames, block)
    is_definite = matrix.factorise(system, Nodes(np.arange(n), np.zeros((n, 3))), held)
    return matrix.cholesky if is_definite else None


class TwoLevelSolver:
    """Conjugate gradients on H, preconditioned by the chain and the nodes.

    The preconditioner only has to resemble H, so one that was made for an earlier state serves as long as it
    does not take many more iterations.
    """

    def __init__(self, structure: Structure, *, reach: int, tolerance: float, max_iterations: int) -> None:
        """reach: frames that an edge of the chain spans at most.

        tolerance: of the residual's norm in the preconditioner's metric, relative to the gradient's.
        """
        self._tolerance, self._max_iterations = tolerance, max_iterations
        num_frames, block = structure.num_frames, structure.block
        # Half of the band takes about as many iterations as all of it, and a fraction of the time and memory.
        # Larger nodes on huge graphs: a few more iterations, a factor that still fits.
        self._reach = max(1, reach // 2)
        node = np.arange(num_frames) // ((reach + 1) * (1 + num_frames // _HUGE))
        self._origin = np.searchsorted(node, node)
        self._nodes = Nodes(node, np.zeros((num_frames, 3)))
        self._matrix = _NodeMatrix(structure.nodes(node), block)
        self._band = np.empty((num_frames * block, (self._reach + 1) * block))  # column order, lower triangle
        self._stiffness = np.empty((num_frames, block))
        self._made_for = np.nan  # the damping it was made with
        self._first_iterations = 0

    def solve(self, system: LinearSystem) -> tuple[Float | None, int]:
        """The step (n, b), None if H is not positive definite; and the number of inner iterations."""
        is_fresh = system.damping != self._made_for
        if is_fresh and not self._prepare(system):
            return None, 0
        step, iterations = self._conjugate_gradients(system)
        if is_fresh:
            self._first_iterations = iterations
        elif step is None or iterations > _STALE_FACTOR * self._first_iterations:
            self._made_for = np.nan
        return step, iterations

    def _prepare(self, system: LinearSystem) -> bool:
        """Makes the preconditioner; False if the matrix is not positive definite."""
        center = system.state.center
        self._nodes = Nodes(self._nodes.node, center - center[self._origin])
        held = system._replace(gauge=self._nodes.node[system.gauge])
        is_definite = self._matrix.factorise(held, self._nodes)
        self._band[:] = 0
        assemble_band(system.edges, system.state, system.metric, self._reach, self._band)
        if system.gradient.shape[1] == 7:
            _add_ties_to_band(system.ties, self._reach, self._band)
            _add_terms_to_band(system.terms, self._reach, self._band)
        self._stiffness = _stiffness(self._band[:, 0].reshape(system.gradient.shape), system)
        self._band[:, 0] += self._stiffness.ravel()
        _, info = dpbtrf(self._band.T, lower=1, overwrite_ab=1)
        self._made_for = system.damping if is_definite and info == 0 else np.nan
        return is_definite and info == 0

    def _conjugate_gradients(self, system: LinearSystem) -> tuple[Float | None, int]:
        residual = -system.gradient
        x = np.zeros_like(residual)
        direction = self._preconditioned(residual)
        product = float(np.vdot(residual, direction))
        target = product * self._tolerance**2
        for iteration in range(self._max_iterations):
            if product <= target:
                return x, iteration
            image = self._stiffness * direction
            _add_product(system, direction, image)
            curvature = float(np.vdot(direction, image))
            if not curvature > 0:
                return None, iteration
            x += product / curvature * direction
            residual -= product / curvature * image
            z = self._preconditioned(residual)
            previous, product = product, float(np.vdot(residual, z))
            direction *= product / previous
            direction += z
        return x, self._max_iterations

    def _preconditioned(self, residual: Float) -> Float:
        """Additive: the chain's answer and the nodes' answer."""
        local, _ = dpbtrs(self._band.T, residual.ravel(), lower=1)
        out = local.reshape(residual.shape)
        coarse = np.zeros((int(self._nodes.node[-1]) + 1, residual.shape[1]))
        _restrict(self._nodes, residual, coarse)
        _prolong(self._nodes, self._matrix.cholesky.solve(coarse[:, :, None])[:, :, 0], out)
        return out


class _NodeMatrix:
    """The block matrix of some nodes: how to fill it, and its factor."""

    def __init__(self, structure: NodeStructure, block: int) -> None:
        self._slot, self._tie_slot, self._term_slot = structure.slot, structure.tie_slot, structure.term_slot
        self.cholesky = Cholesky(structure.analysis, block)

    def factorise(self, system: LinearSystem, nodes: Nodes, held: float = 1.0) -> bool:
        """Whether H, as the nodes see it, is positive definite. The system's gauge names nodes here.

        held: stiffness of the gauge, over that of its nodes themselves.
        """
        analysis, b = self.cholesky.analysis, self.cholesky.block_size
        diagonal, pairs = np.zeros((len(analysis.order), b, b)), np.zeros((analysis.num_pairs, b, b))
        assemble(system.edges, system.state, system.metric, nodes, self._slot, diagonal, pairs)
        ties, tied = system.ties, self._tie_slot >= 0
        if tied.any():
            for end in (ties.a, ties.b):
                np.add.at(diagonal[:, 6, 6], nodes.node[end[tied]], ties.weight[tied])
            np.add.at(pairs[:, 6, 6], self._tie_slot[tied], -ties.weight[tied])
        if len(system.terms.a):
            _add_terms(system.terms, nodes, self._term_slot, diagonal, pairs)
        scalars = np.einsum("nkk->nk", diagonal)  # a view
        scalars += _stiffness(scalars, system, held)
        return self.cholesky.factorise(diagonal, pairs)


def _scattered(values: NDArray[np.int64], where: NDArray[np.bool_]) -> NDArray[np.int32]:
    """-1 except where told."""
    out = np.full(len(where), -1, np.int32)
    out[where] = values
    return out


def _stiffness(scalars: Float, system: LinearSystem, held: float = 1.0) -> Float:
    """(n, b) what damping and gauge add to the diagonal's scalars (n, b).

    The gradient has no part along motions of all frames alike, which cost nothing, so any stiffness of the
    gauge rows holds them where they are. A frame whose edges have all lost their weight is held as well.
    """
    factor = np.full((len(scalars), 1), system.damping)
    factor[system.gauge] += held
    return factor * scalars + np.where(scalars > 0, 0.0, 1.0)


def _add_product(system: LinearSystem, x: Float, out: Float) -> None:
    """out += H x, without what damping and gauge add"""
    apply_matrix(system.edges, system.state, system.metric, x, out)
    if x.shape[1] == 7:
        ties = system.ties
        pull = ties.weight * (x[ties.a, 6] - x[ties.b, 6])
        out[:, 6] += np.bincount(ties.a, pull, len(x)) - np.bincount(ties.b, pull, len(x))
        _add_terms_product(system.terms, x, out)


@kernel
def _add_terms_product(terms: BlockTerms, x: Float, out: Float) -> None:
    for q in range(len(terms.a)):
        a, b, block = terms.a[q], terms.b[q], terms.block[q]
        for row in range(7):
            for column in range(7):
                out[a, row] += block[row, column] * x[b, column]
                if a != b:
                    out[b, column] += block[row, column] * x[a, row]


def _add_terms(
    terms: BlockTerms, nodes: Nodes, slot: NDArray[np.int32], diagonal: Float, pairs: Float
) -> None:
    """Adds the terms to the block matrix of the nodes, whose frames move with them."""
    moves_a, moves_b = (_moved_with_node(nodes.offset[rows]) for rows in (terms.a, terms.b))
    block = np.swapaxes(moves_a, 1, 2) @ terms.block @ moves_b
    node_a, is_pair = nodes.node[terms.a], slot >= 0
    np.add.at(pairs, slot[is_pair], block[is_pair])
    np.add.at(diagonal, node_a[~is_pair], block[~is_pair])
    inside = ~is_pair & (terms.a != terms.b)  # of two frames of one node
    np.add.at(diagonal, node_a[inside], np.swapaxes(block[inside], 1, 2))


def _moved_with_node(offset: Float) -> Float:
    """(q, 7, 7) how frames at offsets (q, 3) from their node's origin move with the node."""
    out = np.tile(np.eye(7), (len(offset), 1, 1))
    out[:, 3:6, :3] = hat(offset)
    out[:, 3:6, 6] = offset
    return out


@kernel
def _add_terms_to_band(terms: BlockTerms, reach: int, band: Float) -> None:
    for k in range(len(terms.a)):
        low, shift = terms.a[k] * 7, (terms.b[k] - terms.a[k]) * 7
        if shift <= 7 * reach:
            for x in range(7):
                for y in range(0 if shift else x, 7):
                    band[low + x, shift + y - x] += terms.block[k, x, y]


@kernel
def _add_ties_to_band(ties: ScaleTies, reach: int, band: Float) -> None:
    for k in range(len(ties.a)):
        low, high = min(ties.a[k], ties.b[k]), max(ties.a[k], ties.b[k])
        band[7 * low + 6, 0] += ties.weight[k]
        band[7 * high + 6, 0] += ties.weight[k]
        if high - low <= reach:
            band[7 * low + 6, 7 * (high - low)] -= ties.weight[k]


@kernel
def _restrict(nodes: Nodes, fine: Float, coarse: Float) -> None:
    """coarse += Pᵀ fine, where P moves every frame with its node."""
    for n in range(len(fine)):
        out, o, x = coarse[nodes.node[n]], nodes.offset[n], fine[n]
        out[0] += x[0] - o[1] * x[5] + o[2] * x[4]
        out[1] += x[1] - o[2] * x[3] + o[0] * x[5]
        out[2] += x[2] - o[0] * x[4] + o[1] * x[3]
        for k in range(3):
            out[3 + k] += x[3 + k]
        if len(x) == 7:
            out[6] += x[6] + o[0] * x[3] + o[1] * x[4] + o[2] * x[5]


@kernel
def _prolong(nodes: Nodes, coarse: Float, fine: Float) -> None:
    """fine += P coarse"""
    for n in range(len(fine)):
        out, o, x = fine[n], nodes.offset[n], coarse[nodes.node[n]]
        s = x[6] if len(x) == 7 else 0.0
        out[3] += x[3] - x[1] * o[2] + x[2] * o[1] + s * o[0]
        out[4] += x[4] - x[2] * o[0] + x[0] * o[2] + s * o[1]
        out[5] += x[5] - x[0] * o[1] + x[1] * o[0] + s * o[2]
        for k in range(3):
            out[k] += x[k]
        if len(x) == 7:
            out[6] += s
