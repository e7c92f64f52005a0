"""How many threads numerical libraries compute with: set in one place, for the work at hand, and put back.

Windows are small. More threads than help cost much more than they save as soon as other programs run on the
same cores, since the threads of BLAS and OpenMP wait for each other by spinning. Our own kernels have one
thread (`kernels`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from anchor3r.errors import Anchor3RError
from anchor3r.limits import LIMITS


def num_cores() -> int:
    """Cores that this process may use: those there are, or fewer if OMP_NUM_THREADS says so."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdecimal() and int(limit) > 0 else cores


def chosen_threads(wanted: int | None, *, gains: bool = False) -> int:
    """One; for work that gains from more, what the user wants, else all cores.

    Sums depend on how they are split over threads. Work that does not gain has one thread whatever is wanted,
    so that its results are the same bits on every machine of a kind.
    """
    if wanted is None:
        return num_cores() if gains else 1
    if not 1 <= wanted <= LIMITS.threads:
        raise Anchor3RError(f"--threads must lie in 1 … {LIMITS.threads}, not {wanted}")
    return wanted if gains else 1


@contextmanager
def limited_threads(num_threads: int) -> Iterator[None]:
    """While entered, BLAS, OpenMP, OpenCV and torch compute with so many threads in this process.

    torch only if it is loaded already: nothing that goes without it has to wait for it.
    """
    import cv2
    from threadpoolctl import threadpool_limits

    torch = sys.modules.get("torch")
    opencv_before = cv2.getNumThreads()
    torch_before = torch.get_num_threads() if torch is not None else 0
    with threadpool_limits(limits=num_threads):
        cv2.setNumThreads(num_threads)
        if torch is not None:
            torch.set_num_threads(num_threads)
        try:
            yield
        finally:
            cv2.setNumThreads(opencv_before)
            if torch is not None:
                torch.set_num_threads(torch_before)


@contextmanager
def frequent_switches() -> Iterator[None]:
    """While entered, a thread that computes in Python lets others have their turn after half a millisecond.

    By default it is five, for which a thread that calls many short kernels would wait after each of them.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
