"""How many sequences a minute `anchor3r batch` does with one worker, with two, and on Ray with two.

Every way does the same sequences in a folder of its own; start of processes included. Another run kills
workers at random while it goes and counts what is lost.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path

import tyro

from anchor3r.batch import BatchRow, run_batch
from anchor3r.workers import WorkerSettings

WORLD = "world:{}?motion=driving&frames={}&width=320&height=240"


def rows_of(count: int, frames: int) -> list[BatchRow]:
    return [
        BatchRow(source=WORLD.format(k, frames), name=f"w{k}", predictor="features") for k in range(count)
    ]


def timed(rows: list[BatchRow], workers: WorkerSettings) -> tuple[float, int]:
    """Seconds by the clock, and how many sequences are done."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        table = run_batch(rows, Path(folder), workers=workers)
        return time.perf_counter() - started, sum(row["state"] == "done" for row in table)


def children() -> list[int]:
    """Processes that this one has started to do jobs."""
    own = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    found = [int(pid) for pid in Path(own).read_text().split()]
    return [pid for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def kill_now_and_then(stop: threading.Event, seconds: float, killed: list[int]) -> None:
    rng = random.Random(0)
    while not stop.wait(seconds):
        if pids := children():
            killed.append(rng.choice(pids))
            os.kill(killed[-1], signal.SIGKILL)


def main(sequences: int = 6, frames: int = 120, kill_every: float = 8.0, out: Path | None = None) -> None:
    """Prints a table.

    Args:
        sequences: Rows of the manifest.
        frames: Of each.
        kill_every: Seconds between kills of the last run.
        out: Folder for batch.json.
    """
    rows = rows_of(sequences, frames)
    timed(rows[:1], WorkerSettings())  # compiles
    ways = {
        "1 worker": WorkerSettings(),
        "2 workers": WorkerSettings(workers=2),
        "Ray, 2 processes": WorkerSettings(workers=2, ray="local"),
    }
    found = {}
    for name, workers in ways.items():
        seconds, done = timed(rows, workers)
        found[name] = {"seconds": seconds, "done": done, "per_minute": 60 * done / seconds}
        share = found["1 worker"]["seconds"] / seconds / workers.workers
        print(f"{name:18} {60 * done / seconds:6.1f} a minute, {share:5.0%} of linear, {done} of {sequences}")
    stop, killed = threading.Event(), list[int]()
    killer = threading.Thread(target=kill_now_and_then, args=(stop, kill_every, killed))
    killer.start()
    seconds, done = timed(rows, WorkerSettings(workers=2, tries=100))
    stop.set()
    killer.join()
    found["2 workers, killed"] = {"seconds": seconds, "done": done, "kills": len(killed)}
    print(f"workers killed {len(killed)} times: {done} of {sequences} done in {seconds:.0f} s")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "batch.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    tyro.cli(main)
