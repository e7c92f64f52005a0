"""What merging costs: ATE of a map merged of two halves, over that of one map of the whole.

`python benchmarks/merging.py --out DIR` maps two halves of drives over grid worlds, and of 7-Scenes
redkitchen with `--seven-scenes ROOT`, merges each pair, maps the whole at once and refines it, and prints a
table. Then halves of different worlds are merged: each of them that is joined is a false join. Maps that are
in DIR already are taken as they are.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from itertools import combinations
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
import tyro

from anchor3r import MapSettings, load_map, map_source, merge_maps, refine_map
from anchor3r.geometry import umeyama
from anchor3r.store import Map


def main(
    out: Path,
    seeds: tuple[int, ...] = (105, 107, 108),
    frames: int = 600,
    seven_scenes: Path | None = None,
    predictor: str = "features",
) -> None:
    """Prints a table and writes OUT/merging.json.

    Args:
        out: Folder for maps and results.
        seeds: Worlds with a route over a street grid, at 320×240, of which the second half sees places of the
            first again.
        frames: Of a route.
        seven_scenes: Folder that holds redkitchen/seq-01.
        predictor: What maps.
    """
    settings = MapSettings(predictor=predictor, loops="off")
    sources = {
        f"grid {seed}": (
            f"world:{seed}?kind=street&motion=grid&width=320&height=240&horizontal_fov_deg=75&frames={frames}",
            frames,
        )
        for seed in seeds
    }
    if seven_scenes is not None:
        sources["redkitchen"] = (f"7scenes:{seven_scenes / 'redkitchen' / 'seq-01'}", 500)
    results: dict[str, Any] = {"pairs": {}, "different": {}}
    print(
        f"{'sequence':12} {'whole':>9} {'merged':>9} {'ratio':>6} {'joined':>7} {'accepted':>9} {'CPU s':>6}"
    )
    for name, (uri, count) in sources.items():
        row = halves(out / name.replace(" ", "-"), uri, count, settings)
        results["pairs"][name] = row
        print(
            f"{name:12} {row['whole_m']:7.3f} m {row['merged_m']:7.3f} m {row['ratio']:6.2f} "
            f"{'yes' if row['joined'] else 'no':>7} {row['accepted']:4} of {row['common_places']} "
            f"{row['cpu_seconds']:6.0f}",
            flush=True,
        )
    for one, other in combinations([name for name in sources if name.startswith("grid")], 2):
        folders = [out / one.replace(" ", "-") / "first", out / other.replace(" ", "-") / "second"]
        merged, _ = merge_anew(folders, out / f"{one}-{other}".replace(" ", "-"))
        results["different"][f"{one}, {other}"] = merged
        print(f"{one} and {other}: {'FALSE JOIN' if not merged['not_joined'] else 'stay apart'}", flush=True)
    (out / "merging.json").write_text(json.dumps(results, indent=1))


def halves(folder: Path, uri: str, count: int, settings: MapSettings) -> dict[str, Any]:
    """Merges maps of both halves of a sequence, and compares with the map of all of it."""
    middle = count // 2
    for name, start, stop in (("first", 0, middle), ("second", middle, count), ("whole", 0, count)):
        if not (folder / name).exists():
            map_source(uri, folder / name, settings, start=start, stop=stop)
            if name == "whole":
                refine_map(folder / name)
    merged, seconds = merge_anew([folder / "first", folder / "second"], folder / "merged")
    with load_map(folder / "whole") as whole, load_map(folder / "merged") as joint:
        errors = ate(whole), ate(joint)
    return {
        "whole_m": errors[0],
        "merged_m": errors[1],
        "ratio": errors[1] / errors[0],
        "joined": not merged["not_joined"],
        "accepted": merged["accepted"],
        "common_places": merged["common_places"],
        "cpu_seconds": seconds,
    }


def merge_anew(folders: list[Path], out: Path) -> tuple[dict[str, Any], float]:
    """The summary, and CPU seconds."""
    shutil.rmtree(out, ignore_errors=True)
    started = time.process_time()
    return merge_maps(folders, out), time.process_time() - started


def ate(scene_map: Map) -> float:
    """Root mean square distance of camera centres to the true ones, of the largest component by a Sim(3)."""
    trajectory, truth = scene_map.trajectory("offline").largest_component(), scene_map.true_trajectory()
    assert truth is not None
    _, a, b = np.intersect1d(trajectory.frames, truth.frames, return_indices=True)
    estimated, true = trajectory.center[a], truth.center[b]
    error = umeyama(estimated, true).apply(estimated) - true
    return float(np.sqrt((error**2).sum(1).mean()))


if __name__ == "__main__":
    tyro.cli(main)
