"""Alignment of two images around where the geometry expects their matches."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from anchor3r.geometry import SE3, Pinhole, so3_exp
from anchor3r.predictors.network.photometric_alignment import _FARTHEST_PX, Grey, WindowView, grey, halved

CAMERA = Pinhole(100.0, 100.0, 47.5, 31.5, 96, 64)
CELLS = (16, 24)
TILT = np.array([0.003, 0.002])  # inverse depth per ray unit of the plane that is seen
MOVE = np.array([0.12, -0.05, 0.3])
TURN = so3_exp(np.array([0.01, -0.015, 0.02]))


def align(
    anchor: Grey,
    member: Grey,
    camera: Pinhole,
    inverse_depth: NDArray,
    rotation: NDArray,
    translation: NDArray,
) -> tuple[NDArray, NDArray]:
    view = WindowView(anchor, [member], camera)
    found, information = view.align(inverse_depth, SE3(rotation[None], translation[None]))
    return found[0], information[0]


def rays_of(columns: NDArray, rows: NDArray, camera: Pinhole) -> NDArray:
    return np.stack([(columns - camera.cx) / camera.fx, (rows - camera.cy) / camera.fy], -1)


def cell_rays() -> NDArray:
    columns, rows = np.meshgrid(4 * np.arange(CELLS[1]) + 1.5, 4 * np.arange(CELLS[0]) + 1.5)
    return rays_of(columns, rows, CAMERA)


def inverse_depth_at(rays: NDArray) -> NDArray:
    return 0.2 + rays @ TILT * 10


def seen_from_member(rays: NDArray) -> NDArray:
    """Where the plane's points on the anchor's rays lie in the member, as rays."""
    homogeneous = np.concatenate([rays, np.ones((*rays.shape[:-1], 1))], -1)
    moved = homogeneous @ TURN.T + inverse_depth_at(rays)[..., None] * MOVE
    return moved[..., :2] / moved[..., 2:]


def texture(rays: NDArray) -> Grey:
    """A pattern painted on the anchor's rays, at any place: waves of many directions."""
    rng = np.random.default_rng(3)
    value = np.zeros(rays.shape[:-1])
    for angle, length, phase in rng.uniform([0, 9, 0], [np.pi, 20, 2 * np.pi], (12, 3)):
        value += np.sin(2 * np.pi * 100 / length * (rays @ [np.cos(angle), np.sin(angle)]) + phase)
    return np.asarray(128 + 25 * value, np.float32)


@pytest.fixture(scope="module")
def pictures() -> tuple[Grey, Grey]:
    """The anchor, and the member: its pixels looked up by inverting the plane's warp."""
    columns, rows = np.meshgrid(np.arange(96.0), np.arange(64.0))
    wanted = rays_of(columns, rows, CAMERA)
    rays = wanted.copy()
    for _ in range(30):
        rays = rays + wanted - seen_from_member(rays)
    return texture(wanted), texture(rays)


def errors_px(found: NDArray) -> NDArray:
    return np.linalg.norm(found.reshape(*CELLS, 2) - seen_from_member(cell_rays()), axis=-1)[2:-2, 2:-2] * 100


def test_the_right_geometry_needs_no_step(pictures: tuple[Grey, Grey]) -> None:
    found, _ = align(*pictures, CAMERA, inverse_depth_at(cell_rays()), TURN, MOVE)
    assert np.median(errors_px(found)) < 0.02


@pytest.mark.parametrize(("half", "better"), [(False, 0.3), (True, 0.5)])
def test_a_wrong_pose_is_put_right_by_the_pictures(
    pictures: tuple[Grey, Grey], half: bool, better: float
) -> None:
    off = TURN @ so3_exp(np.array([0.006, -0.008, 0.0]))  # about a pixel
    depth = inverse_depth_at(cell_rays())
    flat = [np.full((64, 96), 128, np.float32)] * 2
    expected, nothing = align(*flat, CAMERA, depth, off, MOVE)
    assert np.abs(nothing).max() < 1, "flat pictures tell nothing, and a match stays where it was expected"
    small = [halved(picture) if half else picture for picture in pictures]
    camera = CAMERA.resized(small[0].shape[1], small[0].shape[0])
    found, _ = align(small[0], small[1], camera, depth, off, MOVE)
    assert 0.7 < np.median(errors_px(expected)) < _FARTHEST_PX
    assert np.median(errors_px(found)) < better * np.median(errors_px(expected))


def test_brightness_may_change(pictures: tuple[Grey, Grey]) -> None:
    anchor, member = pictures
    args = (CAMERA, inverse_depth_at(cell_rays()), TURN, MOVE)
    np.testing.assert_allclose(
        align(anchor, member + 40, *args)[0], align(anchor, member, *args)[0], atol=1e-5
    )


def test_an_edge_informs_across_itself_alone() -> None:
    columns = np.tile(np.arange(96.0), (64, 1))
    edge = np.asarray(128 + 100 * np.tanh((columns - 47.5) / 3), np.float32)
    still = np.full(CELLS, 0.1)
    _, information = align(edge, edge, CAMERA, still, np.eye(3), np.zeros(3))
    at_edge = information.reshape(*CELLS, 2, 2)[8, 12]
    assert at_edge[0, 0] > 0
    assert abs(at_edge[1, 1]) < 1e-6 * at_edge[0, 0]


def test_information_foretells_the_error_under_noise(pictures: tuple[Grey, Grey]) -> None:
    """Mahalanobis distances of two numbers with a standard deviation each: 2 in the mean."""
    rng = np.random.default_rng(0)
    depth, truth = inverse_depth_at(cell_rays()), seen_from_member(cell_rays()).reshape(-1, 2)
    squared = []
    for _ in range(5):
        noisy = [picture + rng.normal(0, 2, picture.shape).astype(np.float32) for picture in pictures]
        found, information = align(noisy[0], noisy[1], CAMERA, depth, TURN, MOVE)
        error = found - truth
        known = np.trace(information, axis1=1, axis2=2) > 0
        squared.append(np.einsum("pi,pij,pj->p", error, information, error)[known])
    assert 0.3 < np.mean(np.concatenate(squared)) < 3


def test_outside_the_member_nothing_is_known(pictures: tuple[Grey, Grey]) -> None:
    aside = so3_exp(np.array([0.0, 0.5, 0.0]))
    found, information = align(*pictures, CAMERA, inverse_depth_at(cell_rays()), aside, MOVE)
    columns = found[:, 0] * 100 + 47.5
    assert (columns > 100).any()
    assert not information[columns > 100].any()


def test_misfit_prefers_the_right_geometry(pictures: tuple[Grey, Grey]) -> None:
    anchor, member = pictures
    away = so3_exp(np.array([0.0, 0.9, 0.0]))
    poses = SE3(np.stack([TURN, np.eye(3), TURN, away]), np.stack([MOVE, MOVE, MOVE, MOVE]))
    view = WindowView(anchor, [member, member, member + 40, member], CAMERA)
    right, wrong, brighter, unseen = view.misfit(inverse_depth_at(cell_rays()), poses)
    assert right < 0.3 * wrong
    assert brighter == pytest.approx(right, rel=1e-4)
    assert unseen == np.inf


def test_grey_and_halved_sizes() -> None:
    image = np.random.default_rng(1).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    np.testing.assert_array_equal(grey(image), cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))
    assert halved(grey(image).astype(np.float32)).shape == (32, 48)
