"""Data-set sequences in the layouts they are published in: KITTI odometry, TUM RGB-D, 7-Scenes.

Each is a list of images with what the data set knows about them. Ground truth that is absent is None in
the frames; a file that is there but cannot be right is an error.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole
from anchor3r.io.tables import parse_numbers, read_fields, read_numbered_table, read_table, rigid_motions
from anchor3r.io.trajectories import read_tum
from anchor3r.sources.images import ImageSequence, image_paths, is_image, read_depth
from anchor3r.sources.source import UndecodableFrameError, logger
from anchor3r.trajectory import nearest_in_time

KITTI_CAMERAS = (2, 3, 0, 1)
"""In order of preference: colour left and right, grey left and right."""
KITTI_RATE_HZ = 10.0
KITTI_DEPTH_UNITS_PER_M = 256.0

TUM_CAMERAS = {
    "freiburg1": Pinhole(517.3, 516.5, 318.6, 255.3, 640, 480),
    "freiburg2": Pinhole(520.9, 521.0, 325.1, 249.7, 640, 480),
    "freiburg3": Pinhole(535.4, 539.2, 320.1, 247.6, 640, 480),
}
"""Of the colour cameras by part of the folder's name; their lens distortion is left as it is."""
TUM_DEPTH_UNITS_PER_M = 5000.0
TUM_MAX_TIME_DIFFERENCE_S = 0.02

SEVEN_SCENES_DEPTH_CAMERA = Pinhole(585.0, 585.0, 320.0, 240.0, 640, 480)
"""What 7-Scenes states: depth images and poses are of this camera."""
SEVEN_SCENES_CAMERA = Pinhole(525.0, 525.0, 319.5, 239.5, 640, 480)
"""The colour camera of the sensor that it was recorded with, a Kinect. With the true poses, pictures of
redkitchen agree best with each other for 525 pixels and 2.2 cm; for 585 and 0 they differ by a third more."""
SEVEN_SCENES_BASELINE_M = 0.025
"""By which the colour camera lies to the right of the depth camera."""
SEVEN_SCENES_DEPTH_UNITS_PER_M = 1000.0
SEVEN_SCENES_NO_DEPTH = 65535


_COLOUR_FROM_DEPTH = SE3(np.eye(3), np.array([-SEVEN_SCENES_BASELINE_M, 0.0, 0.0]))


class KittiSource(ImageSequence):
    """KITTI odometry: `ROOT/00` with its images in ROOT/sequences/00, or the sequence folder itself.

    The pose files are of camera 0. The other cameras of the rectified rig are shifted against it as the
    last column of their projection matrix says, and so are the poses given here.
    """

    def __init__(self, uri: str, location: str, wanted: slice) -> None:
        folder = _kitti_folder(Path(location))
        camera = next(camera for camera in KITTI_CAMERAS if (folder / f"image_{camera}").is_dir())
        paths = images_in(folder / f"image_{camera}")
        super().__init__(uri, wanted, paths)
        # A folder may hold part of a sequence: the name of an image is its line in the other files.
        self._lines = [_kitti_number(path) for path in paths]
        self._depth_folder = folder / "depth"
        self._times_s = self._read_times(folder / "times.txt")
        self._projection = _kitti_projection(folder / "calib.txt", camera)
        self._poses = self._read_poses(folder, camera)

    def _timestamp_s(self, index: int) -> float:
        line = self._lines[index]
        return line / KITTI_RATE_HZ if self._times_s is None else float(self._times_s[line])

    def _intrinsics(self, width: int, height: int) -> Pinhole | None:
        return None if self._projection is None else _pinhole(self._projection, width, height)

    def _depth_m(self, index: int, width: int, height: int) -> NDArray[np.float32] | None:
        path = self._depth_folder / f"{Path(self._paths[index]).stem}.png"
        return read_depth(path, width, height, KITTI_DEPTH_UNITS_PER_M) if path.is_file() else None

    def _camera_from_world(self, index: int) -> SE3 | None:
        return None if self._poses is None else self._poses[self._lines[index]]

    def _read_times(self, path: Path) -> NDArray[np.float64] | None:
        if not path.is_file():
            return None
        times_s = read_table(path, 1)[:, 0]
        if len(times_s) <= max(self._lines) or not np.isfinite(times_s).all():
            raise Anchor3RError(f"{path} lacks times; get it again, or remove it to go without")
        return times_s

    def _read_poses(self, folder: Path, camera: int) -> SE3 | None:
        candidates = (folder.parent.parent / "poses" / f"{folder.name}.txt", folder / "poses.txt")
        path = next((path for path in candidates if path.is_file()), None)
        if path is None:
            return None
        lines, table = read_numbered_table(path, 12)
        world_from_camera_0 = rigid_motions(table.reshape(-1, 3, 4), path, lines)
        if len(world_from_camera_0) <= max(self._lines):
            logger.warning("no ground truth: %s ends before the last image", path)
            return None
        if self._projection is None:
            if camera != 0:
                logger.warning("no ground truth: without calib.txt %s holds only for camera 0", path)
                return None
            return world_from_camera_0.inverse()
        shift = np.linalg.solve(self._projection[:, :3], self._projection[:, 3])
        return SE3(np.eye(3), shift) @ world_from_camera_0.inverse()


def _kitti_folder(location: Path) -> Path:
    for folder in (location, location.parent / "sequences" / location.name):
        if any((folder / f"image_{camera}").is_dir() for camera in KITTI_CAMERAS):
            return folder
    raise Anchor3RError(
        f"no KITTI sequence at {location}: neither there nor in {location.parent / 'sequences'} is a folder "
        f"{location.name} with image_2, image_3, image_0 or image_1; name it as kitti:ROOT/00"
    )


def _kitti_number(path: str) -> int:
    stem = Path(path).stem
    if not (stem.isascii() and stem.isdecimal()):
        raise Anchor3RError(f"{path} is not named by its number in the sequence; remove it or rename it")
    return int(stem)


def _kitti_projection(path: Path, camera: int) -> NDArray[np.float64] | None:
    """(3, 4) from camera 0's coordinates to pixels; None without a calibration file."""
    if not path.is_file():
        return None
    for line, fields in read_fields(path):
        if fields[0] in (f"P{camera}:", f"P{camera}"):
            return _camera_matrix(np.array(parse_numbers(path, line, fields[1:], 12)).reshape(3, 4), path)
    raise Anchor3RError(f"{path} has no line P{camera}:; get it again, or remove it to go without")


class TumSource(ImageSequence):
    """TUM RGB-D: a folder with rgb.txt and, where they are known, depth.txt and groundtruth.txt."""

    def __init__(self, uri: str, location: str, wanted: slice) -> None:
        self._folder = Path(location)
        self._times_s, names = _tum_list(self._folder / "rgb.txt")
        super().__init__(uri, wanted, [str(self._folder / name) for name in names])
        folder_name = os.path.basename(os.path.realpath(self._folder))
        self._camera = next((TUM_CAMERAS[key] for key in TUM_CAMERAS if key in folder_name), None)
        self._depth_names: list[str] = []
        self._depth_rows = self._pose_rows = np.full(len(names), -1)
        if (self._folder / "depth.txt").is_file():
            depth_times_s, self._depth_names = _tum_list(self._folder / "depth.txt")
            self._depth_rows = _nearest(depth_times_s, self._times_s)
        if (self._folder / "groundtruth.txt").is_file():
            truth = read_tum(self._folder / "groundtruth.txt")
            assert truth.timestamps_s is not None
            self._poses = truth.camera_from_world
            self._pose_rows = _nearest(truth.timestamps_s, self._times_s)

    def _timestamp_s(self, index: int) -> float:
        return float(self._times_s[index])

    def _intrinsics(self, width: int, height: int) -> Pinhole | None:
        return None if self._camera is None else self._camera.resized(width, height)

    def _depth_m(self, index: int, width: int, height: int) -> NDArray[np.float32] | None:
        row = self._depth_rows[index]
        if row < 0:
            return None
        return read_depth(self._folder / self._depth_names[row], width, height, TUM_DEPTH_UNITS_PER_M)

    def _camera_from_world(self, index: int) -> SE3 | None:
        row = self._pose_rows[index]
        return None if row < 0 else self._poses[row]


def _tum_list(path: Path) -> tuple[NDArray[np.float64], list[str]]:
    """Times in seconds (n,) and file names."""
    times_s, names = [], []
    for line, fields in read_fields(path):
        times_s += parse_numbers(path, line, fields[:1], 1)
        names.append(" ".join(fields[1:]))
    if not names or not all(map(is_image, names)) or not np.isfinite(times_s).all():
        raise Anchor3RError(f"{path} is no list of times and image files; get it again")
    return np.array(times_s), names


def _nearest(times_s: NDArray[np.float64], queries_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each query the row whose time is nearest, -1 where none is near enough."""
    order = np.argsort(times_s)
    query, nearest = nearest_in_time(queries_s, times_s[order], TUM_MAX_TIME_DIFFERENCE_S)
    row = np.full(len(queries_s), -1)
    row[query] = order[nearest]
    return row


class SevenScenesSource(ImageSequence):
    """7-Scenes: a sequence folder with frame-XXXXXX.color.png (or jpg), .depth.png and .pose.txt.

    Frames are those of the colour camera: depth is registered to it and poses are moved. Where another camera
    than that of 7-Scenes is stated, it is taken to be that of both.
    """

    def __init__(self, uri: str, location: str, wanted: slice) -> None:
        folder = Path(location)
        paths = [path for path in images_in(folder) if ".color." in os.path.basename(path)]
        if not paths:
            raise Anchor3RError(f"no frame-*.color.png or .jpg in {folder}; name one such as SCENE/seq-01")
        super().__init__(uri, wanted, paths)
        candidates = (folder / "camera-intrinsics.txt", folder.parent / "camera-intrinsics.txt")
        path = next((path for path in candidates if path.is_file()), None)
        self._matrix = None if path is None else _camera_matrix(read_table(path, 3), path)

    def _intrinsics(self, width: int, height: int) -> Pinhole:
        if self._is_recorded:
            return SEVEN_SCENES_CAMERA.resized(width, height)
        assert self._matrix is not None
        return _pinhole(self._matrix, width, height)

    @property
    def _is_recorded(self) -> bool:
        """Whether depth and colour are of the two cameras of 7-Scenes, in whatever size."""
        if self._matrix is None:
            return True
        stated = SEVEN_SCENES_DEPTH_CAMERA
        return bool(np.allclose(self._matrix[0, 0] / self._matrix[0, 2], stated.fx / stated.cx, rtol=0.01))

    def _depth_m(self, index: int, width: int, height: int) -> NDArray[np.float32] | None:
        path = self._beside(index, "depth.png")
        if not path.is_file():
            return None
        depth_m = read_depth(path, width, height, SEVEN_SCENES_DEPTH_UNITS_PER_M, SEVEN_SCENES_NO_DEPTH)
        if not self._is_recorded:
            return depth_m
        from anchor3r.sources.registration import registered

        depth_camera = SEVEN_SCENES_DEPTH_CAMERA.resized(width, height)
        return registered(depth_m, depth_camera, _COLOUR_FROM_DEPTH, self._intrinsics(width, height))

    def _camera_from_world(self, index: int) -> SE3 | None:
        path = self._beside(index, "pose.txt")
        if not path.is_file():
            return None
        try:
            pose = _seven_scenes_pose(path)
        except Anchor3RError as error:
            raise UndecodableFrameError(str(error)) from error
        return pose if pose is None or not self._is_recorded else _COLOUR_FROM_DEPTH @ pose

    def _beside(self, index: int, suffix: str) -> Path:
        return Path(str(self._paths[index]).rsplit("color.", 1)[0] + suffix)


def _seven_scenes_pose(path: Path) -> SE3 | None:
    """camera_from_world; None where the recording marks with infinities that tracking was lost."""
    world_from_camera = read_table(path, 4)
    if len(world_from_camera) != 4:
        raise Anchor3RError(f"{path} is no 4×4 matrix; get it again, or remove it to go without")
    if not np.isfinite(world_from_camera).all():
        return None
    return rigid_motions(world_from_camera[None, :3], path)[0].inverse()


def _camera_matrix(matrix: NDArray[np.float64], path: Path) -> NDArray[np.float64]:
    """Lets pass a matrix (3, 3 or more) that projects as a pinhole camera does."""
    if not (
        len(matrix) == 3
        and np.isfinite(matrix).all()
        and min(matrix[0, 0], matrix[1, 1]) > 0
        and np.array_equal(matrix[[1, 2, 2, 2], [0, 0, 1, 2]], [0, 0, 0, 1])
    ):
        raise Anchor3RError(f"{path} holds no camera matrix; get it again, or remove it to go without")
    return matrix


def _pinhole(matrix: NDArray[np.float64], width: int, height: int) -> Pinhole:
    """The camera of a matrix (3, 3 or more) for an image of this size."""
    fx, fy, cx, cy = map(float, (matrix[0, 0], matrix[1, 1], matrix[0, 2], matrix[1, 2]))
    return Pinhole(fx, fy, cx, cy, width, height)


def images_in(folder: Path) -> list[str]:
    """The image files of a folder, at least one, in natural order."""
    paths = image_paths([entry.path for entry in os.scandir(folder)]) if folder.is_dir() else []
    if not paths:
        raise Anchor3RError(f"no images in {folder}; check the path and that all was unpacked")
    return paths
