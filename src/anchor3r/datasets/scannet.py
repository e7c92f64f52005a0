"""ScanNet: rooms scanned with a tablet's depth sensor, one .sens file a scan.

A .sens file has a header with two cameras, then frame after frame: pose, times, sizes, JPEG, deflated depth.
Colour and depth were taken from one place: colour is brought to the smaller picture of depth.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import Card, DataSet, Picture, SequenceTable, decode_image, poses_from_camera
from anchor3r.datasets.files import Files
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.sources.source import UndecodableFrameError

VERSION = 4
JPEG, ZLIB_USHORT = 2, 1
_SIZES = struct.Struct("<ii4IfQ")
"""Compressions of colour and depth, sizes of both, depth units a metre, number of frames."""
_FRAME = struct.Struct("<16f4Q")
"""Camera-to-world, times of colour and depth, sizes of both in bytes."""


class ScanNet(DataSet):
    """Poses are camera-to-world in OpenCV axes, infinite where tracking was lost."""

    card = Card(
        name="scannet",
        title="ScanNet",
        licence="ScanNet terms of use (research)",
        size="1.3 TB",
        scenes="1,613 scans of 807 rooms",
        kind="real",
        download="the .sens files with download-scannet.py of http://www.scan-net.org",
        layout="scans/sceneXXXX_XX/sceneXXXX_XX.sens",
    )

    def names(self, files: Files) -> list[str]:
        scans = files.folders("scans") or files.folders()
        return [scan for scan in scans if files.exists(_file_of(scan))]

    def place(self, name: str) -> str:
        return name.rpartition("_")[0]

    def index(self, files: Files, name: str) -> SequenceTable:
        path = _file_of(name)
        with files.open(path) as file:
            camera, lens, count = _header(file, str(files.root / path))
            images, depths = [], []
            poses: list[list[float]] = []
            for _ in range(count):
                record = file.read(_FRAME.size)
                if len(record) < _FRAME.size:
                    raise Anchor3RError(f"{files.root / path} ends in frame {len(poses)}; get it again")
                *pose, _, _, image_size, depth_size = _FRAME.unpack(record)
                begin = file.tell()
                images.append(f"{path}@{begin}+{image_size}")
                depths.append(f"{path}@{begin + image_size}+{depth_size}")
                poses.append(pose)
                file.seek(begin + image_size + depth_size)
        return SequenceTable(
            name=name,
            images=tuple(images),
            depths=tuple(depths),
            camera_from_world=poses_from_camera(np.array(poses).reshape(-1, 4, 4), path),
            cameras=np.tile(camera, (count, 1)),
            lens=np.tile(lens, (count, 1)),
        )

    def picture(self, files: Files, table: SequenceTable, index: int) -> Picture:
        width, height, units_per_m, *colour_camera = table.lens[index].tolist()
        try:
            raw = zlib.decompress(_bytes(files, table.depths[index]))
            depth = np.frombuffer(raw, "<u2").reshape(int(height), int(width))
        except (zlib.error, ValueError) as error:
            raise UndecodableFrameError(
                f"cannot decode depth {index} of {table.name} ({error}); get the scan again"
            ) from error
        image = decode_image(_bytes(files, table.images[index]), f"{table.name}, frame {index}")
        camera = table.camera(index, int(width), int(height))
        return Picture(
            _seen_by(image, colour_camera, camera), (depth / units_per_m).astype(np.float32), camera
        )


def _file_of(scan: str) -> str:
    return f"{scan}/{scan.rpartition('/')[2]}.sens"


def _bytes(files: Files, part: str) -> bytes:
    """What "FILE@BEGIN+SIZE" names."""
    name, _, place = part.rpartition("@")
    begin, size = map(int, place.split("+"))
    with files.open(name) as file:
        file.seek(begin)
        return file.read(size)


def _header(file: BinaryIO, path: str) -> tuple[NDArray[Any], NDArray[Any], int]:
    """Depth camera (4,), lens (7,): width, height, units a metre, colour camera; and the number of frames."""
    try:
        version, length = struct.unpack("<IQ", file.read(12))
        if version != VERSION:
            raise ValueError(f"its version is {version}, not {VERSION}")
        file.seek(length, 1)
        # Intrinsics and extrinsics of colour, then of depth; the extrinsics are identities.
        colour, _, depth, _ = np.frombuffer(file.read(4 * 64), "<f4").astype(float).reshape(4, 4, 4)
        jpeg, deflated, _, _, width, height, units, count = _SIZES.unpack(file.read(_SIZES.size))
        if (jpeg, deflated) != (JPEG, ZLIB_USHORT):
            raise ValueError(f"its compressions are {jpeg} and {deflated}, not JPEG and zlib")
    except (struct.error, ValueError) as error:
        raise Anchor3RError(f"{path} is no ScanNet scan ({error}); get it again") from error
    numbers = [np.array([m[0, 0], m[1, 1], m[0, 2], m[1, 2]]) for m in (depth, colour)]
    return numbers[0], np.concatenate([[width, height, units], numbers[1]]), count


def _seen_by(image: NDArray[np.uint8], colour_camera: list[float], camera: Pinhole) -> NDArray[np.uint8]:
    """The picture of the colour camera as the depth camera sees it from the same place."""
    import cv2

    fx, fy, cx, cy = colour_camera
    size = (camera.width, camera.height)
    colour = Pinhole(fx, fy, cx, cy, image.shape[1], image.shape[0]).resized(*size)
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA) if image.shape[1::-1] != size else image
    affine = (colour.matrix() @ np.linalg.inv(camera.matrix()))[:2]
    if np.abs(affine - np.eye(2, 3)).max() < 1e-6:
        return np.asarray(small, np.uint8)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return np.asarray(cv2.warpAffine(small, affine, size, flags=flags), np.uint8)
