"""Worlds as a whole: repeatable, exact, free of collisions, and with routes that come back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.worlds import MOTIONS, World, WorldConfig, make_world, sample_config
from anchor3r.worlds.render.renderer import render_linear
from anchor3r.worlds.scenes.paths import poses

PAIRS = [(kind, motion) for kind, motions in MOTIONS.items() for motion in motions]
VIEWS = [(0, 0), (np.pi / 2, 0), (np.pi, 0), (-np.pi / 2, 0), (0, np.pi / 2), (0, -np.pi / 2)]


def world_of(seed: int, frames: int = 12, **options: object) -> World:
    return make_world(sample_config(seed, frames=frames, **options))


@pytest.mark.parametrize(("kind", "motion"), PAIRS)
def test_same_seed_same_bytes_in_any_order(kind: str, motion: str) -> None:
    first, second = (world_of(4, kind=kind, motion=motion) for _ in range(2))
    forwards = [first.render(k) for k in range(3)]
    backwards = [second.render(k) for k in (2, 1, 0)][::-1]
    for a, b in zip(forwards, backwards, strict=True):
        assert np.array_equal(a.image, b.image)
        assert np.array_equal(a.depth_m, b.depth_m)
    assert not np.array_equal(first.render(0).image, world_of(5, kind=kind, motion=motion).render(0).image)


@pytest.mark.parametrize(("kind", "motion"), PAIRS)
def test_another_light_falls_on_the_same_things(kind: str, motion: str) -> None:
    own, again, other = (
        world_of(4, kind=kind, motion=motion, noise=0.0, exposure_drift=0.0, light=light).render(5)
        for light in (0, 0, 3)
    )
    assert np.array_equal(own.image, again.image)
    assert np.array_equal(own.depth_m, other.depth_m)
    solid = own.depth_m > 0
    grey, lit = (rendered.image.mean(2)[solid] for rendered in (own, other))
    assert np.abs(grey - lit).mean() > 3  # the exposure is metered anew, so that the mean hardly differs
    assert np.corrcoef(grey, lit)[0, 1] > 0.3


@pytest.mark.parametrize(("width", "height", "fov"), [(128, 96, 60.0), (61, 47, 90.0), (310, 94, 81.0)])
def test_size_and_field_of_view_are_as_asked(width: int, height: int, fov: float) -> None:
    world = world_of(1, width=width, height=height, horizontal_fov_deg=fov)
    rendered = world.render(0)
    assert rendered.image.shape == (height, width, 3)
    assert rendered.image.dtype == np.uint8
    assert rendered.depth_m.shape == (height, width)
    assert rendered.depth_m.dtype == np.float32
    assert world.intrinsics == Pinhole.from_fov(fov, width, height)
    assert world.intrinsics.horizontal_fov_deg() == pytest.approx(fov)


def sample_bilinear(values: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    x0, y0 = (np.clip(pixels[:, k].astype(int), 0, values.shape[1 - k] - 2) for k in (0, 1))
    fx, fy = pixels[:, 0] - x0, pixels[:, 1] - y0
    top = values[y0, x0] * (1 - fx) + values[y0, x0 + 1] * fx
    bottom = values[y0 + 1, x0] * (1 - fx) + values[y0 + 1, x0 + 1] * fx
    return top * (1 - fy) + bottom * fy


@pytest.mark.parametrize(("kind", "motion"), PAIRS)
def test_depth_and_pose_predict_the_next_frame(kind: str, motion: str) -> None:
    """Points of frame 5 seen in frame 6 have its depth, and its colours where they are not occluded."""
    world = world_of(2, kind=kind, motion=motion, width=160, height=120, noise=0.0, exposure_drift=0.0)
    now, then = world.render(5), world.render(6)
    solid = now.depth_m > 0
    points = world.intrinsics.unproject_map(now.depth_m.astype(float))[solid]
    moved = (world.camera_from_world[6] @ world.camera_from_world[5].inverse()).apply(points)
    pixels = world.intrinsics.project(moved)
    inside = (moved[:, 2] > 0.1) & (pixels > 0).all(1) & (pixels < [159, 119]).all(1)
    pixels, depth = pixels[inside], moved[inside, 2]
    # 1/z is affine in the pixel on a plane, so interpolating it there is exact.
    inverse = np.where(then.depth_m > 0, 1 / np.maximum(then.depth_m, 1e-3), 0)
    error = np.abs(sample_bilinear(inverse, pixels) * depth - 1)
    assert np.median(error) < 1e-4
    agree = error < 0.02
    assert agree.mean() > 0.8
    grey = now.image.mean(2)[solid][inside][agree]
    predicted = sample_bilinear(then.image.mean(2), pixels[agree])
    unmoved = then.image.mean(2)[solid][inside][agree]
    assert np.abs(predicted - grey).mean() < 0.6 * np.abs(unmoved - grey).mean()


@pytest.mark.parametrize(("kind", "motion"), PAIRS)
def test_the_camera_keeps_clear_of_everything(kind: str, motion: str) -> None:
    """Looking to all sides from along the path, nothing is nearer than a quarter of a metre."""
    camera = Pinhole.from_fov(92, 16, 16)
    for seed in range(8):
        world = world_of(seed, frames=150, kind=kind, motion=motion)
        for centre in world.camera_from_world.center()[::25]:
            for yaw, pitch in VIEWS:
                depth_m = render_linear(world.scene, poses(centre, yaw, pitch, 0.0), camera, 1)[1]
                assert depth_m[depth_m > 0].min(initial=np.inf) > 0.2


@pytest.mark.parametrize(("kind", "motion"), PAIRS)
def test_pictures_are_exposed_and_textured(kind: str, motion: str) -> None:
    for seed in range(6):
        world = world_of(seed, kind=kind, motion=motion, noise=0.0)
        image, depth_m = world.render(6).image.astype(float).mean(2), world.render(6).depth_m
        assert 40 < image[depth_m > 0].mean() < 210
        gradient = np.abs(np.diff(image, axis=1))
        assert (gradient > 4).mean() > 0.05
        assert (depth_m > 0).mean() > 0.3


def test_speeds_and_turns_are_those_of_cars_and_hands() -> None:
    for seed in range(4):
        for motion, slow, fast, turn in (("driving", 0.25, 1.25, 8.0), ("handheld", 0.0, 0.3, 5.0)):
            path = world_of(seed, frames=120, motion=motion).camera_from_world
            step = path[1:] @ path[:-1].inverse()
            length = np.linalg.norm(step.translation, axis=1)
            assert length.min() >= slow
            assert length.max() <= fast
            assert np.degrees(np.linalg.norm(step.log()[:, :3], axis=1)).max() < turn


@pytest.mark.parametrize("seed", range(5))
def test_a_grid_route_comes_back_to_where_it_was(seed: int) -> None:
    path = world_of(seed, frames=900, motion="grid", width=16, height=12).camera_from_world
    centre, forward = path.center(), path.rotation[:, 2]
    distance = np.linalg.norm(centre[:, None] - centre[None], axis=2)
    same_way = forward @ forward.T > np.cos(np.radians(20))
    apart = np.abs(np.subtract.outer(np.arange(900), np.arange(900))) > 150
    assert ((distance < 2) & same_way & apart).any(1).sum() > 40


def test_a_long_route_is_cheap_to_hold() -> None:
    world = world_of(3, frames=10_000, motion="grid")
    assert len(world.camera_from_world) == len(world.timestamps_s) == 10_000
    held = world.scene.quads.nbytes + world.scene.balls.nbytes + world.scene.lightmap.texels.nbytes
    assert held < 60e6
    assert world.render(9_999).depth_m.max() > 5


def test_time_runs_at_the_rate_of_the_camera() -> None:
    assert np.allclose(np.diff(world_of(0, motion="driving").timestamps_s), 0.1)
    assert np.allclose(np.diff(world_of(0, motion="handheld").timestamps_s), 1 / 30)


def test_a_rug_fits_into_the_smallest_room() -> None:
    """Seed 479 draws a rug that is larger than its room."""
    world = make_world(WorldConfig(seed=479, kind="room", motion="handheld", frames=1))
    assert world.render(0).image.std() > 5


def test_overrides_leave_the_other_choices_alone() -> None:
    plain, changed = sample_config(11), sample_config(11, width=64, noise=0.0)
    assert (changed.width, changed.noise) == (64, 0.0)
    assert (changed.kind, changed.motion, changed.blur) == (plain.kind, plain.motion, plain.blur)
    assert sample_config(101, motion="driving").kind == "street"
    assert {sample_config(s).motion for s in range(60)} == {"driving", "grid", "handheld", "orbit"}


def test_impossible_configs_name_the_remedy() -> None:
    with pytest.raises(Anchor3RError, match="choose from street: driving, grid"):
        WorldConfig(seed=0, kind="room", motion="driving")
    with pytest.raises(Anchor3RError, match="choose from"):
        sample_config(0, kind="room", motion="driving")
    with pytest.raises(Anchor3RError, match="at least 1 frame"):
        WorldConfig(seed=0, frames=0)
    with pytest.raises(Anchor3RError, match="give 10 to 150"):
        WorldConfig(seed=0, horizontal_fov_deg=180)
    with pytest.raises(IndexError):
        world_of(0, frames=3).render(3)


def test_photos_serve_as_textures(tmp_path: Path) -> None:
    with pytest.raises(Anchor3RError, match="does not exist"):
        world_of(0, texture_folder=tmp_path / "none")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(Anchor3RError, match="holds no photos"):
        world_of(0, texture_folder=empty)
    photos = tmp_path / "photos"
    photos.mkdir()
    red = np.zeros((40, 60, 3), np.uint8)
    red[..., 0] = 200
    Image.fromarray(red).save(photos / "red.png")
    with_photos = world_of(0, kind="room", motion="handheld", texture_folder=photos)
    without = world_of(0, kind="room", motion="handheld")

    def redness(world: World) -> float:
        image = world.render(0).image.astype(float)
        return float((image[..., 0] - image[..., 1:].max(2) > 40).mean())

    assert redness(with_photos) > redness(without) + 0.1
    (photos / "broken.png").write_bytes(b"no image")
    with pytest.raises(Anchor3RError, match=r"broken\.png"):
        world_of(0, texture_folder=photos.resolve() / "." / ".." / "photos")
