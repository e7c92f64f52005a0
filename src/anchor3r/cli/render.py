"""`anchor3r render`: a picture of a map."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from anchor3r.errors import Anchor3RError
from anchor3r.predictors.confidence import LIKELY

MIN_SIDE, MAX_SIDE = 200, 8000
PICTURE_SIZE = (1600, 900)


def render(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MAP")],
    out: Path,
    view: Literal["top", "perspective", "both"] = "both",
    poses: str | None = None,
    size: tuple[int, int] = PICTURE_SIZE,
    confidence: float = LIKELY,
) -> None:
    """Draw a map: its points, the camera's path, and the ground truth if the map has one.

    Args:
        folder: Folder of the map; it may still be growing.
        out: PNG file to write.
        view: From the top, without what is above the cameras; in perspective; or both side by side.
        poses: online, or the name of a refinement; the refined ones if there are any. Other paths are drawn
            beside it.
        size: Width and height in pixels.
        confidence: Leave out points that are less likely than this to be within 5 % of their distance.
    """
    from anchor3r.report.picture import View, scenes_of, write_picture
    from anchor3r.store import best_poses, load_map

    if not all(MIN_SIDE <= side <= MAX_SIDE for side in size):
        raise Anchor3RError(f"--size must lie between {MIN_SIDE} and {MAX_SIDE}, not {size[0]} {size[1]}")
    with load_map(folder) as scene_map:
        poses = poses or best_poses(scene_map.trajectory_names())
        scenes = scenes_of(scene_map, poses, min_confidence=confidence)
        write_picture(out, scenes, view=View(view), size=size)
    print(f"{out}: {sum(len(scene.points) for scene in scenes)} points of {folder} ({poses} poses)")
    for scene in scenes:
        if scene.title:
            print(f"  {scene.title.replace(chr(10), '; ')}")
