"""DL3DV-10K: walks through ten thousand places with phones and drones, poses by COLMAP, without depth."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from anchor3r.datasets.dataset import Card, DataSet, Picture, SequenceTable, poses_from_camera
from anchor3r.datasets.files import Files
from anchor3r.sources.undistortion import undistorted_and_cropped

FOLDERS = ("images_4", "images_8", "images_2", "images")
"""In order of preference: 960, 480, 1,920 and 3,840 pixels wide."""
OPENGL_FROM_OPENCV = np.diag([1.0, -1.0, -1.0, 1.0])


class Dl3dv(DataSet):
    """transforms.json as nerfstudio has it: camera-to-world, OpenGL axes, the lens of full-size pictures."""

    card = Card(
        name="dl3dv",
        title="DL3DV-10K",
        licence="DL3DV terms (non-commercial)",
        size="1.8 TB at 960p",
        scenes="10,510 videos",
        kind="real",
        download="DL3DV-ALL-960P of https://huggingface.co/DL3DV, unpacked",
        layout="1K … 11K/SCENE with transforms.json and images_4",
        depth="none",
        metric=False,
    )

    def names(self, files: Files) -> list[str]:
        scenes = [scene for part in files.folders() for scene in files.folders(part)]
        # The archive of a scene may unpack into a folder of its own name.
        scenes += [inner for scene in scenes for inner in files.folders(scene)]
        return [s for s in files.folders() + scenes if files.exists(f"{s}/transforms.json")]

    def index(self, files: Files, name: str) -> SequenceTable:
        content = cast(dict[str, Any], files.json(f"{name}/transforms.json"))
        folder = next((f for f in FOLDERS if files.files(f"{name}/{f}")), FOLDERS[0])
        there = {path.rpartition("/")[2]: path for path in files.files(f"{name}/{folder}")}
        frames = [(frame["file_path"].rpartition("/")[2], frame) for frame in content["frames"]]
        frames = sorted(((key, frame) for key, frame in frames if key in there), key=lambda pair: pair[0])
        poses = np.array([frame["transform_matrix"] for _, frame in frames], float).reshape(-1, 4, 4)
        camera = [content["fl_x"], content["fl_y"], content["cx"] - 0.5, content["cy"] - 0.5]
        lens = [content["w"], content["h"], *(content.get(key, 0.0) for key in ("k1", "k2", "p1", "p2"))]
        return SequenceTable(
            name=name,
            images=tuple(there[key] for key, _ in frames),
            camera_from_world=poses_from_camera(poses @ OPENGL_FROM_OPENCV, f"{name}/transforms.json"),
            cameras=np.tile(np.array(camera, float), (len(frames), 1)),
            lens=np.tile(np.array(lens, float), (len(frames), 1)),
        )

    def picture(self, files: Files, table: SequenceTable, index: int) -> Picture:
        image = self.image(files, table.images[index])
        width, height, *distortion = table.lens[index].tolist()
        full = table.camera(index, int(width), int(height))
        lens = full.resized(image.shape[1], image.shape[0])
        image, camera = undistorted_and_cropped(image, lens, tuple(distortion))
        return Picture(image, None, camera)
