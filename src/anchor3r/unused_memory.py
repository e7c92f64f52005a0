"""Memory that a long run has freed, given back to the system.

C libraries keep what was freed for what comes next, and what lies between pieces that are in use they never
give back by themselves. Work that needs much for a moment, again and again beside other work, would have a
process grow for hours that holds no more than in its first minute.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def give_back_unused_memory() -> None:
    """Gives freed memory back where the C library can (glibc); takes about a millisecond."""
    _trim()(0)


@functools.cache
def _trim() -> Callable[[int], object]:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library; Windows has no CDLL(None)
        return lambda padding: None
