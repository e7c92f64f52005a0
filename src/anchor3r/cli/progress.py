"""How far a command has come, on the standard error: a bar in a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from anchor3r.pipeline.settings import Progress

_IN_WORDS = {"describing": "describing keyframes", "loops": "measuring loops"}
"""Stages whose names say too little where they stand alone."""
SECONDS_BETWEEN_LINES = 10.0
"""Of lines of progress where the standard error is no terminal, such as a log."""


class Advance(Protocol):
    """Told how far the work has come."""

    def __call__(self, done: int, label: str, total: int | None = None) -> None:
        """done: of the stage `label`; total: of that stage, where it is not that of the whole."""


@contextmanager
def progress(label: str, total: int | None, unit: str) -> Iterator[Advance]:
    """Yields `advance(done, label)`, where `done` counts from 0 to `total` (None: not known) in units.

    A new label with another total is a new stage, whose rate and remaining time are its own. While kernels
    are compiled, which the first run after an installation waits for, the bar says so.
    """
    from anchor3r.kernels import CompileWatch

    shown = _bar if sys.stderr.isatty() else _lines
    with shown(label, total, unit) as (advance, compiling), CompileWatch(compiling):
        yield advance


@contextmanager
def stages(label: str, total: int | None = None, unit: str = "") -> Iterator[Progress]:
    """Yields what the functions of `pipeline` and the like tell their progress to, stage by stage."""
    with progress(label, total, unit) as advance:
        yield lambda stage, done, of: advance(done, _IN_WORDS.get(stage, stage), of)


Shown = tuple[Advance, Callable[[bool], None]]


@contextmanager
def _bar(label: str, total: int | None, unit: str) -> Iterator[Shown]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class RateColumn(ProgressColumn):
        """Units a second over the last seconds."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.1f} {unit}/s".replace(" /s", "/s") if task.speed else "")

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), RateColumn()]
    columns += [TimeElapsedColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        stage = label

        def advance(done: int, label: str, total: int | None = None) -> None:
            nonlocal stage
            if total is not None and label != stage:
                bar.reset(task, total=total, description=label)
            stage = label
            bar.update(task, completed=done, description=label)

        def compiling(started: bool) -> None:
            bar.update(task, description="compiling (once)" if started else stage)

        yield advance, compiling


@contextmanager
def _lines(label: str, total: int | None, unit: str) -> Iterator[Shown]:
    stage, stage_total = label, total
    began = last = time.monotonic()
    began_at: int | None = None

    def advance(done: int, label: str, total: int | None = None) -> None:
        nonlocal stage, stage_total, began, began_at, last
        now = time.monotonic()
        if began_at is None or (total is not None and label != stage):
            began, began_at = now, done
        stage, stage_total = label, total or stage_total
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            rate = (done - began_at) / (now - began) if now > began else 0.0
            print(_line(stage, done, stage_total, rate, unit), file=sys.stderr, flush=True)

    def compiling(started: bool) -> None:
        nonlocal last
        if started and time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print("compiling kernels, once after an installation", file=sys.stderr, flush=True)

    yield advance, compiling


def _line(label: str, done: int, total: int | None, rate: float, unit: str) -> str:
    """mapping: 120 of 600 frames, 4.0 frames/s, 2:00 left"""
    counted = f"{done}" if total is None else f"{done} of {total}"
    parts = [f"{label}: {counted} {unit}".rstrip()]
    if rate > 0:
        parts.append(f"{rate:.1f} {unit}/s" if unit else f"{rate:.1f}/s")
        if total is not None:
            minutes, seconds = divmod(round((total - done) / rate), 60)
            parts.append(f"{minutes}:{seconds:02} left")
    return ", ".join(parts)
