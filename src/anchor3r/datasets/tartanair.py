"""TartanAir: drone flights through 30 simulated environments, easy and hard."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import Card, DataSet, SequenceTable, poses_from_camera
from anchor3r.datasets.files import Files
from anchor3r.datasets.formats import npy
from anchor3r.geometry import rotation_from_quat

CAMERA = (320.0, 320.0, 320.0, 240.0)
"""fx, fy, cx, cy of all pictures, as the authors give them."""
NED_FROM_CAMERA = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
"""Poses are of a body whose x points forward, y right, z down."""
SKY_M = 1000.0
"""What is farther away is sky."""


class TartanAir(DataSet):
    """pose_left.txt: position and quaternion x y z w of the left camera in a north-east-down world."""

    card = Card(
        name="tartanair",
        title="TartanAir",
        licence="CC BY 4.0",
        size="1.3 TB with depth of the left camera",
        scenes="369 flights through 30 environments",
        kind="synthetic",
        download="image_left and depth_left with download_training.py of https://github.com/castacks/tartanair_tools",
        layout="ENVIRONMENT/Easy|Hard/PXXX with image_left, depth_left and pose_left.txt",
    )

    def names(self, files: Files) -> list[str]:
        # The archives unpack into a folder of the environment's name inside one of the same name.
        inner = [f"{e}/{e}" if f"{e}/{e}" in files.folders(e) else e for e in files.folders()]
        flights = [p for env in inner for level in ("Easy", "Hard") for p in files.folders(f"{env}/{level}")]
        return [flight for flight in flights if files.exists(f"{flight}/pose_left.txt")]

    def index(self, files: Files, name: str) -> SequenceTable:
        images = files.files(f"{name}/image_left", ".png")
        numbers = [int(image.rpartition("/")[2].split("_")[0]) for image in images]
        rows = files.table(f"{name}/pose_left.txt", 7)[numbers]
        rotation = rotation_from_quat(np.roll(rows[:, 3:], 1, axis=1)) @ NED_FROM_CAMERA
        return SequenceTable(
            name=name,
            images=tuple(images),
            depths=tuple(f"{name}/depth_left/{number:06d}_left_depth.npy" for number in numbers),
            camera_from_world=poses_from_camera(np.concatenate([rotation, rows[:, :3, None]], -1), name),
            cameras=np.tile(CAMERA, (len(images), 1)),
        )

    def depth(self, files: Files, table: SequenceTable, index: int) -> NDArray[Any]:
        depth = npy(files, table.depths[index])
        return np.where(depth < SKY_M, depth, 0)
