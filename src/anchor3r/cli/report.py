"""`anchor3r report`: a page about a map."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from anchor3r.cli.map import NOT_A_RECONSTRUCTION


def report(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MAP")],
    out: Path,
    poses: str | None = None,
) -> None:
    """Write one page about a map: figures, pictures, charts, loops and warnings.

    The page is a single file that loads nothing from elsewhere: it can be sent and kept.

    Args:
        folder: Folder of the map; it may still be growing.
        out: HTML file to write.
        poses: online, or the name of a refinement; the refined ones if there are any.
    """
    from anchor3r.report.page import write_report
    from anchor3r.store import best_poses, load_map

    with load_map(folder) as scene_map:
        poses = poses or best_poses(scene_map.trajectory_names())
        notice = NOT_A_RECONSTRUCTION if scene_map.meta.get("ground_truth_predictor") else ""
        warnings = write_report(out, scene_map, poses, notice=notice)
    print(f"{out}: a page about {folder} ({poses} poses), {len(warnings)} warnings")
    for warning in warnings:
        print(f"  {warning}")
