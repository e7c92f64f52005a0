"""Small maps for the tests of the viewer: a painted street that nothing has to be rendered for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from anchor3r.geometry import SE3, Pinhole, so3_exp
from anchor3r.pose_graph.edges import Edges
from anchor3r.predictors.interface import WindowPrediction, WindowStatus
from anchor3r.sources import Frame
from anchor3r.store import Loop, LoopState, MapWriter
from anchor3r.trajectory import FramePose, Trajectory

CAMERA = Pinhole.from_fov(70, 32, 24)


def street_frame(index: int) -> Frame:
    """A camera that drives along z and sways."""
    rotation = so3_exp(np.array([0.0, 0.3 * np.sin(index / 6), 0.0]))
    center = np.array([np.sin(index / 10), 0.0, 0.5 * index])
    image = np.zeros((CAMERA.height, CAMERA.width, 3), np.uint8)
    image[:, :16], image[:, 16:] = (230, 120, 60), (60, 160, 230)
    return Frame(
        index=index,
        timestamp_s=index / 10,
        image=image,
        intrinsics=CAMERA,
        camera_from_world=SE3(rotation, -rotation @ center),
    )


def street_prediction(index: int) -> WindowPrediction:
    """Two walls of points, beside the camera, surer the nearer they are."""
    rng = np.random.default_rng(index)
    shape = (CAMERA.height, CAMERA.width)
    side = np.where(np.arange(CAMERA.width) < 16, -3.0, 3.0)
    along = rng.uniform(3, 9, shape)
    points = np.stack([np.broadcast_to(side, shape), rng.uniform(-2, 2, shape), along], -1)
    return WindowPrediction(
        anchor=index,
        members=np.empty(0, np.int64),
        member_from_anchor_rotation=np.empty((0, 3, 3)),
        member_from_anchor_translation=np.empty((0, 3)),
        confidence=np.empty(0),
        points_in_anchor=points.astype(np.float32),
        points_confidence=((10 - along) / 8).clip(0, 1).astype(np.float32),
        status=WindowStatus.OK,
    )


def record_street(store: MapWriter, frames: Iterable[int]) -> None:
    for index in frames:
        frame = street_frame(index)
        pose = frame.camera_from_world
        assert pose is not None
        online = FramePose(frame=index, rotation=pose.rotation, center=pose.center())
        store.record(frame, street_prediction(index), Edges.of([], index, np.eye(3), 0.0), [online])
    store.commit()


def bent(poses: Trajectory) -> Trajectory:
    """A refinement that nobody can overlook."""
    sideways = np.zeros_like(poses.center)
    sideways[:, 0] = 0.02 * poses.center[:, 2] ** 2
    return replace(poses, center=poses.center + sideways)


def write_street(folder: Path, num_frames: int, *, refined: bool = False) -> None:
    """A map of the street, with two loops and offline poses if refined."""
    from anchor3r.store import load_map

    with MapWriter.create(folder, {"source": "street"}) as store:
        store.write_meta(num_frames=num_frames)
        record_street(store, range(num_frames))
    if not refined:
        return
    with load_map(folder) as made:
        poses = bent(made.trajectory())
    with MapWriter.open(folder) as store:
        store.write_trajectory("offline", poses)
        loops = [
            Loop(
                event=k,
                query=num_frames - 1 - k,
                match=k,
                state=LoopState.FITS if k == 0 else LoopState.CONTRADICTED,
                figures={},
            )
            for k in range(2)
        ]
        store.write_loops([(loop, []) for loop in loops])
