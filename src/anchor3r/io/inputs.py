"""The gate that files from outside come through: what they are, how large they are, what they decode to.

Whatever is wrong is an `Anchor3RError` that names the file, the place and the remedy. Nothing here runs what
a file says, follows it elsewhere, or takes more memory than `Limits` allows.
"""

from __future__ import annotations

import csv
import json
import os
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.limits import LIMITS

DAMAGED = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, EOFError, OSError,
    RuntimeError, MemoryError, SyntaxError, ImportError, struct.error, zlib.error, zipfile.BadZipFile,
    tokenize.TokenError, csv.Error,
)  # fmt: skip
"""What decoders of numpy, torch, Pillow and Python raise on damaged data, as random damage has shown."""


@contextmanager
def decoding(what: str, remedy: str) -> Iterator[None]:
    """Turns whatever a decoder raises on damaged data into an error about `what`."""
    try:
        yield
    except DAMAGED as error:
        raise Anchor3RError(f"{what} is damaged ({_reason(error)}); {remedy}") from error


def _reason(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


def insist_on_file(path: Path | str, *, max_bytes: int | None = None) -> Path:
    """The path, if there is a regular file that is not too large: neither a folder, a device nor a pipe."""
    path = Path(path)
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise Anchor3RError(f"cannot read {path}: {_strerror(error)}; check the path") from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a device, pipe or socket"
        raise Anchor3RError(f"cannot read {path}: it is {kind}, not a file; check the path")
    if max_bytes is not None and status.st_size > max_bytes:
        raise Anchor3RError(
            f"cannot read {path}: it has {status.st_size:,} bytes, more than the {max_bytes:,} that such a "
            "file may have; take a part of it"
        )
    return path


def text_lines(path: Path | str, *, errors: str = "strict") -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers, from 1."""
    path = insist_on_file(path, max_bytes=LIMITS.text_bytes)
    try:
        with open(path, encoding="utf-8-sig", errors=errors) as file:
            number = 0
            while line := file.readline(LIMITS.line_bytes):
                number += 1
                if len(line) >= LIMITS.line_bytes:
                    raise Anchor3RError(
                        f"{path}, line {number}: longer than {LIMITS.line_bytes:,} characters; is it a text?"
                    )
                yield number, line
    except OSError as error:
        raise Anchor3RError(f"cannot read {path}: {_strerror(error)}; check the path") from error
    except UnicodeDecodeError as error:
        raise Anchor3RError(
            f"{path} is not a text file ({error}); check that it is what you meant"
        ) from error


def csv_rows(path: Path | str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table with commas, each with the number of the line that it ends in."""
    rows = csv.reader(line for _, line in text_lines(path))
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise Anchor3RError(
                f"line {rows.line_num} of {path} is no row of a table ({error}); correct it"
            ) from error
        yield rows.line_num, row


def read_json(path: Path | str, *, kind: str = "JSON file") -> dict[str, Any]:
    """The object in a JSON file."""
    path = insist_on_file(path, max_bytes=LIMITS.json_bytes)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise Anchor3RError(f"cannot read {path}: {_strerror(error)}; check the path") from error
    content = parse_json(text, str(path))
    if not isinstance(content, dict):
        raise Anchor3RError(f"{path} holds no JSON object; name a {kind}")
    return content


def parse_json(text: bytes | str, where: str) -> Any:
    """What a JSON document holds, if it is neither too large nor too deep; `where` names it in errors."""
    if len(text) > LIMITS.json_bytes:
        raise Anchor3RError(f"{where}: JSON of {len(text):,} bytes is more than {LIMITS.json_bytes:,}")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError, TypeError) as error:
        raise Anchor3RError(f"{where} is not JSON ({_reason(error)}); write it anew") from error
    level, depth = [content], 0
    while level := [c for v in level for c in _children(v)]:
        depth += 1
        if depth > LIMITS.json_depth:
            raise Anchor3RError(f"{where}: JSON is nested deeper than {LIMITS.json_depth}; write it anew")
    return content


def _children(value: Any) -> list[Any]:
    """What a JSON value holds that may hold more."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in inside if isinstance(child, dict | list)]


def read_arrays(path: Path | str) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file by name, or that of a .npy file under the name of the file."""
    path = insist_on_file(path)
    with decoding(str(path), "write it anew"), open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            file.seek(0)
            _check_header(file, os.fstat(file.fileno()).st_size)
            file.seek(0)
            return {path.stem: np.lib.format.read_array(file, allow_pickle=False)}
        with zipfile.ZipFile(file) as archive:
            return _arrays_of(archive)


def _arrays_of(archive: zipfile.ZipFile) -> dict[str, NDArray[Any]]:
    members = archive.infolist()
    total = sum(member.file_size for member in members)
    if total > LIMITS.array_bytes:
        raise ValueError(f"{total:,} bytes unpacked are more than {LIMITS.array_bytes:,}")
    arrays = {}
    for member in members:
        with archive.open(member) as content:
            _check_header(content, member.file_size)
        with archive.open(member) as content:
            arrays[member.filename.removesuffix(".npy")] = np.lib.format.read_array(
                content, allow_pickle=False
            )
    return arrays


def _check_header(file: BinaryIO | Any, num_bytes: int) -> None:
    """Refuses an array that its own file cannot hold, before memory is taken for it."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    size = dtype.itemsize
    for side in shape:
        size *= side
    if dtype.hasobject or size > min(num_bytes, LIMITS.array_bytes) or min(shape, default=0) < 0:
        raise ValueError(f"an array {shape} of {dtype} does not fit into the {num_bytes:,} bytes there are")


def _strerror(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
