"""Weighted least squares over differences: min Σ_e w_e ‖x_i - x_t - b_e‖², one fixed frame a component.

Rotations, positions and scales all come down to it. The normal matrix is the weighted Laplacian of the
graph; the columns of b share it and hence one factorisation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.kernels import kernel
from anchor3r.pose_graph.linalg.sparse import Cholesky
from anchor3r.pose_graph.topology import Topology

AnyArray = NDArray[Any]


class Laplacian:
    """The normal equations of one topology, for changing weights."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._cholesky = Cholesky(topology.analysis)
        self._diagonal = np.empty(len(topology.frames))
        self._pairs = np.empty(topology.analysis.num_pairs)

    def factorise(self, weight: NDArray[np.float64]) -> bool:
        """Takes new weights (m,) >= 0; returns whether the system could be factorised."""
        topology = self.topology
        _assemble(topology.i, topology.t, topology.analysis.slot, weight, self._diagonal, self._pairs)
        # A right-hand side of differences sums to zero over a component, so any positive extra on one
        # frame's diagonal makes that frame's solution exactly zero and leaves the others as they are.
        self._diagonal[topology.gauge] *= 2
        self._diagonal[self._diagonal == 0] = 1  # frames that no weight touches stay where they are
        return self._cholesky.factorise(self._diagonal, self._pairs)

    def solve(self, rhs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Laplacian⁻¹ rhs (F, k) with the last weights; rhs sums to zero over every component."""
        x = self._cholesky.solve(rhs)
        return x - x[self.topology.gauge][self.topology.component]

    def gather(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Aᵀ v: edge values (m, k), added at members and subtracted at anchors, (F, k)."""
        return _gather(self.topology.i, self.topology.t, values, len(self.topology.frames))

    def least_squares(
        self, weight: NDArray[np.float64], b: NDArray[np.float64]
    ) -> NDArray[np.float64] | None:
        """argmin Σ w ‖x_i - x_t - b‖² (F, k), zero at each component's first frame; None if singular."""
        if not self.factorise(weight):
            return None
        return self.solve(self.gather(weight[:, None] * b))


@kernel
def _assemble(
    i: AnyArray, t: AnyArray, slot: AnyArray, weight: AnyArray, diagonal: AnyArray, pairs: AnyArray
) -> None:
    diagonal[:] = 0
    pairs[:] = 0
    for e in range(len(i)):
        diagonal[i[e]] += weight[e]
        diagonal[t[e]] += weight[e]
        pairs[slot[e]] -= weight[e]


@kernel
def _gather(i: AnyArray, t: AnyArray, values: AnyArray, num_frames: int) -> AnyArray:
    out = np.zeros((num_frames, values.shape[1]))
    for e in range(len(i)):
        for k in range(values.shape[1]):
            out[i[e], k] += values[e, k]
            out[t[e], k] -= values[e, k]
    return out
