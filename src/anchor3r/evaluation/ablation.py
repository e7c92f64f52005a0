"""The table of an ablation: every finished run on the same held-out sequences, mean and spread over seeds.

`anchor3r train ablation --all --out RUNS` leaves RUNS/VARIANT/seed-K; what is measured of a run is kept
beside it, in RUNS/VARIANT/seed-K/evaluation, and read back the next time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.benchmarks.benchmark import Benchmark
from anchor3r.evaluation.metrics import trajectory_errors
from anchor3r.evaluation.results import Results, read_json
from anchor3r.evaluation.runner import MapAndRefine, run_benchmark
from anchor3r.evaluation.tables import METRICS
from anchor3r.geometry import SE3
from anchor3r.io.inputs import parse_json, text_lines
from anchor3r.io.trajectories import read_tum
from anchor3r.pipeline.settings import MapSettings

BASELINE = "baseline"
"""The variant that all others are compared with."""
SHOWN = ("ate_rmse_m", "rte_rmse_m", "rre_rmse_deg")
"""The paper's columns."""


@dataclass(frozen=True, kw_only=True)
class AblationRun:
    """One finished run."""

    variant: str
    seed: int
    folder: Path
    steps: int
    """Of its training"""

    @property
    def checkpoint(self) -> Path:
        return self.folder / "best.safetensors"


@dataclass(frozen=True, kw_only=True)
class AblationRow:
    """What the seeds of one variant reached: of each metric the mean over the sequences, seed by seed."""

    variant: str
    values: Mapping[str, Sequence[float]]

    def mean(self, metric: str) -> float:
        return float(np.mean(self.values[metric]))

    def spread(self, metric: str) -> float:
        """Standard deviation between seeds; NaN of a single one."""
        found = self.values[metric]
        return float(np.std(found, ddof=1)) if len(found) > 1 else math.nan

    def differs_by(self, baseline: AblationRow, metric: str) -> float:
        """The difference from the baseline in its own standard deviations (Welch's t); NaN if unknown."""
        variance = sum(row.spread(metric) ** 2 / len(row.values[metric]) for row in (self, baseline))
        difference = self.mean(metric) - baseline.mean(metric)
        return difference / math.sqrt(variance) if variance > 0 else math.nan


def finished_runs(folder: Path) -> tuple[list[AblationRun], list[Path]]:
    """The runs in a folder that have come to their last step, and the folders of those that have not."""
    finished, others = [], []
    for path in sorted(folder.glob("*/seed-*")):
        steps, number = read_json(path / "recipe.json").get("steps"), path.name.removeprefix("seed-")
        if not isinstance(steps, int) or not (number.isascii() and number.isdecimal()):
            raise Anchor3RError(f"{path} is no folder of a run; remove it")
        seed = int(number)
        run = AblationRun(variant=path.parent.name, seed=seed, folder=path, steps=steps)
        if _last_step(path / "log.jsonl") >= steps and run.checkpoint.is_file():
            finished.append(run)
        else:
            others.append(path)
    if not finished:
        raise Anchor3RError(
            f"{folder} has no finished run; train them: anchor3r train ablation --all --out …"
        )
    if len({run.steps for run in finished}) > 1:
        lengths = ", ".join(f"{run.folder}: {run.steps}" for run in finished)
        raise Anchor3RError(f"runs of different lengths do not compare: steps of {lengths}")
    return finished, others


def _last_step(log: Path) -> int:
    last = 0
    for _, line in text_lines(log, errors="replace") if log.is_file() else ():
        with suppress(Anchor3RError):  # a line that a crash cut short
            entry = parse_json(line, str(log))
            # A validation follows the last step and its line; a run that was stopped in between lacks it.
            if isinstance(entry, dict) and "val/score" in entry and isinstance(entry.get("step"), int):
                last = max(last, entry["step"])
    return last


def evaluate_runs(
    runs: Sequence[AblationRun],
    benchmark: Benchmark,
    root: Path,
    sequences: Sequence[str],
    on_result: Callable[[AblationRun, Results], None] = lambda run, results: None,
) -> list[AblationRow]:
    """Maps the sequences online with every run's network; a row a variant, the baseline first."""
    values: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        results = run_benchmark(
            benchmark,
            root,
            run.folder / "evaluation",
            MapAndRefine(mapping=MapSettings(predictor=str(run.checkpoint))),
            sequences=sequences,
            keep_maps=False,
        )
        on_result(run, results)
        for metric in SHOWN:
            found = [result.variants["online"].get(metric) for result in results.sequences.values()]
            mean = float(np.mean([math.nan if value is None else value for value in found]))
            values.setdefault(run.variant, {}).setdefault(metric, []).append(mean)
    order = sorted(values, key=lambda variant: (variant != BASELINE, variant))
    rows = [AblationRow(variant=variant, values=values[variant]) for variant in order]
    return [*rows, straight_ahead(runs[0].folder / "evaluation")]


def straight_ahead(evaluation: Path) -> AblationRow:
    """What a camera that goes straight ahead and never turns would score on the sequences of a run: variants
    that are no better have learned nothing about rotation, and their differences mean nothing."""
    values: dict[str, list[float]] = {metric: [] for metric in SHOWN}
    for path in sorted(evaluation.glob("*/truth.tum")):
        true = read_tum(path).world_from_camera
        step = float(np.median(np.linalg.norm(np.diff(true.translation, axis=0), axis=1)))
        centers = np.outer(np.arange(len(true)), [0.0, 0.0, step])
        ahead = SE3(np.broadcast_to(np.eye(3), (len(true), 3, 3)), centers)
        metrics = trajectory_errors(ahead, true).metrics()
        for metric in SHOWN:
            values[metric].append(metrics[metric])
    return AblationRow(variant="(straight ahead)", values={m: [float(np.mean(v))] for m, v in values.items()})


def ablation_table(rows: Sequence[AblationRow]) -> str:
    """Mean ± standard deviation over seeds, and the difference from the baseline, as Markdown."""
    baseline = next((row for row in rows if row.variant == BASELINE), None)
    heads = [f"{METRICS[metric].label} | t" for metric in SHOWN]
    lines = [f"| variant | seeds | {' | '.join(heads)} |", "|---" * (2 + 2 * len(SHOWN)) + "|"]
    for row in rows:
        cells = [row.variant, str(len(row.values[SHOWN[0]]))]
        for metric in SHOWN:
            spread = row.spread(metric)
            cells.append(f"{row.mean(metric):.3g}" + ("" if math.isnan(spread) else f" ± {spread:.2g}"))
            t = math.nan if baseline in (None, row) else row.differs_by(baseline, metric)
            cells.append("–" if math.isnan(t) else f"{t:+.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
