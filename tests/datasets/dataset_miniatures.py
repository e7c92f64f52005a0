"""Every data set in small, in its download layout, written from a rendered world by encoders of their own."""

from __future__ import annotations

import csv
import gzip
import io
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import cv2
import h5py
import numpy as np
import OpenEXR
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from rays import cast
from scipy.spatial.transform import Rotation

from anchor3r.geometry import SE3, Pinhole
from anchor3r.worlds import Sensor, World, WorldConfig, make_world, render

NUM_FRAMES = 8
STEP = 3
"""Frames of the world between two of the miniature: enough to see parallax."""


@dataclass(frozen=True)
class Shot:
    """One frame as the encoders take it."""

    image: np.ndarray
    depth: np.ndarray
    """(H, W) along z, 0 for the sky"""
    pose: np.ndarray
    """(4, 4) camera_from_world"""
    true_pose: SE3
    camera: Pinhole
    depth_factor: float = 1.0

    @property
    def cam2world(self) -> np.ndarray:
        return np.linalg.inv(self.pose)


@lru_cache(maxsize=4)
def world(kind: str) -> World:
    motion = "driving" if kind == "street" else "handheld"
    config = WorldConfig(seed=4, kind=kind, motion=motion, frames=160, samples=1, noise=0)
    return make_world(config)


@lru_cache(maxsize=4)
def stretch(kind: str) -> list[int]:
    """The frames of the world where the camera turns most: shifts are unseen on a straight drive."""
    poses, length = world(kind).camera_from_world, NUM_FRAMES * STEP
    if kind != "street":
        return list(range(0, length, STEP))
    ahead = poses.rotation[:, 2]
    turned = [ahead[k] @ ahead[k + length - 1] for k in range(len(poses) - length)]
    first = int(np.argmin(turned))
    return list(range(first, first + length, STEP))


@lru_cache(maxsize=16)
def shots_of(kind: str, camera: Pinhole) -> tuple[Shot, ...]:
    place = world(kind)
    shots = []
    for k in stretch(kind):
        pose = place.camera_from_world[k]
        seen = render(place.scene, pose, camera, Sensor(exposure=float(place.exposure[0])), 2)
        shots.append(Shot(seen.image, seen.depth_m, pose.matrix(), pose, camera))
    return tuple(shots)


OFF_CENTRE = Pinhole(84.0, 86.0, 45.3, 37.2, 96, 72)


def _save(path: Path, image: np.ndarray, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, **options)


def _jpg(path: Path, image: np.ndarray) -> None:
    _save(path, image, quality=98, subsampling=0)


def _text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _rows(path: Path, rows: list, header: str = "") -> None:
    _text(
        path,
        header
        + "\n".join(" ".join(repr(v) if isinstance(v, float) else str(v) for v in row) for row in rows)
        + "\n",
    )


def _u16(depth: np.ndarray, units_per_m: float) -> np.ndarray:
    return np.round(depth.astype(float) * units_per_m).clip(0, 65534).astype(np.uint16)


def _h5(path: Path, key: str, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file[key] = values


def wildrgbd(root: Path, shots: tuple[Shot, ...]) -> None:
    scene = root / "apple/scenes/scene_000"
    for k, shot in enumerate(shots):
        _save(scene / f"rgb/{k:05d}.png", shot.image)
        _save(scene / f"depth/{k:05d}.png", _u16(shot.depth, 1000))
    c = shots[0].camera
    by_column = [c.fx, 0, 0, 0, c.fy, 0, c.cx, c.cy, 1]
    _text(scene / "metadata", json.dumps({"w": c.width, "h": c.height, "K": by_column}))
    _rows(scene / "cam_poses.txt", [[k, *s.cam2world.ravel().tolist()] for k, s in enumerate(shots)])


def scannet(root: Path, shots: tuple[Shot, ...]) -> None:
    c = shots[0].camera
    colour = np.diag([1.0, 1, 1, 1])
    colour[0, 0], colour[1, 1] = 2 * c.fx, 2 * c.fy
    colour[:2, 2] = 2 * c.cx + 0.5, 2 * c.cy + 0.5
    depth = np.eye(4)
    depth[:2, :3] = c.matrix()[:2]
    out = io.BytesIO()
    out.write(struct.pack("<IQ", 4, 12) + b"StructureSen")
    for matrix in (colour, np.eye(4), depth, np.eye(4)):
        out.write(matrix.astype("<f4").tobytes())
    out.write(struct.pack("<ii", 2, 1) + struct.pack("<4I", 2 * c.width, 2 * c.height, c.width, c.height))
    out.write(struct.pack("<fQ", 1000.0, len(shots)))
    for k, shot in enumerate(shots):
        large = cv2.resize(shot.image, None, fx=2, fy=2, interpolation=cv2.INTER_NEAREST)
        jpeg = io.BytesIO()
        Image.fromarray(large).save(jpeg, "JPEG", quality=98, subsampling=0)
        data = zlib.compress(_u16(shot.depth, 1000).astype("<u2").tobytes())
        out.write(shot.cam2world.astype("<f4").tobytes())
        out.write(struct.pack("<4Q", k, k, len(jpeg.getvalue()), len(data)) + jpeg.getvalue() + data)
    path = root / "scans/scene0000_00/scene0000_00.sens"
    path.parent.mkdir(parents=True)
    path.write_bytes(out.getvalue())


HYPERSIM_TILT = Rotation.from_euler("x", 0.4).as_matrix()
"""Of the axis that the orientations are stated for against the picture's, in OpenGL axes."""


def hypersim(root: Path, shots: tuple[Shot, ...]) -> None:
    """A scene with a tilt-shift lens, as many have."""
    scene, c, unit = root / "ai_001_001", shots[0].camera, 0.0254
    row = {
        "scene_name": "ai_001_001",
        "settings_output_img_width": c.width,
        "settings_output_img_height": c.height,
    }
    # The ray of (u, v) in -1 … 1, v up; the authors' projection is the inverse of these three columns.
    across, down = (c.cx + 0.5) * 2 / c.width - 1, (c.cy + 0.5) * 2 / c.height - 1
    half = np.array([c.width / 2 / c.fx, c.height / 2 / c.fy])
    rays = np.array([[half[0], 0, -half[0] * across], [0, half[1], half[1] * down], [0, 0, -1]])
    projection = 1.07 * np.linalg.inv(HYPERSIM_TILT.T @ rays)
    row |= {f"M_proj_{i}{j}": 0.0 for i in range(4) for j in range(4)}
    row |= {f"M_proj_{i}{j}": projection[k, j] for k, i in enumerate((0, 1, 3)) for j in range(3)}
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "metadata_camera_parameters.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerow(row)
    _text(
        scene / "_detail/metadata_scene.csv",
        f"parameter_name,parameter_value\nmeters_per_asset_unit,{unit}\n",
    )
    detail = scene / "_detail/cam_00"
    opengl = np.array([s.cam2world[:3, :3] * [1, -1, -1] for s in shots]) @ HYPERSIM_TILT
    _h5(detail / "camera_keyframe_orientations.hdf5", "dataset", opengl)
    _h5(
        detail / "camera_keyframe_positions.hdf5",
        "dataset",
        np.array([s.cam2world[:3, 3] / unit for s in shots]),
    )
    v, u = np.mgrid[: c.height, : c.width]
    stretch = np.sqrt(((u - c.cx) / c.fx) ** 2 + ((v - c.cy) / c.fy) ** 2 + 1)
    for k, shot in enumerate(shots):
        distance = np.where(shot.depth > 0, shot.depth * stretch, np.nan).astype(np.float32)
        _h5(scene / f"images/scene_cam_00_geometry_hdf5/frame.{k:04d}.depth_meters.hdf5", "dataset", distance)
        if k % 2:
            _jpg(scene / f"images/scene_cam_00_final_preview/frame.{k:04d}.tonemap.jpg", shot.image)
        else:
            linear = (shot.image / 255.0) ** 2.2 * 3.7
            _h5(
                scene / f"images/scene_cam_00_final_hdf5/frame.{k:04d}.color.hdf5",
                "dataset",
                linear.astype(np.float16),
            )


def mapillary(root: Path, shots: tuple[Shot, ...]) -> None:
    focals, poses = {}, {}
    for k, shot in enumerate(shots):
        part, key = ("train", "val")[k % 2], f"_key-{k}"
        c = shot.camera
        focals.setdefault(part, {})[key] = {"focal": c.fx / max(c.width, c.height)}
        poses[key] = {
            "rotation": Rotation.from_matrix(shot.pose[:3, :3]).as_rotvec().tolist(),
            "translation": shot.pose[:3, 3].tolist(),
        }
        _jpg(
            root / part / f"{key}.jpg",
            cv2.resize(shot.image, None, fx=2, fy=2, interpolation=cv2.INTER_NEAREST),
        )
        units = _u16(shot.depth, 100)
        _save(root / part / f"{key}.png", np.where(shot.depth > 0, units, 65535).astype(np.uint16))
    for part, listed in focals.items():
        _text(root / f"{part}.json", json.dumps(listed))
    place = root / "reconstruction_data/geoeven_4/2019-03-17T16_16_24.807705"
    _text(place / "reconstruction.json", json.dumps([{"shots": poses}]))


def replica(root: Path, shots: tuple[Shot, ...]) -> None:
    c = shots[0].camera
    camera = {"w": c.width, "h": c.height, "fx": c.fx, "fy": c.fy, "cx": c.cx, "cy": c.cy, "scale": 6553.5}
    _text(root / "cam_params.json", json.dumps({"camera": camera}))
    for k, shot in enumerate(shots):
        _jpg(root / f"room0/results/frame{k:06d}.jpg", shot.image)
        _save(root / f"room0/results/depth{k:06d}.png", _u16(shot.depth, 6553.5))
    _rows(root / "room0/traj.txt", [s.cam2world.ravel().tolist() for s in shots])


def mapfree(root: Path, shots: tuple[Shot, ...]) -> None:
    place, poses, cameras = root / "train/s00000", [], []
    for k, shot in enumerate(shots):
        name = f"seq1/frame_{k:05d}.jpg"
        _jpg(place / name, shot.image)
        x, y, z, w = Rotation.from_matrix(shot.pose[:3, :3]).as_quat().tolist()
        c = shot.camera
        poses.append([name, w, x, y, z, *shot.pose[:3, 3].tolist()])
        cameras.append([name, c.fx, c.fy, c.cx, c.cy, c.width, c.height])
    _rows(place / "poses.txt", poses, "# frame qw qx qy qz tx ty tz\n")
    _rows(place / "intrinsics.txt", cameras)


def tartanair(root: Path, shots: tuple[Shot, ...]) -> None:
    flight, rows = root / "office/office/Easy/P000", []
    # North-east-down of a body: forward, right, down.
    body_from_camera = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0.0]])
    for k, shot in enumerate(shots):
        _save(flight / f"image_left/{k:06d}_left.png", shot.image)
        path = flight / f"depth_left/{k:06d}_left_depth.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.where(shot.depth > 0, shot.depth, 10000).astype(np.float32))
        world_from_body = shot.cam2world[:3, :3] @ body_from_camera.T
        rows.append(
            [*shot.cam2world[:3, 3].tolist(), *Rotation.from_matrix(world_from_body).as_quat().tolist()]
        )
    _rows(flight / "pose_left.txt", rows)


def mvs_synth(root: Path, shots: tuple[Shot, ...]) -> None:
    sequence = root / "GTAV_540/0000"
    for k, shot in enumerate(shots):
        c = shot.camera
        _save(sequence / f"images/{k:04d}.png", shot.image)
        mirrored = shot.pose @ np.diag([1.0, -1, 1, 1])
        mirrored[:3, 3] *= 10
        camera = {"c_x": c.cx, "c_y": c.cy, "f_x": c.fx, "f_y": c.fy, "extrinsic": mirrored.tolist()}
        _text(sequence / f"poses/{k:04d}.json", json.dumps(camera))
        (sequence / "depths").mkdir(exist_ok=True)
        depth = np.where(shot.depth > 0, 10 * shot.depth, np.inf).astype(np.float32)
        OpenEXR.File({"type": OpenEXR.scanlineimage}, {"Y": depth}).write(
            str(sequence / f"depths/{k:04d}.exr")
        )


def vkitti2(root: Path, shots: tuple[Shot, ...]) -> None:
    drive, extrinsic, intrinsic = root / "Scene01/clone", [], []
    for k, shot in enumerate(shots):
        c = shot.camera
        _jpg(drive / f"frames/rgb/Camera_0/rgb_{k:05d}.jpg", shot.image)
        units = np.where(shot.depth > 0, _u16(shot.depth, 100), 65535)
        _save(drive / f"frames/depth/Camera_0/depth_{k:05d}.png", units.astype(np.uint16))
        extrinsic.append([k, 0, *shot.pose.ravel().tolist()])
        extrinsic.append([k, 1, *np.eye(4).ravel().tolist()])
        intrinsic += [[k, 0, c.fx, c.fy, c.cx, c.cy], [k, 1, 1.0, 1.0, 0.0, 0.0]]
    _rows(drive / "extrinsic.txt", extrinsic, "frame cameraID r1,1 … \n")
    _rows(drive / "intrinsic.txt", intrinsic, "frame cameraID K[0,0] K[1,1] K[0,2] K[1,2]\n")


ARIA = (
    297.6375381033778, 357.6599197217746, 349.1922497127481, 0.3650890375644368, -0.1738082418112771,
    -0.7534945484033189, 2.434788882752295, -2.57786220300886, 0.8788483538598834, 0.0008005198595407136,
    -0.000294237814554143,
)  # fmt: skip
ARIA_SIZE = 176
DEVICE_FROM_CAMERA = np.eye(4)
DEVICE_FROM_CAMERA[:3, :3] = Rotation.from_quat(
    [0.32640934382849085, 0.029274992008313648, 0.033361059956531547, 0.9441858687689326]
).as_matrix()
DEVICE_FROM_CAMERA[:3, 3] = -0.007530096566173914, -0.01090854984158026, -0.003598063315542823
SIDEWAYS_FROM_UPRIGHT = np.array([[0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])


def aria_rays(size: int) -> np.ndarray:
    """(size, size, 3) unit rays of the fisheye's pixels."""
    f, cx, cy, *k = np.array(ARIA) * ([size / 704] * 1 + [1] * 10)
    cx, cy = (cx + 0.5) * size / 704 - 0.5, (cy + 0.5) * size / 704 - 0.5
    u, v = np.meshgrid(np.arange(size), np.arange(size))
    goal = np.stack([(u - cx) / f, (v - cy) / f], -1).reshape(-1, 2)
    # Tangential terms are a thousandth: taken off by iteration. Then Newton's method on the radius.
    point = goal.copy()
    for _ in range(30):
        square = (point**2).sum(1, keepdims=True)
        mixed = point @ np.array(k[6:8])
        point = goal - 2 * point * mixed[:, None] - square * np.array(k[6:8])
    radius = np.linalg.norm(point, axis=1)
    angle = radius.copy()
    for _ in range(50):
        value = angle + sum(k[i] * angle ** (2 * i + 3) for i in range(6)) - radius
        slope = 1 + sum((2 * i + 3) * k[i] * angle ** (2 * i + 2) for i in range(6))
        angle = np.clip(angle - value / slope, 0, 1.3)
    direction = point / np.maximum(radius, 1e-12)[:, None]
    rays = np.concatenate([np.sin(angle)[:, None] * direction, np.cos(angle)[:, None]], 1)
    return rays.reshape(size, size, 3)


@lru_cache(maxsize=NUM_FRAMES)
def aria_view(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Fisheye picture and distances of frame k."""
    place, rays = world("room"), aria_rays(ARIA_SIZE)
    pose = place.camera_from_world[stretch("room")[k]]
    world_from_camera = pose.inverse().matrix() @ np.linalg.inv(SIDEWAYS_FROM_UPRIGHT)
    turned = rays.reshape(-1, 3) @ world_from_camera[:3, :3].T
    distance = cast(place.scene, world_from_camera[:3, 3], turned).reshape(ARIA_SIZE, ARIA_SIZE)
    wide = Pinhole.from_fov(125, 640, 640)
    sensor = Sensor(exposure=float(place.exposure[0]))
    seen = render(place.scene, SE3.from_matrix(np.linalg.inv(world_from_camera)), wide, sensor)
    pixel = wide.project(rays).astype(np.float32)
    return cv2.remap(seen.image, pixel[..., 0], pixel[..., 1], cv2.INTER_LINEAR), distance


def ase(root: Path, shots: tuple[Shot, ...]) -> None:
    """The upright cameras of the shots, held sideways as on the glasses, with a fisheye."""
    scene = root / "0"
    lines = ["graph_uid,tracking_timestamp_us,utc_timestamp_ns,tx,ty,tz,qx,qy,qz,qw"]
    for k, shot in enumerate(shots):
        fisheye, distance = aria_view(k)
        units = np.where(np.isfinite(distance), np.round(1000 * distance * shot.depth_factor), 65535)
        _save(scene / f"depth/depth{k:07d}.png", units.astype(np.uint16))
        _jpg(scene / f"rgb/vignette{k:07d}.jpg", fisheye)
        given = shot.cam2world @ np.linalg.inv(SIDEWAYS_FROM_UPRIGHT) @ np.linalg.inv(DEVICE_FROM_CAMERA)
        numbers = [*given[:3, 3].tolist(), *Rotation.from_matrix(given[:3, :3]).as_quat().tolist()]
        lines.append(",".join(["uid", str(1000 * k), "0", *map(repr, numbers)]))
    _text(scene / "trajectory.csv", "\n".join(lines) + "\n")


def spring(root: Path, shots: tuple[Shot, ...]) -> None:
    scene = root / "train/0001"
    for k, shot in enumerate(shots, 1):
        _save(scene / f"frame_left/frame_left_{k:04d}.png", shot.image)
        with np.errstate(divide="ignore"):
            disparity = shot.camera.fx * 0.065 / shot.depth.astype(float)
        sky = shot.depth == 0
        disparity = np.where(sky, 0.01, disparity).repeat(2, 0).repeat(2, 1)
        _h5(scene / f"disp1_left/disp1_left_{k:04d}.dsp5", "disparity", disparity.astype(np.float32))
        mask = (255 * sky).astype(np.uint8).repeat(2, 0).repeat(2, 1)
        _save(scene / f"maps/skymap_left/skymap_left_{k:04d}.png", mask)
    c = shots[0].camera
    _rows(scene / "cam_data/intrinsics.txt", [[c.fx, c.fy, c.cx, c.cy]] * len(shots))
    _rows(scene / "cam_data/extrinsics.txt", [s.pose.ravel().tolist() for s in shots])


SEGMENT = "10017090168044687777_6380_000_6400_000"
VEHICLE_FROM_CAMERA = np.eye(4)
VEHICLE_FROM_CAMERA[:3, :3] = Rotation.from_euler("xyz", [0.02, -0.03, 0.01]).as_matrix()
VEHICLE_FROM_CAMERA[:3, 3] = 1.5, 0.02, 2.1
VEHICLE_FROM_LIDAR = np.eye(4)
VEHICLE_FROM_LIDAR[:3, :3] = Rotation.from_euler("xyz", [0.01, 0.02, 2.6]).as_matrix()
VEHICLE_FROM_LIDAR[:3, 3] = 1.4, 0.0, 2.18
INCLINATIONS = np.sort(np.linspace(-0.35, 0.2, 32) + 0.003 * np.sin(np.arange(32)))
NUM_COLUMNS = 240
LIDAR_REACH_M = 75
SENSOR_FROM_OPENCV = np.array([[0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1.0]])
"""x forward, y left, z up."""


@lru_cache(maxsize=NUM_FRAMES)
def lidar_distances(k: int) -> np.ndarray:
    """(rows, columns) of the range image of frame k, inf beyond the lidar's reach."""
    azimuth = np.pi - 2 * np.pi * (np.arange(NUM_COLUMNS) + 0.5) / NUM_COLUMNS
    azimuth = azimuth - np.arctan2(VEHICLE_FROM_LIDAR[1, 0], VEHICLE_FROM_LIDAR[0, 0])
    up = INCLINATIONS[::-1][:, None]
    beams = [np.cos(azimuth) * np.cos(up), np.sin(azimuth) * np.cos(up), np.sin(up) + 0 * azimuth]
    pose = world("street").camera_from_world[stretch("street")[k]].inverse().matrix()
    world_from_lidar = pose @ np.linalg.inv(VEHICLE_FROM_CAMERA @ SENSOR_FROM_OPENCV) @ VEHICLE_FROM_LIDAR
    rays = np.stack(beams, -1).reshape(-1, 3) @ world_from_lidar[:3, :3].T
    distance = cast(world("street").scene, world_from_lidar[:3, 3], rays, reach=LIDAR_REACH_M)
    return distance.reshape(len(up), NUM_COLUMNS)


def waymo(root: Path, shots: tuple[Shot, ...]) -> None:
    """Vehicle poses follow from the camera's; the lidar sees the world by casting its beams."""
    images, sweeps, top_poses, vehicle = [], [], [], []
    for k, shot in enumerate(shots):
        key = {
            "key.segment_context_name": SEGMENT,
            "key.frame_timestamp_micros": 1_500_000_000_000_000 + 100_000 * k,
        }
        given = shot.cam2world @ np.linalg.inv(VEHICLE_FROM_CAMERA @ SENSOR_FROM_OPENCV)
        jpeg = io.BytesIO()
        Image.fromarray(shot.image).save(jpeg, "JPEG", quality=98, subsampling=0)
        images.append(
            key
            | {
                "key.camera_name": 1,
                "[CameraImageComponent].image": jpeg.getvalue(),
                "[CameraImageComponent].pose.transform": given.ravel().tolist(),
            }
        )
        distance = lidar_distances(k)
        values = np.zeros((*distance.shape, 4), np.float32)
        values[..., 0] = np.where(np.isfinite(distance), distance * shot.depth_factor, -1)
        component = "[LiDARComponent].range_image_return1"
        sweeps.append(
            key
            | {
                "key.laser_name": 1,
                f"{component}.values": values.ravel().tolist(),
                f"{component}.shape": list(values.shape),
            }
        )
        yaw, pitch, roll = Rotation.from_matrix(given[:3, :3]).as_euler("ZYX")
        pixel = np.tile([roll, pitch, yaw, *given[:3, 3]], (len(INCLINATIONS), NUM_COLUMNS, 1))
        component = "[LiDARPoseComponent].range_image_return1"
        top_poses.append(
            key
            | {
                "key.laser_name": 1,
                f"{component}.values": pixel.ravel().tolist(),
                f"{component}.shape": list(pixel.shape),
            }
        )
        vehicle.append(key | {"[VehiclePoseComponent].world_from_vehicle.transform": given.ravel().tolist()})
    c, prefix = shots[0].camera, "[CameraCalibrationComponent]"
    calibration = {
        "key.segment_context_name": SEGMENT,
        "key.camera_name": 1,
        f"{prefix}.width": c.width,
        f"{prefix}.height": c.height,
        f"{prefix}.extrinsic.transform": VEHICLE_FROM_CAMERA.ravel().tolist(),
    }
    lens = {
        "f_u": c.fx,
        "f_v": c.fy,
        "c_u": c.cx,
        "c_v": c.cy,
        "k1": 0.0,
        "k2": 0.0,
        "p1": 0.0,
        "p2": 0.0,
        "k3": 0.0,
    }
    calibration |= {f"{prefix}.intrinsic.{name}": value for name, value in lens.items()}
    prefix = "[LiDARCalibrationComponent]"
    lidar = {
        "key.segment_context_name": SEGMENT,
        "key.laser_name": 1,
        f"{prefix}.beam_inclination.min": -0.36,
        f"{prefix}.extrinsic.transform": VEHICLE_FROM_LIDAR.ravel().tolist(),
        f"{prefix}.beam_inclination.max": 0.21,
        f"{prefix}.beam_inclination.values": INCLINATIONS.tolist(),
    }
    tables = {
        "camera_image": images,
        "camera_calibration": [calibration],
        "lidar": sweeps,
        "lidar_pose": top_poses,
        "lidar_calibration": [lidar],
        "vehicle_pose": vehicle,
    }
    for name, rows in tables.items():
        path = root / f"training/{name}/{SEGMENT}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)


def blendedmvs(root: Path, shots: tuple[Shot, ...]) -> None:
    scene = root / "5a3ca9cb270f0e3f14d0eddb"
    for k, shot in enumerate(shots):
        _jpg(scene / f"blended_images/{k:08d}.jpg", shot.image)
        _jpg(scene / f"blended_images/{k:08d}_masked.jpg", 0 * shot.image)
        lines = ["extrinsic", *(" ".join(map(repr, row)) for row in shot.pose.tolist()), "", "intrinsic"]
        lines += [" ".join(map(repr, row)) for row in shot.camera.matrix().tolist()]
        _text(scene / f"cams/{k:08d}_cam.txt", "\n".join([*lines, "", "0.5 0.1 128 20.0"]) + "\n")
        path = scene / f"rendered_depth_maps/{k:08d}.pfm"
        path.parent.mkdir(exist_ok=True)
        header = f"Pf\n{shot.camera.width} {shot.camera.height}\n-1.000000\n".encode()
        path.write_bytes(header + shot.depth[::-1].astype("<f4").tobytes())
    _text(scene / "cams/pair.txt", "0\n")


def co3d(root: Path, shots: tuple[Shot, ...]) -> None:
    sequence, frames = "110_13051_23361", []
    for k, shot in enumerate(shots, 1):
        c, base = shot.camera, f"apple/{sequence}"
        paths = {
            "image": f"{base}/images/frame{k:06d}.jpg",
            "depth": f"{base}/depths/frame{k:06d}.jpg.geometric.png",
            "mask": f"{base}/depth_masks/frame{k:06d}.png",
        }
        _jpg(root / paths["image"], shot.image)
        _save(root / paths["depth"], (shot.depth / 2).astype(np.float16).view(np.uint16))
        _save(root / paths["mask"], (255 * (shot.depth > 0)).astype(np.uint8))
        # PyTorch3D: x left, y up, row vectors; its screen is 2 high (or wide) and its pixels end at integers.
        flip = np.diag([-1.0, -1, 1])
        half = min(c.width, c.height) / 2
        viewpoint = {
            "R": (flip @ shot.pose[:3, :3]).T.tolist(),
            "T": (flip @ shot.pose[:3, 3]).tolist(),
            "focal_length": [c.fx / half, c.fy / half],
            "principal_point": [(c.width / 2 - c.cx - 0.5) / half, (c.height / 2 - c.cy - 0.5) / half],
            "intrinsics_format": "ndc_isotropic",
        }
        frames.append(
            {
                "sequence_name": sequence,
                "frame_number": k - 1,
                "viewpoint": viewpoint,
                "image": {"path": paths["image"], "size": [c.height, c.width]},
                "depth": {"path": paths["depth"], "mask_path": paths["mask"], "scale_adjustment": 2.0},
            }
        )
    scores = [
        {"sequence_name": sequence, "viewpoint_quality_score": 0.9},
        {"sequence_name": "bad", "viewpoint_quality_score": 0.1},
    ]
    for name, content in (("frame", frames[::-1]), ("sequence", scores)):
        (root / f"apple/{name}_annotations.jgz").write_bytes(gzip.compress(json.dumps(content).encode()))


def megadepth(root: Path, shots: tuple[Shot, ...]) -> None:
    place, c = root / "0022", shots[0].camera
    lines = ["# Image list", "# two lines of data", "# IMAGE_ID …", "# Number of images"]
    for k, shot in enumerate(shots, 1):
        name = f"{k:03d}_o.jpg"
        _jpg(place / f"dense0/imgs/{name}", shot.image)
        _h5(
            place / f"dense0/depths/{k:03d}_o.h5",
            "depth",
            np.where(shot.depth > 0, shot.depth, -1).astype(np.float32),
        )
        x, y, z, w = Rotation.from_matrix(shot.pose[:3, :3]).as_quat().tolist()
        lines += [" ".join(map(str, [k, w, x, y, z, *shot.pose[:3, 3].tolist(), 7, name])), "1.0 2.0 -1"]
    _text(place / "sparse/manhattan/0/images.txt", "\n".join(lines) + "\n")
    camera = f"7 PINHOLE {c.width} {c.height} {c.fx} {c.fy} {c.cx + 0.5} {c.cy + 0.5}"
    _text(place / "sparse/manhattan/0/cameras.txt", f"# cameras\n{camera}\n")


def dl3dv(root: Path, shots: tuple[Shot, ...]) -> None:
    scene, c = root / "1K/0a1b7c20a92c43c6b8954b1ac909fb2f0fa8b2997b80604bc8bbec80a1cb2da3", shots[0].camera
    frames = []
    for k, shot in enumerate(shots, 1):
        _save(scene / f"images_4/frame_{k:05d}.png", shot.image)
        opengl = shot.cam2world * [1, -1, -1, 1]
        frames.append({"file_path": f"images/frame_{k:05d}.png", "transform_matrix": opengl.tolist()})
    content = {
        "w": 4 * c.width, "h": 4 * c.height, "fl_x": 4 * c.fx, "fl_y": 4 * c.fy, "cx": 4 * (c.cx + 0.5),
        "cy": 4 * (c.cy + 0.5), "k1": 0.0, "k2": 0.0, "p1": 0.0, "p2": 0.0, "camera_model": "OPENCV",
        "frames": frames[::-1],
    }  # fmt: skip
    _text(scene / "transforms.json", json.dumps(content))


@dataclass(frozen=True)
class Miniature:
    """A data set's encoder, and what its format does to the world."""

    write: Callable[[Path, tuple[Shot, ...]], None]
    kind: str = "room"
    camera: Pinhole = OFF_CENTRE
    quantum_m: float = 0.0
    """Step between two depths that can be told apart."""
    relative: float = 0.0
    """The same as a part of depth, for floating-point formats."""


CENTRED = Pinhole(84.0, 84.0, 47.5, 35.5, 96, 72)
MINIATURES: dict[str, Miniature] = {
    "wildrgbd": Miniature(wildrgbd, quantum_m=1e-3),
    "scannet": Miniature(scannet, quantum_m=1e-3),
    "hypersim": Miniature(hypersim),
    "mapillary": Miniature(mapillary, "open", CENTRED, quantum_m=1e-2),
    "replica": Miniature(replica, quantum_m=1 / 6553.5),
    "mapfree": Miniature(mapfree, "open"),
    "tartanair": Miniature(tartanair, "open", Pinhole(320.0, 320.0, 320.0, 240.0, 640, 480)),
    "mvs_synth": Miniature(mvs_synth, "street"),
    "vkitti2": Miniature(vkitti2, "street", quantum_m=1e-2),
    "ase": Miniature(ase, camera=CENTRED, quantum_m=1e-3),
    "spring": Miniature(spring, "open"),
    "waymo": Miniature(waymo, "street", Pinhole(168.0, 172.0, 90.8, 74.9, 192, 144)),
    "blendedmvs": Miniature(blendedmvs, "open"),
    "co3d": Miniature(co3d, relative=2**-11),
    "megadepth": Miniature(megadepth, "open"),
    "dl3dv": Miniature(dl3dv, "open"),
}


def true_shots(name: str) -> tuple[Shot, ...]:
    return shots_of(MINIATURES[name].kind, MINIATURES[name].camera)


def write(
    name: str, root: Path, change: Callable[[tuple[Shot, ...]], tuple[Shot, ...]] = lambda s: s
) -> None:
    """Writes a miniature of a world, or of a world that was changed so as to be wrong."""
    MINIATURES[name].write(root, change(true_shots(name)))


def flipped_axis(shots: tuple[Shot, ...]) -> tuple[Shot, ...]:
    """Cameras whose y and z point the other way, as in OpenGL."""
    return tuple(replace(s, pose=np.diag([1.0, -1, -1, 1]) @ s.pose) for s in shots)


def wrong_unit(shots: tuple[Shot, ...]) -> tuple[Shot, ...]:
    """Depth in another unit than poses; where there is no depth, focal lengths of a larger picture."""
    return tuple(
        replace(
            s,
            depth=s.depth / 10,
            depth_factor=0.1,
            camera=replace(s.camera, fx=2 * s.camera.fx, fy=2 * s.camera.fy),
        )
        for s in shots
    )


def shifted_pose(shots: tuple[Shot, ...]) -> tuple[Shot, ...]:
    """Every frame has the pose of the next one; the last one its own mirrored motion."""
    poses = [s.pose for s in shots[1:]] + [shots[-1].pose @ np.linalg.inv(shots[-2].pose) @ shots[-1].pose]
    return tuple(replace(s, pose=pose) for s, pose in zip(shots, poses, strict=True))
