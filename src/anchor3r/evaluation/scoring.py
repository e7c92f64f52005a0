"""A finished map against the ground truth that its source knew: poses, neighbours, cloud and depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation import metrics
from anchor3r.evaluation.benchmarks.benchmark import CloudProtocol, ScoringProtocol
from anchor3r.evaluation.metrics import Alignment, Statistics, TrajectoryErrors
from anchor3r.evaluation.results import Metrics, SequenceResult
from anchor3r.geometry import SE3, Array, Sim3
from anchor3r.io.files import replacing
from anchor3r.io.trajectories import write_tum
from anchor3r.pose_graph.edges import EdgeKind, MotionGraph
from anchor3r.sources import Source
from anchor3r.store import ONLINE, Map, Runtime
from anchor3r.trajectory import MIN_ALIGNED_POSES, Trajectory

RUNTIME_CSV = "runtime.csv"
"""What a frame cost, beside a sequence's result."""
MAX_CLOUD_FRAMES = 1000
"""A cloud's random points are drawn from at most this many frames, evenly spaced."""
MAX_DEPTH_FRAMES = 200
MAX_DEPTH_VALUES = 4096
"""Pixels compared of one frame."""
_EDGE_RATIO = 1.5
"""Neighbouring pixels whose depths differ by more than this factor are of different surfaces."""


@dataclass(frozen=True, kw_only=True)
class ScoredTrajectory:
    """Errors of the frames that have both an estimated and a true pose."""

    frames: NDArray[np.int64]
    """(n,) indices in the source"""
    errors: TrajectoryErrors
    coverage: float
    """Their share of all frames with a true pose."""

    def metrics(self) -> dict[str, float]:
        """Those of the errors, and how steady they are over the stream."""
        named = self.errors.metrics() | {"coverage": self.coverage}
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
        variants[name] |= depth_metrics(scene_map, source, found.frames)
        if protocol.cloud is not None:
            variants[name] |= cloud_metrics(scene_map, name, source, found, protocol.cloud)
    return SequenceResult(
        num_frames=scene_map.num_frames,
        variants=variants,
        runtime=runtime_metrics(scene_map),
        made_from=scene_map.meta["identity"],
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
        found = scored_trajectory(estimate, truth, alignment)
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
    try:
        values = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    except (OSError, ValueError) as error:
        raise Anchor3RError(f"cannot read {path} ({error}); run the evaluation anew") from error
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
    estimate: Trajectory, truth: Trajectory, alignment: Alignment
) -> ScoredTrajectory | None:
    """Compares by frame index; None if too few frames have both poses for an alignment.

    Of an estimate in several components only the largest counts: nothing relates it to the others.
    """
    estimate = estimate.largest_component()
    frames, of_estimate, of_truth = np.intersect1d(estimate.frames, truth.frames, return_indices=True)
    if len(frames) < MIN_ALIGNED_POSES:
        return None
    errors = metrics.trajectory_errors(
        estimate.world_from_camera[of_estimate], truth.world_from_camera[of_truth], alignment
    )
    return ScoredTrajectory(frames=frames, errors=errors, coverage=len(frames) / len(truth))


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


def cloud_metrics(
    scene_map: Map, variant: str, source: Source, scored: ScoredTrajectory, protocol: CloudProtocol
) -> dict[str, float]:
    """CD and F1 of the map's points, moved as the trajectory was, against the source's depth images."""
    rng = np.random.default_rng(protocol.seed)
    frames = _evenly(scored.frames, MAX_CLOUD_FRAMES)
    per_frame = -(-protocol.num_points // len(frames))
    estimated = _map_points(scene_map, variant, frames, scored.errors.true_from_estimated, per_frame, rng)
    true = _true_points(source, frames, per_frame, rng)
    if not len(estimated) or not len(true):
        return {}
    errors = metrics.cloud_errors(
        estimated, true, threshold_m=protocol.f1_threshold_m, num_points=protocol.num_points, rng=rng
    )
    return errors.metrics(protocol.f1_threshold_m)


def _map_points(
    scene_map: Map,
    variant: str,
    frames: NDArray[np.int64],
    true_from_estimated: Sim3,
    per_frame: int,
    rng: np.random.Generator,
) -> Array:
    """(n, 3) random points of the map in the true world."""
    chosen = [
        pose.to_world(_some_finite(point_map.points_in_camera, per_frame, rng))
        for pose, point_map in scene_map.iter_points(variant, frames.tolist())
    ]
    points = np.concatenate(chosen) if chosen else np.empty((0, 3))
    return true_from_estimated.apply(points.astype(np.float64))


def _true_points(
    source: Source, frames: NDArray[np.int64], per_frame: int, rng: np.random.Generator
) -> Array:
    """(n, 3) random points of the depth images in the true world."""
    chosen: list[NDArray[np.floating]] = [np.empty((0, 3))]
    for index in frames.tolist():
        frame = source.read(index)
        if frame.depth_m is None or frame.intrinsics is None or frame.camera_from_world is None:
            continue
        depth = np.where(frame.depth_m > 0, frame.depth_m, np.nan)
        points = _some_finite(frame.intrinsics.unproject_map(depth), per_frame, rng)
        chosen.append(frame.camera_from_world.inverse().apply(points.astype(np.float64)))
    return np.concatenate(chosen)


def _some_finite(points: NDArray[np.floating], count: int, rng: np.random.Generator) -> NDArray[np.floating]:
    """(h, w, 3) with NaN -> (at most count, 3) without."""
    flat = points.reshape(-1, 3)
    finite = flat[np.isfinite(flat).all(-1)]
    return finite if len(finite) <= count else finite[rng.choice(len(finite), count, replace=False)]


def depth_metrics(scene_map: Map, source: Source, frames: NDArray[np.int64]) -> dict[str, float]:
    """AbsRel of the point maps' depth against the source's, after one scale for the whole sequence."""
    estimated: list[NDArray[np.floating]] = [np.empty(0)]
    true: list[NDArray[np.floating]] = [np.empty(0)]
    rng = np.random.default_rng(0)
    for pose, point_map in scene_map.iter_points(frames=_evenly(frames, MAX_DEPTH_FRAMES).tolist()):
        true_depth_m = source.read(pose.frame).depth_m
        if true_depth_m is None:
            continue
        depth = point_map.points_in_camera[..., 2] * np.exp(pose.log_scale)
        pixels = rng.permutation(depth.size)[:MAX_DEPTH_VALUES]
        estimated.append(depth.ravel()[pixels])
        true.append(depth_at_cells(true_depth_m, depth.shape).ravel()[pixels])
    error, _ = metrics.depth_abs_rel(np.concatenate(estimated), np.concatenate(true))
    return {} if np.isnan(error) else {"depth_abs_rel": error}


def depth_at_cells(depth_m: Array, cells: tuple[int, ...]) -> Array:
    """Depth (H, W) in the middle of each of h × w cells that span the image.

    Between pixels of one surface inverse depth, which is linear on planes, is interpolated: half a pixel is
    a tenth of the depth on ground that is seen at a grazing angle. Across edges the nearest pixel's counts.
    """
    (top, bottom, down), (left, right, along) = (
        _around_centres(*sizes) for sizes in zip(cells, depth_m.shape, strict=True)
    )
    corners = np.stack([depth_m[np.ix_(i, j)] for i in (top, bottom) for j in (left, right)]).astype(float)
    weights = np.stack([np.outer(v, u) for v in (1 - down, down) for u in (1 - along, along)])
    nearest = np.take_along_axis(corners, weights.argmax(0)[None], 0)[0]
    least = corners.min(0)
    one_surface = (least > 0) & (corners.max(0) < _EDGE_RATIO * least)
    inverse = (weights / np.where(corners > 0, corners, 1)).sum(0)
    return np.where(one_surface, 1 / inverse, nearest)


def _around_centres(
    num_cells: int, num_pixels: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """The pixels (num_cells,) before and after the middle of each cell, and how far it is from the first."""
    centre = np.clip((np.arange(num_cells) + 0.5) * num_pixels / num_cells - 0.5, 0, num_pixels - 1)
    before = np.floor(centre).astype(np.intp)
    return before, np.minimum(before + 1, num_pixels - 1), centre - before


def _evenly(frames: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return frames[np.unique(np.linspace(0, len(frames) - 1, min(count, len(frames))).round().astype(int))]
