"""Faults on purpose: what of a map survives kills, failing disks, stolen locks, a moved clock and company.

    python tests/faults/driver.py                  every fault, a table at the end     (make faults)
    python tests/faults/driver.py --minutes 10     two writers, a reader and a viewer for as long

A child maps a short stream and tells through a pipe which frames are acknowledged (committed). A fault is put
into it: through the connections that the store opens, through its own files (`io.files`), or through limits
of the system. After each the map has to open, to hold every acknowledged frame, and to be gone on with to the
very bits of a map that nothing has happened to.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process with threads cannot be forked safely
sys.path.insert(0, str(Path(__file__).parents[1]))

from anchor3r.errors import Anchor3RError
from anchor3r.pipeline.mapper import Mapper
from anchor3r.predictors.ground_truth import GroundTruthConfig, GroundTruthPredictor
from anchor3r.store import MapWriter, StoreConfig, database, load_map
from toy_source import ToySource

NUM_FRAMES = 8
IDENTITY = {"source": "toy"}
CONFIG = StoreConfig(commit_interval_s=0.0, snapshot_frames=3, snapshot_share=1.0)
"""Every frame is committed by itself, so that there are as many commit points as can be."""
CONTENT = ("meta", "frames", "poses", "edge_groups", "points", "pictures")
Fault = Callable[[], None]
"""Called in the child before it begins."""


def map_stream(
    folder: Path, acknowledge: Callable[[int], None], *, resume: bool, frames: int = NUM_FRAMES
) -> None:
    """Maps the stream into the folder; tells each frame once it is committed."""
    begin = MapWriter.resume if resume else MapWriter.create
    predictor = GroundTruthPredictor(GroundTruthConfig(rotation_deg=0.1, translation_fraction=0.01, window=3))
    with begin(folder, IDENTITY, config=CONFIG) as store:
        for update in Mapper(predictor, store).run(ToySource(frames)):
            acknowledge(update.frame)


def digest(folder: Path) -> str:
    """Of everything in a map that does not tell when it was made."""
    found = hashlib.sha256()
    connection = sqlite3.connect(folder / database.DATABASE)
    for table in CONTENT:
        for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2"):
            found.update(repr(row).encode())
    connection.close()
    return found.hexdigest()


def in_child(
    work: Callable[[Callable[[int], None]], None], fault: Fault = lambda: None
) -> tuple[int, int, str]:
    """Runs work in a fork with a fault: its exit code, the last frame it acknowledged, what it said."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 0
        try:
            fault()
            work(lambda frame: os.write(writing, f"{frame}\n".encode()) and None)
        except Anchor3RError as error:
            os.write(writing, f"! {error}\n".encode())
            code = 1
        except MemoryError:
            code = 1
        except BaseException as error:  # noqa: BLE001  # told to the parent, which fails
            os.write(writing, f"! {type(error).__name__}: {error}\n".encode())
            code = 3
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lines = pipe.read().splitlines()
    status = os.waitpid(child, 0)[1]
    frames = [int(line) for line in lines if not line.startswith("!")]
    said = " ".join(line[2:] for line in lines if line.startswith("!"))
    return os.waitstatus_to_exitcode(status), max(frames, default=-1), said


class Faulty(sqlite3.Connection):
    """A connection of the store that does something at one of its statements."""

    count = 0
    at = -1
    act: Callable[[], None] = staticmethod(lambda: None)
    after = False

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        return self._guarded(super().execute, arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        return self._guarded(super().executemany, arguments)

    def executescript(self, *arguments: Any) -> sqlite3.Cursor:
        return self._guarded(super().executescript, arguments)

    def _guarded(self, call: Callable[..., sqlite3.Cursor], arguments: tuple[Any, ...]) -> sqlite3.Cursor:
        Faulty.count += 1
        due = Faulty.count == Faulty.at + 1
        if due and not Faulty.after:
            Faulty.act()
        result = call(*arguments)
        if due and Faulty.after:
            Faulty.act()
        return result


def statement_fault(at: int, act: Callable[[], None], *, after: bool = False) -> Fault:
    """At the at-th statement of the store, counted over all its connections."""

    def install() -> None:
        Faulty.count, Faulty.at, Faulty.after = 0, at, after
        Faulty.act = staticmethod(act)
        connect = sqlite3.connect
        sqlite3.connect = lambda *a, **k: connect(*a, factory=Faulty, **k)  # type: ignore[assignment]

    return install


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail_as(name: str) -> Callable[[], None]:
    """What SQLite says when the disk fails or is full."""

    def act() -> None:
        error = sqlite3.OperationalError(
            "disk I/O error" if name == "SQLITE_IOERR" else "database or disk is full"
        )
        error.sqlite_errorname = name  # type: ignore[misc]
        raise error

    return act


def file_fault(at: int, number: int) -> Fault:
    """The at-th open, replacement, removal or synchronisation of a file by our own file layer fails."""

    def install() -> None:
        import builtins

        count = iter(range(10**6))

        def faulty(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **options: Any) -> Any:
                if next(count) == at:
                    raise OSError(number, os.strerror(number), str(arguments[0]))
                return call(*arguments, **options)

            return wrapped

        for module, name in (
            (os, "replace"),
            (os, "fsync"),
            (os, "unlink"),
            (os, "mkdir"),
            (builtins, "open"),
        ):
            setattr(module, name, faulty(getattr(module, name)))

    return install


def limit_fault(kind: int, value: int) -> Fault:
    def install() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(kind, (value, value))

    return install


def clock_fault(seconds: float) -> Fault:
    """The wall clock jumps at every look at it."""

    def install() -> None:
        now = time.time
        jumps = iter(range(10**9))
        time.time = lambda: now() + seconds * (next(jumps) % 3 - 1)

    return install


class Trial:
    """Puts faults into runs and looks at what they leave."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tried: Counter[str] = Counter()
        self.lost: list[str] = []
        self._lost: set[tuple[str, int]] = set()
        self.expected = self._expected()

    def _expected(self) -> str:
        sound = self.folder / "sound"
        assert in_child(lambda tell: map_stream(sound, tell, resume=False))[0] == 0
        return digest(sound)

    def num_statements(self) -> int:
        """That the store makes in a sound run."""
        counted = self.folder / "counted"
        shutil.rmtree(counted, ignore_errors=True)
        path = self.folder / "count"

        def work(tell: Callable[[int], None]) -> None:
            map_stream(counted, tell, resume=False)
            path.write_text(str(Faulty.count))

        assert in_child(work, statement_fault(-2, lambda: None))[0] == 0
        return int(path.read_text())

    def attempt(self, kind: str, fault: Fault, *, begun: bool = False) -> None:
        """One fault in a run that begins a map, or goes on with half of one."""
        folder = self.folder / "map"
        shutil.rmtree(folder, ignore_errors=True)
        if begun:
            map_stream(folder, lambda frame: None, resume=False, frames=NUM_FRAMES // 2)
        code, acknowledged, said = in_child(lambda tell: map_stream(folder, tell, resume=begun), fault)
        self.tried[kind] += 1
        if code not in (0, 1, -signal.SIGKILL):
            self._note(kind, f"ended with {code}: {said}")
        self.judge(kind, folder, acknowledged)

    def judge(self, kind: str, folder: Path, acknowledged: int) -> None:
        """The map opens, has what was acknowledged, and is gone on with to the same bits."""
        try:
            if acknowledged >= 0:
                with load_map(folder) as scene_map:
                    if scene_map.num_frames < acknowledged + 1:
                        self._note(kind, f"frame {acknowledged} was acknowledged and is gone")
            map_stream(folder, lambda frame: None, resume=True)
            if digest(folder) != self.expected:
                self._note(kind, "the resumed map has other bits")
        except (Anchor3RError, sqlite3.Error, OSError) as error:
            self._note(kind, f"the map cannot be gone on with: {error}")

    def _note(self, kind: str, what: str) -> None:
        self.lost.append(f"{kind}: {what}")
        self._lost.add((kind, self.tried[kind]))

    def table(self) -> str:
        lines = ["| fault | tried | survived | lost |", "|---|---|---|---|"]
        for kind, tried in self.tried.items():
            lost = sum(name == kind for name, _ in self._lost)
            lines.append(f"| {kind} | {tried} | {tried - lost} | {lost} |")
        return "\n".join(lines)


def kills(trial: Trial, step: int) -> None:
    """Before and after every statement, which all commit points are among."""
    count = trial.num_statements()
    for at in range(0, count, step):
        trial.attempt("killed before a statement of the store", statement_fault(at, die))
        trial.attempt("killed after a statement of the store", statement_fault(at, die, after=True))
    for at in range(0, count // 2, step):
        trial.attempt("killed while a map is resumed", statement_fault(at, die), begun=True)


def failing_disks(trial: Trial, step: int) -> None:
    count = trial.num_statements()
    for at in range(1, count, 2 * step):
        trial.attempt("a statement fails: disk full", statement_fault(at, fail_as("SQLITE_FULL")))
        trial.attempt("a statement fails: I/O error", statement_fault(at, fail_as("SQLITE_IOERR")))
    for at in range(0, 12):
        for number in (errno.ENOSPC, errno.EIO, errno.EACCES):
            trial.attempt("the n-th open, fsync, rename or unlink fails", file_fault(at, number))
    for size in range(4096, 400_000, 16_384 * step):
        trial.attempt("no file beyond a size (RLIMIT_FSIZE)", limit_fault(resource.RLIMIT_FSIZE, size))


def odd_surroundings(trial: Trial) -> None:
    for seconds in (3.15e7, -3.15e7, 60.0):
        trial.attempt("the clock jumps at every look", clock_fault(seconds))
    here = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    for extra in (1 << 16, 1 << 20, 4 << 20, 16 << 20):
        trial.attempt("memory runs out (RLIMIT_AS)", limit_fault(resource.RLIMIT_AS, here + extra))
    for _ in range(3):
        stolen_lock(trial)


def stolen_lock(trial: Trial) -> None:
    """The lock is removed under a writer, and another one begins."""
    folder = trial.folder / "map"
    shutil.rmtree(folder, ignore_errors=True)

    def first(tell: Callable[[int], None]) -> None:
        def steal(frame: int) -> None:
            tell(frame)
            if frame == 2:
                (folder / database.LOCK).unlink()
                in_child(lambda _: map_stream(folder, lambda frame: None, resume=True))

        map_stream(folder, steal, resume=False)

    _, acknowledged, _ = in_child(first)
    trial.tried["the lock is stolen by a second writer"] += 1
    trial.judge("the lock is stolen by a second writer", folder, acknowledged)


@contextmanager
def tmpfs(folder: Path, size: int) -> Iterator[bool]:
    """A small disk in memory, where this user may mount one."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = (
        shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def small_disks(trial: Trial, step: int) -> None:
    """A disk that fills up, at many sizes; then it is read-only, then it has room again."""
    disk = trial.folder / "disk"
    for size in range(40_960, 300_000, 16_384 * step):
        with tmpfs(disk, size) as mounted:
            if not mounted:
                return
            _, acknowledged, _ = in_child(lambda tell: map_stream(disk / "map", tell, resume=False))
            trial.tried["the disk fills up (tmpfs)"] += 1
            if acknowledged >= 0:
                subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
                trial.tried["the disk is read-only then"] += 1
                code, _, said = in_child(lambda tell: _read(disk / "map", acknowledged))
                if code:
                    trial._note("the disk is read-only then", said)
            subprocess.run(["mount", "-o", f"remount,rw,size={64 << 20}", str(disk)], check=True)
            trial.judge("the disk fills up (tmpfs)", disk / "map", acknowledged)


def _read(folder: Path, acknowledged: int) -> None:
    with load_map(folder) as scene_map:
        assert scene_map.num_frames >= acknowledged + 1
        assert len(scene_map.trajectory()) >= acknowledged


def company(trial: Trial, seconds: float) -> None:
    """Two writers that restart each other's map, readers and a viewer's contents, all at once."""
    folder, until = trial.folder / "map", time.monotonic() + seconds
    shutil.rmtree(folder, ignore_errors=True)
    workers = [_forked(_write_until, folder, until, k) for k in range(2)]
    workers += [_forked(_read_until, folder, until, k) for k in range(2)]
    workers.append(_forked(_view_until, folder, until, 0))
    codes = [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]
    trial.tried["two writers, two readers, a viewer at once"] += 1
    if any(codes):
        trial._note("two writers, two readers, a viewer at once", f"exit codes {codes}")
    trial.judge("two writers, two readers, a viewer at once", folder, -1)


def _forked(work: Callable[[Path, float, int], None], folder: Path, until: float, number: int) -> int:
    child = os.fork()
    if child == 0:
        code = 3
        try:
            work(folder, until, number)
            code = 0
        finally:
            os._exit(code)
    return child


def _write_until(folder: Path, until: float, number: int) -> None:
    while time.monotonic() < until:
        try:
            map_stream(folder, lambda frame: time.sleep(0.01), resume=True)
        except Anchor3RError as error:
            assert "another process" in str(error), error
        time.sleep(0.05)


def _read_until(folder: Path, until: float, number: int) -> None:
    while time.monotonic() < until:
        if database.holds_map(folder):
            with load_map(folder) as scene_map:
                for frame in scene_map.trajectory().frames.tolist():
                    assert scene_map.points(frame) is not None


def _view_until(folder: Path, until: float, number: int) -> None:
    from anchor3r.viewer.contents import MapContents

    while not database.holds_map(folder):
        time.sleep(0.05)
    with MapContents(folder) as contents:
        while time.monotonic() < until:
            contents.refresh()
            contents.build(0.1)
            time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--step", type=int, default=1, help="take one fault out of so many")
    parser.add_argument(
        "--minutes", type=float, default=0.5, help="how long writers, readers and a viewer work"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anchor3r-faults-") as folder:
        trial = Trial(Path(folder))
        kills(trial, given.step)
        failing_disks(trial, given.step)
        odd_surroundings(trial)
        print(trial.table(), flush=True)  # so far, should what follows fail
        small_disks(trial, given.step)
        company(trial, 60 * given.minutes)
    print(trial.table())
    print("\n".join(trial.lost))
    return int(bool(trial.lost))


if __name__ == "__main__":
    sys.exit(main())
