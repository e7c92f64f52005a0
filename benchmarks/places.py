"""Loops by places against the truth: `python benchmarks/places.py MAP …`, of sources with true poses.

A keyframe is a revisit of a kind if an earlier one, since when the camera was elsewhere, truly lies within
some metres of it and looks the same way, another or the opposite one. It is recalled if one of its events,
after geometric verification, is with such a keyframe. An event is false if its edges put their anchor farther
from the truth than a tenth of the distance of what is seen there, or 5°. Nothing is written into the maps
but the features of keyframes. `--every K` asks for every K-th keyframe only.
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import islice
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import cv2
import numpy as np

from anchor3r.geometry import SE3, rotation_angle
from anchor3r.loops.places import PlaceConfig, PlaceSearch, place_event
from anchor3r.loops.retrieval import Keyframes, RetrievalConfig, other_visits
from anchor3r.pipeline.known_places import keep_features
from anchor3r.pose_graph.edges import Edges
from anchor3r.store import Map, MapWriter, load_map
from anchor3r.store.localising import map_keyframes

KINDS = (
    ("same place", 1.0, 0.0, 45.0),
    ("other way", 4.0, 45.0, 135.0),
    ("opposite way", 4.0, 135.0, 181.0),
)
"""Name, distance in units of --radius, least and largest angle in degrees."""


class Truth:
    """Where the frames of a map truly are."""

    def __init__(self, scene_map: Map) -> None:
        trajectory = scene_map.true_trajectory()
        if trajectory is None:
            raise SystemExit(f"{scene_map.folder} has no true poses")
        self._frames, self._poses = trajectory.frames, trajectory.camera_from_world

    def poses(self, frames: np.ndarray) -> SE3:
        return self._poses[np.searchsorted(self._frames, frames)]

    def error(self, edges: Edges) -> tuple[float, float, float]:
        """Median error of a group in metres and degrees; the scale that fits its members best."""
        anchor, members = self.poses(edges.frame_t[:1])[0], self.poses(edges.frame_i)
        true = anchor.apply(members.center())
        measured = -np.einsum("nji,nj->ni", edges.rotation, edges.translation)
        spread = np.linalg.norm(measured - measured.mean(0))
        scale = np.linalg.norm(true - true.mean(0)) / max(spread, 1e-12)
        turned = rotation_angle(edges.rotation @ (members @ anchor.inverse()).rotation.swapaxes(1, 2))
        off = np.linalg.norm(scale * measured - true, axis=1)
        return float(np.median(off)), float(np.degrees(np.median(turned))), scale


def recall(folder: Path, radius: float, every: int) -> None:
    with MapWriter.open(folder) as writer, load_map(folder) as scene_map:
        keep_features(scene_map, writer, scene_map.frame, lambda stage, done, total: None)
    with load_map(folder) as scene_map:
        truth, posed, online = Truth(scene_map), map_keyframes(scene_map, "online"), scene_map.trajectory()
        is_free = bool(np.isfinite(scene_map.graph().edges.log_scale_ratio).any())
        poses = truth.poses(posed.frames)
        center, forward = poses.center(), poses.rotation[:, 2]
        keyframes = Keyframes(
            frames=np.searchsorted(online.frames, posed.frames),
            descriptor=np.empty((len(posed.frames), 0), np.float32),
            camera_from_world=posed.camera_from_world,
            component=posed.component,
        )
        search = PlaceSearch(scene_map.place, PlaceConfig(), remembered=256)
        revisits, found, errors, num_false, started = np.zeros(3, int), np.zeros(3, int), [], 0, 0.0
        for rows, blocks in other_visits(keyframes, RetrievalConfig()):
            for row, allowed in zip(rows.tolist(), blocks, strict=True):
                at = time.process_time()
                place = scene_map.place(int(posed.frames[row]))
                search.add(place)
                if row % every:
                    continue
                events = []
                for match in search.candidates(place, allowed).tolist():
                    event = place_event(search, posed, row, match, is_free=is_free)
                    if event is not None and not event[0].state.is_left_out:
                        events.append((match, event[1]))
                started += time.process_time() - at
                for match, groups in islice(events, 3):
                    measured = [truth.error(group) for group in groups]
                    errors.append(max(m[:2] for m in measured))
                    limit = max(1.0, 0.1 * np.linalg.norm(center[row] - center[match])) * radius / 2
                    if any(off > limit or turned > 5 for off, turned, _ in measured):
                        num_false += 1
                        print(f"  false: {posed.frames[row]} – {posed.frames[match]}, {errors[-1]}")
                away = np.linalg.norm(center[row] - center, axis=1)
                angle = np.degrees(np.arccos(np.clip(forward @ forward[row], -1, 1)))
                for k, (_, reach, least, most) in enumerate(KINDS):
                    same = allowed & (away < reach * radius) & (angle >= least) & (angle < most)
                    revisits[k] += same.any()
                    found[k] += any(same[match] for match, _ in events)
    told = ", ".join(f"{name} {f} of {n}" for (name, *_), f, n in zip(KINDS, found, revisits, strict=True))
    middle = np.median(np.array(errors), axis=0) if errors else (np.nan, np.nan)
    cost = 1e3 * started / max(1, len(posed.frames) // every)
    print(
        f"{folder}: {told}; {len(errors)} events, {num_false} false, median error {middle[0]:.2f} m "
        f"{middle[1]:.2f}°; {cost:.0f} CPU ms a keyframe"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("maps", nargs="+", type=Path)
    parser.add_argument("--radius", type=float, default=2.0, help="metres")
    parser.add_argument("--every", type=int, default=1)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    for folder in arguments.maps:
        recall(folder, arguments.radius, arguments.every)


if __name__ == "__main__":
    main()
