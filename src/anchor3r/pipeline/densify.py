"""Measured depth for the keyframes of a map: views chosen, depth by stereo, checked by the neighbours, kept.

Depths go to the store keyframe by keyframe, so that a run that was interrupted goes on where it ended. What
decides them (settings, poses, the camera) is kept with them: the same again is not measured twice, and depths
of other poses are replaced.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.dense.consistency import Agreement, compare
from anchor3r.dense.depth_images import DepthImageConfig, PredictedDepth, depth_image
from anchor3r.dense.keyframe_depth import DepthOrigin, KeyframeDepth
from anchor3r.dense.slanted_refinement import PixelPlanes
from anchor3r.dense.stereo import StereoConfig, measure
from anchor3r.dense.views import ViewConfig
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3
from anchor3r.pipeline.depth_views import DepthViews, ImageReader
from anchor3r.pipeline.fusing import fuse_map
from anchor3r.pipeline.settings import DensifySettings, FuseSettings, Progress, unwatched
from anchor3r.sources import Source
from anchor3r.store import Map, MapWriter, best_poses, load_map
from anchor3r.store.fused import pose_checksum
from anchor3r.threads import chosen_threads, limited_threads

_MIN_SIDE = 24
"""Pixels below which an image holds too few windows."""


@dataclass(frozen=True, kw_only=True)
class DensifyConfig:
    """Thresholds of depth, beyond what a user chooses in `DensifySettings`."""

    views: ViewConfig = ViewConfig()
    """Which frames are keyframes, and which others each is measured from."""
    stereo: StereoConfig = StereoConfig()
    """How depth is measured."""
    image: DepthImageConfig = DepthImageConfig()
    """What of it is kept."""
    neighbours: int = 6
    """Keyframes before and after one that its depth is compared with."""


def densify_map(
    folder: Path | str,
    settings: DensifySettings | None = None,
    *,
    config: DensifyConfig | None = None,
    progress: Progress = unwatched,
) -> dict[str, Any]:
    """Measures the depth of a map's keyframes, keeps it in the map, and returns a summary (JSON).

    Images come from the map's source where it is still there, else from its own copies. Then the depths are
    fused into one surface, unless the settings say otherwise.
    """
    settings, config = settings or DensifySettings(), config or DensifyConfig()
    folder, started = Path(folder), time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(limited_threads(1))  # one thread a keyframe
        source = stack.enter_context(_same_source(folder))
        writer = stack.enter_context(MapWriter.open(folder))
        scene_map = stack.enter_context(load_map(folder))
        read_image, origin = _images(scene_map, source)
        poses = settings.poses or best_poses(scene_map.trajectory_names())
        views = DepthViews(scene_map, poses, settings.size, read_image, config.views)
        _insist_on_size(views)
        progress("choosing keyframes", 0, 1)
        rows = views.keyframes(settings.every)
        _insist_on_keyframes(scene_map, rows)
        done = writer.begin_depths(poses, _identity(views, settings, config, origin))
        run = _Densification(views, rows, settings, config)
        for count, view in run.depths(done):
            if view is not None:
                writer.write_keyframe_depth(view)
            progress("measuring depth", count, len(rows))
        summary = _summary(scene_map, folder, poses, rows, origin)
        if not summary["with_depth"]:
            raise Anchor3RError(_no_parallax(folder, len(rows)))
        writer.finish_depths(summary)
    summary |= {"measured_now": run.num_measured, "seconds": round(time.perf_counter() - started, 3)}
    return summary | {"fusion": _fused(folder, poses, settings.threads, progress) if settings.fuse else None}


def _fused(folder: Path, poses: str, threads: int | None, progress: Progress) -> dict[str, Any]:
    """The summary of the fusion, or what kept the depths, which stay, from becoming a surface."""
    try:
        return fuse_map(folder, FuseSettings(poses=poses, threads=threads), progress=progress)
    except Anchor3RError as error:
        return {"failure": str(error)}


@contextmanager
def _same_source(folder: Path) -> Iterator[Source | None]:
    """The source of a map, if it is still there and still shows what was mapped."""
    with ExitStack() as stack:
        # Closed before anybody writes: who leaves last tidies up the database, which a reader cannot.
        with load_map(folder) as scene_map:
            frames = scene_map.trajectory().frames
            source = stack.enter_context(scene_map.original_source())
            if source is not None and len(frames) and not _shows_same(scene_map, source, int(frames[-1])):
                source = None
        yield source


def _shows_same(scene_map: Map, source: Source, frame: int) -> bool:
    try:
        return scene_map.shows(source.read(frame))
    except Anchor3RError:
        return False


def _images(scene_map: Map, source: Source | None) -> tuple[ImageReader, str]:
    """How the images of a map are read, and where they come from: its source, or its own copies."""
    if source is not None:
        return lambda index: source.read(index).image, "source"
    if scene_map.keeps_images():
        return scene_map.image, "map"
    raise Anchor3RError(
        f"{scene_map.folder} keeps no images and its source is gone: depth is measured from images. Put the "
        "source back where it was, or map it again without --no-keep-images"
    )


def _insist_on_size(views: DepthViews) -> None:
    camera = views.camera
    if min(camera.width, camera.height) < _MIN_SIDE:
        raise Anchor3RError(
            f"images of {camera.width}×{camera.height} pixels are too small to measure depth from; their "
            f"shorter side needs {_MIN_SIDE}: choose a larger --size, or map larger images"
        )


def _insist_on_keyframes(scene_map: Map, rows: list[int]) -> None:
    if not rows or not len(scene_map.frames_with_points()):
        raise Anchor3RError(
            f"{scene_map.folder} has no points that tell how far away things are, so that there is no range "
            "to look for depth in; map it with a predictor that gives points"
        )
    if len(scene_map.trajectory()) < 2:
        raise Anchor3RError(
            f"{scene_map.folder} has one frame with a pose; depth is measured from at least two that were "
            "taken from different places"
        )


def _no_parallax(folder: Path, num_keyframes: int) -> str:
    return (
        f"none of the {num_keyframes} keyframes of {folder} has other frames that see the same things from "
        "another place: depth needs a camera that moves, not one that only turns. Map more of the source"
    )


def _identity(
    views: DepthViews, settings: DensifySettings, config: DensifyConfig, origin: str
) -> dict[str, Any]:
    """All that decides the depths; who writes them, or with how many threads, does not."""
    return {
        "size": settings.size, "every": settings.every, "fill": settings.fill, "images": origin,
        "camera": list(astuple(views.camera)), "poses": pose_checksum(views.trajectory),
        "config": asdict(config),
    }  # fmt: skip


class _Densification:
    """Depth of the keyframes of one map, in order, with as many threads as wanted: the same bits."""

    def __init__(
        self, views: DepthViews, rows: list[int], settings: DensifySettings, config: DensifyConfig
    ) -> None:
        self._views, self._rows, self._fill, self._config = views, rows, settings.fill, config
        self._threads = chosen_threads(settings.threads, gains=True)
        self.num_measured = 0
        """Keyframes whose depth was measured in this run."""

    def depths(self, done: set[int]) -> Iterator[tuple[int, KeyframeDepth | None]]:
        """How many keyframes are through, and the depth of the last one; None if it has none or had it."""
        frames = self._views.trajectory.frames[self._rows].tolist()
        wanted = [k for k, frame in enumerate(frames) if frame not in done]
        needed = sorted({j for k in wanted for j in (k, *self._around(k))})
        measured: dict[int, PixelPlanes | None] = {}
        with closing(self._in_order(needed)) as coming:
            for k in wanted:
                while max([k, *self._around(k)]) not in measured:
                    j, planes = next(coming)
                    measured[j] = planes
                yield k + 1, self._checked(k, measured)
                for j in [j for j in measured if j < k - self._config.neighbours]:
                    del measured[j]

    def _in_order(self, needed: list[int]) -> Generator[tuple[int, PixelPlanes | None], None, None]:
        """Keyframes with what stereo measures of them, some of which are under way in threads."""
        queue = iter(needed)
        with ThreadPoolExecutor(self._threads) as pool:
            pending = deque((k, pool.submit(self._measure, k)) for k in islice(queue, self._threads + 1))
            try:
                while pending:
                    k, future = pending.popleft()
                    planes = future.result()
                    pending.extend((j, pool.submit(self._measure, j)) for j in islice(queue, 1))
                    yield k, planes
            finally:
                for _, future in pending:
                    future.cancel()

    def _around(self, k: int) -> list[int]:
        """Keyframes that one is compared with: before and after it, of the same component."""
        component, reach = self._views.component, self._config.neighbours
        low, high = max(0, k - reach), min(len(self._rows), k + reach + 1)
        return [
            j for j in range(low, high) if j != k and component(self._rows[j]) == component(self._rows[k])
        ]

    def _measure(self, k: int) -> PixelPlanes | None:
        views, row = self._views, self._rows[k]
        around = views.surroundings(row)
        sources = [] if around is None else views.sources(row, around)
        if around is None or not sources:
            return None
        planes = measure(views.view(row), sources, views.camera, around.nearest, self._config.stereo)
        return replace(planes, inverse=np.where(views.shown, planes.inverse, np.float32(np.nan)))

    def _checked(self, k: int, measured: dict[int, PixelPlanes | None]) -> KeyframeDepth | None:
        own = measured[k]
        if own is None:
            return None
        self.num_measured += 1
        row = self._rows[k]
        return depth_image(
            int(self._views.trajectory.frames[row]),
            self._views.camera,
            self._views.image(row),
            own,
            self._agreement(k, own, measured),
            self._fill,
            self._predicted(row) if self._fill == "all" else None,
            self._config.image,
        )

    def _agreement(self, k: int, own: PixelPlanes, measured: dict[int, PixelPlanes | None]) -> Agreement:
        neighbours = {j: planes for j in self._around(k) if (planes := measured[j]) is not None}
        own_from_world = self._views.camera_from_world(self._rows[k])
        poses = [self._views.camera_from_world(self._rows[j]) @ own_from_world.inverse() for j in neighbours]
        neighbour_from_own = SE3(
            np.array([pose.rotation for pose in poses]).reshape(-1, 3, 3),
            np.array([pose.translation for pose in poses]).reshape(-1, 3),
        )
        tolerance = self._config.image.tolerance
        return compare(own, list(neighbours.values()), neighbour_from_own, self._views.camera, tolerance)

    def _predicted(self, row: int) -> PredictedDepth | None:
        point_map = self._views.point_map(row)
        if point_map is None:
            return None
        scale = np.float32(np.exp(self._views.trajectory.pose(row).log_scale))
        depth: NDArray[np.float32] = point_map.points_in_camera[..., 2] * scale
        return PredictedDepth(depth=depth, confidence=point_map.confidence)


def _summary(scene_map: Map, folder: Path, poses: str, rows: list[int], origin: str) -> dict[str, Any]:
    """What the map has now: of its keyframes' pixels so many parts measured, on planes and interpolated."""
    counts: Counter[int] = Counter()
    confidence, pixels, with_depth = 0.0, 0, 0
    camera = None
    for view in scene_map.keyframe_depths():
        found, number = np.unique(view.origin, return_counts=True)
        counts.update(dict(zip(found.tolist(), number.tolist(), strict=True)))
        confidence += float(view.confidence.sum())
        pixels += view.depth.size
        with_depth += 1
        camera = view.camera
    share = {origin.name.lower(): counts[origin] / max(pixels, 1) for origin in DepthOrigin}
    known = pixels - counts[DepthOrigin.NONE]
    return {
        "map": str(folder), "poses": poses, "images": origin, "keyframes": len(rows),
        "with_depth": with_depth, "size": None if camera is None else [camera.width, camera.height],
        "measured": round(share["measured"], 4), "planes": round(share["plane"], 4),
        "interpolated": round(share["interpolated"], 4),
        "mean_confidence": round(confidence / known, 4) if known else 0.0,
    }  # fmt: skip
