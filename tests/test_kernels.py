"""Kernels are compiled as they say, and whoever waits for the compiler hears of it."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from anchor3r.kernels import CompileWatch, kernel


@kernel
def _quotient(a: float, b: float) -> float:
    return a / b


def test_division_by_zero_is_infinite() -> None:
    assert _quotient(1.0, 0.0) == np.inf


def test_kernels_are_compiled_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a user without a home, of a package that another one has installed."""
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache"):
        njit(cache=True)(lambda x: x + 1)
    assert kernel(lambda x: x + 1)(1.0) == 2.0


def test_compiling_is_announced_and_timed() -> None:
    told: list[bool] = []
    fresh = njit(lambda x: x + 1)
    with CompileWatch(told.append) as watch:
        fresh(1.0)
        during = watch.cpu_seconds
        fresh(2.0)
    assert told == [True, False]
    assert watch.cpu_seconds == during > 0
    fresh(1)  # another type, after the watch has ended
    assert told == [True, False]
