"""A data set as tar shards: a few large files instead of millions of small ones, for network file systems.

Shards hold the files of the download as they are, under their own names, and `shards.json` says where each
begins; `open_files` reads them in place.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from anchor3r.datasets.files import SHARD_INDEX, Files
from anchor3r.errors import Anchor3RError
from anchor3r.io.files import replacing, replacing_folder

_BLOCK = 512
"""A tar file consists of blocks; the data of a member begin one block after its head."""


def pack(
    files: Files, out: Path, *, shard_bytes: int, on_progress: Callable[[int, str], None] | None = None
) -> int:
    """Writes every file of a data set into shards of about `shard_bytes`; gives their number."""
    members: dict[str, tuple[int, int, int]] = {}
    shards: list[str] = []
    with replacing_folder(out) as folder:
        archive: tarfile.TarFile | None = None
        for done, name in enumerate(_all_files(files), 1):
            if archive is None or archive.offset >= shard_bytes:
                if archive is not None:
                    archive.close()
                shards.append(f"shard-{len(shards):06d}.tar")
                archive = tarfile.open(folder / shards[-1], "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
            members[name] = (len(shards) - 1, *_add(archive, files, name))
            if on_progress:
                on_progress(done, name)
        if archive is None:
            raise Anchor3RError(f"{files.root} has no files to pack; check the path")
        archive.close()
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
