"""A source that drives in circles through a painted panorama: it looks alike wherever it has been before."""

from __future__ import annotations

import numpy as np

from anchor3r.geometry import SE3, Pinhole, so3_exp
from anchor3r.sources import Frame
from anchor3r.sources.source import IndexedSource

CAMERA = Pinhole.from_fov(70, 48, 36)
ROUND = 100
"""Frames of one circle."""
RADIUS_M = 12.0


class LoopingSource(IndexedSource):
    """Circles of ROUND frames, always looking ahead."""

    def __init__(self, length: int, *, seed: int = 0) -> None:
        super().__init__("looping", slice(None), length)
        # A pixel of the panorama is 0.36°: blocks of ten are patterns that a frame shows a dozen of.
        blocks = np.random.default_rng(seed).integers(0, 256, (9, 100, 3), np.uint8)
        self._panorama = np.kron(blocks, np.ones((4, 10, 1), np.uint8))

    def _load(self, index: int) -> Frame:
        start = round(index % ROUND / ROUND * self._panorama.shape[1])
        columns = np.arange(start, start + CAMERA.width) % self._panorama.shape[1]
        return Frame(
            index=index,
            timestamp_s=index / 10,
            image=np.ascontiguousarray(self._panorama[:, columns]),
            intrinsics=CAMERA,
            camera_from_world=looping_pose(index),
        )


def looping_pose(index: int) -> SE3:
    """camera_from_world; rounds lie a little beside each other."""
    angle = 2 * np.pi * index / ROUND
    radius = RADIUS_M + 0.3 * (index // ROUND)
    center = np.array([radius * np.cos(angle), 0.1 * np.sin(3 * angle), radius * np.sin(angle)])
    camera_from_world = so3_exp(np.array([0.0, angle, 0.0]))
    return SE3(camera_from_world, -camera_from_world @ center)
