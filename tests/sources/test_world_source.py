"""Worlds as sources, and a world that was written to disk read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.sources import open_source
from anchor3r.worlds import make_world, sample_config, write_kitti

SMALL = "motion=handheld&kind=room&frames=6&width=32&height=24&horizontal_fov_deg=80"


def test_a_world_is_a_source_with_everything() -> None:
    source = open_source(f"world:3?{SMALL}")
    assert (source.num_frames, source.seekable) == (6, True)
    frames = list(source)
    world = make_world(
        sample_config(
            3, motion="handheld", kind="room", frames=6, width=32, height=24, horizontal_fov_deg=80.0
        )
    )
    for index, frame in enumerate(frames):
        rendered = world.render(index)
        assert frame.index == index
        assert frame.timestamp_s == world.timestamps_s[index]
        assert frame.intrinsics == Pinhole.from_fov(80, 32, 24)
        np.testing.assert_array_equal(frame.image, rendered.image)
        np.testing.assert_array_equal(frame.depth_m, rendered.depth_m)
        np.testing.assert_array_equal(
            frame.camera_from_world.matrix(), world.camera_from_world[index].matrix()
        )
    again = open_source(f"world:3?{SMALL}", start=4).read(2)
    np.testing.assert_array_equal(again.image, frames[2].image)


def test_a_world_is_as_long_as_is_asked_for() -> None:
    size = "kind=room&motion=handheld&width=16&height=12"
    length = open_source(f"world:3?{size}").num_frames
    assert open_source(f"world:3?{size}", stop=length + 7).num_frames == length + 7
    assert open_source(f"world:3?{size}", stop=5).num_frames == 5
    assert open_source(f"world:3?{size}&frames=4", stop=length + 7).num_frames == 4


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("", "cannot make world: .*write it as world:3"),
        ("three", "cannot make world:three .*write it as world:3"),
        ("-3", "world seed is -3"),
        ("3?frames", "cannot make"),
        ("3?frames=1.5", "cannot make .*1.5"),
        ("3?frames=0", "at least 1 frame"),
        ("3?motion=flying", "choose from"),
        ("3?motoin=driving", "there is no option motoin, only kind, motion, frames"),
        ("3?seed=4", "there is no option seed"),
    ],
)
def test_a_world_that_cannot_be_made_is_an_error(location: str, message: str) -> None:
    with pytest.raises(Anchor3RError, match=message):
        open_source(f"world:{location}")


def test_a_world_written_as_kitti_reads_back(tmp_path: Path) -> None:
    made = open_source(f"world:5?{SMALL}")
    world = make_world(
        sample_config(
            5, motion="handheld", kind="room", frames=6, width=32, height=24, horizontal_fov_deg=80.0
        )
    )
    write_kitti(world, tmp_path)
    read = open_source(f"kitti:{tmp_path}/05")
    assert read.num_frames == 6
    first = made.read(0)
    for frame, truth in zip(read, made, strict=True):
        np.testing.assert_array_equal(frame.image, truth.image)
        np.testing.assert_allclose(frame.depth_m, truth.depth_m, atol=1 / 512)
        np.testing.assert_allclose(frame.intrinsics.matrix(), truth.intrinsics.matrix(), rtol=1e-9)
        assert frame.timestamp_s == pytest.approx(truth.timestamp_s)
        from_first = truth.camera_from_world @ first.camera_from_world.inverse()
        np.testing.assert_allclose(frame.camera_from_world.matrix(), from_first.matrix(), atol=1e-7)
