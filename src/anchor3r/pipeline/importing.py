"""Poses of any other system as a map: loops, refinement, evaluation, viewer and exports then work on them.

What the system says of neighbouring frames becomes the edges of sliding windows, as if a predictor had
measured them. Such edges agree with each other perfectly, whatever their error; how far to trust them is
therefore stated, as a random walk from frame to frame.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.colmap_models import read_model
from anchor3r.datasets.files import FolderFiles
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, rotation_from_quat
from anchor3r.io.inputs import read_arrays
from anchor3r.io.tables import rigid_motions
from anchor3r.io.trajectories import TrajectoryFormat, read_trajectory
from anchor3r.limits import LIMITS
from anchor3r.pipeline.mapping import MappingRun
from anchor3r.pipeline.settings import MapSettings
from anchor3r.predictors.ground_truth import point_map_of
from anchor3r.predictors.interface import Predictor, WindowPrediction, WindowStatus
from anchor3r.snapshots import from_arrays, to_arrays
from anchor3r.sources import Frame, Source
from anchor3r.sources.images import ImageSequence, natural_key, read_depth
from anchor3r.trajectory import MAX_TIME_DIFFERENCE_S, Trajectory, nearest_in_time

_MAX_GRID_SIDE = 128
"""Longer side of the point maps that are kept of depth images."""


_LARGEST_SETTING = 1e12


@dataclass(frozen=True, kw_only=True)
class ImportSettings:
    """How a trajectory becomes a map."""

    pairing: Literal["auto", "time", "order"] = "auto"
    """Which pose belongs to which frame: the nearest in time, or the k-th to the k-th. If auto, by time where
    the file has times; COLMAP models name their images."""
    max_time_difference: float = MAX_TIME_DIFFERENCE_S
    """Seconds between a frame and its pose at most."""
    world_to_camera: bool = False
    """Matrices of .npy and .npz files are world-to-camera instead of camera-to-world."""
    window: int = 10
    """Frames in a window."""
    rotation_sigma_deg: float = 0.1
    """How far the rotation from one frame to the next may be off, one standard deviation."""
    translation_sigma: float = 0.02
    """How far the step from one frame to the next may be off, as a part of its length."""
    depth_units: float = 1000.0
    """Of 16-bit depth images: their value at distance 1 of the trajectory (1000: metres and millimetres)."""
    keep_images: bool = True
    """Keep a small JPEG of every frame, for loop closure and viewing."""

    def __post_init__(self) -> None:
        if not 2 <= self.window <= LIMITS.window:
            raise Anchor3RError(f"--window must lie in 2 … {LIMITS.window}, not {self.window}")
        positive = (
            self.max_time_difference,
            self.rotation_sigma_deg,
            self.translation_sigma,
            self.depth_units,
        )
        if not all(0 < value < _LARGEST_SETTING for value in positive):
            raise Anchor3RError(
                "max_time_difference, rotation_sigma_deg, translation_sigma and depth_units must be positive "
                f"and below {_LARGEST_SETTING:g}"
            )


_DEFAULT = ImportSettings()


def import_trajectory(
    trajectory: Path | str,
    source: Source,
    out: Path | str,
    settings: ImportSettings = _DEFAULT,
    *,
    depth: Path | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Makes a map of a source with the poses of another system, and returns a summary (JSON).

    trajectory: a TUM, KITTI or EuRoC file, lines of 4×4 matrices (VGGT-Long, DA3-Streaming), LongStream's
    abs_pose.txt, a COLMAP model (folder, images.txt or images.bin), or .npy or .npz with matrices (n, 4, 4)
    or (n, 3, 4).
    source: the frames that the system has seen; those without a pose become gaps.
    depth: a folder with a depth image (16-bit .png) or array (.npy) for each frame, in the poses' scale.
    """
    poses = _read_poses(Path(trajectory), source, settings)
    name = f"poses of {Path(trajectory).name}"
    predictor = ImportedPoses(poses, name, settings, _DepthFiles.of(depth, settings.depth_units))
    kept = MapSettings(keep_images=settings.keep_images, window=settings.window)
    with MappingRun(source, predictor, out, kept, overwrite=overwrite) as run:
        for _ in run:
            pass
    if not predictor.num_found:
        raise Anchor3RError(
            f"no frame of {source.uri} has a pose in {trajectory}"
            + (f" (of {_span(poses)})" if poses.by_time else "")
            + "; check that both are of one recording, or pair them by order"
        )
    return run.summary()


@dataclass(frozen=True)
class PairedPoses:
    """Poses in the order of what frames are found by: their time, or their index in the source."""

    key: NDArray[np.float64]
    """(n,) ascending times in seconds, or indices"""
    camera_from_world: SE3
    """(n,)"""
    by_time: bool
    tolerance: float
    group: NDArray[np.int64] | None = None
    """(n,) poses of different groups are in worlds of their own; None is one group"""

    def of(self, frame: Frame) -> tuple[SE3, int] | None:
        """The pose of a frame, and its group."""
        query = np.array([frame.timestamp_s if self.by_time else frame.index], np.float64)
        _, nearest = nearest_in_time(query, self.key, self.tolerance)
        if not len(nearest):
            return None
        row = int(nearest[0])
        return self.camera_from_world[row], 0 if self.group is None else int(self.group[row])


def _read_poses(path: Path, source: Source, settings: ImportSettings) -> PairedPoses:
    model = path if path.is_dir() else path.parent
    if path.is_dir() or path.name in ("images.txt", "images.bin"):
        return _colmap_poses(model, source)
    matrices = path.suffix in (".npy", ".npz")
    trajectory = _matrices(path, settings) if matrices else read_trajectory(path, TrajectoryFormat.AUTO)
    by_time = settings.pairing == "time" or (
        settings.pairing == "auto" and trajectory.timestamps_s is not None
    )
    if not by_time:
        index = source.wanted.start + source.wanted.step * trajectory.frames.astype(np.float64)
        return PairedPoses(index, trajectory.camera_from_world, False, 0.0)
    if trajectory.timestamps_s is None:
        raise Anchor3RError(f"{path} has no times to pair its poses by; pair them by order")
    order = np.argsort(trajectory.timestamps_s, kind="stable")
    ordered = trajectory.select(order)
    assert ordered.timestamps_s is not None
    return PairedPoses(ordered.timestamps_s, ordered.camera_from_world, True, settings.max_time_difference)


def _matrices(path: Path, settings: ImportSettings) -> Trajectory:
    """Of an array (n, 4, 4) or (n, 3, 4), in .npz the only one of that shape beside `timestamps`."""
    arrays = read_arrays(path)
    for name, array in arrays.items():
        if array.dtype.kind not in "iuf":
            raise Anchor3RError(f"{path}: array {name!r} should be numbers, is {array.dtype}")
    found = [a for a in arrays.values() if a.ndim == 3 and a.shape[1:] in ((4, 4), (3, 4)) and len(a)]
    if len(found) != 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise Anchor3RError(f"{path} should have one array (n, 4, 4) or (n, 3, 4) of poses, but has {shapes}")
    poses = rigid_motions(found[0][:, :3].astype(np.float64), path)
    camera_from_world = poses if settings.world_to_camera else poses.inverse()
    stamps = arrays.get("timestamps")
    if stamps is not None and (stamps.shape != (len(poses),) or not np.isfinite(stamps).all()):
        raise Anchor3RError(f"{path}: 'timestamps' should be {len(poses)} finite numbers, one for each pose")
    return Trajectory(
        frames=np.arange(len(poses)),
        rotation=np.asarray(camera_from_world.rotation, np.float64),
        center=np.asarray(camera_from_world.center(), np.float64),
        timestamps_s=None if stamps is None else np.asarray(stamps, np.float64),
    )


def _colmap_poses(folder: Path, source: Source) -> PairedPoses:
    """Poses of a COLMAP model, whose images are found in the source by their names."""
    if not isinstance(source, ImageSequence):
        raise Anchor3RError(
            f"{folder} is a COLMAP model, whose poses belong to named images, but {source.uri} is no folder "
            "of images; name the folder that COLMAP has seen"
        )
    folder = Path(os.path.realpath(folder))
    _, images = read_model(FolderFiles(folder.parent), folder.name)
    index_of = {Path(path).name: k for k, path in enumerate(source.paths)}
    found = sorted(
        (index_of[name], k) for k, image in enumerate(images) if (name := Path(image.name).name) in index_of
    )
    rows = [k for _, k in found]
    quat_wxyz = np.array([images[k].quat_wxyz for k in rows]).reshape(-1, 4)
    translation = np.array([images[k].translation for k in rows]).reshape(-1, 3)
    index = np.array([i for i, _ in found], np.float64)
    return PairedPoses(index, SE3(rotation_from_quat(quat_wxyz), translation), False, 0.0)


def _span(poses: PairedPoses) -> str:
    return f"{poses.key[0]:.3f} to {poses.key[-1]:.3f} s" if len(poses.key) else "no pose"


@dataclass(frozen=True)
class _DepthFiles:
    """A depth file for each frame, in natural order."""

    paths: Sequence[Path]
    units: float

    @staticmethod
    def of(folder: Path | None, units: float) -> _DepthFiles | None:
        if folder is None:
            return None
        found = [path for path in folder.glob("*") if path.suffix in (".png", ".npy")]
        if not found:
            raise Anchor3RError(f"{folder} has neither .png nor .npy files of depth; check the path")
        return _DepthFiles(sorted(found, key=lambda path: natural_key(path.name)), units)

    def read(self, number: int, frame: Frame) -> NDArray[np.float32]:
        """(H, W) of the number-th frame that is mapped."""
        if number >= len(self.paths):
            raise Anchor3RError(
                f"{self.paths[0].parent} has {len(self.paths)} depth files, fewer than there are frames"
            )
        path, (height, width) = self.paths[number], frame.image.shape[:2]
        if path.suffix == ".png":
            return read_depth(path, width, height, self.units)
        arrays = [array.squeeze() for array in read_arrays(path).values()]
        depth = arrays[0] if len(arrays) == 1 else np.empty(0)
        if depth.shape != (height, width) or depth.dtype.kind not in "iuf":
            shapes = ", ".join(f"{array.shape} of {array.dtype}" for array in arrays) or "nothing"
            raise Anchor3RError(
                f"{path} holds {shapes}, but its image is {width}×{height}; write one array of numbers of "
                "that size"
            )
        return np.nan_to_num(depth.astype(np.float32))


@dataclass
class _State:
    """What the windows of a stream need of the frames before."""

    number: int
    """Frames seen so far"""
    num_found: int
    """of which so many had a pose"""
    recent: list[_Posed]
    """The latest ones that had, oldest first"""


@dataclass(frozen=True)
class _Posed:
    index: int
    camera_from_world: SE3
    group: int


class ImportedPoses(Predictor):
    """Windows of poses that are known already."""

    def __init__(
        self, poses: PairedPoses, name: str, settings: ImportSettings, depth: _DepthFiles | None
    ) -> None:
        """`name` says where the poses come from."""
        self._poses, self._name, self._settings, self._depth = poses, name, settings, depth
        self.reset()

    @property
    def name(self) -> str:
        return self._name

    @property
    def window(self) -> int:
        return self._settings.window

    @property
    def settings(self) -> dict[str, Any]:
        matrices = self._poses.camera_from_world.matrix()
        digest = hashlib.sha256(np.ascontiguousarray(matrices).tobytes()).hexdigest()
        return asdict(self._settings) | {"poses": digest, "depth": self._depth is not None}

    @property
    def num_found(self) -> int:
        """Frames of the stream that had a pose."""
        return self._state.num_found

    def reset(self) -> None:
        self._state = _State(number=0, num_found=0, recent=[])
        self._recent: dict[int, deque[_Posed]] = {}

    def step(self, frame: Frame) -> WindowPrediction:
        number, found = self._state.number, self._poses.of(frame)
        self._state.number += 1
        if found is None:
            return _window(frame, [], None, self._settings)
        pose, group = found
        recent = self._recent_of(group)
        members = list(recent)
        recent.append(_Posed(frame.index, pose, group))
        self._state.num_found += 1
        if self._depth is not None:
            frame = replace(frame, depth_m=self._depth.read(number, frame))
        return _window(frame, members, pose, self._settings)

    def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
        raise Anchor3RError("imported poses measure no loops; name a predictor that does, such as features")

    def snapshot(self) -> dict[str, NDArray[Any]]:
        recent = [posed for group in self._recent.values() for posed in group]
        return to_arrays(replace(self._state, recent=recent))

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._state = from_arrays(_State, state)
        self._recent = {}
        for posed in self._state.recent:
            self._recent_of(posed.group).append(posed)

    def _recent_of(self, group: int) -> deque[_Posed]:
        """The latest frames of a group, oldest first."""
        return self._recent.setdefault(group, deque(maxlen=self.window - 1))


def _window(
    frame: Frame, members: Sequence[_Posed], pose: SE3 | None, settings: ImportSettings
) -> WindowPrediction:
    """The edges from a frame to those before it, with the spread of a random walk over the frames between."""
    n = len(members)
    member_from_world = SE3(
        np.array([member.camera_from_world.rotation for member in members]).reshape(-1, 3, 3),
        np.array([member.camera_from_world.translation for member in members]).reshape(-1, 3),
    )
    member_from_anchor = member_from_world if pose is None else member_from_world @ pose.inverse()
    covariance = np.zeros((n, 6, 6))
    if pose is not None and n:
        path = np.concatenate([member_from_world.center(), pose.center()[None]])
        step_sq = (np.diff(path, axis=0) ** 2).sum(1)
        least = 1e-12 * max(float(step_sq.max()), 1.0)  # of a camera that stands still
        walked_sq = np.maximum(np.cumsum(step_sq[::-1])[::-1], least)
        axes = np.arange(3)
        covariance[:, axes, axes] = (
            np.radians(settings.rotation_sigma_deg) ** 2 * np.arange(n, 0, -1)[:, None]
        )
        covariance[:, 3 + axes, 3 + axes] = settings.translation_sigma**2 * walked_sq[:, None]
    return WindowPrediction(
        anchor=frame.index,
        members=np.array([member.index for member in members], np.int64),
        member_from_anchor_rotation=np.asarray(member_from_anchor.rotation, np.float64),
        member_from_anchor_translation=np.asarray(member_from_anchor.translation, np.float64),
        confidence=np.ones(n),
        covariance=covariance if n else None,
        points_in_anchor=None if pose is None else point_map_of(frame, _MAX_GRID_SIDE),
        intrinsics=frame.intrinsics,
        status=WindowStatus.LOST if pose is None else WindowStatus.OK,
    )
