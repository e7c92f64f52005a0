"""Replica as rendered for SLAM: eight rooms, 2,000 frames each (of iMAP, published by NICE-SLAM)."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import Card, DataSet, SequenceTable, poses_from_camera
from anchor3r.datasets.files import Files
from anchor3r.datasets.formats import metres, png16


class Replica(DataSet):
    """traj.txt has camera-to-world matrices in OpenCV axes; cam_params.json the camera and depth's unit."""

    card = Card(
        name="replica",
        title="Replica (rendered for SLAM)",
        licence="Replica licence (research)",
        size="12 GB",
        scenes="8 rooms",
        kind="synthetic",
        download="https://cvg-data.inf.ethz.ch/nice-slam/data/Replica.zip",
        layout="cam_params.json and ROOM/traj.txt with ROOM/results",
    )
    depth_is_clean = True

    def names(self, files: Files) -> list[str]:
        return [room for room in files.folders() if files.exists(f"{room}/traj.txt")]

    def index(self, files: Files, name: str) -> SequenceTable:
        images = files.files(f"{name}/results", ".jpg")
        poses = files.table(f"{name}/traj.txt", 16).reshape(-1, 4, 4)
        camera = cast(dict[str, dict[str, float]], files.json("cam_params.json"))["camera"]
        numbers = [int(image.rpartition("frame")[2].removesuffix(".jpg")) for image in images]
        return SequenceTable(
            name=name,
            images=tuple(images),
            depths=tuple(f"{name}/results/depth{number:06d}.png" for number in numbers),
            camera_from_world=poses_from_camera(poses[numbers], f"{name}/traj.txt"),
            cameras=np.tile([camera[key] for key in ("fx", "fy", "cx", "cy")], (len(images), 1)),
            lens=np.full((len(images), 1), camera["scale"]),
        )

    def depth(self, files: Files, table: SequenceTable, index: int) -> NDArray[Any]:
        return metres(png16(files, table.depths[index]), table.lens[index, 0])
