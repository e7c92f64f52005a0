"""The motion graph of a map: edges of its windows, loop events of its searches, and what became of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.io.inputs import parse_json
from anchor3r.pose_graph.edges import Edges, MotionGraph, check_edges
from anchor3r.store import rows
from anchor3r.store.database import DATABASE
from anchor3r.store.queries import decodes
from anchor3r.store.rows import ONLINE, Loop, best_poses
from anchor3r.store.stored_poses import StoredPoses
from anchor3r.trajectory import FramePose


class StoredLoops(StoredPoses):
    """A map's edges and loop events."""

    @decodes
    def graph(self, poses: str | None = None, *, rejected_loops: bool = False) -> MotionGraph:
        """All edges of windows and of the loops that the poses of a name rest on; groups as in the map.

        poses: a refinement; the best there is if not given. rejected_loops: also those that it rejected.
        """
        name, search = self._loops_of(poses)
        groups = self._all(
            "SELECT g.id, g.anchor, g.kind, g.edges, g.information FROM edge_groups g "
            "LEFT JOIN loops l ON l.event = g.event LEFT JOIN verdicts v ON v.event = g.event AND v.name = ? "
            "WHERE g.event IS NULL OR (l.search = ? AND (? OR coalesce(v.accepted, l.accepted))) "
            "ORDER BY g.id",
            (name, search, rejected_loops),
        )
        self._insist_on_checksums("edge_groups")
        return self._checked_graph(rows.edges_from_groups(groups))

    @decodes
    def loops(self, poses: str | None = None) -> list[Loop]:
        """Loop events with the verdicts of a refinement; of the best poses there are if none is named.

        Poses that were made without loops have none. Before any refinement: those of the latest search.
        """
        name, search = self._loops_of(poses)
        found = self._all(
            "SELECT l.event, l.query, l.match, coalesce(v.reason, l.reason), coalesce(v.figures, l.figures) "
            "FROM loops l LEFT JOIN verdicts v ON v.event = l.event AND v.name = ? "
            "WHERE l.search = ? ORDER BY l.event",
            (name, search),
        )
        return [rows.loop_from_row(row) for row in found]

    def _loops_of(self, poses: str | None) -> tuple[str, int | None]:
        """The refinement whose verdicts go with poses of a name (with online ones, the best), its search."""
        searches = {refinement.name: refinement.search for refinement in self.refinements()}
        name = poses if poses in searches else best_poses(self.trajectory_names())
        if name in searches:
            return name, searches[name]
        return name, self._all("SELECT max(search) FROM loops")[0][0]

    def searches(self) -> list[int]:
        """Numbers of the searches for loops."""
        return [row[0] for row in self._all("SELECT search FROM searches ORDER BY search")]

    @decodes
    def search_identity(self, search: int) -> dict[str, Any]:
        """What a search for loops depended on (JSON)."""
        text = self._all("SELECT identity FROM searches WHERE search = ?", (search,))[0][0]
        return dict(parse_json(text, f"{self.folder}: {DATABASE}, search {search}"))

    @decodes
    def search_loops(self, search: int) -> list[Loop]:
        """The loop events of one search as they were measured, or as the user judged them."""
        found = self._all(
            "SELECT event, query, match, reason, figures FROM loops WHERE search = ? ORDER BY event",
            (search,),
        )
        return [rows.loop_from_row(row) for row in found]

    @decodes
    def search_graph(self, search: int | None) -> tuple[MotionGraph, dict[int, int]]:
        """The edges of all windows and of every loop of a search, and the event of each loop's group."""
        found = self._all(
            "SELECT id, anchor, kind, edges, information, event FROM edge_groups "
            "LEFT JOIN loops USING (event) WHERE event IS NULL OR search = ? ORDER BY id",
            (search,),
        )
        self._insist_on_checksums("edge_groups")
        graph = self._checked_graph(rows.edges_from_groups([row[:5] for row in found]))
        return graph, {row[0]: row[5] for row in found if row[5] is not None}

    @decodes
    def measured_loops(self, search: int) -> list[tuple[Loop, list[Edges]]]:
        """The loop events of one search with the groups of edges that each measured."""
        groups: dict[int, list[Edges]] = {}
        for event, *row in self._all(
            "SELECT event, id, anchor, kind, edges, information FROM edge_groups "
            "JOIN loops USING (event) WHERE search = ? ORDER BY id", (search,)
        ):  # fmt: skip
            groups.setdefault(event, []).append(rows.edges_from_groups([tuple(row)]))
        return [(loop, groups.get(loop.event, [])) for loop in self.search_loops(search)]

    @decodes
    def stream(
        self, last_frame: int
    ) -> list[tuple[int, tuple[FramePose, ...], Edges, NDArray[np.float32] | None]]:
        """Each frame up to `last_frame`, and what it brought as it was mapped: its own pose by windows and
        those of earlier frames, the edges of its window, its descriptor."""
        poses: dict[int, list[FramePose]] = {}
        for since, *row in self._all(
            f"SELECT known_since, {rows.POSE_COLUMNS} FROM poses WHERE name = ? AND known_since <= ? "
            "ORDER BY known_since, frame DESC",
            (ONLINE, int(last_frame)),
        ):
            poses.setdefault(since, []).append(rows.pose_from_row(row))
        windows = {
            row[1]: row
            for row in self._all(
                "SELECT id, anchor, kind, edges, information FROM edge_groups "
                "WHERE kind = 0 AND anchor <= ?", (int(last_frame),)
            )
        }  # fmt: skip
        frames = self._all(
            "SELECT frame, descriptor FROM frames WHERE frame <= ? ORDER BY frame", (int(last_frame),)
        )
        return [
            (
                frame,
                tuple(poses.get(frame, ())),
                rows.edges_from_groups([windows[frame]] if frame in windows else []),
                None if descriptor is None else np.frombuffer(descriptor, "<f4"),
            )
            for frame, descriptor in frames
        ]

    def _checked_graph(self, edges: Edges) -> MotionGraph:
        if len(edges):
            check_edges(edges, str(self.folder))
        return MotionGraph(edges)
