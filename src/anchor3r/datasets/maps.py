"""A map of one's own as a training set: refined poses and depth become targets, as far as they are trusted.

Each component of a map is a sequence. Poses are the refined ones if there are any. A frame is left out if it
was lost, if refinement contradicts what its window measured, or if ground truth contradicts its pose.
"""

from __future__ import annotations

import os
from dataclasses import astuple
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anchor3r.datasets.dataset import Card, DataSet, Picture, SequenceTable
from anchor3r.datasets.files import Files
from anchor3r.geometry import SE3, Pinhole, rotation_angle, umeyama
from anchor3r.sources.images import natural_key
from anchor3r.store import Map, load_map
from anchor3r.store.camera import common_camera
from anchor3r.trajectory import Trajectory

MAX_TURN_DEG, MAX_STEP = 1.0, 0.25
"""Ground truth contradicts a step from the frame before that differs by more: degrees, and part of its length
(or of a tenth of the usual one). Scale that drifts along a map is no contradiction."""
MAX_CHI_SQUARED = 22.46
"""Of a step as refined against as measured online, six degrees of freedom: 0.1 % of right ones are beyond."""


class OwnMap(DataSet):
    """The folder of a map; see `anchor3r map` and `anchor3r refine`."""

    card = Card(
        name="map",
        title="a map",
        licence="your own",
        size="–",
        scenes="one a component",
        kind="real",
        download="made with anchor3r map and anchor3r refine, with its images kept",
        layout="a map's database with poses and images",
        metric=False,
    )

    def names(self, files: Files) -> list[str]:
        scene_map = _opened(files.root)
        if not (scene_map.keeps_images() and scene_map.trajectory_names()):
            return []
        trajectory = best_trajectory(scene_map)
        return sorted({f"component {c}" for c in _components(trajectory).tolist()}, key=natural_key)

    def index(self, files: Files, name: str) -> SequenceTable:
        scene_map = _opened(files.root)
        trajectory = best_trajectory(scene_map)
        chosen = np.flatnonzero(_components(trajectory) == int(name.rpartition(" ")[2]))
        kept = chosen[_trusted(scene_map, trajectory)[chosen]]
        poses = trajectory.camera_from_world[kept]
        frames = trajectory.frames[kept].tolist()
        cameras = np.array([astuple(_camera(files.root, frame))[:4] for frame in frames]).reshape(-1, 4)
        log_scale = np.zeros(len(kept)) if trajectory.log_scale is None else trajectory.log_scale[kept]
        lens = np.stack([np.exp(log_scale), _pose_confidence(trajectory)[kept]], -1)
        return SequenceTable(
            name=name,
            images=tuple(map(str, frames)),
            depths=tuple(map(str, frames)),
            camera_from_world=np.concatenate([poses.rotation, poses.translation[..., None]], -1),
            cameras=cameras,
            lens=lens,
        )

    def picture(self, files: Files, table: SequenceTable, index: int) -> Picture:
        scene_map = _opened(files.root)
        frame, (scale, pose_confidence) = int(table.images[index]), table.lens[index].tolist()
        image = scene_map.image(frame)
        height, width = image.shape[:2]
        point_map = scene_map.points(frame)
        camera = _camera(files.root, frame).resized(width, height)
        if point_map is None:
            return Picture(image, None, camera, pose_confidence=pose_confidence)
        depth = np.nan_to_num(point_map.points_in_camera[..., 2], nan=0.0).astype(np.float32) * np.float32(
            scale
        )
        confidence = point_map.confidence / max(float(point_map.confidence.max()), 1e-9)
        rows = ((np.arange(height) + 0.5) * depth.shape[0] / height).astype(int)
        columns = ((np.arange(width) + 0.5) * depth.shape[1] / width).astype(int)
        spread = [x[rows][:, columns].astype(np.float32) for x in (depth, confidence)]
        return Picture(image, np.maximum(spread[0], 0), camera, spread[1], pose_confidence)


def _opened(root: Path) -> Map:
    # A database must not be shared with the process that a worker was forked from.
    return _opened_by(root, os.getpid())


@lru_cache(maxsize=16)
def _opened_by(root: Path, _: int) -> Map:
    return load_map(root)


def best_trajectory(scene_map: Map) -> Trajectory:
    """The last refinement, or the online poses."""
    return scene_map.trajectory(scene_map.trajectory_names()[-1])


def _components(trajectory: Trajectory) -> NDArray[np.int64]:
    return np.zeros(len(trajectory), np.int64) if trajectory.component is None else trajectory.component


def _camera(root: Path, frame: int) -> Pinhole:
    """The camera of a frame: where its source knew none, the one that the map has found."""
    return _opened(root).intrinsics(frame) or _common_camera(root, os.getpid())


@lru_cache(maxsize=16)
def _common_camera(root: Path, _: int) -> Pinhole:
    return common_camera(_opened(root))


def _pose_confidence(trajectory: Trajectory) -> NDArray[np.float64]:
    """(n,) 1 for poses as certain as half of all or more, falling with their variance beyond."""
    if trajectory.covariance is None:
        return np.ones(len(trajectory))
    variance = np.trace(trajectory.covariance[:, 3:, 3:], axis1=1, axis2=2)
    usual = np.nanmedian(variance) if np.isfinite(variance).any() else 1.0
    return np.where(np.isfinite(variance), np.minimum(1, usual / np.maximum(variance, 1e-12)), 1.0)


def _trusted(scene_map: Map, trajectory: Trajectory) -> NDArray[np.bool_]:
    """(n,) frames that neither ground truth nor refinement contradicts."""
    trusted = np.ones(len(trajectory), bool)
    truth = scene_map.true_trajectory()
    if truth is not None:
        trusted &= ~_contradicted(trajectory, truth)
    online = scene_map.trajectory()
    if online.covariance is not None and len(scene_map.trajectory_names()) > 1:
        trusted &= ~_moved_by_refinement(trajectory, online)
    return trusted


def _contradicted(trajectory: Trajectory, truth: Trajectory) -> NDArray[np.bool_]:
    """(n,) frames whose step from the frame before is not the true one, after the best similarity."""
    shared, ours, theirs = np.intersect1d(trajectory.frames, truth.frames, return_indices=True)
    wrong = np.zeros(len(trajectory), bool)
    if len(shared) < 3:
        return wrong
    scale = float(umeyama(trajectory.center[ours], truth.center[theirs]).scale)
    found, true = (_steps(t, k) for t, k in ((trajectory, ours), (truth, theirs)))
    turn = np.degrees(rotation_angle(found.rotation @ np.swapaxes(true.rotation, -1, -2)))
    length = np.linalg.norm(true.translation, axis=1)
    error = np.linalg.norm(scale * found.translation - true.translation, axis=1)
    wrong[ours[1:]] = (turn > MAX_TURN_DEG) | (error > MAX_STEP * np.maximum(length, 0.1 * np.median(length)))
    return wrong


def _steps(trajectory: Trajectory, rows: NDArray[np.int64]) -> SE3:
    poses = trajectory.camera_from_world[rows]
    return poses[1:] @ poses[:-1].inverse()


def _moved_by_refinement(refined: Trajectory, online: Trajectory) -> NDArray[np.bool_]:
    """(n,) frames whose step differs from the online one beyond what its covariance allows."""
    shared, ours, theirs = np.intersect1d(refined.frames, online.frames, return_indices=True)
    moved = np.zeros(len(refined), bool)
    assert online.covariance is not None
    if len(shared) < 3:
        return moved
    found, first = _steps(refined, ours), _steps(online, theirs)
    turn = rotation_angle(found.rotation @ np.swapaxes(first.rotation, -1, -2))
    variance = np.trace(online.covariance[theirs[1:], :3, :3], axis1=1, axis2=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        moved[ours[1:]] = turn**2 / variance > MAX_CHI_SQUARED
    return moved
