"""HyperSim: rendered indoor scenes, about a hundred views a camera trajectory.

Depth is the distance to the camera's centre; positions are in the scene's own unit; orientations are
camera-to-world in OpenGL axes; the projection of each scene is in metadata_camera_parameters.csv. Many
scenes were rendered through a tilt-shift lens, whose picture is not perpendicular to the axis that is stated:
it is an ordinary picture of a camera that looks elsewhere, and that camera is the one given here.
"""

from __future__ import annotations

import csv
import io
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import rq

from anchor3r.datasets.dataset import Card, DataSet, SequenceTable, poses_from_camera
from anchor3r.datasets.files import Files
from anchor3r.datasets.formats import hdf5
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole

PARAMETERS = "metadata_camera_parameters.csv"
OPENCV_FROM_OPENGL = np.diag([1.0, -1.0, -1.0])
LARGEST_SKEW = 1e-4
"""Of a camera matrix, as a part of its focal length: more would be no pinhole camera with square angles."""
BRIGHT_PERCENTILE, BRIGHT_LEVEL, GAMMA = 90, 0.8, 2.2
"""As the authors' tone mapping has it: the 90th percentile of brightness is shown as 0.8."""


class HyperSim(DataSet):
    """The authors' tone-mapped JPEG is taken where there is one; otherwise linear light is tone-mapped."""

    card = Card(
        name="hypersim",
        title="HyperSim",
        licence="CC BY-SA 3.0",
        size="1.9 TB",
        scenes="774 trajectories through 461 rooms and houses",
        kind="synthetic",
        download="the scenes with dataset_download_images.py of https://github.com/apple/ml-hypersim, and "
        f"from there contrib/mikeroberts3000/{PARAMETERS}",
        layout=f"{PARAMETERS} and ai_XXX_XXX with _detail and images",
        ordered=False,
    )

    def names(self, files: Files) -> list[str]:
        folders = [f for scene in files.folders() for f in files.folders(f"{scene}/images")]
        return [f.replace("_geometry_hdf5", "") for f in folders if f.endswith("_geometry_hdf5")]

    def place(self, name: str) -> str:
        return name.split("/")[0]

    def index(self, files: Files, name: str) -> SequenceTable:
        scene, camera = name.split("/")[0], name.rpartition("/scene_")[2]
        detail = f"{scene}/_detail/{camera}"
        positions = hdf5(files, f"{detail}/camera_keyframe_positions.hdf5", "dataset")
        orientations = hdf5(files, f"{detail}/camera_keyframe_orientations.hdf5", "dataset")
        unit_m = _metres_per_unit(files, f"{scene}/_detail/metadata_scene.csv")
        pictures = _pictures(files, name)
        numbers = list(pictures)
        intrinsics, camera_from_stated = _projection(files, scene)
        rotation = orientations[numbers] @ OPENCV_FROM_OPENGL @ camera_from_stated.T
        poses = np.concatenate([rotation, unit_m * positions[numbers][..., None]], -1)
        return SequenceTable(
            name=name,
            images=tuple(pictures.values()),
            depths=tuple(f"{name}_geometry_hdf5/frame.{k:04d}.depth_meters.hdf5" for k in numbers),
            camera_from_world=poses_from_camera(poses, detail),
            cameras=np.tile(intrinsics, (len(numbers), 1)),
        )

    def image(self, files: Files, name: str) -> NDArray[np.uint8]:
        if not name.endswith(".hdf5"):
            return super().image(files, name)
        return _tone_mapped(hdf5(files, name, "dataset").astype(np.float32))

    def depth(self, files: Files, table: SequenceTable, index: int) -> NDArray[Any]:
        distance = hdf5(files, table.depths[index], "dataset").astype(np.float32)
        return distance * _cosines(table.camera(index, distance.shape[1], distance.shape[0]))


def _pictures(files: Files, name: str) -> dict[int, str]:
    """The picture of every frame that has depth and one: some frames were not released."""
    found = {}
    for depth in files.files(f"{name}_geometry_hdf5", ".depth_meters.hdf5"):
        frame = depth.rpartition("/")[2].removesuffix(".depth_meters.hdf5")
        preview, linear = f"{name}_final_preview/{frame}.tonemap.jpg", f"{name}_final_hdf5/{frame}.color.hdf5"
        if picture := next((path for path in (preview, linear) if files.exists(path)), None):
            found[int(frame.rpartition(".")[2])] = picture
    return found


@lru_cache(maxsize=64)
def _cosines(camera: Pinhole) -> NDArray[np.float32]:
    """(H, W) depth along z of a point at distance 1."""
    rays = camera.unproject_map(np.ones((camera.height, camera.width)))
    return (1 / np.linalg.norm(rays, axis=-1)).astype(np.float32)


def _metres_per_unit(files: Files, name: str) -> float:
    for row in csv.reader(io.StringIO(files.text(name))):
        if row and row[0] == "meters_per_asset_unit":
            return float(row[1])
    raise Anchor3RError(f"{files.root / name} has no meters_per_asset_unit; get it again")


@lru_cache(maxsize=2)
def _parameters(files: Files) -> dict[str, dict[str, str]]:
    return {row["scene_name"]: row for row in csv.DictReader(io.StringIO(files.text(PARAMETERS)))}


def _projection(files: Files, scene: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the scene's OpenGL projection matrix: fx, fy, cx, cy (4,), and the rotation (3, 3) to the camera
    that has them from the one whose orientation is stated, both in OpenCV axes."""
    row = _parameters(files).get(scene)
    if row is None:
        raise Anchor3RError(f"{files.root / PARAMETERS} has no scene {scene}; get it again")
    width, height = (float(row[f"settings_output_img_{side}"]) for side in ("width", "height"))
    clip_from_camera = np.array([[float(row[f"M_proj_{i}{j}"]) for j in range(3)] for i in (0, 1, 3)])
    # OpenGL's image spans -1 … 1 from border to border.
    pixel_from_clip = np.array(
        [[width / 2, 0, width / 2 - 0.5], [0, -height / 2, height / 2 - 0.5], [0, 0, 1]]
    )
    matrix, rotation = rq(pixel_from_clip @ clip_from_camera @ OPENCV_FROM_OPENGL)
    signs = np.sign(np.diag(matrix))
    matrix, rotation = matrix * signs / abs(matrix[2, 2]), signs[:, None] * rotation
    if np.linalg.det(rotation) < 0 or abs(matrix[0, 1]) > LARGEST_SKEW * matrix[0, 0]:
        raise Anchor3RError(f"the camera of {scene} is skewed, which no pinhole camera is")
    return np.array([matrix[0, 0], matrix[1, 1], matrix[0, 2], matrix[1, 2]]), rotation


def _tone_mapped(linear: NDArray[np.float32]) -> NDArray[np.uint8]:
    brightness = linear @ np.array([0.3, 0.59, 0.11], np.float32)
    bright = np.percentile(brightness[np.isfinite(brightness)], BRIGHT_PERCENTILE)
    gain = BRIGHT_LEVEL**GAMMA / max(float(bright), 1e-4)
    shown = np.nan_to_num(np.clip(gain * linear, 0, 1)) ** (1 / GAMMA)
    return np.round(255 * shown).astype(np.uint8)
