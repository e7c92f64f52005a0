"""Records of one size in a temporary file, found again by their numbers: memory that a disk lends."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError


class ScratchRecords:
    """Rows of `length` entries of a dtype each. The file has no name and is gone when it is closed."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], length: int) -> None:
        self._dtype, self._length = dtype, length
        self._folder = folder
        try:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by __exit__)
        except OSError as error:
            raise self._explained(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, rows: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Keeps values (n, length) as the rows (n,), ascending."""
        for first, last in _runs(rows):
            data = np.ascontiguousarray(values[first:last]).tobytes()
            at, written = int(rows[first]) * self._row_bytes, 0
            try:
                while written < len(data):
                    written += os.pwrite(self._file.fileno(), data[written:], at + written)
            except OSError as error:
                raise self._explained(error) from error

    def read(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Values (n, length) of the rows (n,), ascending, which were written before."""
        out = np.empty((len(rows), self._length), self._dtype)
        for first, last in _runs(rows):
            at, size = int(rows[first]) * self._row_bytes, (last - first) * self._row_bytes
            data = os.pread(self._file.fileno(), size, at)
            out[first:last] = np.frombuffer(data, self._dtype).reshape(-1, self._length)
        return out

    @property
    def _row_bytes(self) -> int:
        return self._dtype.itemsize * self._length

    def _explained(self, error: OSError) -> Anchor3RError:
        return Anchor3RError(
            f"cannot keep temporary data in {self._folder}: {error.strerror or error}; free some space there "
            "and try again"
        )


def _runs(rows: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The first and the last of each stretch of consecutive numbers."""
    if not len(rows):
        return []
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    return list(zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True))
