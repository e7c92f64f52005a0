"""Every loader reads a miniature of its data set back to the points of the world it was rendered from."""

import io
from pathlib import Path

import cv2
import dataset_miniatures as miniatures
import numpy as np
import pytest
from dataset_miniatures import MINIATURES, NUM_FRAMES, true_shots
from PIL import Image

from anchor3r.datasets import DATA_SETS, RecordedSequence, hypersim, open_files
from anchor3r.datasets.dataset import decode_image
from anchor3r.geometry import SE3, rotation_angle
from anchor3r.sources.frame import Frame
from anchor3r.sources.images import read_image
from anchor3r.sources.source import UndecodableFrameError

WITH_DEPTH = [name for name, dataset in DATA_SETS.items() if dataset.card.depth == "dense" and name != "ase"]


def opened(name: str, root: Path) -> RecordedSequence:
    dataset, files = DATA_SETS[name], open_files(root)
    (sequence,) = [n for n in dataset.names(files) if not (name == "waymo" and not n.endswith("/1"))]
    return RecordedSequence(dataset, files, dataset.index(files, sequence))


def world_points(frame: Frame) -> np.ndarray:
    assert frame.intrinsics is not None
    assert frame.depth_m is not None
    assert frame.camera_from_world is not None
    return frame.camera_from_world.inverse().apply(frame.intrinsics.unproject_map(frame.depth_m))


def test_there_is_a_miniature_of_every_data_set() -> None:
    assert set(MINIATURES) == set(DATA_SETS)
    assert len(DATA_SETS) == 16


@pytest.mark.parametrize("name", DATA_SETS)
def test_cameras_are_the_worlds(name: str, tmp_path: Path) -> None:
    miniatures.write(name, tmp_path)
    recording = opened(name, tmp_path)
    assert recording.num_frames == NUM_FRAMES
    for k, (shot, pose) in enumerate(zip(true_shots(name), recording.poses(), strict=True)):
        assert pose is not None
        offset = pose @ shot.true_pose.inverse()
        np.testing.assert_allclose(offset.matrix(), np.eye(4), atol=1e-6 if name != "scannet" else 1e-5)
        frame = recording.read(k)
        assert frame.intrinsics is not None
        assert frame.camera_from_world is not None
        if name == "ase":
            continue
        camera = shot.camera
        found = frame.intrinsics
        expected = (camera.fx, camera.fy, camera.cx, camera.cy, camera.width, camera.height)
        assert (found.fx, found.fy, found.cx, found.cy, found.width, found.height) == pytest.approx(
            expected, abs=1e-4
        )
        difference = np.abs(frame.image.astype(float) - shot.image).mean()
        assert difference < (16 if name == "hypersim" else 4), "tone mapping or compression at most"


@pytest.mark.parametrize(
    ("published", "fx", "tilt_deg"),
    [
        ([[1.7320507, 0, 0], [0, 2.309401, 0], [0, 0, -1]], 886.81, 0),
        ([[1.2653062, 0, 0], [0, 2.2525681, 0], [0, -0.64631284, -0.7305249]], 664.18, 41.5),
    ],
)
def test_hypersims_published_cameras(
    published: list[list[float]], fx: float, tilt_deg: float, tmp_path: Path
) -> None:
    """Rows of ai_001_001, an ordinary camera of 60 degrees, and of ai_026_006, with a tilted lens."""
    row = {"scene_name": "s", "settings_output_img_width": 1024, "settings_output_img_height": 768}
    row |= {f"M_proj_{i}{j}": published[k][j] for k, i in enumerate((0, 1, 3)) for j in range(3)}
    table = "\n".join(",".join(map(str, line)) for line in (row, row.values()))
    (tmp_path / hypersim.PARAMETERS).write_text(table)
    camera, rotation = hypersim._projection(open_files(tmp_path), "s")
    assert camera[0] == pytest.approx(fx, abs=0.01)
    assert np.degrees(rotation_angle(rotation)) == pytest.approx(tilt_deg, abs=0.01)
    # The middle of the picture, by the projection as published.
    ray = np.linalg.inv(published) @ [0, 0, 1] * [1, -1, -1]
    seen = rotation @ ray
    np.testing.assert_allclose(seen[:2] / seen[2] * camera[:2] + camera[2:], [511.5, 383.5], atol=1e-6)


def test_frames_that_hypersim_did_not_release_are_left_out(tmp_path: Path) -> None:
    miniatures.write("hypersim", tmp_path)
    (tmp_path / "ai_001_001/images/scene_cam_00_final_preview/frame.0003.tonemap.jpg").unlink()
    recording = opened("hypersim", tmp_path)
    assert recording.num_frames == NUM_FRAMES - 1
    for k in range(recording.num_frames):
        recording.read(k)


@pytest.mark.parametrize("name", WITH_DEPTH)
def test_points_are_the_worlds(name: str, tmp_path: Path) -> None:
    """Within a millimetre, beyond what the format itself rounds away."""
    miniatures.write(name, tmp_path)
    recording = opened(name, tmp_path)
    seen = 0
    for k, shot in enumerate(true_shots(name)):
        frame = recording.read(k)
        assert frame.depth_m is not None
        representable = shot.depth < (600 if MINIATURES[name].quantum_m else np.inf)
        solid = (shot.depth > 0) & representable & (shot.depth < 900)
        np.testing.assert_array_equal(frame.depth_m[shot.depth == 0], 0)
        assert (frame.depth_m[solid] > 0).mean() > 0.999
        truth = shot.true_pose.inverse().apply(shot.camera.unproject_map(shot.depth))
        error = np.linalg.norm(world_points(frame) - truth, axis=-1)
        # Rounding moves a point along its ray, which in the corners is longer than its depth.
        rounding = 0.5 * MINIATURES[name].quantum_m + MINIATURES[name].relative * shot.depth
        both = solid & (frame.depth_m > 0)
        limit = 1e-3 + 1.5 * rounding + 2e-6 * shot.depth
        assert (error[both] < limit[both]).all(), f"{name}: {error[both].max()}"
        seen += int(both.sum())
    assert seen > 0.4 * NUM_FRAMES * shot.depth.size


def test_aria_points_lie_on_the_worlds_surfaces(tmp_path: Path) -> None:
    """The straightened fisheye against rays cast from its ideal camera."""
    miniatures.write("ase", tmp_path)
    recording = opened("ase", tmp_path)
    scene = miniatures.world("room").scene
    frame = recording.read(2)
    assert frame.depth_m is not None
    assert frame.intrinsics is not None
    pose = true_shots("ase")[2].true_pose.inverse()
    rays = frame.intrinsics.unproject_map(np.ones(frame.depth_m.shape)).reshape(-1, 3)
    unit = rays / np.linalg.norm(rays, axis=1, keepdims=True)
    distance = miniatures.cast(scene, pose.translation, unit @ pose.rotation.T)
    depth = (distance * unit[:, 2]).reshape(frame.depth_m.shape)
    known = frame.depth_m > 0
    assert known.mean() > 0.7
    # Where two surfaces meet, four pixels of the fisheye see both.
    inverse, flat = 1 / depth, np.zeros(known.shape, bool)
    bend = [np.abs(np.diff(inverse, 2, axis=axis)) for axis in (0, 1)]
    flat[1:-1, 1:-1] = (bend[0][:, 1:-1] < 1e-5) & (bend[1][1:-1] < 1e-5)
    flat = cv2.erode(flat.astype(np.uint8), np.ones((5, 5))) > 0
    error = np.abs(frame.depth_m - depth)[known & flat]
    assert (known & flat).mean() > 0.3
    assert error.max() < 1e-3, "half of it is the millimetre of the format"


def test_waymo_depth_is_where_the_beams_hit(tmp_path: Path) -> None:
    miniatures.write("waymo", tmp_path)
    recording = opened("waymo", tmp_path)
    for k, shot in enumerate(true_shots("waymo")):
        frame = recording.read(k)
        assert frame.depth_m is not None
        known = frame.depth_m > 0
        assert 100 < known.sum() < 0.5 * known.size
        # A beam that hit keeps its distance: the point it stands for lies on the world's surface.
        camera = shot.camera
        points = lidar_points(k)
        in_camera = shot.true_pose.apply(points)
        in_camera = in_camera[in_camera[:, 2] > 0.1]
        pixel = np.round(camera.project(in_camera)).astype(int)
        inside = (pixel >= 0).all(1) & (pixel < [camera.width, camera.height]).all(1)
        nearest = np.full(known.shape, np.inf)
        np.minimum.at(nearest, tuple(pixel[inside].T[::-1]), in_camera[inside, 2])
        np.testing.assert_array_equal(known, np.isfinite(nearest))
        assert np.abs(frame.depth_m - nearest)[known].max() < 1e-3
        # And most of them agree with what the camera itself sees there.
        assert np.median(np.abs(frame.depth_m - shot.depth)[known] / frame.depth_m[known]) < 0.02


def lidar_points(k: int) -> np.ndarray:
    """World points of the beams of frame k, from the world alone."""
    vehicle_from_camera = miniatures.VEHICLE_FROM_CAMERA @ miniatures.SENSOR_FROM_OPENCV
    world_from_camera = true_shots("waymo")[k].true_pose.inverse().matrix()
    world_from_vehicle = world_from_camera @ np.linalg.inv(vehicle_from_camera)
    pose = SE3.from_matrix(world_from_vehicle @ miniatures.VEHICLE_FROM_LIDAR)
    yaw = np.arctan2(miniatures.VEHICLE_FROM_LIDAR[1, 0], miniatures.VEHICLE_FROM_LIDAR[0, 0])
    around = np.pi * (1 - (2 * np.arange(miniatures.NUM_COLUMNS) + 1) / miniatures.NUM_COLUMNS) - yaw
    a, up = np.meshgrid(around, miniatures.INCLINATIONS[::-1])
    beams = np.stack([np.cos(a) * np.cos(up), np.sin(a) * np.cos(up), np.sin(up)], -1)
    distance = miniatures.lidar_distances(k)
    hit = np.isfinite(distance)
    return pose.apply(beams[hit] * distance[hit, None])


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_pictures_are_decoded_to_pillows_bits_upright(mode: str) -> None:
    """Sideways too; a JPEG whose end is missing is an error, whoever decodes."""
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    picture = Image.fromarray(noise).resize((80, 60)).convert(mode)
    for orientation in (1, 6):
        exif = Image.Exif()
        exif[0x0112] = orientation
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=90, exif=exif)
        decoded = decode_image(file.getvalue(), "a.jpg")
        np.testing.assert_array_equal(decoded, read_image(io.BytesIO(file.getvalue())))
        assert decoded.shape == ((60, 80, 3) if orientation == 1 else (80, 60, 3))
        with pytest.raises(UndecodableFrameError, match=r"a\.jpg"):
            decode_image(file.getvalue()[:-200], "a.jpg")
