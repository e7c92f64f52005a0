"""Trajectories as text that other programs read: TUM and EuRoC (time, centre, quaternion), KITTI (matrices).

All hold camera-to-world poses; their covariance is a table of its own. A KITTI file has no frame numbers:
line k is the k-th frame, so a frame without a pose has to be filled or refused. What some other systems write
is read only: whole matrices, and LongStream's table, which is world-to-camera.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anchor3r.errors import Anchor3RError, printable
from anchor3r.geometry import quat_from_rotation, rotation_from_quat
from anchor3r.io.files import replacing, utf8
from anchor3r.io.inputs import text_lines
from anchor3r.trajectory import Trajectory

_VALUE = "%.12g"
_LARGEST = 1e30  # a length or time that can still be squared and summed; KITTI's and EuRoC's are below 1e19
_ROTATION_TOLERANCE = 1e-2  # files in use have as few as three decimals


class Gaps(StrEnum):
    """What a KITTI file says of a frame that has no pose."""

    ERROR = "error"
    """Nothing: writing is refused."""
    HOLD = "hold"
    """The pose of the frame before; before the first pose, that pose."""


class TrajectoryFormat(StrEnum):
    """What a trajectory file is."""

    AUTO = "auto"
    """Told from its first line."""
    TUM = "tum"
    KITTI = "kitti"
    EUROC = "euroc"
    MATRICES = "matrices"
    """4×4 camera-to-world matrices, 16 numbers a line: VGGT-Long, Pi-Long, DA3-Streaming."""
    LONGSTREAM = "longstream"
    """Number of the frame, rotation row by row and translation, world-to-camera: LongStream."""


_NANOSECONDS = 1e14
"""Times from here on are in nanoseconds, as ORB-SLAM3 writes them for EuRoC: in seconds they would be three
million years after the epoch."""


def write_tum(path: Path | str, trajectory: Trajectory, *, comment: str = "") -> None:
    """One line a pose: timestamp tx ty tz qx qy qz qw."""
    if trajectory.timestamps_s is None:
        raise Anchor3RError(
            f"cannot write {path}: the TUM format needs times and this trajectory has none; use KITTI"
        )
    quat_wxyz = quat_from_rotation(trajectory.world_from_camera.rotation)
    columns = [trajectory.timestamps_s[:, None], trajectory.center, quat_wxyz[:, 1:], quat_wxyz[:, :1]]
    head = f"# {printable(comment)}\n" if comment else ""
    _write_lines(path, head, np.concatenate(columns, 1), "%.9f" + f" {_VALUE}" * 7)


def write_euroc(path: Path | str, trajectory: Trajectory) -> None:
    """The pose columns of EuRoC's ground truth: timestamp [ns], x, y, z, qw, qx, qy, qz."""
    if trajectory.timestamps_s is None:
        raise Anchor3RError(
            f"cannot write {path}: the EuRoC format needs times and this trajectory has none; use KITTI"
        )
    head = "#timestamp [ns],p_x,p_y,p_z,q_w,q_x,q_y,q_z\n"
    quat_wxyz = quat_from_rotation(trajectory.world_from_camera.rotation)
    columns = [trajectory.timestamps_s[:, None] * 1e9, trajectory.center, quat_wxyz]
    _write_lines(path, head, np.concatenate(columns, 1), "%.0f" + f",{_VALUE}" * 7)


def write_covariance(path: Path | str, trajectory: Trajectory) -> None:
    """A comma-separated line a pose: frame and the 36 entries of its covariance, row by row.

    Rows and columns are rotation (camera axes, rad), then centre (world axes, the map's lengths); nan where
    it is not known.
    """
    covariance = trajectory.covariance
    if covariance is None or not np.isfinite(covariance).any():
        raise Anchor3RError(
            f"cannot write {path}: these poses have no covariance; online poses have one, and refined ones "
            "of method joint, unless the graph is too large for it"
        )
    axes = ("rx", "ry", "rz", "cx", "cy", "cz")
    head = ",".join(["frame", *(f"{a}_{b}" for a in axes for b in axes)]) + "\n"
    values = np.concatenate([trajectory.frames[:, None], covariance.reshape(-1, 36)], 1)
    _write_lines(path, head, values, "%d" + f",{_VALUE}" * 36)


def write_kitti(
    path: Path | str, trajectory: Trajectory, *, frames: ArrayLike | None = None, gaps: Gaps = Gaps.ERROR
) -> None:
    """One line for each of `frames` (ascending indices; those of the trajectory if None): 3×4, row by row."""
    wanted = trajectory.frames if frames is None else np.asarray(frames, np.int64)
    at = np.searchsorted(trajectory.frames, wanted, side="right") - 1
    missing = wanted[(at < 0) | (trajectory.frames[at] != wanted)] if len(trajectory) else wanted
    if len(missing) and (gaps is Gaps.ERROR or not len(trajectory)):
        raise Anchor3RError(
            f"cannot write {path}: {len(missing)} of {len(wanted)} frames have no pose (the first is frame "
            f"{missing[0]}), and a KITTI file has no gaps; fill them with --gaps hold, or use TUM"
        )
    matrices = trajectory.world_from_camera.matrix()[np.maximum(at, 0), :3]
    _write_lines(path, "", matrices.reshape(-1, 12), " ".join([_VALUE] * 12))


def read_tum(path: Path | str) -> Trajectory:
    """Reads what `write_tum` and the TUM tools write; frames are numbered as they come."""
    values = _read_lines(path, 8, "timestamp tx ty tz qx qy qz qw")
    stamps_s = values[:, 0] * (1e-9 if values[:, 0].max() >= _NANOSECONDS else 1.0)
    return _from_quaternions(path, stamps_s, values[:, 1:4], values[:, [7, 4, 5, 6]])


def read_kitti(path: Path | str) -> Trajectory:
    """Reads what `write_kitti` and KITTI's own files hold; it has no times."""
    matrices = _read_lines(path, 12, "the 12 entries of a 3×4 matrix").reshape(-1, 3, 4)
    return _from_matrices(path, matrices)


def read_matrices(path: Path | str) -> Trajectory:
    """Reads 4×4 camera-to-world matrices, one a line; it has no times."""
    matrices = _read_lines(path, 16, "the 16 entries of a 4×4 matrix").reshape(-1, 4, 4)
    last = np.abs(matrices[:, 3] - [0, 0, 0, 1]).max(1)
    _refuse(path, last > _ROTATION_TOLERANCE, "the last row of the matrix is not 0 0 0 1")
    return _from_matrices(path, matrices[:, :3])


def read_longstream(path: Path | str) -> Trajectory:
    """Reads LongStream's abs_pose.txt: frame, rotation row by row, translation, world-to-camera."""
    values = _read_lines(path, 13, "a frame's number, 9 entries of its rotation and 3 of its translation")
    number = values[:, 0]
    not_next = np.append(False, np.diff(number) <= 0)
    _refuse(path, (number < 0) | (number % 1 != 0) | not_next, "frames are not numbered in ascending order")
    rotation, translation = values[:, 1:10].reshape(-1, 3, 3), values[:, 10:]
    inverse = rotation.swapaxes(1, 2)
    center = -(inverse @ translation[..., None])
    return _from_matrices(path, np.concatenate([inverse, center], -1), number.astype(np.int64))


def read_euroc(path: Path | str) -> Trajectory:
    """Reads EuRoC ground truth, comma-separated; columns after the pose are ignored."""
    values = _read_lines(path, 8, "timestamp [ns], x, y, z, qw, qx, qy, qz", separator=",")
    return _from_quaternions(path, values[:, 0] / 1e9, values[:, 1:4], values[:, 4:])


_READERS: dict[TrajectoryFormat, Callable[[Path], Trajectory]] = {
    TrajectoryFormat.TUM: read_tum,
    TrajectoryFormat.KITTI: read_kitti,
    TrajectoryFormat.EUROC: read_euroc,
    TrajectoryFormat.MATRICES: read_matrices,
    TrajectoryFormat.LONGSTREAM: read_longstream,
}


def read_trajectory(path: Path, kind: TrajectoryFormat = TrajectoryFormat.AUTO) -> Trajectory:
    """Reads a trajectory file of one of the formats."""
    return _READERS[_detected(path) if kind is TrajectoryFormat.AUTO else kind](path)


def _detected(path: Path) -> TrajectoryFormat:
    number, line = next(_data_lines(path), (0, ""))
    if "," in line:
        return TrajectoryFormat.EUROC
    count = len(line.split())
    by_columns = {
        8: TrajectoryFormat.TUM,
        12: TrajectoryFormat.KITTI,
        13: TrajectoryFormat.LONGSTREAM,
        16: TrajectoryFormat.MATRICES,
    }
    if count not in by_columns:
        found = f"line {number} has {count} columns" if count else "it is empty"
        raise Anchor3RError(
            f"{path} is no trajectory that is known: {found}, but TUM has 8, KITTI 12, "
            "LongStream 13, matrices 16, and EuRoC commas"
        )
    return by_columns[count]


def _from_matrices(
    path: Path | str, world_from_camera: NDArray[np.float64], frames: NDArray[np.int64] | None = None
) -> Trajectory:
    """Of matrices (n, 3, 4), of the frames with these numbers, or of all in order."""
    rotation = world_from_camera[:, :, :3]
    error = np.abs(rotation @ rotation.swapaxes(1, 2) - np.eye(3)).max((1, 2), initial=0)
    bad = (error > _ROTATION_TOLERANCE) | (np.linalg.det(rotation) < 0)
    _refuse(path, bad, "the left 3×3 block is not a rotation")
    return Trajectory(
        frames=np.arange(len(rotation)) if frames is None else frames,
        rotation=rotation.swapaxes(1, 2),
        center=world_from_camera[:, :, 3],
    )


def _from_quaternions(
    path: Path | str,
    timestamps_s: NDArray[np.float64],
    center: NDArray[np.float64],
    world_from_camera_wxyz: NDArray[np.float64],
) -> Trajectory:
    norm = np.linalg.norm(world_from_camera_wxyz, axis=1)
    _refuse(path, np.abs(norm - 1) > _ROTATION_TOLERANCE, "the quaternion is not of unit length")
    world_from_camera = rotation_from_quat(world_from_camera_wxyz).astype(np.float64)
    return Trajectory(
        frames=np.arange(len(center)),
        timestamps_s=timestamps_s,
        rotation=world_from_camera.swapaxes(1, 2),
        center=center,
    )


def _write_lines(path: Path | str, head: str, values: NDArray[Any], line_format: str) -> None:
    line = line_format + "\n"
    text = head + "".join(line % tuple(row) for row in values.tolist())
    with replacing(path) as file:
        file.write(utf8(text))


def _read_lines(
    path: Path | str, count: int, meaning: str, *, separator: str | None = None
) -> NDArray[np.float64]:
    """(n, count) numbers of the lines that are neither empty nor comments.

    Lines separated by blanks have no more than that; tables with a separator may have further columns.
    """
    rows = []
    for number, line in _data_lines(path):
        words = line.split(separator)
        try:
            row = [float(word) for word in (words[:count] if separator else words)]
        except ValueError:
            row = []
        if len(row) != count or not all(abs(value) <= _LARGEST for value in row):
            raise Anchor3RError(f"{path}, line {number}: expected {meaning}, found {line.strip()[:80]!r}")
        rows.append(row)
    if not rows:
        raise Anchor3RError(f"{path} holds no poses; expected lines of {meaning}")
    return np.array(rows)


def _data_lines(path: Path | str) -> Iterator[tuple[int, str]]:
    for number, line in text_lines(path):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line


def _refuse(path: Path | str, bad: NDArray[np.bool_], reason: str) -> None:
    """Names the line of the first bad row."""
    if bad.any():
        number, _ = list(_data_lines(path))[int(np.argmax(bad))]
        raise Anchor3RError(f"{path}, line {number}: {reason}; check the file's format")
