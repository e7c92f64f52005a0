"""Map-free Relocalisation: two phone videos of each of 655 places of interest, without depth."""

from __future__ import annotations

import numpy as np

from anchor3r.datasets.dataset import Card, DataSet, SequenceTable
from anchor3r.datasets.files import Files
from anchor3r.geometry import rotation_from_quat


class MapFree(DataSet):
    """poses.txt: image, quaternion w x y z and translation, world-to-camera in OpenCV axes, metres."""

    card = Card(
        name="mapfree",
        title="Map-free Visual Relocalization",
        licence="non-commercial research (Niantic)",
        size="70 GB",
        scenes="460 training places, two videos each",
        kind="real",
        download="train.zip of https://research.nianticlabs.com/mapfree-reloc-benchmark",
        layout="train/sXXXXX with poses.txt, intrinsics.txt, seq0 and seq1",
        depth="none",
    )

    def names(self, files: Files) -> list[str]:
        places = [p for p in files.folders("train") or files.folders() if files.exists(f"{p}/poses.txt")]
        return [video for place in places for video in files.folders(place)]

    def place(self, name: str) -> str:
        return name.rpartition("/")[0]

    def index(self, files: Files, name: str) -> SequenceTable:
        place, _, video = name.rpartition("/")
        images = files.files(name, (".jpg", ".png"))
        poses = _rows(files, f"{place}/poses.txt")
        cameras = _rows(files, f"{place}/intrinsics.txt")
        keys = [f"{video}/{image.rpartition('/')[2]}" for image in images]
        pose = np.array([poses.get(key, [np.nan] * 7) for key in keys], float).reshape(-1, 7)
        known = np.isfinite(pose).all(1)
        rotation = rotation_from_quat(np.where(known[:, None], pose[:, :4], [1, 0, 0, 0]))
        matrices = np.concatenate([rotation, pose[:, 4:, None]], -1)
        matrices[~known] = np.nan
        return SequenceTable(
            name=name,
            images=tuple(images),
            camera_from_world=matrices,
            cameras=np.array([cameras.get(key, [0.0] * 6)[:4] for key in keys], float).reshape(-1, 4),
        )


def _rows(files: Files, name: str) -> dict[str, list[float]]:
    """The numbers of each image that a file of lines `image number …` names."""
    rows = [line.split() for line in files.lines(name)]
    return {row[0]: [float(value) for value in row[1:]] for row in rows if row}
