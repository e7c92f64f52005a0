"""The feature predictor on real and synthetic video: accuracy online, speed on one core, memory.

Maps each sequence with the streaming mapper and nothing else (no loops, no refinement). ATE is the RMSE of
the camera centres after Sim(3) alignment; speed is frames by CPU seconds of the predictor, one thread,
compilation excluded. Prints a table and writes features.json.

    python benchmarks/features.py kitti:ROOT/00 7scenes:DIR "world:101?motion=driving&width=320&height=240"
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numerical libraries are loaded

import argparse
import json
import resource
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from anchor3r.geometry import umeyama
from anchor3r.mapping import Mapper
from anchor3r.predictors.features.predictor import FeaturesPredictor
from anchor3r.predictors.prediction import WindowPrediction
from anchor3r.sources import open_source
from anchor3r.sources.frame import Frame

_WARM_UP_FRAMES = 40


@dataclass(frozen=True)
class Row:
    """One sequence."""

    source: str
    frames: int
    posed: int
    components: int
    lost: int
    path_m: float
    ate_m: float
    frames_per_cpu_second: float
    focal_px: float
    focal_sigma_px: float
    """of the working image, as estimated at the end"""
    radial: tuple[float, float]
    resident_mb: float


class _Timed(FeaturesPredictor):
    """Counts the CPU seconds of its own steps: decoding images is not its business."""

    cpu_seconds = 0.0

    def step(self, frame: Frame) -> WindowPrediction:
        start = time.process_time()
        prediction = super().step(frame)
        self.cpu_seconds += time.process_time() - start
        return prediction


def measure(uri: str, num_frames: int | None, unknown_intrinsics: bool) -> Row:
    predictor = _Timed()
    mapper = Mapper(predictor)
    statuses: Counter[str] = Counter()
    found, truth, components = {}, {}, {}
    for frame in open_source(uri, stop=num_frames).frames():
        if frame.camera_from_world is None:
            raise SystemExit(f"{uri} has no ground truth")
        truth[frame.index] = frame.camera_from_world.center()
        if unknown_intrinsics:
            frame = Frame(index=frame.index, timestamp_s=frame.timestamp_s, image=frame.image)
        update = mapper.step(frame)
        statuses[update.status] += 1
        for pose in (*update.late_poses, *([update.pose] if update.pose else [])):
            found.setdefault(pose.frame, pose.center)
            components.setdefault(pose.frame, pose.component)
    posed = sorted(found)
    estimate, target = np.array([found[k] for k in posed]), np.array([truth[k] for k in posed])
    error = umeyama(estimate, target).apply(estimate) - target
    centers = np.array([truth[k] for k in sorted(truth)])
    mean, sigma = predictor.calibration
    return Row(
        source=uri,
        frames=len(truth),
        posed=len(posed),
        components=len(set(components.values())),
        lost=statuses["lost"],
        path_m=float(np.linalg.norm(np.diff(centers, axis=0), axis=1).sum()),
        ate_m=float(np.sqrt(np.mean(np.sum(error**2, axis=1)))),
        frames_per_cpu_second=len(truth) / predictor.cpu_seconds,
        focal_px=float(np.exp(mean[0])),
        focal_sigma_px=float(np.exp(mean[0]) * sigma[0]),
        radial=(float(mean[3]), float(mean[4])),
        resident_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _line(row: Row) -> str:
    name = row.source if len(row.source) <= 44 else f"{row.source[:22]}…{row.source[-21:]}"
    counts = f"{name:44} {row.frames:6} {row.posed:6} {row.lost:5}"
    accuracy = f"{row.path_m:8.2f} {row.ate_m:8.4f} {100 * row.ate_m / row.path_m:6.3f}"
    camera = f"{row.focal_px:.1f}±{row.focal_sigma_px:.1f} px, {row.radial[0]:.4f} {row.radial[1]:.4f}"
    return f"{counts} {accuracy} {row.frames_per_cpu_second:6.1f}  {camera}, {row.resident_mb:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+", help="anything with ground truth that `anchor3r map` takes")
    parser.add_argument("--frames", type=int, help="take only so many frames of each")
    parser.add_argument("--unknown-intrinsics", action="store_true", help="hide the intrinsics")
    parser.add_argument("--out", type=Path, default=Path("out/features"))
    arguments = parser.parse_args()
    warm_up = FeaturesPredictor()
    for frame in islice(open_source(arguments.sources[0]).frames(), _WARM_UP_FRAMES):
        warm_up.step(frame)
    print(f"{'source':44} frames  posed  lost   path m    ATE m      %    fps  focal, radial, memory")
    rows = []
    for uri in arguments.sources:
        row = measure(uri, arguments.frames, arguments.unknown_intrinsics)
        rows.append(row)
        print(_line(row), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "features.json").write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
