"""Spring: scenes of an animated film, stereo, with disparity at twice the pictures' resolution."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import Card, DataSet, SequenceTable, rigid
from anchor3r.datasets.files import Files
from anchor3r.datasets.formats import hdf5, mask

BASELINE_M = 0.065


class Spring(DataSet):
    """cam_data: a line a frame with fx fy cx cy, and with the left camera's 4×4 world-to-camera matrix."""

    card = Card(
        name="spring",
        title="Spring",
        licence="CC BY 4.0",
        size="60 GB (frames, disparity and camera data of the training part)",
        scenes="37 training scenes, two cameras",
        kind="synthetic",
        download="train_frame_*, train_disp1_*, train_maps and train_cam_data of https://spring-benchmark.org",
        layout="train/XXXX with cam_data, frame_left and disp1_left",
    )

    def names(self, files: Files) -> list[str]:
        scenes = files.folders("train") or files.folders("spring/train")
        eyes = [(scene, side) for scene in scenes for side in ("left", "right")]
        return [f"{scene}/{side}" for scene, side in eyes if files.files(f"{scene}/frame_{side}", ".png")]

    def place(self, name: str) -> str:
        return name.rpartition("/")[0]

    def index(self, files: Files, name: str) -> SequenceTable:
        scene, _, side = name.rpartition("/")
        images = files.files(f"{scene}/frame_{side}", ".png")
        numbers = [image.rpartition("_")[2].removesuffix(".png") for image in images]
        rows = [int(number) - 1 for number in numbers]
        matrices = files.table(f"{scene}/cam_data/extrinsics.txt", 16).reshape(-1, 4, 4)[rows, :3]
        if side == "right":
            matrices[:, 0, 3] -= BASELINE_M
        depths = f"{scene}/disp1_{side}"
        return SequenceTable(
            name=name,
            images=tuple(images),
            depths=tuple(f"{depths}/disp1_{side}_{n}.dsp5" for n in numbers) if files.files(depths) else (),
            camera_from_world=rigid(matrices, f"{scene}/cam_data/extrinsics.txt"),
            cameras=files.table(f"{scene}/cam_data/intrinsics.txt", 4)[rows],
        )

    def depth(self, files: Files, table: SequenceTable, index: int) -> NDArray[Any]:
        # Twice as many pixels, but lengths are of the picture's own.
        disparity = hdf5(files, table.depths[index], "disparity")[::2, ::2]
        with np.errstate(divide="ignore", invalid="ignore"):
            depth = table.cameras[index, 0] * BASELINE_M / disparity
        scene, _, side = table.name.rpartition("/")
        number = table.depths[index].rpartition("_")[2].removesuffix(".dsp5")
        sky = f"{scene}/maps/skymap_{side}/skymap_{side}_{number}.png"
        if files.exists(sky):
            depth = np.where(mask(files, sky)[::2, ::2], 0, depth)
        return depth
