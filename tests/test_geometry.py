"""Laws of the groups, known solutions, derivatives against finite differences, and degenerate input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm
from scipy.spatial.transform import Rotation

from anchor3r.geometry import (
    SE3,
    Array,
    Pinhole,
    Sim3,
    hat,
    nearest_rotation,
    quat_canonical,
    quat_from_rotation,
    rotation_angle,
    rotation_from_quat,
    so3_exp,
    so3_left_jacobian,
    so3_left_jacobian_inverse,
    so3_log,
    umeyama,
)


def law(**drawn: st.SearchStrategy) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Tests a law on many drawn cases, the same ones each time."""
    return lambda test: settings(derandomize=True, deadline=None, max_examples=80)(given(**drawn)(test))


DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
both_dtypes = st.sampled_from([np.float32, np.float64])

# At identity, around the switch from series to closed form in either precision, in between, and at π.
angles = st.one_of(
    st.just(0.0),
    st.floats(-12, 0).map(lambda exponent: 10.0**exponent),
    st.floats(0, np.pi),
    st.floats(-12, -1).map(lambda exponent: np.pi - 10.0**exponent),
    st.just(np.pi),
)
coordinates = st.floats(-10, 10, allow_subnormal=False)
vectors = st.tuples(coordinates, coordinates, coordinates).map(np.array)


@st.composite
def axes(draw: st.DrawFn) -> Array:
    """Unit vectors, often with zeros in them: those are the hard ones for pivoting at π."""
    vector = draw(st.tuples(*[st.one_of(st.just(0.0), st.floats(-1, 1))] * 3).map(np.array))
    norm = np.linalg.norm(vector)
    return vector / norm if norm > 0.1 else np.array([0.0, 0.0, 1.0])


rotation_vectors = st.tuples(angles, axes()).map(lambda drawn: drawn[0] * drawn[1])
twists = st.tuples(rotation_vectors, vectors).map(np.concatenate)
log_scales = st.one_of(st.just(0.0), st.floats(-1e-6, 1e-6), st.floats(-2, 2)).map(lambda s: np.array([s]))
similarity_tangents = st.tuples(rotation_vectors, vectors, log_scales).map(np.concatenate)


def tolerance(dtype: type) -> float:
    return 50 * float(np.finfo(dtype).eps)


def assert_close(actual: Array, expected: Array, dtype: type = np.float64, scale: float = 1.0) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance(dtype) * scale)


def same(a: SE3 | Sim3, b: SE3 | Sim3, scale: float = 100.0) -> None:
    assert_close(a.rotation, b.rotation)
    assert_close(a.translation, b.translation, scale=scale)
    if isinstance(a, Sim3) and isinstance(b, Sim3):
        np.testing.assert_allclose(a.scale, b.scale, rtol=tolerance(np.float64))


# Rotations


@law(w=rotation_vectors, dtype=both_dtypes)
def test_exp_is_a_rotation_and_keeps_the_dtype(w: Array, dtype: type) -> None:
    rotation = so3_exp(w.astype(dtype))
    assert rotation.dtype == dtype
    assert_close(rotation @ rotation.T, np.eye(3), dtype)
    assert np.linalg.det(rotation) > 0
    assert_close(rotation, Rotation.from_rotvec(w.astype(dtype)).as_matrix(), dtype)


@law(w=rotation_vectors, dtype=both_dtypes)
def test_log_inverts_exp(w: Array, dtype: type) -> None:
    w = w.astype(dtype)
    log = so3_log(so3_exp(w))
    assert log.dtype == dtype
    # At π both signs of the axis are the same rotation.
    at_pi = np.linalg.norm(w) > np.pi - 10 * tolerance(dtype)
    error = min(np.abs(log - w).max(), np.abs(log + w).max() if at_pi else np.inf)
    assert error <= 4 * tolerance(dtype)


@law(axis=axes(), exponent=st.floats(-12, -3), dtype=both_dtypes)
def test_small_angles_keep_their_relative_accuracy(axis: Array, exponent: float, dtype: type) -> None:
    w = (10**exponent * axis).astype(dtype)
    assert np.abs(so3_log(so3_exp(w)) - w).max() <= tolerance(dtype) * np.linalg.norm(w)


@law(w=rotation_vectors, dtype=both_dtypes)
def test_exp_inverts_log_and_the_norm_is_the_angle(w: Array, dtype: type) -> None:
    rotation = so3_exp(w.astype(dtype))
    log = so3_log(rotation)
    assert_close(so3_exp(log), rotation, dtype)
    assert np.linalg.norm(log) <= np.pi + tolerance(dtype)
    assert_close(rotation_angle(rotation), np.linalg.norm(w), dtype, scale=4)


def test_half_turns_about_every_kind_of_axis() -> None:
    units = np.eye(3)
    for axis in [*units, *(units + units[[1, 2, 0]]), *(units - units[[1, 2, 0]]), np.array([1, -1, 1e-9])]:
        unit = axis / np.linalg.norm(axis)
        exact = 2 * np.outer(unit, unit) - np.eye(3)
        log = so3_log(exact)
        assert_close(np.linalg.norm(log), np.pi)
        assert_close(np.abs(log @ unit), np.pi)


@law(w=rotation_vectors, x=vectors)
def test_hat_is_the_cross_product_and_generates_the_rotation(w: Array, x: Array) -> None:
    assert_close(hat(w) @ x, np.cross(w, x), scale=100)
    assert_close(so3_exp(w), expm(hat(w)))


@law(w=rotation_vectors, d=st.tuples(*[st.floats(-1, 1)] * 3).map(np.array))
def test_left_jacobian_is_the_derivative_of_exp(w: Array, d: Array) -> None:
    h = 1e-5
    central = so3_log(so3_exp(w + h * d) @ so3_exp(w - h * d).T) / (2 * h)
    np.testing.assert_allclose(so3_left_jacobian(w) @ d, central, rtol=0, atol=1e-9)


@law(w=rotation_vectors, dtype=both_dtypes)
def test_left_jacobian_inverse(w: Array, dtype: type) -> None:
    w = w.astype(dtype)
    product = so3_left_jacobian(w) @ so3_left_jacobian_inverse(w)
    assert product.dtype == dtype
    assert_close(product, np.eye(3), dtype)


# Quaternions


@law(w=rotation_vectors, dtype=both_dtypes)
def test_quaternions_agree_with_scipy(w: Array, dtype: type) -> None:
    rotation = so3_exp(w.astype(dtype))
    quat = quat_from_rotation(rotation)
    assert quat.dtype == dtype
    assert quat[0] >= 0
    expected = quat_canonical(np.roll(Rotation.from_rotvec(w).as_quat(), 1))
    same_sign = np.sign(quat @ expected)
    assert_close(same_sign * quat, expected, dtype)
    assert same_sign > 0 or quat[0] < tolerance(dtype)
    assert_close(rotation_from_quat(quat), rotation, dtype)


@law(w=rotation_vectors, factor=st.floats(0.01, 100))
def test_a_quaternion_needs_no_norm_nor_sign(w: Array, factor: float) -> None:
    quat = quat_from_rotation(so3_exp(w))
    assert_close(rotation_from_quat(-factor * quat), rotation_from_quat(quat))


@law(w=rotation_vectors, noise=st.lists(st.floats(-1, 1), min_size=9, max_size=9))
def test_nearest_rotation_is_a_rotation_and_none_is_nearer(w: Array, noise: list[float]) -> None:
    matrix = so3_exp(w) + np.reshape(noise, (3, 3))
    nearest = nearest_rotation(matrix)
    assert_close(nearest @ nearest.T, np.eye(3))
    assert np.linalg.det(nearest) > 0
    distance = np.linalg.norm(nearest - matrix)
    for step in np.concatenate([np.eye(3), -np.eye(3)]) * 1e-3:
        assert np.linalg.norm(so3_exp(step) @ nearest - matrix) >= distance - 1e-12


def test_nearest_rotation_of_reflections_and_of_nothing() -> None:
    assert_close(nearest_rotation(np.diag([1, 1, -1e-3])), np.eye(3))
    zero = nearest_rotation(np.zeros((3, 3)))
    assert_close(zero @ zero.T, np.eye(3))
    assert np.linalg.det(zero) > 0


# Rigid motions and similarities


@law(a=twists, b=twists, c=twists, x=vectors)
def test_se3_is_a_group_acting_on_points(a: Array, b: Array, c: Array, x: Array) -> None:
    ga, gb, gc = SE3.exp(a), SE3.exp(b), SE3.exp(c)
    same((ga @ gb) @ gc, ga @ (gb @ gc))
    same(ga @ SE3.identity(), ga)
    same(SE3.identity() @ ga, ga)
    same(ga @ ga.inverse(), SE3.identity())
    same(ga.inverse() @ ga, SE3.identity())
    assert_close((ga @ gb).apply(x), ga.apply(gb.apply(x)), scale=100)
    assert_close((ga @ gb).matrix(), ga.matrix() @ gb.matrix(), scale=100)
    assert_close(ga.apply(ga.center()), np.zeros(3), scale=100)


@law(a=similarity_tangents, b=similarity_tangents, c=similarity_tangents, x=vectors)
def test_sim3_is_a_group_acting_on_points(a: Array, b: Array, c: Array, x: Array) -> None:
    ga, gb, gc = Sim3.exp(a), Sim3.exp(b), Sim3.exp(c)
    same((ga @ gb) @ gc, ga @ (gb @ gc), scale=1e5)
    same(ga @ Sim3.identity(), ga)
    same(Sim3.identity() @ ga, ga)
    same(ga @ ga.inverse(), Sim3.identity(), scale=1e3)
    same(ga.inverse() @ ga, Sim3.identity(), scale=1e3)
    assert_close((ga @ gb).apply(x), ga.apply(gb.apply(x)), scale=1e5)


@law(xi=twists)
def test_se3_exp_is_the_matrix_exponential(xi: Array) -> None:
    generator = np.zeros((4, 4))
    generator[:3, :3], generator[:3, 3] = hat(xi[:3]), xi[3:]
    assert_close(SE3.exp(xi).matrix(), expm(generator), scale=100)


@law(xi=similarity_tangents)
def test_sim3_exp_is_the_matrix_exponential(xi: Array) -> None:
    generator = np.zeros((4, 4))
    generator[:3, :3], generator[:3, 3] = hat(xi[:3]) + xi[6] * np.eye(3), xi[3:6]
    exact = expm(generator)
    similarity = Sim3.exp(xi)
    assert_close(similarity.scale * similarity.rotation, exact[:3, :3], scale=100)
    assert_close(similarity.translation, exact[:3, 3], scale=1e3)


@law(xi=twists, dtype=both_dtypes)
def test_se3_log_and_exp_round_trip(xi: Array, dtype: type) -> None:
    motion = SE3.exp(xi.astype(dtype))
    log = motion.log()
    again = SE3.exp(log)
    assert log.dtype == motion.rotation.dtype == motion.translation.dtype == again.translation.dtype == dtype
    assert_close(again.rotation, motion.rotation, dtype)
    assert_close(again.translation, motion.translation, dtype, scale=100)
    if np.linalg.norm(xi[:3]) < 3:
        assert_close(log, xi.astype(dtype), dtype, scale=1e3)


@law(xi=similarity_tangents, dtype=both_dtypes)
def test_sim3_log_and_exp_round_trip(xi: Array, dtype: type) -> None:
    similarity = Sim3.exp(xi.astype(dtype))
    log = similarity.log()
    again = Sim3.exp(log)
    assert log.dtype == similarity.scale.dtype == similarity.translation.dtype == again.scale.dtype == dtype
    assert_close(again.rotation, similarity.rotation, dtype)
    assert_close(again.translation, similarity.translation, dtype, scale=1e3)
    np.testing.assert_allclose(again.scale, similarity.scale, rtol=tolerance(dtype))
    if np.linalg.norm(xi[:3]) < 3:
        assert_close(log, xi.astype(dtype), dtype, scale=1e3)


@law(pose=twists, xi=similarity_tangents, x=vectors)
def test_a_pose_moved_with_its_world_sees_the_same_directions(pose: Array, xi: Array, x: Array) -> None:
    camera_from_old = SE3.exp(pose)
    new_from_old = Sim3.exp(xi)
    camera_from_new = new_from_old.apply_to_pose(camera_from_old)
    seen = camera_from_new.apply(new_from_old.apply(x))
    assert_close(seen, new_from_old.scale * camera_from_old.apply(x), scale=1e4)


@DTYPES
def test_batches_are_the_same_as_one_at_a_time(dtype: type) -> None:
    rng = np.random.default_rng(0)
    tangents = rng.normal(size=(2, 5, 7)).astype(dtype)
    tangents[0, 0] = 0
    points = rng.normal(size=(2, 5, 3)).astype(dtype)
    motions, similarities = SE3.exp(tangents[..., :6]), Sim3.exp(tangents)
    for index in np.ndindex(2, 5):
        motion, similarity = SE3.exp(tangents[index][:6]), Sim3.exp(tangents[index])
        for batched, single in (
            (motions[index].matrix(), motion.matrix()),
            (motions.inverse()[index].matrix(), motion.inverse().matrix()),
            ((motions @ motions)[index].matrix(), (motion @ motion).matrix()),
            (motions.log()[index], motion.log()),
            (motions.apply(points)[index], motion.apply(points[index])),
            (similarities.log()[index], similarity.log()),
            (similarities.apply(points)[index], similarity.apply(points[index])),
            (similarities.inverse().translation[index], similarity.inverse().translation),
            (quat_from_rotation(motions.rotation)[index], quat_from_rotation(motion.rotation)),
            (nearest_rotation(2 * motions.rotation)[index], nearest_rotation(2 * motion.rotation)),
        ):
            assert batched.dtype == dtype
            assert_close(batched, single, dtype, scale=10)
    assert len(motions) == 2
    assert SE3.identity(2, 5, dtype=dtype).matrix().shape == (2, 5, 4, 4)
    assert motions[0, 0].apply(points).shape == (2, 5, 3)
    assert Sim3.identity(4).scale.shape == (4,)


def test_matrices_go_in_and_out_and_integers_become_float64() -> None:
    matrix = np.array([[0, -1, 0, 5], [1, 0, 0, 6], [0, 0, 1, 7], [0, 0, 0, 1]])
    motion = SE3.from_matrix(matrix)
    assert motion.rotation.dtype == np.float64
    assert_close(motion.matrix(), matrix)
    assert_close(SE3.from_matrix(matrix[:3]).matrix(), matrix)
    assert_close(motion.apply([1, 0, 0]), [5, 7, 7])
    assert_close(motion.center(), [-6, 5, -7])


# Umeyama


@law(xi=similarity_tangents, seed=st.integers(0, 1000), num_points=st.integers(3, 20))
def test_umeyama_recovers_a_similarity(xi: Array, seed: int, num_points: int) -> None:
    truth = Sim3.exp(xi)
    source = np.random.default_rng(seed).normal(size=(num_points, 3))
    target = truth.apply(source)
    similarity = umeyama(source, target)
    np.testing.assert_allclose(similarity.apply(source), target, atol=1e-10)
    np.testing.assert_allclose(similarity.scale, truth.scale, rtol=1e-10)
    assert np.linalg.det(similarity.rotation) > 0


@pytest.mark.parametrize("with_scale", [True, False])
def test_umeyama_is_the_least_squares_solution_of_noisy_points(with_scale: bool) -> None:
    rng = np.random.default_rng(1)
    source = rng.normal(size=(30, 3))
    target = Sim3.exp(np.array([0.3, -2, 0.5, 1, 2, 3, 0.4])).apply(source) + 0.3 * rng.normal(size=(30, 3))
    best = umeyama(source, target, with_scale=with_scale)
    assert with_scale or best.scale == 1
    cost = np.sum((best.apply(source) - target) ** 2)
    for step in np.concatenate([np.eye(7), -np.eye(7)])[:, None] * 1e-3:
        if step[0, 6] and not with_scale:
            continue
        other = Sim3.exp(step[0]) @ best
        assert np.sum((other.apply(source) - target) ** 2) > cost


def test_umeyama_gives_a_rotation_even_where_a_mirror_would_fit() -> None:
    source = np.random.default_rng(2).normal(size=(10, 3))
    similarity = umeyama(source, source * [1, 1, -1])
    assert_close(similarity.rotation @ similarity.rotation.T, np.eye(3))
    assert np.linalg.det(similarity.rotation) > 0
    assert similarity.scale > 0


@pytest.mark.parametrize(
    "source",
    [
        np.array([[1.0, 2, 3]]),
        np.array([[1.0, 2, 3], [4, 5, 7]]),
        np.outer(np.arange(5.0), [1, 2, -1]) + 3,
        np.random.default_rng(3).normal(size=(6, 3)) * [1, 1, 0],
    ],
    ids=["one", "two", "line", "plane"],
)
@DTYPES
def test_umeyama_of_points_that_leave_freedom_still_fits(source: Array, dtype: type) -> None:
    source = source.astype(dtype)
    truth = Sim3.exp(np.array([0.1, 0.7, -0.4, 3, -2, 1, 0.5], dtype))
    for with_scale in (True, False):
        target = truth.apply(source) if with_scale else SE3(truth.rotation, truth.translation).apply(source)
        similarity = umeyama(source, target, with_scale=with_scale)
        assert similarity.rotation.dtype == similarity.translation.dtype == similarity.scale.dtype == dtype
        assert_close(similarity.rotation @ similarity.rotation.T, np.eye(3), dtype)
        assert np.linalg.det(similarity.rotation) > 0
        assert_close(similarity.apply(source), target, dtype, scale=20)


def test_umeyama_of_points_that_coincide_is_invertible() -> None:
    spread, together = np.random.default_rng(4).normal(size=(5, 3)), np.ones((5, 3))
    for source, target in ((together, spread), (spread, together), (together, together)):
        similarity = umeyama(source, target)
        assert similarity.scale > 0
        assert_close(similarity.apply(source.mean(0)), target.mean(0))
        same(similarity @ similarity.inverse(), Sim3.identity())


def test_umeyama_refuses_what_is_no_pair_of_point_lists() -> None:
    for source, target in ((np.empty((0, 3)), np.empty((0, 3))), (np.ones((4, 3)), np.ones((1, 3)))):
        with pytest.raises(ValueError, match="umeyama"):
            umeyama(source, target)


# The pinhole camera

cameras = st.builds(
    Pinhole,
    fx=st.floats(20, 2000),
    fy=st.floats(20, 2000),
    cx=st.floats(0, 639),
    cy=st.floats(0, 479),
    width=st.just(640),
    height=st.just(480),
)
pixels = st.tuples(st.floats(-0.5, 639.5), st.floats(-0.5, 479.5)).map(np.array)


@law(camera=cameras, pixel=pixels, depth_m=st.floats(0.1, 100), dtype=both_dtypes)
def test_project_inverts_unproject(camera: Pinhole, pixel: Array, depth_m: float, dtype: type) -> None:
    point = camera.unproject(pixel.astype(dtype), dtype(depth_m))
    assert point.dtype == camera.project(point).dtype == dtype
    assert point[2] == dtype(depth_m)
    assert_close(camera.project(point), pixel, dtype, scale=700)
    assert_close(camera.matrix() @ point / depth_m, [*pixel, 1], dtype, scale=700)


@law(camera=cameras, pixel=pixels, width=st.integers(1, 2000), height=st.integers(1, 2000))
def test_resizing_keeps_the_rays_of_pixel_areas(
    camera: Pinhole, pixel: Array, width: int, height: int
) -> None:
    resized = camera.resized(width, height)
    moved = (pixel + 0.5) * [width / 640, height / 480] - 0.5
    np.testing.assert_allclose(
        resized.unproject(moved, 1.0), camera.unproject(pixel, 1.0), rtol=1e-9, atol=1e-9
    )
    again = resized.resized(640, 480)
    np.testing.assert_allclose(again.matrix(), camera.matrix(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(resized.horizontal_fov_deg(), camera.horizontal_fov_deg())


@law(camera=cameras, pixel=pixels, left=st.integers(0, 100), top=st.integers(0, 100))
def test_cropping_keeps_the_rays(camera: Pinhole, pixel: Array, left: int, top: int) -> None:
    cropped = camera.cropped(left, top, 200, 100)
    assert (cropped.width, cropped.height) == (200, 100)
    assert_close(cropped.unproject(pixel - [left, top], 2.0), camera.unproject(pixel, 2.0), scale=1e4)


@law(fov_deg=st.floats(5, 170), width=st.integers(2, 3000), height=st.integers(2, 3000))
def test_field_of_view_spans_the_pixel_areas(fov_deg: float, width: int, height: int) -> None:
    camera = Pinhole.from_fov(fov_deg, width, height)
    np.testing.assert_allclose(camera.horizontal_fov_deg(), fov_deg)
    rays = camera.unproject([[-0.5, camera.cy], [width - 0.5, camera.cy]], 1.0)
    np.testing.assert_allclose(np.degrees(np.arctan2(rays[1, 0], 1) - np.arctan2(rays[0, 0], 1)), fov_deg)
    assert_close(camera.project([0, 0, 1]), [(width - 1) / 2, (height - 1) / 2])


@DTYPES
def test_a_depth_map_becomes_a_point_map(dtype: type) -> None:
    camera = Pinhole(50, 60, 3.5, 2.5, 8, 6)
    depth = np.random.default_rng(5).uniform(1, 9, (6, 8)).astype(dtype)
    points = camera.unproject_map(depth)
    assert points.dtype == dtype
    rows, columns = np.mgrid[:6, :8]
    assert_close(camera.project(points), np.stack([columns, rows], -1), dtype, scale=20)
    np.testing.assert_array_equal(points[..., 2], depth)
