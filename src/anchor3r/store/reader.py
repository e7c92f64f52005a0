"""Reading a map, finished or still growing. Every call is one short query, so nothing holds up the writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.keyframe_depth import KeyframeDepth
from anchor3r.errors import Anchor3RError
from anchor3r.geodesy import Datum
from anchor3r.geometry import Pinhole
from anchor3r.io.inputs import decoding, parse_json
from anchor3r.places.keyframes import PlaceKeyframe
from anchor3r.pose_graph.correction import OnlineCorrection
from anchor3r.pose_graph.edges import Edges, MotionGraph, check_edges
from anchor3r.pose_graph.online_placement import OnlinePlacement
from anchor3r.predictors.confidence import from_old_map
from anchor3r.predictors.interface import NoPoseReason, WindowStatus
from anchor3r.records import record_from_json
from anchor3r.sources import Frame, Source
from anchor3r.store import rows
from anchor3r.store.database import (
    CHECKED,
    DATABASE,
    META_CHECKSUM,
    explained,
    has_checksums,
    open_database,
)
from anchor3r.store.keyframe_depths import (
    DENSIFICATION_KEY,
    DEPTH_COLUMNS,
    Densification,
    depth_from_row,
)
from anchor3r.store.meta import checked_meta
from anchor3r.store.parts import PARTS_KEY, MapPart, PartSources, open_again, part_of
from anchor3r.store.places import PLACE_COLUMNS, PLACES_KEY, place_from_row
from anchor3r.store.pointmaps import EncodedPoints, PointMap, decode_picture, decode_points
from anchor3r.store.rows import CONFIDENCE_KEY, OFFLINE, ONLINE, Loop, Refinement, best_poses
from anchor3r.trajectory import FramePose, Trajectory

if TYPE_CHECKING:
    from anchor3r.places.localiser import Localisation
    from anchor3r.store.localising import MapLocaliser

PHOTOGRAPHS = "photographs placed by COLMAP"
"""What a map of photographs in no order names as its predictor."""
NO_SHARED_VIEW = "not all photographs share enough of what they see"


@dataclass(frozen=True, kw_only=True)
class FrameTable:
    """Columns of all n frames that were mapped, with a pose or without."""

    index: NDArray[np.int64]
    """(n,) ascending"""
    timestamp_s: NDArray[np.float64]
    """(n,)"""
    status: NDArray[np.str_]
    """(n,) `WindowStatus` values"""

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How much of a stream is in a map."""

    frames: int
    with_pose: int
    """Frames that have an online pose."""
    lost: int
    """Frames without a pose that the predictor could not relate to any other."""
    components: int
    """Parts that no measurement relates."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How mapping went, (n,) each."""

    frames: NDArray[np.int64]
    seconds: NDArray[np.float64]
    """Wall time since the frame before."""
    peak_rss_bytes: NDArray[np.float64]
    """NaN where the system does not tell."""


Method = TypeVar("Method", bound=Callable[..., Any])


def _decoding(method: Method) -> Method:
    """A method of `Map` that decodes what the database holds: what cannot be decoded is told as damage."""

    @wraps(method)
    def explained_method(self: Map, *args: Any, **options: Any) -> Any:
        with decoding(f"{self.folder}: {DATABASE}", "restore it from a copy or make the map again"):
            return method(self, *args, **options)

    return cast(Method, explained_method)


def load_map(folder: Path | str) -> Map:
    """Opens a map to read it; it may be growing meanwhile."""
    return Map(Path(folder))


class Map:
    """A map on disk, as it is at the moment of each call. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._localiser: MapLocaliser | None = None
        self._database = open_database(folder)
        # One query at a time: a thread that waits for SQLite holds Python's lock, which the checksum of
        # another thread's query, a function of ours, would wait for.
        self._querying = Lock()
        with explained(folder):
            self._with_checksums = {table for table in CHECKED if has_checksums(self._database, table)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All calls inside see the map as it is now, although it may grow meanwhile."""
        with explained(self.folder):
            self._database.execute("BEGIN")
        try:
            yield
        finally:
            self._database.execute("COMMIT")

    @property
    @_decoding
    def meta(self) -> dict[str, Any]:
        """What made the map: identity (source, predictor, config), store, versions, …"""
        found = self._all("SELECT key, value FROM meta WHERE key != ?", (META_CHECKSUM,))
        return checked_meta(found, f"{self.folder}: {DATABASE}")

    def version(self) -> int:
        """Another number than at the last call if another process has changed the map in between."""
        return self._all("PRAGMA data_version")[0][0]

    @property
    def num_frames(self) -> int:
        return self._all("SELECT count(*) FROM frames")[0][0]

    @_decoding
    def counts(self) -> Counts:
        """What a summary needs, without reading the frames into memory."""
        lost = self._all(
            "SELECT count(*) FROM frames WHERE status = ? AND frame NOT IN "
            "(SELECT frame FROM poses WHERE name = ?)",
            (WindowStatus.LOST.value, ONLINE),
        )[0][0]
        with_pose, components = self._all(
            "SELECT count(*), count(DISTINCT component) FROM poses WHERE name = ?", (ONLINE,)
        )[0]
        for _, correction in self._corrections():  # may have joined some of them
            components -= len(np.unique(correction.track)) - len(np.unique(correction.component))
        return Counts(frames=self.num_frames, with_pose=with_pose, lost=lost, components=components)

    @_decoding
    def frames(self) -> FrameTable:
        """All frames, those without a pose too. A frame that could not be decoded is not among them."""
        self._insist_on_checksums("frames")
        index, timestamp_s, status = self._columns(
            "SELECT frame, timestamp_s, status FROM frames ORDER BY frame", 3
        )
        rows.insist_on_frames(index, timestamp_s, status)
        return FrameTable(
            index=np.array(index, np.int64),
            timestamp_s=np.array(timestamp_s, np.float64),
            status=np.array(status, np.str_),
        )

    @_decoding
    def no_pose_reasons(self) -> dict[int, NoPoseReason]:
        """Why frames had no pose when they came, as far as the predictor could tell; later windows may have
        given them one."""
        if not self._all("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'reasons'"):
            return {}
        return {
            frame: NoPoseReason(reason) for frame, reason in self._all("SELECT frame, reason FROM reasons")
        }

    @_decoding
    def answers(self) -> dict[str, int]:
        """How many frames each predictor answered for, in a map of several; empty in others."""
        if not self._all("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'answers'"):
            return {}
        return dict(
            self._all("SELECT predictor, count(*) FROM answers GROUP BY predictor ORDER BY predictor")
        )

    def lack_of_poses(self) -> str:
        """What to say of a map without any, and why if frames were mapped."""
        text, count = f"{self.folder} has no online poses yet", self.num_frames
        if not count:
            return f"{text}."
        return f"{text}: none of its {count} frames could be related to others. Does the camera move?"

    @property
    def is_of_photographs(self) -> bool:
        """Whether its images were matched all with all, and not followed one by one."""
        return bool(self.meta.get("identity", {}).get("predictor") == PHOTOGRAPHS)

    @_decoding
    def trajectory_names(self) -> list[str]:
        """'online', then refinements in the order in which they were made."""
        found = self._all(
            "SELECT p.name, r.id FROM (SELECT DISTINCT name FROM poses) p "
            "LEFT JOIN refinements r USING (name)"
        )
        ordered = sorted(found, key=lambda row: (row[0] != ONLINE, row[1] or 0, row[0]))
        return [rows.checked_name(name) for name, _ in ordered]

    @_decoding
    def trajectory(self, name: str = ONLINE, *, placed: bool = True) -> Trajectory:
        """Poses of one name, with covariances and scales; online ones as loops have corrected them so far,
        and where positions have placed them (placed).
        """
        found = self._stored_trajectory(name)
        if name != ONLINE:
            return found
        if corrections := self._corrections():
            found = corrections[-1][1].apply(found)
        for placement in self.placements().values() if placed else ():
            found = placement.apply(found)
        return found

    @_decoding
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

    @_decoding
    def odometry(self) -> Trajectory:
        """The online poses by windows alone: `trajectory()` without the loops that were closed online, and
        without the metres that positions gave."""
        return self._stored_trajectory(ONLINE)

    @_decoding
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
        return [(frame, OnlineCorrection.from_bytes(data)) for frame, data in found]

    @_decoding
    def correction_told_at(self, frame: int) -> OnlineCorrection | None:
        """What poses were told with after a frame: the last similarity of each track, from loops closed."""
        held = [correction for since, correction in self._corrections(heads=True) if since <= frame]
        return held[-1] if held else None

    @_decoding
    def stream(
        self, last_frame: int
    ) -> list[tuple[tuple[FramePose, ...], Edges, NDArray[np.float32] | None]]:
        """What each frame up to `last_frame` brought as it was mapped: its own pose by windows and those of
        earlier frames, the edges of its window, its descriptor."""
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
                tuple(poses.get(frame, ())),
                rows.edges_from_groups([windows[frame]] if frame in windows else []),
                None if descriptor is None else np.frombuffer(descriptor, "<f4"),
            )
            for frame, descriptor in frames
        ]

    @_decoding
    def measured_loops(self, search: int) -> list[tuple[Loop, list[Edges]]]:
        """The loop events of one search with the groups of edges that each measured."""
        groups: dict[int, list[Edges]] = {}
        for event, *row in self._all(
            "SELECT event, id, anchor, kind, edges, information FROM edge_groups "
            "JOIN loops USING (event) WHERE search = ? ORDER BY id", (search,)
        ):  # fmt: skip
            groups.setdefault(event, []).append(rows.edges_from_groups([tuple(row)]))
        return [(loop, groups.get(loop.event, [])) for loop in self.search_loops(search)]

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

    @_decoding
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

    @_decoding
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

    @_decoding
    def datum(self, poses: str, component: int | None = None) -> Datum | None:
        """Where on the Earth the world of some poses has its origin; None if that is not known.

        component: of online poses, of which some may be placed and others not; None asks for all of them.
        """
        if poses == ONLINE:
            placement = self._placement_of(component)
            return None if placement is None else placement.datum
        found = [r.summary.get("datum") for r in self.refinements() if r.name == poses]
        return Datum(**found[0]) if found and found[0] else None

    @_decoding
    def units(self, poses: str, component: int | None = None) -> str:
        """What lengths of some poses are in: "m", or "units" where nothing told the scale; as `datum`."""
        if poses == ONLINE:
            return "units" if self._placement_of(component) is None else "m"
        return next(
            (str(r.summary.get("units", "units")) for r in self.refinements() if r.name == poses), "units"
        )

    @_decoding
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

    @_decoding
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

    @_decoding
    def search_identity(self, search: int) -> dict[str, Any]:
        """What a search for loops depended on (JSON)."""
        text = self._all("SELECT identity FROM searches WHERE search = ?", (search,))[0][0]
        return dict(parse_json(text, f"{self.folder}: {DATABASE}, search {search}"))

    @_decoding
    def search_loops(self, search: int) -> list[Loop]:
        """The loop events of one search as they were measured, or as the user judged them."""
        found = self._all(
            "SELECT event, query, match, reason, figures FROM loops WHERE search = ? ORDER BY event",
            (search,),
        )
        return [rows.loop_from_row(row) for row in found]

    @_decoding
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

    def keeps_images(self) -> bool:
        """Whether `image` and `frame` can give any picture."""
        return bool(self._all("SELECT EXISTS (SELECT * FROM pictures)")[0][0])

    @_decoding
    def descriptors(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Frames (n,) that have a global descriptor, and those (n, d)."""
        frame, blobs = self._columns(
            "SELECT frame, descriptor FROM frames WHERE descriptor IS NOT NULL ORDER BY frame", 2
        )
        values = np.frombuffer(b"".join(blobs), "<f4")
        return np.array(frame, np.int64), values.reshape(len(frame), -1 if frame else 0)

    @_decoding
    def frame(self, index: int) -> Frame:
        """A frame as the map keeps it: its picture, with intrinsics of that size, and its true pose."""
        self._insist_on_checksums("frames", "frame = ?", (int(index),))
        found = self._of_frame("SELECT timestamp_s, intrinsics, true_pose FROM frames", index)
        if not found:
            raise Anchor3RError(f"{self.folder} has no frame {index}; its frames are in `Map.frames()`")
        (timestamp_s, intrinsics, true_pose), image = found[0], self.image(index)
        camera = rows.pinhole_from_json(intrinsics)
        return Frame(
            index=int(index),
            timestamp_s=timestamp_s,
            image=image,
            intrinsics=None if camera is None else camera.resized(image.shape[1], image.shape[0]),
            camera_from_world=None if true_pose is None else rows.true_pose_from_blob(true_pose),
        )

    @_decoding
    def timestamp_s(self, index: int) -> float | None:
        """When a frame was taken, on the source's clock; None if the map does not have it, or not yet."""
        found = self._of_frame("SELECT timestamp_s FROM frames", index)
        return found[0][0] if found else None

    @contextmanager
    def original_source(self) -> Iterator[Source | None]:
        """The source of the map, opened as it was to be mapped; None if it is gone or was live.

        Nothing is fetched from a server, nor a camera opened, because a map says so: it may be a stranger's.
        """
        if parts := self.parts():
            source: Source | None = PartSources.of(parts)
        else:
            meta = self.meta
            identity = meta.get("identity", {})
            start, stride = identity.get("start", 0), identity.get("stride", 1)
            uri, count, camera = identity.get("source", ""), meta.get("num_frames"), identity.get("camera")
            source = open_again(uri, start, stride, count, camera)
        if source is None:
            yield None
            return
        with source:
            yield source

    @_decoding
    def parts(self) -> tuple[MapPart, ...]:
        """The maps that a merged map was made of, in the order of its frames; none of a map of one source."""
        found = self._all("SELECT value FROM meta WHERE key = ?", (PARTS_KEY,))
        if not found:
            return ()
        where = f"{self.folder}: {DATABASE}, {PARTS_KEY}"
        entries = parse_json(found[0][0], where)
        if not isinstance(entries, list) or not entries:
            raise ValueError("its parts are no list")
        parts = tuple(record_from_json(MapPart, entry, where) for entry in entries)
        if any(np.diff([part.first_frame for part in parts]) <= 0):
            raise ValueError("its parts have no order")
        return parts

    def cause_of_components(self) -> str:
        """Why it may have components that no measurement relates."""
        if self.is_of_photographs:
            return NO_SHARED_VIEW
        return "its parts have not all been joined" if self.parts() else "tracking broke"

    def part_of(self, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) which of its parts frames (n,) are of; 0 in a map of one source."""
        return part_of(frames, self.parts())

    @_decoding
    def table_rows(self, table: str) -> Iterator[dict[str, Any]]:
        """The rows of a table as they are kept, checked, one by one; for copies of the map."""
        if not self._all("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)):
            return
        self._insist_on_checksums(table)
        columns = [row[1] for row in self._all(f"PRAGMA main.table_info({table})")]
        wanted = [column for column in columns if column not in ("id", "checksum")]
        for (row,) in self._all(f"SELECT rowid FROM main.{table} ORDER BY rowid"):
            values = self._all(f"SELECT {', '.join(wanted)} FROM main.{table} WHERE rowid = ?", (row,))[0]
            yield dict(zip(wanted, values, strict=True))

    @_decoding
    def intrinsics(self, index: int) -> Pinhole | None:
        """The camera of a frame's image as it came from the source; None if nobody knew it."""
        found = self._of_frame("SELECT intrinsics FROM frames", index)
        return rows.pinhole_from_json(found[0][0]) if found else None

    @_decoding
    def shows(self, frame: Frame) -> bool:
        """Whether a frame that was read from a source again is the one that was mapped."""
        found = self._of_frame(
            "SELECT timestamp_s, true_pose, jpeg FROM frames LEFT JOIN pictures USING (frame)", frame.index
        )
        quality = self.meta.get("store", {}).get("image_quality", rows.IMAGE_QUALITY)
        if not found:
            return False
        timestamp_s, true_pose, jpeg = found[0]
        return rows.shows_same(frame, timestamp_s, true_pose, jpeg, quality)

    @_decoding
    def jpeg(self, index: int) -> bytes | None:
        """The picture of a frame as it is kept; None if it is not."""
        self._insist_on_checksums("pictures", "frame = ?", (int(index),))
        found = self._of_frame("SELECT jpeg FROM pictures", index)
        return found[0][0] if found else None

    @_decoding
    def image(self, index: int) -> NDArray[np.uint8]:
        """(h, w, 3) RGB, the picture of a frame as the map keeps it."""
        jpeg = self.jpeg(index)
        if jpeg is None:
            raise Anchor3RError(
                f"{self.folder} keeps no image of frame {index}; it was made with --no-keep-images, "
                "or has no such frame"
            )
        return decode_picture(jpeg)

    @_decoding
    def points(self, index: int) -> PointMap | None:
        """The point map of a frame in its own camera and scale; None if it has none."""
        self._insist_on_checksums("points", "frame = ?", (int(index),))
        found = self._of_frame(
            "SELECT height, width, scale, camera, points, colours, confidence FROM points", index
        )
        if not found:
            return None
        height, width, scale, camera, *blobs = found[0]
        encoded = EncodedPoints(height, width, scale, rows.pinhole_from_json(camera), *blobs)
        point_map = decode_points(encoded)
        if encoded.confidence is None or self._all("SELECT * FROM meta WHERE key = ?", (CONFIDENCE_KEY,)):
            return point_map
        predictor = str(self.meta.get("identity", {}).get("predictor", ""))
        return replace(point_map, confidence=from_old_map(point_map.confidence, predictor))

    @_decoding
    def frames_with_points(self) -> NDArray[np.int64]:
        """(n,) frames that have a point map, ascending"""
        return np.array([row[0] for row in self._all("SELECT frame FROM points ORDER BY frame")], np.int64)

    def iter_points(
        self, name: str = ONLINE, frames: Iterable[int] | None = None
    ) -> Iterator[tuple[FramePose, PointMap]]:
        """Pose and point map of each frame that has both, one by one; `pose.to_world` places the points."""
        trajectory = self.trajectory(name)
        wanted = None if frames is None else set(frames)
        for k, frame in enumerate(trajectory.frames.tolist()):
            if wanted is not None and frame not in wanted:
                continue
            point_map = self.points(frame)
            if point_map is not None:
                yield trajectory.pose(k), point_map

    @_decoding
    def densification(self) -> Densification | None:
        """How the depths of keyframes were measured; None if the map has none."""
        found = self._all("SELECT value FROM meta WHERE key = ?", (DENSIFICATION_KEY,))
        if not found:
            return None
        where = f"{self.folder}: {DATABASE}, {DENSIFICATION_KEY}"
        return record_from_json(Densification, parse_json(found[0][0], where), where)

    @_decoding
    def keyframe_depth_frames(self) -> NDArray[np.int64]:
        """(n,) frames that have a measured depth, ascending."""
        if not self._all("SELECT * FROM sqlite_master WHERE name = 'keyframe_depths'"):
            return np.empty(0, np.int64)  # a map of before there were any
        found = self._all("SELECT frame FROM keyframe_depths ORDER BY frame")
        return np.array([row[0] for row in found], np.int64)

    @_decoding
    def keyframe_depth(self, index: int) -> KeyframeDepth:
        """The measured depth of a keyframe, in the scale of the poses that it was measured with."""
        self._insist_on_checksums("keyframe_depths", "frame = ?", (int(index),))
        found = self._of_frame(f"SELECT {DEPTH_COLUMNS} FROM keyframe_depths", index)
        if not found:
            raise Anchor3RError(
                f"{self.folder} has no measured depth of frame {index}; "
                f"'anchor3r densify {self.folder}' measures those of keyframes"
            )
        return depth_from_row(found[0])

    def keyframe_depths(self, frames: Iterable[int] | None = None) -> Iterator[KeyframeDepth]:
        """Measured depths of all keyframes, or of those among `frames`, one by one."""
        wanted = None if frames is None else set(frames)
        for frame in self.keyframe_depth_frames().tolist():
            if wanted is None or frame in wanted:
                yield self.keyframe_depth(frame)

    @_decoding
    def place_frames(self) -> NDArray[np.int64]:
        """(n,) keyframes whose features the map keeps to recognise places by, ascending."""
        if not self._all("SELECT * FROM sqlite_master WHERE name = 'place_features'"):
            return np.empty(0, np.int64)
        found = self._all("SELECT frame FROM place_features ORDER BY frame")
        return np.array([row[0] for row in found], np.int64)

    @_decoding
    def place_identity(self) -> dict[str, Any]:
        """How the features of keyframes were made (JSON); empty if there are none."""
        found = self._all("SELECT value FROM meta WHERE key = ?", (PLACES_KEY,))
        return dict(parse_json(found[0][0], f"{self.folder}: {DATABASE}, {PLACES_KEY}")) if found else {}

    @_decoding
    def place(self, index: int) -> PlaceKeyframe:
        """The features of a keyframe."""
        self._insist_on_checksums("place_features", "frame = ?", (int(index),))
        found = self._of_frame(f"SELECT {PLACE_COLUMNS} FROM place_features", index)
        if not found:
            raise Anchor3RError(f"{self.folder} keeps no features of frame {index}; see `Map.place_frames()`")
        return place_from_row(found[0])

    @_decoding
    def place_if_kept(self, index: int) -> PlaceKeyframe | None:
        """The features of a keyframe, None if the map does not keep them (yet)."""
        if not self._all("SELECT * FROM sqlite_master WHERE name = 'place_features'"):
            return None
        found = self._all(f"SELECT {PLACE_COLUMNS} FROM place_features WHERE frame = ?", (int(index),))
        return place_from_row(found[0]) if found else None

    def localise(self, image: NDArray[np.uint8], camera: Pinhole | None = None) -> Localisation:
        """Where an image (H, W, 3) RGB was taken in the map as it was at the first call, or why that is not
        told.

        camera: of the image; that of the map if it is not given. `anchor3r localise` keeps the features of
        keyframes in the map; without it the first call computes them.
        """
        from anchor3r.store.localising import MapLocaliser

        if self._localiser is None:
            self._localiser = MapLocaliser(self)
        return self._localiser.localise(image, camera)

    @_decoding
    def runtime(self) -> Runtime:
        """Time and memory of the mapping run(s)."""
        frame, seconds, rss = self._columns(
            "SELECT frame, seconds, peak_rss_bytes FROM runtime ORDER BY frame", 3
        )
        return Runtime(
            frames=np.array(frame, np.int64),
            seconds=np.array(seconds, np.float64),
            peak_rss_bytes=np.array(rss, np.float64),
        )

    def _insist_on_checksums(self, table: str, where: str = "TRUE", parameters: tuple[Any, ...] = ()) -> None:
        """Refuses rows that are not as they were written."""
        if table not in self._with_checksums:
            return
        columns = ", ".join(CHECKED[table])
        query = (
            f"SELECT {CHECKED[table][0]} FROM {table} WHERE {where} AND checksum <> row_checksum({columns})"
        )
        found = self._all(f"{query} LIMIT 1", parameters)
        if found:
            raise Anchor3RError(
                f"{self.folder}: {DATABASE} is damaged (checksum of {table}, {CHECKED[table][0]} "
                f"{found[0][0]}); restore it from a copy or make the map again"
            )

    def _checked_graph(self, edges: Edges) -> MotionGraph:
        if len(edges):
            check_edges(edges, str(self.folder))
        return MotionGraph(edges)

    def _of_frame(self, query: str, index: int) -> list[Any]:
        return self._all(f"{query} WHERE frame = ?", (int(index),))  # SQLite knows no numpy integers

    def _all(self, query: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        with explained(self.folder), self._querying:
            return self._database.execute(query, parameters).fetchall()

    def _columns(self, query: str, count: int, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        found = self._all(query, parameters)
        return list(zip(*found, strict=True)) if found else [()] * count
