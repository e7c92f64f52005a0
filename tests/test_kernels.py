"""Kernels are compiled as they say, and whoever waits for the compiler hears of it."""

from __future__ import annotations

import numpy as np
from numba import njit

from anchor3r.kernels import CompileWatch, kernel


@kernel
def _quotient(a: float, b: float) -> float:
    return a / b


def test_division_by_zero_is_infinite() -> None:
    assert _quotient(1.0, 0.0) == np.inf


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
