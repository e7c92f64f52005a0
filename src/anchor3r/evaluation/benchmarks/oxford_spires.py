"""Oxford Spires as published: ROOT/calibration and ROOT/sequences, every raw/images.zip unpacked in place.

A sequence such as ROOT/sequences/2024-03-12-keble-college-02 has raw/images/cam0/SECONDS.NANOSECONDS.jpg (or
raw/cam0) and processed/trajectory/gt-tum.txt.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.benchmarks.benchmark import (
    Benchmark,
    PosedImages,
    ScoringProtocol,
    folders_with,
    images_in,
    poses_at,
)
from anchor3r.evaluation.benchmarks.calibration import yaml_motion, yaml_numbers
from anchor3r.geometry import SE3, Pinhole
from anchor3r.sources import Source
from anchor3r.sources.undistortion import undistorted

MAX_TIME_DIFFERENCE_S = 0.025
"""Between an image and a pose, as in the data set's own tools."""

BASE_FROM_LIDAR = SE3(np.diag([-1.0, -1.0, 1.0]), np.array([0.0, 0.0, 0.124]))
"""The data set's T_base_lidar; poses are of the base."""


class OxfordSpires(Benchmark):
    """Every sequence that has a ground truth, front camera."""

    protocol = ScoringProtocol(
        benchmark="oxford_spires",
        camera="cam0 (front), fisheye rectified to a pinhole of the same focal length",
        frames="all",
        ground_truth=f"gt-tum.txt within {MAX_TIME_DIFFERENCE_S} s, moved from the base to the camera",
    )

    def sequence_names(self, root: Path) -> list[str]:
        return folders_with(root / "sequences", "processed/trajectory/gt-tum.txt")

    def open(self, root: Path, name: str, wanted: slice) -> Source:
        folder = root / "sequences" / name
        unpacked = folder / "raw/images/cam0"
        images = images_in(unpacked if unpacked.is_dir() else folder / "raw/cam0")
        stamps_s = np.array([_stamp_s(Path(path)) for path in images])
        calibration = root / "calibration"
        camera_from_lidar = yaml_motion(calibration / "cam-lidar-imu.yaml", "cam0", "T_cam_lidar")
        camera = _front_camera(calibration / "cam0.yaml")
        distortion = yaml_numbers(calibration / "cam0.yaml", "distortion_coefficients", "data", count=4)
        return PosedImages(
            f"oxford_spires:{folder}",
            wanted,
            images,
            timestamps_s=stamps_s,
            camera_from_world=poses_at(
                stamps_s,
                folder / "processed/trajectory/gt-tum.txt",
                camera_from_body=camera_from_lidar @ BASE_FROM_LIDAR.inverse(),
                max_difference_s=MAX_TIME_DIFFERENCE_S,
            ),
            cameras=[camera] * len(images),
            rectify=partial(undistorted, camera=camera, distortion=tuple(distortion), fisheye=True),
        )


def _stamp_s(path: Path) -> float:
    try:
        return float(path.stem)
    except ValueError as error:
        raise Anchor3RError(f"{path} is not named by its time in seconds; remove it or rename it") from error


def _front_camera(calibration: Path) -> Pinhole:
    fx, _, cx, _, fy, cy, *_ = yaml_numbers(calibration, "camera_matrix", "data", count=9).tolist()
    width, height = (
        int(yaml_numbers(calibration, key, count=1)[0]) for key in ("image_width", "image_height")
    )
    return Pinhole(fx, fy, cx, cy, width, height)
