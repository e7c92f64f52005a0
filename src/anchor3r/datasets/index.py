"""What of a data set is on this disk: found once, in parallel, and kept.

The index is a folder of its own, since data are often on a disk that cannot be written to. One line of
`index.jsonl` a sequence is written as soon as it was looked at, so an interrupted index goes on; tables lie
beside it, so that nothing is parsed again while training.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import DataSet, RecordedSequence, SequenceTable
from anchor3r.datasets.files import Files, open_files
from anchor3r.errors import Anchor3RError
from anchor3r.io.inputs import DAMAGED, decoding, text_lines
from anchor3r.records import record_from_json

THREADS = 8
"""Sequences that are looked at together; most of the time is spent waiting for the disk."""
MIN_POSED = 2
"""A sequence with fewer frames that have a pose cannot be used."""
_UNREADABLE = (Anchor3RError, *DAMAGED)
"""What reading a sequence raises if a file is missing or is not what its name says."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One sequence that can be used."""

    name: str
    num_frames: int
    num_posed: int
    has_depth: bool


@dataclass(frozen=True, kw_only=True)
class SetIndex:
    """A data set on this disk."""

    dataset: DataSet = field(repr=False)
    root: Path
    folder: Path
    """Of the index."""
    entries: tuple[Entry, ...] = field(repr=False)
    broken: tuple[tuple[str, str], ...] = field(repr=False)
    """Sequences that cannot be used, with the reason."""

    @property
    def name(self) -> str:
        return self.dataset.card.name

    def recording(self, name: str) -> RecordedSequence:
        """A sequence, ready to be read; those used last are kept."""
        return _recording(self.dataset, self.root, self.folder, name)


@lru_cache(maxsize=64)
def _recording(dataset: DataSet, root: Path, folder: Path, name: str) -> RecordedSequence:
    path = _table_path(folder, name)
    with decoding(f"the index of a data set in {folder}", "remove that folder, and it is made anew"):
        table = load_table(path.read_bytes(), name)
    return RecordedSequence(dataset, _opened(root), table, folder / "overlaps" / f"{path.stem}.npy")


@lru_cache(maxsize=32)
def _opened(root: Path) -> Files:
    return open_files(root)


def index_set(
    dataset: DataSet,
    root: Path,
    *,
    folder: Path | None = None,
    anew: bool = False,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> SetIndex:
    """Looks at every sequence under `root` that was not looked at before; `anew` forgets what was.

    Raises Anchor3RError if nothing can be used.
    """
    root = Path(os.path.realpath(os.path.expanduser(root)))
    folder = folder or index_folder(dataset, root)
    files = _opened(root)
    with decoding(f"the list of sequences in {root}", "get it again"):
        names = dataset.names(files)
    if not names:
        raise dataset.nothing_found(files)
    journal = folder / "index.jsonl"
    if anew:
        journal.unlink(missing_ok=True)
    known = _read_journal(journal)
    todo = [name for name in names if name not in known]
    for done, line in enumerate(_looked_at(dataset, files, folder, journal, todo), 1):
        known[line["name"]] = line
        if on_progress:
            on_progress(done, len(todo), line["name"])
    lines = [known[name] for name in names]
    entries = tuple(Entry(**line) for line in lines if "error" not in line)
    broken = tuple((line["name"], line["error"]) for line in lines if "error" in line)
    if not entries:
        raise Anchor3RError(
            f"none of the {len(names)} sequences of {dataset.card.title} in {root} can be used; "
            f"the first one: {broken[0][1]}"
        )
    return SetIndex(dataset=dataset, root=root, folder=folder, entries=entries, broken=broken)


def _looked_at(
    dataset: DataSet, files: Files, folder: Path, journal: Path, names: list[str]
) -> Iterator[dict[str, Any]]:
    if not names:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open(journal, "a") as file, ThreadPoolExecutor(THREADS) as pool:
        for line in pool.map(lambda name: _look_at(dataset, files, folder, name), names):
            file.write(json.dumps(line) + "\n")
            file.flush()
            yield line


def _look_at(dataset: DataSet, files: Files, folder: Path, name: str) -> dict[str, Any]:
    """The line of a sequence: its entry, or why it cannot be used. One frame is decoded as a sample."""
    try:
        table = dataset.index(files, name)
        posed = np.flatnonzero(table.known())
        if len(posed) < MIN_POSED:
            raise Anchor3RError(
                f"only {len(posed)} of {len(table)} frames have an image, a camera and a pose"
            )
        frame = RecordedSequence(dataset, files, table).read(int(posed[0]))
    except _UNREADABLE as error:
        return {"name": name, "error": f"{name}: {error}"}
    path = _table_path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    (folder / "overlaps" / f"{path.stem}.npy").unlink(missing_ok=True)
    # Processes of one run may look at the same sequence at the same time: each writes a file of its own.
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_bytes(dump_table(table))
    os.replace(draft, path)
    return asdict(
        Entry(name=name, num_frames=len(table), num_posed=len(posed), has_depth=frame.depth_m is not None)
    )


def _read_journal(path: Path) -> dict[str, dict[str, Any]]:
    """Whole lines only: the last one may have been cut off. What is damaged is looked at again."""
    known: dict[str, dict[str, Any]] = {}
    for _, line in text_lines(path, errors="replace") if path.is_file() else ():
        with suppress(ValueError, Anchor3RError):
            entry = json.loads(line) if line.endswith("\n") else None
            if isinstance(entry, dict) and isinstance(entry.get("error"), str):
                known[str(entry["name"])] = entry
            elif entry is not None:
                found = record_from_json(Entry, entry, str(path))
                known[found.name] = asdict(found)
    return known


def index_folder(dataset: DataSet, root: Path) -> Path:
    """Where the index of a data set at a place is kept: under ANCHOR3R_CACHE, or the user's cache folder."""
    base = os.environ.get("ANCHOR3R_CACHE") or Path(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "anchor3r"
    )
    place = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    return Path(base) / "data" / f"{dataset.card.name}-{place}"


def _table_path(folder: Path, name: str) -> Path:
    return folder / "tables" / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:24]}.npz"


def dump_table(table: SequenceTable) -> bytes:
    out = io.BytesIO()
    np.savez(
        out,
        images=_joined(table.images),
        depths=_joined(table.depths),
        has_depths=len(table.depths) > 0,
        camera_from_world=table.camera_from_world,
        cameras=table.cameras,
        lens=table.lens,
    )
    return out.getvalue()


def _joined(names: Sequence[str]) -> NDArray[np.uint8]:
    """Names of files as bytes, which need not be text."""
    return np.frombuffer(os.fsencode("\n".join(names)), np.uint8)


def load_table(data: bytes, name: str) -> SequenceTable:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        images, depths = (os.fsdecode(archive[key].tobytes()).split("\n") for key in ("images", "depths"))
        return SequenceTable(
            name=name,
            images=tuple(images),
            depths=tuple(depths) if archive["has_depths"] else (),
            camera_from_world=archive["camera_from_world"],
            cameras=archive["cameras"],
            lens=archive["lens"],
        )


def find_roots(root: Path, datasets: dict[str, DataSet]) -> dict[str, Path]:
    """The data sets under one root, each in a folder (or link) of its name, whatever its spelling."""
    root = Path(os.path.expanduser(root))
    if not root.is_dir():
        raise Anchor3RError(f"there is no folder {root}; check the data root")
    spelled = {_plain(key): name for name, d in datasets.items() for key in (name, d.card.title)}
    found = {
        spelled[_plain(path.name)]: path
        for path in sorted(root.iterdir())
        if path.is_dir() and _plain(path.name) in spelled
    }
    if not found:
        names = ", ".join(datasets)
        raise Anchor3RError(
            f"no data set in {root}: looked for folders (or links) called {names}; see docs/data.md"
        )
    return {name: found[name] for name in datasets if name in found}


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
