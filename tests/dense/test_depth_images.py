"""Agreement among keyframes, planes in what was not measured, and what a depth image keeps of all that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anchor3r.dense.completion import CompletionConfig, complete
from anchor3r.dense.consistency import compare
from anchor3r.dense.depth_images import DepthImageConfig, PredictedDepth, carried_over, depth_image, specks
from anchor3r.dense.keyframe_depth import DepthOrigin
from anchor3r.dense.slanted_refinement import PixelPlanes
from anchor3r.geometry import SE3, Pinhole

CAMERA = Pinhole.from_fov(60, 48, 36)
SHAPE = (36, 48)


def planes(inverse: np.ndarray) -> PixelPlanes:
    """As stereo gives them, sure of everything, facing the camera."""
    flat = np.zeros(SHAPE, np.float32)
    return PixelPlanes(
        inverse=inverse.astype(np.float32),
        slope_x=flat,
        slope_y=flat,
        score=np.full(SHAPE, 0.95, np.float32),
        curvature=np.full(SHAPE, 1e4, np.float32),
    )


def beside(*x: float) -> SE3:
    """neighbour_from_own of cameras to the side"""
    return SE3(np.broadcast_to(np.eye(3), (len(x), 3, 3)), np.array([[-s, 0, 0] for s in x], float))


def test_neighbours_agree_contradict_or_cannot_tell() -> None:
    wall = np.full(SHAPE, 0.25)
    own = wall.copy()
    own[5:9, 20:24] = 0.5  # floats in front of what the neighbours see
    own[20:24, 20:24] = 0.125  # lies behind it
    found = compare(planes(own), [planes(wall), planes(wall)], beside(0.2, -0.2), CAMERA, 0.03)
    assert found.agreeing[15, 24] == 2
    assert found.contradicting[15, 24] == 0
    assert found.agreeing[6, 22] == 0
    assert found.contradicting[6, 22] == 2
    assert found.agreeing[22, 22] == 0
    assert found.contradicting[22, 22] == 0


def test_those_who_agree_are_averaged() -> None:
    own, other = planes(np.full(SHAPE, 0.25)), planes(np.full(SHAPE, 0.255))
    found = compare(own, [other], beside(0.01), CAMERA, 0.03)
    inner = found.agreeing == 1
    assert inner.mean() > 0.9
    np.testing.assert_allclose(found.inverse[inner], 0.2525, rtol=1e-3)
    assert compare(own, [], beside(), CAMERA, 0.03).agreeing.max() == 0


def test_a_plane_goes_through_a_hole_but_not_across_an_edge() -> None:
    v, u = np.mgrid[: SHAPE[0], : SHAPE[1]]
    left, right = 0.2 + 0.002 * u + 0.001 * v, np.full(SHAPE, 0.5)
    inverse = np.where(u < 24, left, right).astype(np.float32)
    grey = np.where(u < 24, 50, 200).astype(np.float32)
    weight = np.ones(SHAPE, np.float32)
    weight[10:26, 12:36] = 0
    found = complete(inverse, weight, grey, CompletionConfig(cell_px=2, reach_px=20))
    hole = weight == 0
    np.testing.assert_allclose(found.inverse[hole], inverse[hole], rtol=0.04)
    nothing = complete(inverse, np.zeros(SHAPE, np.float32), grey, CompletionConfig())
    assert np.isnan(nothing.inverse).all()


def test_what_windows_carry_over_an_edge_is_told_by_its_looks() -> None:
    u = np.broadcast_to(np.arange(SHAPE[1]), SHAPE)
    grey = np.where(u < 20, 180, 60).astype(np.float32)
    fattened = planes(np.where(u < 23, 0.5, 0.1))  # the nearer thing ends at column 20
    found = carried_over(fattened, np.ones(SHAPE, bool), grey)
    assert found[:, 21:23].all()
    assert not found[(u < 20) | (u >= 23)].any()
    right = planes(np.where(u < 20, 0.5, 0.1))
    assert not carried_over(right, np.ones(SHAPE, bool), grey).any()


def test_what_is_carried_into_the_sky_is_told_but_walls_with_holes_stay() -> None:
    u = np.broadcast_to(np.arange(SHAPE[1]), SHAPE)
    known = u < 22
    trunk = np.where(u < 20, 60, 250).astype(np.float32)  # ends at column 20, where the sky begins
    wall = planes(np.full(SHAPE, 0.5))
    found = carried_over(wall, known, trunk)
    assert found[:, 21].all()
    assert not found[:, :20].any()
    assert not carried_over(wall, known, np.full(SHAPE, 60, np.float32)).any()


def test_patches_smaller_than_a_window_are_specks_whatever_lies_around_them() -> None:
    inverse = np.full(SHAPE, 0.25, np.float32)
    inverse[4:11, 4:11] = 0.5  # 49 pixels: as large as a window
    inverse[20:26, 4:12] = 0.5  # 48
    inverse[30, 40] = 1e-4
    known = np.ones(SHAPE, bool)
    known[15:18] = False  # does not part the wall, which is large on both sides
    small = np.zeros(SHAPE, bool)
    small[20:26, 4:12] = small[30, 40] = True
    np.testing.assert_array_equal(specks(planes(inverse), known), small)
    assert not specks(planes(inverse), np.zeros(SHAPE, bool)).any()


def test_ground_at_a_grazing_angle_hangs_together_by_its_slope() -> None:
    v = np.arange(SHAPE[0], dtype=np.float32)[:, None]
    steep = np.broadcast_to(0.01 + 0.05 * v, SHAPE).astype(np.float32)
    flat = np.zeros(SHAPE, np.float32)
    facing = planes(steep)
    tilted = replace(facing, slope_y=flat + np.float32(0.05))
    known = np.ones(SHAPE, bool)
    assert specks(facing, known)[:8].all()
    assert not specks(tilted, known).any()


@pytest.mark.parametrize("fill", ["holes", "planes", "all"])
def test_each_pixel_says_where_its_depth_comes_from(fill: str) -> None:
    wall = np.full(SHAPE, 0.25)
    own = wall.copy()
    own[:, 40:] = 0.6  # nobody agrees with that
    own_planes = planes(own)
    agreement = compare(own_planes, [planes(wall)] * 4, beside(0.02, -0.02, 0.04, -0.04), CAMERA, 0.03)
    colours = np.full((*SHAPE, 3), 100, np.uint8)
    predicted = PredictedDepth(
        depth=np.full((9, 12), 2.0, np.float32), confidence=np.full((9, 12), 0.4, np.float32)
    )
    far_reach = DepthImageConfig(completion=CompletionConfig(reach_px=3.0, least_weight=0.5))
    view = depth_image(7, CAMERA, colours, own_planes, agreement, fill, predicted, far_reach)  # type: ignore[arg-type]
    assert (view.origin[:, :36] == DepthOrigin.MEASURED).all()
    np.testing.assert_allclose(view.depth[:, :36], 4.0, rtol=1e-3)
    beyond = view.origin[:, 42:]
    expected = {"holes": {0}, "planes": {0, 2}, "all": {2, 3}}[fill]
    assert set(np.unique(beyond)) <= expected
    assert fill == "holes" or 2 in beyond
    none = view.origin == DepthOrigin.NONE
    assert np.isnan(view.depth[none]).all()
    assert (view.confidence[none] == 0).all()
    assert np.isnan(view.normals_in_camera[none]).all()
    assert (view.confidence[~none] > 0).all()
    assert (view.confidence <= 1).all()
    if fill == "all":
        # The predictor's depths are brought to the scale of what was measured.
        np.testing.assert_allclose(view.depth[view.origin == DepthOrigin.INTERPOLATED], 4.0, rtol=1e-2)
    lengths = np.linalg.norm(view.normals_in_camera[~none], axis=-1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-4)
    assert (view.normals_in_camera[~none][:, 2] < 0).all()
