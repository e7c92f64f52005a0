"""EuRoC, ICL-NUIM, Replica and ETH3D-SLAM folders: cameras, times, poses, depth, and what can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from test_dataset_sources import assert_pose, depth_image, image, world_from_camera, write_tum

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, quat_from_rotation
from anchor3r.sources import open_source

NUM_FRAMES = 4
FIRST_NS = 1403636579763555584
SENSOR = """# General sensor definitions.
sensor_type: camera
comment: VI-Sensor cam0 (MT9M034)
T_BS:
  cols: 4
  rows: 4
  data: [{motion}]
rate_hz: 20
resolution: [24, 16]
camera_model: pinhole
intrinsics: [20.0, 21.0, 11.5, 7.5] #fu, fv, cu, cv
distortion_model: {model}
distortion_coefficients: [{coefficients}]
"""


def checkered(k: int) -> Image.Image:
    grid = np.indices((16, 24)).sum(0) // 4 % 2 * 200 + k
    return Image.fromarray(grid.astype(np.uint8))


def write_euroc(
    root: Path, model: str = "radial-tangential", coefficients: str = "-0.28, 0.07, 0.0002, 1.7e-05"
) -> tuple[Path, SE3]:
    """The folder, and body_from_camera."""
    body_from_camera = SE3.exp(np.array([0.1, -0.2, 1.5, -0.02, -0.06, 0.01]))
    mav, times_ns = root / "MH_01_easy" / "mav0", [FIRST_NS + 50_000_000 * k for k in range(NUM_FRAMES)]
    (mav / "cam0" / "data").mkdir(parents=True)
    for k, time_ns in enumerate(times_ns):
        checkered(k).save(mav / "cam0" / "data" / f"{time_ns}.png")
    lines = ["#timestamp [ns],filename", *(f"{time_ns},{time_ns}.png" for time_ns in times_ns)]
    (mav / "cam0" / "data.csv").write_text("\r\n".join(lines) + "\r\n")
    motion = ", ".join(f"{value:.12f}" for value in body_from_camera.matrix().ravel())
    text = SENSOR.format(motion=motion, model=model, coefficients=coefficients)
    (mav / "cam0" / "sensor.yaml").write_text(text)
    (mav / "state_groundtruth_estimate0").mkdir()
    rows = ["#timestamp, p_RS_R_x [m], …"]
    for k in (0, 1, 3):  # the second half of the way between 1 and 3 has none of its own
        pose = world_from_camera(k)
        values = [*pose.translation, *quat_from_rotation(pose.rotation), *np.zeros(9)]
        rows.append(f"{times_ns[k]}," + ",".join(f"{value:.12f}" for value in values))
    (mav / "state_groundtruth_estimate0" / "data.csv").write_text("\n".join(rows))
    return root / "MH_01_easy", body_from_camera


@pytest.mark.parametrize("place", ["", "mav0", "mav0/cam0"])
def test_euroc(place: str, tmp_path: Path) -> None:
    folder, body_from_camera = write_euroc(tmp_path)
    frames = list(open_source(f"euroc:{folder / place}"))
    assert [frame.timestamp_s for frame in frames] == pytest.approx(
        [FIRST_NS / 1e9 + 0.05 * k for k in range(4)], abs=1e-6
    )
    for k in (0, 1, 3):
        assert_pose(frames[k], (world_from_camera(k) @ body_from_camera).inverse(), atol=1e-5)
    assert frames[2].camera_from_world is not None
    matrix = np.array([[20.0, 0, 11.5], [0, 21, 7.5], [0, 0, 1]])
    np.testing.assert_allclose(frames[0].intrinsics.matrix(), matrix)  # type: ignore[union-attr]
    lens = np.array([-0.28, 0.07, 0.0002, 1.7e-05])
    expected = cv2.undistort(np.asarray(checkered(2)), matrix, lens)
    assert np.abs(frames[2].image[..., 0].astype(int) - expected).max() <= 2


def test_euroc_with_a_fisheye_and_without_anything(tmp_path: Path) -> None:
    folder, _ = write_euroc(tmp_path / "a", "equidistant", "0.01, 0.002, 0.0, 0.0")
    assert len(list(open_source(f"euroc:{folder}"))) == 4
    bare, _ = write_euroc(tmp_path / "b")
    (bare / "mav0" / "cam0" / "sensor.yaml").unlink()
    frame = open_source(f"euroc:{bare}").read(0)
    assert frame.intrinsics is None


def test_euroc_that_is_broken(tmp_path: Path) -> None:
    with pytest.raises(Anchor3RError, match="no EuRoC sequence at"):
        open_source(f"euroc:{tmp_path}")
    folder, _ = write_euroc(tmp_path)
    sensor = folder / "mav0" / "cam0" / "sensor.yaml"
    for text, told in [
        ("a: [", "is no YAML"),
        ("- 1", "describes no sensor"),
        ("resolution: [24, 16]", "should say intrinsics"),
        (SENSOR.format(motion="1, 2", model="radtan", coefficients="0.1, 0, 0, 0"), "no 4×4 matrix"),
        (SENSOR.format(motion="1, 2", model="omni", coefficients="0.1, 0, 0, 0"), "model 'omni'"),
    ]:
        sensor.write_text(text)
        with pytest.raises(Anchor3RError, match=told):
            open_source(f"euroc:{folder}")
    with pytest.raises(Anchor3RError, match=r"try euroc:"):
        open_source(folder)


def test_icl_nuim(tmp_path: Path) -> None:
    """Seen through their camera, whose fy is negative, and through ours, points are at the same pixels."""
    for name in ("rgb", "depth"):
        (tmp_path / name).mkdir()
    rng = np.random.default_rng(0)
    poses = [SE3.exp(0.2 * rng.standard_normal(6)) for _ in range(3)]
    lines = []
    for k, pose in enumerate(poses, 1):
        Image.new("RGB", (640, 480), (k, 0, 0)).save(tmp_path / "rgb" / f"{k}.png")
        Image.fromarray(np.full((480, 640), 5000 * k, np.uint16)).save(tmp_path / "depth" / f"{k}.png")
        w, x, y, z = quat_from_rotation(pose.rotation)
        lines.append(" ".join(f"{value:.12f}" for value in (k, *pose.translation, x, y, z, w)))
    (tmp_path / "livingRoom0.gt.freiburg").write_text("\n".join(lines))
    points = rng.uniform([-1, -1, 3], [1, 1, 5], (20, 3))  # in the world of the files
    frames = list(open_source(f"icl-nuim:{tmp_path}"))
    assert len(frames) == 3
    for k, (frame, pose) in enumerate(zip(frames, poses, strict=True), 1):
        x, y, z = pose.inverse().apply(points).T
        expected = np.stack([481.2 * x / z + 319.5, -480.0 * y / z + 239.5], -1)
        assert frame.intrinsics is not None
        assert frame.camera_from_world is not None
        mirrored = points * [1, -1, 1]
        seen = frame.intrinsics.project(frame.camera_from_world.apply(mirrored))
        np.testing.assert_allclose(seen, expected, atol=1e-6)
        assert frame.depth_m is not None
        assert frame.depth_m[0, 0] == k


def write_replica(root: Path) -> Path:
    results = root / "room0" / "results"
    results.mkdir(parents=True)
    for k in range(3):
        image(60 * k).save(results / f"frame{k:06}.jpg", quality=100)
        depth_image(13107).save(results / f"depth{k:06}.png")
    camera = {"w": 8, "h": 6, "fx": 6.0, "fy": 6.5, "cx": 3.5, "cy": 2.5, "scale": 6553.5}
    (root / "cam_params.json").write_text(json.dumps({"camera": camera}))
    rows = [world_from_camera(k).matrix().ravel() for k in range(3)]
    np.savetxt(root / "room0" / "traj.txt", rows, fmt="%.12e")
    return root / "room0"


def test_replica(tmp_path: Path) -> None:
    room = write_replica(tmp_path)
    frames = list(open_source(f"replica:{room}"))
    assert [int(frame.image[0, 0, 0]) for frame in frames] == pytest.approx([0, 60, 120], abs=2)
    for k, frame in enumerate(frames):
        assert_pose(frame, world_from_camera(k).inverse())
        assert frame.intrinsics is not None
        assert (frame.intrinsics.fx, frame.intrinsics.cy) == (6.0, 2.5)
        assert frame.depth_m is not None
        assert frame.depth_m[0, 2] == pytest.approx(2.0, abs=1e-4)
    (tmp_path / "cam_params.json").write_text("{}")
    with pytest.raises(Anchor3RError, match="describes no camera"):
        open_source(f"replica:{room}")


def test_eth3d(tmp_path: Path) -> None:
    folder = write_tum(tmp_path / "cables_1")
    (folder / "calibration.txt").write_text("7.2 7.3 3.9 2.9\n")
    frame = open_source(f"eth3d:{folder}").read(1)
    assert frame.intrinsics is not None
    assert (frame.intrinsics.fx, frame.intrinsics.cy) == (7.2, 2.9)
    assert frame.camera_from_world is not None
    (folder / "calibration.txt").write_text("7.2 -7.3 3.9 2.9\n")
    with pytest.raises(Anchor3RError, match="fx fy cx cy"):
        open_source(f"eth3d:{folder}")
