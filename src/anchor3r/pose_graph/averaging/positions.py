"""Offline position averaging: camera centres from all edges' translations, once rotations are known.

Edge (i, t) asks for c_i - c_t + v = 0 with v = R_iᵀ t̂. The sum of absolute deviations is minimised, so wrong
edges are outvoted instead of averaged in; each world axis is a problem of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Array
from anchor3r.pose_graph.edges import Edges
from anchor3r.pose_graph.linalg.laplacian import Laplacian
from anchor3r.pose_graph.linalg.least_absolute import CertifiedSolution, admm, interior_point
from anchor3r.pose_graph.report import Report, Status, Stopwatch
from anchor3r.pose_graph.topology import Topology, topology_of


@dataclass(frozen=True, kw_only=True)
class PositionConfig:
    """Which method, and when it may stop."""

    method: Literal["exact", "admm"] = "exact"
    """`exact`: primal–dual interior point; `admm`: as the paper."""
    gap: float = 1e-6
    """Converged when (cost - optimum) / cost is certified to be at most this."""
    max_iterations: int = 200
    """Of ADMM, or of the interior point on each axis."""

    def __post_init__(self) -> None:
        if self.method not in ("exact", "admm"):
            raise ValueError(f"method must be exact or admm: {self}")
        if not (self.gap > 0 and self.max_iterations >= 1):
            raise ValueError(f"gap and max_iterations must be positive: {self}")


_DEFAULT = PositionConfig()


def average_positions(
    edges: Edges,
    rotations: Array,
    initial_centers: Array,
    config: PositionConfig = _DEFAULT,
    *,
    topology: Topology | None = None,
    edge_scale: Array | None = None,
) -> tuple[NDArray[np.float64], Report]:
    """Centres (F, 3) that minimise Σ √w ‖c_i - c_t + s R_iᵀ t̂‖₁, from `initial_centers` (F, 3).

    rotations (F, 3, 3) camera_from_world; rows are those of the topology's frames (by default all that edges
    name, ascending). edge_scale (m,) > 0, by default 1, brings translations to one scale. An edge's weight is
    that of a squared error, hence the root. The first frame of every component keeps its initial centre.
    """
    watch = Stopwatch()
    topology = topology or topology_of(edges)
    for name, array, shape in (("rotations", rotations, (3, 3)), ("initial_centers", initial_centers, (3,))):
        if array.shape != (len(topology.frames), *shape):
            raise ValueError(f"{name} should be {(len(topology.frames), *shape)}, is {array.shape}")
    used = edges.weight > 0
    if not used.all():
        edges, topology = edges.select(used), topology.restricted(used)
        edge_scale = None if edge_scale is None else edge_scale[used]
    weight = np.sqrt(edges.weight)
    moved = np.einsum("eji,ej->ei", rotations[topology.i], edges.translation)
    if edge_scale is not None:
        moved *= edge_scale[:, None]
    start = np.asarray(initial_centers, np.float64)
    deviation = start[topology.i] - start[topology.t] + moved
    if len(edges) == 0:
        solution = CertifiedSolution(start, Status.TRIVIAL, 0, 0.0, 0.0)
    else:
        solve = interior_point if config.method == "exact" else admm
        solution = solve(
            Laplacian(topology), -moved, weight, start, gap=config.gap, max_iterations=config.max_iterations
        )
    report = Report(
        status=solution.status, iterations=solution.iterations, cost=solution.cost,
        initial_cost=float(weight @ np.abs(deviation).sum(1)), gap=solution.gap,
        num_frames=len(topology.frames), num_edges=len(edges), num_components=topology.num_components,
        cpu_seconds=watch.seconds(),
    )  # fmt: skip
    shift = (start - solution.x)[topology.gauge]
    return solution.x + shift[topology.component], report
