"""The motion graph from afar: one node every few frames, joined by odometry and by loop events.

Odometry is rigid enough between neighbouring nodes that a loop event may be hung onto the nearest
ones. The graph is small, so that loops of any length are closed on it from scratch: chordal start, then
robust Gauss–Newton. The frames between nodes follow. n frames, c nodes, q neighbours, k events.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3
from anchor3r.pose_graph.averaging.chordal import chordal_poses
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.gauss_newton import ErrorModel, PoseProblem, minimise
from anchor3r.pose_graph.linalg.step_solvers import NO_TIES, DirectSolver, Structure
from anchor3r.pose_graph.noise import MEDIAN_CHI_SQ_6
from anchor3r.pose_graph.pose_system import PoseEdges, PoseState, squared_errors
from anchor3r.pose_graph.topology import Topology, components_of

Float = NDArray[np.float64]
Int = NDArray[np.int64]

_WIDTH_SQ = 49.0  # of the Geman–McClure loss
_MAX_ITERATIONS, _RELATIVE_TOLERANCE = 15, 1e-3


class Sigmas(NamedTuple):
    """Standard deviations about and along each axis."""

    rotation_rad: NDArray[np.floating]
    distance: NDArray[np.floating]


class CoarseGraph(NamedTuple):
    """Which frames the nodes stand for, and which nodes odometry joins."""

    node: Int
    """(n,) node of each frame"""
    row: Int
    """(c,) frame that each node stands at, its first"""
    earlier: Int
    """(q,) nodes that odometry joins: each and the next one of its track"""
    later: Int
    """(q,)"""


class Claims(NamedTuple):
    """What k loop events claim: seen from frame `match`, frame `anchor` is at `pose` (odometry's world)."""

    match: Int
    anchor: Int
    pose: SE3


def make_coarse_graph(edges: Edges, topology: Topology, coarse_frames: int) -> CoarseGraph:
    """A node at every coarse_frames-th frame and wherever a track begins."""
    n = len(topology.frames)
    window = (edges.kind == EdgeKind.WINDOW) & (edges.weight > 0)
    track, _ = components_of(n, topology.i[window], topology.t[window])
    begins = np.arange(n) % coarse_frames == 0
    begins[1:] |= track[1:] != track[:-1]
    row = np.flatnonzero(begins)
    by_track = np.argsort(track[row], kind="stable")
    same = track[row[by_track[1:]]] == track[row[by_track[:-1]]]
    return CoarseGraph(np.cumsum(begins) - 1, row, by_track[:-1][same], by_track[1:][same])


def close_loops(
    coarse: CoarseGraph, odometry: SE3, claims: Claims, odometry_sigmas: Sigmas, claim_sigmas: Sigmas
) -> SE3:
    """Poses (n,) of all frames that agree with odometry (sigmas of q steps) and claims (sigmas of k) best."""
    if len(claims.match) == 0:
        return odometry
    at_nodes = odometry[coarse.row]
    steps = at_nodes[coarse.earlier] @ at_nodes[coarse.later].inverse()
    node_t = coarse.node[claims.anchor]
    claimed = at_nodes[node_t] @ odometry[claims.anchor].inverse() @ claims.pose
    loops = at_nodes[coarse.node[claims.match]] @ claimed.inverse()
    i = np.concatenate([coarse.earlier, coarse.node[claims.match]])
    t = np.concatenate([coarse.later, node_t])
    sigmas = [np.concatenate(pair) for pair in zip(odometry_sigmas, claim_sigmas, strict=True)]
    keep = i != t
    kind = np.repeat([EdgeKind.WINDOW, EdgeKind.LOOP], [len(coarse.earlier), len(node_t)])
    information = np.stack([sigma**-2.0 for sigma in sigmas], -1)[keep].astype(np.float64)
    edges = PoseEdges(
        i[keep], t[keep],
        np.concatenate([steps.rotation, loops.rotation])[keep],
        np.concatenate([steps.translation, loops.translation])[keep],
    )  # fmt: skip
    solved = _solve(edges, information, kind[keep] == EdgeKind.LOOP, at_nodes)
    return _follow(coarse, odometry, solved)


def _solve(edges: PoseEdges, information: Float, is_loop: NDArray[np.bool_], start: SE3) -> SE3:
    """Poses of the nodes."""
    i, t = edges.i.astype(np.int64), edges.t.astype(np.int64)
    topology = Topology(np.arange(len(start)), i, t, *components_of(len(start), i, t))
    chordal = chordal_poses(topology, edges.rotation, edges.translation, information[:, 0], information[:, 1])
    state = PoseState.of(chordal)

    inflations = [np.inf]

    def reestimate(state: PoseState) -> ErrorModel | None:
        """Loops count for less while they are still far from closed."""
        square = np.empty(len(edges.i))
        squared_errors(edges, state, information, square)
        inflation = max(1.0, float(np.median(square[is_loop])) / MEDIAN_CHI_SQ_6) if is_loop.any() else 1.0
        if abs(inflation - inflations[-1]) <= 0.1 * inflations[-1] < np.inf:
            return None
        inflations.append(inflation)
        return ErrorModel(information * np.where(is_loop, 1 / inflation, 1.0)[:, None], _WIDTH_SQ)

    errors = reestimate(state)
    assert errors is not None
    used = np.ones(len(edges.i), bool)
    state, _ = minimise(
        PoseProblem(edges, used, NO_TIES, topology.gauge, False), state, errors, reestimate,
        DirectSolver(Structure(edges, NO_TIES, used, len(start), 6)),
        max_iterations=_MAX_ITERATIONS, relative_tolerance=_RELATIVE_TOLERANCE,
    )  # fmt: skip
    solved = state.poses()
    # The first node of each component is back where odometry has it.
    gauge = topology.gauge[topology.component]
    return solved @ solved[gauge].inverse() @ start[gauge]


def _follow(coarse: CoarseGraph, odometry: SE3, solved: SE3) -> SE3:
    """Frames between two nodes of a track move with both, more with the nearer one."""
    n = len(odometry)
    following = np.arange(len(coarse.row))
    following[coarse.earlier] = coarse.later
    here, there = coarse.node, following[coarse.node]
    span = np.maximum(coarse.row[there] - coarse.row[here], 1)
    part = np.clip((np.arange(n) - coarse.row[here]) / span, 0, 1)
    old = odometry[coarse.row]
    first = odometry @ (old[here].inverse() @ solved[here])
    second = odometry @ (old[there].inverse() @ solved[there])
    return first @ SE3.exp(part[:, None] * (first.inverse() @ second).log())
