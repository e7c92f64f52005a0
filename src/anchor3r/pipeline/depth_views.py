"""Keyframes of a map with what their depth is measured from: images without lens, poses, distances of things.

Arrays for `dense` come from here; what is read from the disk is remembered for the keyframes next to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.stereo import View, grey_of
from anchor3r.dense.views import ViewConfig, candidates, choose_sources, is_next_keyframe
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole
from anchor3r.store import Map, PointMap
from anchor3r.store.camera import common_camera, lens_of, shown_by_lens, without_lens
from anchor3r.trajectory import Trajectory

ImageReader = Callable[[int], NDArray[np.uint8]]
"""(H, W, 3) RGB of a frame, of whatever size it is kept in."""
_SAMPLE_POINTS = 300
"""Of a keyframe's point map, by which views are chosen."""
_NEAREST_PERCENTILE, _NEAREST_PART = 2.0, 0.6
"""Depths are looked for from this part of this percentile of the point map's depths on."""
_REMEMBERED_IMAGES = 96


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the predictor's own point map tells of where things are, in the scale of the poses."""

    points: NDArray[np.float64]
    """(n, 3) in the world, some of those that the keyframe sees"""
    median_depth: float
    nearest: float
    """Least depth to look for."""


class DepthViews:
    """The frames of a map that have poses of one name, as views of one ideal camera."""

    def __init__(
        self, scene_map: Map, poses: str, size: int, read_image: ImageReader, config: ViewConfig
    ) -> None:
        """size: the longer side of the images in pixels, at most."""
        self._map, self._read, self._config = scene_map, read_image, config
        self.trajectory: Trajectory = scene_map.trajectory(poses)
        if not len(self.trajectory):
            raise Anchor3RError(f"{scene_map.lack_of_poses()} There is no depth to measure.")
        self._poses = self.trajectory.camera_from_world
        self._source_camera, self._lens = common_camera(scene_map), lens_of(scene_map)
        self.camera = _at_size(self._source_camera, size)
        """Of all views."""
        self.shown = shown_by_lens(self._source_camera, self._lens, self.camera)
        """(h, w) pixels of a view that its image from the source has, too."""
        self._images: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()
        self._lock = Lock()

    def keyframes(self, every: int | None) -> list[int]:
        """Rows of the trajectory that get a depth: one out of so many, or where enough of the view is new."""
        if every is not None:
            return list(range(0, len(self.trajectory), every))
        chosen: list[int] = []
        median_depth = 0.0
        for row in range(len(self.trajectory)):
            if chosen and self.component(row) == self.component(chosen[-1]):
                camera_from_last = self._poses[row] @ self._poses[chosen[-1]].inverse()
                if not is_next_keyframe(camera_from_last, median_depth, self._config):
                    continue
            around = self.surroundings(row)
            if around is not None:
                chosen.append(row)
                median_depth = around.median_depth
        return chosen

    def component(self, row: int) -> int:
        return 0 if self.trajectory.component is None else int(self.trajectory.component[row])

    def camera_from_world(self, row: int) -> SE3:
        return self._poses[row]

    def surroundings(self, row: int) -> Surroundings | None:
        """None where the map has no points of the frame."""
        point_map = self.point_map(row)
        if point_map is None:
            return None
        points = point_map.points_in_camera.reshape(-1, 3)
        points = points[np.isfinite(points).all(1) & (points[:, 2] > 0)]
        if not len(points):
            return None
        pose = self.trajectory.pose(row)
        depth = points[:, 2] * np.exp(pose.log_scale)
        some = points[np.linspace(0, len(points) - 1, min(len(points), _SAMPLE_POINTS)).astype(int)]
        return Surroundings(
            points=pose.to_world(some).astype(np.float64),
            median_depth=float(np.median(depth)),
            nearest=float(_NEAREST_PART * np.percentile(depth, _NEAREST_PERCENTILE)),
        )

    def point_map(self, row: int) -> PointMap | None:
        """The predictor's own, in the scale of the frame."""
        return self._map.points(int(self.trajectory.frames[row]))

    def sources(self, row: int, around: Surroundings) -> list[View]:
        """The views that the depth of a keyframe is measured from, best first; none without parallax."""
        center = self.trajectory.center
        near = candidates(center, row, around.median_depth, self._config)
        near = near[[self.component(int(k)) == self.component(row) for k in near]] if len(near) else near
        chosen = choose_sources(around.points, self.camera, self._poses[row], self._poses[near], self._config)
        # In the order of the source, in which a video is read fastest; the order does not matter to depth.
        return [self.view(int(k)) for k in np.sort(near[chosen])]

    def view(self, row: int) -> View:
        return View(
            frame=int(self.trajectory.frames[row]),
            grey=grey_of(self.image(row)),
            camera_from_world=self._poses[row],
        )

    def image(self, row: int) -> NDArray[np.uint8]:
        """(h, w, 3) RGB as the ideal camera sees it."""
        frame = int(self.trajectory.frames[row])
        with self._lock:  # sources and maps are read by one thread at a time
            if frame in self._images:
                self._images.move_to_end(frame)
                return self._images[frame]
            image = without_lens(self._read(frame), self._source_camera, self._lens, self.camera)
            self._images[frame] = image
            if len(self._images) > _REMEMBERED_IMAGES:
                self._images.popitem(last=False)
            return image


def _at_size(camera: Pinhole, size: int) -> Pinhole:
    """The camera of images whose longer side has at most so many pixels."""
    shrink = min(1.0, size / max(camera.width, camera.height))
    return camera.resized(max(1, round(camera.width * shrink)), max(1, round(camera.height * shrink)))
