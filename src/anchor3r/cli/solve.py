"""`anchor3r solve`: the poses of any motion graph."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from anchor3r.cli.output import Json
from anchor3r.errors import Anchor3RError
from anchor3r.io.files import check_output
from anchor3r.pipeline.settings import Method, RefineSettings

if TYPE_CHECKING:
    from anchor3r.geometry import SE3
    from anchor3r.pose_graph.edges import MotionGraph
    from anchor3r.pose_graph.report import Report

_OUT_SUFFIXES = (".txt", ".tum")


def solve(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="GRAPH")],
    method: Method = RefineSettings.method,
    loss: Literal["gm", "none"] = "gm",
    out: Path | None = None,
    report: Path | None = None,
    as_json: Json = False,
) -> dict[str, Any]:
    """Solve any motion graph: relative poses in, camera poses out.

    The start is the poses that a .g2o file has for its vertices, else one pass of online medians. Every
    connected component keeps the start's pose of its first frame.

    Args:
        path: Graph to solve: .npz of this program, or .g2o with SE3:QUAT vertices and edges.
        method: joint solves rotations and positions together and weighs edges with their information
            matrices; decoupled averages rotations first, then positions; paper is Algorithm 2 of the paper
            to the letter.
        loss: gm is robust (Geman–McClure, inconsistent loops are cut); none is plain least squares, for
            joint only.
        out: Where to write poses, camera to world. The suffix decides: .txt is KITTI (3×4 matrices, one line
            a frame in ascending order), .tum is TUM (the frame's index takes the place of the time).
        report: Where to write status, iterations, cost and cpu_seconds as JSON. CPU seconds are those of the
            start and the solve, without reading the file and compiling.
    """
    for path_out in (out, report):
        if path_out is not None:
            check_output(path_out, inputs=[path])
    if out is not None and report is not None and os.path.realpath(out) == os.path.realpath(report):
        raise Anchor3RError(f"--out and --report are both {out}; name two files")
    if out is not None and out.suffix not in _OUT_SUFFIXES:
        raise Anchor3RError(f"cannot tell the format of {out}; name it .txt for KITTI or .tum for TUM")
    if method != "joint" and loss == "none":
        raise Anchor3RError(f"--loss none goes with --method joint; {method} is robust by itself")
    graph, given = _read(path)
    try:
        poses, solved, seconds = _solve(graph, given, method, loss)
    except (ValueError, ArithmeticError) as error:  # also LinAlgError: what solvers refuse to compute with
        raise Anchor3RError(
            f"{path} cannot be solved ({error}); check its information matrices and weights"
        ) from error
    _insist_on_solution(path, poses, solved)
    start = "online medians" if given is None else "vertices"
    summary = solved.as_dict() | {
        "graph": str(path), "method": method, "loss": loss, "start": start, "cpu_seconds": seconds,
    }  # fmt: skip
    if out is not None:
        _write_poses(out, graph, poses)
    if report is not None:
        _write_report(report, summary)
    print(_in_words(summary))
    if solved.num_components > 1:
        print(
            f"anchor3r: the graph falls into {solved.num_components} components that no edge joins; "
            "each has a world of its own",
            file=sys.stderr,
        )
    return summary


def _insist_on_solution(path: Path, poses: SE3, solved: Report) -> None:
    """Numbers that no longer can be computed with must not pass for poses."""
    import numpy as np

    is_finite = bool(np.isfinite(poses.rotation).all() and np.isfinite(poses.translation).all())
    if not is_finite or not np.isfinite([solved.cost, solved.initial_cost]).all():
        raise Anchor3RError(
            f"{path}: solving it left the range of floating-point numbers; check the file's translations, "
            "information matrices and weights for values that are far too large"
        )


def _read(path: Path) -> tuple[MotionGraph, SE3 | None]:
    """The graph, and poses of its frames if the file has them."""
    import numpy as np

    from anchor3r.io.g2o import read_g2o
    from anchor3r.io.graph_files import load_graph
    from anchor3r.pose_graph.edges import check_edges

    if path.suffix == ".g2o":
        file = read_g2o(path)
        if file.num_replaced:
            print(
                f"anchor3r: {path}: {file.num_replaced} of {len(file.graph)} information matrices were not "
                "positive definite; each was replaced by the nearest without negative eigenvalues",
                file=sys.stderr,
            )
        at = np.searchsorted(file.frames, file.graph.frames())
        return file.graph, file.camera_from_world[at] if len(file.frames) else None
    if path.suffix != ".npz":
        raise Anchor3RError(f"cannot tell the format of {path}; a motion graph is .npz or .g2o")
    graph = load_graph(path)
    check_edges(graph.edges, str(path))
    return graph, None


def _solve(
    graph: MotionGraph, given: SE3 | None, method: str, loss: Literal["gm", "none"]
) -> tuple[SE3, Report, float]:
    """Poses of the graph's frames, the solver's report, and CPU seconds with the start included."""
    from anchor3r.pose_graph.averaging.motion import average_motion, average_motion_as_published
    from anchor3r.pose_graph.joint import RefineConfig, refine_poses
    from anchor3r.pose_graph.online import estimate_trajectory
    from anchor3r.pose_graph.report import Stopwatch
    from anchor3r.pose_graph.topology import topology_of

    watch = Stopwatch()
    topology = topology_of(graph.edges)
    start = given or estimate_trajectory(graph.edges, topology=topology)
    if method == "paper":
        poses, report = average_motion_as_published(graph.edges, start, topology=topology)
    elif method == "decoupled":
        poses, report = average_motion(graph.edges, start, topology=topology)
    else:
        refined, report = refine_poses(_informed(graph, loss), start, RefineConfig(loss=loss))
        poses = refined.camera_from_world
    return poses, report, watch.seconds()


def _informed(graph: MotionGraph, loss: str) -> MotionGraph:
    """Without matrices that are all the identity, if the loss is robust: they tell nothing about the noise.

    The robust loss then measures it on the graph; plain least squares takes the matrices as they are.
    """
    from dataclasses import replace

    import numpy as np

    edges = graph.edges
    if loss == "none" or not np.array_equal(
        edges.information, np.broadcast_to(np.eye(6), (len(edges), 6, 6))
    ):
        return graph
    return type(graph)(replace(edges, information=np.broadcast_to(np.nan, (len(edges), 6, 6))))


def _write_poses(out: Path, graph: MotionGraph, poses: SE3) -> None:
    import numpy as np

    from anchor3r.io.trajectories import write_kitti, write_tum
    from anchor3r.trajectory import Trajectory

    frames = graph.frames()
    trajectory = Trajectory(
        frames=frames,
        rotation=np.asarray(poses.rotation, np.float64),
        center=np.asarray(poses.center(), np.float64),
        timestamps_s=frames.astype(np.float64),
    )
    if out.suffix == ".tum":
        write_tum(out, trajectory, comment="anchor3r solve: the time is the frame's index")
    else:
        write_kitti(out, trajectory)


def _write_report(path: Path, summary: dict[str, Any]) -> None:
    from anchor3r.io.files import replacing

    with replacing(path) as file:
        file.write((json.dumps(summary, indent=2) + "\n").encode())


def _in_words(summary: dict[str, Any]) -> str:
    return (
        f"{summary['graph']}: {summary['num_frames']} frames, {summary['num_edges']} edges, "
        f"{summary['method']} from {summary['start']}: {summary['status']} after {summary['iterations']} "
        f"iterations, cost {summary['initial_cost']:.6g} -> {summary['cost']:.6g}, "
        f"{summary['cpu_seconds']:.2f} CPU s"
    )
