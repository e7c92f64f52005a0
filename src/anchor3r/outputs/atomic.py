"""Files that are there wholly or not at all."""

from __future__ import annotations

import os
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
