"""Poses of other systems as maps: every format, gaps, depth, and what is then refined and scored."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anchor3r.cli.main import main
from anchor3r.geometry import SE3, quat_from_rotation, so3_exp
from anchor3r.io.trajectories import write_euroc, write_kitti, write_tum
from anchor3r.sources import open_source
from anchor3r.store import load_map
from anchor3r.trajectory import Trajectory

NUM_FRAMES = 12


def drive() -> SE3:
    """world_from_camera (NUM_FRAMES,)"""
    angle = 0.05 * np.arange(NUM_FRAMES)
    rotation = so3_exp(np.stack([0 * angle, angle, 0 * angle], -1))
    return SE3(rotation, np.stack([np.sin(angle), 0 * angle, 0.3 * np.arange(NUM_FRAMES)], -1))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for k in range(NUM_FRAMES):
        Image.fromarray(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)).save(folder / f"{k:03}.png")
    return folder


def trajectory(folder: Path) -> Trajectory:
    with open_source(str(folder)) as source:
        stamps = np.array([source.read(k).timestamp_s for k in range(NUM_FRAMES)])
    poses = drive()
    return Trajectory(
        frames=np.arange(NUM_FRAMES),
        rotation=poses.rotation.swapaxes(1, 2),
        center=poses.translation,
        timestamps_s=stamps,
    )


def write_colmap(folder: Path, *, binary: bool) -> Path:
    folder.mkdir()
    poses = drive().inverse()
    quat_wxyz = quat_from_rotation(poses.rotation)
    if binary:
        body = struct.pack("<Q", NUM_FRAMES)
        for k in range(NUM_FRAMES):
            body += struct.pack("<i7di", k + 1, *quat_wxyz[k], *poses.translation[k], 1)
            body += f"{k:03}.png".encode() + b"\0" + struct.pack("<Q", 1) + struct.pack("<2dq", 1.0, 2.0, -1)
        (folder / "images.bin").write_bytes(body)
        (folder / "cameras.bin").write_bytes(
            struct.pack("<Q", 1) + struct.pack("<iiQQ4d", 1, 1, 32, 24, 30.0, 30.0, 16.0, 12.0)
        )
        return folder
    lines = ["# comment"]
    for k in reversed(range(NUM_FRAMES)):
        numbers = " ".join(f"{value:.12g}" for value in [*quat_wxyz[k], *poses.translation[k]])
        lines += [f"{k + 1} {numbers} 1 {k:03}.png", "1.0 2.0 -1"]
    (folder / "images.txt").write_text("\n".join(lines) + "\n")
    (folder / "cameras.txt").write_text("1 PINHOLE 32 24 30 30 16 12\n")
    return folder


def write(kind: str, tmp_path: Path, images: Path) -> Path:
    path = tmp_path / f"poses.{kind}"
    found = trajectory(images)
    matrices = drive().matrix()
    if kind == "tum":
        write_tum(path, found)
    elif kind == "kitti":
        write_kitti(path, found)
    elif kind == "euroc":
        write_euroc(path, found)
    elif kind == "matrices":
        path.write_text("".join(" ".join(map(str, matrix.flatten())) + "\n" for matrix in matrices))
    elif kind == "longstream":
        w2c = drive().inverse()
        rows = [[k, *w2c.rotation[k].ravel(), *w2c.translation[k]] for k in range(NUM_FRAMES)]
        path.write_text("# w2c\n" + "".join(" ".join(map(str, row)) + "\n" for row in rows))
    elif kind == "npy":
        np.save(path, matrices)
    elif kind == "npz":
        np.savez(path, poses=matrices, intrinsics=np.eye(3))
    else:
        return write_colmap(tmp_path / "model", binary=kind == "colmap-binary")
    return path


def relative(scene_map_folder: Path, poses: str = "online") -> SE3:
    with load_map(scene_map_folder) as scene_map:
        found = scene_map.trajectory(poses).world_from_camera
    return found[0].inverse() @ found


@pytest.mark.parametrize(
    "kind",
    ["tum", "kitti", "euroc", "matrices", "longstream", "npy", "npz", "colmap-text", "colmap-binary"],
)
def test_every_format_gives_the_same_map(
    kind: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write(kind, tmp_path, images), tmp_path / "map"
    command = ["import", path, "--source", images, "--out", out, "--window", "4", "--json"]
    assert main(list(map(str, command))) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["frames"], summary["with_pose"], summary["components"]) == (NUM_FRAMES, NUM_FRAMES, 1)
    found, true = relative(out), drive()[0].inverse() @ drive()
    np.testing.assert_allclose(found.translation, true.translation, atol=1e-6)
    np.testing.assert_allclose(found.rotation, true.rotation, atol=1e-6)
    with load_map(out) as scene_map:
        edges = scene_map.graph().edges
        assert np.bincount(edges.frame_t).max() == 3
        assert scene_map.meta["identity"]["predictor"].startswith("poses of ")
        assert np.isfinite(edges.information).all()


def test_frames_without_a_pose_are_gaps(images: Path, tmp_path: Path) -> None:
    found = trajectory(images)
    write_tum(tmp_path / "some.tum", found.select(np.r_[0:5, 9:12]))
    out = tmp_path / "map"
    assert main(["import", str(tmp_path / "some.tum"), "--source", str(images), "--out", str(out)]) == 0
    with load_map(out) as scene_map:
        assert scene_map.trajectory().frames.tolist() == [0, 1, 2, 3, 4, 9, 10, 11]
        assert scene_map.counts().lost == 4


def test_numbered_poses_leave_gaps_too(images: Path, tmp_path: Path) -> None:
    """LongStream's table names its frames; they are counted from the first frame that is taken."""
    w2c = drive().inverse()
    rows = [[k, *w2c.rotation[k].ravel(), *w2c.translation[k]] for k in (0, 1, 3)]
    path, out = tmp_path / "abs_pose.txt", tmp_path / "map"
    path.write_text("# w2c\n" + "".join(" ".join(map(str, row)) + "\n" for row in rows))
    command = ["import", path, "--source", images, "--out", out, "--start", 2, "--stride", 2]
    assert main(list(map(str, command))) == 0
    with load_map(out) as scene_map:
        assert scene_map.trajectory().frames.tolist() == [2, 4, 8]


def test_what_does_not_fit_is_told(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = trajectory(images)
    assert found.timestamps_s is not None
    later = Trajectory(
        frames=found.frames,
        rotation=found.rotation,
        center=found.center,
        timestamps_s=found.timestamps_s + 1000,
    )
    write_tum(tmp_path / "later.tum", later)
    np.savez(tmp_path / "two.npz", a=drive().matrix(), b=drive().matrix())
    write_kitti(tmp_path / "poses.txt", found)
    for name, options, words in (
        ("later.tum", (), "no frame of .* has a pose in .*later.tum .of 1000.000 to"),
        ("two.npz", (), "should have one array"),
        ("poses.txt", ("--pairing", "time"), "has no times"),
        ("absent.txt", (), "absent.txt"),
    ):
        command = ["import", str(tmp_path / name), "--source", str(images), "--out", str(tmp_path / "m")]
        assert main([*command, "--overwrite", *options]) == 1
        assert re.search(words, capsys.readouterr().err.replace("\n", " ")), name
    command = ["import", str(tmp_path / "later.tum"), "--source", str(images), "--out", str(tmp_path / "m")]
    assert main([*command, "--overwrite", "--pairing", "order"]) == 0


def test_depth_becomes_points(images: Path, tmp_path: Path) -> None:
    depth = tmp_path / "depth"
    depth.mkdir()
    for k in range(NUM_FRAMES):
        np.save(depth / f"{k}.npy", np.full((24, 32), 2.0 + k, np.float32))
    write_tum(tmp_path / "poses.tum", trajectory(images))
    command = ["import", tmp_path / "poses.tum", "--source", images, "--out", tmp_path / "map"]
    options = ["--depth", depth, "--intrinsics", "30,30,16,12"]
    assert main(list(map(str, [*command, *options]))) == 0
    with load_map(tmp_path / "map") as scene_map:
        for k in (0, 10, 11):
            points = scene_map.points(k)
            assert points is not None
            np.testing.assert_allclose(points.points_in_camera[..., 2], 2.0 + k, rtol=2e-3)
