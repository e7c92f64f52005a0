"""Virtual KITTI 2: ROOT/Scene01/clone with intrinsic.txt, extrinsic.txt, frames/rgb and frames/depth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.benchmarks.benchmark import (
    Benchmark,
    DepthFiles,
    PosedImages,
    ScoringProtocol,
    images_in,
)
from anchor3r.geometry import Pinhole
from anchor3r.io.tables import parse_numbers, read_fields, rigid_motions
from anchor3r.sources import Source
from anchor3r.sources.images import read_image

RATE_HZ = 10.0
UNITS_PER_M = 100.0
NO_DEPTH = 65535
"""The sky."""


class VirtualKitti2Benchmark(Benchmark):
    """The unaltered rendering of the five scenes, left camera."""

    protocol = ScoringProtocol(
        benchmark="vkitti2",
        camera="Camera_0 (left), condition clone",
        frames="all",
        ground_truth="extrinsic.txt",
        sequences=("Scene01", "Scene02", "Scene06", "Scene18", "Scene20"),
        metrics=("ate_rmse_m", "rte_rmse_m", "rre_rmse_deg", "depth_abs_rel"),
    )

    def open(self, root: Path, name: str, wanted: slice) -> Source:
        folder = root / name / "clone"
        images = images_in(folder / "frames/rgb/Camera_0", "rgb_*")
        extrinsics, intrinsics = folder / "extrinsic.txt", folder / "intrinsic.txt"
        matrices = _left_camera(extrinsics, 16, len(images)).reshape(-1, 4, 4)
        camera_from_world = rigid_motions(matrices[:, :3], extrinsics)
        height, width = read_image(images[0]).shape[:2]
        return PosedImages(
            f"vkitti2:{folder}",
            wanted,
            images,
            timestamps_s=np.arange(len(images)) / RATE_HZ,
            camera_from_world=[camera_from_world[k] for k in range(len(images))],
            cameras=[
                Pinhole(fx, fy, cx, cy, width, height)
                for fx, fy, cx, cy in _left_camera(intrinsics, 4, len(images)).tolist()
            ],
            depth=_depth_files(folder / "frames/depth/Camera_0", images),
        )


def _depth_files(folder: Path, images: list[str]) -> DepthFiles | None:
    """None where the depth archive was not unpacked."""
    if not folder.is_dir():
        return None
    paths = [folder / f"{Path(image).stem.replace('rgb', 'depth')}.png" for image in images]
    return DepthFiles(paths=paths, units_per_m=UNITS_PER_M, no_depth=NO_DEPTH)


def _left_camera(path: Path, num_values: int, num_frames: int) -> NDArray[np.float64]:
    """(num_frames, num_values) of camera 0 from a table of `frame camera values…` with a line of headings."""
    rows: list[list[float]] = []
    for line, fields in read_fields(path):
        if fields[0] == "frame":
            continue
        frame, camera, *values = parse_numbers(path, line, fields, 2 + num_values)
        if camera == 0:
            if frame != len(rows):
                raise Anchor3RError(
                    f"line {line} of {path} is of frame {frame:g}, not {len(rows)}; get it again"
                )
            rows.append(values)
    if len(rows) != num_frames:
        raise Anchor3RError(f"{path} has {len(rows)} frames of camera 0, but there are {num_frames} images")
    return np.array(rows)
