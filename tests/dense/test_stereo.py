"""Depth from views with known poses: on planes whose depth is known, and on a rendered room of real size."""

from __future__ import annotations

import numpy as np
import pytest
from textured_plane import CAMERA, camera_at, inverse_depth, view_of

from anchor3r.dense.slanted_refinement import fitted_slopes, plane_normals
from anchor3r.dense.stereo import StereoConfig, View, grey_of, measure
from anchor3r.geometry import Pinhole
from anchor3r.sources import open_source

REFERENCE = camera_at((0, 0, 0))
SIDES = [camera_at((x, 0.05 * x, 0), (0, -0.1 * x, 0.02)) for x in (-0.9, -0.6, -0.3, 0.3, 0.6, 0.9)]
FORWARD = [camera_at((0.1, 0, z), (0, 0.02, 0)) for z in (-0.9, -0.6, -0.3, 0.3, 0.6, 0.9)]


@pytest.mark.parametrize("poses", [SIDES, FORWARD], ids=["sideways", "forward"])
@pytest.mark.parametrize("slant", [0.0, 0.5, -0.8])
def test_a_slanted_plane_is_measured_between_the_planes_of_the_sweep(poses: list, slant: float) -> None:
    normal = np.array([0.1, np.sin(slant), np.cos(slant)])
    normal /= np.linalg.norm(normal)
    sources = [view_of(normal, 5.0, pose, k) for k, pose in enumerate(poses)]
    found = measure(view_of(normal, 5.0, REFERENCE), sources, CAMERA, 2.0, StereoConfig())
    true = inverse_depth(normal, 5.0, REFERENCE)
    error = np.abs(found.inverse / true - 1)
    # Forward motion tells nothing at the point that the camera moves to.
    assert np.median(error) < (0.01 if poses is SIDES else 0.03)
    assert np.mean(error < 0.05) > (0.85 if poses is SIDES else 0.6)
    if poses is SIDES:
        slopes = fitted_slopes(found.inverse, part=0.1, radius=5)
        towards = plane_normals(found.inverse, *slopes, CAMERA)
        angle = np.degrees(np.arccos(np.clip(towards @ -normal, -1, 1)))
        assert np.median(angle) < 5


def test_the_stated_spread_grows_where_a_view_tells_less() -> None:
    normal = np.array([0.0, 0.0, 1.0])
    reference = view_of(normal, 5.0, REFERENCE)
    wide, narrow = (
        measure(reference, [view_of(normal, 5.0, camera_at((x, 0, 0)))], CAMERA, 3.0, StereoConfig())
        for x in (0.6, 0.15)
    )
    assert np.median(narrow.relative_sigma()) > 2 * np.median(wide.relative_sigma())


def test_what_no_source_shows_has_no_likeness() -> None:
    normal = np.array([0.0, 0.0, 1.0])
    away = view_of(normal, 5.0, camera_at((60.0, 0, 0)))
    found = measure(view_of(normal, 5.0, REFERENCE), [away], CAMERA, 2.0, StereoConfig())
    assert (found.score <= 0).all()
    assert np.isinf(found.relative_sigma()).all()


def test_a_room_of_real_size_is_measured_by_its_true_poses() -> None:
    with open_source("world:201?kind=room&motion=handheld&frames=60&width=320&height=240") as world:
        frames = [world.read(30 + k) for k in (0, -12, -8, -4, 4, 8, 12)]
    views = [
        View(frame=f.index, grey=grey_of(f.image), camera_from_world=f.camera_from_world) for f in frames
    ]
    true, camera = frames[0].depth_m, frames[0].intrinsics
    assert true is not None
    assert isinstance(camera, Pinhole)
    found = measure(views[0], views[1:], camera, 0.6 * float(np.percentile(true, 1)), StereoConfig())
    error = np.abs(1 / np.maximum(found.inverse, 1e-6) / true - 1)
    assert np.mean(error < 0.05) > 0.9
    sure = found.score > 0.7
    assert np.mean(sure) > 0.4
    assert np.mean(error[sure] < 0.05) > 0.95
