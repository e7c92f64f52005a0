"""Aria Synthetic Environments: walks through generated homes, seen by the fisheye of Aria glasses.

The glasses' camera is mounted sideways. Pictures are straightened to an ideal camera and turned upright.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import Card, DataSet, Picture, SequenceTable
from anchor3r.datasets.files import Files
from anchor3r.datasets.formats import png16
from anchor3r.geometry import SE3, Pinhole, rotation_from_quat
from anchor3r.sources.undistortion import Maps

UNITS_PER_M = 1000.0
NO_DEPTH = 65535
SIZE = 704
"""Pixels a side that the calibration is of."""
FOCAL, CENTRE = 297.6375381033778, (357.6599197217746, 349.1922497127481)
RADIAL = (
    0.3650890375644368, -0.1738082418112771, -0.7534945484033189,
    2.434788882752295, -2.57786220300886, 0.8788483538598834,
)  # fmt: skip
TANGENTIAL = (0.0008005198595407136, -0.000294237814554143)
"""Of the one camera of all sequences (`get_ase_rgb_calibration` of projectaria_tools); its thin-prism terms
are 0."""
DEVICE_FROM_CAMERA = SE3(
    rotation_from_quat(
        np.array([0.9441858687689326, 0.32640934382849085, 0.029274992008313648, 0.033361059956531547])
    ),
    np.array([-0.007530096566173914, -0.01090854984158026, -0.003598063315542823]),
)
UPRIGHT_FROM_CAMERA = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
"""A quarter turn clockwise of the picture."""
FIELD = 512 / SIZE
"""Side of the ideal picture, which has the fisheye's focal length: 81 degrees are seen."""
EDGE = 0.05
"""Depth is not interpolated where its four neighbours differ by more than this part."""


class AriaSynthetic(DataSet):
    """trajectory.csv has poses of the glasses; depth is the distance along a pixel's ray in millimetres."""

    card = Card(
        name="ase",
        title="Aria Synthetic Environments",
        licence="Aria Synthetic Environments licence (research)",
        size="23 TB, in chunks of 500 scenes",
        scenes="100,000 homes",
        kind="synthetic",
        download="the chunks with aria_synthetic_environments_downloader.py of projectaria_tools",
        layout="SCENE with trajectory.csv, rgb and depth",
    )

    def names(self, files: Files) -> list[str]:
        return [scene for scene in files.folders() if files.exists(f"{scene}/trajectory.csv")]

    def index(self, files: Files, name: str) -> SequenceTable:
        images = files.files(f"{name}/rgb", ".jpg")
        numbers = [image.rpartition("vignette")[2].removesuffix(".jpg") for image in images]
        lines = [line.split(",") for line in files.lines(f"{name}/trajectory.csv")[1:] if line]
        rows = np.array([[float(value) for value in line[3:10]] for line in lines])[
            [int(number) for number in numbers]
        ]
        world_from_device = SE3(rotation_from_quat(np.roll(rows[:, 3:], 1, axis=1)), rows[:, :3])
        camera_from_world = (world_from_device @ DEVICE_FROM_CAMERA).inverse()
        upright = SE3(UPRIGHT_FROM_CAMERA, np.zeros(3)) @ camera_from_world
        return SequenceTable(
            name=name,
            images=tuple(images),
            depths=tuple(f"{name}/depth/depth{number}.png" for number in numbers),
            camera_from_world=np.concatenate([upright.rotation, upright.translation[..., None]], -1),
            cameras=np.tile([FOCAL, FOCAL, *CENTRE], (len(images), 1)),
        )

    def picture(self, files: Files, table: SequenceTable, index: int) -> Picture:
        import cv2

        fisheye = self.image(files, table.images[index])
        units = png16(files, table.depths[index])
        camera, (columns, rows) = _straightening(fisheye.shape[1])
        image = cv2.remap(fisheye, columns, rows, cv2.INTER_LINEAR)
        distance = np.where(units == NO_DEPTH, 0, units).astype(np.float32) / np.float32(UNITS_PER_M)
        depth = _interpolated(distance * _cosines(fisheye.shape[1]), columns, rows)
        return Picture(np.ascontiguousarray(np.rot90(image, -1)), np.rot90(depth, -1).copy(), camera)


def projected(rays: NDArray[Any], size: int) -> NDArray[np.float64]:
    """Where rays (..., 3) with z > 0 fall in a fisheye picture `size` pixels wide, (..., 2).

    Fisheye624: r = θ (1 + Σ kᵢ θ²ⁱ), then tangential terms on the distorted point.
    """
    radius = np.linalg.norm(rays[..., :2], axis=-1)
    angle = np.arctan2(radius, rays[..., 2])
    bent = angle * (1 + sum(k * angle ** (2 * i) for i, k in enumerate(RADIAL, 1)))
    with np.errstate(invalid="ignore", divide="ignore"):
        point = np.where(radius[..., None] > 0, bent[..., None] * rays[..., :2] / radius[..., None], 0)
    p = np.array(TANGENTIAL)
    square = (point**2).sum(-1, keepdims=True)
    point = point + 2 * point * (point * p).sum(-1, keepdims=True) + square * p
    scale = size / SIZE
    # Rescaling keeps the borders where they are; a pixel's middle moves.
    return scale * (FOCAL * point + np.array(CENTRE) + 0.5) - 0.5


@lru_cache(maxsize=2)
def _straightening(size: int) -> tuple[Pinhole, Maps]:
    """The ideal camera, turned upright, and where the pixels of the unturned one lie in the fisheye."""
    side = round(FIELD * size)
    focal = FOCAL * size / SIZE
    camera = Pinhole(focal, focal, (side - 1) / 2, (side - 1) / 2, side, side)
    pixel = projected(camera.unproject_map(np.ones((side, side))), size).astype(np.float32)
    return camera, (pixel[..., 0], pixel[..., 1])


@lru_cache(maxsize=2)
def _cosines(size: int) -> NDArray[np.float32]:
    """(size, size) depth along z of a point at distance 1, for every pixel of the fisheye."""
    pixel = np.stack(np.meshgrid(np.arange(size), np.arange(size)), -1).astype(float)
    point = (pixel + 0.5 - (np.array(CENTRE) + 0.5) * size / SIZE) / (FOCAL * size / SIZE)
    rays = np.concatenate([point, np.ones((size, size, 1))], -1)
    for _ in range(20):
        # A fixed point: the distorted point differs from the wanted one by what has to be taken away.
        error = (projected(rays, size) - pixel) / (FOCAL * size / SIZE)
        rays[..., :2] -= np.clip(error, -0.1, 0.1)
    return (1 / np.linalg.norm(rays, axis=-1)).astype(np.float32)


def _interpolated(
    depth: NDArray[np.float32], columns: NDArray[np.float32], rows: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Depth at places between pixels, from inverse depth, which is all but linear on planes; 0 at edges."""
    left, top = np.floor(columns).astype(int), np.floor(rows).astype(int)
    limit = depth.shape[0] - 2
    inside = (left >= 0) & (top >= 0) & (left <= limit) & (top <= limit)
    left, top = np.clip(left, 0, limit), np.clip(top, 0, limit)
    four = np.stack([depth[top + dy, left + dx] for dy in (0, 1) for dx in (0, 1)])
    fx, fy = columns - left, rows - top
    weights = np.stack([wy * wx for wy in (1 - fy, fy) for wx in (1 - fx, fx)])
    known = inside & (four.min(0) > 0) & (four.max(0) < (1 + EDGE) * four.min(0))
    inverse = (weights / np.maximum(four, 1e-6)).sum(0)
    return np.where(known, 1 / np.maximum(inverse, 1e-9), 0).astype(np.float32)
