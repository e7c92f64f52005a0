"""WildRGB-D: objects on tables, filmed all around with a phone's RGB and depth cameras."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import (
    Card,
    DataSet,
    SequenceTable,
    cameras_from_matrix,
    common_stems,
    poses_from_camera,
)
from anchor3r.datasets.files import Files
from anchor3r.datasets.formats import metres, png16

UNITS_PER_M = 1000.0


class WildRgbd(DataSet):
    """cam_poses.txt has the number of a frame and its camera-to-world matrix in OpenCV axes a line."""

    card = Card(
        name="wildrgbd",
        title="WildRGB-D",
        licence="MIT",
        size="3.4 TB of archives, 4 TB unpacked",
        scenes="about 23,000 videos of 8,500 objects in 46 categories",
        kind="real",
        download="the categories from https://huggingface.co/datasets/hongchi/wildrgbd, unpacked",
        layout="CATEGORY/scenes/SCENE with rgb, depth, metadata and cam_poses.txt",
    )
    depth_is_clean = True

    def names(self, files: Files) -> list[str]:
        scenes = [s for category in files.folders() for s in files.folders(f"{category}/scenes")]
        return [scene for scene in scenes if files.exists(f"{scene}/cam_poses.txt")]

    def index(self, files: Files, name: str) -> SequenceTable:
        stems = common_stems(files.files(f"{name}/rgb"), files.files(f"{name}/depth"))
        rows = files.table(f"{name}/cam_poses.txt", 17)
        pose_of = dict(zip(rows[:, 0].astype(int).tolist(), rows[:, 1:].reshape(-1, 4, 4), strict=True))
        unknown = np.full((4, 4), np.nan)
        poses = np.array([pose_of.get(int(stem), unknown) for stem in stems])
        # The matrix is written column by column.
        camera = cast(dict[str, Any], files.json(f"{name}/metadata"))
        return SequenceTable(
            name=name,
            images=tuple(f"{name}/rgb/{stem}.png" for stem in stems),
            depths=tuple(f"{name}/depth/{stem}.png" for stem in stems),
            camera_from_world=poses_from_camera(poses, f"{name}/cam_poses.txt"),
            cameras=cameras_from_matrix(np.array(camera["K"], float).reshape(3, 3).T, len(stems)),
        )

    def depth(self, files: Files, table: SequenceTable, index: int) -> NDArray[Any]:
        return metres(png16(files, table.depths[index]), UNITS_PER_M)
