"""What the loop events of refined maps cost: each is measured again from the images, on one thread.

Prints CPU seconds an event (compilation excluded) and what became of them; where the map has true poses, also
which events are of places that lie within --radius and look the same way within 45°.

    anchor3r map kitti:DATA/00 --out m --predictor features; anchor3r refine m
    python benchmarks/loop_events.py m
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import numpy as np
import tyro

from anchor3r.geometry import rotation_angle
from anchor3r.loops.reinsertion import Reinsertion, ReinsertionConfig
from anchor3r.predictors.features import relative_pose
from anchor3r.predictors.loading import load_predictor
from anchor3r.store import LoopState, Map, load_map
from anchor3r.threads import limited_threads

_MAX_ANGLE_RAD = np.radians(45.0)


def is_true(scene_map: Map, query: int, match: int, radius: float) -> bool | None:
    """Whether two frames show one place; None without true poses."""
    truth = scene_map.true_trajectory()
    if truth is None:
        return None
    one, other = np.searchsorted(truth.frames, [query, match])
    turn = rotation_angle(truth.rotation[one] @ truth.rotation[other].T)
    near = np.linalg.norm(truth.center[one] - truth.center[other]) <= radius
    return bool(near and turn <= _MAX_ANGLE_RAD)


def measure(folder: Path, radius: float, most: int) -> None:
    with limited_threads(1), load_map(folder) as scene_map:
        predictor = load_predictor(**scene_map.meta["loaded_as"])
        if (camera := scene_map.meta.get("camera")) is not None:
            predictor.hold_camera(camera)
        loops = scene_map.loops()[:most]
        pairs = [(loop.query, loop.match, loop.figures.get("similarity", 0.0)) for loop in loops]
        if not pairs:
            print(f"{folder}: no loop events; refine it first")
            return
        Reinsertion(scene_map, predictor, scene_map.frame, ReinsertionConfig()).measure(0, *pairs[0])
        relative_pose._described.cache_clear()  # what was looked at to compile
        reinsertion = Reinsertion(scene_map, predictor, scene_map.frame, ReinsertionConfig())
        began = time.process_time()
        found = [reinsertion.measure(k, *pair)[0] for k, pair in enumerate(pairs)]
        seconds = time.process_time() - began
        states = Counter(loop.state.name.lower() for loop in found)
        true = [is_true(scene_map, loop.query, loop.match, radius) for loop in found]
        kept = [k for k, loop in enumerate(found) if loop.state is LoopState.PENDING]
        print(
            f"{folder}: {len(found)} events, {seconds / len(found):.3f} CPU s each; {dict(states)}; true: "
            f"{sum(map(bool, true))}, of which {sum(bool(true[k]) for k in kept)} of {len(kept)} measured"
        )


def main(maps: tuple[Path, ...], radius: float = 8.0, most: int = 1000) -> None:
    """maps: folders of refined maps. most: events of each that are measured."""
    for folder in maps:
        measure(folder, radius, most)


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.PositionalRequiredArgs,))
