"""Runs a benchmark: map, refine and score every sequence, several at once, each of them only once.

OUT/SEQUENCE holds the map, its trajectories, figures and result.json. A sequence that has a result.json of
the same run is read back; one that was interrupted goes on. OUT/results.json and OUT/table.md hold all.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.benchmarks.benchmark import Benchmark
from anchor3r.evaluation.results import Results, SequenceResult, read_json, write_json
from anchor3r.evaluation.scoring import score_map
from anchor3r.evaluation.tables import run_tables
from anchor3r.io.files import replacing, utf8
from anchor3r.pipeline.densify import densify_map
from anchor3r.pipeline.importing import ImportSettings, import_trajectory
from anchor3r.pipeline.mapping import MappingRun, predictor_of
from anchor3r.pipeline.refine import refine_map
from anchor3r.pipeline.settings import DensifySettings, MapSettings, RefineSettings
from anchor3r.predictors.loading import weights_file
from anchor3r.records import record_from_json
from anchor3r.sources import Source
from anchor3r.store import load_map
from anchor3r.workers import WorkerSettings, run_jobs


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
class MapAndRefine:
    """Maps a source as `anchor3r map` does and refines it as `anchor3r refine` does, under several names.

    It goes on where an interrupted run ended.
    """

    mapping: MapSettings = MapSettings()
    """How a sequence becomes a map; images are kept where loops need them, and loops are closed on the way
    only if they are online, not if they are auto: online poses are odometry, as in the paper."""
    refinements: Mapping[str, RefineSettings] = field(default_factory=dict)
    """How the finished map is refined, by the name of the poses."""
    dense: DensifySettings | None = None
    """How depth is measured and fused in the end, with the last of the poses; None leaves it out."""

    @property
    def name(self) -> str:
        return Path(self.mapping.predictor.partition(":")[0]).stem

    @property
    def config(self) -> dict[str, Any]:
        return {
            "map": _decisive(self._settings) | _weights(self.mapping.predictor),
            "refinements": refinements_config(self.refinements),
            **({} if self.dense is None else {"dense": _decisive(self.dense)}),
        }

    @property
    def _settings(self) -> MapSettings:
        return replace(self.mapping, loops="off") if self.mapping.loops == "auto" else self.mapping

    def __call__(self, source: Source, folder: Path) -> None:
        predictor = predictor_of(self._settings)
        needed = self.dense is not None or any(r.loops for r in self.refinements.values())
        settings = replace(self._settings, keep_images=needed or self._settings.loops == "online")
        # A map of fewer or more frames than are to be scored is another one.
        identity = {"stop": source.wanted.stop}
        with MappingRun(source, predictor, folder, settings, resume=True, identity=identity) as run:
            for _ in run:
                pass
        for name, refinement in self.refinements.items():
            same = None if refinement.predictor else lambda: predictor
            refine_map(folder, refinement, name=name, predictor=same, read_frame=source.read)
        if self.dense is not None:
            densify_map(folder, self.dense)


@dataclass(frozen=True, kw_only=True)
class ImportAndRefine:
    """Takes the poses of another system, one file a sequence, as a map and refines that."""

    label: str
    """What the system is called."""
    folder: Path
    """Where its trajectories lie: SEQUENCE.txt, .tum, .csv, .npz or a COLMAP model in SEQUENCE."""
    settings: ImportSettings = ImportSettings()
    """How poses become windows."""
    refinements: Mapping[str, RefineSettings] = field(default_factory=dict)
    """How the map is refined, by the name of the poses."""

    @property
    def name(self) -> str:
        return self.label

    @property
    def config(self) -> dict[str, Any]:
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
        return {
            "import": _decisive(self.settings) | {"trajectories": digest},
            "refinements": refinements_config(self.refinements),
        }

    def __call__(self, source: Source, folder: Path) -> None:
        import_trajectory(self._trajectory(folder.parent.name), source, folder, self.settings, overwrite=True)
        for name, refinement in self.refinements.items():
            refine_map(folder, refinement, name=name, read_frame=source.read)

    def _trajectory(self, sequence: str) -> Path:
        found = [path for path in sorted(self.folder.glob(f"{sequence}*")) if path.stem == sequence]
        if len(found) != 1:
            raise Anchor3RError(
                f"{self.folder} should have one trajectory called {sequence}, such as {sequence}.txt, but "
                f"has {len(found)}"
            )
        return found[0]


def refinements_config(refinements: Mapping[str, RefineSettings]) -> dict[str, Any]:
    """Everything that decides refinements, as JSON, with digests of the weights that they use."""
    return {
        name: _decisive(settings) | _weights(settings.predictor or "") | _weights(settings.descriptor or "")
        for name, settings in refinements.items()
    }


def _decisive(settings: MapSettings | RefineSettings | ImportSettings | DensifySettings) -> dict[str, Any]:
    """What may change a result: all but the number of threads."""
    return {key: value for key, value in asdict(settings).items() if key != "threads"}


def _weights(name: str) -> dict[str, str]:
    """The digest of the file that a predictor or a descriptor of that name is loaded from."""
    path = Path(name.partition(":")[2]) if name.startswith("netvlad:") else weights_file(name)
    if path is None or not path.is_file():
        return {}
    from anchor3r.model.checkpoints import file_digest

    return {f"weights of {name}": file_digest(path)}


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
            with load_map(self.out / "map") as scene_map:
                result = score_map(scene_map, source, self.benchmark.protocol, self.out, self.sequence)
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
            found = content.pop(key, None)
            if found != value:
                raise Anchor3RError(
                    f"{path} is of another run (its {key} differs{_difference(found, value)}); remove it or "
                    "choose another --out"
                )
        return record_from_json(SequenceResult, content, f"{path} is no result: it")


def run_benchmark(
    benchmark: Benchmark,
    root: Path,
    out: Path,
    map_function: MapFunction,
    *,
    sequences: Sequence[str] = (),
    workers: WorkerSettings | None = None,
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
    for outcome in run_jobs({job.sequence: job.run for job in work}, workers or WorkerSettings()):
        if outcome.error is not None:
            raise Anchor3RError(f"{outcome.name}: {outcome.error}")
        name, result = outcome.name, outcome.result
        done[name] = result
        results.sequences = {name: done[name] for name in names if name in done}
        results.save(out / "results.json")
        finished(name, result)
    with replacing(out / "table.md") as file:
        file.write(utf8(run_tables([results], benchmark.protocol.metrics)) + b"\n")
    return results


def _difference(earlier: Any, wanted: Any, path: str = "") -> str:
    """The first entry in which two JSON objects differ, in words."""
    if isinstance(earlier, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys([*earlier, *wanted]):
            if earlier.get(key) != wanted.get(key):
                return _difference(earlier.get(key), wanted.get(key), f"{path}.{key}" if path else key)
    return f": {path} was {earlier!r}, now {wanted!r}" if path else ""


def _as_json(value: Any) -> Any:
    """The value as it comes back from a JSON file."""
    return json.loads(json.dumps(value))
