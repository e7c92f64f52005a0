"""Measured depths in the store: what comes back, what is replaced, and maps of before there were any."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from anchor3r.dense.keyframe_depth import DepthOrigin, KeyframeDepth
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import Pinhole
from anchor3r.store import MapWriter, load_map

CAMERA = Pinhole.from_fov(70, 40, 30)


def some_depth(frame: int) -> KeyframeDepth:
    rng = np.random.default_rng(frame)
    shape = (CAMERA.height, CAMERA.width)
    depth = rng.uniform(0.5, 80, shape).astype(np.float32)
    depth[:5] = np.nan
    normals = rng.normal(size=(*shape, 3))
    normals = (normals / np.linalg.norm(normals, axis=-1, keepdims=True)).astype(np.float32)
    normals[:5] = np.nan
    return KeyframeDepth(
        frame=frame,
        camera=CAMERA,
        depth=depth,
        confidence=np.where(np.isnan(depth), 0, rng.uniform(0, 1, shape)).astype(np.float32),
        normals_in_camera=normals,
        origin=np.where(np.isnan(depth), DepthOrigin.NONE, DepthOrigin.MEASURED).astype(np.uint8),
        colours=np.full((*shape, 3), (90, 120, 60), np.uint8),
    )


def test_depths_come_back_as_precise_as_they_are_kept(tmp_path: Path) -> None:
    with MapWriter.create(tmp_path / "map") as writer:
        assert writer.begin_depths("online", {"size": 40}) == set()
        for frame in (9, 3):
            writer.write_keyframe_depth(some_depth(frame))
    with load_map(tmp_path / "map") as scene_map:
        found = list(scene_map.keyframe_depths())
        assert [view.frame for view in found] == [3, 9] == scene_map.keyframe_depth_frames().tolist()
        assert [view.frame for view in scene_map.keyframe_depths([9, 77])] == [9]
        with pytest.raises(Anchor3RError, match="no measured depth of frame 4"):
            scene_map.keyframe_depth(4)
    for view in found:
        kept = some_depth(view.frame)
        assert view.camera == CAMERA
        np.testing.assert_allclose(view.depth, kept.depth, rtol=1e-3)
        np.testing.assert_allclose(view.confidence, kept.confidence, atol=0.002)
        np.testing.assert_array_equal(view.origin, kept.origin)
        np.testing.assert_array_equal(np.isnan(view.normals_in_camera), np.isnan(kept.normals_in_camera))
        cosine = np.nansum(view.normals_in_camera * kept.normals_in_camera, -1)[5:]
        assert np.degrees(np.arccos(np.clip(cosine, -1, 1))).max() < 1.5
        np.testing.assert_allclose(view.colours, kept.colours, atol=3)


def test_the_same_measurement_goes_on_and_another_one_replaces_it(tmp_path: Path) -> None:
    with MapWriter.create(tmp_path / "map") as writer:
        writer.begin_depths("online", {"poses": 1})
        writer.write_keyframe_depth(some_depth(3))
    with MapWriter.open(tmp_path / "map") as writer:
        assert writer.begin_depths("online", {"poses": 1}) == {3}
        writer.finish_depths({"measured": 0.5})
    with load_map(tmp_path / "map") as scene_map:
        densification = scene_map.densification()
        assert densification is not None
        assert densification.complete
        assert densification.summary == {"measured": 0.5}
    with MapWriter.open(tmp_path / "map") as writer:
        assert writer.begin_depths("online", {"poses": 2}) == set()
    with load_map(tmp_path / "map") as scene_map:
        assert not len(scene_map.keyframe_depth_frames())
        densification = scene_map.densification()
        assert densification is not None
        assert not densification.complete


def test_a_map_of_before_there_were_depths_is_read_and_can_get_some(tmp_path: Path) -> None:
    MapWriter.create(tmp_path / "map").close()
    with sqlite3.connect(tmp_path / "map" / "map.sqlite") as database:
        database.execute("DROP TABLE keyframe_depths")
    with load_map(tmp_path / "map") as scene_map:
        assert scene_map.densification() is None
        assert not len(scene_map.keyframe_depth_frames())
        assert list(scene_map.keyframe_depths()) == []
        with MapWriter.open(tmp_path / "map") as writer:
            writer.begin_depths("online", {})
            writer.write_keyframe_depth(some_depth(1))
        # Who had it open sees them.
        assert scene_map.keyframe_depth_frames().tolist() == [1]
