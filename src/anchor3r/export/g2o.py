"""The motion graph of a map for other solvers, in g2o form.

That format has one scale, so every edge goes from the scale of its window to that of the map.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.io.g2o import write_g2o
from anchor3r.pose_graph.edges import MotionGraph
from anchor3r.trajectory import Trajectory


def write_pose_graph(path: Path | str, graph: MotionGraph, trajectory: Trajectory) -> int:
    """Writes the poses as vertices and all edges between them; returns the number of edges."""
    edges = graph.edges
    edges = edges.select(
        np.isin(edges.frame_i, trajectory.frames) & np.isin(edges.frame_t, trajectory.frames)
    )
    if not len(edges):
        raise Anchor3RError(f"no edges to write to {path}: no window of the map relates two of these frames")
    log_scale = np.zeros(len(trajectory)) if trajectory.log_scale is None else trajectory.log_scale
    scale = np.exp(log_scale[np.searchsorted(trajectory.frames, edges.frame_t)])
    step = np.concatenate([np.ones((len(edges), 3)), np.repeat(1 / scale[:, None], 3, axis=1)], 1)
    in_map_scale = replace(
        edges,
        translation=edges.translation * scale[:, None],
        information=edges.information * step[:, :, None] * step[:, None, :],
    )
    in_one_scale = MotionGraph(in_map_scale)
    write_g2o(Path(path), in_one_scale, trajectory.frames, trajectory.camera_from_world)
    return len(edges)
