"""How all numba kernels of the renderer are compiled: single-threaded, without the GIL, cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])
Record = Any
"""A row of a structured array: inside a kernel its columns are attributes, which static types cannot say."""


def kernel(function: Function) -> Function:
    """Compiles a function. Divisions by zero give inf, as in numpy, and sums may be reordered."""
    compiled: Any = njit(function, cache=True, nogil=True, fastmath=True, error_model="numpy")
    return compiled
