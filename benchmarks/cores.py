"""Whether two processors of this machine hinder each other: `python benchmarks/cores.py --seconds 2`.

Three loops run on the first processor while a partner runs on the second, either the same loop or one that
stays in its first cache: products of small matrices, which fill the arithmetic units; sums of a long array,
which fill the way to memory; look-ups in 16 MB, which need the last cache. Hyperthreads of one core, a narrow
memory or a small cache show as a ratio above 1. Processor time is compared, of slices that nothing
interrupted and during which the partner was at work, so that it can be measured on a busy machine. What both
lose when the clock falls because both are busy shows in nothing here. Prints a table and writes cores.json.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numerical libraries are loaded

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SAME_AFTER_S = 0.1
"""Processor time after which the partner changes its loop."""
INTERRUPTED = 1.3
"""Wall over processor time from which on a slice counts as interrupted."""


def arithmetic(rng: np.random.Generator) -> Callable[[], Any]:
    matrix = np.full((64, 64), 1 / 64)
    out = np.empty_like(matrix)
    return lambda: [np.dot(matrix, matrix, out=out) for _ in range(20)]


def memory(rng: np.random.Generator) -> Callable[[], Any]:
    parts = np.ones(1 << 24).reshape(64, -1)  # 128 MB
    return lambda: parts[rng.integers(len(parts))].sum()


def cache(rng: np.random.Generator) -> Callable[[], Any]:
    table, where = np.ones(1 << 21), rng.integers(0, 1 << 21, (64, 1 << 15))
    return lambda: table.take(where[rng.integers(len(where))])


LOOPS = {"arithmetic": arithmetic, "memory": memory, "last cache": cache}


def partner(name: str, processor: int, shared: Any) -> None:
    """Runs the loop, or arithmetic in its first cache, as told; counts its rounds."""
    os.sched_setaffinity(0, {processor})
    small = np.full((32, 32), 1 / 32)
    same = LOOPS[name](np.random.default_rng(1))
    while not shared[2]:
        if shared[0]:
            same()
        else:
            small @ small
        shared[1] += 1


def times(name: str, processors: tuple[int, int], seconds: float) -> dict[bool, list[float]]:
    """Processor times of slices, by whether the partner ran the same loop."""
    shared = multiprocessing.Array("d", 3, lock=False)
    other = multiprocessing.Process(target=partner, args=(name, processors[1], shared))
    other.start()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processors[0]})
    loop = LOOPS[name](np.random.default_rng(0))
    found: dict[bool, list[float]] = {False: [], True: []}
    start = time.process_time()
    while (spent := time.process_time() - start) < 2 * seconds:
        same = bool(int(spent / SAME_AFTER_S) % 2)
        shared[0] = same
        rounds, wall, cpu = shared[1], time.perf_counter(), time.thread_time()
        loop()
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
        if shared[1] > rounds and wall < INTERRUPTED * cpu:
            found[same].append(cpu)
    shared[2] = 1
    other.join()
    os.sched_setaffinity(0, before)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="processor time for each loop and partner")
    parser.add_argument("--processors", type=int, nargs=2, default=sorted(os.sched_getaffinity(0))[:2])
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    arguments = parser.parse_args()
    if len(arguments.processors) < 2:
        raise SystemExit("there is only one processor")
    rows = {}
    print("| loop | µs, partner in its first cache | µs, partner the same | ratio | slices |")
    print("|---|---|---|---|---|")
    for name in LOOPS:
        found = times(name, tuple(arguments.processors), arguments.seconds)
        alone, same = (1e6 * float(np.median(found[which])) for which in (False, True))
        rows[name] = {"alone_us": alone, "same_us": same, "ratio": same / alone}
        counts = f"{len(found[False])}, {len(found[True])}"
        print(f"| {name} | {alone:.1f} | {same:.1f} | {same / alone:.3f} | {counts} |")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "cores.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
