"""Offline motion averaging in two steps: all rotations first, then all centres.

`average_motion` is our decoupled solver: it narrows the robust kernel step by step, weighs edges with their
confidence and finds the exact least absolute deviations. `average_motion_as_published` is Algorithm 2 of the
paper to the letter, as a baseline to compare with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3
from anchor3r.pose_graph.averaging.positions import PositionConfig, average_positions
from anchor3r.pose_graph.averaging.rotations import RotationConfig, average_rotations
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.pose_graph.report import Report, Status
from anchor3r.pose_graph.topology import Topology, topology_of

_ROTATIONS = RotationConfig()
_POSITIONS = PositionConfig()


def average_motion(
    edges: Edges,
    initial: SE3,
    rotations: RotationConfig = _ROTATIONS,
    positions: PositionConfig = _POSITIONS,
    *,
    topology: Topology | None = None,
) -> tuple[SE3, Report]:
    """Poses (F,) camera_from_world of the topology's frames, from `initial`.

    The report's cost and gap are those of the centres; its details hold both reports.
    """
    topology = topology or topology_of(edges)
    rotation, turned = average_rotations(edges, initial.rotation, rotations, topology=topology)
    center, moved = average_positions(edges, rotation, initial.center(), positions, topology=topology)
    report = Report(
        status=moved.status if turned.status in (Status.CONVERGED, Status.TRIVIAL) else turned.status,
        iterations=turned.iterations + moved.iterations, cost=moved.cost, initial_cost=moved.initial_cost,
        gap=moved.gap, num_frames=moved.num_frames, num_edges=len(edges),
        num_components=moved.num_components, cpu_seconds=turned.cpu_seconds + moved.cpu_seconds,
        details={"rotations": turned.as_dict(), "positions": moved.as_dict()},
    )  # fmt: skip
    return SE3.from_center(rotation, center), report


@dataclass(frozen=True, kw_only=True)
class PublishedConfig:
    """The numbers of Algorithm 2. The paper gives the kernel width alone; the others are common choices."""

    sigma_deg: float = 5.0
    """Width of the Geman–McClure kernel, the same in all iterations (the paper's σ)."""
    tolerance_deg: float = 5e-3
    """Rotations have converged when the average update is smaller than this (ε_rot)."""
    max_rotation_iterations: int = 200
    """Linear systems of the rotations (K_rot)."""
    gap: float = 1e-4
    """ADMM stops when (cost - optimum) / cost is certified to be at most this."""
    max_position_iterations: int = 1000
    """Iterations of ADMM; all of them share one Cholesky factorisation."""


_PUBLISHED = PublishedConfig()


def average_motion_as_published(
    edges: Edges, initial: SE3, config: PublishedConfig = _PUBLISHED, *, topology: Topology | None = None
) -> tuple[SE3, Report]:
    """Algorithm 2 of the paper: poses (F,) camera_from_world of the topology's frames, from `initial`.

    IRLS of fixed width, then least absolute deviations by ADMM. Every edge counts the same, loops are not
    verified, there is one scale. The gauge is frame W - 1 of each component, whose camera axes are those of
    the sum of absolute values; afterwards each component's first frame is put where `initial` has it.
    """
    topology = topology or topology_of(edges)
    first = topology.gauge
    topology = replace(topology, gauge=_last_of_first_window(edges, topology))
    alike = replace(edges, weight=(edges.weight > 0).astype(np.float64))
    gauge_from_world = initial[topology.gauge[topology.component]]
    poses, report = average_motion(
        alike,
        initial @ gauge_from_world.inverse(),
        RotationConfig(
            sigmas_deg=(config.sigma_deg,),
            tolerance_deg=config.tolerance_deg,
            max_iterations=config.max_rotation_iterations,
        ),
        PositionConfig(method="admm", gap=config.gap, max_iterations=config.max_position_iterations),
        topology=topology,
    )
    return poses @ (poses[first].inverse() @ initial[first])[topology.component], report


def _last_of_first_window(edges: Edges, topology: Topology) -> NDArray[np.int64]:
    """(c,) row of frame W - 1 of each component, or of its last frame if it has fewer.

    W is the size of the largest window; a graph without windows has its gauge in its first frame.
    """
    _, count = np.unique(edges.group[edges.kind == EdgeKind.WINDOW], return_counts=True)
    rows = [np.flatnonzero(topology.component == c) for c in range(topology.num_components)]
    last = int(count.max(initial=0))
    return np.array([row[min(last, len(row) - 1)] for row in rows], np.int64)
