"""Adding to a map: frame by frame while it is made, loops and refined poses afterwards."""

from __future__ import annotations

import json
import logging
import sqlite3
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from anchor3r.dense.keyframe_depth import KeyframeDepth
from anchor3r.errors import Anchor3RError
from anchor3r.io.inputs import decoding, parse_json
from anchor3r.places.keyframes import PlaceKeyframe
from anchor3r.pose_graph.correction import OnlineCorrection
from anchor3r.pose_graph.edges import Edges
from anchor3r.pose_graph.online_placement import OnlinePlacement
from anchor3r.predictors.confidence import CONFIDENCE_MEANS
from anchor3r.predictors.interface import WindowPrediction
from anchor3r.sources.frame import Frame
from anchor3r.store import rows
from anchor3r.store.database import (
    CHECKED,
    DATABASE,
    KEYFRAME_DEPTHS,
    LOCK,
    PLACE_FEATURES,
    acquire_lock,
    create_database,
    explained,
    holds_map,
    open_database,
    remove_database,
    replace_meta,
)
from anchor3r.store.keyframe_depths import DENSIFICATION_KEY, depth_row
from anchor3r.store.meta import checked_meta
from anchor3r.store.places import PLACES_KEY, place_row
from anchor3r.store.rows import AT_END, CONFIDENCE_KEY, ONLINE, Loop, LoopClosing, TableRow
from anchor3r.trajectory import FramePose, Trajectory

_REPLAY_TOLERANCE = 1e-3
_LEAST_WATCH_S = 0.05
"""Between looks at whether something waits to be committed."""
logger = logging.getLogger("anchor3r")


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """What is kept of a frame, and how soon it is safe."""

    keep_images: bool = True
    """Keep a JPEG of every frame, so that loops can be closed when the camera is gone."""
    image_side: int = 640
    """Longer side in pixels that kept images are reduced to."""
    image_quality: int = rows.IMAGE_QUALITY
    """JPEG quality of kept images."""
    commit_interval_s: float = 0.5
    """A frame is on the disk at the latest after one and a half times this long, whether another one comes or
    not."""
    commit_frames: int = 64
    """A frame is on the disk at the latest after this many more."""
    snapshot_frames: int = 200
    """Frames between snapshots of the mapper's state, from which a resumed run replays."""
    snapshot_share: float = 0.05
    """Part of the time that snapshots may take: if they would take more, more frames lie between them."""

    def __post_init__(self) -> None:
        if self.image_side < 1 or self.commit_frames < 1 or self.snapshot_frames < 1:
            raise ValueError(f"image_side, commit_frames and snapshot_frames must be at least 1: {self}")
        if not 1 <= self.image_quality <= 100:
            raise ValueError(f"image_quality must lie in 1 … 100: {self}")
        if not (self.commit_interval_s >= 0 and 0 < self.snapshot_share <= 1):
            raise ValueError(f"commit_interval_s must be >= 0 and snapshot_share in (0, 1]: {self}")


class MapWriter:
    """The one process that adds to a map; a context manager.

    Frames come in ascending order and are committed as `StoreConfig` says, and on exit, by an error too: a
    frame is in the map wholly or not at all.
    """

    def __init__(
        self, folder: Path, lock: sqlite3.Connection, database: sqlite3.Connection, config: StoreConfig | None
    ) -> None:
        """Use `create`, `resume` or `open`."""
        self.folder, self.config = folder, config or StoreConfig()
        self._lock, self._database = lock, database
        self.last_frame: int = self._value("SELECT max(frame) FROM frames", default=-1)
        """The highest frame in the map; -1 if there is none."""
        self._may_be_ended = self.last_frame >= 0
        self.replay_is_exact = True
        """Whether all frames that were recorded again after `resume` came out bit for bit."""
        self._busy = threading.RLock()
        """Held while the database is changed: `_watch` commits from a thread of its own."""
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        self._failure: Anchor3RError | None = None
        self._uncommitted = self._since_snapshot = 0
        self._committed_at = self._recorded_at = time.monotonic()
        self._snapshot_not_before = 0.0

    @staticmethod
    def create(
        folder: Path | str,
        identity: Mapping[str, object] | None = None,
        *,
        config: StoreConfig | None = None,
        overwrite: bool = False,
    ) -> MapWriter:
        """Begins a new map. `identity` (JSON) says what it is made from; `resume` insists on the same."""
        folder = Path(folder)
        exists = holds_map(folder)
        if exists and not overwrite:
            raise Anchor3RError(
                f"{folder} already holds a map; go on with --resume or replace it with --overwrite"
            )
        lock = acquire_lock(folder)
        config = config or StoreConfig()
        known = {"identity": identity or {}, "store": asdict(config), CONFIDENCE_KEY: CONFIDENCE_MEANS}
        with _closed_on_error(lock):
            return MapWriter(folder, lock, create_database(folder, known), config)

    @staticmethod
    def resume(
        folder: Path | str,
        identity: Mapping[str, object] | None = None,
        *,
        config: StoreConfig | None = None,
    ) -> MapWriter:
        """Goes on with a map that was made from the same `identity`; begins it if it is not there."""
        folder = Path(folder)
        if not holds_map(folder):
            return MapWriter.create(folder, identity, config=config)
        writer = MapWriter.open(folder, config=config)
        if not writer._value(f"SELECT count(*) FROM meta WHERE key = '{CONFIDENCE_KEY}'", default=0):
            writer.close()
            raise Anchor3RError(
                f"{folder} was begun by an earlier anchor3r, whose points had confidences of another kind; "
                "it can be read and refined, but new frames need a map of their own: choose another folder"
            )
        with decoding(f"{folder}: {DATABASE}", "make the map again"):
            text = writer._value("SELECT value FROM meta WHERE key = 'identity'", default="{}")
            made_from = checked_meta([("identity", text)], f"{folder}: {DATABASE}")["identity"]
        for key, value in json.loads(json.dumps(identity or {})).items():
            if made_from.get(key) != value:
                writer.close()
                raise Anchor3RError(
                    f"{folder} was made with {key} = {made_from.get(key)!r}, not {value!r}; "
                    "resume it with the same, or choose another folder"
                )
        return writer

    @staticmethod
    def open(folder: Path | str, *, config: StoreConfig | None = None) -> MapWriter:
        """Opens an existing map to add to it, whatever it was made from."""
        folder = Path(folder)
        database = open_database(folder, write=True)
        with _closed_on_error(database):
            lock = acquire_lock(folder)
            with _closed_on_error(lock):
                return MapWriter(folder, lock, database, config)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # the first error is the one to report
            with suppress(Anchor3RError):
                self.close()

    def close(self) -> None:
        """Commits what was recorded and lets others write."""
        self._stop_watching()
        try:
            self.commit()
        finally:
            self._database.close()
            self._lock.close()

    def discard(self) -> None:
        """Takes a map away that holds nothing yet, and its folder unless something else lies there."""
        self._stop_watching()
        self._database.close()
        remove_database(self.folder)
        self._lock.close()
        with suppress(OSError):
            (self.folder / LOCK).unlink()
            self.folder.rmdir()

    def record(
        self,
        frame: Frame,
        prediction: WindowPrediction,
        edges: Edges,
        poses: Iterable[FramePose],
        closing: LoopClosing | None = None,
        placement: OnlinePlacement | None = None,
    ) -> None:
        """Adds a frame, the edges of its window and the poses that became known with it.

        closing: loops that were closed meanwhile; they correct the poses from this frame on. placement: where
        positions put the frame's component from now on.
        A frame that is in the map already, in a replay after `resume`, is compared instead.
        """
        decisive = rows.decisive(frame, prediction, edges, poses)
        if frame.index <= self.last_frame:
            self._compare(frame.index, decisive)
            return
        config = self.config
        image_side = config.image_side if config.keep_images else 0
        bulk = list(rows.bulk(frame, prediction, image_side, config.image_quality))
        with self._busy:
            with explained(self.folder), self._all_or_nothing():
                self._forget_end()
                for row in [*decisive, *bulk, self._runtime(frame.index)]:
                    row.insert(self._database)
                if closing is not None:
                    self._close_loops(frame.index, closing)
                if placement is not None:
                    rows.placement_row(frame.index, placement).insert(self._database)
            self.last_frame = frame.index
            self._uncommitted += 1
            self._since_snapshot += 1
            if self._is_overdue() or self._uncommitted >= config.commit_frames:
                self.commit()
        self._start_watching()

    def end(self, closing: LoopClosing, placement: OnlinePlacement | None = None) -> None:
        """Keeps what loops come to after the last frame, until a frame follows it after all.

        Their search is complete then. The stream's own corrections stay as they are.
        """
        with self._transaction():
            self._forget_loops(closing.search)
            self._add_loops(closing)
            after = self.last_frame + 1
            if closing.correction is not None:
                self._add_correction(after, closing.correction)
            if placement is not None:
                rows.placement_row(after, placement).insert(self._database)
            self._database.execute("UPDATE searches SET complete = 1 WHERE search = ?", (closing.search,))
        self._may_be_ended = True

    def _forget_end(self) -> None:
        """Takes back what `end` has kept, as the stream goes on."""
        if not self._may_be_ended:
            return
        self._may_be_ended = False
        ended = self._database.execute(
            f"SELECT search FROM searches WHERE complete AND json_extract(identity, '$.{AT_END}')"
        ).fetchall()
        for (search,) in ended:
            for table in ("corrections", "placements"):
                self._database.execute(f"DELETE FROM {table} WHERE frame > ?", (self.last_frame,))
            self._forget_loops(search)
            self._database.execute("UPDATE searches SET complete = 0 WHERE search = ?", (search,))

    def _add_loops(self, closing: LoopClosing) -> None:
        for place in closing.places:
            is_kept = f"SELECT count(*) FROM place_features WHERE frame = {place.frame:d}"
            if not self._value(is_kept, default=0):  # localise keeps them too, of a map that is gone on with
                TableRow("place_features", place_row(place)).insert(self._database)
        for loop, groups in closing.found:
            self._insert_loop(replace(loop, event=self.next_event()), groups, closing.search)

    def _add_correction(self, frame: int, correction: OnlineCorrection) -> None:
        rows.correction_row(frame, correction.heads().to_bytes(), correction.to_bytes()).insert(
            self._database
        )

    def _close_loops(self, frame: int, closing: LoopClosing) -> None:
        self._add_loops(closing)
        for loop in closing.judged:
            self._database.execute(
                "UPDATE loops SET accepted = :accepted, reason = :reason, figures = :figures "
                "WHERE search = :search AND query = :query AND match = :match",
                rows.loop_row(loop, closing.search).values,
            )
        if closing.correction is not None:
            for (earlier,) in self._database.execute(
                "SELECT frame FROM corrections WHERE nodes IS NOT NULL"
            ).fetchall():
                heads = self._value(f"SELECT heads FROM corrections WHERE frame = {earlier}", default=b"")
                self._database.execute("DELETE FROM corrections WHERE frame = ?", (earlier,))
                rows.correction_row(earlier, heads, None).insert(self._database)
            self._add_correction(frame, closing.correction)

    def insist_on_same(self, frame: Frame) -> None:
        """Refuses a source whose `frame` is not the one of that index in the map."""
        query = (
            "SELECT timestamp_s, true_pose, jpeg FROM frames LEFT JOIN pictures USING (frame) WHERE frame = ?"
        )
        with explained(self.folder):
            timestamp_s, true_pose, jpeg = self._database.execute(query, (frame.index,)).fetchone()
        if not rows.shows_same(frame, timestamp_s, true_pose, jpeg, self.config.image_quality):
            raise Anchor3RError(
                f"{self.folder}: frame {frame.index} of the source is not the one in the map; resume with "
                "the source it was made from (a world also depends on its number of frames), or map anew"
            )

    def commit(self) -> None:
        """Makes everything recorded so far durable."""
        with self._busy, explained(self.folder):
            if self._failure is not None:  # frames that were recorded are gone: nothing may follow them
                raise self._failure
            if self._database.in_transaction:
                self._database.execute("COMMIT")
            self._uncommitted, self._committed_at = 0, time.monotonic()

    def _is_overdue(self) -> bool:
        return time.monotonic() - self._committed_at >= self.config.commit_interval_s

    def _start_watching(self) -> None:
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="map commits", daemon=True)
            self._watcher.start()

    def _stop_watching(self) -> None:
        self._closing.set()
        if self._watcher is not None:
            self._watcher.join()

    def _watch(self) -> None:
        """Commits frames that have waited long enough although none came after them, as a source stalls."""
        while not self._closing.wait(max(self.config.commit_interval_s / 2, _LEAST_WATCH_S)):
            with self._busy:
                if not self._uncommitted or not self._is_overdue():
                    continue
                try:
                    self.commit()
                except Anchor3RError as error:
                    self._failure = error
                    return

    @property
    def snapshot_due(self) -> bool:
        """Whether `save_snapshot` should follow the frame just recorded."""
        return (
            self._since_snapshot >= self.config.snapshot_frames
            and time.monotonic() >= self._snapshot_not_before
        )

    def save_snapshot(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Keeps the mapper's state right after the last recorded frame, instead of any earlier one."""
        started = time.monotonic()
        with self._busy, explained(self.folder), self._all_or_nothing():
            self._database.execute("DELETE FROM snapshots")
            for row in rows.snapshot(self.last_frame, state):
                row.insert(self._database)
        self._since_snapshot = 0
        cost_s = time.monotonic() - started
        self._snapshot_not_before = time.monotonic() + cost_s / self.config.snapshot_share

    def load_snapshot(self) -> tuple[int, dict[str, NDArray[Any]]] | None:
        """The frame and the state of `save_snapshot`; None if there is none."""
        columns = ", ".join(CHECKED["snapshots"])
        with explained(self.folder):
            found = self._database.execute(
                f"SELECT frame, name, dtype, shape, data, ifnull(checksum = row_checksum({columns}), 1) "
                "FROM snapshots ORDER BY name, part"
            ).fetchall()
        if not found:
            return None
        remedy = "make the map again"
        with decoding(f"{self.folder}: the state from which the map is resumed", remedy):
            if not all(row[5] for row in found):
                raise ValueError("checksum")
            return int(found[0][0]), rows.state_from_snapshot([row[1:5] for row in found])

    def pose(self, frame: int, *, before: int) -> FramePose | None:
        """A frame's online pose, if an anchor earlier than `before` gave it one."""
        with explained(self.folder):
            found = self._database.execute(
                f"SELECT {rows.POSE_COLUMNS} FROM poses WHERE name = ? AND frame = ? AND known_since < ?",
                (ONLINE, frame, before),
            ).fetchone()
        return rows.pose_from_row(found) if found else None

    def last_pose(self) -> FramePose | None:
        """The online pose of the highest frame that has one."""
        with explained(self.folder):
            found = self._database.execute(
                f"SELECT {rows.POSE_COLUMNS} FROM poses WHERE name = ? ORDER BY frame DESC LIMIT 1", (ONLINE,)
            ).fetchone()
        return rows.pose_from_row(found) if found else None

    def write_meta(self, **values: object) -> None:
        """Keeps facts about the map, as JSON under their names."""
        with self._transaction():
            replace_meta(self._database, values)

    def add_rows(self, added: Iterable[TableRow]) -> None:
        """Adds rows as they were kept in another map, all of them or none; frames must be new."""
        with self._transaction():
            for row in added:
                row.insert(self._database)
        self.last_frame = self._value("SELECT max(frame) FROM frames", default=-1)

    def write_trajectory(self, name: str, trajectory: Trajectory) -> None:
        """Keeps the poses of a refinement under a name, in place of any of that name."""
        with self._transaction():
            self._replace_poses(name, trajectory)

    def write_refinement(
        self,
        name: str,
        trajectory: Trajectory,
        verdicts: Iterable[Loop] = (),
        *,
        search: int | None = None,
        settings: Mapping[str, object] | None = None,
        summary: Mapping[str, object] | None = None,
    ) -> None:
        """Keeps the poses of a refinement in place of any of that name, with all that they rest on.

        verdicts: what it decided about the events of its search. What the user said of one stays with the
        event for all refinements to come.
        """
        with self._transaction():
            self._replace_poses(name, trajectory)
            self._database.execute("DELETE FROM refinements WHERE name = ?", (name,))
            self._database.execute(
                "INSERT INTO refinements (name, search, settings, summary) VALUES (?, ?, ?, ?)",
                (name, search, json.dumps(settings or {}), json.dumps(summary or {})),
            )
            self._database.execute("DELETE FROM verdicts WHERE name = ?", (name,))
            for loop in verdicts:
                columns = rows.verdict(loop) | {"event": loop.event}
                rows.TableRow("verdicts", columns | {"name": name}).insert(self._database)
                if loop.state.is_by_hand:
                    self._database.execute(
                        "UPDATE loops SET accepted = :accepted, reason = :reason WHERE event = :event",
                        columns,
                    )

    def begin_search(self, identity: Mapping[str, object], *, anew: bool = False) -> tuple[int, bool]:
        """The number of the search for loops that depends on `identity` (JSON), and whether it is complete.

        anew: forget what it has found so far.
        """
        text = json.dumps(identity, sort_keys=True)
        with self._transaction():
            found = self._database.execute(
                "SELECT search, complete, identity FROM searches ORDER BY search"
            ).fetchall()
            for search, complete, known in found:
                if parse_json(known, f"{self.folder}: {DATABASE}, search {search}") != json.loads(text):
                    continue
                if anew:
                    self._forget_loops(search)
                    self._database.execute("UPDATE searches SET complete = 0 WHERE search = ?", (search,))
                return search, bool(complete) and not anew
            search = 1 + max((row[0] for row in found), default=-1)
            self._database.execute("INSERT INTO searches VALUES (?, ?, 0)", (search, text))
        return search, False

    def finish_search(self, search: int) -> None:
        """Notes that all loops of a search are in the map."""
        with self._transaction():
            self._database.execute("UPDATE searches SET complete = 1 WHERE search = ?", (search,))

    def next_event(self) -> int:
        """The number of the next loop event; numbers are unique over all searches."""
        return 1 + int(self._value("SELECT max(event) FROM loops", default=-1))

    def write_loops(self, loops: Iterable[tuple[Loop, Sequence[Edges]]], search: int = 0) -> None:
        """Keeps loop events with the groups of edges that each measured, in place of all of that search."""
        with self._transaction():
            self._forget_loops(search)
            for loop, groups in loops:
                self._insert_loop(loop, groups, search)

    def add_loop(self, loop: Loop, groups: Sequence[Edges], search: int = 0) -> None:
        """Keeps one more loop event of a search with its groups of edges."""
        with self._transaction():
            self._insert_loop(loop, groups, search)

    def begin_depths(self, poses: str, identity: Mapping[str, object]) -> set[int]:
        """Prepares for measured depths of keyframes and returns the frames that have theirs already.

        Depths that were measured in another way, or with other poses, are taken away.
        """
        about: dict[str, Any] = {"poses": poses, "identity": identity, "complete": False, "summary": {}}
        about = json.loads(json.dumps(about))
        known = self._densification()
        with self._transaction():
            self._database.execute(KEYFRAME_DEPTHS)
            if known.get("identity") != about["identity"] or known.get("poses") != poses:
                self._database.execute("DELETE FROM keyframe_depths")
                replace_meta(self._database, {DENSIFICATION_KEY: about})
            return {row[0] for row in self._database.execute("SELECT frame FROM keyframe_depths")}

    def _densification(self) -> dict[str, Any]:
        text = self._value(f"SELECT value FROM meta WHERE key = '{DENSIFICATION_KEY}'", default="{}")
        known = parse_json(text, f"{self.folder}: {DATABASE}, {DENSIFICATION_KEY}")
        return known if isinstance(known, dict) else {}

    def write_keyframe_depth(self, view: KeyframeDepth) -> None:
        """Keeps the measured depth of one more keyframe, durable at once."""
        row = TableRow("keyframe_depths", depth_row(view))
        with self._transaction():
            row.insert(self._database)

    def finish_depths(self, summary: Mapping[str, object]) -> None:
        """Notes that all keyframes have their depths, and what came out (JSON)."""
        known = self._densification()
        self.write_meta(**{DENSIFICATION_KEY: known | {"complete": True, "summary": summary}})

    def begin_places(self, identity: Mapping[str, object]) -> set[int]:
        """Prepares for features of keyframes and returns the frames that have theirs already.

        Features that were made in another way (identity, JSON) are taken away.
        """
        text = self._value(f"SELECT value FROM meta WHERE key = '{PLACES_KEY}'", default="null")
        known = parse_json(text, f"{self.folder}: {DATABASE}, {PLACES_KEY}")
        with self._transaction():
            self._database.execute(PLACE_FEATURES)
            if known != json.loads(json.dumps(identity)):
                self._database.execute("DELETE FROM place_features")
                replace_meta(self._database, {PLACES_KEY: identity})
            return {row[0] for row in self._database.execute("SELECT frame FROM place_features")}

    def write_place(self, keyframe: PlaceKeyframe) -> None:
        """Keeps the features of one more keyframe, durable at once."""
        row = TableRow("place_features", place_row(keyframe))
        with self._transaction():
            row.insert(self._database)

    def _forget_loops(self, search: int) -> None:
        events = "SELECT event FROM loops WHERE search = ?"
        self._database.execute(f"DELETE FROM edge_groups WHERE event IN ({events})", (search,))
        self._database.execute(f"DELETE FROM verdicts WHERE event IN ({events})", (search,))
        self._database.execute("DELETE FROM loops WHERE search = ?", (search,))

    def _replace_poses(self, name: str, trajectory: Trajectory) -> None:
        self._database.execute("DELETE FROM poses WHERE name = ?", (name,))
        for k in range(len(trajectory)):
            rows.pose_row(name, trajectory.pose(k), known_since=self.last_frame).insert(self._database)

    def _insert_loop(self, loop: Loop, groups: Iterable[Edges], search: int) -> None:
        rows.loop_row(loop, search).insert(self._database)
        for edges in groups:
            rows.group_row(edges, event=loop.event).insert(self._database)

    def _begin(self) -> None:
        if not self._database.in_transaction:
            self._database.execute("BEGIN IMMEDIATE")

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Undoes a frame or a snapshot of which only a part could be written."""
        self._begin()
        self._database.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            # On a full disk SQLite has already gone back to the last commit by itself.
            if self._database.in_transaction:
                self._database.execute("ROLLBACK TO part")
            raise
        self._database.execute("RELEASE part")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One change, all of it or nothing, durable at once; what was recorded before is committed first."""
        with self._busy:
            self.commit()
            with explained(self.folder):
                self._begin()
                try:
                    yield
                except BaseException:
                    if self._database.in_transaction:
                        self._database.execute("ROLLBACK")
                    raise
            self.commit()

    def _compare(self, frame: int, recomputed: Iterable[TableRow]) -> None:
        for row in recomputed:
            with explained(self.folder):
                difference = row.difference(self._database)
            if difference > _REPLAY_TOLERANCE:
                raise Anchor3RError(
                    f"{self.folder}: frame {frame} came out differently when replayed ({row.table} differ by "
                    f"{difference:.3g}); the source or the predictor has changed: make a new map"
                )
            if difference and self.replay_is_exact:
                self.replay_is_exact = False
                logger.warning(
                    "the replay differs from the map by up to %.1g from frame %d on, as computations on "
                    "another device or number of threads do; going on, but not bit for bit",
                    difference, frame,
                )  # fmt: skip

    def _runtime(self, frame: int) -> TableRow:
        now = time.monotonic()
        seconds, self._recorded_at = now - self._recorded_at, now
        return TableRow("runtime", {"frame": frame, "seconds": seconds, "peak_rss_bytes": _peak_rss_bytes()})

    def _value(self, query: str, *, default: Any) -> Any:
        with explained(self.folder):
            found = self._database.execute(query).fetchone()
        return default if found is None or found[0] is None else found[0]


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _peak_rss_bytes() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes
