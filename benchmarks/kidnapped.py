"""How a camera that was carried off finds itself again: `python benchmarks/kidnapped.py --out DIR`.

Each case is a clip with a cut, out of a route over a street grid: a stretch that is mapped, then, from one
frame to the next, another stretch that leads into the first one again. It is mapped with `--loops online`,
until the camera has been found for a while: when its poses are told in the component of the first stretch.
Counted are the frames since it came within --radius and --angle of a mapped pose. A join is false where the
second stretch, from there on, is off by more than --false-m metres or --false-deg degrees in the median, as
placed by the poses of the first. Cases that are in DIR already are not run again.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
import tyro

from anchor3r import MappingRun, MapSettings, load_map
from anchor3r.geometry import SE3, align_poses, rotation_angle
from anchor3r.pipeline.mapping import predictor_of
from anchor3r.sources import Frame
from anchor3r.sources.source import IndexedSource
from anchor3r.trajectory import Trajectory
from anchor3r.worlds import World, WorldConfig, make_world

GAP = 150
"""Frames of the route between two visits of a place at least."""
MAPPED = 80
"""Frames of the first stretch."""
LEAD, AFTER = 45, 45
"""Frames of the second stretch, before it enters the first one again and after."""
APART = 80
"""Frames of the route from one case to the next at least."""
SETTLED = 10
"""Frames that are mapped on once the camera has been found."""


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
    seeds: str = "101-115",
    per_world: int = 5,
    frames: int = 1500,
    predictor: str = "features",
    radius: float = 2.0,
    angle: float = 30.0,
    false_m: float = 1.0,
    false_deg: float = 5.0,
) -> None:
    """Prints a line a case and the shares, and writes OUT/kidnapped.json.

    Args:
        out: Folder for results.
        cases: How many.
        seeds: Worlds whose routes are cut, first and last;
        per_world: cases that each gives at most.
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
    for world, case in _spread(range(first, last + 1), per_world, frames, radius, angle, cases):
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
    seeds: range, per_world: int, frames: int, radius: float, angle: float, count: int
) -> Iterator[tuple[World, Case]]:
    """Cases of one world after the other, so many in all."""
    for seed in seeds:
        config = WorldConfig(seed=seed, kind="street", motion="grid", frames=frames, width=320, height=240)
        world = make_world(config)
        for case in _cases(world, seed, radius, angle)[: min(per_world, count)]:
            yield world, case
            count -= 1


def _cases(world: World, seed: int, radius: float, angle: float) -> list[Case]:
    """Where a route comes to a place that it has been at before, having been elsewhere in between."""
    poses = world.camera_from_world
    center, ahead = np.asarray(poses.center()), np.asarray(poses.rotation)[:, 2]
    found: list[Case] = []
    for at in range(GAP + LEAD, len(center) - AFTER):
        if found and at < found[-1].entry + APART:
            continue
        near = _is_near(center, ahead, np.array([at]), np.arange(at - GAP), radius, angle)
        if not near.any():
            continue
        place = int(np.flatnonzero(near[0])[0])
        first, around = (place, place + MAPPED), np.arange(at - LEAD, at + AFTER)
        reach = _is_near(center, ahead, around, np.arange(*first), radius, angle).any(1)
        entry = int(around[reach.argmax()])
        second = entry - LEAD, entry + AFTER
        is_whole = first[1] <= second[0] and second[1] <= len(center) and entry > around[0]
        if is_whole and reach[entry - around[0] :].mean() > 0.8:
            found.append(Case(seed, first, second, entry))
    return found


def _is_near(
    center: np.ndarray, ahead: np.ndarray, rows: np.ndarray, mapped: np.ndarray, radius: float, angle: float
) -> np.ndarray:
    """(n, m) whether poses are at the places of mapped ones."""
    near = np.linalg.norm(center[rows][:, None] - center[mapped], axis=2) <= radius
    return np.asarray(near & (ahead[rows] @ ahead[mapped].T >= np.cos(np.radians(angle))))


def _run(world: World, case: Case, folder: Path, predictor: str) -> dict[str, Any]:
    """Maps a case until the camera has been found for a while; what became of it."""
    shutil.rmtree(folder, ignore_errors=True)
    cut = case.first[1] - case.first[0]
    entry = cut + case.entry - case.second[0]
    settings = MapSettings(predictor=predictor, loops="online")
    began, component = time.process_time(), {}
    with (
        Cut(world, case) as source,
        MappingRun(source, predictor_of(settings), folder, settings) as run,
    ):
        for update in run:
            component.setdefault(update.frame, update.component)  # the last one may be told twice
            if component.get(update.frame - SETTLED, -1) == 0 and update.frame - SETTLED >= cut:
                break
    after = [frame for frame in component if frame >= cut]
    joined = next((frame for frame in after if component[frame] == 0), None)
    restarted = next((frame for frame in after if component[frame] not in (None, 0)), None)
    with load_map(folder) as scene_map:
        trajectory, truth, loops = scene_map.trajectory(), scene_map.true_trajectory(), scene_map.loops()
    assert truth is not None
    row = asdict(case) | {
        "name": case.name,
        "lost": any(component[frame] is None for frame in after),
        "restarted": None if restarted is None else restarted - entry,
        "found": joined is not None,
        "delay": None if joined is None else joined - entry,
        "events": [(loop.query - entry, loop.match, loop.state) for loop in loops if loop.query >= cut],
        "cpu_s": time.process_time() - began,
    }
    return row | _misplacement(trajectory, truth, cut, entry)


def _misplacement(estimate: Trajectory, truth: Trajectory, cut: int, entry: int) -> dict[str, float | None]:
    """How far frames from the entry on are off, in the median, once the first stretch is where it was."""
    assert estimate.component is not None
    main_part = estimate.select(estimate.component == 0)
    rows = np.searchsorted(truth.frames, main_part.frames)
    true = truth.select(rows)
    before, after = main_part.frames < cut, main_part.frames >= entry
    if not after.any() or not before.any():
        return {"off_m": None, "off_deg": None}
    fits = before
    for _ in range(5):  # by the better half of its poses: a map may begin with wrong ones
        motion = align_poses(main_part.world_from_camera[fits], true.world_from_camera[fits])
        placed = SE3(motion.rotation @ main_part.world_from_camera.rotation, motion.apply(main_part.center))
        off = np.linalg.norm(placed.translation - true.center, axis=1)
        fits = before & (off <= np.median(off[before]))
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
