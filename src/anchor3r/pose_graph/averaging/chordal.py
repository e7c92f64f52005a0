"""A start without a start: rotations and centres from two linear systems.

Drop the constraint that rotations be rotations: R_i = R̂ R_t is then linear and has one best answer, column
by column, whose nearest rotations are close to the true ones even where no initial guess is at hand
(chordal relaxation). With rotations known, the centres are linear as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, nearest_rotation
from anchor3r.pose_graph.edges import MotionGraph
from anchor3r.pose_graph.linalg.laplacian import Laplacian
from anchor3r.pose_graph.linalg.sparse import Cholesky
from anchor3r.pose_graph.topology import Topology, topology_of

_PINNED = 1e3  # stiffness of the gauge, relative to the mean stiffness of a frame


def chordal_initialisation(graph: MotionGraph) -> SE3:
    """Poses (F,) camera_from_world of the graph's frames, the identity at the first of every component."""
    edges = graph.edges
    rotation_weight, translation_weight = edges.weight, edges.weight
    known = edges.has_information()
    if known.any():
        diagonal = np.einsum("mkk->mk", edges.information)
        rotation_weight = np.where(known, diagonal[:, :3].mean(1), 1.0) * edges.weight
        translation_weight = np.where(known, diagonal[:, 3:].mean(1), 1.0) * edges.weight
    topology = topology_of(edges)
    return chordal_poses(topology, edges.rotation, edges.translation, rotation_weight, translation_weight)


def chordal_poses(
    topology: Topology,
    rotation: NDArray[np.float64],
    translation: NDArray[np.float64],
    rotation_weight: NDArray[np.float64],
    translation_weight: NDArray[np.float64],
) -> SE3:
    """Chordal poses from columns: rotation (m, 3, 3), translation (m, 3), weights (m,)."""
    if len(topology.i) == 0:
        return SE3.identity(len(topology.frames))
    rotations = nearest_rotation(_relaxed_rotations(topology, rotation, rotation_weight))
    rotations = rotations @ np.swapaxes(rotations[topology.gauge], 1, 2)[topology.component]

    v = np.einsum("mji,mj->mi", rotations[topology.i], translation)
    centers = Laplacian(topology).least_squares(translation_weight, -v)
    if centers is None:
        raise ValueError("the translation weights must be finite and not negative")
    return SE3.from_center(rotations, centers)


def _relaxed_rotations(
    topology: Topology, rotation: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """argmin Σ w ‖R_i - R̂ R_t‖² (F, 3, 3), the gauge frames pinned to the identity."""
    analysis, n = topology.analysis, len(topology.frames)
    # A pair's block is H[low, high].
    forward = np.where((topology.i < topology.t)[:, None, None], rotation, np.swapaxes(rotation, 1, 2))
    blocks = (weight[:, None, None] * forward).reshape(-1, 9).T
    summed = [np.bincount(analysis.slot, entry, analysis.num_pairs) for entry in blocks]
    pairs = -np.stack(summed, -1).astype(np.float64)
    stiffness = np.bincount(topology.i, weight, n) + np.bincount(topology.t, weight, n)
    rhs = np.zeros((n, 3, 3))
    rhs[topology.gauge] = max(stiffness.mean(), 1e-300) * _PINNED * np.eye(3)
    diagonal = stiffness[:, None, None] * np.eye(3) + rhs
    cholesky = Cholesky(analysis, 3)
    if not cholesky.factorise(diagonal, pairs.reshape(-1, 3, 3)):
        raise ValueError("the rotation weights must be finite and not negative")
    return cholesky.solve(rhs)
