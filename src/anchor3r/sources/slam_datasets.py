"""Sequences of benchmarks of visual odometry and SLAM in their published layouts: EuRoC, ICL-NUIM, Replica as
rendered for SLAM, and ETH3D-SLAM.

As in `datasets`, ground truth that is absent is None, and a file that cannot be right is an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole
from anchor3r.io.inputs import insist_on_file, read_json, text_lines
from anchor3r.io.tables import read_numbered_table, read_table, rigid_motions
from anchor3r.io.trajectories import read_euroc, read_tum
from anchor3r.limits import LIMITS
from anchor3r.sources.datasets import TUM_DEPTH_UNITS_PER_M, TumSource, images_in
from anchor3r.sources.images import DECODING_ERRORS, NOMINAL_RATE_HZ, ImageSequence, read_depth
from anchor3r.sources.stated_camera import StatedCamera
from anchor3r.sources.timed_poses import TimedPoses
from anchor3r.sources.undistortion import FISHEYE_MODELS

EUROC_TRUTHS = ("state_groundtruth_estimate0", "mocap0")
"""Folders of true poses, in order of preference: EuRoC's, and that of TUM-VI in the same layout."""

ICL_NUIM_CAMERA = Pinhole(481.2, 480.0, 319.5, 239.5, 640, 480)
"""As published, but for the sign of fy: its y axis points up."""
ICL_NUIM_MIRROR = np.array([1.0, -1.0, 1.0])

REPLICA_DEPTH_UNITS_PER_M = 6553.5


class EurocSource(ImageSequence):
    """EuRoC MAV, and others in its layout: the sequence's folder, or mav0 in it, or one camera there.

    The lens is that of the camera's sensor.yaml; images are straightened as they come.
    """

    def __init__(self, uri: str, location: str, wanted: slice) -> None:
        folder = _euroc_camera(Path(location))
        times_ns, names = _euroc_list(folder / "data.csv")
        super().__init__(uri, wanted, [str(folder / "data" / name) for name in names])
        self._times_s = times_ns / 1e9
        sensor = _euroc_sensor(folder / "sensor.yaml")
        body_from_camera = SE3.identity()
        if sensor is not None:
            self.lens = _euroc_lens(folder / "sensor.yaml", sensor, self._size_of_first())
            body_from_camera = _euroc_motion(sensor, folder / "sensor.yaml")
        self._poses = _euroc_truth(folder.parent, body_from_camera)

    def _timestamp_s(self, index: int) -> float:
        return float(self._times_s[index])

    def _camera_from_world(self, index: int) -> SE3 | None:
        return None if self._poses is None else self._poses.camera_from_world_at(self._timestamp_s(index))

    def _size_of_first(self) -> tuple[int, int] | None:
        try:
            with Image.open(self._paths[self.wanted.start]) as image:
                return image.size
        except DECODING_ERRORS:
            return None


def _euroc_camera(location: Path) -> Path:
    """The folder of a camera: the one named, or cam0."""
    for folder in (location, location / "cam0", location / "mav0" / "cam0"):
        if (folder / "data.csv").is_file() and (folder / "data").is_dir():
            return folder
    raise Anchor3RError(
        f"no EuRoC sequence at {location}: neither it nor cam0 or mav0/cam0 in it has data.csv and data; "
        "name it as euroc:MH_01_easy, or for another camera euroc:MH_01_easy/mav0/cam1"
    )


def _euroc_list(path: Path) -> tuple[NDArray[np.float64], list[str]]:
    """Times in nanoseconds (n,) and names of files."""
    try:
        lines = [line.split(",") for _, line in text_lines(path, errors="replace")]
        rows = [(float(row[0]), row[1].strip()) for row in lines if row[0].strip() and row[0][0] != "#"]
    except (ValueError, IndexError):
        rows = []
    if not rows:
        raise Anchor3RError(f"{path} is no list of times and image files; get it again")
    return np.array([row[0] for row in rows]), [row[1] for row in rows]


def _flatten_mapping(loader: Any, node: Any) -> None:
    """Refuses mappings that are merged into each other: some hundred bytes of them come to gigabytes."""
    if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
        raise yaml.YAMLError("it merges mappings")
    yaml.SafeLoader.flatten_mapping(loader, node)


_PlainLoader = type("_PlainLoader", (yaml.SafeLoader,), {"flatten_mapping": _flatten_mapping})


def _euroc_sensor(path: Path) -> dict[str, Any] | None:
    """What a sensor.yaml says; None if there is none."""
    if not path.is_file():
        return None
    insist_on_file(path, max_bytes=LIMITS.calibration_bytes)
    text = re.sub(r"^%YAML.*\n", "", path.read_text(errors="replace"))  # OpenCV's own, which YAML refuses
    try:
        sensor = yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Anchor3RError(
            f"{path} is no YAML ({error}); get it again, or remove it to go without"
        ) from error
    if not isinstance(sensor, dict):
        raise Anchor3RError(f"{path} describes no sensor; get it again, or remove it to go without")
    return sensor


def _euroc_lens(path: Path, sensor: dict[str, Any], size: tuple[int, int] | None) -> StatedCamera | None:
    try:
        fx, fy, cx, cy = map(float, sensor["intrinsics"])
        width, height = map(int, sensor["resolution"])
        coefficients = tuple(map(float, sensor.get("distortion_coefficients") or ()))
        model = str(sensor.get("distortion_model", "radial-tangential")).lower()
    except (KeyError, TypeError, ValueError) as error:
        raise Anchor3RError(
            f"{path} should say intrinsics and resolution ({error}); get it again, or remove it"
        ) from error
    if size is None:
        return None
    camera = Pinhole(fx, fy, cx, cy, width, height).resized(*size)
    intrinsics = (camera.fx, camera.fy, camera.cx, camera.cy)
    if not any(coefficients):
        return StatedCamera(intrinsics=intrinsics)
    if model in FISHEYE_MODELS:
        return StatedCamera(intrinsics=intrinsics, fisheye=coefficients)
    if model in ("radial-tangential", "radtan", "plumb_bob"):
        return StatedCamera(intrinsics=intrinsics, distortion=coefficients)
    raise Anchor3RError(
        f"{path} has the distortion model '{model}', which is not known; remove it to go without"
    )


def _euroc_motion(sensor: dict[str, Any], path: Path) -> SE3:
    """body_from_sensor"""
    entry = sensor.get("T_BS")
    try:
        values = entry["data"] if isinstance(entry, dict) else entry
        matrix = np.array(values, np.float64).reshape(4, 4)
    except (KeyError, TypeError, ValueError) as error:
        raise Anchor3RError(f"T_BS of {path} is no 4×4 matrix; get it again") from error
    return rigid_motions(matrix[None, :3], path)[0]


def _euroc_truth(folder: Path, body_from_camera: SE3) -> TimedPoses | None:
    found = next((folder / name for name in EUROC_TRUTHS if (folder / name / "data.csv").is_file()), None)
    if found is None:
        return None
    truth = read_euroc(found / "data.csv")
    assert truth.timestamps_s is not None
    sensor = _euroc_sensor(found / "sensor.yaml")
    body_from_tracked = (
        SE3.identity()
        if sensor is None or "T_BS" not in sensor
        else _euroc_motion(sensor, found / "sensor.yaml")
    )
    world_from_tracked = truth.world_from_camera
    return TimedPoses.of(
        truth.timestamps_s, world_from_tracked @ (body_from_tracked.inverse() @ body_from_camera)
    )


class IclNuimSource(ImageSequence):
    """ICL-NUIM in its TUM-compatible layout: rgb, depth, and NAME.gt.freiburg.

    Its axes are left-handed: x right, y up, z forward. Poses are mirrored into those of everybody else.
    """

    def __init__(self, uri: str, location: str, wanted: slice) -> None:
        folder = Path(location)
        super().__init__(uri, wanted, images_in(folder / "rgb"))
        self._depth_folder = folder / "depth"
        self._numbers = [int(_number(path)) for path in self._paths]
        truth = next(iter(sorted(folder.glob("*.gt.freiburg"))), None)
        self._poses: dict[int, SE3] = {}
        if truth is not None:
            trajectory = read_tum(truth)
            assert trajectory.timestamps_s is not None
            camera_from_world = mirrored(trajectory.camera_from_world)
            numbers = trajectory.timestamps_s.round().astype(int).tolist()
            self._poses = {number: camera_from_world[k] for k, number in enumerate(numbers)}

    def _timestamp_s(self, index: int) -> float:
        return self._numbers[index] / NOMINAL_RATE_HZ

    def _intrinsics(self, width: int, height: int) -> Pinhole:
        return ICL_NUIM_CAMERA.resized(width, height)

    def _depth_m(self, index: int, width: int, height: int) -> NDArray[np.float32] | None:
        path = self._depth_folder / f"{self._numbers[index]}.png"
        return read_depth(path, width, height, TUM_DEPTH_UNITS_PER_M) if path.is_file() else None

    def _camera_from_world(self, index: int) -> SE3 | None:
        return self._poses.get(self._numbers[index])


def mirrored(camera_from_world: SE3) -> SE3:
    """Poses (n,) of cameras whose y axis points up, in a world whose y axis does, as those of OpenCV."""
    flip = ICL_NUIM_MIRROR
    return SE3(camera_from_world.rotation * flip[:, None] * flip, camera_from_world.translation * flip)


def _number(path: str | Path) -> str:
    stem = Path(path).stem
    if not (stem.isascii() and stem.isdecimal()):
        raise Anchor3RError(f"{path} is not named by its number in the sequence; remove it or rename it")
    return stem


class ReplicaSource(ImageSequence):
    """Replica as rendered for SLAM: a room with results/frame*.jpg and traj.txt; cam_params.json beside."""

    def __init__(self, uri: str, location: str, wanted: slice) -> None:
        folder = Path(location)
        paths = [path for path in images_in(folder / "results") if Path(path).stem.startswith("frame")]
        if not paths:
            raise Anchor3RError(
                f"no frame000000.jpg in {folder / 'results'}; name a room, as replica:ROOT/room0"
            )
        super().__init__(uri, wanted, paths)
        self._numbers = [int(_number(Path(path).with_name(Path(path).name[5:]))) for path in paths]
        self._camera, self._depth_units = _replica_camera(folder)
        self._poses: SE3 | None = None
        if (truth := folder / "traj.txt").is_file():
            lines, table = read_numbered_table(truth, 16)
            self._poses = rigid_motions(table.reshape(-1, 4, 4)[:, :3], truth, lines).inverse()

    def _intrinsics(self, width: int, height: int) -> Pinhole | None:
        return None if self._camera is None else self._camera.resized(width, height)

    def _depth_m(self, index: int, width: int, height: int) -> NDArray[np.float32] | None:
        path = Path(self._paths[index]).with_name(f"depth{self._numbers[index]:06d}.png")
        return read_depth(path, width, height, self._depth_units) if path.is_file() else None

    def _camera_from_world(self, index: int) -> SE3 | None:
        number = self._numbers[index]
        return None if self._poses is None or number >= len(self._poses) else self._poses[number]


def _replica_camera(folder: Path) -> tuple[Pinhole | None, float]:
    """The camera, and what a depth image has at one metre."""
    candidates = [place / "cam_params.json" for place in (folder, folder.parent)]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        return None, REPLICA_DEPTH_UNITS_PER_M
    try:
        camera = read_json(path)["camera"]
        fx, fy, cx, cy = (float(camera[name]) for name in ("fx", "fy", "cx", "cy"))
        pinhole = Pinhole(fx, fy, cx, cy, int(camera["w"]), int(camera["h"]))
        return pinhole, float(camera["scale"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Anchor3RError(f"{path} describes no camera ({error}); get it again, or remove it") from error


class Eth3dSource(TumSource):
    """ETH3D-SLAM: as TUM RGB-D, with the camera in calibration.txt; images are without distortion."""

    def __init__(self, uri: str, location: str, wanted: slice) -> None:
        super().__init__(uri, location, wanted)
        path = Path(location) / "calibration.txt"
        self._calibration: NDArray[np.float64] | None = None
        if path.is_file():
            values = read_table(path, 4)
            if len(values) != 1 or not np.isfinite(values).all() or values[0, :2].min() <= 0:
                raise Anchor3RError(f"{path} should be fx fy cx cy; get it again, or remove it to go without")
            self._calibration = values[0]

    def _intrinsics(self, width: int, height: int) -> Pinhole | None:
        if self._calibration is None:
            return super()._intrinsics(width, height)
        fx, fy, cx, cy = self._calibration.tolist()
        return Pinhole(fx, fy, cx, cy, width, height)
