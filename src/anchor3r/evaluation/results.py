"""What an evaluation leaves behind: results.json, which says what was measured, how and on which machine."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.metrics import Alignment
from anchor3r.io import inputs
from anchor3r.io.files import replacing
from anchor3r.records import record_from_json

FORMAT_VERSION = 1
_PACKAGES = ("anchor3r", "numpy", "scipy", "torch")

Metrics = dict[str, float | None]
"""Numbers by name; None where the sequence failed or is too short for one."""


@dataclass(kw_only=True)
class SequenceResult:
    """One sequence, mapped and scored."""

    num_frames: int
    """Frames that the source delivered."""
    variants: dict[str, Metrics]
    """Metrics of "online" and "offline"."""
    runtime: Metrics = field(default_factory=dict)
    """Seconds, frames per second and peak memory of the mapping."""
    made_from: dict[str, Any] = field(default_factory=dict)
    """Source, predictor and settings as the map names them."""
    deviations: list[str] = field(default_factory=list)
    """What was not as the protocol says."""


@dataclass(kw_only=True)
class Results:
    """All sequences of one run of one method on one benchmark."""

    benchmark: str
    method: str
    protocol: dict[str, Any]
    """How it was scored: camera, frames, ground truth, alignment, thresholds."""
    config: dict[str, Any]
    """What was run: predictor and every option."""
    versions: dict[str, str] = field(default_factory=lambda: package_versions())
    hardware: dict[str, Any] = field(default_factory=lambda: hardware())
    sequences: dict[str, SequenceResult] = field(default_factory=dict)

    def rows(self, metric: str) -> dict[str, Metrics]:
        """A metric of each variant ("online", "offline"), by sequence."""
        variants = dict.fromkeys(v for result in self.sequences.values() for v in result.variants)
        return {
            variant: {
                name: result.variants[variant].get(metric)
                for name, result in self.sequences.items()
                if variant in result.variants
            }
            for variant in variants
        }

    def save(self, path: Path) -> None:
        write_json(path, {"format_version": FORMAT_VERSION} | asdict(self))

    @staticmethod
    def load(path: Path) -> Results:
        """Reads what `save` wrote, or refuses it by name."""
        content = read_json(path)
        if content.pop("format_version", None) != FORMAT_VERSION:
            raise Anchor3RError(
                f"{path} is no results file of format {FORMAT_VERSION}; run the evaluation anew"
            )
        found = record_from_json(Results, content, f"{path} is no complete results file: it")
        if unusable := found._unusable():
            raise Anchor3RError(f"{path}: {unusable}, which no results have; run the evaluation anew")
        return found

    def _unusable(self) -> str | None:
        """What in it is not as `save` wrote it, where the type alone does not tell."""
        parts = [self.benchmark, self.method, *self.sequences]
        parts += [variant for result in self.sequences.values() for variant in result.variants]
        metrics = self.protocol.get("metrics", [])
        windows = [result.made_from.get("window") for result in self.sequences.values()]
        for name in parts:
            # Tables have them in cells, and files beside the results are called by them.
            if not name.isprintable() or "|" in name or os.path.isabs(name) or ".." in Path(name).parts:
                return f"a name is {name[:60]!r}"
        if not (isinstance(metrics, list) and all(isinstance(metric, str) for metric in metrics)):
            return "metrics are not a list of names"
        if self.protocol.get("alignment", Alignment.SIM3) not in list(Alignment):
            return "the alignment is none"
        if not all(window is None or type(window) is int for window in windows):
            return "a window is no number"
        return None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes JSON wholly or not at all; NaN becomes null."""
    with replacing(path) as file:
        file.write(json.dumps(without_nan(content), indent=1, allow_nan=False).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    return inputs.read_json(path, kind="results.json")


def without_nan(value: Any) -> Any:
    """A value with None in place of every number that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: without_nan(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the numbers."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def hardware() -> dict[str, Any]:
    """The machine, as far as it tells."""
    cpu = _entries(Path("/proc"), "cpuinfo", "model name") or [platform.processor() or platform.machine()]
    # The driver's own list: asking torch would mean importing it.
    gpus = _entries(Path("/proc/driver/nvidia/gpus"), "*/information", "Model")
    return {"platform": platform.platform(), "cpu": cpu[0], "cores": os.cpu_count(), "gpus": gpus}


def _entries(folder: Path, pattern: str, key: str) -> list[str]:
    """What stands behind `key:` in the files of a folder, if there are any."""
    lines = (line.partition(":") for path in folder.glob(pattern) for line in path.read_text().splitlines())
    return [value.strip() for name, _, value in lines if name.strip() == key]


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A method's numbers as the paper prints them; None where it failed."""

    method: str
    group: str
    values: dict[str, float | None]
    """By sequence; empty where only the average is printed."""
    printed_average: float
    source: str
    """The table of the paper."""


def published_rows(benchmark: str, metric: str) -> list[PublishedRow]:
    """What the paper reports, in its order; none for a benchmark or metric that it does not have."""
    return [
        PublishedRow(**row)
        for table in _published_tables()
        if table["benchmark"] == benchmark and table["metric"] == metric
        for row in table["rows"]
    ]


def published_notes(benchmark: str, metric: str) -> list[str]:
    """What has to be known about the numbers of those rows."""
    return [
        table["note"]
        for table in _published_tables()
        if table["benchmark"] == benchmark and table["metric"] == metric and "note" in table
    ]


def published_lengths(benchmark: str) -> dict[str, int]:
    """Number of frames of each sequence in the paper, where it tells."""
    return {
        name: about["num_frames"]
        for table in _published_tables()
        if table["benchmark"] == benchmark
        for name, about in table["sequences"].items()
    }


@cache
def _published_tables() -> list[dict[str, Any]]:
    return json.loads(files("anchor3r.evaluation").joinpath("paper_results.json").read_text())["tables"]
