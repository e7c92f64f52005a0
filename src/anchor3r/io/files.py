"""Files and folders that are there wholly or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from anchor3r.errors import Anchor3RError


@contextmanager
def replacing(path: Path | str) -> Iterator[BinaryIO]:
    """Opens a file beside `path` that takes its place once the block has ended without an error."""
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(unfinished, "wb") as file:
                yield file
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise Anchor3RError(
            f"cannot write {path}: {error.strerror or error}; choose another place"
        ) from error


@contextmanager
def replacing_folder(path: Path | str) -> Iterator[Path]:
    """Makes a folder beside `path` that gets its name once the block has ended without an error.

    A folder that has anything in it is never replaced.
    """
    path = Path(path)
    if path.is_dir() and any(path.iterdir()):
        raise Anchor3RError(f"{path} is not empty; choose a new folder, or remove what is there")
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            yield unfinished
            unfinished.replace(path)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise Anchor3RError(
            f"cannot write {path}: {error.strerror or error}; choose another place"
        ) from error
