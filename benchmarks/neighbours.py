"""Motion between neighbouring frames: predictors against what costs nothing and against two-view geometry.

Of every pair of neighbouring frames, the angle between estimated and true rotation, and between estimated and
true direction of translation; medians over a sequence. Compared are: no motion at all, the true motion of the
pair before (constant motion), SIFT matches with an essential matrix on the frames as they are and at the size
the tiny network sees, and any predictors. Beside it stands how many pairs a CPU second is enough for, on one
thread, without reading the frames. Prints a table for each sequence and writes neighbours.json.

    python benchmarks/neighbours.py "world:101?kind=street&motion=driving&frames=300" kitti:DATA/00 --stop 300
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numerical libraries are loaded

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from anchor3r.geometry import SE3, rotation_angle
from anchor3r.model.config import PRESETS
from anchor3r.predictors.loading import load_predictor
from anchor3r.predictors.network.predictor import NetworkPredictorConfig, network_size
from anchor3r.sources import Frame, open_source

Estimate = Callable[[Frame, Frame], SE3 | None]
"""Pose of the first frame relative to the second, first_from_second; None where there is none."""

_IDENTITY = SE3(np.eye(3), np.zeros(3))
_RATIO = 0.8  # of the two best distances of a match
_LEAST_MATCHES = 8
_WARM_UP_PAIRS = 20
"""Not counted in the speed: code is compiled, and windows fill."""


def sift_essential(*, small: bool) -> Estimate:
    """Two-view geometry at the frames' size, or at the tiny network's."""
    detector, matcher = cv2.SIFT_create(2000), cv2.BFMatcher()

    def estimate(first: Frame, second: Frame) -> SE3 | None:
        camera = second.intrinsics
        if camera is None:
            return None
        images = [cv2.cvtColor(frame.image, cv2.COLOR_RGB2GRAY) for frame in (first, second)]
        if small:
            height, width = network_size(*images[0].shape, PRESETS["tiny"], NetworkPredictorConfig())
            images = [cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA) for image in images]
            camera = camera.resized(width, height)
        (points1, found1), (points2, found2) = (detector.detectAndCompute(image, None) for image in images)
        if found1 is None or found2 is None or min(len(points1), len(points2)) < _LEAST_MATCHES:
            return None
        pairs = [m for m in matcher.knnMatch(found1, found2, k=2) if len(m) == 2]
        good = [a for a, b in pairs if a.distance < _RATIO * b.distance]
        if len(good) < _LEAST_MATCHES:
            return None
        x1 = np.array([points1[m.queryIdx].pt for m in good])
        x2 = np.array([points2[m.trainIdx].pt for m in good])
        matrix = np.array([[camera.fx, 0, camera.cx], [0, camera.fy, camera.cy], [0, 0, 1]])
        essential, inliers = cv2.findEssentialMat(x2, x1, matrix, cv2.RANSAC, 0.999, 0.5)
        if essential is None or essential.shape != (3, 3):
            return None
        _, rotation, translation, _ = cv2.recoverPose(essential, x2, x1, matrix, mask=inliers)
        return SE3(rotation, translation[:, 0])

    return estimate


def constant_motion() -> Estimate:
    """The true motion of the pair before."""
    last: list[SE3] = []

    def estimate(first: Frame, second: Frame) -> SE3 | None:
        last.append(true_motion(first, second))
        return last[-2] if len(last) > 1 else None

    return estimate


def predicted(name: str) -> Estimate:
    """A predictor's own edge between the two, of the second frame's window."""
    predictor = load_predictor(name)
    started = False

    def estimate(first: Frame, second: Frame) -> SE3 | None:
        nonlocal started
        if not started:
            predictor.step(first)
            started = True
        window = predictor.step(second)
        at = np.flatnonzero(window.members == first.index)
        if len(at) == 0:
            return None
        return SE3(window.member_from_anchor_rotation[at[0]], window.member_from_anchor_translation[at[0]])

    return estimate


def true_motion(first: Frame, second: Frame) -> SE3:
    assert first.camera_from_world is not None
    assert second.camera_from_world is not None
    return first.camera_from_world @ second.camera_from_world.inverse()


def errors_deg(found: SE3, true: SE3) -> tuple[float, float]:
    """Of rotation and of direction; NaN where there is no direction."""
    rotation = float(np.degrees(rotation_angle(found.rotation.T @ true.rotation)))
    lengths = np.linalg.norm(found.translation) * np.linalg.norm(true.translation)
    if lengths == 0:
        return rotation, float("nan")
    cosine = float(found.translation @ true.translation / lengths)
    return rotation, float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


def measure(uri: str, stop: int | None, predictors: list[str]) -> dict[str, dict[str, float]]:
    """Medians by method; a pair without an estimate counts as missed, not as an error."""
    methods: dict[str, Estimate] = {
        "no motion": lambda first, second: _IDENTITY,
        "constant motion": constant_motion(),
        "SIFT + essential, full size": sift_essential(small=False),
        "SIFT + essential, network's size": sift_essential(small=True),
    } | {name: predicted(name) for name in predictors}
    errors: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    missed = dict.fromkeys(methods, 0)
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    previous = None
    for frame in open_source(uri, stop=stop).frames():
        if previous is not None:
            true = true_motion(previous, frame)
            for name, estimate in methods.items():
                begin = time.process_time()
                found = estimate(previous, frame)
                seconds[name].append(time.process_time() - begin)
                if found is None:
                    missed[name] += 1
                else:
                    errors[name].append(errors_deg(found, true))
        previous = frame
    rows = {}
    for name, values in errors.items():
        rotation, direction = (_median(column) for column in np.array(values).reshape(-1, 2).T)
        counted = seconds[name][_WARM_UP_PAIRS:]
        rows[name] = {
            "rotation_deg": rotation,
            "direction_deg": direction,
            "missed": missed[name],
            "pairs_per_cpu_s": len(counted) / max(sum(counted), 1e-9) if counted else np.nan,
        }
    return rows


def _median(values: np.ndarray) -> float:
    """Of those that are numbers; NaN if none is."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="*", default=["world:101?kind=street&motion=driving&frames=300"])
    parser.add_argument("--predictors", nargs="*", default=["tiny"])
    parser.add_argument("--stop", type=int, help="frames of each source")
    parser.add_argument("--out", type=Path, default=Path("out/neighbours"))
    arguments = parser.parse_args()
    results = {}
    for uri in arguments.sources:
        results[uri] = rows = measure(uri, arguments.stop, arguments.predictors)
        print(f"\n{uri}\n{'':<36}{'rotation °':>12}{'direction °':>13}{'missed':>9}{'pairs/s':>11}")
        for name, row in rows.items():
            print(
                f"{name:<36}{row['rotation_deg']:>12.3f}{row['direction_deg']:>13.2f}{row['missed']:>9.0f}"
                f"{row['pairs_per_cpu_s']:>11.3g}",
                flush=True,
            )
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "neighbours.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
