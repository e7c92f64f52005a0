"""`anchor3r localise` and `Map.localise`: images of a world placed in a map of other frames of it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from anchor3r import load_map, map_source, open_source
from anchor3r.cli.main import main
from anchor3r.errors import Anchor3RError
from anchor3r.io.trajectories import read_tum
from anchor3r.pipeline.localise import keep_places, localise_images
from anchor3r.pipeline.settings import MapSettings
from anchor3r.store.database import DATABASE

WORLD = "world:7?kind=room&width=320&height=240&frames=60"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("localise") / "map"
    with open_source(WORLD, stride=2) as source:
        map_source(source, out, MapSettings(predictor="ground-truth:0,0"))
    return out


def test_images_between_those_of_a_map_are_placed(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "poses.tum"
    assert main(["localise", str(folder), WORLD, "--start", "1", "--stride", "6", "--out", str(out)]) == 0
    poses = read_tum(out)
    with open_source(WORLD, start=1, stride=6) as source:
        frames = list(source.frames())
    with load_map(folder) as scene_map:
        assert len(scene_map.place_frames()) == 6
        first = scene_map.true_trajectory().pose(0).camera_from_world  # type: ignore[union-attr]
        online = scene_map.trajectory().pose(0).camera_from_world
    table = out.with_suffix(".csv").read_text().splitlines()
    assert len(table) == len(frames) + 1
    assert table[0].startswith("frame,")
    assert len(poses) >= 0.8 * len(frames)
    assert len(out.with_suffix(".covariance.csv").read_text().splitlines()) == len(poses) + 1
    true = {frame.timestamp_s: frame.camera_from_world for frame in frames}
    assert poses.timestamps_s is not None
    for k, time in enumerate(poses.timestamps_s.tolist()):
        nearest = min(true, key=lambda t: abs(t - time))
        in_map = true[nearest] @ first.inverse() @ online  # type: ignore[operator]
        assert np.linalg.norm(in_map.center() - poses.center[k]) < 0.1


def test_python_gives_the_same_pose_and_refuses_another_world(folder: Path) -> None:
    with open_source(WORLD, start=13, stop=14) as source:
        image = next(iter(source.frames())).image
    with open_source(WORLD.replace("world:7", "world:8"), stop=1) as source:
        other = next(iter(source.frames())).image
    with load_map(folder) as scene_map:
        found, again = scene_map.localise(image), scene_map.localise(image)
        assert found.camera_from_world is not None
        assert again.camera_from_world is not None
        np.testing.assert_array_equal(found.camera_from_world.center(), again.camera_from_world.center())
        assert not scene_map.localise(other).found
        with pytest.raises(Anchor3RError, match="what camera"):
            scene_map.localise(image[:120])


def test_features_are_computed_once_and_checked(folder: Path, tmp_path: Path) -> None:
    keep_places(folder)
    assert keep_places(folder) == 0
    with load_map(folder) as scene_map:
        frame = int(scene_map.place_frames()[1])
        kept = scene_map.place(frame)
        assert kept.frame == frame
        assert len(kept.features) == len(kept.word) == len(kept.depth) > 50
        with pytest.raises(Anchor3RError, match="no features of frame 1"):
            scene_map.place(1)
    database = sqlite3.connect(folder / DATABASE)
    database.execute("UPDATE place_features SET width = width + 1 WHERE frame = ?", (frame,))
    database.commit()
    with load_map(folder) as scene_map, pytest.raises(Anchor3RError, match="damaged"):
        scene_map.place(frame)
    database.execute("UPDATE place_features SET width = width - 1 WHERE frame = ?", (frame,))
    database.commit()
    database.close()


def test_images_of_another_shape_need_a_camera(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    from PIL import Image

    Image.fromarray(np.zeros((100, 300, 3), np.uint8)).save(tmp_path / "images" / "0.png")
    with (
        open_source(str(tmp_path / "images")) as source,
        pytest.raises(Anchor3RError, match="camera of its own"),
    ):
        localise_images(folder, source, tmp_path / "poses.tum")
    assert not (tmp_path / "poses.tum").exists()
