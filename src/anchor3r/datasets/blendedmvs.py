"""BlendedMVS: photo collections from drones and hands, blended with renderings of their meshes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import Card, DataSet, SequenceTable, common_stems, rigid
from anchor3r.datasets.files import Files
from anchor3r.datasets.formats import pfm
from anchor3r.errors import Anchor3RError


class BlendedMvs(DataSet):
    """cams/XXXXXXXX_cam.txt: `extrinsic`, a 4×4 world-to-camera matrix, `intrinsic`, a 3×3 matrix."""

    card = Card(
        name="blendedmvs",
        title="BlendedMVS",
        licence="CC BY 4.0",
        size="27.5 GB low resolution, 156 GB high; + and ++ 81.5 + 80 GB low",
        scenes="502 scenes with + and ++",
        kind="real",
        download="BlendedMVS, BlendedMVS+ and BlendedMVS++ of https://github.com/YoYo000/BlendedMVS",
        layout="SCENE with blended_images, cams and rendered_depth_maps",
        ordered=False,
        metric=False,
    )

    def names(self, files: Files) -> list[str]:
        inner = [s for top in files.folders() if top.startswith("BlendedMVS") for s in files.folders(top)]
        return [scene for scene in files.folders() + inner if files.files(f"{scene}/cams", "_cam.txt")]

    def index(self, files: Files, name: str) -> SequenceTable:
        cams = [path.removesuffix("_cam.txt") for path in files.files(f"{name}/cams", "_cam.txt")]
        stems = common_stems(cams, files.files(f"{name}/blended_images"))
        cameras = [_camera(files, f"{name}/cams/{stem}_cam.txt") for stem in stems]
        matrices = np.array([extrinsic for extrinsic, _ in cameras])
        return SequenceTable(
            name=name,
            images=tuple(f"{name}/blended_images/{stem}.jpg" for stem in stems),
            depths=tuple(f"{name}/rendered_depth_maps/{stem}.pfm" for stem in stems),
            camera_from_world=rigid(matrices, f"{name}/cams"),
            cameras=np.array([[k[0, 0], k[1, 1], k[0, 2], k[1, 2]] for _, k in cameras]),
        )

    def depth(self, files: Files, table: SequenceTable, index: int) -> NDArray[Any]:
        return pfm(files, table.depths[index])


def _camera(files: Files, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    words = files.text(name).split()
    try:
        at = words.index("intrinsic")
        extrinsic = np.array(words[words.index("extrinsic") + 1 :][:16], float).reshape(4, 4)
        return extrinsic, np.array(words[at + 1 : at + 10], float).reshape(3, 3)
    except ValueError as error:
        raise Anchor3RError(f"{files.root / name} is no camera file ({error}); get it again") from error
