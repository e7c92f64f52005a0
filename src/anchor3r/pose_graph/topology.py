"""Which frames a set of edges speaks of, and which of them hang together.

Frames keep the indices of their source, which have gaps; solvers work on rows 0 … F - 1. A chain that is
broken gives several components, and each has a gauge of its own: its first frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from anchor3r.pose_graph.edges import Edges
from anchor3r.pose_graph.linalg.sparse import Analysis, analyse


@dataclass(frozen=True)
class Topology:
    """The graph without its measurements; F frames, m edges, c components."""

    frames: NDArray[np.int64]
    """(F,) ascending indices of the source"""
    i: NDArray[np.int64]
    """(m,) row of each edge's member"""
    t: NDArray[np.int64]
    """(m,) row of each edge's anchor"""
    component: NDArray[np.int64]
    """(F,) numbered by first frame; edges of weight 0 join nothing"""
    gauge: NDArray[np.int64]
    """(c,) row of each component's first frame, which solvers hold fixed"""

    @property
    def num_components(self) -> int:
        return len(self.gauge)

    @cached_property
    def analysis(self) -> Analysis:
        """Symbolic factorisation of a matrix with a block for each edge; made once, shared by all solvers."""
        return analyse(len(self.frames), self.i, self.t)

    def restricted(self, which: NDArray[np.bool_]) -> Topology:
        """The topology with only the edges of a mask, and all frames and components."""
        return Topology(self.frames, self.i[which], self.t[which], self.component, self.gauge)


def topology_of(edges: Edges, frames: NDArray[np.int64] | None = None) -> Topology:
    """Topology of the frames that edges name, or of the given ascending frames, which must include those.

    A frame without edges is a component of its own.
    """
    if frames is None:
        frames = np.unique(np.concatenate([edges.frame_i, edges.frame_t]))
    i, t = np.searchsorted(frames, edges.frame_i), np.searchsorted(frames, edges.frame_t)
    for row, frame in ((i, edges.frame_i), (t, edges.frame_t)):
        if len(row) and (row.max() >= len(frames) or np.any(frames[row] != frame)):
            raise ValueError("an edge names a frame that is not among the given ones")
    used = edges.weight > 0
    return Topology(frames, i, t, *components_of(len(frames), i[used], t[used]))


def components_of(
    num_frames: int, i: NDArray[np.integer], t: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Component (F,) of every row, as edges (i, t) join them, numbered by first row; and those first rows."""
    joined = coo_array((np.ones(len(i)), (i, t)), shape=(num_frames, num_frames))
    _, label = connected_components(joined, directed=False)
    _, gauge, component = np.unique(label, return_index=True, return_inverse=True)
    by_first = np.argsort(gauge)
    rank = np.empty_like(by_first)
    rank[by_first] = np.arange(len(by_first))
    return rank[component], gauge[by_first]
