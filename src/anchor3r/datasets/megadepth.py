"""MegaDepth: tourists' photos of 196 places, reconstructed with COLMAP, with filtered stereo depth.

Photos lie undistorted beside their depth; the camera of each follows from the model's, by the same rule that
COLMAP undistorted it with.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.colmap_models import ColmapCamera, read_model
from anchor3r.datasets.dataset import Card, DataSet, Picture, SequenceTable
from anchor3r.datasets.files import Files
from anchor3r.datasets.formats import hdf5
from anchor3r.geometry import Pinhole, rotation_from_quat
from anchor3r.io.extras import data_library

TOPS = ("", "MegaDepth_v1", "phoenix/S6/zl548/MegaDepth_v1")
"""Where the archive with depth puts its places."""
MODEL_TOPS = (*TOPS, "MegaDepth_v1_SfM")


class MegaDepth(DataSet):
    """depths/*.h5 holds depth along z; what is not positive is unknown or an ordinal label."""

    card = Card(
        name="megadepth",
        title="MegaDepth",
        licence="MIT (photos: Flickr's)",
        size="199 GB, and 667 GB of models",
        scenes="196 places",
        kind="real",
        download="MegaDepth v1 and the SfM models of https://www.cs.cornell.edu/projects/megadepth",
        layout="PLACE/denseK with imgs and depths, and PLACE/sparse/manhattan/K",
        ordered=False,
        metric=False,
    )

    def names(self, files: Files) -> list[str]:
        places = [place for top in TOPS for place in files.folders(top)]
        dense = [folder for place in places for folder in files.folders(place)]
        return [folder for folder in dense if files.files(f"{folder}/depths", ".h5")]

    def index(self, files: Files, name: str) -> SequenceTable:
        place, number = name.split("/")[-2], name.rpartition("dense")[2]
        candidates = [f"{top}/{place}/sparse/manhattan/{number}".lstrip("/") for top in MODEL_TOPS]
        folder = next((f for f in candidates if files.files(f)), candidates[0])
        cameras, images = read_model(files, folder)
        kept = [
            image
            for image in images
            if files.exists(_depth_of(name, image.name)) and files.exists(f"{name}/imgs/{image.name}")
        ]
        rotation = rotation_from_quat(np.array([image.quat_wxyz for image in kept]).reshape(-1, 4))
        translation = np.array([image.translation for image in kept]).reshape(-1, 3, 1)
        ideal = [_undistorted(cameras[image.camera]) for image in kept]
        return SequenceTable(
            name=name,
            images=tuple(f"{name}/imgs/{image.name}" for image in kept),
            depths=tuple(_depth_of(name, image.name) for image in kept),
            camera_from_world=np.concatenate([rotation, translation], -1),
            cameras=np.array([[c.fx, c.fy, c.cx, c.cy] for c in ideal]).reshape(-1, 4),
            lens=np.array([[c.width, c.height] for c in ideal], float).reshape(-1, 2),
        )

    def picture(self, files: Files, table: SequenceTable, index: int) -> Picture:
        image = self.image(files, table.images[index])
        width, height = table.lens[index].astype(int).tolist()
        # Large photos were made smaller after they were undistorted.
        camera = table.camera(index, width, height).resized(image.shape[1], image.shape[0])
        return Picture(image, self.depth_of(files, table, index, image), camera)

    def depth(self, files: Files, table: SequenceTable, index: int) -> NDArray[Any]:
        return hdf5(files, table.depths[index], "depth")


def _depth_of(name: str, image: str) -> str:
    return f"{name}/depths/{image.rpartition('.')[0]}.h5"


@lru_cache(maxsize=4096)
def _undistorted(camera: ColmapCamera) -> Pinhole:
    """The ideal camera that COLMAP makes of one with a lens; its pixels are counted from the border."""
    pycolmap = data_library("pycolmap")
    with_lens = pycolmap.Camera(
        model=camera.model, width=camera.width, height=camera.height, params=list(camera.params)
    )
    ideal = pycolmap.undistort_camera(pycolmap.UndistortCameraOptions(), with_lens)
    k = ideal.calibration_matrix()
    return Pinhole(k[0, 0], k[1, 1], k[0, 2] - 0.5, k[1, 2] - 0.5, ideal.width, ideal.height)
