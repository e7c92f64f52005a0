"""How much each number of a predictor's configuration matters: every one halved and doubled, one at a time.

Maps a few short worlds with the default configuration and with each changed one, and compares the online
error (root mean square of the Sim(3)-aligned camera centres over the length of the path, mean of logarithms
over the worlds) with that of the default. A ratio of 1 says that the number does not matter on these worlds;
"–" that the configuration does not allow the value. Prints a table and writes sensitivity_PREDICTOR.json
after every row, so that a run which was stopped goes on with the next row.

    python benchmarks/sensitivity.py --predictor features --frames 150 --size 320x240
    python benchmarks/sensitivity.py --predictor tiny --frames 100 --size 128x96
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numerical libraries are loaded

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anchor3r.geometry import umeyama
from anchor3r.model.checkpoints import file_digest
from anchor3r.pipeline.mapper import Mapper
from anchor3r.predictors.features.config import FeaturesConfig
from anchor3r.predictors.features.predictor import FeaturesPredictor
from anchor3r.predictors.interface import Predictor
from anchor3r.predictors.loading import TINY_WEIGHTS
from anchor3r.predictors.network.predictor import NetworkPredictor, NetworkPredictorConfig, load_network
from anchor3r.sources import Frame, open_source

MISSING_POSE_ERROR = 1.0
"""Relative error that a world counts with in which most frames have no pose."""


def numbers(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every number in a configuration and in those nested in it, by the path of its fields."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from numbers(value, (*path, field.name))
        elif isinstance(value, int | float) and not isinstance(value, bool) and value:
            yield (*path, field.name), value


def changed(config: Any, path: tuple[str, ...], factor: float) -> Any:
    """The configuration with one number multiplied; ValueError if it does not allow that."""
    name, *rest = path
    value = getattr(config, name)
    if rest:
        return replace(config, **{name: changed(value, tuple(rest), factor)})
    product = value * factor
    return replace(config, **{name: max(1, round(product)) if isinstance(value, int) else product})


def relative_error(predictor: Predictor, frames: list[Frame]) -> float:
    """RMSE of the camera centres after a Sim(3) alignment, over the length of the path."""
    mapper, centres = Mapper(predictor), {}
    for frame in frames:
        update = mapper.step(frame)
        poses = (*update.late_poses, *(() if update.pose is None else (update.pose,)))
        centres |= {pose.frame: pose.center for pose in poses if pose.component == 0}
    if len(centres) < len(frames) / 2:
        return MISSING_POSE_ERROR
    true = np.stack([frame.camera_from_world.center() for frame in frames if frame.camera_from_world])
    index = sorted(centres)
    estimated = np.stack([centres[k] for k in index])
    error = umeyama(estimated, true[index]).apply(estimated) - true[index]
    return float(np.sqrt((error**2).sum(1).mean()) / np.linalg.norm(np.diff(true, axis=0), axis=1).sum())


def make(name: str, config: Any) -> Predictor:
    """The predictor with that configuration."""
    if name == "features":
        return FeaturesPredictor(config)
    return NetworkPredictor(
        load_network(TINY_WEIGHTS), name="network:tiny", config=config, digest=file_digest(TINY_WEIGHTS)
    )


def score(name: str, config: Any, worlds: list[list[Frame]]) -> float:
    """Mean over the worlds of the logarithm of the relative error."""
    return float(np.mean([math.log(relative_error(make(name, config), world)) for world in worlds]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--predictor", choices=("features", "tiny"), default="features")
    parser.add_argument("--frames", type=int, default=150)
    parser.add_argument("--size", default="320x240", help="of the images, WIDTHxHEIGHT")
    parser.add_argument("--seeds", type=int, nargs="*", default=[301], help="of drives and of walks")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = arguments.out / f"sensitivity_{arguments.predictor}.json"
    rows = json.loads(results.read_text()) if results.is_file() else {}
    width, height = arguments.size.split("x")
    worlds = []
    for seed in arguments.seeds:
        for motion in ("driving", "handheld"):
            uri = f"world:{seed}?motion={motion}&frames={arguments.frames}&width={width}&height={height}"
            with open_source(uri) as source:
                worlds.append(list(source.frames()))
    config = FeaturesConfig() if arguments.predictor == "features" else NetworkPredictorConfig()
    default = score(arguments.predictor, config, worlds)
    print(f"default: {100 * math.exp(default):.3f} % of the path\n{'':48} value   half  double")
    for path, value in numbers(config):
        name = ".".join(path)
        if name not in rows:
            rows[name] = {"value": value} | {
                label: _ratio(arguments.predictor, config, path, factor, worlds, default)
                for label, factor in (("half", 0.5), ("double", 2.0))
            }
            results.write_text(json.dumps(rows, indent=1))
        half, double = ("–" if r is None else f"{r:.2f}" for r in (rows[name]["half"], rows[name]["double"]))
        print(f"{name:48} {value:<7g} {half:>5} {double:>5}", flush=True)


def _ratio(
    name: str, config: Any, path: tuple[str, ...], factor: float, worlds: list[list[Frame]], default: float
) -> float | None:
    try:
        return math.exp(score(name, changed(config, path, factor), worlds) - default)
    except ValueError:
        return None


if __name__ == "__main__":
    main()
