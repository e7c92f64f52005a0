"""What images of the opposite lane have in common: `python benchmarks/opposite_lane.py --seeds 101 206`.

Drives over street grids, and of them keyframes that an earlier one passed within 8 m looking the opposite
way. Told is how many correct matches of local features such a keyframe has at most with any one of the
earlier frames that look back at the street ahead of it: as the images are, and with the walls along the
street seen front-on, for which the street's true direction is taken. A match is correct if the true depth at
either end leads to the other end. No pose is estimated, so that this is what recognition could have at best.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from functools import cached_property

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import cv2
import numpy as np
import tyro
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole
from anchor3r.places.features import FeatureConfig, LocalFeatures, extract, match, unit_vectors
from anchor3r.worlds import World, make_world, sample_config

Float = NDArray[np.float64]
_EVERY = 5
"""Frames from one keyframe to the next."""
_AWAY = 50
"""Frames between two visits at least."""
_PASSED_M, _BESIDE_M, _AHEAD_M = 8.0, 8.0, (8.0, 55.0)
"""How near an earlier frame has passed; how far beside and ahead frames that look back may be."""
_OPPOSITE = np.cos(np.radians(135))
_ENOUGH = 12
"""Correct matches by which a place could be told from chance."""
_OFF = 1 / 64
"""Part of the image's width by which a correct match may be off, and"""
_CELL = 1 / 80
"""within which matches count as one."""
_WALL = FeatureConfig(count=400)
"""Of each wall, beside those of the image."""


def main(
    seeds: tuple[int, ...] = (101, 206, 301, 302),
    frames: int = 1500,
    width: int = 320,
    horizontal_fov_deg: float = 75.0,
    revisits: int = 14,
) -> None:
    """Prints a line a revisit and a line a world.

    Args:
        seeds: Worlds.
        frames: Of each drive.
        width: Pixels; the height is three quarters of it.
        horizontal_fov_deg: Angle between the left and right image borders.
        revisits: That are looked at, spread over all that a drive has.
    """
    cv2.setNumThreads(1)
    total = np.zeros(4, int)
    for seed in seeds:
        config = sample_config(
            seed, kind="street", motion="grid", frames=frames, width=width, height=3 * width // 4,
            horizontal_fov_deg=horizontal_fov_deg,
        )  # fmt: skip
        street, started = Street(make_world(config)), time.process_time()
        rows = street.revisits()
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, revisits).astype(int))] if len(rows) else rows
        counts = np.zeros(4, int)
        for row in rows.tolist():
            found = street.best(row)
            best = found.max(0, initial=0)
            counts += [1, *(best >= _ENOUGH)]
            print(f"  {row * _EVERY}: {len(found)} look back; correct {best.tolist()}", flush=True)
        total += counts
        print(f"world {seed}: {_told(counts)}; {time.process_time() - started:.0f} CPU s", flush=True)
    print(f"all: {_told(total)}")


def _told(counts: NDArray[np.int64]) -> str:
    all_of_them, as_they_are, walls, both = counts.tolist()
    return (
        f"{all_of_them} revisits in the opposite lane, with at least {_ENOUGH} correct matches as the images "
        f"are {as_they_are}, of walls seen front-on {walls}, of both together {both}"
    )


@dataclass(eq=False)
class View:
    """One keyframe: what is seen, and its features."""

    image: NDArray[np.uint8]
    depth_m: NDArray[np.float32]
    camera: Pinhole
    camera_from_world: SE3

    @cached_property
    def features(self) -> LocalFeatures:
        return extract(self.image)

    @cached_property
    def walls(self) -> tuple[LocalFeatures, LocalFeatures]:
        """Features of the walls left and right, with their pixels in the image."""
        return self._wall(-1), self._wall(1)

    def _wall(self, side: int) -> LocalFeatures:
        """side: 1 for the wall on the right, -1 for that on the left."""
        reach = self.camera.width / 2 / self.camera.fx
        scale = 0.8 * reach * self.camera.fx
        near, far, high = 0.8 / reach, 1 / (0.3 * reach), 1.6 * self.camera.height / self.camera.width
        columns, rows = np.meshgrid(np.arange((far - near) * scale), np.arange(2 * high * scale))
        turn = self.camera_from_world.rotation @ _street_axes(self.camera_from_world.rotation[2]).T

        def in_image(column: Float, row: Float) -> Float:
            along = far - column / scale if side > 0 else near + column / scale
            ray = np.stack([np.full_like(along, side), row / scale - high, along], -1) @ turn.T
            ray[ray[..., 2] <= 0] = np.nan
            return self.camera.project(ray)

        pixel = np.nan_to_num(in_image(columns, rows), nan=-1.0).astype(np.float32)
        seen = cv2.remap(self.image, pixel, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        found = extract(np.asarray(seen, np.uint8), _WALL)
        at = in_image(*found.pixel.astype(np.float64).T)
        border = 4.0
        size = np.array([self.camera.width, self.camera.height])
        inside = ((at > border) & (at < size - border)).all(1)
        return replace(found, pixel=at.astype(np.float32)).select(inside)

    def seen_from(self, other: View, pixel: Float) -> Float:
        """Where the points at pixels (n, 2) of this view are in another one (n, 2), NaN if nowhere."""
        column, row = np.round(pixel).astype(int).T
        depth = self.depth_m[row, column].astype(np.float64)
        point = self.camera.unproject(pixel, depth)
        there = np.asarray((other.camera_from_world @ self.camera_from_world.inverse()).apply(point))
        there[(depth <= 0) | (there[:, 2] <= 0)] = np.nan
        return other.camera.project(there)


class Street:
    """The keyframes of a drive."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._poses = world.camera_from_world[::_EVERY]
        self._center, self._forward = self._poses.center(), self._poses.rotation[:, 2]
        self._views: dict[int, View] = {}

    def revisits(self) -> NDArray[np.int64]:
        """Keyframes that an earlier one has passed the opposite way."""
        passed = []
        for row in range(len(self._center)):
            near = np.linalg.norm(self._offset(row), axis=1) < _PASSED_M
            passed.append(bool((near & self._is_opposite(row)).any()))
        return np.flatnonzero(passed)

    def best(self, row: int) -> NDArray[np.int64]:
        """(k, 3) correct matches as the images are, of walls, and of both, with all that look back."""
        offset = self._offset(row)
        ahead = offset @ self._forward[row]
        beside = np.linalg.norm(offset - ahead[:, None] * self._forward[row], axis=1)
        back = self._is_opposite(row) & (beside < _BESIDE_M) & (ahead > _AHEAD_M[0]) & (ahead < _AHEAD_M[1])
        mine, counts = self._view(row), []
        for k in np.flatnonzero(back).tolist():
            other = self._view(k)
            plain = _correct(mine, mine.features, other, other.features)
            # What is on the right on the way there is on the left on the way back.
            walls = sum(
                _correct(mine, a, other, b) for a, b in zip(mine.walls, other.walls[::-1], strict=True)
            )
            counts.append((plain, walls, plain + walls))
        return np.array(counts, np.int64).reshape(-1, 3)

    def _offset(self, row: int) -> Float:
        """(k, 3) from a keyframe to those long before it."""
        return self._center[: max(0, row - _AWAY // _EVERY)] - self._center[row]

    def _is_opposite(self, row: int) -> NDArray[np.bool_]:
        return np.asarray(self._forward[: max(0, row - _AWAY // _EVERY)] @ self._forward[row] < _OPPOSITE)

    def _view(self, row: int) -> View:
        if row not in self._views:
            rendered = self._world.render(row * _EVERY)
            self._views[row] = View(
                rendered.image, rendered.depth_m, self._world.intrinsics, self._poses[row]
            )
        return self._views[row]


def _street_axes(forward: Float) -> Float:
    """Rows: right, down and along the street of a grid that a camera looks along best."""
    along = np.zeros(3)
    axis = 0 if abs(forward[0]) > abs(forward[2]) else 2
    along[axis] = np.sign(forward[axis])
    down = np.array([0.0, 1.0, 0.0])
    return np.stack([np.cross(down, along), down, along])


def _correct(one: View, mine: LocalFeatures, other: View, theirs: LocalFeatures) -> int:
    """Distinct matches of features of two views that are correct."""
    pairs = match(unit_vectors(mine.descriptor), unit_vectors(theirs.descriptor))
    here, there = mine.pixel[pairs[:, 0]].astype(float), theirs.pixel[pairs[:, 1]].astype(float)
    off = np.fmin(
        np.linalg.norm(one.seen_from(other, here) - there, axis=1),
        np.linalg.norm(other.seen_from(one, there) - here, axis=1),
    )
    good = here[off < _OFF * one.camera.width]
    return len(np.unique(np.floor(good / (_CELL * one.camera.width)), axis=0))


if __name__ == "__main__":
    tyro.cli(main)
