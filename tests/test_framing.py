"""From where a scene is looked at: everything that counts is in view, nothing else matters."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from anchor3r.framing import bounds, oblique_axes, standing_point, top_axes, upward
from anchor3r.geometry import so3_exp
from anchor3r.trajectory import Trajectory

TANGENTS = np.array([0.5, 0.3])


def trajectory(center: np.ndarray, rotation: np.ndarray | None = None) -> Trajectory:
    count = len(center)
    turned = np.tile(np.eye(3), (count, 1, 1)) if rotation is None else rotation
    return Trajectory(frames=np.arange(count), rotation=turned, center=center)


def room(rng: np.random.Generator, count: int = 3000) -> np.ndarray:
    """Points on a wall of 4 × 3 m, three metres ahead."""
    return rng.uniform((-2, -1.5, 3), (2, 1.5, 3.2), (count, 3))


def tangents_of(points: np.ndarray, axes: np.ndarray, center: np.ndarray) -> np.ndarray:
    x, y, z = ((points - center) @ axes.T).T
    assert (z > 0).all()
    return np.stack([x / z, y / z], -1)


@pytest.mark.parametrize("seed", range(5))
def test_the_nearest_place_has_everything_in_view_and_no_room_left(seed: int) -> None:
    rng = np.random.default_rng(seed)
    path = rng.normal(size=(40, 3)) * rng.uniform(0.1, 5, 3)
    axes = so3_exp(rng.normal(size=3))
    seen = np.abs(tangents_of(path, axes, standing_point(axes, TANGENTS, np.empty((0, 3)), path)))
    assert (seen <= TANGENTS + 1e-9).all()
    assert_allclose((seen.max(0) / TANGENTS).max(), 1)


def test_the_scene_is_in_the_middle_of_the_picture() -> None:
    """Also where there is room left: the near end of a drive is low in the picture, its far end high."""
    path = np.linspace((-4, 1.0, 2), (4, -1.0, 12), 50)
    seen = tangents_of(path, np.eye(3), standing_point(np.eye(3), TANGENTS, np.empty((0, 3)), path))
    assert_allclose(seen.max(0), -seen.min(0), rtol=1e-4)
    assert seen[:, 1].max() < 0.8 * TANGENTS[1], "with room left above and below"


def test_strays_are_left_out_and_the_path_never() -> None:
    rng = np.random.default_rng(0)
    points, path = room(rng), np.linspace((-0.2, 0, 0), (0.2, 0, 0), 10)
    strays = rng.uniform(-300, 300, (60, 3))
    low, high = bounds(np.concatenate([points, strays]), path)
    assert (np.abs(low - [-2, -1.5, 0]) < 0.3).all()
    assert (np.abs(high - [2, 1.5, 3.2]) < 0.3).all()
    far = np.concatenate([path, [[50.0, 0, 0]]])
    assert bounds(points, far)[1][0] == 50


def test_a_room_is_seen_from_the_cameras_side_and_a_drive_from_its_side() -> None:
    rng = np.random.default_rng(0)
    inside = trajectory(np.linspace((-0.3, 0, 0), (0.3, 0, 0), 20))
    up = upward(inside)
    assert_allclose(up, [0, -1, 0])
    forward = oblique_axes(inside, room(rng), up)[2]
    assert forward[2] > 0.7, "towards the wall that the cameras look at"
    assert forward @ up < -0.5
    drive = trajectory(np.linspace((0, 0, 0), (0, 0, 100), 50))
    beside = rng.uniform((-10, -3, 0), (10, 2, 110), (2000, 3))
    assert 0.3 < oblique_axes(drive, beside, up)[2, 2] < 0.7
    top = top_axes(drive, beside, up)
    assert_allclose(top[2], [0, 1, 0], atol=1e-12)
    assert_allclose(top @ top.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(top) == pytest.approx(1)
    assert np.linalg.det(oblique_axes(drive, beside, up)) == pytest.approx(1)


def test_a_single_pose_without_points_has_a_place_to_be_seen_from() -> None:
    alone = trajectory(np.zeros((1, 3)))
    axes = oblique_axes(alone, np.empty((0, 3)), upward(alone))
    center = standing_point(axes, TANGENTS, np.empty((0, 3)), alone.center)
    assert np.isfinite(center).all()
    assert -(center @ axes.T)[2] > 0.5


def test_a_flight_over_a_field_is_seen_from_above() -> None:
    """Strips flown to and fro, with the camera straight down: it is upright in neither."""
    there, back = np.eye(3), np.diag([-1.0, -1.0, 1.0])
    rotation = np.concatenate([np.tile(there, (10, 1, 1)), np.tile(back, (9, 1, 1))])
    center = np.array([[k % 10, k // 10, 0.0] for k in range(19)])
    assert_allclose(upward(trajectory(center, rotation)), [0, 0, -1], atol=1e-12)


def test_a_plane_that_cameras_face_is_seen_from_its_front_and_as_upright_as_they_saw_it() -> None:
    """A wall that somebody walks along, or a field below a single strip: no camera turns."""
    rng = np.random.default_rng(0)
    wall = rng.normal((0, 0, 10), (8, 4, 0.2), (500, 3))
    wall[::20] += rng.normal(0, 30, (25, 3))
    walk = trajectory(np.linspace((8, 0, 0), (-8, 0, 0), 20))
    up = upward(walk, wall)
    assert up @ [0, 0, -1] > 0.99
    assert_allclose(top_axes(walk, wall, up), np.eye(3), atol=0.1)
    beside = rng.uniform((-10, -3, 0), (10, 2, 110), (2000, 3))
    drive = trajectory(np.linspace((0, 0, 0), (0, 0, 100), 50))
    road = np.where([[False, True, False]], 1.5, beside)  # a plane, but not one that the camera faces
    for points in (beside, road, wall[:10]):
        assert_allclose(upward(drive, points), [0, -1, 0])
    thick = rng.uniform((-2, -1.5, 2), (2, 1.5, 4), (2000, 3))
    assert_allclose(upward(walk, thick), [0, -1, 0])
