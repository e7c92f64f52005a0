"""What a picture of a map shows: its points, the paths of the camera, and which way is up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.export.frustums import frustum_depth, frustum_lines
from anchor3r.io.pointcloud import Cloud, drawn_by_lot
from anchor3r.store import Map
from anchor3r.trajectory import Trajectory, estimated_from_true_world

TRUTH = "ground truth"
"""The path of this name is drawn dashed."""
MAX_FRAMES = 2000
"""Frames whose points are drawn, evenly chosen from more."""
MAX_POINTS = 1_500_000
NUM_CAMERAS = 16
_FARTHEST = 12.0
"""Points farther from their camera than so many times the median depth are mostly noise."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """n points and any number of paths in one world."""

    points: NDArray[np.float32]
    """(n, 3)"""
    colours: NDArray[np.uint8]
    """(n, 3) RGB"""
    below: NDArray[np.bool_]
    """(n,) whether a point is not higher than the camera that saw it, so that no roof hides the path"""
    paths: dict[str, list[NDArray[np.float64]]]
    """By name, the pieces (m, 3) of each; the first one is the one that the points hang on"""
    cameras: NDArray[np.float64]
    """(k, m, 3) lines that show some of the cameras"""
    up: NDArray[np.float64]
    """(3,) of length one"""
    metres_per_unit: float | None
    """None where nothing says how long a unit is."""


def scene_of(source: Map, poses: str, *, min_confidence: float = 0.0, max_points: int = MAX_POINTS) -> Scene:
    """The map as the chosen poses have it, the other ones and the ground truth beside them."""
    trajectory = source.trajectory(poses)
    if not len(trajectory):
        raise Anchor3RError(f"{source.lack_of_poses()} There is nothing to draw.")
    up = _up(trajectory)
    # The lot draws points with a flag: whether they are below the camera rides in place of the confidence.
    cloud = drawn_by_lot(_flagged(source, trajectory, poses, up, min_confidence), max_points)
    paths = {poses: _pieces(trajectory)}
    paths |= {name: _pieces(source.trajectory(name)) for name in source.trajectory_names() if name != poses}
    truth = source.true_trajectory()
    world_from_truth = None if truth is None else estimated_from_true_world(trajectory, truth)
    if truth is not None and world_from_truth is not None:
        paths[TRUTH] = [np.asarray(world_from_truth.apply(truth.center), np.float64)]
    return Scene(
        points=cloud.points,
        colours=cloud.colours,
        below=cloud.confidence > 0,
        paths=paths,
        cameras=_some_cameras(source, trajectory),
        up=up,
        metres_per_unit=None if world_from_truth is None else float(1 / world_from_truth.scale),
    )


def _some_cameras(source: Map, trajectory: Trajectory) -> NDArray[np.float64]:
    some = trajectory.select(np.unique(np.linspace(0, len(trajectory) - 1, NUM_CAMERAS).astype(int)))
    camera = source.intrinsics(int(trajectory.frames[0]))
    return frustum_lines(some, camera, frustum_depth(trajectory))


def _up(trajectory: Trajectory) -> NDArray[np.float64]:
    """Cameras are held upright on average: the mean of their upward axes."""
    mean = -trajectory.rotation[:, 1].mean(0)
    length = float(np.linalg.norm(mean))
    return mean / length if length > 1e-3 else np.array([0.0, -1.0, 0.0])


def _flagged(
    source: Map, trajectory: Trajectory, poses: str, up: NDArray[np.float64], min_confidence: float
) -> Iterator[Cloud]:
    frames = trajectory.frames[:: -(-len(trajectory) // MAX_FRAMES)].tolist()
    for pose, point_map in source.iter_points(poses, frames):
        points = point_map.points_in_camera
        good = np.isfinite(points).all(-1) & (point_map.confidence >= min_confidence)
        if not good.any():
            continue
        distance = np.linalg.norm(points[good], axis=-1)
        good[good] &= distance <= _FARTHEST * np.median(distance)
        world = pose.to_world(points[good])
        below = (world - pose.center) @ up <= 0
        yield Cloud(world, point_map.colours[good], below.astype(np.float32))


def _pieces(trajectory: Trajectory) -> list[NDArray[np.float64]]:
    """One a component."""
    if trajectory.component is None:
        return [trajectory.center]
    return [trajectory.center[trajectory.component == c] for c in np.unique(trajectory.component)]
