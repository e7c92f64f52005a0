"""Waymo Open, Perception: drives with five cameras and lidar. Version 2 (Parquet), or exported images.

Parquet: cameras look along x with z up; a picture has the vehicle's pose of its own moment; lidar is a range
image, of the top lidar with the vehicle's pose of every pixel. Points are projected into each picture.
Exported, as DUSt3R and its followers do it: 00000_1.jpg with 00000_1.npz and, sparse, 00000_1.exr beside it.
"""

from __future__ import annotations

import io
import os
from functools import lru_cache
from threading import get_ident
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import Card, DataSet, Picture, SequenceTable, poses_from_camera
from anchor3r.datasets.files import Files
from anchor3r.datasets.formats import exr
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole
from anchor3r.io.extras import data_library
from anchor3r.sources.images import read_image
from anchor3r.sources.undistortion import undistorted_and_cropped

PARTS = ("training", "validation")
EVALUATED = (
    "163453191", "183829460", "315615587", "346181117", "371159869", "405841035", "460417311", "520018670",
    "610454533",
)  # fmt: skip
"""How the names of the segments begin that the paper evaluates on."""
TOP_LIDAR = 1
SENSOR_FROM_OPENCV = np.array([[0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1.0]])
"""Waymo's cameras: x forward, y left, z up."""
INTRINSICS = ("f_u", "f_v", "c_u", "c_v")
DISTORTION = ("k1", "k2", "p1", "p2", "k3")
_CAMERA = "[CameraCalibrationComponent]"
_LIDAR = "[LiDARCalibrationComponent]"


class Waymo(DataSet):
    """A sequence is one camera of one segment."""

    card = Card(
        name="waymo",
        title="Waymo Open (Perception v2)",
        licence="Waymo Dataset License (non-commercial)",
        size="1.2 TB",
        scenes="798 training segments of 20 s, five cameras",
        kind="real",
        download="camera_image, camera_calibration, lidar, lidar_calibration, lidar_pose and vehicle_pose of "
        "training, gs://waymo_open_dataset_v_2_0_1",
        layout="training/camera_image/SEGMENT.parquet, or segment-…/00000_1.jpg with 00000_1.npz",
        depth="sparse",
    )

    def names(self, files: Files) -> list[str]:
        tables = [path for part in PARTS for path in files.files(f"{part}/camera_image", ".parquet")]
        parquet = [
            f"{p.replace('camera_image/', '').removesuffix('.parquet')}/{c}" for p in tables for c in _CAMERAS
        ]
        folders = [f for f in files.folders() if f not in PARTS]
        return parquet + [f"{f}/{c}" for f in folders for c in _CAMERAS if files.exists(f"{f}/00000_{c}.npz")]

    def place(self, name: str) -> str:
        return name.rpartition("/")[0]

    def reserved(self, name: str) -> bool:
        segment = self.place(name).rpartition("/")[2].removeprefix("segment-")
        return segment.startswith(EVALUATED)

    def index(self, files: Files, name: str) -> SequenceTable:
        segment, _, camera = name.rpartition("/")
        if segment.split("/")[0] in PARTS:
            return _parquet_table(files, name, segment, int(camera))
        return _exported_table(files, name, segment, camera)

    def picture(self, files: Files, table: SequenceTable, index: int) -> Picture:
        if "#" not in table.images[index]:
            return super().picture(files, table, index)
        path, _, row = table.images[index].partition("#")
        columns = _rows(files, path, int(row), ("[CameraImageComponent].image",))
        image = read_image(io.BytesIO(columns["[CameraImageComponent].image"]))
        lens = table.camera(index, image.shape[1], image.shape[0])
        image, camera = undistorted_and_cropped(image, lens, tuple(table.lens[index]))
        depth = None
        if table.depths and (pose := table.pose(index)) is not None:
            points = pose.apply(_lidar_points(files, table.depths[index]))
            depth = splatted(points, camera)
        return Picture(image, depth, camera)

    def depth(self, files: Files, table: SequenceTable, index: int) -> NDArray[Any]:
        return exr(files, table.depths[index])


_CAMERAS = (1, 2, 3, 4, 5)


def splatted(points: NDArray[Any], camera: Pinhole) -> NDArray[np.float32]:
    """Depth (H, W) of the nearest of the points (n, 3), in the camera frame, that falls into each pixel."""
    points = points[points[:, 2] > 0.1]
    pixel = np.round(camera.project(points)).astype(int)
    inside = (pixel >= 0).all(1) & (pixel < [camera.width, camera.height]).all(1)
    pixel, z = pixel[inside], points[inside, 2]
    depth = np.full((camera.height, camera.width), np.inf, np.float32)
    np.minimum.at(depth, (pixel[:, 1], pixel[:, 0]), z.astype(np.float32))
    return np.where(np.isfinite(depth), depth, 0)


def _parquet_table(files: Files, name: str, segment: str, camera: int) -> SequenceTable:
    path = _path("camera_image", segment)
    keys = ("key.camera_name", "key.frame_timestamp_micros", "[CameraImageComponent].pose.transform")
    columns = _columns(files, path, keys)
    rows = np.flatnonzero(np.array(columns[keys[0]]) == camera)
    rows = rows[np.argsort(np.array(columns[keys[1]])[rows])]
    stamps = [columns[keys[1]][row] for row in rows]
    world_from_vehicle = np.array([columns[keys[2]][row] for row in rows], float).reshape(-1, 4, 4)
    calibrations = _calibration(files, _path("camera_calibration", segment), "key.camera_name")
    if camera not in calibrations:
        raise Anchor3RError(f"there is no camera {camera} in {segment}")
    calibration = calibrations[camera]
    vehicle_from_camera = np.array(calibration[f"{_CAMERA}.extrinsic.transform"]).reshape(4, 4)
    poses = world_from_vehicle @ vehicle_from_camera @ SENSOR_FROM_OPENCV
    lens = [calibration[f"{_CAMERA}.intrinsic.{key}"] for key in (*INTRINSICS, *DISTORTION)]
    has_lidar = files.exists(_path("lidar", segment))
    return SequenceTable(
        name=name,
        images=tuple(f"{path}#{row}" for row in rows),
        depths=tuple(f"{segment}#{stamp}" for stamp in stamps) if has_lidar else (),
        camera_from_world=poses_from_camera(poses, path),
        cameras=np.tile(np.array(lens[:4], float), (len(rows), 1)),
        lens=np.tile(np.array(lens[4:], float), (len(rows), 1)),
    )


def _exported_table(files: Files, name: str, segment: str, camera: str) -> SequenceTable:
    images = files.files(segment, (f"_{camera}.jpg", f"_{camera}.png"))
    cameras = [exported_camera(files, f"{image.rpartition('.')[0]}.npz") for image in images]
    poses = poses_from_camera(np.array([pose for _, pose in cameras]), segment)
    depths = [f"{image.rpartition('.')[0]}.exr" for image in images]
    return SequenceTable(
        name=name,
        images=tuple(images),
        depths=tuple(d if files.exists(d) else "" for d in depths),
        camera_from_world=poses,
        cameras=np.array([[k[0, 0], k[1, 1], k[0, 2], k[1, 2]] for k, _ in cameras]),
    )


def exported_camera(files: Files, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Intrinsics (3, 3) and cam2world (4, 4) of one exported frame."""
    path = files.root / name
    try:
        with np.load(io.BytesIO(files.read(name)), allow_pickle=False) as archive:
            intrinsics, cam2world = (archive[key].astype(np.float64) for key in ("intrinsics", "cam2world"))
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise Anchor3RError(f"{path} is no exported camera ({error}); export the segment again") from error
    if intrinsics.shape != (3, 3) or cam2world.shape != (4, 4):
        shapes = f"{intrinsics.shape} and {cam2world.shape}"
        raise Anchor3RError(
            f"{path}: intrinsics and cam2world are 3×3 and 4×4, not {shapes}; export it again"
        )
    return intrinsics, cam2world


def _path(component: str, segment: str) -> str:
    part, _, name = segment.partition("/")
    return f"{part}/{component}/{name}.parquet"


def _parquet(files: Files, path: str) -> Any:
    # Neither threads nor workers may share the place in an open file.
    return _opened_parquet(files, path, os.getpid(), get_ident())


@lru_cache(maxsize=8)
def _opened_parquet(files: Files, path: str, process: int, thread: int) -> Any:
    return data_library("pyarrow.parquet").ParquetFile(files.open(path), pre_buffer=False)


def _columns(files: Files, path: str, names: tuple[str, ...]) -> dict[str, list[Any]]:
    try:
        return _parquet(files, path).read(list(names), use_threads=False).to_pydict()
    except (OSError, ValueError, KeyError) as error:
        raise Anchor3RError(f"{files.root / path} cannot be read ({error}); get it again") from error


def _rows(files: Files, path: str, row: int, names: tuple[str, ...]) -> dict[str, Any]:
    """One row of some columns."""
    file = _parquet(files, path)
    for group in range(file.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        if row < count:
            columns = _group(files, path, group, names)
            return {name: columns[name][row].as_py() for name in names}
        row -= count
    raise Anchor3RError(f"{files.root / path} has fewer rows than when it was indexed; index it again")


@lru_cache(maxsize=2)
def _group(files: Files, path: str, group: int, names: tuple[str, ...]) -> Any:
    """A group of rows is decompressed as a whole, and mostly asked for more than once."""
    return _parquet(files, path).read_row_group(group, columns=list(names), use_threads=False)


def _calibration(files: Files, path: str, key: str) -> dict[int, dict[str, Any]]:
    return {row[key]: row for row in _parquet(files, path).read(use_threads=False).to_pylist()}


@lru_cache(maxsize=4)
def _lidar_rows(files: Files, segment: str) -> dict[tuple[int, int], int]:
    """Row of a lidar's sweep, by time and lidar."""
    keys = ("key.frame_timestamp_micros", "key.laser_name")
    columns = _columns(files, _path("lidar", segment), keys)
    return {pair: row for row, pair in enumerate(zip(*(columns[key] for key in keys), strict=True))}


@lru_cache(maxsize=4)
def _top_pose_rows(files: Files, segment: str) -> dict[int, int]:
    columns = _columns(files, _path("lidar_pose", segment), ("key.frame_timestamp_micros",))
    return {stamp: row for row, stamp in enumerate(columns["key.frame_timestamp_micros"])}


@lru_cache(maxsize=4)
def _vehicle_poses(files: Files, segment: str) -> dict[int, NDArray[np.float64]]:
    keys = ("key.frame_timestamp_micros", "[VehiclePoseComponent].world_from_vehicle.transform")
    columns = _columns(files, _path("vehicle_pose", segment), keys)
    return {t: np.array(m).reshape(4, 4) for t, m in zip(columns[keys[0]], columns[keys[1]], strict=True)}


@lru_cache(maxsize=2)
def _lidar_points(files: Files, sweep: str) -> NDArray[Any]:
    """(n, 3) in the world, of all lidars at the time that "SEGMENT#TIME" names."""
    segment, _, stamp = sweep.partition("#")
    calibrations = _calibration(files, _path("lidar_calibration", segment), "key.laser_name")
    found = []
    for (time, lidar), row in _lidar_rows(files, segment).items():
        if time != int(stamp):
            continue
        image = _range_image(files, _path("lidar", segment), row, "[LiDARComponent]")[..., 0]
        points = lidar_to_vehicle(image, calibrations[lidar])
        if lidar == TOP_LIDAR:
            poses = _range_image(
                files,
                _path("lidar_pose", segment),
                _top_pose_rows(files, segment)[time],
                "[LiDARPoseComponent]",
            )
            rotation = _from_roll_pitch_yaw(poses[..., :3])
            points = (rotation @ points[..., None])[..., 0] + poses[..., 3:]
        else:
            matrix = _vehicle_poses(files, segment)[time]
            points = SE3(matrix[:3, :3], matrix[:3, 3]).apply(points)
        found.append(points[image > 0])
    return np.concatenate(found) if found else np.empty((0, 3))


def _range_image(files: Files, path: str, row: int, component: str) -> NDArray[np.float64]:
    names = (f"{component}.range_image_return1.values", f"{component}.range_image_return1.shape")
    columns = _rows(files, path, row, names)
    return np.array(columns[names[0]], np.float64).reshape(columns[names[1]])


def lidar_to_vehicle(distance: NDArray[np.float64], calibration: dict[str, Any]) -> NDArray[Any]:
    """Range image (H, W) -> points (H, W, 3) in the vehicle's frame.

    Rows go from the highest beam down, columns from behind on the left clockwise to behind on the right, as
    seen in the vehicle's own axes.
    """
    height, width = distance.shape
    extrinsic = np.array(calibration[f"{_LIDAR}.extrinsic.transform"], float).reshape(4, 4)
    inclination = calibration[f"{_LIDAR}.beam_inclination.values"]
    if inclination is None or not len(inclination):
        low, high = (calibration[f"{_LIDAR}.beam_inclination.{end}"] for end in ("min", "max"))
        inclination = low + (0.5 + np.arange(height)) / height * (high - low)
    up = np.array(inclination, float)[::-1, None]
    turn = np.pi * (2 * (width - 0.5 - np.arange(width)) / width - 1)
    around = turn - np.arctan2(extrinsic[1, 0], extrinsic[0, 0])
    rays = [np.cos(around) * np.cos(up), np.sin(around) * np.cos(up), np.sin(up) + 0 * around]
    return SE3(extrinsic[:3, :3], extrinsic[:3, 3]).apply(np.stack(rays, -1) * distance[..., None])


def _from_roll_pitch_yaw(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """(..., 3) -> Rz(yaw) Ry(pitch) Rx(roll), (..., 3, 3)."""
    (cr, cp, cy), (sr, sp, sy) = np.moveaxis(np.cos(angles), -1, 0), np.moveaxis(np.sin(angles), -1, 0)
    rows = [
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    ]
    return np.stack([np.stack(row, -1) for row in rows], -2)
