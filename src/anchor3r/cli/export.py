"""`anchor3r export`: a map in the formats of other programs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro

from anchor3r.cli.output import Json
from anchor3r.export.exporting import ExportSettings, Format, export_map

_DEFAULTS = ExportSettings()


def export(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MAP")],
    out: Path,
    format: Format,
    settings: tyro.conf.OmitArgPrefixes[tyro.conf.FlagCreatePairsOff[ExportSettings]] = _DEFAULTS,
    as_json: Json = False,
) -> dict[str, Any]:
    """Hand a map to other programs.

    The world is that of the map, x right, y down and z forward of its first camera, but for las and laz (z
    up) and glb (y up). Memory is bounded: frames are read one by one.

    Args:
        folder: Folder of the map; it may still be growing.
        out: File to write; of colmap, nerfstudio and rosbag2, a new folder.
        format: tum, kitti and euroc are trajectories (camera to world) as text, geojson, gpx and kml the path
            on the Earth of a map that was refined with positions; g2o is the motion graph.
            ply, pcd, las, laz and glb are point clouds, glb with the cameras as lines. mesh is the surface
            that anchor3r fuse made, with colours; out is a .ply or a .glb then. colmap and nerfstudio are
            folders with images, cameras and points, from which trainers of splats start. rrd and mcap are
            recordings over time, which Rerun and Foxglove play, rosbag2 one that ros2 bag play and RViz take.
        settings: What of the map, and how.
    """
    written = export_map(folder, out, format, settings)
    print(f"{out}: {written.what} of {folder} ({written.poses} poses)")
    for note in written.notes:
        print(f"anchor3r: {note}", file=sys.stderr)
    return {"map": folder, "out": out, "format": format, **asdict(written)}
