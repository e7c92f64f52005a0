"""The files of a downloaded data set: in a folder as unpacked, or in tar shards, which `pack` makes.

Data sets name their files relative to their root and never ask where they lie, so that everything that reads
a download reads its shards as well. Shards are a few large files instead of millions of small ones, for
network file systems: they hold the files of the download as they are, under their own names, and
`shards.json` says where each begins.
"""

from __future__ import annotations

import io
import json
import operator
import os
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.io.files import replacing, replacing_folder
from anchor3r.io.inputs import decoding, insist_on_file
from anchor3r.limits import LIMITS
from anchor3r.sources.images import natural_key

SHARD_INDEX = "shards.json"
"""In a folder of shards: where each file begins in which shard."""
_BLOCK = 512
"""A tar file consists of blocks; the data of a member begin one block after its head."""


class Files(ABC):
    """Names are relative to the root, with forward slashes; "" is the root itself."""

    root: Path

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """A file to read and seek in."""

    @abstractmethod
    def _entries(self, folder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the folders and of the files in a folder, without the folder's own, in natural order."""

    def folders(self, folder: str = "") -> list[str]:
        return [_joined(folder, name) for name in self._entries(folder)[0]]

    def files(self, folder: str, suffix: str | tuple[str, ...] = "") -> list[str]:
        return [_joined(folder, name) for name in self._entries(folder)[1] if name.endswith(suffix)]

    def exists(self, name: str) -> bool:
        """Whether there is such a file; asks for the listing of its folder, which is kept."""
        folder, _, last = name.rpartition("/")
        return last in self._entries(folder)[1]

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            data = file.read(LIMITS.blob_bytes + 1)
        if len(data) > LIMITS.blob_bytes:
            raise Anchor3RError(
                f"{self.root / name} has more than {LIMITS.blob_bytes:,} bytes; check that it is whole"
            )
        return data

    def text(self, name: str) -> str:
        return self.read(name).decode("utf-8", errors="replace")

    def table(self, name: str, columns: int, *, skip: int = 0, comma: bool = False) -> NDArray[np.float64]:
        """(n, columns) numbers of a text file, whose first `skip` lines are headings."""
        rows = [line.replace(",", " ").split() if comma else line.split() for line in self.lines(name)[skip:]]
        try:
            table = np.array([row for row in rows if row], np.float64)
        except ValueError:
            table = np.empty((0, 0))
        if table.ndim != 2 or table.shape[1:] != (columns,):
            raise Anchor3RError(f"{self.root / name} should hold rows of {columns} numbers; get it again")
        return table

    def lines(self, name: str) -> list[str]:
        """The lines of a text file, without comments that begin with #."""
        return [line for line in self.text(name).splitlines() if not line.startswith("#")]

    def json(self, name: str) -> object:
        try:
            return json.loads(self.read(name))
        except (ValueError, RecursionError) as error:
            raise Anchor3RError(f"{self.root / name} is no JSON file ({error}); get it again") from error


def open_files(root: Path | str) -> Files:
    """The files of a folder, or of the shards in it."""
    root = Path(os.path.expanduser(root))
    if not root.is_dir():
        raise Anchor3RError(f"there is no folder {root}; check where the data set was unpacked")
    return ShardFiles(root) if (root / SHARD_INDEX).is_file() else FolderFiles(root)


class FolderFiles(Files):
    """Files as they lie in a folder. Listings are kept: what is added later is not seen."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._entries_of = lru_cache(maxsize=4096)(self._scan)

    def __reduce__(self) -> tuple[type[FolderFiles], tuple[Path]]:
        return FolderFiles, (self.root,)

    def open(self, name: str) -> BinaryIO:
        try:
            return open(insist_on_file(self.root / name), "rb")
        except OSError as error:
            raise Anchor3RError(
                f"cannot read {self.root / name} ({error.strerror}); check that it was unpacked"
            ) from error

    def _entries(self, folder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self._entries_of(folder)

    def _scan(self, folder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        try:
            with os.scandir(self.root / folder) as found:
                entries = [(entry.name, entry.is_dir()) for entry in found]
        except (FileNotFoundError, NotADirectoryError):
            return (), ()
        return _sorted([n for n, is_dir in entries if is_dir]), _sorted([n for n, d in entries if not d])


class ShardFiles(Files):
    """Files in uncompressed tar files, read in place by their offsets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shards, self.members = _shard_index(root / SHARD_INDEX)
        folders: dict[str, tuple[set[str], set[str]]] = {}
        for name in self.members:
            folder, _, last = name.rpartition("/")
            folders.setdefault(folder, (set(), set()))[1].add(last)
            while folder:
                parent, _, last = folder.rpartition("/")
                folders.setdefault(parent, (set(), set()))[0].add(last)
                folder = parent
        self._listings = {k: (_sorted(list(a)), _sorted(list(b))) for k, (a, b) in folders.items()}

    def open(self, name: str) -> BinaryIO:
        if name not in self.members:
            raise Anchor3RError(f"no shard in {self.root} holds {name}; pack the data set again")
        shard, offset, size = self.members[name]
        path = insist_on_file(self.root / self.shards[shard])
        file = open(path, "rb")  # noqa: SIM115  # closed with its part
        return io.BufferedReader(_Part(file, offset, size))

    def _entries(self, folder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self._listings.get(folder, ((), ()))


def _shard_index(path: Path) -> tuple[list[str], dict[str, tuple[int, int, int]]]:
    """Names of the shards; and of each file its shard, where it begins there and its size in bytes."""
    with decoding(str(path), "pack the data set again"):
        index = json.loads(insist_on_file(path, max_bytes=LIMITS.text_bytes).read_text())
        shards = [str(name) for name in index["shards"]]
        members = {name: _integers(value) for name, value in index["members"].items()}
        if any(not 0 <= shard < len(shards) or min(rest) < 0 for shard, *rest in members.values()):
            raise ValueError("it names a place that no shard has")
        if any(Path(name).name != name for name in shards):
            raise ValueError("it names shards in other folders")
    return shards, members


def _integers(value: list[int]) -> tuple[int, int, int]:
    shard, offset, size = value
    return operator.index(shard), operator.index(offset), operator.index(size)


class _Part(io.RawIOBase):
    """A stretch of a file as a file."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self._file, self._offset, self._size, self._at = file, offset, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any writable buffer
        self._file.seek(self._offset + self._at)
        data = self._file.read(max(0, min(len(buffer), self._size - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _sorted(names: list[str]) -> tuple[str, ...]:
    """Names in natural order, without hidden ones."""
    return tuple(sorted((name for name in names if not name.startswith(".")), key=natural_key))


def pack(
    files: Files, out: Path, *, shard_bytes: int, on_progress: Callable[[int, str], None] | None = None
) -> int:
    """Writes every file of a data set into shards of about `shard_bytes`; gives their number."""
    members: dict[str, tuple[int, int, int]] = {}
    shards: list[str] = []
    with replacing_folder(out) as folder, ExitStack() as opened:
        archive: tarfile.TarFile | None = None
        for done, name in enumerate(_all_files(files), 1):
            if archive is None or archive.offset >= shard_bytes:
                opened.close()
                shards.append(f"shard-{len(shards):06d}.tar")
                archive = tarfile.open(folder / shards[-1], "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
                opened.callback(archive.close)
            members[name] = (len(shards) - 1, *_add(archive, files, name))
            if on_progress:
                on_progress(done, name)
        if archive is None:
            raise Anchor3RError(f"{files.root} has no files to pack; check the path")
        opened.close()
        with replacing(folder / SHARD_INDEX) as file:
            file.write(json.dumps({"shards": shards, "members": members}).encode())
    return len(shards)


def _add(archive: tarfile.TarFile, files: Files, name: str) -> tuple[int, int]:
    """Appends a file; where its data begin, and how long they are."""
    with files.open(name) as file:
        size = file.seek(0, 2)
        file.seek(0)
        member = tarfile.TarInfo(f"{len(name):04d}/{name[-90:]}" if len(name) > 100 else name)
        member.size = size
        begin = archive.offset + _BLOCK
        archive.addfile(member, file)
    return begin, size


def _all_files(files: Files, folder: str = "") -> Iterator[str]:
    yield from files.files(folder)
    for inner in files.folders(folder):
        yield from _all_files(files, inner)
