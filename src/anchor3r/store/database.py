"""The file a map is kept in: its tables, how it is opened, and what SQLite's errors mean to a user.

A map is a folder with one SQLite database in WAL mode: a frame's pose, edges, point map and picture become
durable in one transaction, a reader may look on while it grows, and a crash at any moment leaves a valid map.
Arrays are little-endian BLOBs; `EDGE` is the record of an edge.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.io.files import open_exclusively

DATABASE = "map.sqlite"
LOCK = "writer.lock"
FORMAT_VERSION = 2
_UNFINISHED = ".map.sqlite.unfinished"
_PARTS = ("", "-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, by what it adds to the name."""
_APPLICATION_ID = 0x41335230  # "A3R0", by which `file` and we know the database

EDGE = np.dtype(
    [
        ("member", "<i8"),
        ("rotation", "<f8", (3, 3)),
        ("translation", "<f8", (3,)),
        ("weight", "<f8"),
        ("log_scale_ratio", "<f8"),
        ("log_scale_sigma", "<f8"),
    ]
)
"""One edge of a group, as `pose_graph.Edges` has them in columns."""

_REFINEMENTS = """
-- a search for loops and what it depends on, JSON; its events have its number
CREATE TABLE searches (search INTEGER PRIMARY KEY, identity TEXT NOT NULL, complete INTEGER NOT NULL);
-- poses of one name beside the online ones: the search whose loops they use, how they were made and what
-- came out, JSON
CREATE TABLE refinements (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, search INTEGER, settings TEXT NOT NULL,
    summary TEXT NOT NULL);
-- what a refinement decided about a loop event; reason: a LoopState
CREATE TABLE verdicts (
    name TEXT NOT NULL, event INTEGER NOT NULL, accepted INTEGER NOT NULL, reason TEXT NOT NULL,
    figures TEXT NOT NULL, PRIMARY KEY (name, event)) WITHOUT ROWID;
"""
_REASONS = """
-- why a frame had no pose when it came, where the predictor could tell: a NoPoseReason
CREATE TABLE IF NOT EXISTS reasons (frame INTEGER PRIMARY KEY, reason TEXT NOT NULL);
"""
_ANSWERS = """
-- which predictor measured the window of a frame, in maps of a predictor that consists of several
CREATE TABLE IF NOT EXISTS answers (frame INTEGER PRIMARY KEY, predictor TEXT NOT NULL);
"""
_CORRECTIONS = """
-- what loops closed online did to the online poses, from a frame on; doubles of OnlineCorrection: heads for
-- the frames that followed, nodes for all before, of the last one only; and once more after the last frame,
-- until the stream goes on
CREATE TABLE IF NOT EXISTS corrections (
    frame INTEGER PRIMARY KEY, heads BLOB NOT NULL, nodes BLOB, checksum INTEGER);
"""
_PLACEMENTS = """
-- where measured positions put a component while the map grew, each from a frame on; doubles of
-- OnlinePlacement, the last one of a component holds
CREATE TABLE IF NOT EXISTS placements (frame INTEGER PRIMARY KEY, placement BLOB NOT NULL, checksum INTEGER);
"""
# Maps of format 1 have one search and one refinement, whose verdicts stand in the loops themselves.
_OF_FORMAT_1 = {
    "searches": "SELECT 0 AS search, json_extract(value, '$.identity') AS identity, "
    "json_extract(value, '$.complete') AS complete FROM meta WHERE key = 'loop_search'",
    "refinements": "SELECT 1 AS id, 'offline' AS name, 0 AS search, '{}' AS settings, value AS summary "
    "FROM meta WHERE key = 'refinement'",
    "verdicts": "SELECT 'offline' AS name, event, accepted, reason, figures FROM main.loops",
}
KEYFRAME_DEPTHS = """
-- measured depth of keyframes, see store/keyframe_depths.py; camera: JSON of Pinhole, of the depth image
CREATE TABLE IF NOT EXISTS keyframe_depths (
    frame INTEGER PRIMARY KEY, camera TEXT NOT NULL, scale REAL NOT NULL, depth BLOB NOT NULL,
    confidence BLOB NOT NULL, normals BLOB NOT NULL, origin BLOB NOT NULL, colours BLOB NOT NULL,
    checksum INTEGER);
"""
"""Older maps get the table with their first depth."""
PLACE_FEATURES = """
-- what places are recognised by, see store/places.py; all of the image of width × height pixels
CREATE TABLE IF NOT EXISTS place_features (
    frame INTEGER PRIMARY KEY, width INTEGER NOT NULL, height INTEGER NOT NULL, pixel BLOB NOT NULL,
    descriptor BLOB NOT NULL, word BLOB NOT NULL, signature BLOB NOT NULL, depth BLOB NOT NULL,
    depth_sigma BLOB NOT NULL, checksum INTEGER);
"""
"""A map gets the table when its places are first asked for."""
_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
-- what made the map; JSON
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
-- intrinsics: JSON of Pinhole, of the source's image; true_pose: 9 + 3 doubles, rotation and translation
-- of camera_from_world; descriptor: floats
CREATE TABLE frames (
    frame INTEGER PRIMARY KEY, timestamp_s REAL NOT NULL, status TEXT NOT NULL,
    intrinsics TEXT, true_pose BLOB, descriptor BLOB);
-- name: 'online' or of a refinement; known_since: the anchor whose window gave the pose;
-- pose: 9 + 3 doubles, camera_from_world rotation and centre; covariance: 36 doubles
CREATE TABLE poses (
    name TEXT NOT NULL, frame INTEGER NOT NULL, known_since INTEGER NOT NULL, component INTEGER NOT NULL,
    pose BLOB NOT NULL, covariance BLOB, log_scale REAL NOT NULL, log_scale_sigma REAL NOT NULL,
    PRIMARY KEY (name, frame)) WITHOUT ROWID;
-- edges: records of EDGE; information: 36 doubles an edge; event: the loop that the group belongs to
CREATE TABLE edge_groups (
    id INTEGER PRIMARY KEY, anchor INTEGER NOT NULL, kind INTEGER NOT NULL,
    edges BLOB NOT NULL, information BLOB, event INTEGER REFERENCES loops);
CREATE UNIQUE INDEX windows ON edge_groups (anchor) WHERE kind = 0;
CREATE INDEX group_events ON edge_groups (event) WHERE event IS NOT NULL;
-- reason: the LoopState that was measured, or the user's own verdict
CREATE TABLE loops (
    event INTEGER PRIMARY KEY, query INTEGER NOT NULL, match INTEGER NOT NULL,
    accepted INTEGER NOT NULL, reason TEXT NOT NULL, figures TEXT NOT NULL,
    search INTEGER NOT NULL DEFAULT 0);
{_REFINEMENTS}
{_REASONS}
{_ANSWERS}
{_CORRECTIONS}
{_PLACEMENTS}
CREATE TABLE points (
    frame INTEGER PRIMARY KEY, height INTEGER NOT NULL, width INTEGER NOT NULL, scale REAL NOT NULL,
    camera TEXT, points BLOB NOT NULL, colours BLOB NOT NULL, confidence BLOB);
{KEYFRAME_DEPTHS}
CREATE TABLE pictures (frame INTEGER PRIMARY KEY, jpeg BLOB NOT NULL);
-- the mapper's state right after the frame: arrays by name, in deflated parts (a BLOB ends at 1 GB)
CREATE TABLE snapshots (
    frame INTEGER NOT NULL, name TEXT NOT NULL, part INTEGER NOT NULL,
    dtype TEXT NOT NULL, shape TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (frame, name, part));
-- wall time since the frame before
CREATE TABLE runtime (frame INTEGER PRIMARY KEY, seconds REAL NOT NULL, peak_rss_bytes INTEGER);
"""


_PAGES_CHECKED_BYTES = 1 << 30
"""Of maps up to this size all pages are looked at when they are opened, which takes about a second a GB."""
_ACTIVE = """
SELECT name FROM main.sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'
UNION ALL SELECT m.name FROM main.sqlite_master m, pragma_table_xinfo(m.name) c
WHERE m.type = 'table' AND c.hidden
"""
"""Views, triggers, virtual tables and generated columns of a database."""
_VIEWS_OF_FORMAT_1 = (
    "".join(f"CREATE TEMP VIEW {table} AS {query};" for table, query in _OF_FORMAT_1.items())
    + "CREATE TEMP VIEW loops AS SELECT *, 0 AS search FROM main.loops;"
)
"""What a reader of an old map, which it must not change, sees in place of the tables of today."""
_UPGRADE = (
    f"BEGIN IMMEDIATE; {_REFINEMENTS} ALTER TABLE loops ADD COLUMN search INTEGER NOT NULL DEFAULT 0;"
    + "".join(f"INSERT INTO {table} {query};" for table, query in _OF_FORMAT_1.items())
    + "DELETE FROM meta WHERE key IN ('loop_search', 'refinement');"
    + f"PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"
)


CHECKED: dict[str, tuple[str, ...]] = {
    "frames": ("frame", "timestamp_s", "status", "intrinsics", "true_pose", "descriptor"),
    "poses": (
        "name", "frame", "known_since", "component", "pose", "covariance", "log_scale", "log_scale_sigma",
    ),
    "edge_groups": ("anchor", "kind", "edges", "information", "event"),
    "points": ("frame", "height", "width", "scale", "camera", "points", "colours", "confidence"),
    "pictures": ("frame", "jpeg"),
    "snapshots": ("frame", "name", "part", "dtype", "shape", "data"),
    "corrections": ("frame", "heads", "nodes"),
    "placements": ("frame", "placement"),
    "keyframe_depths": (
        "frame", "camera", "scale", "depth", "confidence", "normals", "origin", "colours",
    ),
    "place_features": (
        "frame", "width", "height", "pixel", "descriptor", "word", "signature", "depth", "depth_sigma",
    ),
}  # fmt: skip
"""Tables whose rows carry a checksum, and of which columns: a disk that has changed a bit is found out."""
META_CHECKSUM = "checksum"
"""Of the table meta: the checksum of its other rows, which are few and written together."""


def row_checksum(*values: Any) -> int:
    """The checksum of a row: CRC-32 of its values, each with its length; a number counts as a double."""
    crc = 0
    for value in values:
        data = value if isinstance(value, bytes) else _number_or_text(value)
        crc = zlib.crc32(data, zlib.crc32(len(data).to_bytes(8, "little"), crc))
    return crc


def _number_or_text(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    return b"" if value is None else struct.pack("<d", value)


def holds_map(folder: Path) -> bool:
    """Whether a map was begun in the folder; a crash before its first transaction leaves none."""
    path = folder / DATABASE
    with explained(folder):
        if not path.is_file():
            return False
        database = _connect(path, _read_mode(folder))
        application = database.execute("PRAGMA application_id").fetchone()[0]
        num_tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        database.close()
    if num_tables and application != _APPLICATION_ID:
        raise Anchor3RError(f"{path} is a database of another program; choose another folder")
    return num_tables > 0


def create_database(folder: Path, meta: Mapping[str, object]) -> sqlite3.Connection:
    """Makes the folder if need be and an empty map in it, in place of any that is there.

    meta: what is known of the map from the start (JSON). The map appears at once with all of it: it is made
    under another name first, so that a crash leaves the folder either without a map or with a whole one.
    """
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / _UNFINISHED
        _remove_all(folder, _UNFINISHED)
        open_exclusively(unfinished).close()
        database = _connect(unfinished, "rw")
        try:
            # Without a log: closing would have to merge it, and does not tell where a full disk forbids that.
            database.executescript(f"BEGIN; {_SCHEMA}")
            _add_checksums(database)
            replace_meta(database, meta)
            database.execute("COMMIT")
            _prepare_to_write(database)
            database.close()
        except BaseException:
            database.close()
            _remove_all(folder, _UNFINISHED)
            raise
        # A log that lies there without its database would be taken for the new one's.
        _remove_all(folder, DATABASE)
        os.replace(unfinished, folder / DATABASE)
        database = _connect(folder / DATABASE, "rw")
        _prepare_to_write(database)
    return database


def open_database(folder: Path, *, write: bool = False) -> sqlite3.Connection:
    """Opens an existing map, to read it or to add to it."""
    path = folder / DATABASE
    with explained(folder):
        if not path.is_file():
            raise Anchor3RError(f"{folder} holds no map; check the path, or map a source into it first")
        database = _connect(path, "rw" if write else _read_mode(folder))
        application = database.execute("PRAGMA application_id").fetchone()[0]
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if write:
            _prepare_to_write(database)
        if application == _APPLICATION_ID and version == 1:
            database.executescript(_UPGRADE if write else _VIEWS_OF_FORMAT_1)
        if application == _APPLICATION_ID:
            _insist_on_whole(folder, database, num_bytes=path.stat().st_size)
            if write:
                # Maps from before there were such lack them.
                database.executescript(_REASONS + _ANSWERS + _CORRECTIONS + _PLACEMENTS)
                _add_checksums(database)
        if not write:
            database.execute("PRAGMA query_only = ON")
    if application != _APPLICATION_ID:
        raise Anchor3RError(
            f"{path} is not a map, or was never begun; check the path, or map a source into it first"
        )
    if version > FORMAT_VERSION:
        raise Anchor3RError(
            f"{folder} is a map of format {version}, but this anchor3r reads up to {FORMAT_VERSION}; "
            "update anchor3r"
        )
    return database


def remove_database(folder: Path) -> None:
    """Deletes the map, and nothing else that may lie in its folder."""
    with explained(folder):
        _remove_all(folder, DATABASE)


def _remove_all(folder: Path, name: str) -> None:
    for part in _PARTS:
        (folder / f"{name}{part}").unlink(missing_ok=True)


def _insist_on_whole(folder: Path, database: sqlite3.Connection, num_bytes: int) -> None:
    """Refuses a map whose tables are not those of a map, or whose pages a disk has damaged."""
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    optional = {"keyframe_depths", "corrections", "placements", "place_features"}
    if missing := sorted(({"meta", "loops"} | set(CHECKED)) - optional - tables):
        raise Anchor3RError(
            f"{folder}: {DATABASE} lacks the table {missing[0]}; restore it from a copy or make the map again"
        )
    if active := database.execute(_ACTIVE).fetchone():
        raise Anchor3RError(
            f"{folder}: {DATABASE} computes what it holds ({active[0]}), which no map does: a query might "
            "never end; restore it from a copy or make the map again"
        )
    if num_bytes <= _PAGES_CHECKED_BYTES:
        found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise Anchor3RError(
                f"{folder}: {DATABASE} is damaged ({found}); restore it from a copy or make the map again"
            )

    if (told := _meta_checksums(database)) and told[0] != told[1]:
        raise Anchor3RError(
            f"{folder}: {DATABASE} is damaged (what it says of itself is not what was written); restore it "
            "from a copy or make the map again"
        )


def replace_meta(database: sqlite3.Connection, values: Mapping[str, object]) -> None:
    """Keeps facts about the map, as JSON under their names, and the checksum of all there are."""
    database.executemany(
        "REPLACE INTO meta VALUES (?, ?)", [(key, json.dumps(value)) for key, value in values.items()]
    )
    database.execute("REPLACE INTO meta VALUES (?, ?)", (META_CHECKSUM, str(meta_checksum(database))))


def meta_checksum(database: sqlite3.Connection) -> int:
    """Checksum of all facts about the map that it holds now."""
    found = database.execute("SELECT key, value FROM meta WHERE key != ? ORDER BY key", (META_CHECKSUM,))
    return row_checksum(*(text for row in found for text in row))


def _meta_checksums(database: sqlite3.Connection) -> tuple[str, str] | None:
    """The checksum that was written, and that of what is there; None in a map from before there were such."""
    found = database.execute("SELECT value FROM meta WHERE key = ?", (META_CHECKSUM,)).fetchone()
    return None if found is None else (str(found[0]), str(meta_checksum(database)))


def has_checksums(database: sqlite3.Connection, table: str) -> bool:
    """Maps that were begun by an earlier version have none until they are written to."""
    return any(row[1] == "checksum" for row in database.execute(f"PRAGMA main.table_info({table})"))


def _add_checksums(database: sqlite3.Connection) -> None:
    """Adds the column to tables without it; rows that are there already stay unchecked (NULL)."""
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table in CHECKED:
        if table in tables and not has_checksums(database, table):
            database.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER")


def acquire_lock(folder: Path) -> sqlite3.Connection:
    """Makes this process the only writer of the map until the connection closes or the process dies."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = sqlite3.connect(folder / LOCK, isolation_level=None, timeout=0)
        lock.execute("BEGIN EXCLUSIVE")
    return lock


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turns what SQLite and the file system report into what the user can do about it."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        raise Anchor3RError(f"{folder}: {_meaning(name)} ({error})") from error
    except UnicodeDecodeError as error:  # SQLite's message quotes damaged text, which Python cannot read
        raise Anchor3RError(f"{folder}: {_meaning('SQLITE_CORRUPT')} (a name in it is no text)") from error
    except OSError as error:
        raise Anchor3RError(f"{folder}: {error.strerror or error}; choose another folder") from error


def _meaning(name: str) -> str:
    again = "then run the same again (map with --resume). The map is whole as far as it goes"
    meanings = {
        "SQLITE_FULL": f"the disk is full; free some space, {again}",
        "SQLITE_IOERR": f"the disk is full or failing; see to it, {again}",
        "SQLITE_READONLY": "the folder is read-only; choose another one or change its permissions",
        "SQLITE_CANTOPEN": "the map cannot be opened; check the folder's permissions",
        "SQLITE_BUSY": "another process is writing this map; wait for it or stop it",
        "SQLITE_NOTADB": f"{DATABASE} is not a map; choose another folder",
        "SQLITE_CORRUPT": f"{DATABASE} is damaged; restore it from a copy or make the map again",
    }
    primary = "_".join(name.split("_")[:2])
    return meanings.get(primary, "the map cannot be read or written")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{Path(os.path.realpath(path)).as_uri()}?{mode if '=' in mode else f'mode={mode}'}"
    # Readers use one connection from several threads; `Map` lets in one query at a time.
    database = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    database.create_function("row_checksum", -1, row_checksum, deterministic=True)
    # What a foreign map says is data: it may neither call functions of ours nor change while it is read.
    database.execute("PRAGMA trusted_schema = OFF")
    return database


def _prepare_to_write(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    # After a burst the log shrinks back instead of keeping its largest size.
    database.execute(f"PRAGMA journal_size_limit = {16 << 20}")


def _read_mode(folder: Path) -> str:
    """How a map is opened to be read.

    Where the folder can be written, SQLite may keep its log in order: what a crash has left is played back,
    and the last to close takes the log away, without which the map opens on read-only media as well. Where
    nothing can be written, a closed map needs no log.
    """
    log = folder / f"{DATABASE}-wal"
    if os.access(folder, os.W_OK) and os.access(folder / DATABASE, os.W_OK):
        return "rw"
    return "ro" if log.exists() and log.stat().st_size else "immutable=1"
