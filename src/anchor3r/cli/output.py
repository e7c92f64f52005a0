"""What commands print for programs: with --json one object on the standard output, and nothing else.

`SCHEMAS` names the keys that an object always has; docs/json.md explains them. Keys may be added later; none
is removed or given another meaning without another number in "schema".
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, TextIO

import numpy as np
import tyro

Json = Annotated[
    bool,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.arg(
        name="json", help="Print the result as one JSON object, and nothing else, to the standard output."
    ),
]

_BENCHMARK = ("out", "results", "sequences")
SCHEMAS: dict[str, tuple[str, ...]] = {
    "error": ("error", "exit_code"),
    "demo": ("out", "map", "frames", "with_pose", "frames_per_second", "refinement", "trajectories"),
    "map": (
        "map", "source", "predictor", "ground_truth_predictor", "frames", "with_pose", "lost", "components",
        "answers", "without_pose", "failure", "camera", "skipped", "seconds", "frames_per_second",
        "placements", "placed_since", "not_placed", "resumed_after", "replay_is_exact",
    ),
    "refine": (
        "map", "poses", "ground_truth_predictor", "frames", "components", "method", "scale", "loop_events",
        "accepted", "reasons", "moved_median", "moved_max", "path_length", "scale_range", "solver", "seconds",
    ),
    "densify": ("map", "poses", "images", "keyframes", "with_depth", "size", "measured", "mean_confidence"),
    "fuse": ("file", "vertices", "faces", "views", "depths", "poses", "voxel", "left_out", "remarks"),
    "localise": (
        "map", "source", "out", "poses", "images", "found", "refusals", "median_inliers", "components",
        "described",
    ),
    "merge": (
        "map", "parts", "frames", "with_pose", "components", "common_places", "accepted", "not_joined",
        "poses", "solver",
    ),
    "view": ("map", "url", "page", "points", "bytes"),
    "export": ("map", "out", "format", "what", "poses", "notes"),
    "render": ("map", "out", "what"),
    "report": ("map", "out", "warnings"),
    "solve": (
        "graph", "method", "loss", "start", "status", "iterations", "initial_cost", "cost", "num_frames",
        "num_edges", "num_components", "cpu_seconds",
    ),
    "evaluate-trajectory": ("trajectories",),
    "evaluate-map": ("trajectories",),
    "evaluate-compare": ("results", "table", "out"),
    "evaluate-variants": ("out", "front_ends", "table"),
    "evaluate-attention": ("out", "networks"),
    "evaluate-figures": ("figures",),
    "evaluate-worlds": _BENCHMARK,
    "evaluate-ablation": ("steps", "rows", "unfinished"),
    "batch": ("out", "sequences"),
    "world": ("folder", "frames", "kind", "motion"),
    "train": ("runs", "cost"),
    "data-list": ("root", "sets"),
    "data-check": (
        "root", "sequences", "unusable", "pairs", "given", "random", "blamed", "right", "failure", "picture",
    ),
    "data-pack": ("root", "out", "shards"),
    "convert": ("model", "out", "parameters", "parts"),
    "doctor": ("healthy", "checks"),
}  # fmt: skip
SCHEMAS["import"] = SCHEMAS["map"]
SCHEMAS |= {
    f"evaluate-{name}": _BENCHMARK
    for name in ("kitti", "vbr", "tum", "oxford-spires", "waymo", "7scenes", "vkitti2")
}

_program_output: TextIO | None = None
"""Where objects go while everything else that is printed goes nowhere."""
_printed = False


@contextmanager
def json_only(wanted: bool) -> Iterator[None]:
    """Keeps the standard output for objects, if that is wanted."""
    global _program_output, _printed
    if not wanted:
        yield
        return
    _program_output, _printed = sys.stdout, False
    try:
        with open(os.devnull, "w", errors="backslashreplace") as nowhere, redirect_stdout(nowhere):
            yield
    finally:
        _program_output = None


def print_json(name: str, result: Mapping[str, Any]) -> None:
    """Prints the object of a command, named as in `SCHEMAS`, where objects are wanted."""
    global _printed
    if _program_output is not None:
        _printed = True
        missing = set(SCHEMAS[name]) - set(result)
        assert not missing, f"an object {name} without {missing}"
        text = json.dumps({"schema": f"anchor3r/{name}/1", **_plain(dict(result))}, allow_nan=False)
        print(text, file=_program_output, flush=True)


def print_json_error(message: str, exit_code: int) -> None:
    """Prints why a command failed, unless it has printed an object that says so itself."""
    if not _printed:
        print_json("error", {"error": message, "exit_code": exit_code})


def _plain(value: Any) -> Any:
    """With nothing but what JSON has: null for what is no number, names for paths."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
