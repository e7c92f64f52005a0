"""The renderer against closed forms: depths of a box and a ball, edges, footprints, noise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import binary_dilation

from anchor3r.geometry import SE3, Pinhole
from anchor3r.worlds.render.renderer import Sensor, render, render_linear
from anchor3r.worlds.scenes.builder import Painter, SceneBuilder
from anchor3r.worlds.scenes.paths import poses
from anchor3r.worlds.scenes.scene import TRIANGLE, TWO_SIDED, Scene
from anchor3r.worlds.scenes.surroundings import outdoors
from anchor3r.worlds.scenes.textures import texture_bank

CAMERA = Pinhole.from_fov(70, 64, 48)
GROUND = (-5.0, -5.0, 5.0, 15.0)
BANK = texture_bank(0)


def builder() -> tuple[SceneBuilder, Painter]:
    rng = np.random.default_rng(0)
    return SceneBuilder(rng, BANK), Painter(rng, BANK)


def finish(scene_builder: SceneBuilder) -> Scene:
    return scene_builder.build(outdoors(np.random.default_rng(1), BANK), GROUND)


def rays(camera: Pinhole) -> np.ndarray:
    """(H, W, 3) with z = 1"""
    return camera.unproject_map(np.ones((camera.height, camera.width)))


def box_depth(camera_from_world: SE3, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The slab method, in the box's own axes; 0 = miss."""
    world_from_camera = camera_from_world.inverse()
    direction = rays(CAMERA) @ world_from_camera.rotation.T
    near, far = ((bound - world_from_camera.translation) / direction for bound in (low, high))
    enter, leave = np.minimum(near, far).max(-1), np.maximum(near, far).min(-1)
    return np.where((enter < leave) & (leave > 0), enter, 0)


@pytest.mark.parametrize("samples", [1, 2, 3])
@pytest.mark.parametrize("yaw", [0.0, 0.4])
def test_depth_of_a_box_is_the_slab_intersection(samples: int, yaw: float) -> None:
    scene_builder, painter = builder()
    paint = painter.paint("brick", 1)
    scene_builder.boxes([0.3], [6.0], [[2.0, 1.5, 1.2]], yaw, paint, paint, base=0.2)
    box_from_world = SE3(poses(np.zeros(3), yaw, 0.0, 0.0).rotation, np.zeros(3)) @ SE3(
        np.eye(3), -np.array([0.3, 0.0, 6.0])
    )
    camera_from_world = poses(np.array([0.1, -1.8, 1.0]), 0.1, -0.15, 0.2)
    expected = box_depth(
        camera_from_world @ box_from_world.inverse(), np.array([-1, -1.7, -0.6]), np.array([1, -0.2, 0.6])
    )
    depth_m = render(finish(scene_builder), camera_from_world, CAMERA, samples=samples).depth_m
    differs = (depth_m > 0) != (expected > 0)
    assert (expected > 0).sum() > 200
    # With an even number of samples a pixel's centre may lie within rounding of an edge.
    assert differs.mean() < 0.002
    both = (depth_m > 0) & (expected > 0)
    np.testing.assert_allclose(depth_m[both], expected[both], rtol=2e-6)


def test_depth_of_an_ellipsoid_solves_its_quadratic() -> None:
    scene_builder, painter = builder()
    radii, centre = np.array([0.9, 0.5, 0.7]), np.array([0.2, -1.0, 5.0])
    scene_builder.balls([centre], [radii], [0.6], painter.paint("blobs", 1))
    # A scene needs at least one quad; this one is behind the camera.
    scene_builder.quads([[0, 0, -9]], [1, 0, 0], [0, -1, 0], painter.paint("brick", 1))
    camera_from_world = poses(np.array([0.0, -1.2, 0.0]), 0.05, -0.05, 0.1)
    depth_m = render(finish(scene_builder), camera_from_world, CAMERA, samples=1).depth_m
    turn = poses(np.zeros(3), 0.6, 0.0, 0.0).rotation
    world_from_camera = camera_from_world.inverse()
    direction = (rays(CAMERA) @ world_from_camera.rotation.T) @ turn.T / radii
    start = turn @ (world_from_camera.translation - centre) / radii
    a, b, c = (direction**2).sum(-1), direction @ start, start @ start - 1
    hit = b * b - a * c > 0
    expected = np.where(hit, (-b - np.sqrt(np.where(hit, b * b - a * c, 0))) / a, 0)
    assert hit.sum() > 100
    np.testing.assert_array_equal(depth_m > 0, hit)
    np.testing.assert_allclose(depth_m[hit], expected[hit], rtol=1e-5)


def test_nearer_things_hide_farther_ones_and_backs_are_not_seen() -> None:
    scene_builder, painter = builder()
    paint = painter.paint("brick", 1)
    for z in (7.0, 4.0, 5.5):
        scene_builder.quads([[-1, -2, z]], [2, 0, 0], [0, -2, 0], paint)
    scene_builder.quads([[-1, -2, 2.0]], [0, -2, 0], [2, 0, 0], paint)
    depth_m = render(finish(scene_builder), poses(np.array([0, -3.0, 0]), 0, 0, 0), CAMERA).depth_m
    np.testing.assert_allclose(depth_m[24, 32], 4.0, rtol=1e-6)


def test_a_triangle_is_half_of_its_parallelogram() -> None:
    seen = []
    for flags in (TWO_SIDED, TWO_SIDED | TRIANGLE):
        scene_builder, painter = builder()
        scene_builder.quads([[-1, -2, 4]], [2, 0, 0], [0, -2, 0], painter.paint("brick", 1), flags=flags)
        depth_m = render(finish(scene_builder), poses(np.array([0, -3.0, 0]), 0, 0, 0), CAMERA).depth_m
        seen.append((depth_m > 0).sum())
    assert seen[1] == pytest.approx(seen[0] / 2, rel=0.05)


def test_more_samples_smooth_the_edges_and_only_those() -> None:
    scene_builder, painter = builder()
    scene_builder.quads([[-1, -1, 4]], [3, -1, 0], [0, -3, 0], painter.paint("blobs", 1))
    scene, pose = finish(scene_builder), poses(np.array([0, -3.0, 0]), 0, 0, 0)
    (jagged, depth_m), (smooth, _) = (render_linear(scene, pose, CAMERA, samples) for samples in (1, 4))
    solid = depth_m > 0
    near_edge = binary_dilation(solid, iterations=1) & binary_dilation(~solid, iterations=1)
    changed = np.abs(smooth - jagged).max(2) > 0.02
    assert changed[near_edge].mean() > 0.4
    assert not changed[~near_edge].any()


def test_fine_textures_fade_to_their_mean_in_the_distance() -> None:
    """Without filtering, a distant wall of fine bricks would alias to noise."""
    contrast = []
    for distance in (3.0, 120.0):
        scene_builder, painter = builder()
        paint = painter.paint("brick", 1, (0.5, 0.5), grime=0)
        size = distance
        scene_builder.quads([[-size, size, distance]], [2 * size, 0, 0], [0, -2 * size, 0], paint)
        colour, _ = render_linear(finish(scene_builder), poses(np.zeros(3), 0, 0, 0), CAMERA, 1)
        patch = colour[10:-10, 10:-10, 0]
        contrast.append(patch.std() / patch.mean())
    assert contrast[1] < 0.1 * contrast[0]


def test_noise_has_the_deviation_asked_for_and_follows_its_key() -> None:
    scene_builder, painter = builder()
    paint = painter.paint("plaster", 1)._replace(contrast=np.zeros(1), grime=np.zeros(1))
    scene_builder.quads([[-50, 50, 5]], [100, 0, 0], [0, -100, 0], paint)
    scene, pose = finish(scene_builder), poses(np.zeros(3), 0, 0, 0)
    exposure = float(0.2 / render_linear(scene, pose, CAMERA, 1)[0].mean())
    images = [
        render(scene, pose, CAMERA, Sensor(exposure=exposure, noise=5, key=key)).image for key in (1, 1, 2)
    ]
    assert np.array_equal(images[0], images[1])
    assert images[0].astype(float).std((0, 1)) == pytest.approx([5, 5, 5], rel=0.1)
    difference = images[0].astype(float) - images[2]
    assert difference.std() == pytest.approx(5 * 2**0.5, rel=0.1)
    channels = (images[0] - images[0].astype(float).mean((0, 1))).reshape(-1, 3)
    assert np.abs(np.corrcoef(channels.T) - np.eye(3)).max() < 0.1


def test_sensor_refuses_an_impossible_blur() -> None:
    with pytest.raises(ValueError, match="blur"):
        Sensor(blur=0.5)
