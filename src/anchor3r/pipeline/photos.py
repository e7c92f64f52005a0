"""Photographs in no order as a map: all are matched with all, and COLMAP's incremental mapping places them.

They are no stream: from one file to the next the camera may be anywhere. So their poses are found together,
and come into the map as those of another system do (`importing`), with the points that COLMAP triangulated.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.special import erf

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole
from anchor3r.io.extras import export_library
from anchor3r.pipeline.importing import ImportedPoses, ImportSettings, PairedPoses
from anchor3r.pipeline.mapping import MappingRun
from anchor3r.pipeline.settings import MapSettings, Progress, unwatched
from anchor3r.pose_graph.online_placement import OnlinePlacementConfig
from anchor3r.predictors.confidence import TOLERANCE
from anchor3r.predictors.features.config import FeaturesConfig
from anchor3r.predictors.interface import NoPoseReason, WindowPrediction
from anchor3r.sources import Frame, Source, StatedCamera
from anchor3r.store import PHOTOGRAPHS
from anchor3r.threads import chosen_threads

MAX_PHOTOS = 400
"""Of so many there are 80,000 pairs to match, hours on two cores."""
_MAX_SIDE = 1600
"""Larger photographs are matched at this size: more pixels cost time and find few more points."""
_MAX_FEATURES = 4096
_MATCHING_PARTS = 20
"""Between which it is told how far matching has come; each reads the features of most photographs again."""
_MIN_PHOTOS = 3
_GRID_SIDE = 128
"""Longer side of the point maps, each of whose cells keeps one point."""
_STRAY_FOCAL, _STRAY_RADIAL = 0.15, 0.5
"""An adjusted focal length further from a stated one (logarithm), or a stronger bend, is a wrong minimum:
EXIF is mostly right to some percent, and no common lens bends by more."""
_JUDGED_VIEWS = 8
"""Views of a point whose rays are compared: the widest angle of these says how sure its depth is."""


@dataclass(frozen=True, kw_only=True)
class SolvedPhotos:
    """Where photographs were taken, and what they saw."""

    camera: StatedCamera
    """Of all photographs, in pixels of the source's images"""
    was_stated: bool
    """whether the photographs or the user said something of it"""
    frames: NDArray[np.int64]
    """(n,) those that have a pose, ascending"""
    model: NDArray[np.int64]
    """(n,) which of the sets that no match relates; the largest is 0"""
    camera_from_world: SE3
    """(n,) in the world of their set"""
    points: dict[int, tuple[NDArray[np.float64], NDArray[np.float32]]]
    """Of each such frame its points (m, 3) in the world, and how sure each is (m,)"""


def map_photos(
    source: Source,
    out: Path | str,
    settings: MapSettings | None = None,
    *,
    overwrite: bool = False,
    progress: Progress = unwatched,
) -> dict[str, Any]:
    """Maps photographs in no order into the folder `out` and returns a summary (JSON).

    The camera is taken for one; what the photographs or the user say of its focal length is where its
    estimation starts. Sets that no match relates become components of the map.
    """
    settings = settings or MapSettings()
    count = len(source.wanted)
    if not _MIN_PHOTOS <= count <= MAX_PHOTOS:
        raise Anchor3RError(
            f"{source.uri} has {count} photographs in no order; {_MIN_PHOTOS} to {MAX_PHOTOS} can be mapped, "
            "as each is matched with each: take some of them with --start, --stop and --stride, or film"
        )
    started = time.perf_counter()
    solved = solve_photos(source, settings, progress)
    source.camera = solved.camera
    predictor = _PlacedPhotos(solved)
    placing = OnlinePlacementConfig(interval=1)  # from one to the next they may be of different sets
    with MappingRun(source, predictor, out, settings, overwrite=overwrite, placing=placing) as run:
        for done, _ in enumerate(run, 1):
            progress("writing", done, count)
    seconds = time.perf_counter() - started
    spent = {"seconds": round(seconds, 3), "frames_per_second": round(count / seconds, 2)}
    return run.summary() | spent


def solve_photos(source: Source, settings: MapSettings, progress: Progress) -> SolvedPhotos:
    """Poses, points and the camera of photographs, by COLMAP."""
    colmap = export_library("pycolmap")
    # What it calls an error, such as photographs that do not overlap, is told in our words below.
    colmap.logging.minloglevel = colmap.logging.FATAL.value
    colmap.set_random_seed(settings.seed)
    threads = chosen_threads(settings.threads, gains=True)
    with tempfile.TemporaryDirectory(prefix="anchor3r-photos-") as scratch:
        images, database = Path(scratch) / "images", Path(scratch) / "database.db"
        images.mkdir()
        first, scale = _write_images(source, images, progress)
        _extract(colmap, database, images, first, scale, threads)
        _match(colmap, database, images, threads, progress)
        models = _reconstructed(colmap, database, images, first.intrinsics, settings.seed, threads, progress)
    if not models:
        raise Anchor3RError(
            f"the photographs of {source.uri} could not be placed (no overlap): do they show one scene from "
            "several places, sharp and sharing much of what they see?"
        )
    return _solved(models, scale, was_stated=first.intrinsics is not None)


def _write_images(source: Source, folder: Path, progress: Progress) -> tuple[Frame, float]:
    """Upright, straight and not too large; returns one of them, and working size over its own size."""
    first, scale = None, 1.0
    for done, frame in enumerate(source, 1):
        height, width = frame.image.shape[:2]
        if first is None:
            first, scale = frame, min(1.0, _MAX_SIDE / max(width, height))
        picture = Image.fromarray(frame.image)
        if scale < 1:
            picture = picture.resize((round(width * scale), round(height * scale)), Image.Resampling.LANCZOS)
        picture.save(folder / f"{frame.index:06}.jpg", quality=95, subsampling=0)
        progress("reading", done, len(source.wanted))
    assert first is not None, "a source without any frame is an error of its own"
    return first, scale


def _extract(colmap: Any, database: Path, images: Path, first: Frame, scale: float, threads: int) -> None:
    """Keypoints of all images; the camera begins with the focal length that is known of it, if one is."""
    extraction = colmap.FeatureExtractionOptions()
    extraction.use_gpu, extraction.num_threads, extraction.max_image_size = False, threads, _MAX_SIDE
    extraction.sift.max_num_features = _MAX_FEATURES
    reader = colmap.ImageReaderOptions()
    reader.camera_model = "SIMPLE_RADIAL"
    if first.intrinsics is not None:
        c = first.intrinsics
        # COLMAP counts pixels from the corner of the image, we from the middle of the first one.
        values = scale * (c.fx + c.fy) / 2, scale * (c.cx + 0.5), scale * (c.cy + 0.5), 0.0
        reader.camera_params = ",".join(f"{value:.6f}" for value in values)
    colmap.extract_features(
        database, images, camera_mode=colmap.CameraMode.SINGLE, reader_options=reader,
        extraction_options=extraction,
    )  # fmt: skip


def _match(colmap: Any, database: Path, images: Path, threads: int, progress: Progress) -> None:
    """Matches all with all, in parts, so that it can be told how far this has come."""
    matching, pairing = colmap.FeatureMatchingOptions(), colmap.ImportedPairingOptions()
    matching.use_gpu, matching.num_threads = False, threads
    pairing.match_list_path = database.with_name("pairs.txt")
    names = sorted(path.name for path in images.iterdir())
    part, wanted = [], len(names) * (len(names) - 1) / 2 / _MATCHING_PARTS
    progress("matching", 0, len(names))
    for done, first in enumerate(names, 1):
        part += [f"{first} {second}" for second in names[done:]]
        if part and (len(part) >= wanted or done >= len(names) - 1):
            pairing.match_list_path.write_text("\n".join(part) + "\n")
            colmap.match_image_pairs(database, matching, pairing)
            progress("matching", done, len(names))
            part = []


def _reconstructed(
    colmap: Any,
    database: Path,
    images: Path,
    known: Pinhole | None,
    seed: int,
    threads: int,
    progress: Progress,
) -> list[Any]:
    """Models that no match relates, the largest first, all with the camera of that one."""
    options = colmap.IncrementalPipelineOptions()
    options.num_threads, options.random_seed, options.min_model_size = threads, seed, _MIN_PHOTOS
    # Photographs overlap less than frames of a video: what two of them see is often seen by no third one.
    options.triangulation.ignore_two_view_tracks = False
    if known is not None:
        # Seen from above, a flat scene fits with nearly any focal length: what is known of it is held first.
        options.ba_refine_focal_length = options.ba_refine_extra_params = False
        options.mapper.abs_pose_refine_focal_length = options.mapper.abs_pose_refine_extra_params = False
    count, placed = sum(1 for _ in images.iterdir()), 2

    def placed_one() -> None:
        nonlocal placed
        placed += 1
        progress("placing", min(placed, count), count)

    progress("placing", 0, count)
    models = colmap.incremental_mapping(
        database, images, database.with_name("models"), options, next_image_callback=placed_one
    )
    found = sorted(models.values(), key=lambda model: -model.num_reg_images())
    if found and known is not None:
        _calibrate(colmap, found)
    return found


def _calibrate(colmap: Any, models: list[Any]) -> None:
    """Adjusts the camera that was held, on the largest model; a result that strays is not believed."""
    largest, *others = models
    ((camera_id, camera),) = largest.cameras.items()
    held = np.array(camera.params)
    adjustment = colmap.BundleAdjustmentOptions()
    adjustment.print_summary = False
    _adjust(colmap, largest, adjustment)
    adjusted = np.array(largest.cameras[camera_id].params)
    believed = abs(np.log(adjusted[0] / held[0])) < _STRAY_FOCAL and abs(adjusted[3]) < _STRAY_RADIAL
    adjustment.refine_focal_length = adjustment.refine_extra_params = False
    for model in others if believed else models:
        model.cameras[camera_id].params = adjusted if believed else held
        _adjust(colmap, model, adjustment)


def _adjust(colmap: Any, model: Any, options: Any) -> None:
    """A bundle adjustment that says nothing, unlike `bundle_adjustment`."""
    config = colmap.BundleAdjustmentConfig()
    for image_id, image in model.images.items():
        if image.has_pose:
            config.add_image(image_id)
    config.fix_gauge(colmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
    colmap.create_default_bundle_adjuster(options, config, model).solve()


def _solved(models: list[Any], scale: float, *, was_stated: bool) -> SolvedPhotos:
    focal, cx, cy, k1 = map(float, next(iter(models[0].cameras.values())).params)
    stated = StatedCamera(
        intrinsics=(focal / scale, focal / scale, cx / scale - 0.5, cy / scale - 0.5), distortion=(k1,)
    )
    placed: dict[int, tuple[int, NDArray[np.float64]]] = {}
    points = {}
    for number, model in enumerate(models):
        confidence = _confidence(model, focal)
        for image in model.images.values():
            frame = int(Path(image.name).stem)
            if not image.has_pose or frame in placed:  # smaller models may repeat some of a larger one
                continue
            placed[frame] = number, np.array(image.cam_from_world().matrix())
            ids = [p.point3D_id for p in image.points2D if p.has_point3D()]
            xyz = np.array([model.points3D[k].xyz for k in ids], np.float64).reshape(-1, 3)
            points[frame] = xyz, np.array([confidence[k] for k in ids], np.float32)
    frames = sorted(placed)
    matrices = np.array([placed[frame][1] for frame in frames]).reshape(-1, 3, 4)
    return SolvedPhotos(
        camera=stated, was_stated=was_stated, points=points, frames=np.array(frames, np.int64),
        model=np.array([placed[frame][0] for frame in frames], np.int64),
        camera_from_world=SE3(matrices[..., :3], matrices[..., 3]),
    )  # fmt: skip


def _confidence(model: Any, focal_px: float) -> dict[int, float]:
    """Of each point the probability that its depth is right: by its error in the images and its widest angle.

    Rays that meet at an angle α and err by σ place a point along them with a relative error of √2 σ / α.
    """
    center = {k: image.projection_center() for k, image in model.images.items() if image.has_pose}
    found = {}
    for k, point in model.points3D.items():
        views = [element.image_id for element in point.track.elements]
        chosen = views[:: -(-len(views) // _JUDGED_VIEWS)]
        rays = np.array([point.xyz - center[view] for view in chosen])
        rays /= np.linalg.norm(rays, axis=1, keepdims=True)
        widest = max(float(np.linalg.norm(a - b)) for a, b in combinations(rays, 2))
        sigma = sqrt(2) * max(point.error, 0.5) / focal_px / max(widest, 1e-9)
        found[k] = float(erf(TOLERANCE / (sqrt(2) * sigma)))
    return found


class _PlacedPhotos(ImportedPoses):
    """Windows of photographs that are placed already, with their points."""

    def __init__(self, solved: SolvedPhotos) -> None:
        keys = solved.frames.astype(np.float64)
        poses = PairedPoses(keys, solved.camera_from_world, False, 0.0, solved.model)
        super().__init__(poses, PHOTOGRAPHS, ImportSettings(), None)
        self._solved = solved

    def estimated_camera(self) -> dict[str, float | bool]:
        camera = self._solved.camera
        return {
            "stated": self._solved.was_stated, "focal_px": camera.intrinsics[0], "determined": True,
            "k1": camera.distortion[0], "focal_sigma_px": FeaturesConfig.focal_bias * camera.intrinsics[0],
        }  # fmt: skip

    def step(self, frame: Frame) -> WindowPrediction:
        prediction = super().step(frame)
        if frame.index not in self._solved.frames:
            return replace(prediction, reason=NoPoseReason.NOT_PLACED)
        if frame.index not in self._solved.points or frame.intrinsics is None:
            return prediction
        at = int(np.searchsorted(self._solved.frames, frame.index))
        xyz, confidence = self._solved.points[frame.index]
        in_camera = np.asarray(self._solved.camera_from_world[at].apply(xyz), np.float64)
        points, sure = gridded(in_camera, confidence, frame.intrinsics)
        return replace(prediction, points_in_anchor=points, points_confidence=sure)


def gridded(
    points: NDArray[np.float64], confidence: NDArray[np.float32], camera: Pinhole
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Points (n, 3) in the camera on a grid that spans its image (h, w, 3), the surest of each cell; and
    confidences (h, w). Cells without a point are NaN."""
    stride = -(-max(camera.width, camera.height) // _GRID_SIDE)
    height, width = -(-camera.height // stride), -(-camera.width // stride)
    grid = np.full((height, width, 3), np.nan, np.float32)
    sure = np.zeros((height, width), np.float32)
    order = np.argsort(confidence, kind="stable")
    points, confidence = points[order], confidence[order]
    seen = points[:, 2] > 0
    pixels = camera.project(points[seen])
    cell = np.floor((pixels + 0.5) / stride).astype(int)
    inside = ((cell >= 0) & (cell < [width, height])).all(-1)
    column, row = cell[inside].T
    grid[row, column], sure[row, column] = points[seen][inside], confidence[seen][inside]
    return grid, sure
