"""Each data set in its official layout, in miniature: frames, cameras, depth and true poses are as meant."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from miniatures import HEIGHT, WIDTH, drive, write_depth, write_image

from anchor3r.errors import Anchor3RError
from anchor3r.evaluation.benchmarks import BENCHMARKS
from anchor3r.evaluation.benchmarks.calibration import yaml_numbers
from anchor3r.geometry import SE3, Pinhole, quat_from_rotation, so3_exp
from anchor3r.sources import Frame

EVERYTHING = slice(None)


def tum_lines(stamps_s: Sequence[float], world_from_body: SE3) -> str:
    quat_wxyz = quat_from_rotation(world_from_body.rotation)
    rows = np.column_stack([world_from_body.translation, quat_wxyz[:, 1:], quat_wxyz[:, :1]])
    lines = [f"{t:.9f} " + " ".join(f"{v:.12g}" for v in row) for t, row in zip(stamps_s, rows, strict=True)]
    return "# timestamp tx ty tz qx qy qz qw\n" + "\n".join(lines) + "\n"


def frames_of(benchmark: str, root: Path, name: str, wanted: slice = EVERYTHING) -> list[Frame]:
    with BENCHMARKS[benchmark].open(root, name, wanted) as source:
        return list(source)


def assert_poses(frames: Sequence[Frame], world_from_camera: SE3, atol: float = 1e-6) -> None:
    assert len(frames) == len(world_from_camera)
    for k, frame in enumerate(frames):
        assert frame.camera_from_world is not None
        got = frame.camera_from_world.inverse()
        np.testing.assert_allclose(got.matrix(), world_from_camera[k].matrix(), atol=atol)


def test_every_benchmark_is_declared() -> None:
    assert list(BENCHMARKS) == ["kitti", "vbr", "tum", "oxford_spires", "waymo", "7scenes", "vkitti2"]
    assert len(BENCHMARKS["kitti"].protocol.sequences) == 11
    assert len(BENCHMARKS["vbr"].protocol.sequences) == 7
    assert len(BENCHMARKS["waymo"].protocol.sequences) == 9
    assert {b for b, k in BENCHMARKS.items() if k.protocol.cloud is not None} == {"tum", "7scenes"}


class TestKitti:
    def test_camera_2_and_its_poses(self, kitti_miniature: Callable[..., Path]) -> None:
        frames = frames_of("kitti", kitti_miniature("00", num=5), "00")
        # P2's last column is fx·shift with fx = 50 and 3: a point's x grows by 6 cm, so the camera sits left.
        cam0_from_cam2 = SE3(np.eye(3), np.array([-0.06, 0, 0]))
        assert_poses(frames, drive(5) @ cam0_from_cam2)
        assert frames[3].timestamp_s == pytest.approx(0.3)
        assert frames[0].intrinsics == Pinhole(50, 50, 32, 24, WIDTH, HEIGHT)

    def test_a_part(self, kitti_miniature: Callable[..., Path]) -> None:
        root = kitti_miniature("00", num=9)
        assert [f.index for f in frames_of("kitti", root, "00", slice(4))] == [0, 1, 2, 3]

    def test_fewer_poses_than_frames(self, kitti_miniature: Callable[..., Path]) -> None:
        root = kitti_miniature("00", num=9)
        poses = root / "poses/00.txt"
        poses.write_text("".join(poses.read_text().splitlines(keepends=True)[:6]))
        with pytest.raises(Anchor3RError, match=r"poses/00.txt ends at line 6, but .* 9 images"):
            frames_of("kitti", root, "00")

    @pytest.mark.parametrize("bad", ["nan", "1e3 2 3", "x"])
    def test_bad_pose_names_file_and_line(self, kitti_miniature: Callable[..., Path], bad: str) -> None:
        root = kitti_miniature("00", num=4)
        poses = root / "poses/00.txt"
        lines = poses.read_text().splitlines()
        lines[2] = " ".join([bad, *lines[2].split()[1:]])
        poses.write_text("\n".join(lines))
        with pytest.raises(Anchor3RError, match=r"poses/00.txt, line 3"):
            frames_of("kitti", root, "00")

    def test_no_ground_truth(self, kitti_miniature: Callable[..., Path]) -> None:
        root = kitti_miniature("00", num=4)
        (root / "poses/00.txt").unlink()
        with pytest.raises(Anchor3RError, match="cannot read"):
            frames_of("kitti", root, "00")

    def test_real(self, shared: Path) -> None:
        with BENCHMARKS["kitti"].open(shared / "real/kitti", "00", EVERYTHING) as source:
            assert source.num_frames == 1700
            frame = source.read(1234)
        row = np.loadtxt(shared / "real/kitti/poses/00.txt")[1234].reshape(3, 4)
        assert_poses([frame], SE3.from_matrix(row[None]))
        assert frame.image.shape == (188, 620, 3)


class TestTum:
    def write(self, root: Path, clock_s: float = 0.0) -> SE3:
        """Images at 30 Hz, poses at 100 Hz in between, which end before the last image."""
        folder = root / "rgbd_dataset_freiburg2_desk"
        image_s = 1311868164.3 + np.arange(6) / 30
        truth = drive(14)
        for k, t in enumerate(image_s):
            write_image(folder / f"rgb/{t:.6f}.png", k)
            write_depth(folder / f"depth/{t + 0.003:.6f}.png", 5000)
        names = [(t, f"{t:.6f} rgb/{t:.6f}.png") for t in image_s]
        (folder / "rgb.txt").write_text("# color images\n" + "\n".join(line for _, line in names) + "\n")
        depth = [f"{t + 0.003:.6f} depth/{t + 0.003:.6f}.png" for t in image_s]
        (folder / "depth.txt").write_text("\n".join(depth) + "\n")
        stamps = image_s[0] + 0.002 + np.arange(14) / 100 + clock_s
        (folder / "groundtruth.txt").write_text(tum_lines(stamps.tolist(), truth))
        return truth

    def test_frames_near_a_pose_are_scored(self, tmp_path: Path) -> None:
        truth = self.write(tmp_path)
        assert BENCHMARKS["tum"].sequence_names(tmp_path) == ["rgbd_dataset_freiburg2_desk"]
        frames = frames_of("tum", tmp_path, "rgbd_dataset_freiburg2_desk")
        assert len(frames) == 6
        # Poses lie 10 ms apart and begin 2 ms after the first image: images at 0, 33, 67, 100, 133, 167 ms.
        assert_poses(frames[:5], truth[np.array([0, 3, 6, 10, 13])])
        assert frames[5].camera_from_world is None
        assert frames[0].depth_m is not None
        assert frames[0].depth_m[5, 5] == pytest.approx(4.0)
        assert frames[0].intrinsics is not None
        assert frames[0].timestamp_s == pytest.approx(1311868164.3, abs=1e-6)

    def test_another_clock(self, tmp_path: Path) -> None:
        self.write(tmp_path, clock_s=3600)
        with pytest.raises(Anchor3RError, match=r"rgb.txt \(1311868164.300 .*groundtruth.txt \(1311871764"):
            frames_of("tum", tmp_path, "rgbd_dataset_freiburg2_desk")

    def test_unsorted_and_absent(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        path = tmp_path / "rgbd_dataset_freiburg2_desk/groundtruth.txt"
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:3], lines[7], *lines[4:]]))
        with pytest.raises(Anchor3RError, match=r"pose 4 of .*groundtruth.txt.* earlier"):
            frames_of("tum", tmp_path, "rgbd_dataset_freiburg2_desk")
        with pytest.raises(Anchor3RError, match="no sequence in"):
            BENCHMARKS["tum"].sequence_names(tmp_path / "elsewhere")


class TestSevenScenes:
    def write(self, root: Path, truth: SE3) -> Path:
        folder = root / "chess/seq-01"
        for k in range(len(truth)):
            write_image(folder / f"frame-{k:06d}.color.png", k)
            write_depth(folder / f"frame-{k:06d}.depth.png", 1000)
            np.savetxt(folder / f"frame-{k:06d}.pose.txt", truth[k].matrix())
        return folder

    def test_layout(self, tmp_path: Path) -> None:
        self.write(tmp_path, drive(4))
        frames = frames_of("7scenes", tmp_path, "chess")
        depth_from_colour = SE3(np.eye(3), np.array([0.025, 0, 0]))
        assert_poses(frames, drive(4) @ depth_from_colour)
        assert frames[0].depth_m is not None
        assert frames[0].depth_m.max() == pytest.approx(4.0)
        assert frames[0].intrinsics is not None
        assert frames[0].intrinsics.fx == pytest.approx(525 * WIDTH / 640)

    def test_missing_pose(self, tmp_path: Path) -> None:
        (self.write(tmp_path, drive(4)) / "frame-000002.pose.txt").unlink()
        with pytest.raises(Anchor3RError, match=r"no .*frame-000002.pose.txt"):
            frames_of("7scenes", tmp_path, "chess")

    def test_real(self, shared: Path) -> None:
        with BENCHMARKS["7scenes"].open(shared / "real/7scenes", "redkitchen", EVERYTHING) as source:
            assert source.num_frames == 500
            frame = source.read(0)
        assert frame.depth_m is not None
        assert 0.5 < np.median(frame.depth_m[frame.depth_m > 0]) < 5
        truth = np.loadtxt(shared / "real/7scenes/redkitchen/seq-01/frame-000000.pose.txt")
        truth[:3, 3] += 0.025 * truth[:3, 0]  # the colour camera is to the right of the depth camera
        assert_poses([frame], SE3.from_matrix(truth[None]), atol=1e-4)


class TestVirtualKitti2:
    def write(self, root: Path, truth: SE3) -> Path:
        folder = root / "Scene06/clone"
        extrinsics = ["frame cameraID r1,1 r1,2 r1,3 t1 r2,1 r2,2 r2,3 t2 r3,1 r3,2 r3,3 t3 0 0 0 1"]
        intrinsics = ["frame cameraID K[0,0] K[1,1] K[0,2] K[1,2]"]
        for k in range(len(truth)):
            write_image(folder / f"frames/rgb/Camera_0/rgb_{k:05d}.jpg", k)
            write_depth(folder / f"frames/depth/Camera_0/depth_{k:05d}.png", 100)
            for camera in (0, 1):
                pose = SE3(np.eye(3), np.array([-0.5 * camera, 0, 0])) @ truth[k].inverse()
                extrinsics.append(f"{k} {camera} " + " ".join(f"{v:.9f}" for v in pose.matrix().flat))
                intrinsics.append(f"{k} {camera} 72.5 72.5 {31.5 + camera} 23.5")
        (folder / "extrinsic.txt").write_text("\n".join(extrinsics) + "\n")
        (folder / "intrinsic.txt").write_text("\n".join(intrinsics) + "\n")
        return folder

    def test_left_camera(self, tmp_path: Path) -> None:
        self.write(tmp_path, drive(4))
        frames = frames_of("vkitti2", tmp_path, "Scene06")
        assert_poses(frames, drive(4))
        assert frames[2].intrinsics == Pinhole(72.5, 72.5, 31.5, 23.5, WIDTH, HEIGHT)
        assert frames[2].depth_m is not None
        assert frames[2].depth_m[0, 0] == pytest.approx(4.0)

    def test_without_depth(self, tmp_path: Path) -> None:
        folder = self.write(tmp_path, drive(3))
        (folder / "frames/depth").rename(folder / "frames/elsewhere")
        assert frames_of("vkitti2", tmp_path, "Scene06")[0].depth_m is None

    def test_short_table(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, drive(4)) / "extrinsic.txt"
        lines = path.read_text().splitlines()
        path.write_text("\n".join(lines[:5]))
        with pytest.raises(Anchor3RError, match=r"extrinsic.txt has 2 frames .* 4 images"):
            frames_of("vkitti2", tmp_path, "Scene06")
        path.write_text("\n".join([*lines[:3], *lines[5:]]))
        with pytest.raises(Anchor3RError, match=r"line 4 of .*extrinsic.txt is of frame 2"):
            frames_of("vkitti2", tmp_path, "Scene06")


class TestVbr:
    base_from_camera = SE3(so3_exp([1.2, -1.2, 1.2]), np.array([0.07, 0.23, -0.67]))
    base_from_lidar = SE3(so3_exp([0.0, 0.0, 0.5]), np.array([0.0, 0.1, 0.2]))

    def write(self, root: Path) -> tuple[Path, SE3]:
        """Images at 10 Hz; every scan but the third comes 4 ms later, that one 40 ms."""
        home = root / "campus/campus_train0"
        recording = root / "campus/campus_train0_kitti"
        truth = drive(6)
        start = np.datetime64("2023-02-20T10:33:46.123456789", "ns")
        image_t = [start + np.timedelta64(100_000_000 * k, "ns") for k in range(6)]
        scan_t = [
            t + np.timedelta64(40_000_000 if k == 2 else 4_000_000, "ns") for k, t in enumerate(image_t)
        ]
        for k in range(6):
            write_image(recording / f"camera_left/data/{k:010d}.png", k)
        (recording / "ouster_points").mkdir()
        for sensor, stamps in (("camera_left", image_t), ("ouster_points", scan_t)):
            (recording / sensor / "timestamps.txt").write_text("".join(f"{t}\n" for t in stamps))
        home.mkdir()
        scan_s = [t.astype(np.int64) / 1e9 for t in scan_t]
        (home / "campus_train0_gt.txt").write_text(tum_lines(scan_s, truth))
        rows = "\n".join(f"    - {row.tolist()}" for row in self.base_from_camera.matrix())
        flat = ", ".join(str(v) for v in self.base_from_lidar.matrix().flat)
        (home / "vbr_calib.yaml").write_text(
            "lidar:\n  model: OS1 # 64 rays\n  T_b: [" + flat + "]\ncam_l:\n  T_b:\n" + rows + "\n"
            "  intrinsics: [50.0, 51.0, 31.0, 23.0]\n  distortion_coeffs:\n  - -0.1\n  - 0.05\n  - 0.0\n"
            f"  - 1.0e-3\n  resolution: [{WIDTH}, {HEIGHT}]\nimu:\n  T_b: [1, 2]\n"
        )
        return home, truth

    def test_frames_with_a_scan(self, tmp_path: Path) -> None:
        _, world_from_lidar = self.write(tmp_path)
        frames = frames_of("vbr", tmp_path, "campus_train0")
        lidar_from_camera = self.base_from_lidar.inverse() @ self.base_from_camera
        kept = np.array([0, 1, 3, 4, 5])
        assert_poses(frames, world_from_lidar[kept] @ lidar_from_camera)
        assert [f.index for f in frames] == [0, 1, 2, 3, 4]
        assert frames[0].timestamp_s == pytest.approx(1676889226.123456789, abs=1e-6)
        assert frames[0].intrinsics == Pinhole(50, 51, 31, 23, WIDTH, HEIGHT)

    def test_bad_stamps(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        stamps = tmp_path / "campus/campus_train0_kitti/camera_left/timestamps.txt"
        lines = stamps.read_text().splitlines()
        stamps.write_text("\n".join(lines[:4]))
        with pytest.raises(Anchor3RError, match=r"timestamps.txt has 4 lines for 6 images"):
            frames_of("vbr", tmp_path, "campus_train0")
        stamps.write_text("\n".join([*lines[:4], "yesterday", lines[5]]))
        with pytest.raises(Anchor3RError, match=r"line 5 of .*timestamps.txt is no date"):
            frames_of("vbr", tmp_path, "campus_train0")

    def test_incomplete_calibration(self, tmp_path: Path) -> None:
        home, _ = self.write(tmp_path)
        calibration = home / "vbr_calib.yaml"
        calibration.write_text(calibration.read_text().replace("intrinsics: [50.0,", "intrinsics: ["))
        with pytest.raises(
            Anchor3RError, match=r"vbr_calib.yaml should have 4 numbers under cam_l / intrinsics"
        ):
            frames_of("vbr", tmp_path, "campus_train0")


class TestOxfordSpires:
    name = "2024-03-12-keble-college-02"
    camera_from_lidar = SE3(so3_exp([0.7, 0.7, -0.7]), np.array([0.0, -0.08, -0.05]))

    def write(self, root: Path, inside: str = "raw/images/cam0") -> SE3:
        folder = root / "sequences" / self.name
        stamps = 1710338090.117801984 + np.arange(4) / 20
        for k, t in enumerate(stamps):
            write_image(folder / inside / f"{t:.9f}.jpg", k)
        truth = drive(2)
        (folder / "processed/trajectory").mkdir(parents=True)
        (folder / "processed/trajectory/gt-tum.txt").write_text(tum_lines(stamps[[0, 2]].tolist(), truth))
        (root / "calibration").mkdir()
        matrix = "\n".join(f"  - {row.tolist()}" for row in self.camera_from_lidar.matrix())
        (root / "calibration/cam-lidar-imu.yaml").write_text("cam0:\n  T_cam_lidar:\n" + matrix + "\n")
        (root / "calibration/cam0.yaml").write_text(
            f"image_width: {WIDTH}\nimage_height: {HEIGHT}\ncamera_matrix:\n  rows: 3\n  cols: 3\n"
            "  data: [40.0, 0.0, 32.5, 0.0, 41.0, 24.5, 0.0, 0.0, 1.0]\ndistortion_model: equidistant\n"
            "distortion_coefficients:\n  rows: 1\n  cols: 4\n  data: [-0.04, -0.002, 0.003, -0.002]\n"
        )
        return truth

    @pytest.mark.parametrize("inside", ["raw/images/cam0", "raw/cam0"])
    def test_front_camera(self, tmp_path: Path, inside: str) -> None:
        world_from_base = self.write(tmp_path, inside)
        assert BENCHMARKS["oxford_spires"].sequence_names(tmp_path) == [self.name]
        frames = frames_of("oxford_spires", tmp_path, self.name)
        base_from_lidar = SE3(so3_exp([0, 0, np.pi]), np.array([0, 0, 0.124]))
        truth = world_from_base @ base_from_lidar @ self.camera_from_lidar.inverse()
        assert_poses(frames[::2], truth)
        assert [f.camera_from_world is None for f in frames] == [False, True, False, True]
        assert frames[1].timestamp_s == pytest.approx(1710338090.167801984, abs=1e-6)
        assert frames[0].intrinsics == Pinhole(40, 41, 32.5, 24.5, WIDTH, HEIGHT)

    def test_misnamed_image(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        write_image(tmp_path / "sequences" / self.name / "raw/images/cam0/copy.jpg")
        with pytest.raises(Anchor3RError, match="not named by its time"):
            frames_of("oxford_spires", tmp_path, self.name)


class TestWaymo:
    def write(self, root: Path, truth: SE3) -> Path:
        folder = root / "segment-16345319168590318167_1420_000_1440_000_with_camera_labels.tfrecord"
        matrix = np.array([[70.0, 0, 32], [0, 71, 24], [0, 0, 1]])
        for k in range(len(truth)):
            for camera in (1, 2):
                write_image(folder / f"{k:05d}_{camera}.jpg", k)
                pose = truth[k].matrix() + np.eye(4, k=3) * (camera - 1)
                np.savez(folder / f"{k:05d}_{camera}.npz", intrinsics=matrix, cam2world=pose)
        return folder

    def test_front_camera(self, tmp_path: Path) -> None:
        self.write(tmp_path, drive(4))
        frames = frames_of("waymo", tmp_path, "163453191")
        assert_poses(frames, drive(4))
        assert frames[0].intrinsics == Pinhole(70, 71, 32, 24, WIDTH, HEIGHT)
        assert frames[3].timestamp_s == pytest.approx(0.3)

    def test_missing_segment_and_camera(self, tmp_path: Path) -> None:
        folder = self.write(tmp_path, drive(4))
        with pytest.raises(Anchor3RError, match=r"with 183829460 is wanted .* found: none"):
            frames_of("waymo", tmp_path, "183829460")
        (folder / "00002_1.npz").write_bytes(b"nothing")
        with pytest.raises(Anchor3RError, match=r"00002_1.npz is no exported camera"):
            frames_of("waymo", tmp_path, "163453191")


def test_yaml_numbers_in_any_style(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("x:\n  m: [1, -2.5,\n      3e-2]  # 4\n  n:\n  - - 1\n    - -2\n  - - .5\ny:\n  m: 7\n")
    np.testing.assert_array_equal(yaml_numbers(path, "x", "m", count=3), [1, -2.5, 0.03])
    np.testing.assert_array_equal(yaml_numbers(path, "x", "n", count=3), [1, -2, 0.5])
    np.testing.assert_array_equal(yaml_numbers(path, "y", "m", count=1), [7])
    with pytest.raises(Anchor3RError, match="under z"):
        yaml_numbers(path, "z", count=1)


def test_undistortion_straightens_a_line() -> None:
    """A distorted picture of a straight line becomes straight again where the ideal camera sees it."""
    import cv2

    from anchor3r.sources.undistortion import undistorted

    camera = Pinhole(200, 200, 159.5, 119.5, 320, 240)
    distortion = np.array([0.3, 0.05, 0.0, 0.0])
    points = np.stack([np.linspace(-0.7, 0.7, 4000), np.full(4000, -0.4), np.ones(4000)], -1)
    for fisheye in (False, True):
        if fisheye:
            pixels, _ = cv2.fisheye.projectPoints(
                points[None], np.zeros(3), np.zeros(3), camera.matrix(), distortion
            )
        else:
            pixels, _ = cv2.projectPoints(points, np.zeros(3), np.zeros(3), camera.matrix(), distortion)
        image = np.zeros((240, 320, 3), np.uint8)
        u, v = np.round(pixels.reshape(-1, 2)).astype(int).T
        inside = (u >= 0) & (u < 320) & (v >= 1) & (v < 239)
        for shift in (-1, 0, 1):
            image[v[inside] + shift, u[inside]] = 255
        straight = undistorted(image, camera, tuple(distortion), fisheye=fisheye)
        rows = [np.flatnonzero(straight[:, column, 0] > 128) for column in range(60, 260)]
        centres = np.array([row.mean() for row in rows if len(row)])
        assert len(centres) > 150
        np.testing.assert_allclose(centres, camera.project(points[0])[1], atol=1.0)
