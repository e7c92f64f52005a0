"""Pose graphs in g2o form: `anchor3r solve` with both losses against GTSAM's LM, in the same run.

Plain least squares: GTSAM starts from the file's vertices and from its own chordal initialisation; the better
of the two counts. Robust: GTSAM's Geman–McClure from the vertices, of the width that ours has, against our
default loss. All results are judged by GTSAM's own χ², and by the error against true camera centres where a
file NAME_truth.npy (n, 3) lies beside NAME….g2o. Ratios below 1 are in our favour. CPU seconds on one thread,
compilation excluded. Prints a table and writes pose_graphs.json.

    python benchmarks/pose_graphs.py sphere2500.g2o parking-garage.g2o --out out/pose_graphs
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from anchor3r.cli import main as cli
from anchor3r.geometry import umeyama
from anchor3r.pose_graph.joint import RefineConfig


def ours(path: Path, loss: str) -> tuple[np.ndarray, dict[str, Any]]:
    """Poses (F, 3, 4) camera to world as the command writes them, and its report."""
    with tempfile.TemporaryDirectory() as folder:
        poses, report = Path(folder) / "poses.txt", Path(folder) / "report.json"
        code = cli.main(["solve", str(path), "--loss", loss, "--out", str(poses), "--report", str(report)])
        if code:
            sys.exit(code)
        return np.loadtxt(poses).reshape(-1, 3, 4), json.loads(report.read_text())


def compare(path: Path, *, has_outliers: bool = False) -> dict[str, Any]:
    """χ², error against the truth if it is known, and CPU seconds of both programs.

    has_outliers: leaves out plain least squares, which outliers spoil.
    """
    import gtsam

    graph, start = gtsam.readG2o(str(path), True)
    keys = sorted(start.keys())
    truth = next(iter(sorted(path.parent.glob(f"{path.stem.split('_')[0]}_truth.npy"))), None)
    row: dict[str, Any] = {"graph": path.name, "frames": len(keys), "edges": graph.size()}

    def judge(name: str, values: Any, seconds: float) -> None:
        row[f"{name}_chi2"], row[f"{name}_s"] = 2 * graph.error(values), seconds
        if truth is not None:
            true, center = np.load(truth), np.stack([values.atPose3(key).translation() for key in keys])
            moved = umeyama(center, true).apply(center) - true
            row[f"{name}_ate"] = float(np.sqrt(np.mean(np.sum(moved**2, 1))))

    for name in ("robust",) if has_outliers else ("vertices", "chordal", "robust"):
        held = _robust(graph) if name == "robust" else gtsam.NonlinearFactorGraph(graph)
        held.add(
            gtsam.PriorFactorPose3(keys[0], start.atPose3(keys[0]), gtsam.noiseModel.Isotropic.Sigma(6, 1e-3))
        )
        began = time.process_time()
        initial = gtsam.InitializePose3.initialize(held) if name == "chordal" else start
        result = gtsam.LevenbergMarquardtOptimizer(held, initial).optimize()
        judge(f"gtsam_{name}", result, time.process_time() - began)
    for loss in ("gm",) if has_outliers else ("none", "gm"):
        ours(path, loss)  # compiles
        poses, report = ours(path, loss)
        values = gtsam.Values()
        for key, pose in zip(keys, poses, strict=True):
            values.insert(key, gtsam.Pose3(gtsam.Rot3(pose[:, :3]), pose[:, 3]))
        judge(loss, values, report["cpu_seconds"])
    if not has_outliers:
        best = min(row["gtsam_vertices_chi2"], row["gtsam_chordal_chi2"])
        row |= {"none_ratio": row["none_chi2"] / best, "gm_ratio": row["gm_chi2"] / best}
    return row


def _robust(graph: Any) -> Any:
    """The same factors under a Geman–McClure loss."""
    import gtsam

    loss = gtsam.noiseModel.mEstimator.GemanMcClure.Create(RefineConfig().width)
    robust = gtsam.NonlinearFactorGraph()
    for k in range(graph.size()):
        factor = graph.at(k)
        i, j = factor.keys()
        noise = gtsam.noiseModel.Robust.Create(loss, factor.noiseModel())
        robust.add(gtsam.BetweenFactorPose3(i, j, factor.measured(), noise))
    return robust


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", type=Path, nargs="*")
    parser.add_argument(
        "--outliers", action="store_true", help="only robust losses, for graphs with outliers"
    )
    parser.add_argument("--out", type=Path, default=Path("out/pose_graphs"))
    arguments = parser.parse_args()
    if find_spec("gtsam") is None:
        print("skipped, not installed: gtsam (make peers)")
        return
    rows = [compare(path, has_outliers=arguments.outliers) for path in arguments.graphs]
    print(
        f"{'graph':<24}{'frames':>8}{'χ² none':>10}{'χ² gm':>10}{'s none':>8}{'s gm':>8}{'GTSAM s':>9}"
        f"{'robust s':>9}{'ATE gm':>9}{'GTSAM':>9}"
    )
    columns = (
        ("none_ratio", ">10.6f"), ("gm_ratio", ">10.4f"), ("none_s", ">8.3f"), ("gm_s", ">8.3f"),
        ("gtsam_vertices_s", ">9.3f"), ("gtsam_robust_s", ">9.3f"), ("gm_ate", ">9.4f"),
        ("gtsam_robust_ate", ">9.4f"),
    )  # fmt: skip
    for row in rows:
        cells = [
            format(row[name], form) if name in row else format("–", form.partition(".")[0])
            for name, form in columns
        ]
        print(f"{row['graph']:<24}{row['frames']:>8}" + "".join(cells))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "pose_graphs.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
