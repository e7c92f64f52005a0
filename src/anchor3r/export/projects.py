"""A map as a project that trainers of splats start from, COLMAP's or nerfstudio's: images, cameras, points.

Images come from the source itself where it is still at hand, in full size, else from the map's own copies.
Either become pinhole images: what the user has said of the lens is taken out of the source's images again, as
it was to map them, and so is the distortion that was found on top of it. COLMAP and nerfstudio have (0, 0) at
the corner of the top-left pixel, we at its centre.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.export.cameras import retaken
from anchor3r.export.selection import Selection
from anchor3r.export.tracks import TrackConfig, Tracks, build_tracks, tracks_of_surface
from anchor3r.geometry import Pinhole
from anchor3r.io.extras import export_library
from anchor3r.io.files import replacing_folder
from anchor3r.io.pointcloud import random_subset, write_ply
from anchor3r.sources import Source
from anchor3r.sources.undistortion import undistorted
from anchor3r.store import Map, PointMap
from anchor3r.store.camera import estimated_camera, lens_of
from anchor3r.trajectory import FramePose, Trajectory

JPEG_QUALITY = 95
NERFSTUDIO_CLOUD = "sparse_pc.ply"
_OPENCV_FROM_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
"""Cameras look along -z with y up there, along z with y down here; the world stays as it is."""


@dataclass(frozen=True)
class MapImages:
    """Where the images of a map are read, and the cameras of what is read."""

    scene_map: Map
    original: Source | None
    """None where the map's own copies are used."""

    def image(self, frame: int) -> NDArray[np.uint8]:
        """(H, W, 3) RGB"""
        if self.original is None:
            return self.scene_map.image(frame)
        found = self.original.read(frame)
        if not self.scene_map.shows(found):
            raise Anchor3RError(
                f"frame {frame} of {self.original.uri} is no longer the one that was mapped; use --images map"
            )
        return found.image

    def save(
        self, frames: list[int], folder: Path, common: Pinhole | None = None
    ) -> dict[int, tuple[str, Pinhole]]:
        """Writes a JPEG a frame, and returns names and cameras by frame: the common one, or each its own."""
        folder.mkdir()
        fallback, lens = None, lens_of(self.scene_map)
        saved = {}
        for frame in frames:
            image, camera = self.image(frame), common or self.scene_map.intrinsics(frame)
            if camera is None:
                fallback = camera = fallback or estimated_camera(self.scene_map, frames)
            camera = camera.resized(image.shape[1], image.shape[0])
            if any(lens):
                image = undistorted(image, camera, lens)
            name = f"{frame:06}.jpg"
            Image.fromarray(image).save(folder / name, quality=JPEG_QUALITY, subsampling=0)
            saved[frame] = name, camera
        return saved


@contextmanager
def open_images(scene_map: Map, first: int, *, prefer_source: bool) -> Iterator[MapImages]:
    """Opens the source that the map was made from if it still shows the frame `first`, else the copies."""
    with scene_map.original_source() if prefer_source else nullcontext() as original:
        if original is not None and not _still_shows(original, scene_map, first):
            original = None
        if original is None and not scene_map.keeps_images():
            raise Anchor3RError(
                f"{scene_map.folder} keeps no images and its source "
                f"{scene_map.meta.get('identity', {}).get('source')} is not at hand (or not wanted); export "
                "where the source is, or map without --no-keep-images"
            )
        yield MapImages(scene_map, original)


def _still_shows(source: Source, scene_map: Map, frame: int) -> bool:
    try:
        return scene_map.shows(source.read(frame))
    except Anchor3RError:
        return False


def write_colmap(out: Path, selection: Selection, images: MapImages) -> int:
    """Writes `images/` and the model in `sparse/0`; returns the number of points."""
    export_library("pycolmap")
    trajectory = selection.trajectory
    budget = {} if selection.max_points is None else {"max_points": selection.max_points}
    config = TrackConfig(min_confidence=selection.min_confidence, **budget)
    with replacing_folder(out) as folder:
        saved = images.save(trajectory.frames.tolist(), folder / "images", selection.camera)
        if selection.fused is not None:
            cloud = random_subset(selection.clouds(), config.max_points)
            cameras = [saved[frame][1] for frame in trajectory.frames.tolist()]
            tracks = tracks_of_surface(cloud, trajectory, cameras, config)
        else:
            tracks = build_tracks(_seen(selection, saved), len(trajectory), config)
        if not len(tracks.points):
            raise Anchor3RError(
                f"no point of the map is seen by {config.min_views} of these frames, so {out} would have "
                "none; lower --confidence, take --frames all, or map with a predictor that gives points"
            )
        model = reconstruction(trajectory, saved, tracks)
        (folder / "sparse" / "0").mkdir(parents=True)
        model.write_binary(str(folder / "sparse" / "0"))
    return len(tracks.points)


def _seen(
    selection: Selection, saved: dict[int, tuple[str, Pinhole]]
) -> Iterator[tuple[FramePose, PointMap | None, Pinhole]]:
    scene_map = selection.scene_map
    for k, frame in enumerate(selection.trajectory.frames.tolist()):
        camera, point_map = saved[frame][1], scene_map.points(frame)
        if point_map is not None:
            point_map = retaken(point_map, scene_map.intrinsics(frame), camera)
        yield selection.trajectory.pose(k), point_map, camera


def reconstruction(trajectory: Trajectory, saved: dict[int, tuple[str, Pinhole]], tracks: Tracks) -> Any:
    """A `pycolmap.Reconstruction`; image k + 1 is the k-th frame, equal cameras are one.

    COLMAP's pixel (0, 0) is the corner of the top-left pixel, ours its centre.
    """
    pycolmap = export_library("pycolmap")
    model = pycolmap.Reconstruction()
    camera_ids: dict[Pinhole, int] = {}
    by_view = np.searchsorted(tracks.view, np.arange(len(trajectory) + 1))
    camera_from_world = trajectory.camera_from_world
    for k, frame in enumerate(trajectory.frames.tolist()):
        name, camera = saved[frame]
        if camera not in camera_ids:
            camera_ids[camera] = len(camera_ids) + 1
            model.add_camera_with_trivial_rig(_colmap_camera(pycolmap, camera, camera_ids[camera]))
        keypoints = tracks.pixel[by_view[k] : by_view[k + 1]] + 0.5
        image = pycolmap.Image(name, keypoints, camera_ids[camera], k + 1)
        pose = camera_from_world[k]
        motion = pycolmap.Rigid3d(pycolmap.Rotation3d(pose.rotation), pose.translation)
        model.add_image_with_trivial_frame(image, motion)
    order = np.argsort(tracks.point, kind="stable")
    image_id = tracks.view[order] + 1
    keypoint = order - by_view[tracks.view[order]]
    ends = np.searchsorted(tracks.point[order], np.arange(len(tracks.points) + 1))
    for n, (xyz, colour) in enumerate(zip(tracks.points, tracks.colours, strict=True)):
        track = pycolmap.Track()
        for at in range(ends[n], ends[n + 1]):
            track.add_element(int(image_id[at]), int(keypoint[at]))
        model.add_point3D(xyz, track, colour)
    model.update_point_3d_errors()
    return model


def _colmap_camera(pycolmap: Any, camera: Pinhole, camera_id: int) -> Any:
    return pycolmap.Camera(
        camera_id=camera_id,
        model="PINHOLE",
        width=camera.width,
        height=camera.height,
        params=[camera.fx, camera.fy, camera.cx + 0.5, camera.cy + 0.5],
    )


def write_nerfstudio(out: Path, selection: Selection, images: MapImages, *, comment: str = "") -> int:
    """Writes `transforms.json`, `images/` and the cloud; returns the number of points."""
    trajectory = selection.trajectory
    with replacing_folder(out) as folder:
        count = write_ply(folder / NERFSTUDIO_CLOUD, selection.clouds(folder), comment=comment)
        saved = images.save(trajectory.frames.tolist(), folder / "images", selection.camera)
        world_from_camera = trajectory.world_from_camera.matrix() @ _OPENCV_FROM_OPENGL
        frames = [
            {
                "file_path": f"images/{name}",
                "transform_matrix": matrix.tolist(),
                **_nerfstudio_intrinsics(camera),
            }
            for (name, camera), matrix in zip(saved.values(), world_from_camera, strict=True)
        ]
        text = json.dumps(
            {"camera_model": "OPENCV", "ply_file_path": NERFSTUDIO_CLOUD, "frames": frames}, indent=1
        )
        (folder / "transforms.json").write_text(text + "\n")
    return count


def _nerfstudio_intrinsics(camera: Pinhole) -> dict[str, Any]:
    """The top-left pixel's corner is its (0, 0), ours is that pixel's centre."""
    return {
        "fl_x": camera.fx,
        "fl_y": camera.fy,
        "cx": camera.cx + 0.5,
        "cy": camera.cy + 0.5,
        "w": camera.width,
        "h": camera.height,
    }
