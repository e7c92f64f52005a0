"""TUM RGB-D: ROOT/rgbd_dataset_freiburg1_desk with rgb.txt, depth.txt, groundtruth.txt and what they list."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.association import stamps_of
from anchor3r.evaluation.benchmarks.benchmark import Benchmark, CloudProtocol, ScoringProtocol, folders_with
from anchor3r.io.tables import parse_numbers, read_fields
from anchor3r.io.trajectories import read_tum
from anchor3r.sources import Source
from anchor3r.sources.datasets import TUM_MAX_TIME_DIFFERENCE_S, TumSource
from anchor3r.trajectory import nearest_in_time


class Tum(Benchmark):
    """Every image is mapped; those near a motion-capture pose in time are scored."""

    protocol = ScoringProtocol(
        benchmark="tum",
        camera="rgb",
        frames="all of rgb.txt",
        ground_truth=f"groundtruth.txt, the pose nearest in time within {TUM_MAX_TIME_DIFFERENCE_S} s",
        cloud=CloudProtocol(),
        metrics=("ate_rmse_m", "rre_rmse_deg", "rte_rmse_m", "cd_m", "f1_at_0.25"),
    )

    def sequence_names(self, root: Path) -> list[str]:
        return folders_with(root, "groundtruth.txt")

    def open(self, root: Path, name: str, wanted: slice) -> Source:
        images, poses = root / name / "rgb.txt", root / name / "groundtruth.txt"
        image_s = np.array([parse_numbers(images, n, fields[:1], 1)[0] for n, fields in read_fields(images)])
        pose_s = stamps_of(read_tum(poses), poses)
        if not len(nearest_in_time(image_s, pose_s, TUM_MAX_TIME_DIFFERENCE_S)[0]):
            spans = [f"{stamps.min():.3f} to {stamps.max():.3f} s" for stamps in (image_s, pose_s)]
            raise Anchor3RError(
                f"no image of {images} ({spans[0]}) lies within {TUM_MAX_TIME_DIFFERENCE_S} s of a pose of "
                f"{poses} ({spans[1]}); the two are of different recordings or clocks"
            )
        return TumSource(f"tum:{root / name}", str(root / name), wanted)
