"""Procedural worlds with exact ground truth, and the figures that a small network has to reach on them.

A sequence is named PART-SEED, such as driving-101. Parts are worlds of one motion; `grid` is a long drive
through a grid of streets, `stream` a much longer one, to see whether a stream gets worse with time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.benchmarks.benchmark import Benchmark, ScoringProtocol
from anchor3r.evaluation.results import Results
from anchor3r.evaluation.tables import METRICS, NOT_RUN
from anchor3r.sources import Source, open_source

PARTS: dict[str, tuple[str, int]] = {
    "driving": ("kind=street&motion=driving", 300),
    "handheld": ("kind=open&motion=handheld", 300),
    "room": ("kind=room&motion=handheld", 300),
    "orbit": ("motion=orbit", 300),
    "grid": ("kind=street&motion=grid", 3000),
    "stream": ("kind=street&motion=grid", 10_000),
}
"""Of each part: the world, and how many frames it has unless told otherwise."""


_SHOWN = (
    "neighbour_rotation_median_deg",
    "neighbour_direction_median_deg",
    "ate_percent",
    "rre_rmse_deg",
    "depth_abs_rel",
    "error_growth",
)


@dataclass(frozen=True)
class Worlds(Benchmark):
    """Worlds that nothing is trained on."""

    frames: Mapping[str, int] = field(default_factory=lambda: {part: n for part, (_, n) in PARTS.items()})
    """Length of each part."""

    protocol: ClassVar[ScoringProtocol] = ScoringProtocol(
        benchmark="worlds",
        camera="as the world has it",
        frames="all",
        ground_truth="exact",
        metrics=_SHOWN,
    )

    def open(self, root: Path, name: str, wanted: slice) -> Source:
        return open_source(self.uri(name), stop=wanted.stop)

    def check(self, root: Path, name: str) -> None:
        self.uri(name)

    def settings(self, name: str) -> dict[str, Any]:
        return {"uri": self.uri(name)}

    def uri(self, name: str) -> str:
        """The source of a sequence."""
        part, _, seed = name.partition("-")
        if part not in PARTS or not seed.isdecimal():
            raise Anchor3RError(f"there is no world {name}; write it as driving-101, of {', '.join(PARTS)}")
        return f"world:{seed}?{PARTS[part][0]}&frames={self.frames[part]}"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure to reach: the median over sequences of some parts."""

    label: str
    parts: tuple[str, ...]
    metric: str
    at_most: float
    unit: str = ""


GOALS = (
    Goal(
        label="neighbour rotation, driving",
        parts=("driving",),
        metric="neighbour_rotation_median_deg",
        at_most=0.10,
        unit="°",
    ),
    Goal(
        label="neighbour direction, driving",
        parts=("driving",),
        metric="neighbour_direction_median_deg",
        at_most=1.5,
        unit="°",
    ),
    Goal(
        label="neighbour rotation, handheld and rooms",
        parts=("handheld", "room"),
        metric="neighbour_rotation_median_deg",
        at_most=0.25,
        unit="°",
    ),
    Goal(
        label="neighbour direction, handheld and rooms",
        parts=("handheld", "room"),
        metric="neighbour_direction_median_deg",
        at_most=6.0,
        unit="°",
    ),
    Goal(label="online ATE, driving", parts=("driving",), metric="ate_percent", at_most=0.6, unit=" %"),
    Goal(label="online ATE, handheld", parts=("handheld",), metric="ate_percent", at_most=1.5, unit=" %"),
    Goal(label="online ATE, street grid", parts=("grid",), metric="ate_percent", at_most=3.0, unit=" %"),
    Goal(
        label="depth AbsRel after one scale per sequence",
        parts=("driving", "handheld", "room"),
        metric="depth_abs_rel",
        at_most=0.12,
    ),
    Goal(
        label="error growth over a stream", parts=("stream",), metric="error_growth", at_most=1.2, unit=" ×"
    ),
)


def goal_table(results: Results) -> str:
    """What was reached of the goals, as Markdown; parts that were not run are left out."""
    lines = ["| median over sequences | goal | measured | sequences | frames |", "|---|---|---|---|---|"]
    for goal in GOALS:
        names = [name for name in results.sequences if name.partition("-")[0] in goal.parts]
        values = _online(results, names, goal.metric)
        if not names:
            continue
        lengths = sorted({results.sequences[name].num_frames for name in names})
        median = float(np.median(values)) if len(values) == len(names) else float("inf")
        measured = f"{median:.3g}{goal.unit}" if np.isfinite(median) else f"failed {len(names) - len(values)}"
        mark = "**" if median <= goal.at_most else ""
        lines.append(
            f"| {goal.label} | ≤ {goal.at_most:g}{goal.unit} | {mark}{measured}{mark} | {len(names)} | "
            f"{'–'.join(f'{n:,}' for n in (lengths[0], lengths[-1])[: len(lengths)])} |"
        )
    return "\n".join(lines)


def part_table(results: Results) -> str:
    """Medians over the sequences of each part, as Markdown."""
    lines = ["| median over sequences | " + " | ".join(METRICS[m].label for m in _SHOWN) + " |"]
    lines.append("|---" * (len(_SHOWN) + 1) + "|")
    for part in PARTS:
        names = [name for name in results.sequences if name.partition("-")[0] == part]
        found = [_online(results, names, metric) for metric in _SHOWN]
        cells = [f"{np.median(values):.3g}" if values else NOT_RUN for values in found]
        if names:
            lines.append(f"| {part} ({len(names)}) | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _online(results: Results, names: Sequence[str], metric: str) -> list[float]:
    found = (results.sequences[name].variants.get("online", {}).get(metric) for name in names)
    return [value for value in found if value is not None and np.isfinite(value)]
