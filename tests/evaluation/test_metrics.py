"""Metrics against the evo package, against direct loops, and on known solutions."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchor3r.evaluation import metrics
from anchor3r.evaluation.association import associate
from anchor3r.evaluation.metrics import Alignment, ellipsoid_shares, trajectory_errors
from anchor3r.geometry import SE3, Sim3, so3_exp
from anchor3r.trajectory import nearest_in_time


def walk(num: int, seed: int, step_m: float = 1.0) -> SE3:
    """A random drive: world_from_camera (num,)."""
    rng = np.random.default_rng(seed)
    motions = SE3(
        so3_exp(rng.normal(0, 0.02, (num, 3))), np.abs(rng.normal(step_m, 0.1, (num, 1))) * [0.0, 0.0, 1.0]
    )
    poses = [SE3.identity()]
    for k in range(1, num):
        poses.append(poses[-1] @ motions[k])
    return SE3(np.stack([p.rotation for p in poses]), np.stack([p.translation for p in poses]))


def perturbed(world_from_true: SE3, seed: int, scale: float = 1.0) -> SE3:
    """Another world, another unit, noise on every pose and a slow bend."""
    rng = np.random.default_rng(seed)
    n = len(world_from_true)
    noise = SE3(so3_exp(rng.normal(0, 0.01, (n, 3))), rng.normal(0, 0.2, (n, 3)))
    motion = Sim3(so3_exp([0.3, -1.0, 2.0]), np.array([10.0, -3.0, 5.0]), np.array(scale))
    bend = SE3(so3_exp(np.linspace(0, 0.1, n)[:, None] * [0.0, 1.0, 0.0]), np.zeros((n, 3)))
    return metrics.moved(motion, bend @ world_from_true @ noise)


def write_kitti(path: Path, world_from_camera: SE3, digits: str = "%.17g") -> Path:
    np.savetxt(path, world_from_camera.matrix()[:, :3].reshape(-1, 12), fmt=digits)
    return path


@pytest.mark.parametrize(("seed", "step_m"), [(0, 0.9), (3, 0.02)], ids=["driven", "carried"])
@pytest.mark.parametrize("alignment", list(Alignment))
def test_equals_evo(tmp_path: Path, seed: int, step_m: float, alignment: Alignment) -> None:
    """On ground truth of the seven digits that KITTI's files have: its rotations are not exact."""
    evo_metrics = pytest.importorskip("evo.core.metrics")
    evo_files = pytest.importorskip("evo.tools.file_interface")
    truth_file = write_kitti(tmp_path / "truth.txt", walk(1200, seed, step_m), "%.6e")
    true = SE3.from_matrix(np.loadtxt(truth_file).reshape(-1, 3, 4))
    estimated = perturbed(true, seed=seed, scale=1.7)
    evo_true = evo_files.read_kitti_poses_file(truth_file)
    evo_estimated = evo_files.read_kitti_poses_file(write_kitti(tmp_path / "estimate.txt", estimated))
    if alignment is not Alignment.NONE:
        evo_estimated.align(evo_true, correct_scale=alignment is Alignment.SIM3)
    ours = trajectory_errors(estimated, true, alignment).metrics()
    compared = {
        "ate_{}_m": evo_metrics.APE(evo_metrics.PoseRelation.translation_part),
        "rte_{}_m": evo_metrics.RPE(evo_metrics.PoseRelation.translation_part, all_pairs=True),
        "rre_{}_deg": evo_metrics.RPE(evo_metrics.PoseRelation.rotation_angle_deg, all_pairs=True),
    }
    for name, metric in compared.items():
        metric.process_data((evo_true, evo_estimated))
        for statistic in ("rmse", "mean", "median", "max"):
            theirs = metric.get_statistic(evo_metrics.StatisticsType[statistic])
            assert ours[name.format(statistic)] == pytest.approx(theirs, abs=1e-9, rel=1e-9)


def test_association_equals_evo() -> None:
    evo_sync = pytest.importorskip("evo.core.sync")
    rng = np.random.default_rng(0)
    epoch_s = 1_311_868_164.0
    images = epoch_s + np.sort(rng.uniform(0, 30, 400))
    truth = epoch_s + np.sort(rng.uniform(-1, 29, 2900))
    for first, second in ((images, truth), (truth, images)):
        short, long = (first, second) if len(first) < len(second) else (second, first)
        expected = [np.array(i) for i in evo_sync.matching_time_indices(short, long, 0.02)]
        pairs = associate(first, second, 0.02)
        of_short, of_long = pairs if first is short else pairs[::-1]
        np.testing.assert_array_equal(of_short, expected[0])
        np.testing.assert_array_equal(of_long, expected[1])
        assert 300 < len(of_short) < 400


def test_association_of_nothing() -> None:
    some, none = np.arange(5.0), np.empty(0)
    assert [len(i) for i in nearest_in_time(some, none, 0.1)] == [0, 0]
    assert [len(i) for i in associate(some, some + 100, 0.1)] == [0, 0]


def test_segments_equal_a_direct_loop() -> None:
    """The devkit's procedure, written out for each segment by itself."""
    true = walk(900, seed=1)
    estimated = perturbed(true, seed=2)
    matrices = [p.matrix() for p in (estimated, true)]
    centres = matrices[1][:, :3, 3]
    distance = [0.0]
    for a, b in pairwise(centres):
        distance.append(distance[-1] + float(np.linalg.norm(b - a)))
    translations, rotations = [], []
    for first in range(0, len(true), 10):
        for length in (100, 200, 300, 400, 500, 600, 700, 800):
            ends = [i for i in range(first, len(true)) if distance[i] > distance[first] + length]
            if not ends:
                continue
            motions = [np.linalg.inv(m[first]) @ m[ends[0]] for m in matrices]
            error = np.linalg.inv(motions[0]) @ motions[1]
            translations.append(np.linalg.norm(error[:3, 3]) / length)
            rotations.append(np.arccos(np.clip((np.trace(error[:3, :3]) - 1) / 2, -1, 1)) / length)
    ours = trajectory_errors(estimated, true, Alignment.NONE).metrics()
    assert ours["segment_translation_percent"] == pytest.approx(100 * np.mean(translations), rel=1e-9)
    assert ours["segment_rotation_deg_per_m"] == pytest.approx(np.degrees(np.mean(rotations)), rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.floats(0.1, 10))
def test_a_moved_truth_has_no_error(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    true = walk(40, seed)
    motion = Sim3(so3_exp(rng.normal(size=3)), rng.normal(size=3), np.array(scale))
    got = trajectory_errors(metrics.moved(motion, true), true).metrics()
    for name in ("ate_max_m", "rre_max_deg", "rte_max_m", "drift_percent"):
        assert got[name] == pytest.approx(0, abs=1e-6)
    assert got["scale"] == pytest.approx(1 / scale)
    assert np.isnan(got["segment_translation_percent"])


def test_sim3_alignment_is_optimal() -> None:
    true = walk(60, seed=5)
    errors = trajectory_errors(perturbed(true, seed=6, scale=0.4), true)
    best = np.sum(errors.absolute_m**2)
    rng = np.random.default_rng(7)
    for tangent in rng.normal(0, 1e-3, (20, 7)):
        nudged = metrics.moved(Sim3.exp(tangent), errors.world_from_estimated)
        assert np.sum(metrics.absolute_errors_m(nudged, true) ** 2) > best


def test_known_numbers() -> None:
    """A straight line of 10 steps whose estimate sits 3 m aside at the last frame."""
    true = SE3(np.broadcast_to(np.eye(3), (11, 3, 3)), np.arange(11)[:, None] * [0.0, 0.0, 1.0])
    estimated = SE3(true.rotation, true.translation.copy())
    estimated.translation[-1, 0] = 3.0
    got = trajectory_errors(estimated, true, Alignment.NONE).metrics()
    assert got["path_m"] == 10
    assert got["ate_rmse_m"] == pytest.approx(np.sqrt(9 / 11))
    assert got["ate_mean_m"] == pytest.approx(3 / 11)
    assert got["ate_median_m"] == 0
    assert got["ate_max_m"] == 3
    assert got["ate_percent"] == pytest.approx(10 * np.sqrt(9 / 11))
    assert got["ate_vbr_legacy"] == pytest.approx(np.sqrt(3 / 11))
    assert got["rte_max_m"] == 3
    assert got["drift_percent"] == pytest.approx(30)


@pytest.mark.parametrize(("estimated", "true"), [(5, 4), (1, 1)])
def test_refuses_what_cannot_be_compared(estimated: int, true: int) -> None:
    with pytest.raises(ValueError, match="equal length"):
        trajectory_errors(SE3.identity(estimated), SE3.identity(true))


def test_neighbour_errors() -> None:
    true = SE3(
        np.broadcast_to(np.eye(3), (4, 3, 3)), np.array([[0, 0, 1.0], [0, 0, 2.0], [0, 0, 0], [1, 0, 0]])
    )
    turned = so3_exp(np.radians([[0, 0, 0], [0, 5.0, 0], [1.0, 0, 0], [0, 0, 0]]))
    directions = np.array([[0, 0, 9.0], [0, 1.0, 1.0], [1, 0, 0], [0, 0, 0]])
    rotation_deg, direction_deg = metrics.neighbour_errors(SE3(turned, directions), true)
    np.testing.assert_allclose(rotation_deg, [0, 5, 1, 0], atol=1e-12)
    np.testing.assert_allclose(direction_deg, [0, 45, 90], atol=1e-12)


def test_steadiness_sees_a_stream_get_worse_and_its_unit_drift() -> None:
    true = walk(300, seed=8)
    rng = np.random.default_rng(9)
    sigma = np.where(np.arange(300) < 150, 0.01, 0.03)
    noisy = SE3(true.rotation, true.translation + sigma[:, None] * rng.normal(size=(300, 3)))
    assert metrics.steadiness(noisy, true).growth == pytest.approx(3, rel=0.3)
    assert metrics.steadiness(noisy, true).scale_change == pytest.approx(1, abs=0.01)
    grown = SE3(true.rotation, true.translation * np.where(np.arange(300) < 150, 1, 2)[:, None])
    assert metrics.steadiness(grown, true).scale_change == pytest.approx(2)
    with pytest.raises(ValueError, match="too few"):
        metrics.steadiness(true[:99], true[:99])


def test_cloud_errors_of_shifted_planes() -> None:
    grid = np.stack(np.meshgrid(np.arange(40.0), np.arange(40.0), [0.0]), -1).reshape(-1, 3)
    near = grid[grid[:, 0] < 20] + [0, 0, 0.2]
    got = metrics.cloud_errors(
        near, grid, thresholds_m=(0.25, 0.1), num_points=10**6, rng=np.random.default_rng(0)
    )
    named = got.metrics()
    assert named["accuracy_m"] == pytest.approx(0.2)
    assert named["precision_at_0.25"] == 1
    assert named["f1_at_0.1"] == 0
    assert named["recall_at_0.25"] == pytest.approx(0.5)
    assert named["f1_at_0.25"] == pytest.approx(2 / 3)
    assert named["cd_m"] == pytest.approx(got.accuracy_m + got.completeness_m)
    assert got.completeness_m > 5
    missed = metrics.cloud_errors(
        near + 100, grid, thresholds_m=(0.25, 0.1), num_points=50, rng=np.random.default_rng(0)
    )
    assert missed.metrics()["f1_at_0.25"] == 0


def test_a_cloud_is_registered_whatever_else_is_in_it() -> None:
    rng = np.random.default_rng(0)
    # Three walls of a room, which together leave no freedom.
    true = 2 * rng.random((3, 8000, 3))
    for axis, wall in enumerate(true):
        wall[:, axis] = 0
    true = true.reshape(-1, 3)
    misplaced = Sim3(
        rotation=so3_exp(np.radians([2, -1, 1.5])),
        translation=np.array([0.05, -0.04, 0.03]),
        scale=np.array(1.03),
    )
    estimated = np.concatenate([misplaced.apply(true[::2]), 5 + rng.random((3000, 3))])
    found = metrics.registered_cloud(estimated, true, num_points=5000, rng=np.random.default_rng(1))
    left_m = np.linalg.norm(found.apply(misplaced.apply(true)) - true, axis=-1)
    assert left_m.max() < 0.02
    far = metrics.registered_cloud(estimated + 50, true, num_points=5000, rng=np.random.default_rng(1))
    assert far.scale == 1
    assert not far.translation.any()


def test_cloud_sampling_is_seeded() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 3000, 3))
    runs = [
        metrics.cloud_errors(a, b, thresholds_m=(0.1,), num_points=500, rng=np.random.default_rng(seed))
        for seed in (3, 3, 4)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_depth_errors() -> None:
    true = np.array([1.0, 2.0, 4.0, 0.0, 5.0, np.nan])
    depth = np.array([0.5, 1.0, 2.14, 3.0, np.inf, 1.0])
    got = metrics.depth_errors(depth, true)
    assert got.scale == pytest.approx(2)
    assert got.abs_rel == pytest.approx((0 + 0 + 0.07) / 3)
    assert (got.within_5, got.within_10, got.coverage) == pytest.approx((2 / 3, 1, 3 / 4))
    assert np.isnan(metrics.depth_errors(depth[:0], true[:0]).abs_rel)
    assert metrics.depth_errors(np.full(6, np.nan), true).coverage == 0


@pytest.mark.parametrize("is_aligned", [True, False])
def test_honest_covariances_hold_as_many_true_poses_as_they_promise(is_aligned: bool) -> None:
    rng = np.random.default_rng(0)
    n, scale = 4000, 2.5
    true = SE3(so3_exp(rng.normal(size=(n, 3))), 10 * rng.normal(size=(n, 3)))  # world from camera
    half = rng.normal(size=(n, 12, 6)) * ([1e-3] * 3 + [1e-2] * 3)
    covariance = half.swapaxes(1, 2) @ half
    root = np.linalg.cholesky(covariance + 1e-14 * np.eye(6))
    error = np.einsum("nij,nj->ni", root, rng.normal(size=(n, 6)))
    if not is_aligned:
        error[::2] = 0  # exact, and every second frame the one before the next
    estimated = SE3(true.rotation @ so3_exp(-error[:, :3]), true.translation / scale + error[:, 3:])
    if is_aligned:  # wherever the world lies
        motion = Sim3(so3_exp(rng.normal(size=3)), rng.normal(size=3), np.float64(7.0))
        true = metrics.moved(motion, true)
        errors = metrics.aligned_pose_errors(estimated, true)
    else:
        errors, covariance = metrics.step_errors(estimated, true, scale)[::2], covariance[1::2]
    shares = ellipsoid_shares(errors, covariance)
    assert shares["within_50_percent"] == pytest.approx(50, abs=3)
    assert shares["within_95_percent"] == pytest.approx(95, abs=1.5)
    assert ellipsoid_shares(errors, covariance / 9)["within_95_percent"] < 60
    assert ellipsoid_shares(errors, np.full_like(covariance, np.nan)) == {}
    covariance[0] = np.nan
    assert ellipsoid_shares(errors, covariance) == ellipsoid_shares(errors[1:], covariance[1:])
