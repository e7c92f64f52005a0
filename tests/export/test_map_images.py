"""Images and cameras of a map: whose they are, and what happens where the source or the camera is gone."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from anchor3r.errors import Anchor3RError
from anchor3r.export.projects import open_images
from anchor3r.pipeline.mapping import map_source
from anchor3r.predictors.ground_truth import GroundTruthPredictor
from anchor3r.sources import StatedCamera, open_source
from anchor3r.sources.undistortion import undistorted
from anchor3r.store import Map, load_map
from anchor3r.store.camera import common_camera, estimated_camera
from anchor3r.store.database import META_CHECKSUM, meta_checksum
from toy_source import write_toy_sequence


@pytest.fixture
def copied(tmp_path: Path, street_folder: Path) -> Path:
    return Path(shutil.copytree(street_folder, tmp_path / "copy"))


def change(folder: Path, statement: str) -> None:
    database = sqlite3.connect(folder / "map.sqlite")
    with database:
        database.execute(statement)
        database.execute(
            "UPDATE meta SET value = ? WHERE key = ?", (str(meta_checksum(database)), META_CHECKSUM)
        )
    database.close()


def test_a_map_knows_its_frames_again(street: Map) -> None:
    with open_source(street.meta["identity"]["source"]) as source:
        assert street.shows(source.read(3))
    with open_source("world:6?width=64&height=48&motion=driving&frames=11") as other:
        assert not street.shows(other.read(3))


def test_images_are_those_of_the_source_while_it_is_there(street: Map, copied: Path) -> None:
    with open_source(street.meta["identity"]["source"]) as source:
        original = source.read(4).image
    with open_images(street, 0, prefer_source=True) as images:
        assert_array_equal(images.image(4), original)
    change(copied, """UPDATE meta SET value = replace(value, 'world:5', 'world:6') WHERE key = 'identity'""")
    with load_map(copied) as moved, open_images(moved, 0, prefer_source=True) as images:
        assert images.original is None
        assert_array_equal(images.image(4), moved.image(4))


def test_a_stated_lens_is_taken_out_of_the_images_in_full_size(tmp_path: Path) -> None:
    uri = write_toy_sequence(tmp_path / "seq", 3)
    coarse, size = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8), (1000, 750)
    for path in (tmp_path / "seq").glob("*.color.png"):
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path)
        path.with_name(path.name.replace("color", "depth")).unlink()
    lens = StatedCamera(intrinsics=(700, 700, 500, 375), distortion=(-0.3, 0.1))
    with open_source(uri, camera=lens) as source:
        straight = source.read(1).image
        map_source(source, tmp_path / "map", predictor=GroundTruthPredictor())
    with open_source(uri) as source:
        assert np.abs(source.read(1).image.astype(int) - straight).mean() > 10, "the lens bends"
    with load_map(tmp_path / "map") as made, open_images(made, 0, prefer_source=True) as images:
        assert made.image(1).shape == (480, 640, 3)
        assert_array_equal(images.image(1), straight)
        _, camera = images.save([1], tmp_path / "images")[1]
        assert (camera.fx, camera.width, camera.height) == (700, 1000, 750)


def test_the_lens_that_was_found_is_taken_out_of_exported_images(
    street: Map, copied: Path, tmp_path: Path
) -> None:
    known = street.intrinsics(0)
    assert known is not None
    found = asdict(known) | {"fx": 1.02 * known.fx, "k1": -0.2, "k2": 0.05, "focal_px": 1.02 * known.fx}
    change(copied, f"INSERT INTO meta VALUES ('camera', '{json.dumps(found)}')")
    with load_map(copied) as made, open_images(made, 0, prefer_source=False) as images:
        camera = common_camera(made)
        assert (camera.fx, camera.cx, camera.width) == (1.02 * known.fx, known.cx, known.width)
        name, saved = images.save([4], tmp_path / "images", camera)[4]
        expected = undistorted(made.image(4), saved, (-0.2, 0.05))
        written = np.asarray(Image.open(tmp_path / "images" / name)).astype(int)
        assert np.abs(written - expected).mean() < 3 < np.abs(written - made.image(4)).mean()


def test_without_images_and_source_there_is_nothing_to_write(copied: Path) -> None:
    change(copied, "DELETE FROM pictures")
    change(copied, """UPDATE meta SET value = replace(value, 'world:5', 'gone:5') WHERE key = 'identity'""")
    with (
        load_map(copied) as bare,
        pytest.raises(Anchor3RError, match="keeps no images and its source gone:5"),
        open_images(bare, 0, prefer_source=True),
    ):
        pass


def test_an_unknown_camera_is_estimated_from_the_point_maps(
    street: Map, copied: Path, tmp_path: Path
) -> None:
    known = street.intrinsics(0)
    assert known is not None
    change(copied, "UPDATE frames SET intrinsics = NULL, checksum = NULL")
    with load_map(copied) as made:
        assert made.intrinsics(0) is None
        found = estimated_camera(made, list(range(11)))
        assert_allclose([found.fx, found.fy], [known.fx, known.fy], rtol=0.01)
        with open_images(made, 0, prefer_source=False) as images:
            saved = images.save([0, 5], tmp_path / "images")
        assert_allclose(saved[5][1].matrix(), known.matrix(), rtol=0.02, atol=0.2)
    change(copied, "DELETE FROM points")
    with load_map(copied) as made, pytest.raises(Anchor3RError, match="knows no camera and has no points"):
        estimated_camera(made, [0])


def test_the_source_is_checked_frame_by_frame(copied: Path) -> None:
    change(copied, "UPDATE frames SET timestamp_s = 99, checksum = NULL WHERE frame = 4")
    with load_map(copied) as made, open_images(made, 0, prefer_source=True) as images:
        assert np.asarray(images.image(3)).shape == (48, 64, 3)
        with pytest.raises(Anchor3RError, match=r"frame 4 .* no longer .* use images map"):
            images.image(4)
