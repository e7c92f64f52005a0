"""HyperSim: rendered indoor scenes, about a hundred views a camera trajectory.

Depth is the distance to the camera's centre; positions are in the scene's own unit; orientations are
camera-to-world in OpenGL axes; the projection of each scene is in metadata_camera_parameters.csv.
"""

from __future__ import annotations

import csv
import io
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import Card, DataSet, SequenceTable, poses_from_camera
from anchor3r.datasets.files import Files
from anchor3r.datasets.formats import hdf5
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole

PARAMETERS = "metadata_camera_parameters.csv"
OPENCV_FROM_OPENGL = np.diag([1.0, -1.0, -1.0])
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
        depths = files.files(f"{name}_geometry_hdf5", ".depth_meters.hdf5")
        numbers = [int(depth.rpartition("/")[2].split(".")[1]) for depth in depths]
        rotation = orientations[numbers] @ OPENCV_FROM_OPENGL
        poses = np.concatenate([rotation, unit_m * positions[numbers][..., None]], -1)
        return SequenceTable(
            name=name,
            images=tuple(_image_of(files, name, number) for number in numbers),
            depths=tuple(depths),
            camera_from_world=poses_from_camera(poses, detail),
            cameras=np.tile(_projection(files, scene), (len(depths), 1)),
        )

    def image(self, files: Files, name: str) -> NDArray[np.uint8]:
        if not name.endswith(".hdf5"):
            return super().image(files, name)
        return _tone_mapped(hdf5(files, name, "dataset").astype(np.float32))

    def depth(self, files: Files, table: SequenceTable, index: int) -> NDArray[Any]:
        distance = hdf5(files, table.depths[index], "dataset").astype(np.float32)
        return distance * _cosines(table.camera(index, distance.shape[1], distance.shape[0]))


def _image_of(files: Files, name: str, number: int) -> str:
    preview = f"{name}_final_preview/frame.{number:04d}.tonemap.jpg"
    return preview if files.exists(preview) else f"{name}_final_hdf5/frame.{number:04d}.color.hdf5"


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


def _projection(files: Files, scene: str) -> NDArray[np.float64]:
    """(4,) fx, fy, cx, cy of the scene's OpenGL projection matrix."""
    row = _parameters(files).get(scene)
    if row is None:
        raise Anchor3RError(f"{files.root / PARAMETERS} has no scene {scene}; get it again")
    width, height = (float(row[f"settings_output_img_{side}"]) for side in ("width", "height"))
    m = {key: float(row[f"M_proj_{key}"]) for key in ("00", "01", "02", "10", "11", "12")}
    if abs(m["01"]) > 1e-6 or abs(m["10"]) > 1e-6:
        raise Anchor3RError(f"the camera of {scene} is skewed, which no pinhole camera is")
    # OpenGL's image spans -1 … 1 from border to border.
    cx, cy = (1 - m["02"]) * width / 2 - 0.5, (1 + m["12"]) * height / 2 - 0.5
    return np.array([m["00"] * width / 2, m["11"] * height / 2, cx, cy])


def _tone_mapped(linear: NDArray[np.float32]) -> NDArray[np.uint8]:
    brightness = linear @ np.array([0.3, 0.59, 0.11], np.float32)
    bright = np.percentile(brightness[np.isfinite(brightness)], BRIGHT_PERCENTILE)
    gain = BRIGHT_LEVEL**GAMMA / max(float(bright), 1e-4)
    shown = np.nan_to_num(np.clip(gain * linear, 0, 1)) ** (1 / GAMMA)
    return np.round(255 * shown).astype(np.uint8)
