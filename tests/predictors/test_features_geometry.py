"""The camera, the solvers on it, and self-calibration: derivatives, known solutions, laws of information."""

import numpy as np
import pytest

from anchor3r.geometry import SE3, rotation_angle, so3_exp
from anchor3r.predictors.features.bundle_adjustment import Adjusted, adjust_window
from anchor3r.predictors.features.calibration import Calibration
from anchor3r.predictors.features.projection import (
    CALIBRATION_SIZE,
    adjust_pose,
    calibration_jacobian,
    calibration_vector,
    gradient_of,
    point_jacobian,
    pose_jacobian,
    project,
    rays,
    reprojection_errors,
    residual_of,
    rotate,
    triangulate,
)
from anchor3r.predictors.features.rotation import fit_rotations, shows_parallax
from anchor3r.predictors.features.twoview import is_one_scene, relate_two_views, relate_views_of_a_plane

CAMERA = np.array([300.0, 305.0, 160.0, 120.0, 0.05, -0.03])
NUM_KEYFRAMES, NUM_POINTS = 6, 120


@pytest.fixture
def scene() -> tuple[SE3, np.ndarray, np.ndarray]:
    """Poses (k,), points (n, 3) and where each is seen (k, n, 2), all inside every image."""
    rng = np.random.default_rng(3)
    points = rng.uniform([-2, -1.5, 5], [2, 1.5, 9], (NUM_POINTS, 3))
    rotations = so3_exp(rng.normal(0, 0.03, (NUM_KEYFRAMES, 3)))
    steps = np.stack(
        [0.3 * np.arange(NUM_KEYFRAMES), np.zeros(NUM_KEYFRAMES), -0.2 * np.arange(NUM_KEYFRAMES)], 1
    )
    poses = SE3(rotations, steps)
    seen = np.stack([project(CAMERA, poses[k].apply(points)) for k in range(NUM_KEYFRAMES)])
    return poses, points, seen


def test_rays_undo_projection(scene: tuple) -> None:
    poses, points, seen = scene
    in_camera = poses[2].apply(points)
    np.testing.assert_allclose(rays(CAMERA, seen[2]), in_camera / in_camera[:, 2:], atol=1e-6)


def _error(camera: np.ndarray, pose: SE3, point: np.ndarray) -> np.ndarray:
    out = np.empty(5)
    assert residual_of(pose.rotation, pose.translation, camera, point, 0.0, 0.0, out)
    return out


@pytest.mark.parametrize("which", ["pose", "point", "calibration"])
def test_jacobians_match_finite_differences(scene: tuple, which: str) -> None:
    poses, points, _ = scene
    pose, point, step = poses[3], points[0], 1e-6
    jp, jx, jc = np.empty((2, 6)), np.empty((2, 3)), np.empty((2, CALIBRATION_SIZE))
    residual, gradient = _error(CAMERA, pose, point), np.empty((2, 3))
    gradient_of(CAMERA, residual, gradient)
    pose_jacobian(residual, gradient, jp)
    point_jacobian(pose.rotation, gradient, jx)
    calibration_jacobian(CAMERA, residual, jc)
    analytic = {"pose": jp, "point": jx, "calibration": jc}[which]

    def moved(delta: np.ndarray) -> np.ndarray:
        if which == "point":
            return _error(CAMERA, pose, point + delta)[:2]
        if which == "calibration":
            camera = CAMERA.copy()
            camera[:2] *= np.exp(delta[0])
            camera[2:] += delta[1:]
            return _error(camera, pose, point)[:2]
        rotation = np.empty((3, 3))
        rotate(pose.rotation, delta[0], delta[1], delta[2], rotation)
        turned = SE3(rotation, so3_exp(delta[:3]) @ pose.translation + delta[3:])
        return _error(CAMERA, turned, point)[:2]

    for column, delta in enumerate(step * np.eye(analytic.shape[1])):
        numeric = (moved(delta) - moved(-delta)) / (2 * step)
        np.testing.assert_allclose(analytic[:, column], numeric, rtol=1e-5, atol=1e-4)


def test_pose_is_found_despite_outliers(scene: tuple) -> None:
    poses, points, seen = scene
    uv = seen[4].copy()
    uv[:10] += 40
    start = poses[3]
    rotation, translation, information = adjust_pose(
        start.rotation, start.translation, CAMERA, points, uv, 1.0, 20
    )
    assert np.median(reprojection_errors(SE3(rotation, translation), CAMERA, points, uv)) < 0.3
    np.testing.assert_allclose(translation, poses[4].translation, atol=0.02)
    assert np.linalg.eigvalsh(information)[0] > 0


def test_triangulation_knows_what_it_cannot_see(scene: tuple) -> None:
    poses, points, seen = scene
    observed = seen.copy()
    observed[1:, 0] = np.nan  # seen once
    observed[:, 1] = project(CAMERA, -points[1:2])[0]  # nowhere in particular
    position, error, parallax = triangulate(poses.rotation, poses.translation, CAMERA, observed, 5)
    np.testing.assert_allclose(position[2:], points[2:], atol=1e-6)
    assert error[2:].max() < 1e-6
    assert parallax[2:].min() > np.radians(5)
    assert np.isinf(error[0])
    assert error[1] > 10


def _adjust(scene: tuple, camera: np.ndarray, prior_information: np.ndarray, start_noise: float) -> Adjusted:
    poses, points, seen = scene
    rng = np.random.default_rng(5)
    free = np.arange(NUM_KEYFRAMES) >= 2
    noise = np.where(free[:, None], rng.normal(0, start_noise, (NUM_KEYFRAMES, 3)), 0)
    point_of, keyframe_of = np.divmod(np.arange(NUM_POINTS * NUM_KEYFRAMES), NUM_KEYFRAMES)
    return adjust_window(
        so3_exp(0.1 * noise) @ poses.rotation, poses.translation + noise, camera,
        points + rng.normal(0, start_noise, points.shape), point_of, keyframe_of, seen[keyframe_of, point_of],
        1.0, free, calibration_vector(camera), prior_information, 30,
    )  # fmt: skip


def test_window_adjustment_returns_to_the_truth(scene: tuple) -> None:
    poses, points, _ = scene
    rotations, translations, camera, positions, *_ = _adjust(
        scene, CAMERA, 1e12 * np.eye(CALIBRATION_SIZE), 0.05
    )
    np.testing.assert_allclose(translations, poses.translation, atol=1e-6)
    np.testing.assert_allclose(rotations, poses.rotation, atol=1e-6)
    np.testing.assert_allclose(positions, points, atol=1e-5)
    np.testing.assert_allclose(camera, CAMERA, rtol=1e-9)


def test_window_adjustment_finds_the_camera(scene: tuple) -> None:
    wrong = CAMERA * [1.02, 1.02, 1, 1, 0, 0]
    adjusted = _adjust(scene, wrong, 1e-9 * np.eye(CALIBRATION_SIZE), 0.02)
    np.testing.assert_allclose(adjusted.camera, CAMERA, rtol=1e-4, atol=1e-4)
    assert np.linalg.eigvalsh(adjusted.information)[0] > 0


def _window(information: np.ndarray, said: np.ndarray) -> Adjusted:
    """A window of one free keyframe whose minimum is at the camera `said`, as it looks from another one."""
    at = calibration_vector(CAMERA)
    gradient = information @ np.concatenate([np.zeros(6), at - calibration_vector(said)])
    nothing = np.empty(0)
    return Adjusted(nothing, nothing, CAMERA, nothing, information, gradient, at)


def test_calibration_adds_up_windows_and_holds_what_is_held() -> None:
    belief = Calibration.known(CAMERA, np.array([0.01, 0.0, 0.0, 0.02, 0.02]))
    window = np.zeros((6 + CALIBRATION_SIZE,) * 2)
    window[:6, :6] = np.eye(6)
    window[6:, 6:] = np.diag([1e6, 1e6, 1e6, 1e4, 1e4])
    said = CAMERA * [1.01, 1.01, 1, 1, 1, 1]
    before = belief.sigma
    for _ in range(50):
        belief.add(_window(window, said), 0.5)
    assert np.all(belief.sigma <= before)
    assert belief.mean[0] == pytest.approx(np.log(said[0]), abs=1e-4)
    np.testing.assert_allclose(belief.mean[1:3], CAMERA[2:4], atol=1e-6)


def _told(belief: Calibration, log_focal_off: float, focal_sigma: float) -> None:
    """A window that says how far the focal length is off what was stated, and nothing else."""
    window = np.zeros((6 + CALIBRATION_SIZE,) * 2)
    window[:6, :6] = np.eye(6)
    window[6:, 6:] = np.diag([focal_sigma**-2, 1e-6, 1e-6, 1e-6, 1e-6])
    said = CAMERA.copy()
    said[:2] *= np.exp(log_focal_off)
    belief.add(_window(window, said), 1.0)


@pytest.mark.parametrize(("off", "is_doubted"), [(-0.013, False), (-0.12, True), (0.09, True)])
def test_a_stated_focal_length_holds_until_the_evidence_is_strong(off: float, is_doubted: bool) -> None:
    sigma = np.array([0.003, 2.0, 2.0, 0.02, 0.02])
    belief = Calibration.known(CAMERA, sigma, doubted_sigma=0.1, bias=0.02)
    for _ in range(200):
        _told(belief, off, 0.01)
    found = belief.mean[0] - np.log(CAMERA[0])
    assert belief.is_doubted is is_doubted
    if is_doubted:
        assert found == pytest.approx(off, rel=0.06)
        assert 0.015 < belief.sigma[0] < 0.025  # windows that err alike do not average out
    else:
        assert abs(found) < 0.001
        assert belief.sigma[0] <= 0.003


def test_a_lens_is_learnt_with_the_focal_length_that_is_believed() -> None:
    """Windows that cannot tell a longer focal length from a bending lens: what one does not take, the other
    has to."""
    belief = Calibration.known(CAMERA, np.array([0.003, 1.0, 1.0, 0.05, 0.05]), bias=0.02)
    evidence = np.diag([1e6, 1.0, 1.0, 1e6, 1.0])
    evidence[0, 3] = evidence[3, 0] = 0.9e6
    at = belief.prior + np.array([-0.01, 0, 0, 0.01, 0])
    belief.evidence, belief.vector = evidence, evidence @ at
    assert belief.mean[0] == pytest.approx(belief.prior[0], abs=3e-4)
    assert belief.mean[3] - CAMERA[4] == pytest.approx(0.001, abs=4e-4)


BELIEF = {"max_error_px": 1.0, "min_points": 20, "min_agreeing": 0.5}


def test_two_views_relate_up_to_scale(scene: tuple) -> None:
    poses, _, seen = scene
    second_from_first = poses[5] @ poses[0].inverse()
    two = relate_two_views(seen[0], seen[5], CAMERA, **BELIEF)
    assert two is not None
    np.testing.assert_allclose(two.second_from_first.rotation, second_from_first.rotation, atol=1e-3)
    direction = two.second_from_first.translation / np.linalg.norm(two.second_from_first.translation)
    expected = second_from_first.translation / np.linalg.norm(second_from_first.translation)
    assert direction @ expected > 0.9999
    assert np.nanmedian(two.position[:, 2]) == pytest.approx(1)


def test_a_plane_has_two_explanations_and_the_true_one_is_among_them() -> None:
    rng = np.random.default_rng(0)
    points = np.column_stack([rng.uniform(-1, 1, (120, 2)), np.zeros(120)])
    points[:, 2] = 4 + 0.5 * points[:, 0]
    true = SE3(so3_exp(np.array([0.02, -0.1, 0.01])), np.array([0.4, 0.05, 0.1]))
    first, second = project(CAMERA, points), project(CAMERA, true.apply(points))
    found = relate_views_of_a_plane(first, second, CAMERA, max_error_px=1.0, min_points=20)
    ways = [
        two.second_from_first.translation / np.linalg.norm(two.second_from_first.translation) for two in found
    ]
    cosines = [way @ true.translation / np.linalg.norm(true.translation) for way in ways]
    assert max(cosines) > 0.999
    assert min(cosines) < 0.99
    assert found[int(np.argmax(cosines))].num_trusted(np.radians(1.0)) > 100


def test_two_views_of_noise_are_refused() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.uniform(0, 300, (2, 100, 2))
    assert relate_two_views(first, second, CAMERA, **BELIEF) is None
    assert relate_two_views(first[:5], second[:5], CAMERA, **BELIEF) is None


@pytest.mark.parametrize("step", [0.0, 0.05, 0.4])
def test_matches_of_one_scene_fit_one_epipolar_geometry_and_random_ones_do_not(step: float) -> None:
    """Also without any translation, and with half of the matches wrong."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        points = rng.uniform([-2, -1.5, 3], [2, 1.5, 9], (40, 3))
        moved = SE3(so3_exp(np.array([0.02, 0.1, 0.01])), np.array([step, 0.02, step]))
        first, second = project(CAMERA, points), project(CAMERA, moved.apply(points))
        second = second + 0.3 * rng.normal(size=second.shape)
        found = [first, second, CAMERA, (320, 240)]
        assert is_one_scene(*found, max_error_px=2.0)
        second[::2] = rng.uniform([0, 0], [320, 240], (20, 2))
        assert is_one_scene(*found, max_error_px=2.0)
        found[1] = rng.uniform([0, 0], [320, 240], (40, 2))
        assert not is_one_scene(*found, max_error_px=2.0)
    assert not is_one_scene(first[:5], second[:5], CAMERA, (320, 240), max_error_px=2.0)


def test_tracks_of_no_rotation_are_told_so_and_break_nothing() -> None:
    """Their best focal length may lie at infinity."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        first = rng.uniform([5, 5], [315, 235], (200, 2))
        elsewhere = rng.permutation(first)
        nearness = rng.uniform(0.2, 1, (200, 1)) * [120, 0]
        for moved in (nearness, elsewhere - first, 1.2 * (first - [160, 120])):
            observed = first + np.linspace(0, 1, 31)[:, None, None] * moved
            found = fit_rotations(observed, CAMERA, 0.6, huber_px=0.5, max_error_px=2.0)
            assert not found.is_plausible
            assert np.isfinite(found.frame_from_first).all()
            assert np.isfinite(found.camera).all()


@pytest.mark.parametrize(("slipping", "plausible"), [(0.0, True), (0.2, True), (0.5, False)])
def test_a_rotation_is_found_among_tracks_that_slip(slipping: float, plausible: bool) -> None:
    rng = np.random.default_rng(4)
    first = rng.uniform([60, 60], [260, 180], (200, 2))
    turns = so3_exp(np.linspace(0, 1, 20)[:, None] * [0.1, 0.2, 0.05])
    observed = np.stack([project(CAMERA, rays(CAMERA, first) @ turn.T) for turn in turns])
    slips = rng.random(200) < slipping
    observed[:, slips] += np.linspace(0, 1, 20)[:, None, None] * rng.normal(0, 12, (slips.sum(), 2))
    found = fit_rotations(observed, CAMERA, 0.0, huber_px=0.5, max_error_px=2.0)
    assert found.is_explained is (slipping == 0)
    assert found.is_plausible is plausible
    if plausible:
        assert np.degrees(rotation_angle(found.frame_from_first[-1] @ turns[-1].T)) < 0.2


def test_more_frames_of_the_same_tracks_do_not_make_a_focal_length_surer() -> None:
    rng = np.random.default_rng(4)
    first = rng.uniform([0, 0], [320, 240], (150, 2))
    now = project(CAMERA, rays(CAMERA, first) @ so3_exp(np.array([0.02, 0.15, 0.01])).T)
    now += rng.normal(0, 0.4, now.shape)

    def sigma(count: int) -> float:
        observed = np.stack([first, *[now] * count])
        return fit_rotations(observed, CAMERA, 0.6, huber_px=0.5, max_error_px=2.0).focal_sigma

    assert sigma(30) == pytest.approx(sigma(1), rel=0.05)


@pytest.mark.parametrize("baseline", [0.0, 0.05, 0.1])
def test_a_translation_is_believed_only_if_points_move_along_epipolar_lines(baseline: float) -> None:
    rng = np.random.default_rng(3)
    first = rng.uniform([0, 0], [320, 240], (150, 2))
    moved = SE3(so3_exp(np.array([0.02, 0.15, 0.01])), np.array([0.8, 0.1, 0.6]))
    in_first = rays(CAMERA, first) * rng.uniform(1, 4, (150, 1))
    now = project(CAMERA, in_first @ moved.rotation.T + baseline * moved.translation)
    now += rng.normal(0, 0.4, now.shape)
    now[:30] += rng.normal(0, 6, (30, 2))  # tracks that slip
    turned = fit_rotations(np.stack([first, now]), CAMERA, 0.0, huber_px=0.5, max_error_px=2.0)
    assert shows_parallax(first, now, turned, moved, CAMERA, noise_px=0.5) == (baseline > 0)
