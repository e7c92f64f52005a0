"""Files and folders that are there wholly or not at all, and that never take the place of what is precious.

Everything that the program writes beside its maps goes through here. What an output may replace is an
ordinary file or nothing: never a map, a file that the same command reads, a device or a folder.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from anchor3r.errors import Anchor3RError

MAP_FILES = ("map.sqlite", "map.sqlite-wal", "map.sqlite-shm", "map.sqlite-journal", "writer.lock")
"""What a map consists of, by name; see `store.database`."""


def check_output(path: Path | str, inputs: Iterable[Path | str] = ()) -> Path:
    """The path, if a file may be written there; commands ask before they begin to work.

    inputs: files and folders that the same command reads, which it must not replace.
    """
    path = Path(path)
    try:
        _insist_on_harmless(path, inputs)
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error
    return path


def _insist_on_harmless(path: Path, inputs: Iterable[Path | str]) -> None:
    if not path.name or path.name == "..":
        raise Anchor3RError(f"cannot write {path}: it is a folder; name a file in it")
    if path.name in MAP_FILES:
        raise Anchor3RError(f"cannot write {path}: that is a name of a map's own files; choose another one")
    try:
        status = os.stat(path)
    except FileNotFoundError:
        folder = next(parent for parent in path.parents if parent.exists())
        if not folder.is_dir():
            raise Anchor3RError(
                f"cannot write {path}: {folder} is not a folder; choose another place"
            ) from None
        return
    if stat.S_ISDIR(status.st_mode):
        raise Anchor3RError(f"cannot write {path}: there is a folder of that name; name a file")
    if not stat.S_ISREG(status.st_mode):
        raise Anchor3RError(
            f"cannot write {path}: it is a device, pipe or socket, which no file may replace; name a file"
        )
    for given in inputs:
        with suppress(OSError, ValueError):
            if os.path.samestat(os.stat(given), status):
                raise Anchor3RError(
                    f"cannot write {path}: it is what this command reads; choose another name"
                )


@contextmanager
def replacing(path: Path | str) -> Iterator[BinaryIO]:
    """Opens a file beside `path` that takes its place once the block has ended without an error.

    The file is durable before it gets its name. Links are not followed: one that somebody has put where the
    unfinished file goes is taken away, not written through.
    """
    path = check_output(path)
    unfinished = unfinished_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_exclusively(unfinished) as file:
            own = os.fstat(file.fileno())
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                _insist_on_own(unfinished, own, path)
                os.replace(unfinished, path)
            except BaseException:
                _unlink_own(unfinished, own)
                raise
    except OSError as error:
        raise _cannot_write(path, error) from error


def utf8(text: str) -> bytes:
    """The content of a text file; what is no character, as bytes of file names may be, becomes escapes."""
    return text.encode(errors="backslashreplace")


def unfinished_name(path: Path) -> Path:
    """What a file or folder is called until it is complete."""
    return path.with_name(f".{path.name}.unfinished")


def open_exclusively(path: Path) -> BinaryIO:
    """A new file to write and read, in place of what an interrupted run may have left; follows no link."""
    path.unlink(missing_ok=True)
    return open(path, "x+b")


def _insist_on_own(unfinished: Path, own: os.stat_result, path: Path) -> None:
    """Another process that writes to the same name has put its own file there."""
    try:
        same = os.path.samestat(os.stat(unfinished, follow_symlinks=False), own)
    except FileNotFoundError:
        same = False
    if not same:
        raise Anchor3RError(f"cannot write {path}: another process is writing it; choose another name")


def _unlink_own(unfinished: Path, own: os.stat_result) -> None:
    with suppress(OSError):
        if os.path.samestat(os.stat(unfinished, follow_symlinks=False), own):
            unfinished.unlink()


@contextmanager
def replacing_folder(path: Path | str, *, mark: str | None = None) -> Iterator[Path]:
    """Makes a folder beside `path` that gets its name once the block has ended without an error.

    A folder that has anything in it is never replaced, unless it has a file called `mark`, by which the
    program knows what it has written itself.
    """
    path = Path(path)
    try:
        is_own = mark is not None and (path / mark).is_file() and not path.is_symlink()
        if not is_own:
            insist_on_new_folder(path)
        unfinished = unfinished_name(path)
        _remove(unfinished)
        unfinished.mkdir(parents=True)
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error
    try:
        yield unfinished
        if is_own:
            shutil.rmtree(path)
        unfinished.replace(path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def insist_on_new_folder(path: Path) -> None:
    """Refuses the name of a folder that has anything in it, or of anything that is no folder."""
    if not path.name or path.name == "..":
        raise Anchor3RError(f"cannot write {path}: name a new folder")
    if path.is_dir():
        if any(path.iterdir()):
            raise Anchor3RError(f"{path} is not empty; choose a new folder, or remove what is there")
    elif path.exists() or path.is_symlink():
        raise Anchor3RError(f"cannot write {path}: it is not a folder; choose another name")


def _remove(unfinished: Path) -> None:
    """What an interrupted run has left; of a link the link alone."""
    if unfinished.is_symlink() or unfinished.is_file():
        unfinished.unlink()
    else:
        shutil.rmtree(unfinished, ignore_errors=True)


def _cannot_write(path: Path, error: Exception) -> Anchor3RError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return Anchor3RError(f"cannot write {path}: {reason}; choose another place")
