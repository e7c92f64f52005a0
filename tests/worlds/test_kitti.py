"""A world written in the KITTI layout reads back as it was rendered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3
from anchor3r.worlds import make_world, sample_config, write_kitti
from anchor3r.worlds.kitti import DEPTH_FACTOR


def test_round_trip(tmp_path: Path) -> None:
    world = make_world(sample_config(7, frames=3, width=48, height=32))
    told: list[tuple[int, int]] = []
    folder = write_kitti(world, tmp_path, progress=lambda done, total: told.append((done, total)))
    assert folder == tmp_path / "sequences" / "07"
    assert told == [(1, 3), (2, 3), (3, 3)]
    for index in range(3):
        rendered = world.render(index)
        image = np.asarray(Image.open(folder / "image_2" / f"{index:06d}.png"))
        assert np.array_equal(image, rendered.image)
        depth_m = np.asarray(Image.open(folder / "depth" / f"{index:06d}.png")).astype(float) / DEPTH_FACTOR
        near = rendered.depth_m < 255
        assert np.abs(depth_m - rendered.depth_m)[near].max() <= 0.5 / DEPTH_FACTOR + 1e-6
        assert np.array_equal(depth_m > 0, rendered.depth_m > 0)
    rows = dict(line.split(": ") for line in (folder / "calib.txt").read_text().splitlines())
    assert list(rows) == ["P0", "P1", "P2", "P3"]
    projection = np.array(rows["P2"].split(), float).reshape(3, 4)
    assert np.allclose(projection[:, :3], world.intrinsics.matrix())
    assert np.allclose(np.loadtxt(folder / "times.txt"), world.timestamps_s)
    lines = np.loadtxt(tmp_path / "poses" / "07.txt").reshape(3, 3, 4)
    expected = world.camera_from_world[0] @ world.camera_from_world.inverse()
    assert np.allclose(lines[0], np.eye(4)[:3], atol=1e-8)
    assert np.allclose(SE3.from_matrix(lines).matrix(), expected.matrix(), atol=1e-7)


def test_a_rerun_replaces_the_old_sequence(tmp_path: Path) -> None:
    options = {"width": 24, "height": 16, "kind": "room", "motion": "handheld"}
    write_kitti(make_world(sample_config(1, frames=4, **options)), tmp_path, sequence="demo")
    world = make_world(sample_config(2, frames=2, **options))
    folder = write_kitti(world, tmp_path, sequence="demo")
    assert sorted(p.name for p in (folder / "image_2").iterdir()) == ["000000.png", "000001.png"]
    assert np.array_equal(np.asarray(Image.open(folder / "image_2" / "000001.png")), world.render(1).image)
    assert [p.name for p in (tmp_path / "sequences").iterdir()] == ["demo"]


def test_an_unwritable_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "sequences").write_text("in the way")
    world = make_world(sample_config(1, frames=1, width=16, height=12))
    with pytest.raises(Anchor3RError, match="choose another place"):
        write_kitti(world, tmp_path)


def test_a_sequence_that_is_no_world_is_left_alone(tmp_path: Path) -> None:
    """The folder may be that of the real data set."""
    world = make_world(sample_config(1, frames=1, width=16, height=12))
    (tmp_path / "poses").mkdir()
    poses = tmp_path / "poses/01.txt"
    poses.write_text("measured")
    with pytest.raises(Anchor3RError, match="no world"):
        write_kitti(world, tmp_path)
    assert poses.read_text() == "measured"
    poses.unlink()
    images = tmp_path / "sequences/01/image_2"
    images.mkdir(parents=True)
    (images / "000000.png").write_text("taken")
    with pytest.raises(Anchor3RError, match="not empty"):
        write_kitti(world, tmp_path)
    assert (images / "000000.png").read_text() == "taken"
