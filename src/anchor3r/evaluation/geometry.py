"""The geometry of a map against the depth images that its source knows: depth, and clouds of surface points.

What a map has of each kind is scored by itself: the point maps of its predictor, the depths that were
measured of its keyframes, and the surface that was fused from either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from anchor3r.evaluation import metrics
from anchor3r.evaluation.benchmarks.benchmark import CloudProtocol
from anchor3r.evaluation.metrics import Alignment, TrajectoryErrors
from anchor3r.geometry import Array, align_poses
from anchor3r.sources import Source
from anchor3r.store import Map
from anchor3r.store.fused import fused_surface

MAX_CLOUD_FRAMES = 1000
"""A cloud's random points are drawn from at most this many frames, evenly spaced."""
MAX_DEPTH_FRAMES = 200
MAX_DEPTH_VALUES = 4096
"""Pixels compared of one frame."""
_EDGE_RATIO = 1.5
"""Neighbouring pixels whose depths differ by more than this factor are of different surfaces."""
DENSE_PREFIX = "dense_"
"""Of the metrics of the measured depths of keyframes."""
FUSED_PREFIX = "fused_"
"""Of the metrics of the fused surface, placed by the camera centres."""
POSED_PREFIX = "fused_posed_"
"""Of those of the same surface, placed by centres and orientations of the cameras."""
REGISTERED_PREFIX = "fused_registered_"
"""Of those of the same surface after a similarity has fitted it to the true one."""
_REGISTRATION_POINTS = 10_000


def geometry_metrics(
    scene_map: Map,
    poses: str,
    source: Source,
    frames: NDArray[np.int64],
    errors: TrajectoryErrors,
    cloud: CloudProtocol | None,
) -> dict[str, float]:
    """Every metric by name: of point maps depth_abs_rel …, of the fused surface fused_f1_at_0.05 …

    frames: those with an estimated and a true pose. errors: theirs, and what aligned the two trajectories.
    Clouds are compared only if there is a protocol.
    """
    named = depth_metrics(_depths_of_point_maps(scene_map, poses, frames), source)
    densified = scene_map.densification()
    if densified is not None and densified.poses == poses:
        kept = scene_map.keyframe_depth_frames()
        measured = _evenly(kept[np.isin(kept, frames)], MAX_DEPTH_FRAMES).tolist()
        depths = ((view.frame, view.depth) for view in scene_map.keyframe_depths(measured))
        named |= depth_metrics(depths, source, DENSE_PREFIX)
    if cloud is None:
        return named
    rng = np.random.default_rng(cloud.seed)
    chosen = _evenly(frames, MAX_CLOUD_FRAMES)
    per_frame = -(-cloud.num_points // len(chosen))
    estimated = _map_points(scene_map, poses, chosen, per_frame, rng)
    true = _true_points(source, chosen, per_frame, rng)
    named |= _cloud_metrics(errors.true_from_estimated.apply(estimated), true, cloud)
    if (fused := fused_surface(scene_map, poses)) is not None:
        surface = fused.mesh.points().astype(np.float64)
        named |= _surface_metrics(errors.true_from_estimated.apply(surface), true, errors, cloud)
    return named


def _surface_metrics(
    placed: Array, true: Array, errors: TrajectoryErrors, protocol: CloudProtocol
) -> dict[str, float]:
    """Those of a surface (n, 3) as the camera centres place it, as whole poses do, and registered.

    Camera centres that lie almost on a line say little about the rotation around it, which a room some
    metres away magnifies; orientations say the same of every line. Registration tells the error of the
    placement from that of the surface.
    """
    by_prefix = {
        FUSED_PREFIX: _cloud_metrics(placed, true, protocol),
        REGISTERED_PREFIX: _registered_metrics(placed, true, protocol),
    }
    if errors.alignment is Alignment.SIM3:
        posed = align_poses(errors.world_from_estimated, errors.world_from_true).apply(placed)
        by_prefix[POSED_PREFIX] = _cloud_metrics(posed, true, protocol)
    return {f"{prefix}{name}": value for prefix, found in by_prefix.items() for name, value in found.items()}


def _cloud_metrics(estimated: Array, true: Array, protocol: CloudProtocol) -> dict[str, float]:
    """CD and F1 of points (n, 3) against true ones (m, 3); none if there are no points."""
    if not len(estimated) or not len(true):
        return {}
    return metrics.cloud_errors(
        estimated, true, thresholds_m=protocol.f1_thresholds_m, num_points=protocol.num_points,
        rng=np.random.default_rng(protocol.seed),
    ).metrics()  # fmt: skip


def _registered_metrics(placed: Array, true: Array, protocol: CloudProtocol) -> dict[str, float]:
    """Those of a placed surface (n, 3) after its registration, and how far that moved it on average."""
    if not len(placed) or not len(true):
        return {}
    registered_from_placed = metrics.registered_cloud(
        placed, true, num_points=_REGISTRATION_POINTS, rng=np.random.default_rng(protocol.seed)
    )
    registered = registered_from_placed.apply(placed)
    found = _cloud_metrics(registered, true, protocol)
    return found | {"moved_m": float(np.linalg.norm(registered - placed, axis=-1).mean())}


def _map_points(
    scene_map: Map, poses: str, frames: NDArray[np.int64], per_frame: int, rng: np.random.Generator
) -> Array:
    """(n, 3) random points of the map's own world."""
    chosen = [
        pose.to_world(_some_finite(point_map.points_in_camera, per_frame, rng))
        for pose, point_map in scene_map.iter_points(poses, frames.tolist())
    ]
    return np.concatenate([np.empty((0, 3)), *chosen])


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


def _depths_of_point_maps(
    scene_map: Map, poses: str, frames: NDArray[np.int64]
) -> Iterator[tuple[int, Array]]:
    """Frames and their depth images (h, w), in the scale of the poses."""
    for pose, point_map in scene_map.iter_points(poses, _evenly(frames, MAX_DEPTH_FRAMES).tolist()):
        yield pose.frame, point_map.points_in_camera[..., 2] * np.exp(pose.log_scale)


def depth_metrics(depths: Iterable[tuple[int, Array]], source: Source, prefix: str = "") -> dict[str, float]:
    """Depth images (h, w) by frame against the source's, after one scale for the whole sequence.

    AbsRel, the shares within 5 % and 10 %, and the share of true depths that have an estimated one; none if
    the source has no depth.
    """
    estimated: list[Array] = [np.empty(0)]
    true: list[Array] = [np.empty(0)]
    rng = np.random.default_rng(0)
    for frame, depth in depths:
        true_depth_m = source.read(frame).depth_m
        if true_depth_m is None:
            continue
        pixels = rng.permutation(depth.size)[:MAX_DEPTH_VALUES]
        estimated.append(depth.ravel()[pixels])
        true.append(depth_at_cells(true_depth_m, depth.shape).ravel()[pixels])
    errors = metrics.depth_errors(np.concatenate(estimated), np.concatenate(true))
    named = {name: getattr(errors, name) for name in ("abs_rel", "within_5", "within_10", "coverage")}
    return (
        {} if np.isnan(errors.abs_rel) else {f"{prefix}depth_{name}": found for name, found in named.items()}
    )


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
    if not len(frames):
        return frames
    return frames[np.unique(np.linspace(0, len(frames) - 1, min(count, len(frames))).round().astype(int))]
