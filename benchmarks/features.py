"""The feature predictor against its goals: accuracy online and offline beside the paper's rows, and speed.

Data sets that are at hand and procedural worlds are mapped, refined and scored as `anchor3r evaluate` does.
Speed is frames by CPU seconds of the predictor alone, one thread, compilation and decoding excluded. Prints
tables and writes features.json; sequences that were finished in an earlier run into the same folder are read
back.

    python benchmarks/features.py --kitti ROOT --seven-scenes ROOT
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numerical libraries are loaded

import json
import resource
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import tyro

from anchor3r.evaluation.benchmarks import BENCHMARKS, Benchmark
from anchor3r.evaluation.benchmarks.worlds import Worlds
from anchor3r.evaluation.results import Results, SequenceResult
from anchor3r.evaluation.runner import MapAndRefine, run_benchmark
from anchor3r.evaluation.tables import run_tables
from anchor3r.pipeline.settings import MapSettings, RefineSettings
from anchor3r.predictors.features.predictor import FeaturesPredictor
from anchor3r.sources import open_source
from anchor3r.store import OFFLINE

_WARM_UP_FRAMES = 40
_KITTI, _SEVEN_SCENES = "00", "redkitchen"


@dataclass(frozen=True)
class SizedWorlds(Worlds):
    """Worlds seen with images of another size than theirs."""

    size: tuple[int, int] = (320, 240)

    def uri(self, name: str) -> str:
        return f"{super().uri(name)}&width={self.size[0]}&height={self.size[1]}"


@dataclass(frozen=True)
class Figure:
    """One line of the table of goals."""

    what: str
    goal: str
    measured: float
    reached: bool
    note: str = ""


def main(
    out: Path = Path("out/features"),
    kitti: Path | None = None,
    seven_scenes: Path | None = None,
    seeds: tuple[int, ...] = tuple(range(101, 121)),
    world_size: tuple[int, int] = (320, 240),
    speed_frames: int = 400,
) -> None:
    """Measures what there is data for.

    Args:
        out: Folder for features.json and, below it, everything that `anchor3r evaluate` leaves.
        kitti: Root of KITTI odometry, of which sequence 00 is run.
        seven_scenes: Root of 7-Scenes, of which redkitchen is run.
        seeds: Worlds; none to leave them out.
        world_size: Width and height of their images.
        speed_frames: Frames of KITTI that speed is measured on.
    """
    figures: list[Figure] = []
    if kitti is not None:
        ran = _run(BENCHMARKS["kitti"], kitti, out / "kitti", [_KITTI])
        print(run_tables([ran], ["ate_rmse_m"]), "\n")
        figures += _ate_figures(ran, _KITTI, {"online": 6.0, "offline": 3.5})
        figures.append(_speed(f"kitti:{kitti / _KITTI}", speed_frames))
    if seven_scenes is not None:
        ran = _run(BENCHMARKS["7scenes"], seven_scenes, out / "7scenes", [_SEVEN_SCENES])
        print(run_tables([ran], BENCHMARKS["7scenes"].protocol.metrics), "\n")
        figures += _ate_figures(ran, _SEVEN_SCENES, {"offline": 0.04})
    for part, goal in (("driving", 0.5), ("handheld", 1.0)) if seeds else ():
        names = [f"{part}-{seed}" for seed in seeds]
        ran = _run(SizedWorlds(size=world_size), Path(), out / part, names)
        figures.append(_world_figure(part, goal, ran))
    print("| | goal | measured | |\n|---|---|---|---|")
    for figure in figures:
        mark = "**" if figure.reached else ""
        print(f"| {figure.what} | {figure.goal} | {mark}{figure.measured:.3g}{mark} | {figure.note} |")
    out.mkdir(parents=True, exist_ok=True)
    (out / "features.json").write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")


def _run(benchmark: Benchmark, root: Path, out: Path, names: Sequence[str]) -> Results:
    is_world = isinstance(benchmark, Worlds)  # judged online, and short: no loops to close

    def finished(name: str, result: SequenceResult) -> None:
        ate = {variant: found.get("ate_rmse_m") for variant, found in result.variants.items()}
        print(f"{name}: {ate}", flush=True)

    method = MapAndRefine(
        mapping=MapSettings(predictor="features"),
        refinements={} if is_world else {OFFLINE: RefineSettings()},
    )
    return run_benchmark(
        benchmark, root, out, method, sequences=names, keep_maps=not is_world, finished=finished
    )


def _ate_figures(ran: Results, name: str, goals: dict[str, float]) -> list[Figure]:
    rows, count = ran.rows("ate_rmse_m"), ran.sequences[name].num_frames
    figures = []
    for variant, goal in goals.items():
        found = rows[variant][name]
        ate_m = float("inf") if found is None else found
        what = f"{ran.benchmark} {name}, {count} frames, {variant} ATE (m)"
        figures.append(Figure(what, f"≤ {goal:g}", ate_m, ate_m <= goal))
    return figures


def _world_figure(part: str, goal: float, ran: Results) -> Figure:
    """The median over worlds; how many of them reach the goal themselves, and what is missing."""
    found = ran.rows("ate_percent")["online"].values()
    percent = np.array([np.inf if value is None else value for value in found])
    coverage = [value or 0.0 for value in ran.rows("coverage")["online"].values()]
    note = f"{np.sum(percent <= goal)} of {len(percent)} worlds, worst {percent.max():.3g} %"
    note += f"; least part of frames with a pose {min(coverage):.3g}"
    median = float(np.median(percent))
    return Figure(f"worlds, {part}, online ATE (% of path)", f"≤ {goal:g}", median, median <= goal, note)


def _speed(uri: str, num_frames: int) -> Figure:
    predictor, cpu_s = FeaturesPredictor(), 0.0
    with open_source(uri) as source:
        for frame in islice(source.frames(), _WARM_UP_FRAMES):
            predictor.step(frame)
        predictor.reset()
        for frame in islice(source.frames(), num_frames):
            started = time.process_time()
            predictor.step(frame)
            cpu_s += time.process_time() - started
    rate, size = num_frames / cpu_s, f"{frame.image.shape[1]}×{frame.image.shape[0]}"
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Figure(f"frames per CPU second, {size}", "≥ 25", rate, rate >= 25, f"{peak_mb:.0f} MB at most")


if __name__ == "__main__":
    tyro.cli(main)
