"""The loop events of a map as a table: what was measured, what became of it and why."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from anchor3r.io.files import replacing
from anchor3r.store import Loop

_COLUMNS = ("event", "query", "match", "accepted", "reason")


def write_loops_csv(path: Path, loops: Sequence[Loop]) -> None:
    """One line an event; a figure that an event does not have stays empty."""
    figures = list(dict.fromkeys(name for loop in loops for name in loop.figures))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*_COLUMNS, *figures])
    for loop in loops:
        values = [loop.event, loop.query, loop.match, "yes" if loop.accepted else "no", loop.reason]
        found = [f"{loop.figures[name]:.6g}" if name in loop.figures else "" for name in figures]
        table.writerow([*values, *found])
    with replacing(path) as file:
        file.write(text.getvalue().encode())
