"""The libraries a user would reach for, on the same motion graph: each takes edges and a start, gives poses.

Rotation averaging gives rotations only. A library that is not installed is skipped by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from anchor3r.geometry import SE3, rotation_from_quat, so3_exp, so3_log
from anchor3r.pose_graph.edges import Edges


@dataclass(frozen=True)
class PeerTask:
    """What every peer is given: all edges, false loops too."""

    edges: Edges
    start: SE3
    """camera_from_world (n,), online"""
    decoupled: SE3
    """camera_from_world (n,), the paper's result"""
    sigmas: NDArray[np.float64]
    """(m, 2) of rotation (radians) and translation, by edge, as our joint solve has them"""
    width: float
    """of the Geman–McClure loss, in standard deviations"""


@dataclass(frozen=True)
class PeerAnswer:
    rotation: NDArray[np.float64]
    """(n, 3, 3) camera_from_world"""
    center: NDArray[np.float64] | None
    """(n, 3), if the method gives any"""
    cpu_seconds: float
    """of the optimisation alone, without building its input"""


def gtsam_poses_weighed(task: PeerTask) -> PeerAnswer:
    """The same with every edge's noise as our joint solve has it."""
    return gtsam_poses(task, task.sigmas)


def gtsam_poses(task: PeerTask, sigmas: NDArray[np.float64] | None = None) -> PeerAnswer:
    """Levenberg–Marquardt on poses with a Geman–McClure loss, default parameters, from the paper's result.

    Without sigmas (m, 2) all edges are alike: their median.
    """
    import gtsam

    if sigmas is None:
        sigmas = np.broadcast_to(np.median(task.sigmas, 0), task.sigmas.shape)
    edges, start = task.edges, task.decoupled.inverse()
    graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    loss = gtsam.noiseModel.mEstimator.GemanMcClure.Create(task.width)
    sigmas = np.repeat(sigmas, 3, axis=1)
    for e in range(len(edges)):
        noise = gtsam.noiseModel.Robust.Create(loss, gtsam.noiseModel.Diagonal.Sigmas(sigmas[e]))
        measured = gtsam.Pose3(gtsam.Rot3(edges.rotation[e]), edges.translation[e])
        graph.add(gtsam.BetweenFactorPose3(int(edges.frame_i[e]), int(edges.frame_t[e]), measured, noise))
    for k in range(len(start)):
        values.insert(k, gtsam.Pose3(gtsam.Rot3(start.rotation[k]), start.translation[k]))
    graph.add(gtsam.PriorFactorPose3(0, values.atPose3(0), gtsam.noiseModel.Isotropic.Sigma(6, 1e-3)))
    optimizer = gtsam.LevenbergMarquardtOptimizer(graph, values, gtsam.LevenbergMarquardtParams())
    began = time.process_time()
    solved = optimizer.optimize()
    seconds = time.process_time() - began
    poses = [solved.atPose3(k) for k in range(len(start))]
    rotation = np.stack([pose.rotation().matrix().T for pose in poses])
    return PeerAnswer(rotation, np.stack([pose.translation() for pose in poses]), seconds)


def gtsam_rotations(task: PeerTask) -> PeerAnswer:
    """Levenberg–Marquardt on rotations with a Geman–McClure loss of 5 degrees, default parameters."""
    import gtsam

    edges, start = task.edges, task.start.inverse()
    graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    loss = gtsam.noiseModel.mEstimator.GemanMcClure.Create(1.0)
    unit = gtsam.noiseModel.Isotropic.Sigma(3, float(np.radians(5.0)))
    noise = gtsam.noiseModel.Robust.Create(loss, unit)
    for i, t, rotation in zip(edges.frame_i, edges.frame_t, edges.rotation, strict=True):
        graph.add(gtsam.BetweenFactorRot3(int(i), int(t), gtsam.Rot3(rotation), noise))
    for k, rotation in enumerate(start.rotation):
        values.insert(k, gtsam.Rot3(rotation))
    fixed = gtsam.noiseModel.Isotropic.Sigma(3, 1e-3)
    graph.add(gtsam.PriorFactorRot3(0, gtsam.Rot3(start.rotation[0]), fixed))
    optimizer = gtsam.LevenbergMarquardtOptimizer(graph, values, gtsam.LevenbergMarquardtParams())
    began = time.process_time()
    solved = optimizer.optimize()
    seconds = time.process_time() - began
    rotation = np.stack([solved.atRot3(k).matrix().T for k in range(len(start))])
    return PeerAnswer(rotation, None, seconds)


def pycolmap_rotations(task: PeerTask) -> PeerAnswer:
    """Global rotation averaging (L1, then reweighted least squares with Geman–McClure), default options."""
    import pycolmap

    edges = _first_of_each_pair(task.edges)
    n = len(task.start)
    reconstruction = pycolmap.Reconstruction()
    camera = pycolmap.Camera.create(1, pycolmap.CameraModelId.SIMPLE_PINHOLE, 500.0, 640, 480)
    reconstruction.add_camera_with_trivial_rig(camera)
    for k in range(n):
        image = pycolmap.Image(name=str(k), camera_id=1, image_id=k + 1)
        reconstruction.add_image_with_trivial_frame(image, pycolmap.Rigid3d())
    graph = pycolmap.PoseGraph()
    for i, t, rotation, translation in zip(
        edges.frame_i, edges.frame_t, edges.rotation, edges.translation, strict=True
    ):
        moved = pycolmap.Rigid3d(pycolmap.Rotation3d(rotation), translation)
        graph.add_edge(int(t) + 1, int(i) + 1, pycolmap.PoseGraphEdge(moved))
    options = pycolmap.RotationEstimatorOptions()
    options.random_seed = 0
    began = time.process_time()
    succeeded = pycolmap.run_rotation_averaging(options, graph, reconstruction, [])
    seconds = time.process_time() - began
    if not succeeded:
        raise RuntimeError("pycolmap's rotation averaging failed")
    images = [reconstruction.image(k + 1) for k in range(n)]
    lost = sum(not image.has_pose for image in images)
    if lost:
        raise RuntimeError(f"pycolmap left {lost} of {n} frames without a rotation")
    quats = [image.cam_from_world().rotation.quat for image in images]
    return PeerAnswer(rotation_from_quat(np.stack(quats)[:, [3, 0, 1, 2]]), None, seconds)


def pytheia_rotations(task: PeerTask) -> PeerAnswer:
    """Robust rotation estimator (L1, then reweighted least squares), default options, from the start."""
    import pytheia

    edges = _first_of_each_pair(task.edges)
    views = {}
    for i, t, turn in zip(edges.frame_i, edges.frame_t, so3_log(edges.rotation), strict=True):
        view = pytheia.sfm.TwoViewInfo()
        view.rotation_2 = turn
        views[int(t), int(i)] = view
    estimator = pytheia.sfm.RobustRotationEstimator(pytheia.sfm.RobustRotationEstimatorOptions())
    start = dict(enumerate(so3_log(task.start.rotation)))
    began = time.process_time()
    solved = estimator.EstimateRotations(views, start)
    seconds = time.process_time() - began
    return PeerAnswer(so3_exp(np.stack([solved[k].ravel() for k in range(len(start))])), None, seconds)


def _first_of_each_pair(edges: Edges) -> Edges:
    """These libraries take one edge a pair of images."""
    low, high = np.minimum(edges.frame_i, edges.frame_t), np.maximum(edges.frame_i, edges.frame_t)
    _, first = np.unique(low * (int(high.max()) + 1) + high, return_index=True)
    return edges.select(np.sort(first))


PEERS: dict[str, tuple[str, Callable[[PeerTask], PeerAnswer]]] = {
    "gtsam pose LM, GM": ("gtsam", gtsam_poses),
    "  with our noise": ("gtsam", gtsam_poses_weighed),
    "gtsam rotation LM, GM": ("gtsam", gtsam_rotations),
    "pycolmap rotations": ("pycolmap", pycolmap_rotations),
    "pytheia rotations": ("pytheia", pytheia_rotations),
}


def is_installed(module: str) -> bool:
    return find_spec(module) is not None
