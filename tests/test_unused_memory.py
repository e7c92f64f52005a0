"""Freed memory goes back to the system, where the C library can."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anchor3r.unused_memory import give_back_unused_memory

PIECE, COUNT = 60_000, 1000
"""Too small to be given back one by one."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}), reason="not glibc")
def test_memory_between_what_is_in_use_is_given_back() -> None:
    pieces: list[bytearray | None] = [bytearray(b"x") * PIECE for _ in range(COUNT)]
    for k in range(COUNT):
        if k % 10:
            pieces[k] = None
    freed = resident_bytes()
    give_back_unused_memory()
    assert freed - resident_bytes() > 0.5 * PIECE * COUNT
    assert pieces[0] == bytearray(b"x") * PIECE


def test_without_the_function_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    from anchor3r import unused_memory

    def without(name: str | None) -> object:
        raise TypeError(name)

    monkeypatch.setattr(ctypes, "CDLL", without)
    unused_memory._trim.cache_clear()
    try:
        give_back_unused_memory()
    finally:
        unused_memory._trim.cache_clear()
