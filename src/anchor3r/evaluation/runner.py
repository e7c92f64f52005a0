"""Runs a benchmark: map, refine and score every sequence, several at once, each of them only once.

OUT/SEQUENCE holds the map, its trajectories, figures and result.json. A sequence that has a result.json of
the same run is read back; one that was interrupted goes on. OUT/results.json and OUT/table.md hold all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.benchmarks.benchmark import Benchmark, ScoringProtocol
from anchor3r.evaluation.metrics import Alignment
from anchor3r.evaluation.results import Metrics, Results, SequenceResult, read_json, write_json
from anchor3r.evaluation.scoring import (
    ScoredTrajectory,
    cloud_metrics,
    depth_metrics,
    neighbour_metrics,
    scored_trajectory,
)
from anchor3r.evaluation.tables import run_tables
from anchor3r.io.files import replacing
from anchor3r.io.trajectories import write_tum
from anchor3r.sources import Source
from anchor3r.store import ONLINE, Map, load_map


class MapFunction(Protocol):
    """What is evaluated: something that makes a map of a source, picklable to run in its own process."""

    @property
    def name(self) -> str:
        """What the method is called in tables."""

    @property
    def config(self) -> dict[str, Any]:
        """Everything that decides the map, as JSON."""

    def __call__(self, source: Source, folder: Path) -> None:
        """Makes or completes the map in a folder, with poses called online and perhaps offline."""


@dataclass(frozen=True, kw_only=True)
class SequenceJob:
    """One sequence of a benchmark, to be mapped and scored."""

    benchmark: Benchmark
    root: Path
    sequence: str
    out: Path
    """Folder of this sequence."""
    map_function: MapFunction
    max_frames: int | None = None
    """None for the whole sequence, as the protocols demand."""
    keep_map: bool = True
    """Whether the map stays when it has been scored."""

    def stamp(self) -> dict[str, Any]:
        """What must be the same for a result to be taken over, as JSON gives it back."""
        return {
            "protocol": _as_json(asdict(self.benchmark.protocol)),
            "config": _as_json(self.map_function.config),
            "max_frames": self.max_frames,
            "settings": self.benchmark.settings(self.sequence),
        }

    def run(self) -> SequenceResult:
        """Maps and scores, unless there is a result already."""
        path = self.out / "result.json"
        if path.is_file():
            return self._earlier(path)
        with self.benchmark.open(self.root, self.sequence, slice(self.max_frames)) as source:
            self.map_function(source, self.out / "map")
            with load_map(self.out / "map") as stored:
                result = score_map(stored, source, self.benchmark.protocol, self.out, self.sequence)
        result.deviations = self.deviations()
        write_json(path, self.stamp() | asdict(result))
        if not self.keep_map:
            shutil.rmtree(self.out / "map")
        return result

    def deviations(self) -> list[str]:
        short = [] if self.max_frames is None else [f"only the first {self.max_frames} frames"]
        return self.benchmark.deviations(self.root, self.sequence) + short

    def _earlier(self, path: Path) -> SequenceResult:
        content = read_json(path)
        for key, value in self.stamp().items():
            if content.pop(key, None) != value:
                raise Anchor3RError(
                    f"{path} is of another run (its {key} differs); remove it or choose another --out"
                )
        return SequenceResult(**content)


def score_map(
    stored: Map, source: Source, protocol: ScoringProtocol, out: Path, title: str
) -> SequenceResult:
    """Scores every trajectory of a map, its cloud and depth, and leaves trajectories and figures in `out`."""
    variants, scored = score_poses(stored, protocol.alignment, out, title)
    for name, found in scored.items():
        variants[name] |= depth_metrics(stored, source, found.frames)
        if protocol.cloud is not None:
            variants[name] |= cloud_metrics(stored, name, source, found, protocol.cloud)
    return SequenceResult(
        num_frames=stored.num_frames,
        variants=variants,
        runtime=runtime_metrics(stored),
        made_from=stored.meta["identity"],
    )


def score_poses(
    stored: Map, alignment: Alignment, out: Path, title: str
) -> tuple[dict[str, Metrics], dict[str, ScoredTrajectory]]:
    """Metrics of every trajectory of a map by its name, and those that could be aligned at all."""
    truth = stored.true_trajectory()
    if truth is None:
        raise Anchor3RError(f"the source of {stored.folder} had no ground truth to compare with")
    write_tum(out / "truth.tum", truth)
    neighbours = neighbour_metrics(stored.graph(), truth)
    variants: dict[str, Metrics] = {}
    scored: dict[str, ScoredTrajectory] = {}
    for name in stored.trajectory_names() or [ONLINE]:  # without any pose it has failed, and is told so
        estimate = stored.trajectory(name)
        write_tum(out / f"{name}.tum", estimate)
        found = scored_trajectory(estimate, truth, alignment)
        if found is None:
            variants[name] = {"coverage": 0.0}
        else:
            scored[name] = found
            variants[name] = {**found.metrics(), **neighbours}
    _draw(stored, scored, out, title)
    return variants, scored


def runtime_metrics(stored: Map) -> Metrics:
    """What the mapping cost, as its store recorded it."""
    runtime = stored.runtime()
    if not len(runtime.seconds):
        return {}
    total_s = float(runtime.seconds.sum())
    return {
        "seconds": total_s,
        "frames_per_second": len(runtime.seconds) / total_s if total_s else float("nan"),
        "peak_memory_bytes": float(np.max(runtime.peak_rss_bytes)),
    }


def _draw(stored: Map, scored: dict[str, ScoredTrajectory], out: Path, title: str) -> None:
    from anchor3r.evaluation import figures

    if scored:
        errors = {name: found.errors for name, found in scored.items()}
        figures.trajectory_figure(errors, out / "trajectory.png", title)
        figures.error_over_distance_figure(errors, out / "error.png", title)
    runtime = stored.runtime()
    if len(runtime.seconds) > 1:
        figures.runtime_figure(runtime.seconds, runtime.peak_rss_bytes, out / "runtime.png", title)


def run_benchmark(
    benchmark: Benchmark,
    root: Path,
    out: Path,
    map_function: MapFunction,
    *,
    sequences: Sequence[str] = (),
    jobs: int = 1,
    max_frames: int | None = None,
    keep_maps: bool = True,
    finished: Callable[[str, SequenceResult], None] = lambda name, result: None,
) -> Results:
    """Runs the given sequences, or the benchmark's own, and writes results.json and table.md."""
    names = list(sequences) or benchmark.sequence_names(root)
    work = [
        SequenceJob(
            benchmark=benchmark,
            root=root,
            sequence=name,
            out=out / name,
            map_function=map_function,
            max_frames=max_frames,
            keep_map=keep_maps,
        )
        for name in names
    ]
    for job in work:
        # A missing file shows now, not after hours of mapping the sequences before it.
        benchmark.check(root, job.sequence)
    results = Results(
        benchmark=benchmark.protocol.benchmark,
        method=map_function.name,
        protocol=_as_json(asdict(benchmark.protocol)),
        config=_as_json(map_function.config),
    )
    done: dict[str, SequenceResult] = {}
    for name, result in _completed(work, jobs):
        done[name] = result
        results.sequences = {name: done[name] for name in names if name in done}
        results.save(out / "results.json")
        finished(name, result)
    with replacing(out / "table.md") as file:
        file.write(run_tables([results], benchmark.protocol.metrics).encode() + b"\n")
    return results


def _completed(work: Sequence[SequenceJob], jobs: int) -> Iterator[tuple[str, SequenceResult]]:
    """Results as they come; the first error stops what has not begun."""
    if jobs == 1 or len(work) == 1:
        yield from ((job.sequence, job.run()) for job in work)
        return
    # Fresh processes: forking one that has started threads (torch, prefetching) can hang.
    jobs = min(jobs, len(work))
    with ProcessPoolExecutor(jobs, get_context("spawn"), _take_share, (jobs,)) as pool:
        futures = {pool.submit(job.run): job.sequence for job in work}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _take_share(jobs: int) -> None:
    """Leaves the other processes their cores: torch reads this when it is first imported."""
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // jobs))


def _as_json(value: Any) -> Any:
    """The value as it comes back from a JSON file."""
    return json.loads(json.dumps(value))
