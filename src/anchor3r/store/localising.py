"""A map that says where images were taken: its keyframes as `places` wants them, and their features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.places.features import FeatureConfig, extract
from anchor3r.places.keyframes import PlaceKeyframe, describe_keyframe
from anchor3r.places.localiser import Localisation, Localiser, LocaliserConfig, PosedKeyframes
from anchor3r.places.vocabulary import load_vocabulary
from anchor3r.store.camera import common_camera, lens_of
from anchor3r.store.reader import Map
from anchor3r.store.rows import best_poses

KEYFRAME_INTERVAL = 5
"""Every so many frames with a pose are a keyframe, as those that are searched for loops."""
_SAME_SHAPE = 0.02
"""Ratios of sides differ by less where an image was only resized, to whole pixels."""
ImageReader = Callable[[int], NDArray[np.uint8]]


def places_identity(config: FeatureConfig | None = None) -> dict[str, Any]:
    """All that features of a map depend on, beside its frames (JSON)."""
    config = config or FeatureConfig()
    return {"features": asdict(config), "vocabulary": load_vocabulary().digest, "every": KEYFRAME_INTERVAL}


def place_frames_of(scene_map: Map) -> NDArray[np.int64]:
    """(k,) the frames of a map that are its keyframes for places."""
    frames = scene_map.trajectory().frames
    part = scene_map.part_of(frames)  # those of a merged map have the keyframes that they had
    return np.concatenate([frames[part == k][::KEYFRAME_INTERVAL] for k in np.unique(part)] or [frames])


def describe_frame(scene_map: Map, frame: int, read_image: ImageReader | None = None) -> PlaceKeyframe:
    """The features of a frame, from its picture and its point map."""
    image = (read_image or scene_map.image)(frame)
    points = scene_map.points(frame)
    if points is None:
        return describe_keyframe(frame, image, None, None, load_vocabulary())
    depth = points.points_in_camera[..., 2]
    return describe_keyframe(frame, image, depth, points.confidence, load_vocabulary())


def map_keyframes(scene_map: Map, poses: str | None = None) -> PosedKeyframes:
    """The keyframes of a map with its poses of a name, the best there are if none is given.

    Features that the map does not keep are made from its pictures when they are asked for.
    """
    trajectory = scene_map.trajectory(poses or best_poses(scene_map.trajectory_names()))
    if not len(trajectory):
        raise Anchor3RError(f"{scene_map.lack_of_poses()} There is nothing to find an image in.")
    kept: set[int] = set()
    if scene_map.place_identity() == places_identity():
        kept = set(scene_map.place_frames().tolist())
    rows = np.flatnonzero(np.isin(trajectory.frames, place_frames_of(scene_map)))
    described: dict[int, PlaceKeyframe] = {}

    def read(frame: int) -> PlaceKeyframe:
        if frame in kept:
            return scene_map.place(frame)
        if frame not in described:
            described[frame] = describe_frame(scene_map, frame)
        return described[frame]

    log_scale = np.zeros(len(trajectory)) if trajectory.log_scale is None else trajectory.log_scale
    component = np.zeros(len(trajectory), np.int64) if trajectory.component is None else trajectory.component
    return PosedKeyframes(
        frames=trajectory.frames[rows],
        camera_from_world=trajectory.camera_from_world[rows],
        scale=np.exp(log_scale[rows]),
        component=component[rows],
        camera=common_camera(scene_map),
        lens=lens_of(scene_map),
        read=read,
    )


class MapLocaliser:
    """Says where images were taken in one map; the index is made once."""

    def __init__(
        self, scene_map: Map, poses: str | None = None, config: LocaliserConfig | None = None
    ) -> None:
        self.poses = poses or best_poses(scene_map.trajectory_names())
        """Name of the poses that images are placed among."""
        self.localiser = Localiser(map_keyframes(scene_map, self.poses), load_vocabulary(), config)

    def has_shape_of_map(self, image: NDArray[np.uint8]) -> bool:
        """Whether an image (H, W, 3) may be of the map's camera: its sides have the same ratio."""
        camera, (height, width) = self.localiser.keyframes.camera, image.shape[:2]
        return abs(width * camera.height / (height * camera.width) - 1) <= _SAME_SHAPE

    def localise(self, image: NDArray[np.uint8], camera: Pinhole | None = None) -> Localisation:
        """Where an image (H, W, 3) RGB was taken.

        camera: of this image, which has no distortion then; that of the map if it is not given.
        """
        keyframes, (height, width) = self.localiser.keyframes, image.shape[:2]
        lens = (0.0, 0.0) if camera is not None else keyframes.lens
        if camera is None:
            camera = keyframes.camera
            if not self.has_shape_of_map(image):
                raise Anchor3RError(
                    f"an image of {width}×{height} is not of the map's camera ({camera.width}×"
                    f"{camera.height}); say what camera it is of"
                )
        features = extract(image, self.localiser.config.features)
        return self.localiser.localise(features, camera.resized(width, height), lens)
