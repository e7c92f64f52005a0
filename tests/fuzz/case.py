"""What a case of the campaign is, and how one is run: the command line in a forked child with limits.

A case is JSON: its class, what is done to good material, and the arguments. It can be kept in the corpus and
run again whatever becomes of the generators.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Recipe = dict[str, Any]
"""JSON that says how a case is built."""

CPU_SECONDS = 40
"""That a case may take; they are made so small that a second is enough."""
WALL_SECONDS = 300
"""For what waits instead of computing, on a machine that has other things to do."""
MEMORY_BYTES = 4 << 30


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a case."""

    recipe: Recipe
    code: int
    problem: str | None
    """What was wrong with it: a traceback, a hang, too much memory, a wrong result; None if nothing was."""
    message: str
    """The end of the standard error."""
    cpu_seconds: float
    peak_bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Check = Callable[[int, Path], str | None]
"""Given exit code and folder of a case, what is wrong with its result; None if nothing is."""


def run_case(recipe: Recipe, arguments: list[str], folder: Path, check: Check) -> Outcome:
    """Runs `anchor3r ARGUMENTS` in the folder, in a child of this process that has all libraries loaded."""
    out, err = folder / "stdout", folder / "stderr"
    wants_json = bool(recipe.get("json")) and "--json" not in arguments
    arguments = [*arguments, "--json"] if wants_json else arguments
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _run_in_child(arguments, folder, out, err)
    status, usage = _wait(child, began + WALL_SECONDS)
    code = os.waitstatus_to_exitcode(status)
    said = err.read_text(errors="replace") if err.exists() else ""
    problem = _problem(code, said, usage.ru_maxrss * 1024)
    if problem is None and not stat.S_ISCHR(os.stat(os.devnull).st_mode):
        problem = "wrong: the null device is gone"
    if problem is None and wants_json:
        problem = _json_problem(code, out.read_text(errors="replace"))
    if problem is None:
        problem = check(code, folder)
    return Outcome(
        recipe=recipe,
        code=code,
        problem=problem,
        message=said[-2000:] if problem else said[-200:],
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_bytes=usage.ru_maxrss * 1024,
    )


def _run_in_child(arguments: list[str], folder: Path, out: Path, err: Path) -> None:
    from anchor3r.cli.main import main

    code = 99
    try:
        os.setsid()
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        os.environ["ANCHOR3R_CACHE"] = str(folder / "cache")
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGESIZE") + MEMORY_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        code = main(arguments)
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001  # whatever it is, the campaign wants to know it
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _wait(child: int, deadline: float) -> tuple[int, resource.struct_rusage]:
    pause = 0.002
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            return status, usage
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
            return status, usage
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)


_SIGNS = ("Traceback (most recent call last)", "a defect of anchor3r")
"""Of a mistake in the program; `batch` tells those of a row in its table, and goes on."""


def _problem(code: int, said: str, peak_bytes: int) -> str | None:
    if code == -signal.SIGXCPU or code == -signal.SIGKILL:
        return "hang"
    if code < 0:
        return f"crash: signal {-code}"
    if peak_bytes > MEMORY_BYTES:
        return "memory"
    if code not in (0, 1, 2) or any(sign in said for sign in _SIGNS):
        return f"traceback: exit code {code}"
    if code == 1:
        last = said.rstrip().splitlines()[-1:] or [""]
        if not last[0].startswith("anchor3r: "):
            return "wrong: exit code 1 without a line that explains it"
    return None


def _json_problem(code: int, printed: str) -> str | None:
    """With --json the standard output is one object of a schema, whatever comes of the command."""
    try:
        found = json.loads(printed, parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return "wrong: what --json prints is no JSON"
    if not str(found.get("schema", "")).startswith("anchor3r/"):
        return "wrong: what --json prints names no schema"
    is_error = found["schema"] == "anchor3r/error/1"
    if (code == 0) == is_error and not (code and found.get("failure")):
        return "wrong: --json tells another outcome than the exit code"
    return None


def fresh_folder(path: Path) -> Path:
    """An empty folder of that name."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path
