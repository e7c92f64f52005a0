"""How a camera that was carried off finds itself again: `python benchmarks/kidnapped.py --out DIR`.

Each case is a clip with a cut, out of a route over a street grid: a stretch that is mapped, then, from one
frame to the next, another stretch that leads into the first one again. It is mapped with `--loops online`.
The camera is
found when its poses are told in the component of the first stretch; counted are the frames since it came
within --radius and --angle of a mapped pose. A join is false where the second stretch, placed by the poses
of the first, is off by more than --false-m metres or --false-deg degrees in the median. Cases that are in
DIR already are not run again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
import tyro

from anchor3r import MapSettings, load_map, map_source
from anchor3r.geometry import SE3, align_poses, rotation_angle
from anchor3r.pipeline.mapper import Update
from anchor3r.sources import Frame
from anchor3r.sources.source import IndexedSource
from anchor3r.trajectory import Trajectory
from anchor3r.worlds import World, WorldConfig, make_world

GAP = 150
"""Frames of the route between two visits of a place at least."""
LEAD, OVERLAP, AFTER = 60, 70, 60
"""Frames that are mapped before the place and after it, those before it is entered again and those after."""


@dataclass(frozen=True)
class Case:
    """A clip of a route: frames first[0] … first[1] - 1, then second[0] … second[1] - 1."""

    seed: int
    first: tuple[int, int]
    second: tuple[int, int]
    entry: int
    """Frame of the route that is the first within reach of the first stretch again."""

    @property
    def name(self) -> str:
        return f"{self.seed}-{self.entry}"

    @property
    def shown(self) -> np.ndarray:
        """(n,) frames of the route in the order in which they are shown."""
        return np.concatenate([np.arange(*self.first), np.arange(*self.second)])


class Cut(IndexedSource):
    """The frames of a case, numbered and timed as one video."""

    def __init__(self, world: World, case: Case) -> None:
        self._world, self._shown = world, case.shown
        super().__init__(f"cut {case.name}", slice(None), len(self._shown))

    def _load(self, index: int) -> Frame:
        at = int(self._shown[index])
        return Frame(
            index=index,
            timestamp_s=float(self._world.timestamps_s[index]),
            image=self._world.render(at).image,
            intrinsics=self._world.intrinsics,
            camera_from_world=self._world.camera_from_world[at],
        )


def main(
    out: Path,
    cases: int = 40,
    seeds: str = "101-110",
    frames: int = 1500,
    predictor: str = "features",
    radius: float = 2.0,
    angle: float = 30.0,
    false_m: float = 5.0,
    false_deg: float = 10.0,
) -> None:
    """Prints a line a case and the shares, and writes OUT/kidnapped.json.

    Args:
        out: Folder for results.
        cases: How many.
        seeds: Worlds whose routes are cut, first and last; every one gives as many cases as it has entries.
        frames: Of a route.
        predictor: What maps, at 320×240.
        radius: Metres and
        angle: degrees within which a pose is at a mapped place.
        false_m: Metres and
        false_deg: degrees by which a joined stretch is off, in the median, where the join is false.
    """
    out.mkdir(parents=True, exist_ok=True)
    first, last = (int(text) for text in seeds.split("-"))
    results: list[dict[str, Any]] = []
    for world, case in _spread(range(first, last + 1), frames, radius, angle, cases):
        file = out / f"{case.name}.json"
        if not file.exists():
            file.write_text(json.dumps(_run(world, case, out / "map", predictor)))
        row = json.loads(file.read_text())
        row["false"] = row["found"] and (row["off_m"] > false_m or row["off_deg"] > false_deg)
        results.append(row)
        print(_line(row), flush=True)
    in_time = sum(row["found"] and row["delay"] <= 30 and not row["false"] for row in results)
    print(
        f"{in_time} of {len(results)} found within 30 frames, {sum(row['found'] for row in results)} at all, "
        f"{sum(row['false'] for row in results)} false joins"
    )
    (out / "kidnapped.json").write_text(json.dumps(results, indent=1))


def _spread(
    seeds: range, frames: int, radius: float, angle: float, count: int
) -> Iterator[tuple[World, Case]]:
    """Cases of one world after the other, a few of each, so many in all."""
    share = -(-count // len(seeds))
    for seed in seeds:
        config = WorldConfig(seed=seed, kind="street", motion="grid", frames=frames, width=320, height=240)
        world = make_world(config)
        for case in _cases(world, seed, radius, angle)[: min(share, count)]:
            yield world, case
            count -= 1


def _cases(world: World, seed: int, radius: float, angle: float) -> list[Case]:
    """Where a route comes to a place that it has been at before, having been elsewhere in between."""
    poses = world.camera_from_world
    center, ahead = np.asarray(poses.center()), np.asarray(poses.rotation)[:, 2]
    found: list[Case] = []
    for entry in range(GAP + LEAD, len(center) - AFTER):
        if found and entry < found[-1].entry + AFTER:
            continue
        distance = np.linalg.norm(center[: entry - GAP] - center[entry], axis=1)
        distance[ahead[: entry - GAP] @ ahead[entry] < np.cos(np.radians(angle))] = np.inf
        place = int(np.argmin(distance))
        first = max(place - LEAD, 0), place + OVERLAP
        second = entry - LEAD, entry + AFTER
        if distance[place] > radius or first[1] > second[0] or first[1] - first[0] < LEAD:
            continue
        reach = _is_near(center, ahead, np.arange(*second), np.arange(*first), radius, angle)
        if not reach[:LEAD].any() and reach[LEAD:].mean() > 0.8:
            found.append(Case(seed, first, second, entry))
    return found


def _is_near(
    center: np.ndarray, ahead: np.ndarray, rows: np.ndarray, mapped: np.ndarray, radius: float, angle: float
) -> np.ndarray:
    """(n,) whether poses are at a place that any of the mapped ones is at."""
    near = np.linalg.norm(center[rows][:, None] - center[mapped], axis=2) <= radius
    return np.asarray((near & (ahead[rows] @ ahead[mapped].T >= np.cos(np.radians(angle)))).any(1))


def _run(world: World, case: Case, folder: Path, predictor: str) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    cut = case.first[1] - case.first[0]
    entry = cut + case.entry - case.second[0]
    told: list[Update] = []
    settings = MapSettings(predictor=predictor, loops="online")
    with Cut(world, case) as source:
        map_source(source, folder, settings, on_update=lambda u: told.append(_slim(u)))
    lost = any(u.component is None for u in told[cut:])
    joined = [u.frame for u in told if u.frame >= cut and u.component == 0]
    restarted = next((u.frame for u in told if u.frame >= cut and u.component not in (None, 0)), None)
    with load_map(folder) as scene_map:
        trajectory, truth = scene_map.trajectory(), scene_map.true_trajectory()
    assert truth is not None
    row = asdict(case) | {
        "name": case.name, "lost": lost, "restarted": restarted, "found": bool(joined),
        "delay": joined[0] - entry if joined else None,
    }  # fmt: skip
    return row | _misplacement(trajectory, truth, cut)


def _slim(update: Update) -> Update:
    """Without points, of which a clip has many."""
    return replace(update, prediction=replace(update.prediction, points_in_anchor=None, member_points=()))


def _misplacement(estimate: Trajectory, truth: Trajectory, cut: int) -> dict[str, float | None]:
    """How far the second stretch is off, in the median, once the first one is where it was."""
    assert estimate.component is not None
    main_part = estimate.select(estimate.component == 0)
    rows = np.searchsorted(truth.frames, main_part.frames)
    true = truth.select(rows)
    before, after = main_part.frames < cut, main_part.frames >= cut
    if not after.any() or not before.any():
        return {"off_m": None, "off_deg": None}
    motion = align_poses(main_part.world_from_camera[before], true.world_from_camera[before])
    placed = SE3(motion.rotation @ main_part.world_from_camera.rotation, motion.apply(main_part.center))
    off = np.linalg.norm(placed.translation - true.center, axis=1)
    turned = rotation_angle(placed.rotation @ true.rotation)
    return {
        "off_m": float(np.median(off[after])),
        "off_deg": float(np.degrees(np.median(turned[after]))),
    }


def _line(row: dict[str, Any]) -> str:
    if not row["found"]:
        return f"{row['name']:10} not found"
    verdict = "FALSE" if row["false"] else "right"
    return (
        f"{row['name']:10} found after {row['delay']:4} frames, off by {row['off_m']:.2f} m and "
        f"{row['off_deg']:.1f}°: {verdict}"
    )


if __name__ == "__main__":
    tyro.cli(main)
