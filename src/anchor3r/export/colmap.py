"""A map as a COLMAP project: `images/` and the model in `sparse/0`, as trainers of splats expect it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from anchor3r.errors import Anchor3RError
from anchor3r.export.cameras import retaken
from anchor3r.export.images import MapImages
from anchor3r.export.selection import Selection
from anchor3r.export.tracks import TrackConfig, Tracks, build_tracks
from anchor3r.geometry import Pinhole
from anchor3r.io.extras import export_library
from anchor3r.io.files import replacing_folder
from anchor3r.store import PointMap
from anchor3r.trajectory import FramePose, Trajectory


def write_colmap(out: Path, selection: Selection, images: MapImages) -> int:
    """Writes the folder; returns the number of points."""
    export_library("pycolmap")
    trajectory = selection.trajectory
    budget = {} if selection.max_points is None else {"max_points": selection.max_points}
    config = TrackConfig(min_confidence=selection.min_confidence, **budget)
    with replacing_folder(out) as folder:
        saved = images.save(trajectory.frames.tolist(), folder / "images", selection.camera)
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
    source = selection.source
    for k, frame in enumerate(selection.trajectory.frames.tolist()):
        camera, point_map = saved[frame][1], source.points(frame)
        if point_map is not None:
            point_map = retaken(point_map, source.intrinsics(frame), camera)
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
            model.add_camera_with_trivial_rig(_camera(pycolmap, camera, camera_ids[camera]))
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


def _camera(pycolmap: Any, camera: Pinhole, camera_id: int) -> Any:
    return pycolmap.Camera(
        camera_id=camera_id,
        model="PINHOLE",
        width=camera.width,
        height=camera.height,
        params=[camera.fx, camera.fy, camera.cx + 0.5, camera.cy + 0.5],
    )
