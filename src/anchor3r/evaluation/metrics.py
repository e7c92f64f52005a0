"""Errors of trajectories, point clouds and depth against ground truth: numpy in, numbers out, no files.

Trajectories are `world_from_estimated` and `world_from_true`: camera poses (n,) of the same frames, whose two
worlds differ until the estimate is moved into the true one. Lengths are those of the ground truth
(metres), angles in degrees. ATE and the errors between consecutive frames equal those of the evo package,
segment errors those of the KITTI development kit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2

from anchor3r.geometry import (
    SE3,
    Array,
    Sim3,
    align_poses,
    nearest_rotation,
    rotation_angle,
    so3_log,
    umeyama,
)
from anchor3r.trajectory import distance_along

SEGMENT_LENGTHS_M = (100, 200, 300, 400, 500, 600, 700, 800)
SEGMENT_STEP = 10
MIN_STEP_M = 1e-6
"""Below this true displacement the direction of a motion means nothing."""
MIN_STREAM = 100
"""Frames below which tenths of a stream are too short to compare."""
REGISTRATION_REACH_M, REGISTRATION_END_M, REGISTRATION_STEPS = 0.25, 0.05, 25
"""Of the registration of clouds: the thresholds that F1 is given at, and how many steps lie between them."""
MIN_REGISTERED_POINTS = 100
"""Pairs below which a registration of clouds means nothing."""
SCALE_REACH = 25
"""Poses before and after a step that tell the scale that the map has there: enough for the errors of single
ones to average out, few enough for it to be the same in all."""
_EXACT = 1e-30  # variance that counts as none


class Alignment(StrEnum):
    """What may be moved away before a trajectory is compared."""

    SIM3 = "sim3"
    """Rotation, translation and scale: monocular."""
    SE3 = "se3"
    """Rotation and translation: metric systems."""
    NONE = "none"
    """Nothing: both are in one world already."""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """A set of errors in four numbers; NaN where there are none."""

    rmse: float
    mean: float
    median: float
    max: float

    @staticmethod
    def of(errors: ArrayLike) -> Statistics:
        e = np.asarray(errors, np.float64)
        if not len(e):
            return Statistics(rmse=np.nan, mean=np.nan, median=np.nan, max=np.nan)
        rmse = float(np.sqrt(np.mean(e * e)))
        return Statistics(rmse=rmse, mean=float(e.mean()), median=float(np.median(e)), max=float(e.max()))


def true_from_estimated_world(world_from_estimated: SE3, world_from_true: SE3, alignment: Alignment) -> Sim3:
    """The least-squares motion of camera centres that `alignment` allows."""
    if alignment is Alignment.NONE:
        return Sim3.identity()
    return umeyama(
        world_from_estimated.translation,
        world_from_true.translation,
        with_scale=alignment is Alignment.SIM3,
    )


def moved(new_from_old_world: Sim3, world_from_camera: SE3) -> SE3:
    """Camera poses (n,) once their world is moved by a similarity."""
    centres = new_from_old_world.apply(world_from_camera.translation)
    return SE3(new_from_old_world.rotation @ world_from_camera.rotation, centres)


def absolute_errors_m(world_from_estimated: SE3, world_from_true: SE3) -> Array:
    """(n,) distances between camera centres."""
    return np.linalg.norm(world_from_estimated.translation - world_from_true.translation, axis=-1)


def relative_errors(
    world_from_estimated: SE3, world_from_true: SE3, first: NDArray[np.integer], last: NDArray[np.integer]
) -> tuple[Array, Array]:
    """Rotation (m,) in degrees and translation (m,) of the motion errors from frames `first` to `last`."""
    true = world_from_true[first].inverse() @ world_from_true[last]
    estimated = world_from_estimated[first].inverse() @ world_from_estimated[last]
    error = true.inverse() @ estimated
    # Files carry as few as 7 digits: their products are rotations only to that precision.
    rotation = nearest_rotation(error.rotation)
    return np.degrees(rotation_angle(rotation)), np.linalg.norm(error.translation, axis=-1)


def consecutive_errors(world_from_estimated: SE3, world_from_true: SE3) -> tuple[Array, Array]:
    """RRE in degrees and RTE in metres, (n - 1,) each, between neighbouring frames."""
    index = np.arange(len(world_from_true))
    return relative_errors(world_from_estimated, world_from_true, index[:-1], index[1:])


@dataclass(frozen=True, kw_only=True)
class SegmentErrors:
    """RPE by length: errors of motions over segments of a given length of the true path."""

    length_m: NDArray[np.float64]
    """(m,) nominal length of each segment"""
    translation_percent: NDArray[np.float64]
    """(m,) of the length"""
    rotation_deg_per_m: NDArray[np.float64]
    """(m,)"""


def segment_errors(
    world_from_estimated: SE3,
    world_from_true: SE3,
    lengths_m: ArrayLike = SEGMENT_LENGTHS_M,
    step: int = SEGMENT_STEP,
) -> SegmentErrors:
    """As KITTI's devkit: one starts every `step` frames and ends at the first frame beyond its length."""
    distance = distance_along(world_from_true.translation)
    start, length = np.meshgrid(
        np.arange(0, len(distance), step), np.asarray(lengths_m, float), indexing="ij"
    )
    first, length = start.ravel(), length.ravel()
    last = np.searchsorted(distance, distance[first] + length, side="right")
    fits = last < len(distance)
    first, last, length = first[fits], last[fits], length[fits]
    rotation_deg, translation_m = relative_errors(world_from_estimated, world_from_true, first, last)
    return SegmentErrors(
        length_m=length,
        translation_percent=100 * translation_m / length,
        rotation_deg_per_m=rotation_deg / length,
    )


def drift_percent(world_from_estimated: SE3, world_from_true: SE3) -> float:
    """The error of the motion from the first to the last frame, in % of the path between them."""
    path_m = distance_along(world_from_true.translation)[-1]
    if not path_m:
        return float("nan")
    ends = np.array([0]), np.array([len(world_from_true) - 1])
    _, error_m = relative_errors(world_from_estimated, world_from_true, *ends)
    return float(100 * error_m[0] / path_m)


def neighbour_errors(member_from_anchor: SE3, true_member_from_anchor: SE3) -> tuple[Array, Array]:
    """Of m measured motions: rotation errors (m,) and translation-direction errors (k ≤ m,) in degrees.

    A motion that truly stands still has no direction and drops out of the second; a measured standstill of a
    moving camera counts as 90°, the mean of a blind guess.
    """
    difference = np.swapaxes(true_member_from_anchor.rotation, -1, -2) @ member_from_anchor.rotation
    true_step = np.linalg.norm(true_member_from_anchor.translation, axis=-1)
    moves = true_step > MIN_STEP_M
    a, b = member_from_anchor.translation[moves], true_member_from_anchor.translation[moves]
    # atan2 keeps its accuracy at small angles, where arccos loses half the digits.
    angle = np.arctan2(np.linalg.norm(np.cross(a, b), axis=-1), np.sum(a * b, -1))
    stands = ~a.any(-1)
    return np.degrees(rotation_angle(difference)), np.where(stands, 90.0, np.degrees(angle))


@dataclass(frozen=True, kw_only=True)
class TrajectoryErrors:
    """All errors of one trajectory after one alignment."""

    alignment: Alignment
    true_from_estimated: Sim3
    """What was moved away."""
    world_from_estimated: SE3
    """(n,) aligned poses, in the world of the ground truth."""
    world_from_true: SE3
    """(n,)"""
    absolute_m: NDArray[np.floating]
    """(n,)"""
    rotation_deg: NDArray[np.floating]
    """(n - 1,) RRE"""
    translation_m: NDArray[np.floating]
    """(n - 1,) RTE"""
    segments: SegmentErrors

    def metrics(self) -> dict[str, float]:
        """Every number of the tables by name; NaN where the path is too short for it."""
        path_m = float(distance_along(self.world_from_true.translation)[-1])
        ate = Statistics.of(self.absolute_m)
        named = {"ate": (ate, "m"), "rre": (Statistics.of(self.rotation_deg), "deg")}
        named["rte"] = Statistics.of(self.translation_m), "m"
        out = {"num_poses": len(self.absolute_m), "path_m": path_m}
        for name, (statistics, unit) in named.items():
            for key, value in vars(statistics).items():
                out[f"{name}_{key}_{unit}"] = value
        return out | {
            "ate_percent": 100 * ate.rmse / path_m if path_m else float("nan"),
            "ate_vbr_legacy": float(np.sqrt(ate.mean)),
            "segment_translation_percent": Statistics.of(self.segments.translation_percent).mean,
            "segment_rotation_deg_per_m": Statistics.of(self.segments.rotation_deg_per_m).mean,
            "drift_percent": drift_percent(self.world_from_estimated, self.world_from_true),
            "scale": float(self.true_from_estimated.scale),
        }


def trajectory_errors(
    world_from_estimated: SE3, world_from_true: SE3, alignment: Alignment = Alignment.SIM3
) -> TrajectoryErrors:
    """Aligns and compares poses (n,) of the same frames, n >= 2."""
    if len(world_from_estimated) != len(world_from_true) or len(world_from_true) < 2:
        counts = f"{len(world_from_estimated)} and {len(world_from_true)}"
        raise ValueError(f"trajectories of equal length ≥ 2 are compared, not of {counts} poses")
    motion = true_from_estimated_world(world_from_estimated, world_from_true, alignment)
    aligned = moved(motion, world_from_estimated)
    rotation_deg, translation_m = consecutive_errors(aligned, world_from_true)
    return TrajectoryErrors(
        alignment=alignment,
        true_from_estimated=motion,
        world_from_estimated=aligned,
        world_from_true=world_from_true,
        absolute_m=absolute_errors_m(aligned, world_from_true),
        rotation_deg=rotation_deg,
        translation_m=translation_m,
        segments=segment_errors(aligned, world_from_true),
    )


def aligned_pose_errors(world_from_estimated: SE3, world_from_true: SE3) -> Array:
    """(n, 6) rotation (camera axes, rad) and centre (world axes) of estimated poses against true ones.

    The truth is brought into the estimate's world by `align_poses`, relative to which covariances of refined
    poses are stated.
    """
    motion = align_poses(world_from_true, world_from_estimated)
    return _pose_errors(world_from_estimated, moved(motion, world_from_true))


def step_errors(world_from_estimated: SE3, world_from_true: SE3, scale: float | Array) -> Array:
    """(n - 1, 6) the same of every pose but the first, the pose before it being taken to be exact.

    scale: the true length of one of the estimate's units, for all steps or for each (n - 1,).
    """
    true_step = world_from_true[:-1].inverse() @ world_from_true[1:]
    lengths = true_step.translation / np.reshape(scale, (-1, 1))
    expected = world_from_estimated[:-1] @ SE3(true_step.rotation, lengths)
    return _pose_errors(world_from_estimated[1:], expected)


def local_scales(world_from_estimated: SE3, world_from_true: SE3, reach: int = SCALE_REACH) -> Array:
    """(n - 1,) the true length of one of the estimate's units around each step: as the poses up to `reach`
    before and after it are best aligned.

    A monocular map's scale drifts; how one pose lies relative to another is told in the scale that it has
    there.
    """
    true, estimated = world_from_true.translation, world_from_estimated.translation
    scales = np.ones(max(len(true) - 1, 0))
    for k in range(len(scales)):
        around = slice(max(0, k - reach), k + reach + 2)
        if np.ptp(true[around], axis=0).max() > MIN_STEP_M:
            # The truth is the source: regressed on values with errors, the scale would be biased.
            scales[k] = 1 / float(umeyama(true[around], estimated[around]).scale)
    return scales


def _pose_errors(world_from_estimated: SE3, world_from_true: SE3) -> Array:
    difference = np.swapaxes(world_from_estimated.rotation, 1, 2) @ world_from_true.rotation
    offset = world_from_estimated.translation - world_from_true.translation
    return np.concatenate([so3_log(difference), offset], 1)


def ellipsoid_shares(errors: Array, covariance: Array) -> dict[str, float]:
    """In percent, how many errors (n, 6) lie within the 50 % and 95 % ellipsoids of covariances (n, 6, 6).

    Poses without a covariance do not count.
    """
    known = np.isfinite(covariance).all((1, 2))
    if not known.any():
        return {}
    value, vector = np.linalg.eigh(covariance[known])
    # What is said to be exact, and is not, lies outside.
    along = np.einsum("nij,ni->nj", vector, errors[known])
    square = (along**2 / np.maximum(value, _EXACT)).sum(1)
    return {
        f"within_{percent}_percent": 100 * float(np.mean(square <= chi2.ppf(percent / 100, 6)))
        for percent in (50, 95)
    }


@dataclass(frozen=True, kw_only=True)
class Steadiness:
    """Whether a stream gets worse with time: its last tenth against its first, each aligned on its own."""

    first_error_per_m: float
    """Σ RTE / path of the first tenth"""
    last_error_per_m: float
    scale_change: float
    """Scale of the last tenth over that of the first: 1 if it did not drift."""

    @property
    def growth(self) -> float:
        """Error of the last tenth over that of the first."""
        return self.last_error_per_m / self.first_error_per_m if self.first_error_per_m else float("nan")


def steadiness(world_from_estimated: SE3, world_from_true: SE3) -> Steadiness:
    """Compares the tenths of trajectories of n >= MIN_STREAM frames."""
    if len(world_from_true) < MIN_STREAM:
        raise ValueError(f"{len(world_from_true)} frames are too few, {MIN_STREAM} are needed")
    tenth = len(world_from_true) // 10
    errors = [
        trajectory_errors(world_from_estimated[part], world_from_true[part])
        for part in (slice(None, tenth), slice(-tenth, None))
    ]
    paths_m = [distance_along(e.world_from_true.translation)[-1] or np.nan for e in errors]
    per_m = [float(e.translation_m.sum() / path_m) for e, path_m in zip(errors, paths_m, strict=True)]
    # true_from_estimated.scale brings estimated lengths to metres; the estimate's own scale is its inverse.
    scales = [float(e.true_from_estimated.scale) for e in errors]
    change = scales[0] / scales[1] if scales[1] else float("nan")
    return Steadiness(first_error_per_m=per_m[0], last_error_per_m=per_m[1], scale_change=change)


@dataclass(frozen=True, kw_only=True)
class CloudErrors:
    """A reconstructed cloud against the true one, both in metres in one world."""

    accuracy_m: float
    """Mean distance from an estimated point to the nearest true one"""
    completeness_m: float
    """Mean distance from a true point to the nearest estimated one"""
    shares: dict[float, tuple[float, float]]
    """By threshold in metres: precision, the share of estimated points within it, and recall, that of true
    ones."""

    def metrics(self) -> dict[str, float]:
        """CD = accuracy + completeness, and F1 at every threshold, with their parts."""
        named = {
            "accuracy_m": self.accuracy_m,
            "completeness_m": self.completeness_m,
            "cd_m": self.accuracy_m + self.completeness_m,
        }
        for threshold_m, (precision, recall) in self.shares.items():
            both = precision + recall
            named[f"precision_at_{threshold_m:g}"] = precision
            named[f"recall_at_{threshold_m:g}"] = recall
            named[f"f1_at_{threshold_m:g}"] = 2 * precision * recall / both if both else 0.0
        return named


def cloud_errors(
    estimated_points: Array,
    true_points: Array,
    *,
    thresholds_m: Sequence[float],
    num_points: int,
    rng: np.random.Generator,
) -> CloudErrors:
    """Compares at most `num_points` random points a side; clouds are (n, 3), n >= 1, without NaN."""
    from scipy.spatial import KDTree

    def sample(points: Array) -> Array:
        return (
            points
            if len(points) <= num_points
            else points[rng.choice(len(points), num_points, replace=False)]
        )

    estimated, true = sample(estimated_points), sample(true_points)
    to_true, _ = KDTree(true).query(estimated)
    to_estimated, _ = KDTree(estimated).query(true)
    return CloudErrors(
        accuracy_m=float(to_true.mean()),
        completeness_m=float(to_estimated.mean()),
        shares={
            threshold_m: (float(np.mean(to_true < threshold_m)), float(np.mean(to_estimated < threshold_m)))
            for threshold_m in thresholds_m
        },
    )


def registered_cloud(
    estimated_points: Array, true_points: Array, *, num_points: int, rng: np.random.Generator
) -> Sim3:
    """The similarity registered_from_estimated that fits a cloud (n, 3) to the true one (m, 3) near it.

    Iterative closest points on `num_points` random points of the estimate, among which pairs farther apart
    than a limit do not count; the limit begins at `REGISTRATION_REACH_M` and ends at `REGISTRATION_END_M`.
    The identity where too few points are that near.
    """
    from scipy.spatial import KDTree

    chosen = rng.permutation(len(estimated_points))[:num_points]
    points, tree = estimated_points[chosen], KDTree(true_points)
    found = Sim3.identity()
    for limit_m in np.geomspace(REGISTRATION_REACH_M, REGISTRATION_END_M, REGISTRATION_STEPS):
        distance_m, nearest = tree.query(found.apply(points), distance_upper_bound=limit_m)
        near = np.isfinite(distance_m)
        if near.sum() < MIN_REGISTERED_POINTS:
            return Sim3.identity()
        found = umeyama(points[near], true_points[nearest[near]])
    return found


@dataclass(frozen=True, kw_only=True)
class DepthErrors:
    """Depth images of a sequence against the true ones; NaN where there is nothing to compare."""

    abs_rel: float
    """Mean of |depth - true depth| / true depth"""
    within_5: float
    """Share of depths within 5 % of the true one"""
    within_10: float
    """Share of depths within 10 % of the true one"""
    coverage: float
    """Share of true depths that have an estimated one"""
    scale: float
    """What depths were multiplied with before."""


def depth_errors(depth: Array, true_depth_m: Array) -> DepthErrors:
    """Compares after one scale for all of them, the median ratio, has brought the depths to metres.

    depth, true_depth_m: (n,) of all frames together; what is not positive and finite is not known.
    """
    known = np.isfinite(true_depth_m) & (true_depth_m > 0)
    valid = known & np.isfinite(depth) & (depth > 0)
    if not valid.any():
        nan = float("nan")
        coverage = 0.0 if known.any() else nan
        return DepthErrors(abs_rel=nan, within_5=nan, within_10=nan, coverage=coverage, scale=nan)
    estimated, true = depth[valid].astype(np.float64), true_depth_m[valid].astype(np.float64)
    scale = float(np.median(true / estimated))
    errors = np.abs(scale * estimated - true) / true
    return DepthErrors(
        abs_rel=float(errors.mean()),
        within_5=float(np.mean(errors < 0.05)),
        within_10=float(np.mean(errors < 0.1)),
        coverage=float(valid.sum() / known.sum()),
        scale=scale,
    )
