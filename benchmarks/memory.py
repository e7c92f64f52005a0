"""Peak memory of `anchor3r map` does not grow with the length of the stream.

Maps a world with each number of frames in a process of its own and compares the largest resident set size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tyro

GOAL = 1.05


def peak_rss_mib(arguments: list[str]) -> tuple[float, float]:
    """Runs `anchor3r` and returns its peak resident set size and its wall time in seconds."""
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "anchor3r", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"anchor3r {' '.join(arguments)} ended with {process.returncode}")
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return usage.ru_maxrss * unit_bytes / 2**20, time.monotonic() - started


def mapped(source: str, predictor: str, count: int) -> tuple[float, float, float]:
    """Maps that many frames; returns the peak in MiB, seconds, and the size of the map in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "map"
        command = ["map", source, "--predictor", predictor, "--stop", str(count), "--out", str(target)]
        peak_mib, seconds = peak_rss_mib(command)
        return peak_mib, seconds, sum(file.stat().st_size for file in target.iterdir()) / 2**20


def main(
    out: Path | None = None,
    source: str = "world:3",
    predictor: str = "ground-truth:0.2,0.02",
    frames: tuple[int, ...] = (500, 5000),
) -> None:
    """Prints a table and writes OUT/memory.json.

    Args:
        out: Folder for the JSON.
        source: What is mapped.
        predictor: What measures.
        frames: Lengths to compare; the first one is the reference.
    """
    rows = []
    mapped(source, predictor, 20)  # compiles what is not in the cache yet, which takes memory of its own
    print(f"{'frames':>7} {'peak MiB':>9} {'ratio':>6} {'seconds':>8} {'map MiB':>8}")
    for count in frames:
        peak_mib, seconds, disk_mib = mapped(source, predictor, count)
        ratio = peak_mib / rows[0]["peak_mib"] if rows else 1.0
        rows.append({
            "frames": count, "peak_mib": peak_mib, "ratio": ratio, "seconds": seconds, "disk_mib": disk_mib,
        })  # fmt: skip
        print(f"{count:7} {peak_mib:9.1f} {ratio:6.3f} {seconds:8.1f} {disk_mib:8.1f}")
    worst = max(row["ratio"] for row in rows)
    print(f"goal: at most {GOAL} × the first; {'reached' if worst <= GOAL else 'MISSED'}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        result = {"source": source, "predictor": predictor, "goal": GOAL, "rows": rows}
        (out / "memory.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
