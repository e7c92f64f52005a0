"""The motion graph from afar: one node every few frames, joined by odometry and by loop events.

Odometry is rigid enough between neighbouring nodes that a loop event may be hung onto the nearest ones. The
graph is small, so that loops of any length are closed on it from scratch: chordal start, then Gauss–Newton,
in similarities where the scale is free. The frames between nodes follow. n frames, c nodes, q neighbours,
k events.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, so3_exp, so3_log
from anchor3r.pose_graph.averaging.chordal import chordal_poses
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.gauss_newton import ErrorModel, PoseProblem, minimise
from anchor3r.pose_graph.linalg.step_solvers import NO_TIES, DirectSolver, ScaleTies, Structure
from anchor3r.pose_graph.pose_system import PoseEdges, PoseState
from anchor3r.pose_graph.topology import Topology, components_of

Float = NDArray[np.floating[Any]]
Int = NDArray[np.int64]

_MAX_ITERATIONS, _RELATIVE_TOLERANCE = 15, 1e-2


class Sigmas(NamedTuple):
    """Standard deviations about and along each axis, and of the log scale."""

    rotation_rad: Float
    distance: Float
    log_scale: Float

    def select(self, which: NDArray[Any]) -> Sigmas:
        return Sigmas(*(sigma[which] for sigma in self))


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


class Corrections(NamedTuple):
    """Similarities x -> exp(log_scale) rotation (x - source) + target of one world; k of them."""

    rotation: Float
    """(k, 3, 3)"""
    source: Float
    """(k, 3)"""
    target: Float
    """(k, 3)"""
    log_scale: Float
    """(k,)"""

    def apply(self, points: Float) -> Float:
        """Points (k, 3), one by each."""
        turned = np.einsum("kij,kj->ki", self.rotation, points - self.source)
        return np.exp(self.log_scale)[:, None] * turned + self.target

    def inverse(self) -> Corrections:
        return Corrections(np.swapaxes(self.rotation, 1, 2), self.target, self.source, -self.log_scale)

    def select(self, which: NDArray[Any]) -> Corrections:
        return Corrections(*(column[which] for column in self))


class Claims(NamedTuple):
    """What k loop events claim: frame `late`, seen from around frame `early`, is corrected so."""

    early: Int
    late: Int
    correction: Corrections
    """of the odometry around the late frame, to agree with the odometry around the early one"""


class ClosedOdometry:
    """Odometry after loops have been closed: frames between two nodes of a track move with both."""

    def __init__(self, coarse: CoarseGraph, odometry: SE3, nodes: PoseState) -> None:
        """nodes: poses (c,) and how much larger everything around each has become."""
        self._coarse, self.odometry, self.nodes = coarse, odometry, nodes
        self._following = np.arange(len(coarse.row))
        self._following[coarse.earlier] = coarse.later
        self._center = odometry.center()
        # of the world, around each node
        self._turn = np.swapaxes(nodes.rotation, 1, 2) @ odometry.rotation[coarse.row]

    @staticmethod
    def unmoved(coarse: CoarseGraph, odometry: SE3) -> ClosedOdometry:
        """With no loop closed."""
        return ClosedOdometry(coarse, odometry, PoseState.of(odometry[coarse.row]))

    def corrections(self, rows: Int) -> Corrections:
        """What the odometry around frames (k,) has been moved by: more with the nearer of their two nodes."""
        coarse, nodes = self._coarse, self.nodes
        here = coarse.node[rows]
        there = self._following[here]
        span = np.maximum(coarse.row[there] - coarse.row[here], 1)
        part = np.clip((rows - coarse.row[here]) / span, 0, 1)
        center = self._center[rows]
        first, second = (
            np.exp(nodes.log_scale[node])[:, None]
            * (self._turn[node] @ (center - self._center[coarse.row[node]])[..., None])[..., 0]
            + nodes.center[node]
            for node in (here, there)
        )
        turn = self._turn[here]
        between = so3_exp(part[:, None] * so3_log(self._turn[there] @ np.swapaxes(turn, 1, 2)))
        log_scale = (1 - part) * nodes.log_scale[here] + part * nodes.log_scale[there]
        moved = (1 - part)[:, None] * first + part[:, None] * second
        return Corrections(between @ turn, center, moved, log_scale)

    def frames(self) -> tuple[SE3, Float]:
        """Poses camera_from_world (n,) of all frames, and the log of how much larger each has become."""
        moved = self.corrections(np.arange(len(self.odometry)))
        rotation = self.odometry.rotation @ np.swapaxes(moved.rotation, 1, 2)
        return SE3.from_center(rotation, moved.target), moved.log_scale


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
    coarse: CoarseGraph,
    odometry: SE3,
    claims: Claims,
    step_sigmas: Sigmas,
    claim_sigmas: Sigmas,
    *,
    start: PoseState | None = None,
    is_free: bool = False,
) -> ClosedOdometry:
    """All frames where they agree best with odometry (sigmas of q steps) and claims (sigmas of k).

    start: nodes (c,) to begin with; None for a chordal start, which finds any loop however far it is open.
    """
    if len(claims.early) == 0:
        return ClosedOdometry.unmoved(coarse, odometry)
    at_nodes = odometry[coarse.row]
    node_early, node_late = coarse.node[claims.early], coarse.node[claims.late]
    # The late node, moved along with the late frame.
    center = claims.correction.apply(at_nodes.center()[node_late])
    rotation = at_nodes.rotation[node_late] @ np.swapaxes(claims.correction.rotation, 1, 2)
    loops = SE3.from_center(rotation, center) @ at_nodes[node_early].inverse()
    steps = at_nodes[coarse.later] @ at_nodes[coarse.earlier].inverse()
    i, t = np.concatenate([coarse.later, node_late]), np.concatenate([coarse.earlier, node_early])
    keep = i != t
    rotation_sigma, distance_sigma, scale_sigma = (
        np.concatenate(pair)[keep] for pair in zip(step_sigmas, claim_sigmas, strict=True)
    )
    edges = PoseEdges(
        i[keep], t[keep],
        np.concatenate([steps.rotation, loops.rotation])[keep],
        np.concatenate([steps.translation, loops.translation])[keep],
    )  # fmt: skip
    ties = NO_TIES
    if is_free:
        grown = np.concatenate([np.zeros(len(coarse.later)), claims.correction.log_scale])[keep]
        ties = ScaleTies(
            edges.i.astype(np.int64),
            edges.t.astype(np.int64),
            grown.astype(np.float64),
            scale_sigma.astype(np.float64) ** -2.0,
        )
    information = np.stack([rotation_sigma**-2.0, distance_sigma**-2.0], -1).astype(np.float64)
    if start is None:
        start = _chordal_start(edges, information, at_nodes)
    return ClosedOdometry(coarse, odometry, _solve(edges, ties, information, start, is_free))


def _chordal_start(edges: PoseEdges, information: NDArray[np.float64], at_nodes: SE3) -> PoseState:
    """The first node of each component where odometry has it."""
    topology = _topology(edges, len(at_nodes))
    poses = chordal_poses(topology, edges.rotation, edges.translation, information[:, 0], information[:, 1])
    gauge = topology.gauge[topology.component]
    return PoseState.of(poses @ poses[gauge].inverse() @ at_nodes[gauge])


def _topology(edges: PoseEdges, num_nodes: int) -> Topology:
    i, t = edges.i.astype(np.int64), edges.t.astype(np.int64)
    return Topology(np.arange(num_nodes), i, t, *components_of(num_nodes, i, t))


def _solve(
    edges: PoseEdges, ties: ScaleTies, information: NDArray[np.float64], start: PoseState, is_free: bool
) -> PoseState:
    """Poses and scales of the nodes, the first of each component where the start has it."""
    num_nodes, used = len(start.center), np.ones(len(edges.i), bool)
    state, _ = minimise(
        PoseProblem(edges, used, ties, _topology(edges, num_nodes).gauge, is_free), start,
        ErrorModel(information, np.inf), lambda _: None,
        DirectSolver(Structure(edges, ties, used, num_nodes, 7 if is_free else 6), keeps_factor=True),
        max_iterations=_MAX_ITERATIONS, relative_tolerance=_RELATIVE_TOLERANCE,
    )  # fmt: skip
    return state
