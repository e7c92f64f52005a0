"""A map as a nerfstudio data set: `transforms.json`, `images/` and the point cloud to start from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from anchor3r.export.images import MapImages
from anchor3r.export.selection import Selection
from anchor3r.geometry import Pinhole
from anchor3r.io.files import replacing_folder
from anchor3r.io.pointcloud import write_ply

CLOUD = "sparse_pc.ply"
_OPENCV_FROM_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
"""Cameras look along -z with y up there, along z with y down here; the world stays as it is."""


def write_nerfstudio(out: Path, selection: Selection, images: MapImages, *, comment: str = "") -> int:
    """Writes the folder; returns the number of points."""
    trajectory = selection.trajectory
    with replacing_folder(out) as folder:
        count = write_ply(folder / CLOUD, selection.clouds(folder), comment=comment)
        saved = images.save(trajectory.frames.tolist(), folder / "images", selection.camera)
        world_from_camera = trajectory.world_from_camera.matrix() @ _OPENCV_FROM_OPENGL
        frames = [
            {"file_path": f"images/{name}", "transform_matrix": matrix.tolist(), **_intrinsics(camera)}
            for (name, camera), matrix in zip(saved.values(), world_from_camera, strict=True)
        ]
        text = json.dumps({"camera_model": "OPENCV", "ply_file_path": CLOUD, "frames": frames}, indent=1)
        (folder / "transforms.json").write_text(text + "\n")
    return count


def _intrinsics(camera: Pinhole) -> dict[str, Any]:
    """The top-left pixel's corner is its (0, 0), ours is that pixel's centre."""
    return {
        "fl_x": camera.fx,
        "fl_y": camera.fy,
        "cx": camera.cx + 0.5,
        "cy": camera.cy + 0.5,
        "w": camera.width,
        "h": camera.height,
    }
