"""How many sequences a minute `anchor3r batch` does with one worker, with two, and on Ray with two.

Every way is a program of its own that does the same sequences in a fresh folder; its start is included. Two
measures:

By the clock. Linear is twice what one worker does that is kept on one core: left to itself one worker reads,
maps and writes in several threads, and uses about one core and a half. What the machine can do at best is
measured in the same run: two programs with one worker each and half of the sequences each, which know nothing
of each other. That limit also has what two cores have in common: memory, caches, clock rates, and other
programs. Ways take turns, and the fastest round of each counts, since other programs only slow one down.

By work: CPU seconds of all processes that a way starts, Ray's own among them. It is what the cores could do
in less, whatever else they are busy with: where two workers need as much as one, nothing is lost by sharing.
The cheapest round of each counts.

Another run kills workers at random while it goes and counts what is lost.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # one core a worker, in every way

import tyro

WORLD = "world:{}?motion=driving&frames={}&width=320&height=240"
WAYS: dict[str, list[list[str]]] = {
    # name: the programs that run at once, by their options; several share the sequences
    "1 worker, one core": [["--workers", "1"]],
    "2 workers": [["--workers", "2"]],
    "Ray, 2 processes": [["--workers", "2", "--ray", "local"]],
    "2 programs apart": [["--workers", "1", "--shard", "0/2"], ["--workers", "1", "--shard", "1/2"]],
}
BASE = "1 worker, one core"
"""What linear is counted from."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One way, once."""

    seconds: float
    cpu_seconds: float
    """Of the programs and of all processes below them."""
    done: int


class TreeClock:
    """Adds up the CPU time of processes and of all that they start, by looking at them now and then."""

    _TICK_S = 1 / os.sysconf("SC_CLK_TCK")

    def __init__(self, programs: list[int]) -> None:
        self._seen: dict[tuple[int, str], float] = {}
        self._pids = set(programs)

    def look(self) -> None:
        """What has ended since the last look counts with what it had then."""
        stats = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            stats[int(path.parent.name)] = fields
        parents = {pid: int(fields[1]) for pid, fields in stats.items()}
        while grown := {pid for pid, parent in parents.items() if parent in self._pids} - self._pids:
            self._pids |= grown
        for pid in self._pids & stats.keys():
            user, system, started = stats[pid][11], stats[pid][12], stats[pid][19]
            self._seen[pid, started] = (int(user) + int(system)) * self._TICK_S

    @property
    def seconds(self) -> float:
        return sum(self._seen.values())


def write_manifest(path: Path, sequences: int, frames: int) -> Path:
    rows = [f"{WORLD.format(k, frames)},w{k},features" for k in range(sequences)]
    path.write_text("\n".join(["source,name,predictor", *rows]) + "\n")
    return path


def begin(
    manifest: Path, out: Path, options: list[str], *, one_core: bool = False
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "anchor3r", "batch", str(manifest), "--out", str(out), *options]
    if one_core:
        command = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), *command]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def timed(manifest: Path, programs: list[list[str]], *, one_core: bool = False) -> Round:
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        running = [begin(manifest, Path(folder), options, one_core=one_core) for options in programs]
        clock = TreeClock([program.pid for program in running])
        while any(program.poll() is None for program in running):
            clock.look()
            time.sleep(0.2)
        seconds = time.perf_counter() - started
        done = len(list(Path(folder).glob("*/result.json")))
        return Round(seconds=seconds, cpu_seconds=clock.seconds, done=done)


def workers_of(program: int) -> list[int]:
    """Processes that do the jobs of a batch."""
    listed = Path(f"/proc/{program}/task/{program}/children")
    try:
        found = [int(pid) for pid in listed.read_text().split()]
        return [pid for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    except OSError:
        return []


def killed_now_and_then(manifest: Path, every_s: float) -> tuple[Round, int, bool]:
    """Two workers of which one is killed every so often; how many kills, and whether results are the same."""
    with tempfile.TemporaryDirectory() as folder:
        started, kills, rng = time.perf_counter(), 0, random.Random(0)
        program = begin(manifest, Path(folder) / "killed", ["--workers", "2", "--tries", "100"])
        stop = threading.Event()
        while program.poll() is None:
            stop.wait(every_s * rng.uniform(0.5, 1.5))
            if pids := workers_of(program.pid):
                os.kill(rng.choice(pids), signal.SIGKILL)
                kills += 1
        seconds = time.perf_counter() - started
        results = {p.parent.name: figures(p) for p in (Path(folder) / "killed").glob("*/result.json")}
        begin(manifest, Path(folder) / "sound", ["--workers", "2"]).wait()
        sound = {p.parent.name: figures(p) for p in (Path(folder) / "sound").glob("*/result.json")}
        return Round(seconds=seconds, cpu_seconds=0.0, done=len(results)), kills, results == sound


def figures(path: Path) -> dict[str, object]:
    """Of a result, what does not depend on how long it took."""
    return {name: value for name, value in json.loads(path.read_text()).items() if name != "seconds"}


def main(
    sequences: int = 8, frames: int = 300, rounds: int = 3, kill_every: float = 8.0, out: Path | None = None
) -> None:
    """Prints a table.

    Args:
        sequences: Rows of the manifest.
        frames: Of each.
        rounds: How often each way is tried; the fastest counts.
        kill_every: Seconds between kills of the last run, on average.
        out: Folder for batch.json.
    """
    work = Path(tempfile.mkdtemp(prefix="anchor3r-batch-"))
    manifest = write_manifest(work / "manifest.csv", sequences, frames)
    timed(write_manifest(work / "first.csv", 1, 30), WAYS[BASE])  # compiles
    tried: dict[str, list[Round]] = {name: [] for name in WAYS}
    for number in range(rounds):
        for name, programs in WAYS.items():
            tried[name].append(timed(manifest, programs, one_core=name == BASE))
            print(f"round {number}: {name}: {tried[name][-1]}", file=sys.stderr, flush=True)
    best = {name: min(found, key=lambda one: one.seconds) for name, found in tried.items()}
    work_s = {name: min(one.cpu_seconds / one.done for one in found) for name, found in tried.items()}
    single, limit = best[BASE], best["2 programs apart"]
    columns = (
        "way",
        "sequences a minute",
        "of linear",
        "of the limit",
        "CPU s a sequence",
        "of one worker's",
        "done",
    )
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, one in best.items():
        share = single.seconds / one.seconds / (1 if name == BASE else 2)
        of_limit = "" if name == BASE else f"{limit.seconds / one.seconds:.0%}"
        print(
            f"| {name} | {60 * one.done / one.seconds:.1f} | {share:.0%} | {of_limit} | "
            f"{work_s[name]:.2f} | {work_s[BASE] / work_s[name]:.0%} | {one.done} of {sequences} |"
        )
    killed, kills, same = killed_now_and_then(manifest, kill_every)
    print(
        f"workers killed {kills} times: {killed.done} of {sequences} done in {killed.seconds:.0f} s, ", end=""
    )
    print("with the figures of a run without kills" if same else "with OTHER figures than without kills")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        content = {name: [asdict(one) for one in found] for name, found in tried.items()}
        content["killed"] = [asdict(killed) | {"kills": kills, "same": same}]
        (out / "batch.json").write_text(json.dumps(content, indent=1))
    shutil.rmtree(work)


if __name__ == "__main__":
    tyro.cli(main)
