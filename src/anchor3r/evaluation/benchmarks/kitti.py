"""KITTI odometry: ROOT/sequences/00/image_2/000000.png, calib.txt, times.txt; ROOT/poses/00.txt."""

from __future__ import annotations

from pathlib import Path

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.benchmarks.benchmark import Benchmark, ScoringProtocol
from anchor3r.io.trajectories import read_kitti
from anchor3r.sources import Source
from anchor3r.sources.datasets import KITTI_CAMERAS, KittiSource


class Kitti(Benchmark):
    """The eleven sequences with public ground truth."""

    protocol = ScoringProtocol(
        benchmark="kitti",
        camera="image_2 (colour, left)",
        frames="all",
        ground_truth="poses/NN.txt, moved from camera 0 to the camera in use by its projection matrix",
        sequences=tuple(f"{number:02d}" for number in range(11)),
        metrics=(
            "ate_rmse_m",
            "rre_rmse_deg",
            "rte_rmse_m",
            "segment_translation_percent",
            "segment_rotation_deg_per_m",
        ),
    )

    def open(self, root: Path, name: str, wanted: slice) -> Source:
        poses = root / "poses" / f"{name}.txt"
        num_poses = len(read_kitti(poses))
        uri = f"kitti:{root / name}"
        num_images = KittiSource(uri, str(root / name), slice(None)).num_frames or 0
        if num_poses < num_images:
            raise Anchor3RError(
                f"{poses} ends at line {num_poses}, but sequence {name} has {num_images} images; "
                "get the ground truth again"
            )
        return KittiSource(uri, str(root / name), wanted)

    def deviations(self, root: Path, name: str) -> list[str]:
        folder = root / "sequences" / name
        camera = next(camera for camera in KITTI_CAMERAS if (folder / f"image_{camera}").is_dir())
        return [] if camera == KITTI_CAMERAS[0] else [f"image_{camera} instead of image_{KITTI_CAMERAS[0]}"]
