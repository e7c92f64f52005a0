"""Virtual KITTI 2: five KITTI drives as a game engine shows them, in ten conditions, with two cameras."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import Card, DataSet, SequenceTable, rigid
from anchor3r.datasets.files import Files
from anchor3r.datasets.formats import metres, png16
from anchor3r.errors import Anchor3RError

UNITS_PER_M = 100.0
NO_DEPTH = 65535
"""The sky."""


class VirtualKitti2(DataSet):
    """extrinsic.txt: frame, camera and a 4×4 world-to-camera matrix in OpenCV axes."""

    card = Card(
        name="vkitti2",
        title="Virtual KITTI 2",
        licence="CC BY-NC-SA 3.0",
        size="7 GB images, 8 GB depth",
        scenes="5 drives × 10 conditions × 2 cameras",
        kind="synthetic",
        download="vkitti_2.0.3_rgb, _depth and _textgt of "
        "https://europe.naverlabs.com/research/computer-vision/proxy-virtual-worlds-vkitti-2",
        layout="SceneXX/CONDITION with intrinsic.txt, extrinsic.txt and frames/rgb/Camera_X",
    )
    depth_is_clean = True

    def names(self, files: Files) -> list[str]:
        drives = [drive for scene in files.folders() for drive in files.folders(scene)]
        drives = [drive for drive in drives if files.exists(f"{drive}/extrinsic.txt")]
        return [f"{d}/{c.rpartition('/')[2]}" for d in drives for c in files.folders(f"{d}/frames/rgb")]

    def place(self, name: str) -> str:
        return name.split("/")[0]

    def index(self, files: Files, name: str) -> SequenceTable:
        drive, _, camera = name.rpartition("/")
        images = files.files(f"{drive}/frames/rgb/{camera}", (".jpg", ".png"))
        numbers = [int(image.rpartition("_")[2].split(".")[0]) for image in images]
        which = int(camera.rpartition("_")[2])
        extrinsic = camera_rows(files, f"{drive}/extrinsic.txt", 16, which)
        intrinsic = camera_rows(files, f"{drive}/intrinsic.txt", 4, which)
        missing = [n for n in numbers if n not in extrinsic or n not in intrinsic]
        if missing:
            raise Anchor3RError(f"{files.root / drive}: frame {missing[0]} has an image, but no camera")
        matrices = np.array([extrinsic[n] for n in numbers]).reshape(-1, 4, 4)
        depths = f"{drive}/frames/depth/{camera}"
        return SequenceTable(
            name=name,
            images=tuple(images),
            depths=tuple(f"{depths}/depth_{n:05d}.png" for n in numbers) if files.files(depths) else (),
            camera_from_world=rigid(matrices, f"{drive}/extrinsic.txt"),
            cameras=np.array([intrinsic[n] for n in numbers]),
        )

    def depth(self, files: Files, table: SequenceTable, index: int) -> NDArray[Any]:
        return metres(png16(files, table.depths[index]), UNITS_PER_M, NO_DEPTH)


def camera_rows(files: Files, name: str, count: int, camera: int) -> dict[int, NDArray[np.float64]]:
    """The `count` numbers of each frame of one camera, of a table `frame camera number …` with headings."""
    rows = files.table(name, 2 + count, skip=1)
    return {int(row[0]): row[2:] for row in rows if int(row[1]) == camera}
