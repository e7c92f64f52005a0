"""A picture of a map and a page about it, from its folder: what the commands render and report do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anchor3r.errors import Anchor3RError
from anchor3r.io.files import check_output
from anchor3r.pipeline.settings import NOT_A_RECONSTRUCTION
from anchor3r.predictors.confidence import LIKELY
from anchor3r.store import best_poses, load_map
from anchor3r.store.fused import FUSED

MIN_SIDE, MAX_SIDE = 200, 8000
PICTURE_SIZE = (1600, 900)


@dataclass(frozen=True, kw_only=True)
class RenderSettings:
    """How a map is drawn."""

    view: Literal["top", "perspective", "both"] = "both"
    """From the top, without what is above the cameras; in perspective; or both side by side."""
    poses: str | None = None
    """online, or the name of a refinement; the refined ones if there are any. Other paths are drawn beside
    it."""
    size: tuple[int, int] = PICTURE_SIZE
    """Width and height in pixels."""
    confidence: float = LIKELY
    """Leave out points that are less likely than this to be within 5 % of their distance."""

    def __post_init__(self) -> None:
        if not all(MIN_SIDE <= side <= MAX_SIDE for side in self.size):
            width, height = self.size
            raise Anchor3RError(f"--size must lie between {MIN_SIDE} and {MAX_SIDE}, not {width} {height}")


def render_map(folder: Path | str, out: Path | str, settings: RenderSettings | None = None) -> str:
    """Draws a map into a PNG file, with its path and ground truth, and says what is in it."""
    from anchor3r.report.picture import PictureView, scenes_of, write_picture

    settings = settings or RenderSettings()
    check_output(out, inputs=[Path(folder) / FUSED])
    with load_map(folder) as scene_map, scene_map.frozen():
        poses = settings.poses or best_poses(scene_map.trajectory_names())
        scenes = scenes_of(scene_map, poses, min_confidence=settings.confidence)
        write_picture(Path(out), scenes, view=PictureView(settings.view), size=settings.size)
    count = sum(len(scene.points) for scene in scenes)
    titles = [f"\n  {scene.title.replace(chr(10), '; ')}" for scene in scenes if scene.title]
    return f"{count} points of {folder} ({poses} poses){''.join(titles)}"


def report_map(folder: Path | str, out: Path | str, poses: str | None = None) -> list[str]:
    """Writes a page about a map: figures, pictures, charts, loops. Returns the warnings that it gives."""
    from anchor3r.report.page import write_report

    check_output(out, inputs=[Path(folder) / FUSED])
    with (
        load_map(folder) as scene_map,
        scene_map.frozen(),
    ):  # the page is about one moment
        chosen = poses or best_poses(scene_map.trajectory_names())
        notice = NOT_A_RECONSTRUCTION if scene_map.meta.get("ground_truth_predictor") else ""
        return write_report(Path(out), scene_map, chosen, notice=notice)
