"""The same input gives the same bits: maps are made again, with other threads and caches, and compared.

    python tests/determinism/digests.py                    compare with what is stored for this family of CPUs
    python tests/determinism/digests.py --cold             also with an empty cache of compiled kernels (minutes)
    python tests/determinism/digests.py --record WHY       store what comes out now, and why it has changed

Results depend on the CPU: libraries choose their instructions by it. digests.json has the digests of every
family that was recorded, with the day, the reason of the last change and the versions of the libraries.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

STORED = Path(__file__).parent / "digests.json"
WORLD = "world:3?motion=driving&frames=24&width=160&height=120"
RUNS: dict[str, list[list[str]]] = {
    # name: commands, with OUT for the folder of the map
    "ground truth": [["map", WORLD, "--predictor", "ground-truth:0.2,0.02", "--out", "OUT"],
                     ["refine", "OUT", "--keyframe-interval", "2", "--descriptor", "gradients"]],
    "tiny": [["map", WORLD, "--predictor", "tiny", "--out", "OUT"], ["refine", "OUT"]],
    "features": [["map", WORLD, "--predictor", "features", "--out", "OUT"], ["refine", "OUT"]],
}  # fmt: skip
CONTENT = {
    "frames": "frame, timestamp_s, status, intrinsics, true_pose, descriptor",
    "poses": "name, frame, known_since, component, pose, covariance, log_scale, log_scale_sigma",
    "edge_groups": "anchor, kind, edges, information",
    "points": "frame, height, width, scale, camera, points, colours, confidence",
    "loops": "event, query, match, accepted, reason",
}
"""What of a map must not change; when it was made, and how fast, may."""


def digest_of(folder: Path) -> str:
    """Of everything in a map that its input decides."""
    found = hashlib.sha256()
    database = sqlite3.connect(folder / "map.sqlite")
    for table, columns in CONTENT.items():
        for row in database.execute(f"SELECT {columns} FROM {table} ORDER BY {columns}"):
            found.update(repr(row).encode())
    database.close()
    return found.hexdigest()[:32]


def run(name: str, folder: Path, *, threads: int = 1, **environment: str) -> str:
    """Makes the map of that name in a process of its own; its digest."""
    for command in RUNS[name]:
        arguments = [part.replace("OUT", str(folder)) for part in command]
        subprocess.run(
            [sys.executable, "-m", "anchor3r", *arguments, "--threads", str(threads)],
            check=True,
            capture_output=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)} | environment,
        )
    return digest_of(folder)


def cpu_family() -> str:
    """What libraries choose their instructions by: the maker, the family and the widest vectors."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    facts = dict(
        (key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in reversed(lines))
    )
    flags = facts.get("flags", "").split()
    width = next((name for name in ("avx512f", "avx2", "avx") if name in flags), platform.machine())
    maker = facts.get("vendor_id", platform.processor() or platform.machine())
    return f"{platform.system()} {maker} family {facts.get('cpu family', '?')} {width}"


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("numpy", "numba", "scipy", "torch")}


def compare(found: dict[str, str], family: str, stored: dict[str, Any]) -> list[str]:
    """What differs from what is stored, in words; nothing where nothing is."""
    if family not in stored:
        return [f"nothing is stored for {family}; record it with --record 'first on this CPU'"]
    known = stored[family]
    said = [
        f"{name}: {digest}, but {known['digests'].get(name)} was stored on {known['date']} ({known['why']})"
        for name, digest in found.items()
        if known["digests"].get(name) != digest
    ]
    if said and known["versions"] != versions():
        said.append(f"libraries have changed, from {known['versions']} to {versions()}")
    if said:
        said.append("if it is meant, record it with --record 'why'")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", metavar="WHY", help="store what comes out now")
    parser.add_argument("--cold", action="store_true", help="also with an empty cache of kernels")
    given = parser.parse_args()
    found, wrong = {}, []
    with tempfile.TemporaryDirectory(prefix="anchor3r-digests-") as folder:
        for name in RUNS:
            found[name] = run(name, Path(folder) / name)
            again = {"a second run": run(name, Path(folder) / f"{name} again")}
            again["two threads"] = run(name, Path(folder) / f"{name} threads", threads=2)
            if given.cold:
                cache = str(Path(folder) / "cache")
                again["a cold cache"] = run(name, Path(folder) / f"{name} cold", NUMBA_CACHE_DIR=cache)
            other = [f"{name}: other bits with {how}" for how, bits in again.items() if bits != found[name]]
            print("\n".join(other) or f"{name}: {found[name]}, the same with {', '.join(again)}", flush=True)
            wrong += other
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if given.record and not wrong:
        entry = {
            "date": f"{datetime.date.today()}",
            "why": given.record,
            "versions": versions(),
            "digests": found,
        }
        STORED.write_text(json.dumps(stored | {cpu_family(): entry}, indent=1) + "\n")
        return 0
    wrong += compare(found, cpu_family(), stored)
    print("\n".join(wrong) or f"all as stored for {cpu_family()}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
