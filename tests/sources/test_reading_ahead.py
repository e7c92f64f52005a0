"""Reading ahead: order, bounds, errors and stopping."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator

import pytest

from anchor3r.sources.source import freshest, prefetched

BOTH = pytest.mark.parametrize("ahead", [prefetched, freshest])


class Tap:
    """Counts what was taken from it, and notes when it is closed."""

    def __init__(
        self, length: int, error: Exception | None = None, gate: threading.Event | None = None
    ) -> None:
        self.length, self.error, self.gate = length, error, gate
        self.taken = 0
        self.closed = threading.Event()

    def __iter__(self) -> Generator[int, None, None]:
        try:
            for item in range(self.length):
                self.taken += 1
                yield item
                if self.gate is not None:
                    self.gate.wait(10)
            if self.error is not None:
                raise self.error
        finally:
            self.closed.set()


def test_prefetching_keeps_the_order_and_its_bound() -> None:
    tap = Tap(50)
    for position, item in enumerate(prefetched(iter(tap), depth=4)):
        assert item == position
        assert tap.taken <= position + 1 + 4
    assert tap.taken == 50
    assert tap.closed.is_set()


def test_the_freshest_items_are_kept_when_the_reader_is_slow() -> None:
    gate = threading.Event()
    tap = Tap(100, gate=gate)
    items = freshest(iter(tap), depth=4)
    assert next(items) == 0, "it is handed over before the next one is there"
    gate.set()
    assert tap.closed.wait(10)
    assert list(items) == [96, 97, 98, 99]


@BOTH
def test_errors_come_out_after_the_items_before_them(ahead: Callable) -> None:
    items = ahead(iter(Tap(3, KeyError("boom"))), 4)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="boom"):
        next(items)


@BOTH
def test_leaving_early_closes_the_iterator(ahead: Callable) -> None:
    tap = Tap(10**9)
    items = ahead(iter(tap), 4)
    next(items)
    items.close()
    assert tap.closed.wait(10)


@pytest.mark.parametrize("ahead", ["prefetched", "freshest"])
def test_an_open_iterator_does_not_keep_the_program_from_ending(ahead: str) -> None:
    program = (
        "import itertools, time\n"
        f"from anchor3r.sources.source import {ahead}\n"
        f"items = {ahead}((time.sleep(0.01) or i for i in itertools.count()), 4)\n"
        "print(next(items))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "0\n", "")


@pytest.mark.parametrize("ahead", ["prefetched", "freshest"])
def test_an_interrupt_ends_the_program_while_it_waits(ahead: str) -> None:
    program = (
        "import itertools, time\n"
        f"from anchor3r.sources.source import {ahead}\n"
        f"for item in {ahead}((time.sleep(0.2) or i for i in itertools.count()), 4):\n"
        "    print(item, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "0\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert stderr.rstrip().endswith("KeyboardInterrupt")
