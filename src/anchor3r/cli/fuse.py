"""`anchor3r fuse`: the depths of a map as one surface."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tyro

from anchor3r.cli.output import Json
from anchor3r.cli.progress import stages
from anchor3r.pipeline.settings import FuseSettings

_DEFAULTS = FuseSettings()


def fuse(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MAP")],
    settings: tyro.conf.OmitArgPrefixes[FuseSettings] = _DEFAULTS,
    as_json: Json = False,
) -> dict[str, Any]:
    """Fuse the depths of a map into one surface, with colours.

    Run it after `anchor3r densify`. All depth images are averaged in a grid of voxels around what they see;
    what later images see through, as a car that has left, goes away. The surface is kept beside the map, in
    MAP/fused.ply, which mesh viewers open. From then on view, render, report and export show its points;
    `anchor3r export --format mesh` writes it as PLY or GLB. After another refinement it is stale, which they
    say, and this command makes it anew from the same depths. Memory is bounded however long the map is.

    Args:
        folder: Folder of the map.
        settings: What is fused, and how finely.
    """
    from anchor3r.pipeline.fusing import fuse_map

    with stages("fusing") as show:
        summary = fuse_map(folder, settings, progress=show)
    print(in_words(summary))
    return summary


def in_words(summary: dict[str, Any]) -> str:
    """The summary of `fuse_map`."""
    made = (
        f"{summary['file']}: {summary['vertices']} vertices and {summary['faces']} faces from "
        f"{summary['views']} {summary['depths']} depth images ({summary['poses']} poses, voxels of "
        f"{summary['voxel']:.3g}); {summary['left_out']} vertices of small pieces left out"
    )
    return "\n".join([made, *summary["remarks"]])
