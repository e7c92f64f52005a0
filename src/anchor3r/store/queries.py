"""Queries of a map's database: short ones, which do not hold up the writer, and say what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from inspect import isgeneratorfunction
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from anchor3r.errors import Anchor3RError
from anchor3r.io.inputs import decoding
from anchor3r.store.database import CHECKED, DATABASE, META_CHECKSUM, explained, has_checksums, open_database
from anchor3r.store.meta import checked_meta

Method = TypeVar("Method", bound=Callable[..., Any])


def decodes(method: Method) -> Method:
    """A method that decodes what the database holds: what cannot be decoded is told as damage."""

    @wraps(method)
    def explained_method(self: MapDatabase, *args: Any, **options: Any) -> Any:
        with decoding_map(self.folder):
            return method(self, *args, **options)

    @wraps(method)
    def explained_generator(self: MapDatabase, *args: Any, **options: Any) -> Any:
        with decoding_map(self.folder):
            yield from method(self, *args, **options)

    return cast(Method, explained_generator if isgeneratorfunction(method) else explained_method)


def decoding_map(folder: Path) -> AbstractContextManager[None]:
    """Tells as damage what cannot be decoded of what a map holds."""
    return decoding(f"{folder}: {DATABASE}", "restore it from a copy or make the map again")


class MapDatabase:
    """The database of a map, opened to read it. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._database = open_database(folder)
        # One query at a time: a thread that waits for SQLite holds Python's lock, which the checksum of
        # another thread's query, a function of ours, would wait for.
        self._querying = Lock()
        with explained(folder):
            self._with_checksums = {table for table in CHECKED if has_checksums(self._database, table)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All calls inside see the map as it is now, although it may grow meanwhile."""
        with explained(self.folder):
            self._database.execute("BEGIN")
        try:
            yield
        finally:
            self._database.execute("COMMIT")

    @property
    @decodes
    def meta(self) -> dict[str, Any]:
        """What made the map: identity (source, predictor, config), store, versions, …"""
        found = self._all("SELECT key, value FROM meta WHERE key != ?", (META_CHECKSUM,))
        return checked_meta(found, f"{self.folder}: {DATABASE}")

    def version(self) -> int:
        """Another number than at the last call if another process has changed the map in between."""
        return self._all("PRAGMA data_version")[0][0]

    def _has_table(self, name: str) -> bool:
        """Whether the map has a table, which maps of before there was any do not."""
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return bool(self._all(query, (name,)))

    def _insist_on_checksums(self, table: str, where: str = "TRUE", parameters: tuple[Any, ...] = ()) -> None:
        """Refuses rows that are not as they were written."""
        if table not in self._with_checksums:
            return
        columns = ", ".join(CHECKED[table])
        query = (
            f"SELECT {CHECKED[table][0]} FROM {table} WHERE {where} AND checksum <> row_checksum({columns})"
        )
        found = self._all(f"{query} LIMIT 1", parameters)
        if found:
            raise Anchor3RError(
                f"{self.folder}: {DATABASE} is damaged (checksum of {table}, {CHECKED[table][0]} "
                f"{found[0][0]}); restore it from a copy or make the map again"
            )

    def _of_frame(self, query: str, index: int) -> list[Any]:
        return self._all(f"{query} WHERE frame = ?", (int(index),))  # SQLite knows no numpy integers

    def _all(self, query: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        with explained(self.folder), self._querying:
            return self._database.execute(query, parameters).fetchall()

    def _columns(self, query: str, count: int, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        found = self._all(query, parameters)
        return list(zip(*found, strict=True)) if found else [()] * count
