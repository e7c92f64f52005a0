"""Pictures of maps: what is in front hides what is behind, roofs are left out, and the framing is robust."""

from __future__ import annotations

import io
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from anchor3r.cli import main as cli
from anchor3r.framing import upward
from anchor3r.report import picture
from anchor3r.report.picture import TRUTH, PictureScene, PictureView, _radius, picture_png, scenes_of
from anchor3r.report.raster import PictureCamera, draw_points, eye_dome_shade
from anchor3r.store import Map, MapWriter, load_map
from anchor3r.trajectory import Trajectory

UP = np.array([0.0, -1.0, 0.0])
GREEN, BLUE = (0, 255, 0), (0, 0, 255)


def some_scene(ground: int = 4000, roof: int = 0, *, strays: int = 0) -> PictureScene:
    """A green floor under a straight path, a blue roof above it, and points that lie far off."""
    rng = np.random.default_rng(0)
    points = rng.uniform((-4, 1.5, -1), (4, 1.5, 11), (ground + roof, 3))
    points[ground:, 1] = -3
    points = np.concatenate([points, rng.uniform(-1, 1, (strays, 3)) * 500])
    colours = np.array([GREEN] * ground + [BLUE] * roof + [GREEN] * strays, np.uint8).reshape(-1, 3)
    path = np.linspace((0, 0, 0), (1, 0, 10), 20)
    return PictureScene(
        poses=looking_along_z(path), points=points.astype(np.float32), normals=np.full_like(points, np.nan),
        colours=colours, up=UP, below=points[:, 1] >= 0, paths={"online": [path], TRUTH: [path + 0.1]},
        cameras=np.empty((0, 11, 3)), metres_per_unit=2.0,
    )  # fmt: skip


def looking_along_z(centers: np.ndarray) -> Trajectory:
    count = len(centers)
    return Trajectory(
        frames=np.arange(count), rotation=np.tile(np.eye(3), (count, 1, 1)), center=np.asarray(centers, float)
    )


def drawn(scene: PictureScene, view: PictureView, size: tuple[int, int] = (400, 300)) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture_png([scene], view=view, size=size))).convert("RGB"), int)


def share_of(pixels: np.ndarray, channel: int) -> float:
    """Part of the picture in which one colour stands out."""
    others = np.delete(pixels, channel, axis=-1).max(-1)
    return float(np.mean(pixels[..., channel] > others + 40))


def test_the_nearer_point_hides_the_farther_one() -> None:
    camera = PictureCamera(np.eye(3), np.zeros(3), 100.0, (21, 21))
    points = np.array([[0, 0, 2.0], [0, 0, 1.0], [0, 0, 3.0], [0, 0, -1.0]])
    colours = np.array([[1, 0, 0], [2, 0, 0], [3, 0, 0], [4, 0, 0]], np.uint8)
    image, depth = draw_points(camera, points, colours, radius=np.full(4, 2, np.float32))
    assert_array_equal(image[10, 10], [2, 0, 0])
    assert depth[10, 10] == 1
    assert np.isfinite(depth).sum() == 13, "a disc of radius 2"


def test_a_fused_surface_is_closed_near_the_viewer_too() -> None:
    camera = PictureCamera(np.eye(3), np.zeros(3), 100.0, (200, 200))
    near = np.stack(np.meshgrid(np.arange(-10, 11), np.arange(-10, 11)), -1).reshape(-1, 2) * 0.04
    far = np.stack(np.meshgrid(np.arange(-50, 51), np.arange(-50, 51)), -1).reshape(-1, 2) * 0.04
    points = np.concatenate([np.insert(near, 2, 1.0, axis=1), np.insert(far, 2, 10.0, axis=1)])
    radius = _radius(camera, points, spacing=0.04)
    _, depth = draw_points(camera, points, np.zeros((len(points), 3), np.uint8), radius=radius)
    assert (depth[65:135, 65:135] == 1).all(), "four pixels lie between the near points"
    assert radius[0] > radius[-1]


def test_shade_falls_behind_an_edge_and_nowhere_else() -> None:
    depth = np.full((20, 20), 2.0, np.float32)
    depth[:, :10] = 1.0
    shade = eye_dome_shade(depth, extent=5.0, reach=1, strength=30.0)
    assert_allclose(shade[:, :10], 1)
    assert (shade[:, 10] < 0.8).all()
    assert_allclose(shade[:, 11:], 1)
    assert_allclose(eye_dome_shade(np.full((3, 3), np.inf, np.float32), extent=1.0, reach=1, strength=1.0), 1)


def test_a_roof_is_seen_from_the_side_but_not_from_above() -> None:
    scene = some_scene(roof=4000)
    above, aside = drawn(scene, PictureView.TOP), drawn(scene, PictureView.PERSPECTIVE)
    assert share_of(above, 1) > 0.05
    assert share_of(above, 2) == 0
    assert share_of(aside, 2) > 0.05


@pytest.mark.parametrize("view", [PictureView.TOP, PictureView.PERSPECTIVE])
def test_strays_do_not_shrink_the_picture(view: PictureView) -> None:
    without, with_strays = drawn(some_scene(), view), drawn(some_scene(strays=150), view)
    assert share_of(with_strays, 1) > 0.7 * share_of(without, 1) > 0.05


@pytest.mark.parametrize("view", [PictureView.TOP, PictureView.PERSPECTIVE])
def test_the_whole_path_is_in_the_picture(view: PictureView) -> None:
    scene = some_scene()
    panel = picture._panel(scene, view, (400, 300))
    pixels, _ = panel.camera.project(scene.paths["online"][0])
    assert (pixels >= 0).all()
    assert (pixels < panel.camera.size).all()
    assert np.ptp(pixels, axis=0).max() > 0.3 * min(panel.camera.size)


def test_a_map_without_points_still_has_its_path() -> None:
    pixels = drawn(some_scene(0), PictureView.BOTH, (400, 300))
    assert pixels.shape == (300, 400, 3)
    assert share_of(pixels, 0) > 0.001


def test_the_scene_of_a_map_knows_its_scale_and_what_is_up(street: Map) -> None:
    (scene,) = scenes_of(street, "online", max_points=5000)
    assert 4500 < len(scene.points) <= 5000
    assert_allclose(scene.metres_per_unit, 1, rtol=1e-6)
    assert_allclose(scene.paths[TRUTH][0], scene.paths["online"][0], atol=1e-6)
    up = upward(scene.poses)
    assert up @ UP > 0.95
    heights = (scene.points - scene.paths["online"][0].mean(0)) @ up
    assert heights[scene.below].max() < heights[~scene.below].max()


def test_the_command_draws_and_says_what_it_cannot(
    tmp_path: Path, street_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["render", str(street_folder), "--out", str(tmp_path / "m.png")]
    assert cli.main([*command, "--size", "640", "360", "--view", "top"]) == 0
    assert Image.open(tmp_path / "m.png").size == (640, 360)
    MapWriter.create(tmp_path / "empty").close()
    (tmp_path / "file").write_text("no folder")
    problems = {
        (*command, "--size", "10", "10"): "--size must lie between",
        (*command, "--poses", "offline"): "no 'offline' poses",
        ("render", str(tmp_path / "empty"), "--out", str(tmp_path / "e.png")): "There is nothing to draw",
        ("render", str(street_folder), "--out", str(tmp_path / "file" / "m.png")): "cannot write",
    }
    for arguments, words in problems.items():
        assert cli.main(arguments) == 1
        assert words in capsys.readouterr().err
    assert not (tmp_path / "e.png").exists()


def room_scene() -> PictureScene:
    """A closed green room of 4 × 3 × 5 m, seen by a camera that hardly moves."""
    rng = np.random.default_rng(0)
    points = rng.uniform((-2, -1.5, -1), (2, 1.5, 4), (60_000, 3))
    side = rng.integers(0, 6, len(points))
    low, high = np.array([-2, -1.5, -1]), np.array([2, 1.5, 4])
    normals = np.zeros_like(points)
    rows = np.arange(len(points))
    points[rows, side % 3] = np.where(side < 3, low[side % 3], high[side % 3])
    normals[rows, side % 3] = np.where(side < 3, 1, -1)
    path = np.linspace((-0.2, 0, 0), (0.2, 0, 0), 20)
    return PictureScene(
        poses=looking_along_z(path), points=points.astype(np.float32), normals=normals.astype(np.float32),
        colours=np.tile(np.array(GREEN, np.uint8), (len(points), 1)), up=UP, below=points[:, 1] >= 0,
        paths={"online": [path]}, cameras=np.empty((0, 11, 3)), metres_per_unit=None,
    )  # fmt: skip


@pytest.mark.parametrize("view", [PictureView.TOP, PictureView.PERSPECTIVE])
def test_a_room_is_in_the_picture_not_just_the_camera_in_it(view: PictureView) -> None:
    scene = room_scene()
    panel = picture._panel(scene, view, (400, 300))
    pixels, _ = panel.camera.project(scene.points)
    inside = ((pixels >= 0) & (pixels < panel.camera.size)).all(1)
    assert inside.mean() > 0.95
    assert share_of(drawn(scene, view), 1) > 0.25, "it fills the picture"


def test_walls_do_not_hide_the_room_from_outside() -> None:
    scene = room_scene()
    camera = picture._panel(scene, PictureView.PERSPECTIVE, (400, 300)).camera
    shown = picture._facing(camera, scene)
    nearest, farthest = (scene.points[:, 2] == end for end in (-1, 4))
    assert not shown[nearest].any(), "the wall between the viewer and the room"
    assert shown[farthest].all()


@pytest.mark.parametrize("view", [PictureView.TOP, PictureView.PERSPECTIVE])
def test_a_field_below_a_single_strip_of_a_flight_is_not_drawn_from_its_edge(
    tmp_path: Path, view: PictureView
) -> None:
    """The camera looks straight down and never turns, so that nothing but the plane tells what is up."""
    field = tmp_path / "field"
    field.mkdir()
    np.savetxt(field / "camera-intrinsics.txt", [[60, 0, 31.5], [0, 60, 23.5], [0, 0, 1]])
    rng = np.random.default_rng(0)
    for index in range(6):
        stem = field / f"frame-{index:06}"
        pixels = np.full((48, 64, 3), (40, 200, 60), np.uint8) + rng.integers(0, 20, (48, 64, 3), np.uint8)
        Image.fromarray(pixels).save(f"{stem}.color.png")
        Image.fromarray(rng.integers(9900, 10_100, (48, 64)).astype(np.uint16)).save(f"{stem}.depth.png")
        world_from_camera = np.eye(4)
        world_from_camera[0, 3] = index
        np.savetxt(f"{stem}.pose.txt", world_from_camera)
    made, picture_file = str(tmp_path / "map"), tmp_path / "map.png"
    assert cli.main(["map", f"7scenes:{field}", "--predictor", "ground-truth", "--out", made]) == 0
    command = ["render", made, "--out", str(picture_file), "--size", "400", "300", "--view", view]
    assert cli.main(command) == 0
    assert share_of(np.asarray(Image.open(picture_file).convert("RGB"), int), 1) > 0.15


def test_unrelated_components_have_a_pane_each_and_are_named(
    tmp_path: Path, street_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "parted"
    shutil.copytree(street_folder, folder)
    database = sqlite3.connect(folder / "map.sqlite")
    with database:
        database.execute("UPDATE poses SET component = 1, checksum = NULL WHERE frame >= 7")
    database.close()
    with load_map(folder) as parted:
        first, second = scenes_of(parted, "online")
    assert set(first.poses.frames.tolist()).isdisjoint(second.poses.frames.tolist())
    assert "component 1 of 2, related to no other: 7 poses, frames 0–6" in first.title
    assert "component 2 of 2" in second.title
    assert len(second.points) > 1000
    size = (600, 300)
    pixels = np.asarray(Image.open(io.BytesIO(picture_png([first, second], view=PictureView.TOP, size=size))))
    divider = pixels[:, 300, :3].astype(int)
    assert (divider.min(1) > 60).mean() > 0.9, "a line between the panes"
    assert cli.main(["render", str(folder), "--out", str(tmp_path / "p.png")]) == 0
    assert "component 2 of 2, related to no other" in capsys.readouterr().out


def test_a_title_leaves_room_for_the_legend_in_the_narrowest_pane() -> None:
    title = "component 1 of 4, related to no other: 1600 poses, frames 4–25310"
    assert picture._wrapped(title, 800).count("\n") <= 1
    lines = picture._wrapped(title, 533).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) * picture._CHARACTER_WIDTH < 0.6 * 533
    assert " ".join(lines) == title


def test_a_single_pose_and_points_that_are_all_unsure_are_named(tmp_path: Path, street_folder: Path) -> None:
    folder = tmp_path / "single"
    shutil.copytree(street_folder, folder)
    database = sqlite3.connect(folder / "map.sqlite")
    with database:
        database.execute("DELETE FROM poses WHERE frame > 0")
    database.close()
    with load_map(folder) as single:
        (scene,) = scenes_of(single, "online", min_confidence=2.0)
    assert "a single pose: the camera has no path" in scene.title
    assert "points has a confidence of 2" in scene.title
    assert len(picture_png([scene], view=PictureView.BOTH, size=(400, 300))) > 1000
