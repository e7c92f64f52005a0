"""Threads of numerical libraries: chosen for the work, limited, and put back."""

from __future__ import annotations

import cv2
import pytest
from threadpoolctl import threadpool_info

from anchor3r.errors import Anchor3RError
from anchor3r.threads import chosen_threads, limited_threads, num_cores


def test_one_thread_unless_the_work_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert chosen_threads(None) == 1
    assert chosen_threads(None, gains=True) == num_cores()
    assert chosen_threads(7, gains=True) == 7
    assert chosen_threads(7) == 1, "results must not depend on it where nothing is gained"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert chosen_threads(None, gains=True) == 1
    with pytest.raises(Anchor3RError, match="threads must lie in 1 … 1024, not 0"):
        chosen_threads(0)


def test_limits_hold_inside_and_are_put_back_after_an_error() -> None:
    cv2.setNumThreads(2)
    before = [pool["num_threads"] for pool in threadpool_info()]
    seen: set[int] = set()

    def fail() -> None:
        with limited_threads(1):
            seen.update({cv2.getNumThreads(), *(pool["num_threads"] for pool in threadpool_info())})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen == {1}
    assert cv2.getNumThreads() == 2
    assert [pool["num_threads"] for pool in threadpool_info()] == before
