"""Offline rotation averaging: robust least squares over all edges, by reweighted Gauss–Newton steps.

The residual of edge (i, t) is r = Log(R_iᵀ R̂ R_t), in the world's frame; a step solves the weighted rows
Δ_i - Δ_t = r and moves every rotation by R ← R Exp(Δ). All three axes share one matrix, the weighted
Laplacian of the graph. The Geman–McClure kernel starts wide and is narrowed, because from a start that is
wrong in places the narrow one alone can leave a frame at a false optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import Array
from anchor3r.kernels import kernel
from anchor3r.pose_graph.edges import Edges
from anchor3r.pose_graph.linalg import so3
from anchor3r.pose_graph.linalg.laplacian import Laplacian
from anchor3r.pose_graph.report import Report, Status, Stopwatch
from anchor3r.pose_graph.topology import Topology, topology_of

AnyArray = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class RotationConfig:
    """Kernel widths and when to stop."""

    sigmas_deg: tuple[float, ...] = (180.0, 90.0, 45.0, 20.0, 10.0, 5.0)
    """Widths of the Geman–McClure kernel, from the first iterations to the last."""
    tolerance_deg: float = 5e-3
    """At the last width: converged when the average update is smaller than this."""
    settle: float = 0.3
    """At the other widths: the next one is taken when the average update is below this part of the width."""
    max_iterations: int = 200
    """Linear systems, over all widths."""

    def __post_init__(self) -> None:
        if not self.sigmas_deg or min(self.sigmas_deg) <= 0:
            raise ValueError(f"sigmas_deg must be positive: {self}")
        if not (self.tolerance_deg > 0 and self.settle > 0 and self.max_iterations >= 1):
            raise ValueError(f"tolerance_deg, settle and max_iterations must be positive: {self}")


_DEFAULT = RotationConfig()


def average_rotations(
    edges: Edges,
    initial: Array,
    config: RotationConfig = _DEFAULT,
    *,
    topology: Topology | None = None,
) -> tuple[NDArray[np.float64], Report]:
    """Rotations (F, 3, 3) camera_from_world that agree best with the edges' rotations, from `initial`.

    Rows are those of the topology's frames (by default all that edges name, ascending). The first frame of
    every component keeps its initial rotation. The cost is Σ w ‖r‖² / (2 (σ² + ‖r‖²)) at the last width.
    """
    watch = Stopwatch()
    topology = topology or topology_of(edges)
    if initial.shape != (len(topology.frames), 3, 3):
        raise ValueError(f"initial should be {(len(topology.frames), 3, 3)}, is {initial.shape}")
    rotation = np.array(initial, np.float64, order="C")
    measured = np.ascontiguousarray(edges.rotation)
    sigmas = np.radians(config.sigmas_deg)
    laplacian = Laplacian(topology)
    residual, weight = np.empty((len(edges), 3)), np.empty(len(edges))

    def linearise(sigma: float) -> float:
        return _linearise(topology.i, topology.t, measured, edges.weight, rotation, sigma, residual, weight)

    initial_cost = linearise(sigmas[-1])
    status, level, iterations = Status.MAX_ITERATIONS, 0, 0
    if len(edges) == 0:
        status = Status.TRIVIAL
    while status is Status.MAX_ITERATIONS and iterations < config.max_iterations:
        linearise(sigmas[level])
        step = laplacian.least_squares(weight, residual)
        if step is None:
            status = Status.STALLED
            break
        iterations += 1
        mean_step = _rotate(rotation, step)
        if level < len(sigmas) - 1:
            level += mean_step < config.settle * sigmas[level]
        elif mean_step < np.radians(config.tolerance_deg):
            status = Status.CONVERGED
    report = Report(
        status=status, iterations=iterations, cost=linearise(sigmas[-1]), initial_cost=initial_cost,
        num_frames=len(topology.frames), num_edges=len(edges), num_components=topology.num_components,
        cpu_seconds=watch.seconds(),
    )  # fmt: skip
    return rotation, report


@kernel
def _linearise(
    i: AnyArray, t: AnyArray, measured: AnyArray, edge_weight: AnyArray, rotation: AnyArray, sigma: float,
    residual: AnyArray, weight: AnyArray,
) -> float:  # fmt: skip
    """Residuals (m, 3) and weights (m,) at the given kernel width; returns the cost."""
    cost, sigma_sq = 0.0, sigma * sigma
    for e in range(len(i)):
        turned = so3.mul(so3.load33(measured[e]), so3.load33(rotation[t[e]]))
        r = so3.log(so3.mul_tn(so3.load33(rotation[i[e]]), turned))
        so3.store3(residual[e], r)
        r_sq = so3.norm_sq(r)
        # The paper's σ² / (σ² + r²)² times σ², so that 1 is the weight of an exact edge.
        ratio = sigma_sq / (sigma_sq + r_sq)
        weight[e] = edge_weight[e] * ratio * ratio
        cost += 0.5 * edge_weight[e] * r_sq / (sigma_sq + r_sq)
    return cost


@kernel
def _rotate(rotation: AnyArray, step: AnyArray) -> float:
    """R ← R Exp(Δ) for all frames; returns the average angle of the update."""
    total = 0.0
    for f in range(len(rotation)):
        d = so3.load3(step[f])
        total += np.sqrt(so3.norm_sq(d))
        so3.store33(rotation[f], so3.orthonormalised(so3.mul(so3.load33(rotation[f]), so3.exp(d))))
    return total / max(1, len(rotation))
