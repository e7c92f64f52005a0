"""How well images are placed in a map: `python benchmarks/localisation.py MAP SOURCE --start A --stride S`.

The map and the source must have true poses of one world. Two errors are told. "in the world": the map is
placed by the Sim(3) of its camera centres, so that its own errors count too. "from the keyframe": the pose
relative to the keyframe that agrees most, against the true one, in the map's mean scale. An image overlaps if
a keyframe is within --radius and --angle of it. `--index N` times the index with N keyframes instead, whose
words are drawn from those of the map.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import cv2
import numpy as np

from anchor3r.geometry import SE3, rotation_angle, umeyama
from anchor3r.places.index import PlaceIndex
from anchor3r.places.vocabulary import load_vocabulary
from anchor3r.sources import Frame, open_source
from anchor3r.store import Map, best_poses, load_map
from anchor3r.store.localising import MapLocaliser


class Errors:
    """Places images in a map and compares with the truth."""

    def __init__(self, scene_map: Map, radius: float, angle_deg: float) -> None:
        self.localiser = MapLocaliser(scene_map)
        truth = scene_map.true_trajectory()
        if truth is None:
            raise SystemExit(f"{scene_map.folder} has no true poses")
        estimated = scene_map.trajectory(best_poses(scene_map.trajectory_names())).largest_component()
        rows = np.searchsorted(truth.frames, estimated.frames)
        self._world = umeyama(estimated.center, truth.center[rows])
        self._estimated, self._truth = estimated, truth
        keyframes = np.searchsorted(truth.frames, self.localiser.localiser.keyframes.frames)
        self._near, self._limits = truth.camera_from_world[keyframes], (radius, angle_deg)

    def overlaps(self, frame: Frame) -> bool:
        assert frame.camera_from_world is not None
        away = np.linalg.norm(self._near.center() - frame.camera_from_world.center(), axis=-1)
        turned = np.degrees(rotation_angle(self._near.rotation @ frame.camera_from_world.rotation.T))
        return bool(((away < self._limits[0]) & (turned < self._limits[1])).any())

    def of(self, frame: Frame, pose: SE3, keyframe: int) -> tuple[float, float, float, float]:
        """Metres and degrees in the world, metres and degrees from the keyframe."""
        true = frame.camera_from_world
        assert true is not None
        placed = self._world.apply_to_pose(pose)
        k = int(np.searchsorted(self._estimated.frames, keyframe))
        t = int(np.searchsorted(self._truth.frames, keyframe))
        found = pose @ self._estimated.camera_from_world[k].inverse()
        wanted = true @ self._truth.camera_from_world[t].inverse()
        off = float(self._world.scale) * found.center() - wanted.center()
        return (
            float(np.linalg.norm(placed.center() - true.center())),
            float(np.degrees(rotation_angle(placed.rotation @ true.rotation.T))),
            float(np.linalg.norm(off)),
            float(np.degrees(rotation_angle(found.rotation @ wanted.rotation.T))),
        )


def localisation(arguments: argparse.Namespace) -> None:
    with (
        load_map(arguments.map) as scene_map,
        open_source(
            arguments.source, start=arguments.start, stop=arguments.stop, stride=arguments.stride
        ) as source,
    ):
        errors = Errors(scene_map, arguments.radius, arguments.angle)
        rows, overlap, refusals, started = [], [], Counter[str](), time.process_time()
        for frame in source.frames():
            answer = errors.localiser.localise(frame.image)
            overlap.append(errors.overlaps(frame))
            if answer.camera_from_world is None:
                refusals[str(answer.refusal)] += 1
                rows.append((np.inf,) * 4)
            else:
                rows.append(errors.of(frame, answer.camera_from_world, answer.keyframes[0]))
        seconds = (time.process_time() - started) / max(len(rows), 1)
    error, inside = np.array(rows), np.array(overlap)
    found = np.isfinite(error[:, 0])
    print(f"{len(rows)} images, {inside.sum()} overlap, {found.sum()} found, {1e3 * seconds:.0f} CPU ms each")
    print(f"refused: {dict(refusals)}; of those that overlap {(~found & inside).sum()}")
    if not found.any():
        return
    for name, columns in (("in the world", error[:, :2]), ("from the keyframe", error[:, 2:])):
        good = (columns[:, 0] < 0.05) & (columns[:, 1] < 5)
        wrong = found & ((columns[:, 0] > 0.25) | (columns[:, 1] > 10))
        middle = np.median(columns[found], axis=0)
        print(
            f"{name}: median {middle[0]:.3f} m {middle[1]:.2f}°, within 5 cm and 5° {good[inside].sum()} of "
            f"{inside.sum()} that overlap, beyond 25 cm or 10° {wrong.sum()} of {found.sum()}"
        )


def index_time(arguments: argparse.Namespace) -> None:
    rng = np.random.default_rng(0)
    with load_map(arguments.map) as scene_map:
        frames = scene_map.place_frames().tolist()
        kept = [scene_map.place(frame) for frame in frames]
    words, signatures = (
        np.concatenate([getattr(place, name) for place in kept]) for name in ("word", "signature")
    )
    index = PlaceIndex(load_vocabulary().size)
    started = time.process_time()
    for _ in range(arguments.index):
        index.add(rng.choice(words, 500), rng.integers(0, 2**64, 500, dtype=np.uint64))
    added = (time.process_time() - started) / arguments.index
    index.scores(words[:500], signatures[:500])
    times = []
    for k in range(50):
        at = time.process_time()
        index.scores(kept[k % len(kept)].word, kept[k % len(kept)].signature)
        times.append(time.process_time() - at)
    print(
        f"{len(index):,} keyframes, {index.num_bytes / 1e6:.0f} MB: a query {1e3 * np.median(times):.1f} CPU "
        f"ms (worst {1e3 * max(times):.1f}), adding {1e3 * added:.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("map", type=Path)
    parser.add_argument("source", nargs="?")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--stop", type=int, default=None)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--radius", type=float, default=0.5)
    parser.add_argument("--angle", type=float, default=30.0)
    parser.add_argument("--index", type=int, default=0)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    if arguments.index:
        index_time(arguments)
    else:
        localisation(arguments)


if __name__ == "__main__":
    main()
