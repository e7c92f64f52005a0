"""How every numba kernel is compiled: for one thread, without the GIL, cached on disk.

A kernel is compiled when it is first called with new types of arguments, which takes up to seconds; a
`CompileWatch` tells those who wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, overload

from numba import njit
from numba.core import event
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])
_COMPILE, _LOCK = _EVENTS = ("numba:compile", "numba:compiler_lock")
Array = NDArray[Any]
"""An array of any element type; a kernel is compiled for the one that it gets."""
Number = Any
"""A scalar of any type, for kernels that compute in single precision."""
Record = Any
"""A row of a structured array: inside a kernel its columns are attributes, which static types cannot say."""


@overload
def kernel(function: Function, /) -> Function: ...
@overload
def kernel(*, fast: bool) -> Callable[[Function], Function]: ...
def kernel(function: Function | None = None, /, *, fast: bool = False) -> Any:
    """Compiles a function; divisions by zero give inf, as in numpy.

    fast: sums may be reordered. Code that was just compiled and the same code from the cache may then round
    differently, so this is not for anything that a resumed map has to repeat bit for bit.
    """

    def compiled(function: Function) -> Any:
        compile_ = partial(njit, nogil=True, error_model="numpy", fastmath=fast)
        try:
            return compile_(cache=True)(function)
        except RuntimeError:  # neither beside the package nor at home may this user write: for each process
            return compile_()(function)

    return compiled if function is None else compiled(function)


class CompileWatch(event.Listener):
    """While it is entered: how long this process compiles kernels or fetches them from the disk.

    on_compile is told True when the compiler starts on a kernel that is not on the disk, and False when it
    is done.
    """

    def __init__(self, on_compile: Callable[[bool], None] | None = None) -> None:
        self.cpu_seconds = 0.0
        """Spent so far."""
        self._on_compile = on_compile
        self._depth = {kind: 0 for kind in _EVENTS}
        self._since = 0.0

    def __enter__(self) -> CompileWatch:
        for kind in _EVENTS:
            event.register(kind, self)
        return self

    def __exit__(self, *_: object) -> None:
        for kind in _EVENTS:
            event.unregister(kind, self)

    def on_start(self, event: event.Event) -> None:
        self._depth[event.kind] += 1
        if self._depth[event.kind] == 1:
            self._changed(event.kind, True)

    def on_end(self, event: event.Event) -> None:
        self._depth[event.kind] -= 1
        if self._depth[event.kind] == 0:
            self._changed(event.kind, False)

    def _changed(self, kind: str, started: bool) -> None:
        if kind == _COMPILE and self._on_compile is not None:
            self._on_compile(started)
        elif kind == _LOCK and started:
            self._since = time.process_time()
        elif kind == _LOCK:
            self.cpu_seconds += time.process_time() - self._since
