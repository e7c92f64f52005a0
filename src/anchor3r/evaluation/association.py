"""Trajectories that are to be compared: read from files or maps, and paired by time or order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.io.trajectories import TrajectoryFormat, read_trajectory
from anchor3r.store import best_poses, load_map
from anchor3r.trajectory import MAX_TIME_DIFFERENCE_S, MIN_ALIGNED_POSES, Trajectory, nearest_in_time

Indices = NDArray[np.intp]


def associate(
    first_s: NDArray[np.float64],
    second_s: NDArray[np.float64],
    max_difference_s: float = MAX_TIME_DIFFERENCE_S,
) -> tuple[Indices, Indices]:
    """Indices (k,), (k,) into ascending series: each stamp of the shorter with its nearest in the other."""
    if len(second_s) > len(first_s):
        return nearest_in_time(first_s, second_s, max_difference_s)
    of_second, of_first = nearest_in_time(second_s, first_s, max_difference_s)
    return of_first, of_second


def read_poses(
    path: Path, kind: TrajectoryFormat = TrajectoryFormat.AUTO, *, poses: str | None = None
) -> Trajectory:
    """Reads a trajectory file, or of a map (a folder) the largest component of the poses of that name.

    Without a name they are the refined ones where there are some.
    """
    if path.is_dir():
        with load_map(path) as scene_map:
            chosen = poses or best_poses(scene_map.trajectory_names())
            trajectory = scene_map.trajectory(chosen).largest_component()
            if not len(trajectory):
                raise Anchor3RError(scene_map.lack_of_poses())
            return trajectory
    return read_trajectory(path, kind)


def stamps_of(trajectory: Trajectory, path: Path) -> NDArray[np.float64]:
    """The ascending times (n,) of a trajectory read from `path`."""
    stamps_s = trajectory.timestamps_s
    if stamps_s is None:
        raise Anchor3RError(f"{path} has no time stamps, which this needs; name a trajectory that has")
    back = np.flatnonzero(np.diff(stamps_s) < 0)
    if len(back):
        raise Anchor3RError(
            f"pose {back[0] + 2} of {path}, at {stamps_s[back[0] + 1]:.6f} s, is earlier than the one before "
            "it; sort the file by time"
        )
    return stamps_s


def paired(
    estimate: Trajectory,
    estimate_path: Path,
    reference: Trajectory,
    reference_path: Path,
    max_difference_s: float = MAX_TIME_DIFFERENCE_S,
) -> tuple[Trajectory, Trajectory]:
    """The poses of both that belong together: by time where both have stamps, else in order.

    A map without a pose for every frame still knows which frames, that is which lines, its poses are of.
    """
    if estimate.timestamps_s is not None and reference.timestamps_s is not None:
        first_s, second_s = stamps_of(estimate, estimate_path), stamps_of(reference, reference_path)
        of_estimate, of_reference = associate(first_s, second_s, max_difference_s)
        if len(of_estimate) >= MIN_ALIGNED_POSES:
            return estimate.select(of_estimate), reference.select(of_reference)
        raise Anchor3RError(
            f"only {len(of_estimate)} poses of {estimate_path} ({_span(first_s)}) and {reference_path} "
            f"({_span(second_s)}) are within {max_difference_s} s of each other; check that both are of one "
            "recording and clock, or allow a larger --max-time-difference"
        )
    has_gaps = not np.array_equal(estimate.frames, np.arange(len(estimate)))
    if has_gaps and estimate.frames[-1] < len(reference):
        reference = reference.select(estimate.frames)
    if len(estimate) != len(reference) or len(estimate) < MIN_ALIGNED_POSES:
        raise Anchor3RError(
            f"{estimate_path} has {len(estimate)} poses and {reference_path} has {len(reference)}; without "
            "time stamps in both they are compared one by one, and need the same number, at least "
            f"{MIN_ALIGNED_POSES}"
        )
    return estimate, reference


def _span(stamps_s: NDArray[np.float64]) -> str:
    return f"{stamps_s[0]:.3f} to {stamps_s[-1]:.3f} s"
