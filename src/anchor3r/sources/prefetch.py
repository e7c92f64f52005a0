"""Reading ahead in a thread, so that decoding the next frames overlaps with work on this one.

Both functions hand over whatever the iterator raises, and stop and close it when their own iterator is
closed, by `break`, by an exception or by Ctrl-C.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.pool import ThreadPool
from threading import Condition, Event
from typing import TypeVar

Item = TypeVar("Item")


def prefetched(items: Generator[Item, None, None], depth: int) -> Iterator[Item]:
    """Yields the items, none of which is None, in order while up to `depth` further ones are being made."""
    with closing(items), ThreadPoolExecutor(1) as pool:
        pending = deque(pool.submit(next, items, None) for _ in range(depth))
        try:
            while (item := pending.popleft().result()) is not None:
                pending.append(pool.submit(next, items, None))
                yield item
        finally:
            for future in pending:
                future.cancel()


def freshest(items: Generator[Item, None, None], depth: int) -> Iterator[Item]:
    """For a stream that cannot be paused: reads on all the time and keeps only the latest `depth` items."""
    kept: deque[Item] = deque(maxlen=depth)
    changed = Condition()
    ended, stopped = Event(), Event()

    def keep() -> None:
        with closing(items):
            for item in items:
                if stopped.is_set():
                    break
                with changed:
                    kept.append(item)
                    changed.notify()

    def announce_end(_: object) -> None:
        with changed:
            ended.set()
            changed.notify()

    # Its threads are daemons: a stream that is still open does not keep the program from ending.
    with ThreadPool(1) as pool:
        reading = pool.apply_async(keep, callback=announce_end, error_callback=announce_end)
        try:
            while True:
                with changed:
                    changed.wait_for(lambda: kept or ended.is_set())
                    if not kept:
                        break
                    item = kept.popleft()
                yield item
            reading.get()
        finally:
            stopped.set()
