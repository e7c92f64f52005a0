"""A progress bar with rate and remaining time on the standard error; silent where that is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(label: str, total: int | None, unit: str) -> Iterator[Callable[[int, str], None]]:
    """Yields `advance(done, label)`, where `done` counts from 0 to `total` (None: not known).

    While kernels are compiled, which the first run after an installation waits for, the bar says so.
    """
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

    from anchor3r.kernels import CompileWatch

    class RateColumn(ProgressColumn):
        """Units a second over the last seconds."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.1f} {unit}/s" if task.speed else "")

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), RateColumn()]
    columns += [TimeRemainingColumn()] if total is not None else [TimeElapsedColumn()]
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        current = label

        def advance(done: int, label: str) -> None:
            nonlocal current
            current = label
            bar.update(task, completed=done, description=label)

        def compiling(started: bool) -> None:
            bar.update(task, description="compiling (once)" if started else current)

        with CompileWatch(compiling):
            yield advance
