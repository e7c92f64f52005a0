"""Trajectory files: what evo and our own readers make of what we write, and what is said of bad files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from evo.core.trajectory import PosePath3D
from evo.tools import file_interface
from numpy.testing import assert_allclose, assert_array_equal

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import quat_from_rotation, so3_exp
from anchor3r.io.trajectories import (
    Gaps,
    read_kitti,
    read_longstream,
    read_matrices,
    read_trajectory,
    read_tum,
    write_kitti,
    write_tum,
)
from anchor3r.trajectory import Trajectory


def some_trajectory(frames: list[int]) -> Trajectory:
    rng = np.random.default_rng(1)
    n = len(frames)
    return Trajectory(
        frames=np.array(frames),
        rotation=so3_exp(rng.normal(size=(n, 3)) * 2),
        center=rng.normal(size=(n, 3)) * 1000,
        timestamps_s=1.7e9 + np.array(frames) / 30,
    )


def assert_same_poses(found: PosePath3D, expected: Trajectory) -> None:
    assert_allclose(found.poses_se3, expected.world_from_camera.matrix(), atol=1e-8)


def test_evo_loads_tum_files(tmp_path: Path) -> None:
    trajectory = some_trajectory([0, 1, 5, 6])
    write_tum(tmp_path / "t.txt", trajectory, comment="a comment")
    loaded = file_interface.read_tum_trajectory_file(tmp_path / "t.txt")
    assert_same_poses(loaded, trajectory)
    assert_allclose(loaded.timestamps, trajectory.timestamps_s, atol=1e-6, rtol=0)


def test_evo_loads_kitti_files(tmp_path: Path) -> None:
    trajectory = some_trajectory([0, 1, 2])
    write_kitti(tmp_path / "t.txt", trajectory)
    assert_same_poses(file_interface.read_kitti_poses_file(tmp_path / "t.txt"), trajectory)


def test_both_formats_come_back(tmp_path: Path) -> None:
    trajectory = some_trajectory(list(range(20)))
    write_tum(tmp_path / "t.txt", trajectory)
    write_kitti(tmp_path / "k.txt", trajectory)
    for loaded in (read_tum(tmp_path / "t.txt"), read_kitti(tmp_path / "k.txt")):
        assert_allclose(loaded.rotation, trajectory.rotation, atol=1e-11)
        assert_allclose(loaded.center, trajectory.center, atol=1e-8)
    assert_allclose(read_tum(tmp_path / "t.txt").timestamps_s, trajectory.timestamps_s, rtol=1e-15)


def test_a_real_kitti_file_is_read_as_evo_reads_it(shared: Path) -> None:
    path = shared / "real" / "kitti" / "poses" / "03.txt"
    assert_same_poses(file_interface.read_kitti_poses_file(path), read_kitti(path))


def as_others_write(system: str, trajectory: Trajectory) -> str:
    """A file as the code of another system writes it, number by number."""
    pose, lines = trajectory.world_from_camera, []
    assert trajectory.timestamps_s is not None
    for k, time in enumerate(trajectory.timestamps_s):
        x, y, z = pose.translation[k].tolist()
        qw, qx, qy, qz = quat_from_rotation(pose.rotation[k]).tolist()
        if system == "ORB-SLAM3, TUM":
            lines.append(f"{time:.6f} {x:.7f} {y:.7f} {z:.7f} {qx:.7f} {qy:.7f} {qz:.7f} {qw:.7f}")
        elif system == "ORB-SLAM3, EuRoC":
            lines.append(f"{1e9 * time:.6f} {x:.9f} {y:.9f} {z:.9f} {qx:.9f} {qy:.9f} {qz:.9f} {qw:.9f}")
        elif system == "ORB-SLAM3, KITTI":
            matrix = np.concatenate([pose.rotation[k], pose.translation[k][:, None]], 1)
            lines.append(" ".join(f"{value:.9f}" for value in matrix.ravel()))
        elif system == "MASt3R-SLAM":
            lines.append(f"{time} {x} {y} {z} {qx} {qy} {qz} {qw}")
        elif system == "DA3-Streaming":
            lines.append(" ".join(str(value) for value in pose.matrix()[k].astype(np.float32).flatten()))
        else:
            w2c = pose[k].inverse()
            values = [int(trajectory.frames[k]), *w2c.rotation.reshape(-1), *w2c.translation]
            lines.append(" ".join(str(value) for value in values))
    return "\n".join(["# w2c", *lines] if system == "LongStream" else lines) + "\n"


@pytest.mark.parametrize(
    "system",
    [
        "ORB-SLAM3, TUM", "ORB-SLAM3, EuRoC", "ORB-SLAM3, KITTI",
        "MASt3R-SLAM", "DA3-Streaming", "LongStream",
    ],
)  # fmt: skip
def test_files_of_other_systems_are_known_by_themselves(system: str, tmp_path: Path) -> None:
    trajectory = some_trajectory([0, 1, 5, 6])
    path = tmp_path / "t.txt"
    path.write_text(as_others_write(system, trajectory))
    loaded = read_trajectory(path)
    assert_allclose(loaded.rotation, trajectory.rotation, atol=1e-6)
    assert_allclose(loaded.center, trajectory.center, rtol=1e-6, atol=1e-5)
    if loaded.timestamps_s is not None:
        assert_allclose(loaded.timestamps_s, trajectory.timestamps_s, rtol=0, atol=1e-5)
    assert (loaded.timestamps_s is None) == (system.split()[-1] in ("KITTI", "DA3-Streaming", "LongStream"))
    assert_array_equal(loaded.frames, [0, 1, 5, 6] if system == "LongStream" else range(4))


def test_bad_matrices_name_the_line(tmp_path: Path) -> None:
    path, unit = tmp_path / "bad.txt", "1 0 0 0 0 1 0 0 0 0 1 0 "
    for bad in ("0 0 1 1\n", "0 0 0 2\n"):
        path.write_text(f"{unit}0 0 0 1\n{unit}{bad}")
        with pytest.raises(Anchor3RError, match="line 2: the last row"):
            read_matrices(path)
    line = " 1 0 0 0 1 0 0 0 1 0 0 0\n"
    for bad in ("3", "2", "-1", "4.5"):
        path.write_text(f"3{line}{bad}{line}")
        with pytest.raises(Anchor3RError, match="line 2: frames are not numbered"):
            read_longstream(path)


def test_kitti_gaps_are_refused_or_held(tmp_path: Path) -> None:
    trajectory = some_trajectory([2, 3, 6])
    with pytest.raises(
        Anchor3RError, match=r"4 of 7 frames have no pose \(the first is frame 0\).*gaps hold"
    ):
        write_kitti(tmp_path / "t.txt", trajectory, frames=range(7))
    assert not list(tmp_path.iterdir())
    write_kitti(tmp_path / "t.txt", trajectory, frames=range(8), gaps=Gaps.HOLD)
    held = read_kitti(tmp_path / "t.txt")
    assert_allclose(held.center, trajectory.center[[0, 0, 0, 1, 1, 1, 2, 2]], atol=1e-8)
    nothing = trajectory.select(slice(0))
    with pytest.raises(Anchor3RError, match="2 of 2 frames have no pose"):
        write_kitti(tmp_path / "n.txt", nothing, frames=range(2), gaps=Gaps.HOLD)


def test_tum_needs_times(tmp_path: Path) -> None:
    write_kitti(tmp_path / "k.txt", some_trajectory([0, 1]))
    with pytest.raises(Anchor3RError, match="needs times"):
        write_tum(tmp_path / "t.txt", read_kitti(tmp_path / "k.txt"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no poses"),
        ("# only a comment\n", "holds no poses"),
        ("0 0 0 0 0 0 0 1\n\n1 0 0 0 0 0 0\n", r"line 3: expected timestamp tx.*found '1 0 0"),
        ("# c\n0 0 0 x 0 0 0 1\n", "line 2"),
        ("0 0 0 nan 0 0 0 1\n", "line 1"),
        ("0 0 0 0 0 0 0 1\n1 0 0 0 0 0 0 0\n", "line 2: the quaternion is not of unit length"),
    ],
)
def test_bad_tum_files_name_the_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(Anchor3RError, match=words) as error:
        read_tum(path)
    assert str(path) in str(error.value)


def test_bad_kitti_files_name_the_line(tmp_path: Path) -> None:
    good, path = "1 0 0 0 0 1 0 0 0 0 1 0\n", tmp_path / "bad.txt"
    for bad in ("1 0 0 0 0 1 0 0 0 0 2 0\n", "1 0 0 0 0 1 0 0 0 0 -1 0\n", "1 2 3\n"):
        path.write_text(good + bad + good)
        with pytest.raises(Anchor3RError, match="line 2"):
            read_kitti(path)


def test_files_that_are_no_text_or_not_there(tmp_path: Path) -> None:
    tmp_path.joinpath("b").write_bytes(bytes(range(128, 256)))
    with pytest.raises(Anchor3RError, match="not a text file"):
        read_tum(tmp_path / "b")
    with pytest.raises(Anchor3RError, match=r"cannot read.*check the path"):
        read_kitti(tmp_path / "nowhere")
    with pytest.raises(Anchor3RError, match="cannot write"):
        write_tum(tmp_path / "b" / "t.txt", some_trajectory([0]))


def test_select_keeps_the_columns_that_are_there() -> None:
    trajectory = some_trajectory([0, 1, 2])
    part = trajectory.select(trajectory.frames > 0)
    assert_array_equal(part.frames, [1, 2])
    assert part.component is None
    assert_array_equal(part.pose(1).center, trajectory.center[2])
    with pytest.raises(ValueError, match="center has 2 entries for 3 frames"):
        Trajectory(frames=trajectory.frames, rotation=trajectory.rotation, center=part.center)
