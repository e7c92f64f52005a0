"""Mapillary Planet-Scale Depth: street-level photos of many cameras, reconstructed with OpenSfM.

Poses are OpenSfM's shots: axis-angle and translation, world-to-camera in OpenCV axes. A focal length is given
for the larger side of the picture as 1, the principal point is the middle, the lens is already taken out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import numpy as np

from anchor3r.datasets.dataset import Card, DataSet, Picture, SequenceTable
from anchor3r.datasets.files import Files
from anchor3r.datasets.formats import png16
from anchor3r.geometry import Pinhole, so3_exp

UNITS_PER_M = 100.0
TOO_FAR = 65500
"""From here on values mean that depth is not known."""


class Mapillary(DataSet):
    """Depth is smaller than its photo, which is brought to its size."""

    card = Card(
        name="mapillary",
        title="Mapillary Planet-Scale Depth",
        licence="CC BY-NC-SA 4.0",
        size="about 200 GB",
        scenes="750,000 photos in about 76,000 reconstructions",
        kind="real",
        download="the archives of https://www.mapillary.com/dataset/depth",
        layout="train.json, val.json, train, val and reconstruction_data/PART/TIME/reconstruction.json",
        ordered=False,
    )

    def names(self, files: Files) -> list[str]:
        parts = files.folders("reconstruction_data")
        places = [place for part in parts for place in files.folders(part)]
        return [place for place in places if files.exists(f"{place}/reconstruction.json")]

    def index(self, files: Files, name: str) -> SequenceTable:
        reconstruction = cast(list[dict[str, Any]], files.json(f"{name}/reconstruction.json"))
        shots = reconstruction[0]["shots"] if reconstruction else {}
        photos = _photos(files)
        keys = sorted(key for key in shots if key in photos)
        rotation = so3_exp(np.array([shots[key]["rotation"] for key in keys], float).reshape(-1, 3))
        translation = np.array([shots[key]["translation"] for key in keys], float).reshape(-1, 3, 1)
        focal = np.array([photos[key][1] for key in keys], float)
        return SequenceTable(
            name=name,
            images=tuple(f"{photos[key][0]}/{key}.jpg" for key in keys),
            depths=tuple(f"{photos[key][0]}/{key}.png" for key in keys),
            camera_from_world=np.concatenate([rotation, translation], -1),
            cameras=np.stack([focal, focal, 0 * focal, 0 * focal], -1),
        )

    def picture(self, files: Files, table: SequenceTable, index: int) -> Picture:
        import cv2

        units = png16(files, table.depths[index])
        height, width = units.shape
        image = self.image(files, table.images[index])
        if image.shape[:2] != units.shape:
            image = np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
        focal = float(table.cameras[index, 0]) * max(width, height)
        depth_m = np.where(units < TOO_FAR, units, 0).astype(np.float32) / np.float32(UNITS_PER_M)
        return Picture(
            image, depth_m, Pinhole(focal, focal, (width - 1) / 2, (height - 1) / 2, width, height)
        )


@lru_cache(maxsize=2)
def _photos(files: Files) -> dict[str, tuple[str, float]]:
    """Folder and focal length of every photo."""
    found: dict[str, tuple[str, float]] = {}
    for part in ("train", "val"):
        if files.exists(f"{part}.json"):
            listed = cast(dict[str, dict[str, Any]], files.json(f"{part}.json"))
            found |= {key: (part, float(entry["focal"])) for key, entry in listed.items()}
    return found
