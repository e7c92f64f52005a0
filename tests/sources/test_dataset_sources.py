"""KITTI, TUM and 7-Scenes: layouts, calibration, poses, depth, and what can be wrong with them."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole, quat_from_rotation
from anchor3r.sources import Frame, open_source

NUM_FRAMES = 6
CAMERA_MATRIX = np.array([[30.0, 0, 4], [0, 31, 3], [0, 0, 1]])


def world_from_camera(index: int) -> SE3:
    return SE3.exp(np.array([0.1 * index, -0.2 * index, 0.05, index, 0.5 * index, -index]))


def image(value: int, size: tuple[int, int] = (8, 6)) -> Image.Image:
    return Image.new("RGB", size, (value, 0, 0))


def depth_image(value: int) -> Image.Image:
    return Image.fromarray(np.array([[0, value, 65535, value]] * 6, np.uint16).repeat(2, axis=1))


def assert_pose(frame: Frame, expected: SE3, atol: float = 1e-6) -> None:
    assert frame.camera_from_world is not None
    np.testing.assert_allclose(frame.camera_from_world.matrix(), expected.matrix(), atol=atol)


def write_kitti(root: Path, cameras: tuple[int, ...] = (0, 2), suffix: str = "png") -> Path:
    """A rectified rig: camera 2 sits 0.06 m left of camera 0, camera 3 sits 0.47 m right of it."""
    folder = root / "sequences" / "00"
    shifts = {0: (0, 0, 0), 1: (-0.54, 0, 0), 2: (0.06, -0.001, 0.003), 3: (-0.47, 0.002, 0.003)}
    for camera in cameras:
        (folder / f"image_{camera}").mkdir(parents=True)
        for index in range(NUM_FRAMES):
            image(10 * camera + index).save(folder / f"image_{camera}" / f"{index:06}.{suffix}", quality=100)
    lines = []
    for camera, shift in shifts.items():
        projection = np.column_stack([CAMERA_MATRIX, CAMERA_MATRIX @ shift])
        lines.append(f"P{camera}: " + " ".join(f"{value:.12e}" for value in projection.ravel()))
    (folder / "calib.txt").write_text("\n".join([*lines, "Tr: " + "0 " * 12]))
    np.savetxt(folder / "times.txt", 0.1037 * np.arange(NUM_FRAMES))
    (root / "poses").mkdir()
    poses = [world_from_camera(index).matrix()[:3].ravel() for index in range(NUM_FRAMES)]
    np.savetxt(root / "poses" / "00.txt", poses, fmt="%.9e")
    return folder


@pytest.mark.parametrize(
    ("cameras", "taken", "shift"),
    [((0, 1, 2, 3), 2, (0.06, -0.001, 0.003)), ((0, 3), 3, (-0.47, 0.002, 0.003)), ((0,), 0, (0, 0, 0))],
)
def test_kitti_gives_the_poses_of_the_camera_it_shows(
    tmp_path: Path, cameras: tuple[int, ...], taken: int, shift: tuple[float, float, float]
) -> None:
    folder = write_kitti(tmp_path, cameras)
    for uri in (f"kitti:{tmp_path}/00", f"kitti:{folder}"):
        frames = list(open_source(uri))
        assert len(frames) == NUM_FRAMES
        for index, frame in enumerate(frames):
            assert frame.image[0, 0, 0] == 10 * taken + index
            assert frame.timestamp_s == pytest.approx(0.1037 * index)
            assert frame.intrinsics == Pinhole(30, 31, 4, 3, 8, 6)
            assert frame.depth_m is None
            # A point seen by camera 0 at x is seen by this one at x + shift.
            camera_0_from_world = world_from_camera(index).inverse()
            assert_pose(frame, SE3(np.eye(3), np.array(shift)) @ camera_0_from_world)


def test_kitti_with_jpg_depth_and_part_of_a_sequence(tmp_path: Path) -> None:
    folder = write_kitti(tmp_path, (2,), "jpg")
    (folder / "depth").mkdir()
    depth_image(512).save(folder / "depth" / "000003.png")
    for index in (0, 1):
        (folder / "image_2" / f"{index:06}.jpg").unlink()
    source = open_source(f"kitti:{tmp_path}/00")
    first, second = source.read(0), source.read(1)
    assert first.timestamp_s == pytest.approx(2 * 0.1037)
    assert first.depth_m is None
    assert second.depth_m is not None
    assert second.depth_m[0, [0, 2]].tolist() == [0, 2]
    assert_pose(second, SE3(np.eye(3), np.array([0.06, -0.001, 0.003])) @ world_from_camera(3).inverse())


def test_kitti_without_extras(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_kitti(tmp_path, (2,))
    (folder / "times.txt").unlink()
    (folder / "calib.txt").unlink()
    with caplog.at_level(logging.WARNING, "anchor3r"):
        frame = open_source(f"kitti:{tmp_path}/00").read(3)
    assert frame.timestamp_s == pytest.approx(0.3)
    assert frame.intrinsics is None
    assert frame.camera_from_world is None, "the shift of camera 2 is not known"
    assert "holds only for camera 0" in caplog.text
    (tmp_path / "poses" / "00.txt").unlink()
    assert open_source(f"kitti:{tmp_path}/00").read(3).camera_from_world is None


def test_kitti_poses_that_end_early_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_kitti(tmp_path)
    path = tmp_path / "poses" / "00.txt"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))
    with caplog.at_level(logging.WARNING, "anchor3r"):
        assert open_source(f"kitti:{tmp_path}/00").read(0).camera_from_world is None
    assert "ends before the last image" in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("calib.txt", "P0: 1 2 3", r"has no line P2:"),
        ("calib.txt", "P2: 1 2 3", r"line 1 of .*calib.txt should be 12 numbers, not '1 2 3'"),
        ("calib.txt", "P2: " + "0 " * 12, "calib.txt holds no camera matrix"),
        ("calib.txt", "P2: 7 0 4 0 0 nan 3 0 0 0 1 0", "calib.txt holds no camera matrix"),
        ("times.txt", "0\n0.1", "times.txt lacks times"),
        ("times.txt", "0\nnan\n1\n2\n3\n4\n", "times.txt lacks times"),
        ("times.txt", "", "times.txt is empty"),
        ("image_2/readme.png", "", "readme.png is not named by its number"),
        ("../../poses/00.txt", "1 0 0 0 0 1 0 0 0 0 1", "line 1 of .*00.txt should be 12 numbers"),
        (
            "../../poses/00.txt",
            "1 0 0 0 0 1 0 0 0 0 1 0\n1 0 0 0 0 1 0 0 0 0 2 0",
            "line 2 of .*00.txt is no rigid motion",
        ),
        ("../../poses/00.txt", "1 0 0 0 0 1 0 0 0 0 -1 0", "line 1 of .*00.txt is no rigid motion"),
        ("../../poses/00.txt", "1 0 0 inf 0 1 0 0 0 0 1 0", "line 1 of .*00.txt is no rigid motion"),
        ("../../poses/00.txt", "1 0 0 x 0 1 0 0 0 0 1 0", "line 1 of .* should be 12 numbers"),
    ],
)
def test_kitti_files_that_cannot_be_right(tmp_path: Path, name: str, text: str, message: str) -> None:
    (write_kitti(tmp_path) / name).write_text(text)
    with pytest.raises(Anchor3RError, match=message):
        open_source(f"kitti:{tmp_path}/00")


def test_the_digits_of_printed_rotations_are_made_up_for(tmp_path: Path) -> None:
    write_kitti(tmp_path)
    poses = np.loadtxt(tmp_path / "poses" / "00.txt")
    np.savetxt(tmp_path / "poses" / "00.txt", poses, fmt="%.4f")
    pose = open_source(f"kitti:{tmp_path}/00").read(5).camera_from_world
    np.testing.assert_allclose(pose.rotation @ pose.rotation.T, np.eye(3), atol=1e-14)


def write_tum(folder: Path) -> Path:
    for kind in ("rgb", "depth"):
        (folder / kind).mkdir(parents=True)
    start_s = 1305031102.175304
    rgb, depth, poses = ["# color images", "# timestamp filename"], ["# depth maps"], ["# ground truth"]
    for index in range(NUM_FRAMES):
        image(index, (640, 480)).resize((8, 6)).save(folder / "rgb" / f"{index}.png")
        rgb.append(f"{start_s + index / 30:.6f} rgb/{index}.png")
        if index != 2:
            depth_image(5000 * (1 + index) // 2).save(folder / "depth" / f"{index}.png")
            depth.append(f"{start_s + index / 30 + 0.012:.6f} depth/{index}.png")
    for index in range(4 * NUM_FRAMES):
        if index // 4 != 4:
            motion = world_from_camera(index / 4)
            w, x, y, z = quat_from_rotation(motion.rotation)
            numbers = [*motion.translation, x, y, z, w]
            poses.append(
                f"{start_s + index / 120 + 0.001:.4f} " + " ".join(f"{number:.6f}" for number in numbers)
            )
    for name, lines in (("rgb", rgb), ("depth", depth), ("groundtruth", poses)):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_tum_associates_by_time(tmp_path: Path) -> None:
    frames = list(open_source(f"tum:{write_tum(tmp_path / 'rgbd_dataset_freiburg2_desk')}"))
    assert [frame.index for frame in frames] == list(range(NUM_FRAMES))
    for index, frame in enumerate(frames):
        assert frame.timestamp_s == pytest.approx(1305031102.175304 + index / 30, abs=1e-6)
        assert frame.intrinsics == Pinhole(520.9, 521.0, 325.1, 249.7, 640, 480).resized(8, 6)
        if index == 2:
            assert frame.depth_m is None
        else:
            assert frame.depth_m[0, [0, 2]] == pytest.approx([0, (1 + index) / 2])
        if index == 4:
            # The poses around it lie 1/120 s before and 1/30 s after, the first of which is near enough.
            assert_pose(frame, world_from_camera(3.75).inverse(), atol=1e-4)
        else:
            assert_pose(frame, world_from_camera(index).inverse(), atol=1e-4)


def test_tum_poses_too_far_in_time_are_none(tmp_path: Path) -> None:
    folder = write_tum(tmp_path / "desk")
    path = folder / "groundtruth.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:4]))
    frames = list(open_source(f"tum:{folder}"))
    assert frames[0].intrinsics is None
    assert [frame.camera_from_world is not None for frame in frames] == [True] * 2 + [False] * 4
    path.unlink()
    (folder / "depth.txt").unlink()
    frame = open_source(f"tum:{folder}").read(0)
    assert frame.camera_from_world is frame.depth_m is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rgb.txt", "# nothing\n", "rgb.txt is no list of times and image files"),
        ("rgb.txt", "1.0\n", "is no list"),
        ("rgb.txt", "nan rgb/0.png\n", "is no list"),
        ("rgb.txt", "now rgb/0.png\n", "line 1 of .*rgb.txt should be 1 numbers"),
        ("depth.txt", "", "depth.txt is no list"),
        ("groundtruth.txt", "1 2 3", "groundtruth.txt, line 1: expected timestamp"),
        ("groundtruth.txt", "# t x y z q\n1 0 0 0 0 0 0 0", "groundtruth.txt, line 2: the quaternion is not"),
        ("groundtruth.txt", "1 0 0 inf 0 0 0 1", "groundtruth.txt, line 1: expected timestamp"),
        ("groundtruth.txt", "# empty", "groundtruth.txt holds no poses"),
    ],
)
def test_tum_files_that_cannot_be_right(tmp_path: Path, name: str, text: str, message: str) -> None:
    folder = write_tum(tmp_path)
    (folder / name).write_text(text)
    with pytest.raises(Anchor3RError, match=message):
        open_source(f"tum:{folder}")


def test_tum_needs_its_list(tmp_path: Path) -> None:
    with pytest.raises(Anchor3RError, match=r"cannot read .*rgb.txt: No such file .*check the path"):
        open_source(f"tum:{tmp_path}")


def write_seven_scenes(folder: Path, suffix: str = "png") -> Path:
    folder.mkdir(parents=True)
    for index in range(NUM_FRAMES):
        stem = folder / f"frame-{index:06}"
        image(index).save(f"{stem}.color.{suffix}", quality=100)
        depth_image(1500 + index).save(f"{stem}.depth.png")
        np.savetxt(f"{stem}.pose.txt", world_from_camera(index).matrix())
    return folder


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_seven_scenes(tmp_path: Path, suffix: str) -> None:
    folder = write_seven_scenes(tmp_path / "chess" / "seq-01", suffix)
    frames = list(open_source(f"7scenes:{folder}"))
    assert len(frames) == NUM_FRAMES
    for index, frame in enumerate(frames):
        assert frame.intrinsics == Pinhole(525, 525, 319.5, 239.5, 640, 480).resized(8, 6)
        assert set(np.unique(frame.depth_m).tolist()) <= {0, np.float32(1.5 + index / 1000)}
        colour_from_depth = SE3(np.eye(3), np.array([-0.025, 0, 0]))
        assert_pose(frame, colour_from_depth @ world_from_camera(index).inverse())
    np.savetxt(folder.parent / "camera-intrinsics.txt", CAMERA_MATRIX)
    frame = open_source(f"7scenes:{folder}").read(0)
    assert frame.intrinsics == Pinhole(30, 31, 4, 3, 8, 6)
    assert frame.depth_m[0, [0, 2, 4]] == pytest.approx([0, 1.5, 0])
    assert_pose(frame, world_from_camera(0).inverse())


def test_seven_scenes_with_parts_missing_or_damaged(tmp_path: Path) -> None:
    folder = write_seven_scenes(tmp_path / "seq-01")
    (folder / "frame-000001.pose.txt").unlink()
    (folder / "frame-000001.depth.png").unlink()
    (folder / "frame-000002.pose.txt").write_text("-inf " * 4 + "\n" + "nan 0 0 0\n" * 3)
    (folder / "frame-000003.pose.txt").write_text("1 0 0")
    (folder / "frame-000004.depth.png").write_bytes(b"")
    source = open_source(f"7scenes:{folder}")
    frames = {frame.index: frame for frame in source}
    assert sorted(frames) == [0, 1, 2, 5]
    assert source.skipped == 2
    assert frames[1].camera_from_world is frames[1].depth_m is frames[2].camera_from_world is None
    assert frames[2].depth_m is not None


def test_seven_scenes_errors(tmp_path: Path) -> None:
    folder = write_seven_scenes(tmp_path / "seq-01")
    (folder / "camera-intrinsics.txt").write_text("1 2 3\n4 5 6\n")
    with pytest.raises(Anchor3RError, match="holds no camera matrix"):
        open_source(f"7scenes:{folder}")
    with pytest.raises(Anchor3RError, match=r"no images in .*; check the path"):
        open_source(f"7scenes:{tmp_path}")
    with pytest.raises(Anchor3RError, match="no KITTI sequence at"):
        open_source(f"kitti:{tmp_path}")
    image(1).save(tmp_path / "other.png")
    with pytest.raises(Anchor3RError, match=r"no frame-\*.color.png .*such as SCENE/seq-01"):
        open_source(f"7scenes:{tmp_path}")


def test_real_kitti(shared: Path) -> None:
    source = open_source(f"kitti:{shared}/real/kitti/00", start=1560)
    assert source.num_frames == 140
    frame = source.read(1600)
    assert frame.image.shape == (188, 620, 3)
    assert frame.intrinsics.fx == pytest.approx(359.138, abs=1e-3)
    centers = np.stack([source.read(index).camera_from_world.center() for index in (150, 1600)])
    assert np.linalg.norm(centers[0] - centers[1]) < 60, "the car comes back to where it was"


def test_real_seven_scenes_is_consistent(shared: Path) -> None:
    """Depth of one frame, moved by the poses, lands on the depth of another."""
    source = open_source(f"7scenes:{shared}/real/7scenes/redkitchen/seq-01")
    a, b = source.read(100), source.read(110)
    b_from_a = b.camera_from_world @ a.camera_from_world.inverse()
    points = b_from_a.apply(a.intrinsics.unproject_map(a.depth_m)[a.depth_m > 0])
    pixels = np.round(b.intrinsics.project(points)).astype(int)
    inside = (pixels >= 0).all(-1) & (pixels < [b.intrinsics.width, b.intrinsics.height]).all(-1)
    seen_m = b.depth_m[pixels[inside, 1], pixels[inside, 0]]
    both = seen_m > 0
    assert both.sum() > 20000
    assert np.median(np.abs(seen_m - points[inside, 2])[both]) < 0.03
