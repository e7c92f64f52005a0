"""The paper's figures, from what evaluations left behind: results.json and the folders beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from anchor3r.evaluation.association import associate, read_poses, stamps_of
from anchor3r.evaluation.attention import read_attention
from anchor3r.evaluation.figures import (
    attention_figure,
    scaling_figure,
    trajectory_figure,
    window_size_figure,
)
from anchor3r.evaluation.metrics import Alignment, TrajectoryErrors, trajectory_errors
from anchor3r.evaluation.results import Metrics, Results
from anchor3r.evaluation.scoring import RUNTIME_CSV, read_runtime
from anchor3r.evaluation.tables import variant_label
from anchor3r.store import ONLINE, Runtime
from anchor3r.trajectory import MIN_ALIGNED_POSES

_SAME_TIME_S = 1e-6
"""Trajectories of one sequence have the very stamps of its ground truth."""


def draw_figures(
    out: Path, results: Sequence[Path], attention: Path | None, layers: Sequence[int]
) -> Iterator[Path]:
    """Draws what the files have; yields each figure that was written."""
    runs = {path: Results.load(path) for path in results}
    for sequence in dict.fromkeys(name for run in runs.values() for name in run.sequences):
        if errors := _errors(runs, sequence):
            trajectory_figure(errors, out / f"trajectory-{sequence}.png", sequence)
            yield out / f"trajectory-{sequence}.png"
    if runtimes := _runtimes(runs):
        scaling_figure(runtimes, out / "scaling.png")
        yield out / "scaling.png"
    sizes = _window_sizes(list(runs.values()))
    if len({size for points in sizes.values() for size, _ in points}) > 1:
        window_size_figure(sizes, out / "window.png")
        yield out / "window.png"
    if attention is not None:
        attention_figure(read_attention(attention, layers), out / "attention.png")
        yield out / "attention.png"


def _errors(runs: dict[Path, Results], sequence: str) -> dict[str, TrajectoryErrors]:
    """Errors of every method and refinement, from its trajectory file."""
    found: dict[str, TrajectoryErrors] = {}
    for path, run in runs.items():
        folder = path.parent / sequence
        if sequence not in run.sequences or not (folder / "truth.tum").is_file():
            continue
        truth = read_poses(folder / "truth.tum")
        for variant in run.sequences[sequence].variants:
            if not (folder / f"{variant}.tum").is_file():
                continue
            estimate = read_poses(folder / f"{variant}.tum")
            of_estimate, of_truth = associate(
                stamps_of(estimate, folder), stamps_of(truth, folder), _SAME_TIME_S
            )
            if len(of_truth) >= MIN_ALIGNED_POSES:
                found[f"{run.method}-{variant_label(variant)}"] = trajectory_errors(
                    estimate.world_from_camera[of_estimate],
                    truth.world_from_camera[of_truth],
                    Alignment(run.protocol.get("alignment", Alignment.SIM3)),
                )
    return found


def _runtimes(runs: dict[Path, Results]) -> dict[str, Runtime]:
    """Of every run its longest sequence; runs of one method are told apart by their window."""
    found: dict[str, Runtime] = {}
    for path, run in runs.items():
        files = [path.parent / name / RUNTIME_CSV for name in run.sequences]
        known = [read_runtime(file) for file in files if file.is_file()]
        if known:
            name = run.method if run.method not in found else f"{run.method}, window {_window_of(run)}"
            found[name] = max(known, key=lambda runtime: len(runtime.seconds))
    return found


def _window_sizes(runs: Sequence[Results]) -> dict[str, list[tuple[int, Metrics]]]:
    """Of every method, by window size: online metrics and speed, averages over its sequences."""
    found: dict[str, list[tuple[int, Metrics]]] = {}
    for run in runs:
        size = _window_of(run)
        if size is None:
            continue
        values = [result.variants.get(ONLINE, {}) | result.runtime for result in run.sequences.values()]
        averages: Metrics = {}
        for metric in dict.fromkeys(name for value in values for name in value):
            known = [number for value in values if (number := value.get(metric)) is not None]
            averages[metric] = float(np.mean(known)) if known else None
        found.setdefault(run.method, []).append((size, averages))
    return {method: sorted(points, key=lambda point: point[0]) for method, points in found.items()}


def _window_of(run: Results) -> int | None:
    """Frames in a window, as the maps of a run say."""
    return next((result.made_from.get("window") for result in run.sequences.values()), None)
