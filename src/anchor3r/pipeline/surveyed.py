"""Cameras that somebody has surveyed: a text file of frames, where they were, and which way they looked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geodesy import WORLD_FROM_LOCAL
from anchor3r.geometry import rotation_from_quat
from anchor3r.io.tables import parse_numbers, read_fields
from anchor3r.pose_graph.priors import Poses, Positions, PriorKind
from anchor3r.trajectory import Trajectory

Float = NDArray[np.float64]

_POSITION, _POSE = 5, 9
"""Numbers of a line: frame x y z sigma, or frame x y z qx qy qz qw sigma."""
_SIGMA_DEG = 1.0
"""Of a surveyed direction: what a tripod and a compass give."""
_LEAST = 3
"""Positions that fix place, direction and scale."""


def read_surveyed(
    path: Path, trajectory: Trajectory, *, is_scale_known: bool
) -> Iterator[tuple[PriorKind, list[str]]]:
    """Priors of each kind in the file, and what to call them. is_scale_known: by other priors."""
    names, rows = [], []
    for number, fields in read_fields(path):
        if len(fields) not in (_POSITION, _POSE):
            raise Anchor3RError(
                f"line {number} of {path} has {len(fields)} numbers; it takes 'frame x y z sigma' or "
                "'frame x y z qx qy qz qw sigma'"
            )
        values = np.array(parse_numbers(path, number, fields, len(fields)), np.float64)
        _check(path, number, values, trajectory)
        names.append(f"line {number}")
        rows.append(values)
    are_poses = [k for k, values in enumerate(rows) if len(values) == _POSE]
    are_positions = [k for k, values in enumerate(rows) if len(values) == _POSITION]
    least = _LEAST if not are_poses else 1 if is_scale_known else 2
    if len(rows) < least:
        raise Anchor3RError(
            f"{path} has {len(rows)} surveyed cameras, which leave the map's scale or direction open; add "
            f"others: {_LEAST} without directions, two if one has its direction, or a length beside that "
            "(--distance, --speed, --camera-height)"
        )
    for make, which in ((_poses, are_poses), (_positions, are_positions)):
        if which:
            yield make(np.array([rows[k] for k in which])), [names[k] for k in which]


def _check(path: Path, number: int, values: Float, trajectory: Trajectory) -> None:
    where = f"line {number} of {path}"
    if not np.isfinite(values).all():
        raise Anchor3RError(f"{where} has something that is not a number; correct it")
    if values[0] not in trajectory.frames:
        raise Anchor3RError(f"{where}: frame {values[0]:g} has no pose; name frames that have one")
    if values[-1] <= 0:
        raise Anchor3RError(f"{where}: the standard deviation must be positive, not {values[-1]:g}")
    if len(values) == _POSE and abs(np.linalg.norm(values[4:8]) - 1) > 0.01:
        raise Anchor3RError(f"{where}: qx qy qz qw is no unit quaternion; correct it")


def _positions(values: Float) -> Positions:
    frames = values[:, 0].astype(np.int64)
    return Positions(
        rows=np.stack([frames, frames], 1),
        fraction=np.zeros(len(frames)),
        position=values[:, 1:4] @ WORLD_FROM_LOCAL.T,
        information=values[:, 4, None, None] ** -2.0 * np.eye(3),
    )


def _poses(values: Float) -> Poses:
    quat_wxyz = values[:, [7, 4, 5, 6]] / np.linalg.norm(values[:, 4:8], axis=1)[:, None]
    information = np.zeros((len(values), 6, 6))
    information[:, :3, :3] = np.radians(_SIGMA_DEG) ** -2.0 * np.eye(3)
    information[:, 3:, 3:] = values[:, 8, None, None] ** -2.0 * np.eye(3)
    local_from_camera = rotation_from_quat(quat_wxyz)
    return Poses(
        rows=values[:, :1].astype(np.int64),
        rotation=np.swapaxes(WORLD_FROM_LOCAL @ local_from_camera, 1, 2),
        center=values[:, 1:4] @ WORLD_FROM_LOCAL.T,
        information=information,
    )
