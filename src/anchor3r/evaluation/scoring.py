"""A finished map against the ground truth that its source knew: poses, neighbours, cloud and depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation import metrics
from anchor3r.evaluation.benchmarks.benchmark import ScoringProtocol
from anchor3r.evaluation.geometry import geometry_metrics
from anchor3r.evaluation.metrics import Alignment, Statistics, TrajectoryErrors
from anchor3r.evaluation.results import Metrics, SequenceResult
from anchor3r.geometry import SE3
from anchor3r.io.files import replacing
from anchor3r.io.inputs import decoding, text_lines
from anchor3r.io.trajectories import write_tum
from anchor3r.pose_graph.edges import EdgeKind, MotionGraph
from anchor3r.sources import Source
from anchor3r.store import ONLINE, Map, Runtime
from anchor3r.trajectory import MIN_ALIGNED_POSES, Trajectory

RUNTIME_CSV = "runtime.csv"
"""What a frame cost, beside a sequence's result."""


@dataclass(frozen=True, kw_only=True)
class ScoredTrajectory:
    """Errors of the frames that have both an estimated and a true pose."""

    frames: NDArray[np.int64]
    """(n,) indices in the source"""
    errors: TrajectoryErrors
    coverage: float
    """Their share of all frames with a true pose."""
    within: Mapping[str, float]
    """Shares of true poses within the ellipsoids of the estimated ones; empty without covariances"""

    def metrics(self) -> dict[str, float]:
        """The metrics of the errors, and how steady they are over the stream."""
        named = self.errors.metrics() | {"coverage": self.coverage} | dict(self.within)
        if len(self.frames) < metrics.MIN_STREAM:
            return named
        steady = metrics.steadiness(self.errors.world_from_estimated, self.errors.world_from_true)
        return named | vars(steady) | {"error_growth": steady.growth}


def score_map(
    scene_map: Map, source: Source, protocol: ScoringProtocol, out: Path, title: str
) -> SequenceResult:
    """Scores every trajectory of a map, its cloud and depth, and leaves trajectories and figures in `out`."""
    variants, scored = score_poses(scene_map, protocol.alignment, out, title)
    for name, found in scored.items():
        variants[name] |= geometry_metrics(
            scene_map, name, source, found.frames, found.errors, protocol.cloud
        )
    return SequenceResult(
        num_frames=scene_map.num_frames,
        variants=variants,
        runtime=runtime_metrics(scene_map),
        made_from=scene_map.meta.get("identity", {}),
    )


def score_poses(
    scene_map: Map, alignment: Alignment, out: Path, title: str, *, names: Sequence[str] = ()
) -> tuple[dict[str, Metrics], dict[str, ScoredTrajectory]]:
    """Metrics of the named trajectories of a map, or of all, and those that could be aligned at all."""
    truth = scene_map.true_trajectory()
    if truth is None:
        raise Anchor3RError(f"the source of {scene_map.folder} had no ground truth to compare with")
    write_tum(out / "truth.tum", truth)
    neighbours = neighbour_metrics(scene_map.graph(), truth)
    variants: dict[str, Metrics] = {}
    scored: dict[str, ScoredTrajectory] = {}
    # A map without any pose has failed, and is told so.
    for name in names or scene_map.trajectory_names() or [ONLINE]:
        estimate = scene_map.trajectory(name)
        write_tum(out / f"{name}.tum", estimate)
        found = scored_trajectory(estimate, truth, alignment, is_online=name == ONLINE)
        if found is None:
            variants[name] = {"coverage": 0.0}
        else:
            scored[name] = found
            variants[name] = {**found.metrics(), **neighbours}
    _draw(scene_map, scored, out, title)
    return variants, scored


def write_runtime(path: Path, runtime: Runtime) -> None:
    """A line a frame: its index, wall seconds since the frame before, peak resident memory in bytes."""
    columns = np.stack([runtime.frames, runtime.seconds, runtime.peak_rss_bytes], 1)
    lines = [f"{int(frame)},{seconds:.6g},{memory:.12g}" for frame, seconds, memory in columns.tolist()]
    with replacing(path) as file:
        file.write("\n".join(["frame,seconds,peak_memory_bytes", *lines, ""]).encode())


def read_runtime(path: Path) -> Runtime:
    """Reads what `write_runtime` wrote."""
    with decoding(str(path), "run the evaluation anew"):
        values = np.loadtxt((line for _, line in text_lines(path)), delimiter=",", skiprows=1, ndmin=2)
        if values.shape[1:] != (3,) or not np.isfinite(values[:, :2]).all() or values[:, 1].min() < 0:
            raise ValueError("it has no lines of frame, seconds and memory")
    return Runtime(frames=values[:, 0].astype(np.int64), seconds=values[:, 1], peak_rss_bytes=values[:, 2])


def runtime_metrics(scene_map: Map) -> Metrics:
    """What the mapping cost, as its store recorded it."""
    runtime = scene_map.runtime()
    if not len(runtime.seconds):
        return {}
    total_s = float(runtime.seconds.sum())
    return {
        "seconds": total_s,
        "frames_per_second": len(runtime.seconds) / total_s if total_s else float("nan"),
        "steady_frames_per_second": 1 / median_s
        if (median_s := float(np.median(runtime.seconds)))
        else np.nan,
        "peak_memory_bytes": float(np.max(runtime.peak_rss_bytes)),
    }


def _draw(scene_map: Map, scored: dict[str, ScoredTrajectory], out: Path, title: str) -> None:
    from anchor3r.evaluation import figures

    if scored:
        errors = {name: found.errors for name, found in scored.items()}
        figures.trajectory_figure(errors, out / "trajectory.png", title)
        figures.error_over_distance_figure(errors, out / "error.png", title)
    runtime = scene_map.runtime()
    if len(runtime.seconds) > 1:
        write_runtime(out / RUNTIME_CSV, runtime)
        figures.runtime_figure(runtime.seconds, runtime.peak_rss_bytes, out / "runtime.png", title)


def scored_trajectory(
    estimate: Trajectory, truth: Trajectory, alignment: Alignment, *, is_online: bool = False
) -> ScoredTrajectory | None:
    """Compares by frame index; None if too few frames have both poses for an alignment.

    Of an estimate in several components only the largest counts: nothing relates it to the others.
    is_online: covariances tell how a pose lies relative to the frame before, in the scale that the map has
    there (that of the whole, if the alignment has none); those of refined poses tell how it lies relative to
    the trajectory as a whole.
    """
    estimate = estimate.largest_component()
    frames, of_estimate, of_truth = np.intersect1d(estimate.frames, truth.frames, return_indices=True)
    if len(frames) < MIN_ALIGNED_POSES:
        return None
    estimated, true = estimate.world_from_camera[of_estimate], truth.world_from_camera[of_truth]
    errors = metrics.trajectory_errors(estimated, true, alignment)
    within: dict[str, float] = {}
    if estimate.covariance is not None:
        covariance = estimate.covariance[of_estimate]
        if is_online:
            scales = metrics.local_scales(estimated, true) if alignment is Alignment.SIM3 else 1.0
            steps = metrics.step_errors(estimated, true, scales)
            within = metrics.ellipsoid_shares(steps, covariance[1:])
        else:
            within = metrics.ellipsoid_shares(metrics.aligned_pose_errors(estimated, true), covariance)
    return ScoredTrajectory(frames=frames, errors=errors, coverage=len(frames) / len(truth), within=within)


def neighbour_metrics(graph: MotionGraph, truth: Trajectory) -> dict[str, float]:
    """How good the predictor's own measurements between neighbouring frames are, before any averaging."""
    edges = graph.edges
    of_member = np.searchsorted(truth.frames, edges.frame_i)
    of_anchor = np.searchsorted(truth.frames, edges.frame_t)
    last = len(truth) - 1
    of_member, of_anchor = np.minimum(of_member, last), np.minimum(of_anchor, last)
    usable = (edges.kind == EdgeKind.WINDOW) & (edges.frame_t == edges.frame_i + 1)
    usable &= (truth.frames[of_member] == edges.frame_i) & (truth.frames[of_anchor] == edges.frame_t)
    camera_from_world = truth.camera_from_world
    true_motion = camera_from_world[of_member[usable]] @ camera_from_world[of_anchor[usable]].inverse()
    measured = SE3(edges.rotation[usable], edges.translation[usable])
    rotation_deg, direction_deg = (Statistics.of(e) for e in metrics.neighbour_errors(measured, true_motion))
    return {
        "neighbour_rotation_median_deg": rotation_deg.median,
        "neighbour_rotation_mean_deg": rotation_deg.mean,
        "neighbour_direction_median_deg": direction_deg.median,
        "neighbour_direction_mean_deg": direction_deg.mean,
    }
