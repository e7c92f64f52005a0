"""VBR as its development kit downloads and converts it.

ROOT/campus/campus_train0 has campus_train0_gt.txt and vbr_calib.yaml. Beside it is campus_train0_kitti, from
`vbr convert kitti`, with camera_left and ouster_points, each with timestamps.txt and data.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.benchmarks.benchmark import (
    Benchmark,
    PosedImages,
    Rectify,
    ScoringProtocol,
    images_in,
    poses_at,
)
from anchor3r.evaluation.benchmarks.calibration import yaml_motion, yaml_numbers
from anchor3r.geometry import Pinhole
from anchor3r.io.tables import read_fields
from anchor3r.sources import Source
from anchor3r.sources.undistortion import undistorted
from anchor3r.trajectory import nearest_in_time

MAX_TIME_DIFFERENCE_S = 0.01


class Vbr(Benchmark):
    """The seven training sequences that the literature compares on."""

    protocol = ScoringProtocol(
        benchmark="vbr",
        camera="camera_left, rectified",
        frames=f"those with a LiDAR scan within {MAX_TIME_DIFFERENCE_S} s",
        ground_truth="pose of the scan, moved from the LiDAR to the camera by vbr_calib.yaml",
        sequences=(
            "campus_train0",
            "campus_train1",
            "ciampino_train1",
            "colosseo_train0",
            "diag_train0",
            "pincio_train0",
            "spagna_train0",
        ),
        metrics=("ate_rmse_m", "ate_vbr_legacy", "rre_rmse_deg", "rte_rmse_m"),
    )

    def open(self, root: Path, name: str, wanted: slice) -> Source:
        home = root / name.split("_")[0] / name
        recording = home.with_name(f"{name}_kitti")
        images = images_in(recording / "camera_left/data")
        image_s = _stamps_s(recording / "camera_left/timestamps.txt")
        if len(image_s) != len(images):
            stamps = recording / "camera_left/timestamps.txt"
            raise Anchor3RError(
                f"{stamps} has {len(image_s)} lines for {len(images)} images; convert it again"
            )
        scan_s = _stamps_s(recording / "ouster_points/timestamps.txt")
        kept, scan = nearest_in_time(image_s, scan_s, MAX_TIME_DIFFERENCE_S)
        calibration = home / "vbr_calib.yaml"
        base_from_camera, base_from_lidar = (
            yaml_motion(calibration, sensor, "T_b") for sensor in ("cam_l", "lidar")
        )
        camera, rectify = _left_camera(calibration)
        return PosedImages(
            f"vbr:{home}",
            wanted,
            [images[k] for k in kept],
            timestamps_s=image_s[kept],
            camera_from_world=poses_at(
                scan_s[scan],
                home / f"{name}_gt.txt",
                camera_from_body=base_from_camera.inverse() @ base_from_lidar,
                max_difference_s=MAX_TIME_DIFFERENCE_S,
            ),
            cameras=[camera] * len(kept),
            rectify=rectify,
        )


def _stamps_s(path: Path) -> NDArray[np.float64]:
    """Seconds since 1970 (n,) of a list of dates such as 2023-02-20T10:33:46.123456789, ascending."""
    stamps = []
    for line, fields in read_fields(path):
        try:
            stamps.append(np.datetime64(fields[0], "ns"))
        except ValueError as error:
            raise Anchor3RError(
                f"line {line} of {path} is no date: '{fields[0]}'; convert it again"
            ) from error
    # Seconds in float64 are good to 0.2 µs; in float32 they would be off by a minute.
    return np.array(stamps, "datetime64[ns]").astype(np.int64) * np.float64(1e-9)


def _left_camera(calibration: Path) -> tuple[Pinhole, Rectify]:
    fx, fy, cx, cy = yaml_numbers(calibration, "cam_l", "intrinsics", count=4)
    width, height = yaml_numbers(calibration, "cam_l", "resolution", count=2)
    camera = Pinhole(fx, fy, cx, cy, int(width), int(height))
    distortion = yaml_numbers(calibration, "cam_l", "distortion_coeffs", count=4)
    return camera, partial(undistorted, camera=camera, distortion=tuple(distortion))
