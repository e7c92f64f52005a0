"""`anchor3r demo`: the whole way from images to a map, on a world that is rendered on the spot."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from anchor3r.cli.map import stream
from anchor3r.cli.output import Json
from anchor3r.cli.progress import stages
from anchor3r.errors import Anchor3RError
from anchor3r.io.files import replacing
from anchor3r.pipeline.settings import NOT_A_RECONSTRUCTION
from anchor3r.report.map_outputs import PICTURE_SIZE

STAND_IN = "ground-truth:0.2,0.02"
"""What measures where the network's weights are missing."""
VOXEL_M = 0.1
_WORLD = "?motion=grid&frames="
"""What is said of the world, between its seed and its length."""


def demo(
    out: Path = Path("out/demo"),
    seed: int = 7,
    frames: int = 600,
    threads: int | None = None,
    as_json: Json = False,
) -> dict[str, Any]:
    """Render a looping world, map it, close its loops and compare with ground truth.

    Leaves the map, its trajectories (TUM), its point cloud (PLY), pictures and summary.json.

    Args:
        out: Folder for everything.
        seed: Of the world.
        frames: How many to map.
        threads: CPU threads; one if not given.
    """
    from anchor3r.model import TINY_WEIGHTS
    from anchor3r.pipeline.mapping import MappingRun
    from anchor3r.pipeline.refine import refine_map
    from anchor3r.pipeline.settings import MapSettings, RefineSettings
    from anchor3r.predictors.loading import load_predictor
    from anchor3r.sources import open_source

    _insist_on_own(out / "map")
    name = "tiny" if TINY_WEIGHTS.is_file() else STAND_IN
    if name == STAND_IN:
        print(f"{NOT_A_RECONSTRUCTION}, because this installation lacks the weights of the tiny network")
    with (
        open_source(f"world:{seed}{_WORLD}{frames}") as world,
        MappingRun(
            world,
            load_predictor(name),
            out / "map",
            MapSettings(threads=threads, loops="off"),
            overwrite=True,
        ) as run,
    ):
        stream(run)
    summary = run.summary()
    with stages("refining") as show:
        refinement = refine_map(out / "map", RefineSettings(threads=threads), progress=show)
    summary["refinement"] = refinement
    summary["trajectories"] = evaluate(out)
    with replacing(out / "summary.json") as file:
        file.write((json.dumps(summary, indent=2) + "\n").encode())
    print(f"{summary['frames']} frames at {summary['frames_per_second']} frames/s")
    print(f"{refinement['accepted']} of {refinement['loop_events']} loop events accepted")
    for poses, metrics in summary["trajectories"].items():
        print(f"{poses}: ATE {metrics['ate_rmse_m']:.3f} m = {metrics['ate_percent']:.2f} % of the path")
    print(f"everything is in {out}")
    return {"out": out, **summary}


def _insist_on_own(folder: Path) -> None:
    """Refuses to replace a map that no demo has made."""
    from anchor3r.store import load_map
    from anchor3r.store.database import holds_map

    if not holds_map(folder):
        return
    with load_map(folder) as scene_map:
        made_from = str(scene_map.meta["identity"].get("source"))
    if not re.fullmatch(rf"world:-?\d+{re.escape(_WORLD)}\d+", made_from):
        raise Anchor3RError(f"{folder} is a map of {made_from}, which no demo has made; choose another --out")


def evaluate(out: Path) -> dict[str, dict[str, Any]]:
    """Scores every trajectory of out/map against the ground truth; draws and writes the cloud of the best."""
    import numpy as np

    from anchor3r.evaluation.metrics import Alignment
    from anchor3r.evaluation.scoring import score_poses
    from anchor3r.export.selection import map_clouds
    from anchor3r.io.pointcloud import voxel_downsampled, write_ply
    from anchor3r.report.picture import PictureView, scenes_of, write_picture
    from anchor3r.store import load_map

    with load_map(out / "map") as scene_map:
        metrics, scored = score_poses(scene_map, Alignment.SIM3, out, "demo")
        if not scored:
            raise Anchor3RError(
                f"too few frames of {out / 'map'} have a pose to be compared; use more --frames"
            )
        best = min(scored, key=lambda name: float(np.mean(scored[name].errors.absolute_m ** 2)))
        voxel = VOXEL_M / float(scored[best].errors.true_from_estimated.scale)
        clouds = map_clouds(scene_map, poses=best)
        write_ply(out / "cloud.ply", voxel_downsampled(clouds, voxel, scratch=out))
        scenes = scenes_of(scene_map, best)
        write_picture(out / "map.png", scenes, view=PictureView.BOTH, size=PICTURE_SIZE)
    return metrics
