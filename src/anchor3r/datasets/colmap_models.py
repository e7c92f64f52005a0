"""Cameras and poses of a COLMAP model, as text or binary files, without its points."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.files import Files
from anchor3r.errors import Anchor3RError

MODELS: dict[int, tuple[str, int]] = {
    0: ("SIMPLE_PINHOLE", 3), 1: ("PINHOLE", 4), 2: ("SIMPLE_RADIAL", 4), 3: ("RADIAL", 5), 4: ("OPENCV", 8),
    5: ("OPENCV_FISHEYE", 8), 6: ("FULL_OPENCV", 12),
}  # fmt: skip
"""By their number in binary files: name and how many parameters."""


@dataclass(frozen=True)
class ColmapCamera:
    model: str
    width: int
    height: int
    params: tuple[float, ...]


@dataclass(frozen=True)
class ColmapImage:
    name: str
    camera: int
    quat_wxyz: NDArray[np.float64]
    translation: NDArray[np.float64]
    """Of camera_from_world."""


def read_model(files: Files, folder: str) -> tuple[dict[int, ColmapCamera], list[ColmapImage]]:
    """Cameras by number, and images in the order of their names."""
    try:
        if files.exists(f"{folder}/images.txt"):
            cameras, images = _text_cameras(files, folder), _text_images(files, folder)
        else:
            with files.open(f"{folder}/cameras.bin") as file:
                cameras = _binary_cameras(file)
            with files.open(f"{folder}/images.bin") as file:
                images = _binary_images(file)
    except (ValueError, IndexError, KeyError, struct.error) as error:
        raise Anchor3RError(f"{files.root / folder} is no COLMAP model ({error}); get it again") from error
    return cameras, sorted(images, key=lambda image: image.name)


def _text_cameras(files: Files, folder: str) -> dict[int, ColmapCamera]:
    rows = [line.split() for line in files.lines(f"{folder}/cameras.txt") if line.strip()]
    return {
        int(row[0]): ColmapCamera(row[1], int(row[2]), int(row[3]), tuple(map(float, row[4:])))
        for row in rows
    }


def _text_images(files: Files, folder: str) -> list[ColmapImage]:
    # Two lines an image; the second one, of its points, may be empty.
    lines = files.lines(f"{folder}/images.txt")
    rows = [line.split(maxsplit=9) for line in lines[::2] if line.strip()]
    return [
        ColmapImage(row[9], int(row[8]), np.array(row[1:5], float), np.array(row[5:8], float)) for row in rows
    ]


def _binary_cameras(file: BinaryIO) -> dict[int, ColmapCamera]:
    cameras = {}
    for _ in range(struct.unpack("<Q", file.read(8))[0]):
        number, model, width, height = struct.unpack("<iiQQ", file.read(24))
        name, count = MODELS[model]
        cameras[number] = ColmapCamera(name, width, height, struct.unpack(f"<{count}d", file.read(8 * count)))
    return cameras


def _binary_images(file: BinaryIO) -> list[ColmapImage]:
    images = []
    for _ in range(struct.unpack("<Q", file.read(8))[0]):
        _, *pose, camera = struct.unpack("<i7di", file.read(64))
        name = b""
        while (letter := file.read(1)) not in (b"\0", b""):
            name += letter
        (points,) = struct.unpack("<Q", file.read(8))
        file.seek(24 * points, 1)
        images.append(ColmapImage(name.decode(), camera, np.array(pose[:4]), np.array(pose[4:])))
    return images
