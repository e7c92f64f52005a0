"""Waymo Open, exported to images the way DUSt3R and its followers do.

ROOT/segment-…/00000_1.jpg with 00000_1.npz (intrinsics, cam2world) beside it; camera 1 is the front one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anchor3r.datasets.files import open_files
from anchor3r.datasets.waymo import EVALUATED, exported_camera
from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.benchmarks.benchmark import Benchmark, PosedImages, ScoringProtocol, images_in
from anchor3r.geometry import Pinhole
from anchor3r.io.tables import rigid_motions
from anchor3r.sources import Source
from anchor3r.sources.images import read_image

RATE_HZ = 10.0


class WaymoBenchmark(Benchmark):
    """Nine segments, named by how their number begins."""

    protocol = ScoringProtocol(
        benchmark="waymo",
        camera="1 (front)",
        frames="all",
        ground_truth="cam2world of the exported .npz",
        sequences=EVALUATED,
    )

    def open(self, root: Path, name: str, wanted: slice) -> Source:
        folders = sorted(path for path in root.glob(f"*{name}*") if path.is_dir())
        if len(folders) != 1:
            found = ", ".join(path.name for path in folders) or "none"
            raise Anchor3RError(f"one segment folder with {name} is wanted in {root}, found: {found}")
        images = images_in(folders[0], "*_1.*")
        height, width = read_image(images[0]).shape[:2]
        cameras, poses = [], []
        files = open_files(folders[0])
        for image in images:
            path = Path(image).with_suffix(".npz")
            intrinsics, cam2world = exported_camera(files, path.name)
            fx, fy, cx, cy = (float(intrinsics[at]) for at in ((0, 0), (1, 1), (0, 2), (1, 2)))
            cameras.append(Pinhole(fx, fy, cx, cy, width, height))
            poses.append(rigid_motions(cam2world[None, :3], path)[0].inverse())
        return PosedImages(
            f"waymo:{folders[0]}",
            wanted,
            images,
            timestamps_s=np.arange(len(images)) / RATE_HZ,
            camera_from_world=poses,
            cameras=cameras,
        )
