"""The plain-text tables that data sets come with: numbers in columns, `#` for comments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, nearest_rotation
from anchor3r.io.inputs import text_lines

ROTATION_TOLERANCE = 0.01
"""How far an entry of a rotation may be off because of the digits it was printed with."""


def read_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers from 1 and blank-separated fields of the lines that have any."""
    for number, line in text_lines(path, errors="replace"):
        if fields := line.split("#")[0].split():
            yield number, fields


def read_table(path: Path, num_columns: int) -> NDArray[np.float64]:
    """(n, num_columns) numbers of a file, n >= 1."""
    return read_numbered_table(path, num_columns)[1]


def read_numbered_table(path: Path, num_columns: int) -> tuple[list[int], NDArray[np.float64]]:
    """(n, num_columns) numbers of a file, n >= 1, and in which line each row stands."""
    rows = {line: parse_numbers(path, line, fields, num_columns) for line, fields in read_fields(path)}
    if not rows:
        raise Anchor3RError(f"{path} is empty; get it again, or remove it to go without")
    return list(rows), np.array(list(rows.values()))


def parse_numbers(path: Path, line: int, fields: list[str], count: int) -> list[float]:
    try:
        numbers = [float(field) for field in fields]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        found = " ".join(fields)[:80]
        raise Anchor3RError(f"line {line} of {path} should be {count} numbers, not '{found}'; get it again")
    return numbers


def rigid_motions(matrices: NDArray[np.float64], path: Path, lines: Sequence[int] | None = None) -> SE3:
    """Matrices (n, 3, 4) of a file, or of lines in it -> rigid motions (n,), with exact rotations."""
    rotation = matrices[..., :3]
    # Only finite numbers of a sane size may go into the decomposition.
    sane = np.isfinite(matrices).all((1, 2)) & (np.abs(rotation).max((1, 2)) <= 1 + ROTATION_TOLERANCE)
    exact = nearest_rotation(np.where(sane[:, None, None], rotation, np.eye(3)))
    good = sane & (np.abs(exact - rotation).max((1, 2)) <= ROTATION_TOLERANCE)
    if not good.all():
        bad = int(np.argmin(good))
        where = f"pose {bad}" if lines is None else f"line {lines[bad]}"
        raise Anchor3RError(f"{where} of {path} is no rigid motion; get the file again")
    return SE3(exact, matrices[..., 3])
