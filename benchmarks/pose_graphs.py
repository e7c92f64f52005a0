"""Public pose graphs (.g2o) by plain least squares: `anchor3r solve --loss none` against GTSAM's LM.

GTSAM starts from the file's vertices and from its own chordal initialisation; the better of the two counts.
Both results are judged by GTSAM's own error function. Prints a table and writes pose_graphs.json.

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


def ours(path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Poses (F, 3, 4) camera to world as the command writes them, and its report."""
    with tempfile.TemporaryDirectory() as folder:
        poses, report = Path(folder) / "poses.txt", Path(folder) / "report.json"
        code = cli.main(["solve", str(path), "--loss", "none", "--out", str(poses), "--report", str(report)])
        if code:
            sys.exit(code)
        return np.loadtxt(poses).reshape(-1, 3, 4), json.loads(report.read_text())


def compare(path: Path) -> dict[str, Any]:
    """χ² and CPU seconds of both."""
    import gtsam

    graph, start = gtsam.readG2o(str(path), True)
    keys = sorted(start.keys())
    gauge = gtsam.noiseModel.Isotropic.Sigma(6, 1e-3)
    row: dict[str, Any] = {"graph": path.name, "frames": len(keys), "edges": graph.size()}
    held = gtsam.NonlinearFactorGraph(graph)
    held.add(gtsam.PriorFactorPose3(keys[0], start.atPose3(keys[0]), gauge))
    for name in ("vertices", "chordal"):
        began = time.process_time()
        initial = start if name == "vertices" else gtsam.InitializePose3.initialize(held)
        result = gtsam.LevenbergMarquardtOptimizer(held, initial).optimize()
        row |= {f"gtsam_{name}_chi2": 2 * graph.error(result), f"gtsam_{name}_s": time.process_time() - began}
    poses, report = ours(path)
    values = gtsam.Values()
    for key, pose in zip(keys, poses, strict=True):
        values.insert(key, gtsam.Pose3(gtsam.Rot3(pose[:, :3]), pose[:, 3]))
    row |= {"chi2": 2 * graph.error(values), "s": report["cpu_seconds"]}
    row["ratio"] = row["chi2"] / min(row["gtsam_vertices_chi2"], row["gtsam_chordal_chi2"])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, default=Path("out/pose_graphs"))
    arguments = parser.parse_args()
    if find_spec("gtsam") is None:
        print("skipped, not installed: gtsam (make peers)")
        return
    rows = [compare(path) for path in arguments.graphs]
    print(
        f"{'graph':<24}{'frames':>8}{'χ²':>14}{'GTSAM':>14}{'chordal':>14}{'ratio':>10}{'s':>8}{'GTSAM s':>9}"
    )
    for row in rows:
        print(
            f"{row['graph']:<24}{row['frames']:>8}{row['chi2']:>14.4f}{row['gtsam_vertices_chi2']:>14.4f}"
            f"{row['gtsam_chordal_chi2']:>14.4f}{row['ratio']:>10.6f}{row['s']:>8.3f}"
            f"{row['gtsam_vertices_s']:>9.3f}"
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "pose_graphs.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
