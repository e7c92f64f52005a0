"""A source with exact ground truth that costs nothing to make: noise for images, on a winding path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from anchor3r.geometry import SE3, Pinhole, so3_exp
from anchor3r.sources import Frame
from anchor3r.sources.source import IndexedSource

CAMERA = Pinhole.from_fov(70, 32, 24)


class ToySource(IndexedSource):
    """Noise images with random depth."""

    def __init__(self, length: int, *, stop: int | None = None) -> None:
        super().__init__("toy", slice(stop), length)

    def _load(self, index: int) -> Frame:
        rng = np.random.default_rng(index)
        return Frame(
            index=index,
            timestamp_s=index / 10,
            image=rng.integers(0, 256, (CAMERA.height, CAMERA.width, 3), np.uint8),
            intrinsics=CAMERA,
            depth_m=rng.uniform(2, 6, (CAMERA.height, CAMERA.width)).astype(np.float32),
            camera_from_world=toy_pose(index),
        )


def toy_pose(index: int) -> SE3:
    """camera_from_world"""
    center = np.array([3 * np.sin(index / 9), 0.3 * np.cos(index / 5), 0.5 * index])
    rotation = so3_exp(np.array([0.1 * np.sin(index / 4), 0.5 * np.sin(index / 11), 0.05]))
    return SE3(rotation, -rotation @ center)


def write_toy_sequence(folder: Path, length: int) -> str:
    """Writes the toy frames in the layout of 7-Scenes and returns their uri."""
    folder.mkdir(parents=True)
    camera = [[CAMERA.fx, 0, CAMERA.cx], [0, CAMERA.fy, CAMERA.cy], [0, 0, 1]]
    np.savetxt(folder / "camera-intrinsics.txt", camera)
    source = ToySource(length)
    for index in range(length):
        frame = source.read(index)
        stem = folder / f"frame-{index:06}"
        Image.fromarray(frame.image).save(f"{stem}.color.png")
        Image.fromarray((frame.depth_m * 1000).astype(np.uint16)).save(f"{stem}.depth.png")
        np.savetxt(f"{stem}.pose.txt", toy_pose(index).inverse().matrix())
    return f"7scenes:{folder}"
