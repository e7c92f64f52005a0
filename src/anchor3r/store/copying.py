"""A map copied into another one, with other numbers of frames, components and events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anchor3r.pose_graph.edges import Edges
from anchor3r.store import rows
from anchor3r.store.queries import decoding_map
from anchor3r.store.reader import Map
from anchor3r.store.rows import ONLINE, Loop, LoopState, TableRow, best_poses
from anchor3r.store.writer import MapWriter

_BY_FRAME = ("reasons", "points", "pictures", "runtime")
"""Tables whose rows are of one frame and name no other."""


@dataclass(frozen=True, kw_only=True)
class Renumbering:
    """What is called otherwise in the copy."""

    frames: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    """Numbers of frames (n,), ascending as before."""
    first_component: int
    """What component 0 of the map is called in the copy."""
    time_shift_s: float
    """Added to all times."""

    def frame(self, index: int) -> int:
        return int(self.frames(np.array([index]))[0])

    def edges(self, edges: Edges) -> Edges:
        return replace(edges, frame_i=self.frames(edges.frame_i), frame_t=self.frames(edges.frame_t))


def copy_map(scene_map: Map, writer: MapWriter, names: Renumbering, *, with_places: bool) -> int:
    """Adds the frames of a map with its best poses, which become the online ones, windows, images and points.

    with_places: also the features of keyframes. Refinements, loops and measured depths stay behind.
    Returns the number of components.
    """
    with decoding_map(scene_map.folder):
        return _copy(scene_map, writer, names, with_places=with_places)


def _copy(scene_map: Map, writer: MapWriter, names: Renumbering, *, with_places: bool) -> int:
    writer.add_rows(_frames(scene_map, names))
    trajectory = scene_map.trajectory(best_poses(scene_map.trajectory_names()))
    assert trajectory.component is not None
    labels, component = np.unique(trajectory.component, return_inverse=True)
    renumbered = replace(
        trajectory,
        frames=names.frames(trajectory.frames),
        component=component.astype(np.int64) + names.first_component,
    )
    poses = [renumbered.pose(k) for k in range(len(renumbered))]
    writer.add_rows(rows.pose_row(ONLINE, pose, known_since=pose.frame) for pose in poses)
    writer.add_rows(_windows(scene_map, names))
    for table in (*_BY_FRAME, *(["place_features"] if with_places else [])):
        writer.add_rows(_of_frames(scene_map, table, names))
    return len(labels)


def _frames(scene_map: Map, names: Renumbering) -> Iterator[TableRow]:
    for row in scene_map.table_rows("frames"):
        moved = {"frame": names.frame(row["frame"]), "timestamp_s": row["timestamp_s"] + names.time_shift_s}
        yield TableRow("frames", row | moved)


def _windows(scene_map: Map, names: Renumbering) -> Iterator[TableRow]:
    for row in scene_map.table_rows("edge_groups"):
        if row["event"] is None:
            columns = (0, row["anchor"], row["kind"], row["edges"], row["information"])
            yield rows.group_row(names.edges(rows.edges_from_groups([columns])))


def _of_frames(scene_map: Map, table: str, names: Renumbering) -> Iterator[TableRow]:
    for row in scene_map.table_rows(table):
        yield TableRow(table, row | {"frame": names.frame(row["frame"])})


def copied_loops(scene_map: Map, names: Renumbering) -> Iterator[tuple[Loop, list[Edges]]]:
    """The loop events of a map's best poses as they were measured, or as the user judged them.

    What the pose graph said of them is left out: it is said anew of the whole.
    """
    wanted = {loop.event: loop for loop in scene_map.loops()}
    for search in scene_map.searches():
        for loop, groups in scene_map.measured_loops(search):
            if loop.event not in wanted:
                continue
            state = loop.state
            if not (state.is_left_out or state.is_by_hand):
                state = LoopState.PENDING
            query, match = names.frame(loop.query), names.frame(loop.match)
            renamed = replace(loop, query=query, match=match, state=state)
            yield renamed, [names.edges(edges) for edges in groups]
