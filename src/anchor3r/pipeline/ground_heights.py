"""The camera's height above the ground along a drive, in the scale of each window: what a known height is
compared with.

One direction of travel, one normal and one height are found for a whole component first, by many windows
together; then window by window, each from what its neighbours had, as scales drift. Windows in which the
ground does not lie as elsewhere (a kerb, a car ahead, no ground) are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from anchor3r.dense.ground import (
    Grey,
    GroundConfig,
    GroundPlane,
    GroundStrip,
    GroundView,
    blurred_grey,
    travelled,
    upright,
)
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.pose_graph.edges import EdgeKind, MotionGraph
from anchor3r.robust import SIGMA_PER_MAD, mad_sigma
from anchor3r.store import Map
from anchor3r.store.camera import common_camera, lens_of, without_lens
from anchor3r.trajectory import Trajectory

Float = NDArray[np.float64]
Int = NDArray[np.int64]
GreyReader = Callable[[int], Grey]
"""`blurred_grey` of a frame as an ideal camera sees it."""

_EVERY = 5
"""Anchors from one that is measured to the next, as neighbours have their errors in common; fewer in short
drives."""
_SAMPLES = 25
"""Windows that find the ground of a component together,"""
_LEAST_SAMPLES = 8
"""at least; half of them agreeing by chance within `_ALIKE` of a range of `_RANGE` happens once in 1e5."""
_AGREEING = 0.5
_ALIKE = 0.1  # of the log height
_RANGE, _RANGE_STEP = (-1.6, 1.0), 0.04
"""Log heights tried, from what the point maps say: they hold roofs and trees as well as the ground."""
_NEAR, _NEAR_STEP = 0.15, 0.03  # of the log height, from one window to the next
_FARTHEST = 0.25  # from its neighbours that a height can be
_FIRST_TILT_DEG = 5.0  # how a camera is mounted
_RECENT = 9  # heights whose median is expected of the next
_SIGNIFICANCE = 1e-3  # of a tilt that is too much for a vehicle
_LAGS = 10  # windows over which errors are alike at most
_LEAST_OBSERVATIONS = 2 * _LAGS
_ASSUMED_SIGMA = 0.05  # of a log height, where too few were found to tell: what KITTI has
_SIDE = 640
_REMEMBERED = 64  # images


class GroundWindow(NamedTuple):
    """An anchor and the earlier frames of its window."""

    frame: int
    members: Int
    """(n,)"""
    rotation: Float
    """(n, 3, 3) member_from_anchor"""
    translation: Float
    """(n, 3) in the window's scale"""
    log_scale: float
    """of the window, in the world's scale"""


class GroundHeights(NamedTuple):
    """What windows say of the camera's height; k of them."""

    frames: Int
    """(k,)"""
    log_height: Float
    """(k,) in the scale of the windows"""
    sigma: Float
    """(k,) so that errors which neighbours share count once"""


@dataclass
class GroundTracker:
    """The ground of one component, from window to window."""

    strip: GroundStrip
    config: GroundConfig
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """log heights of the last windows, in the world's scale"""

    def measure(self, window: GroundWindow, read: GreyReader) -> float | None:
        """log of the height in the window's scale; None if the window does not show it."""
        expected = float(np.median(self.recent)) - window.log_scale
        views = _views(window, read, expected, self.config)
        if not views:
            return None
        anchor = self.strip.sampled(read(window.frame))
        near = expected + np.arange(-_NEAR, _NEAR + _NEAR_STEP, _NEAR_STEP)
        found = self.strip.correlations(anchor, views, near)
        if np.isnan(found).all():
            return None
        plane = self.strip.fit(anchor, views, float(near[np.nanargmax(found)]))
        if plane is None or not self._is_likely(plane, expected):
            return None
        self.recent.append(plane.log_height + window.log_scale)
        return plane.log_height

    def _is_likely(self, plane: GroundPlane, expected: float) -> bool:
        tilt_sq = float(plane.tilt @ plane.tilt) / np.radians(self.config.tilt_sigma_deg) ** 2
        return abs(plane.log_height - expected) < _FARTHEST and tilt_sq < float(chi2.isf(_SIGNIFICANCE, 2))


def find_ground(
    windows: Sequence[GroundWindow],
    read: GreyReader,
    camera: Pinhole,
    typical: Callable[[int, Float], float | None],
    config: GroundConfig,
) -> GroundTracker | None:
    """The ground that windows of one component show together; None if they do not show one.

    typical(frame, normal): log of a typical distance of what is below the camera, in the frame's scale.
    """
    chosen = windows[:: max(1, len(windows) // _SAMPLES)]
    if len(chosen) < _LEAST_SAMPLES:
        return None
    # The longest motion tells the direction best.
    ways = np.concatenate([travelled(w.rotation, w.translation)[_longest(w)][None] for w in chosen])
    forward = np.median(ways, axis=0)
    forward = forward / max(float(np.linalg.norm(forward)), 1e-12)
    normal = upright(forward)
    strip = GroundStrip(camera, forward, normal, config)
    told = [(w, typical(w.frame, normal)) for w in chosen]
    guesses = [guess + w.log_scale for w, guess in told if guess is not None]
    if not (strip.is_seen and guesses and np.isfinite(normal).all()):
        return None
    log_heights = float(np.median(guesses)) + np.arange(*_RANGE, _RANGE_STEP)
    shown = []  # of windows that have moved far enough
    for window in chosen:
        views = _views(window, read, float(np.median(guesses)) - window.log_scale, config)
        if views:
            shown.append((window, views, strip.sampled(read(window.frame))))
    curves = [strip.correlations(a, views, log_heights - w.log_scale) for w, views, a in shown]
    curves = [np.nan_to_num(curve, nan=-1.0) for curve in curves]
    if len(curves) < _LEAST_SAMPLES:
        return None
    best = float(log_heights[np.mean(curves, axis=0).argmax()])
    own = log_heights[np.argmax(curves, axis=1)]
    if np.mean(np.abs(own - best) <= _ALIKE) < _AGREEING:
        return None
    mounted = GroundStrip(camera, forward, normal, replace(config, tilt_sigma_deg=_FIRST_TILT_DEG))
    planes = [mounted.fit(a, views, best - w.log_scale) for w, views, a in shown]
    normals = [p.normal for p in planes if p is not None]
    if normals:
        normal = np.median(normals, axis=0)
        strip = strip.with_normal(normal / np.linalg.norm(normal))
    return GroundTracker(strip, config, deque([best], maxlen=_RECENT))


def ground_heights(
    scene_map: Map,
    graph: MotionGraph,
    read_image: Callable[[int], NDArray[np.uint8]],
    config: GroundConfig | None = None,
) -> GroundHeights:
    """The camera's height in windows of a map, component by component.

    graph: whose windows are taken. read_image: (H, W, 3) RGB of a frame, in whatever size it is kept.
    """
    config, trajectory = config or GroundConfig(), scene_map.trajectory(placed=False)
    camera, lens = common_camera(scene_map), lens_of(scene_map)
    shrink = min(1.0, _SIDE / max(camera.width, camera.height))
    target = camera.resized(round(camera.width * shrink), round(camera.height * shrink))

    @lru_cache(maxsize=_REMEMBERED)
    def read(frame: int) -> Grey:
        return blurred_grey(without_lens(read_image(frame), camera, lens, target))

    def typical(frame: int, normal: Float) -> float | None:
        point_map = scene_map.points(frame)
        return None if point_map is None else typical_log_height(point_map.points_in_camera, normal)

    frames, heights, sigmas = [], [], []
    for windows in _windows_by_component(graph, trajectory):
        tracker = find_ground(windows, read, target, typical, config)
        if tracker is None:
            continue
        found = [(w, height) for w in windows if (height := tracker.measure(w, read)) is not None]
        in_world = np.array([height + w.log_scale for w, height in found])
        frames += [w.frame for w, _ in found]
        heights += [height for _, height in found]
        sigmas += [spread_of_heights(in_world)] * len(found)
    if not frames:
        raise Anchor3RError(
            f"no ground was found in {scene_map.folder}: a known height helps if the camera moves along the "
            "ground, held the same way all along, and sees it in the lower half of its images; leave "
            "--camera-height away"
        )
    return GroundHeights(np.array(frames), np.array(heights), np.array(sigmas))


def typical_log_height(points: NDArray[np.float32], normal: Float) -> float | None:
    """Median log of how far points (h, w, 3) lie below the camera, of those that do; None without any."""
    points = points[np.isfinite(points).all(-1)].astype(np.float64)
    below = points @ normal
    below = below[below > 0.1 * np.linalg.norm(points, axis=1)]
    return float(np.median(np.log(below))) if len(below) else None


def spread_of_heights(log_height: Float) -> float:
    """Standard deviation of heights (k,) along a drive for one that is averaged with its neighbours.

    Differences between windows some way apart show the error without the drift; by how much neighbours
    differ less, their errors are the same ones, which does not make them surer.
    """
    if len(log_height) < _LEAST_OBSERVATIONS:
        return _ASSUMED_SIGMA
    apart = [log_height[lag:] - log_height[:-lag] for lag in range(1, _LAGS + 1)]
    half = np.array([(SIGMA_PER_MAD * float(np.median(np.abs(d)))) ** 2 / 2 for d in apart])
    variance = float(np.median(half[_LAGS // 2 :]))
    if variance <= 0:
        return max(mad_sigma(log_height, float(np.median(log_height))), 1e-4)
    correlation = 1 - half / variance
    ends = np.flatnonzero(correlation <= 0)  # what comes after that is noise of the estimate
    alike = correlation[: ends[0] if len(ends) else _LAGS].sum()
    return float(np.sqrt(variance * (1 + 2 * alike)))


def _windows_by_component(graph: MotionGraph, trajectory: Trajectory) -> list[list[GroundWindow]]:
    """Every so many windows of each component, in the order of their anchors."""
    edges = graph.edges.select(graph.edges.kind == EdgeKind.WINDOW)
    edges = edges.select(np.argsort(edges.frame_t, kind="stable"))
    anchors, begins = np.unique(edges.frame_t, return_index=True)
    ends = np.append(begins[1:], len(edges))
    row = np.searchsorted(trajectory.frames, anchors)
    count = len(trajectory.frames)
    component = trajectory.component if trajectory.component is not None else np.zeros(count, np.int64)
    log_scale = trajectory.log_scale if trajectory.log_scale is not None else np.zeros(count)
    by_component: list[list[GroundWindow]] = []
    for label in np.unique(component[row]):
        own = np.flatnonzero(component[row] == label)
        chosen = own[:: max(1, min(_EVERY, len(own) // _SAMPLES))]
        by_component.append(
            [
                GroundWindow(
                    int(anchors[k]),
                    edges.frame_i[begins[k] : ends[k]],
                    edges.rotation[begins[k] : ends[k]],
                    edges.translation[begins[k] : ends[k]],
                    float(log_scale[row[k]]),
                )
                for k in chosen
            ]
        )
    return by_component


def _views(
    window: GroundWindow, read: GreyReader, log_height: float, config: GroundConfig
) -> list[GroundView]:
    """The two members from which the camera has come about as far as wanted; none if it has hardly moved."""
    wanted = config.baseline * np.exp(log_height)
    away = np.linalg.norm(window.translation, axis=1) / wanted
    usable = np.flatnonzero((away > 0.3) & (away < 2.5))
    best = usable[np.argsort(np.abs(np.log(away[usable])), kind="stable")[:2]]
    return [GroundView(read(int(window.members[k])), window.rotation[k], window.translation[k]) for k in best]


def _longest(window: GroundWindow) -> int:
    return int(np.argmax(np.linalg.norm(window.translation, axis=1)))
