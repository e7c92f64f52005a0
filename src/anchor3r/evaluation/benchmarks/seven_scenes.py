"""7-Scenes: ROOT/chess/seq-01/frame-000000.color.png, .depth.png and .pose.txt."""

from __future__ import annotations

from pathlib import Path

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.benchmarks.benchmark import Benchmark, CloudProtocol, ScoringProtocol, images_in
from anchor3r.sources import Source
from anchor3r.sources.datasets import SevenScenesSource


class SevenScenes(Benchmark):
    """Sequence 01 of each scene."""

    protocol = ScoringProtocol(
        benchmark="7scenes",
        camera="colour",
        frames="all of seq-01",
        ground_truth="KinectFusion poses beside the images, moved to the colour camera; cloud from the depth "
        "images, registered to it",
        sequences=("chess", "fire", "heads", "office", "pumpkin", "redkitchen", "stairs"),
        cloud=CloudProtocol(),
        metrics=("cd_m", "f1_at_0.25", "f1_at_0.05", "accuracy_m", "completeness_m", "ate_rmse_m"),
    )

    def open(self, root: Path, name: str, wanted: slice) -> Source:
        folder = root / name / "seq-01"
        for path in images_in(folder, "*.color.*"):
            pose = Path(path.rsplit("color.", 1)[0] + "pose.txt")
            if not pose.is_file():
                raise Anchor3RError(f"there is no {pose}, the true pose of {path}; unpack the sequence again")
        return SevenScenesSource(f"7scenes:{folder}", str(folder), wanted)
