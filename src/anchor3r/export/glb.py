"""A map as one GLB file, which 3D viewers open: its points, the camera's path, and cameras as lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.export.cameras import frustum_depth, frustum_lines
from anchor3r.geometry import Pinhole
from anchor3r.io.extras import export_library
from anchor3r.io.files import replacing
from anchor3r.io.pointcloud import Cloud, insist_on_points
from anchor3r.trajectory import Trajectory

GLB_FROM_MAP = np.diag([1.0, -1.0, -1.0])
"""glTF has y up and looks along -z, the map has y down and looks along z."""
MAX_FRUSTUMS = 500
"""Cameras that are drawn, evenly chosen from more."""
_PATH_COLOUR, _CAMERA_COLOUR = (230, 60, 60, 255), (60, 120, 230, 255)


def write_glb(
    path: Path | str, clouds: Iterable[Cloud], trajectory: Trajectory, camera: Pinhole | None
) -> int:
    """Writes nodes `points`, `path` and `cameras`; returns the number of points."""
    trimesh = export_library("trimesh")
    with replacing(path) as file:
        cloud = Cloud.joined(list(clouds))
        insist_on_points(len(cloud), path)
        shown = trajectory.select(slice(None, None, -(-len(trajectory) // MAX_FRUSTUMS)))
        lines = {
            "path": ([_path_of(trajectory)], _PATH_COLOUR),
            "cameras": (list(frustum_lines(shown, camera, frustum_depth(trajectory))), _CAMERA_COLOUR),
        }
        scene = trimesh.Scene()
        points = cloud.points @ GLB_FROM_MAP.T
        scene.add_geometry(trimesh.PointCloud(points, cloud.colours), node_name="points", geom_name="points")
        for name, (polylines, colour) in lines.items():
            drawn = _drawn(trimesh, polylines, colour)
            scene.add_geometry(drawn, node_name=name, geom_name=name)
        file.write(scene.export(file_type="glb"))
    return len(cloud)


def _drawn(trimesh: Any, polylines: Sequence[NDArray[Any]], colour: tuple[int, ...]) -> Any:
    """Polylines (n, 3) each as one `trimesh.path.Path3D`."""
    ends = np.cumsum([len(line) for line in polylines])
    rows = np.split(np.arange(ends[-1]), ends[:-1])
    lines = [trimesh.path.entities.Line(row, color=colour) for row in rows]
    return trimesh.path.Path3D(lines, np.concatenate(polylines) @ GLB_FROM_MAP.T, process=False)


def _path_of(trajectory: Trajectory) -> NDArray[np.float64]:
    """A line needs two points; a single pose is one that goes nowhere."""
    return trajectory.center if len(trajectory) > 1 else np.repeat(trajectory.center, 2, axis=0)
