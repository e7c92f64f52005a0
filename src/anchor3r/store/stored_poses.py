"""The poses of a map: by windows alone, as loops and positions moved them, and as refinements made them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.geodesy import Datum
from anchor3r.pose_graph.correction import OnlineCorrection
from anchor3r.pose_graph.online_placement import OnlinePlacement
from anchor3r.store import rows
from anchor3r.store.database import DATABASE
from anchor3r.store.queries import MapDatabase, decodes
from anchor3r.store.rows import OFFLINE, ONLINE, Refinement
from anchor3r.trajectory import Trajectory


class StoredPoses(MapDatabase):
    """A map's trajectories, what moved them, and what their lengths are in."""

    @decodes
    def trajectory_names(self) -> list[str]:
        """'online', then refinements in the order in which they were made."""
        found = self._all(
            "SELECT p.name, r.id FROM (SELECT DISTINCT name FROM poses) p "
            "LEFT JOIN refinements r USING (name)"
        )
        ordered = sorted(found, key=lambda row: (row[0] != ONLINE, row[1] or 0, row[0]))
        return [rows.checked_name(name) for name, _ in ordered]

    @decodes
    def trajectory(self, name: str = ONLINE, *, placed: bool = True) -> Trajectory:
        """Poses of one name, with covariances and scales; online ones as loops have corrected them so far,
        and where positions have placed them (placed).
        """
        found = self._stored_trajectory(name)
        if name != ONLINE:
            return found
        for _, correction in self._corrections():
            found = correction.apply(found)
        for placement in self.placements().values() if placed else ():
            found = placement.apply(found)
        return found

    @decodes
    def placements(self) -> dict[int, OnlinePlacement]:
        """By component where measured positions have put the online poses as the map grew; empty without."""
        if "placements" not in self._with_checksums:
            return {}  # a map of before there were any
        self._insist_on_checksums("placements")
        told = self._all("SELECT placement FROM placements ORDER BY frame")
        found = [OnlinePlacement.from_bytes(data) for (data,) in told]
        return {placement.component: placement for placement in found}

    def placed_since(self) -> int | None:
        """The frame from which on positions have placed the map; None if they have not."""
        told = self.placements()
        return self._all("SELECT min(frame) FROM placements")[0][0] if told else None

    def _placement_of(self, component: int | None) -> OnlinePlacement | None:
        """Of online poses of a component, or of all of them (None): of any, if every component is placed."""
        told = self.placements()
        if not told:
            return None
        labels = self._online_components() if component is None else {component}
        return next(iter(told.values())) if labels <= set(told) else None

    def _online_components(self) -> set[int]:
        found = {
            row[0] for row in self._all("SELECT DISTINCT component FROM poses WHERE name = ?", (ONLINE,))
        }
        for _, correction in self._corrections():  # may have joined some of them
            joined = dict(zip(correction.track.tolist(), correction.component.tolist(), strict=True))
            found = {joined.get(track, track) for track in found}
        return found

    @decodes
    def odometry(self) -> Trajectory:
        """The online poses by windows alone: `trajectory()` without the loops that were closed online, and
        without the metres that positions gave."""
        return self._stored_trajectory(ONLINE)

    @decodes
    def as_first_told(self) -> Trajectory:
        """The online poses as those who followed the stream were told them when they became known.

        Every pose in the world of its own time, which later corrections have moved.
        """
        odometry = self._stored_trajectory(ONLINE)
        since = np.array(
            [
                row[0]
                for row in self._all("SELECT known_since FROM poses WHERE name = 'online' ORDER BY frame")
            ]
        )
        corrections = self._corrections(heads=True)
        if not corrections:
            return odometry
        held = np.searchsorted([frame for frame, _ in corrections], since, side="right") - 1
        poses = [
            odometry.pose(k) if at < 0 else corrections[at][1].apply_to_newest(odometry.pose(k))
            for k, at in enumerate(held.tolist())
        ]
        return replace(
            odometry,
            rotation=np.stack([pose.rotation for pose in poses]),
            center=np.stack([pose.center for pose in poses]),
            component=np.array([pose.component for pose in poses]),
            log_scale=np.array([pose.log_scale for pose in poses]),
            covariance=None,
        )

    def _corrections(self, *, heads: bool = False) -> list[tuple[int, OnlineCorrection]]:
        """The last one, by the frame from which on it holds; or what is kept of all (heads)."""
        if "corrections" not in self._with_checksums:
            return []  # a map of before there were any
        self._insist_on_checksums("corrections")
        column, where = ("heads", "TRUE") if heads else ("nodes", "nodes IS NOT NULL")
        found = self._all(f"SELECT frame, {column} FROM corrections WHERE {where} ORDER BY frame")
        found = found if heads else found[-1:]  # at the end of a stream two have their nodes
        return [(frame, OnlineCorrection.from_bytes(data)) for frame, data in found]

    @decodes
    def corrections_told(self, last_frame: int) -> list[tuple[int, OnlineCorrection]]:
        """What poses up to a frame were told with, each with the frame from which on it held: the last
        similarity of each track, from loops closed."""
        return [(since, told) for since, told in self._corrections(heads=True) if since <= last_frame]

    def _stored_trajectory(self, name: str) -> Trajectory:
        self._insist_on_checksums("poses", "name = ?", (name,))
        frame, timestamp_s, pose, covariance, component, log_scale = self._columns(
            "SELECT frame, timestamp_s, pose, covariance, component, log_scale "
            "FROM poses JOIN frames USING (frame) WHERE name = ? ORDER BY frame",
            6,
            (name,),
        )
        if not frame and name != ONLINE:
            known = ", ".join(self.trajectory_names()) or "none"
            raise Anchor3RError(
                f"{self.folder} has no '{name}' poses, only: {known}; 'anchor3r refine' makes more"
            )
        values = rows.pose_values(pose)
        unknown = np.full(36, np.nan).tobytes()
        rows.insist_on_frames(frame, timestamp_s)
        rows.insist_on_scales(log_scale)
        return Trajectory(
            frames=np.array(frame, np.int64),
            timestamps_s=np.array(timestamp_s, np.float64),
            rotation=values[:, :9].reshape(-1, 3, 3),
            center=values[:, 9:],
            component=np.array(component, np.int64),
            log_scale=np.array(log_scale, np.float64),
            covariance=np.frombuffer(b"".join(c or unknown for c in covariance)).reshape(-1, 6, 6),
        )

    @decodes
    def true_trajectory(self) -> Trajectory | None:
        """Ground truth of those frames whose source had it; None if there is none."""
        frame, timestamp_s, blobs = self._columns(
            "SELECT frame, timestamp_s, true_pose FROM frames WHERE true_pose IS NOT NULL ORDER BY frame", 3
        )
        if not frame:
            return None
        values = rows.pose_values(blobs)
        rows.insist_on_frames(frame, timestamp_s)
        rotation = values[:, :9].reshape(-1, 3, 3)
        return Trajectory(
            frames=np.array(frame, np.int64),
            timestamps_s=np.array(timestamp_s, np.float64),
            rotation=rotation,
            center=-(rotation.swapaxes(1, 2) @ values[:, 9:, None])[..., 0],
        )

    @decodes
    def refinements(self) -> list[Refinement]:
        """How each of the refined trajectories was made, in the order in which they were."""
        found = self._all("SELECT name, settings, summary, search FROM refinements ORDER BY id")
        return [rows.refinement_from_row(row, f"{self.folder}: {DATABASE}") for row in found]

    def refinement(self, name: str = OFFLINE) -> Refinement:
        """How the poses of a name were made: every setting, and what came out."""
        for refinement in self.refinements():
            if refinement.name == name:
                return refinement
        known = ", ".join(r.name for r in self.refinements()) or "none"
        raise Anchor3RError(f"{self.folder} has no refinement '{name}', only: {known}; see anchor3r refine")

    @decodes
    def datum(self, poses: str, component: int | None = None) -> Datum | None:
        """Where on the Earth the world of some poses has its origin; None if that is not known.

        component: of which some may be placed and others not; None asks for all of them.
        """
        if poses == ONLINE:
            placement = self._placement_of(component)
            return None if placement is None else placement.datum
        found = self._placing(poses, component).get("datum")
        return Datum(**found) if found else None

    @decodes
    def units(self, poses: str, component: int | None = None) -> str:
        """What lengths of some poses are in: "m", or "units" where nothing told the scale; as `datum`."""
        if poses == ONLINE:
            return "units" if self._placement_of(component) is None else "m"
        return str(self._placing(poses, component).get("units", "units"))

    def _placing(self, poses: str, component: int | None) -> dict[str, Any]:
        """What came out of a refinement; nothing where priors left a component that is asked for open."""
        for refinement in self.refinements():
            if refinement.name == poses:
                unplaced = refinement.summary.get("unplaced", [])
                is_open = unplaced if component is None else component in unplaced
                return {} if is_open else refinement.summary
        return {}
