"""Poses of frames: one of them (`FramePose`), and all of a map or a file in columns (`Trajectory`)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anchor3r.geometry import SE3, Sim3, rotation_angle, so3_exp, so3_log, umeyama

ONLY_TURNED = "the camera only turned: its rotations are known, but no depth, so that there are no points"
STOOD_STILL = "the camera stood still: its poses are all one, without depth, so that there are no points"
_HARDLY_A_TURN = 1e-3
"""Radians, about a pixel of most images: what noise and compression make of a camera that stands still."""
_ONLY_ROUNDING = 1e-9
"""Extent of a path, in the map's own unit, that rounding gives to a camera without translation."""
_SHUFFLES, _CHANCE = 200, 0.05
"""Orders that places are put in at random, and the part of them that may be as short as the true one."""
MAX_TIME_DIFFERENCE_S = 0.02
"""Between poses, or a frame and a pose, that are taken for one moment; as in the tools of TUM RGB-D."""
MIN_ALIGNED_POSES = 3
"""Fewer do not fix an alignment with another trajectory."""


@dataclass(frozen=True, kw_only=True)
class FramePose:
    """Where one frame lies in its component's world, and the scale of its own window there."""

    frame: int
    rotation: NDArray[np.float64]
    """(3, 3) camera_from_world"""
    center: NDArray[np.float64]
    """(3,) in the world"""
    covariance: NDArray[np.float64] | None = None
    """(6, 6) rotation (camera axes, rad²), centre (world axes, squared world lengths): of online poses
    relative to the frame before, of refined ones to the trajectory as a whole; None where nothing is
    measured."""
    component: int = 0
    """Poses of different components are not related by any measurement."""
    log_scale: float = 0.0
    """Logarithm of the scale that brings lengths of the frame's own window and point map to the world's."""
    log_scale_sigma: float = 0.0
    """Spread of `log_scale`, as far as it was measured."""

    @property
    def camera_from_world(self) -> SE3:
        return SE3(self.rotation, -self.rotation @ self.center)

    def to_world(self, points_in_camera: ArrayLike) -> NDArray[np.float32]:
        """Points (..., 3) of the frame's own point map -> (..., 3) in the world."""
        points = np.asarray(points_in_camera, np.float64)
        world_from_points = np.exp(self.log_scale) * self.rotation.T
        return (points @ world_from_points.T + self.center).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """Columns of n poses in the order of their frames."""

    frames: NDArray[np.int64]
    """(n,) indices in the source, ascending"""
    rotation: NDArray[np.float64]
    """(n, 3, 3) camera_from_world"""
    center: NDArray[np.float64]
    """(n, 3) in the world"""
    timestamps_s: NDArray[np.float64] | None = None
    """(n,) on the source's clock; None where the format has none"""
    component: NDArray[np.int64] | None = None
    """(n,); None is one component"""
    log_scale: NDArray[np.float64] | None = None
    """(n,) as in `FramePose`; None is one scale throughout"""
    covariance: NDArray[np.float64] | None = None
    """(n, 6, 6) as in `FramePose`, NaN where unknown; None if it is nowhere known"""

    def __post_init__(self) -> None:
        for field in fields(self):
            column = getattr(self, field.name)
            if column is not None and len(column) != len(self.frames):
                raise ValueError(f"{field.name} has {len(column)} entries for {len(self.frames)} frames")

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def camera_from_world(self) -> SE3:
        """(n,) poses"""
        return SE3.from_center(self.rotation, self.center)

    @property
    def world_from_camera(self) -> SE3:
        """(n,) poses"""
        return SE3(np.swapaxes(self.rotation, -1, -2), self.center)

    def select(self, which: ArrayLike | slice) -> Trajectory:
        """The poses of a boolean mask, an index array or a slice."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: column[which] for name, column in columns.items() if column is not None}
        return Trajectory(**given)

    def largest_component(self) -> Trajectory:
        """The poses of the component that has most of them."""
        if self.component is None or not len(self):
            return self
        labels, counts = np.unique(self.component, return_counts=True)
        return self.select(self.component == labels[np.argmax(counts)])

    def path_length(self) -> float:
        """Length of the way from pose to pose; a step from one component to another has none."""
        return float(distance_along(self.center, self.component)[-1]) if len(self) else 0.0

    def only_turns(self) -> bool:
        """Whether the camera has several poses and stays in one place, or in one place of each component."""
        return len(self) > 1 and self.path_length() <= _ONLY_ROUNDING * len(self)

    def stands_still(self) -> bool:
        """Whether the camera does not even turn."""
        turn = rotation_angle(self.rotation @ self.rotation[:1].swapaxes(-1, -2))
        return self.only_turns() and bool(turn.max() < _HARDLY_A_TURN)

    def lack_of_translation(self) -> str | None:
        """What to say of a camera that has several poses in one place; None if it moves."""
        if not self.only_turns():
            return None
        return STOOD_STILL if self.stands_still() else ONLY_TURNED

    def is_in_order(self) -> bool:
        """Whether each pose lies near the one before, as on a path: chance would make so short a path of the
        same places in one case out of twenty at most."""
        part, rng = self.largest_component(), np.random.default_rng(0)
        length = part.path_length()
        shuffled = [distance_along(rng.permutation(part.center), None)[-1] for _ in range(_SHUFFLES)]
        return sum(other <= length for other in shuffled) < _CHANCE * _SHUFFLES

    def pose(self, k: int) -> FramePose:
        """The k-th pose by itself."""
        return FramePose(
            frame=int(self.frames[k]),
            rotation=self.rotation[k],
            center=self.center[k],
            covariance=None if self.covariance is None else self.covariance[k],
            component=0 if self.component is None else int(self.component[k]),
            log_scale=0.0 if self.log_scale is None else float(self.log_scale[k]),
        )


def distance_along(
    center: NDArray[np.floating], component: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """(n,) length of the path over centres (n, 3) up to each; a step from component to component has none."""
    step = np.linalg.norm(np.diff(center, axis=0), axis=1)
    if component is not None:
        step = np.where(np.diff(component) == 0, step, 0.0)
    return np.concatenate([[0.0], np.cumsum(step)])


def estimated_from_true_world(estimated: Trajectory, true: Trajectory) -> Sim3 | None:
    """The similarity that moves true centres onto the estimated ones of the same frames, by least squares.

    None if fewer than three frames have both poses, or if either camera does not move.
    """
    _, of_true, of_estimated = np.intersect1d(true.frames, estimated.frames, return_indices=True)
    a, b = true.center[of_true], estimated.center[of_estimated]
    if len(a) < MIN_ALIGNED_POSES or np.ptp(a, axis=0).max() == 0 or np.ptp(b, axis=0).max() == 0:
        return None
    return umeyama(a, b)


def bend_by_focal_length(trajectory: Trajectory, relative: float) -> float | None:
    """What a focal length that is too large by a part makes of a path: error of position (RMSE, after a
    similarity) over its length; None where the camera does not move.

    The images stay as they are if rotations about the axes across the view, and the ratio of steps across it
    to those along it, are less by as much.
    """
    path, less = trajectory.largest_component(), np.array([1, 1, 1 + relative]) / (1 + relative)
    if len(path) < MIN_ALIGNED_POSES or path.only_turns():
        return None
    turns = so3_exp(less * so3_log(path.rotation[1:] @ path.rotation[:-1].swapaxes(-1, -2)))
    steps = less * np.einsum("nij,nj->ni", path.rotation[:-1], np.diff(path.center, axis=0))
    rotation, center = path.rotation.copy(), path.center.copy()
    for k, (turn, step) in enumerate(zip(turns, steps, strict=True)):
        center[k + 1] = center[k] + rotation[k].T @ step
        rotation[k + 1] = turn @ rotation[k]
    bent_from_path = umeyama(path.center, center)
    error = bent_from_path.inverse().apply(center) - path.center
    return float(np.sqrt((error**2).sum(1).mean()) / path.path_length())


def nearest_in_time(
    query_s: NDArray[np.float64], stamps_s: NDArray[np.float64], max_difference_s: float
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Of each query (n,) the nearest of the ascending stamps (m,), if near enough: indices (k,) into both."""
    if not len(stamps_s):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    after = np.clip(np.searchsorted(stamps_s, query_s, side="right"), 0, len(stamps_s) - 1)
    before = np.maximum(after - 1, 0)
    # At equal distance the earlier one: the same choice every time, and evo's.
    earlier = np.abs(query_s - stamps_s[before]) <= np.abs(stamps_s[after] - query_s)
    nearest = np.where(earlier, before, after)
    near = np.abs(stamps_s[nearest] - query_s) <= max_difference_s
    return np.flatnonzero(near), nearest[near]
