"""Point clouds: PLY as trimesh reads it, and a voxel grid that is exact however little memory it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trimesh
from numpy.testing import assert_allclose, assert_array_equal

from anchor3r.errors import Anchor3RError
from anchor3r.export.selection import map_clouds
from anchor3r.io.pointcloud import Cloud, random_subset, voxel_downsampled, write_ply
from anchor3r.pipeline.mapper import Mapper
from anchor3r.predictors.ground_truth import GroundTruthPredictor
from anchor3r.store import MapWriter, load_map
from toy_source import CAMERA, ToySource, toy_pose


def some_clouds(count: int = 7, size: int = 500, spread: float = 3.0) -> list[Cloud]:
    rng = np.random.default_rng(2)
    return [
        Cloud(
            rng.normal(size=(size, 3)).astype(np.float32) * np.float32(spread),
            rng.integers(0, 256, (size, 3), np.uint8),
            rng.random(size).astype(np.float32),
        )
        for _ in range(count)
    ]


def joined(clouds: Iterator[Cloud] | list[Cloud]) -> Cloud:
    columns = zip(*((c.points, c.colours, c.confidence) for c in clouds), strict=True)
    return Cloud(*map(np.concatenate, columns))


def dense_reference(cloud: Cloud, size: float) -> dict[tuple[int, ...], tuple[np.ndarray, np.ndarray, float]]:
    """Voxel -> mean point, colour and confidence, the slow and plain way."""
    cells = np.floor(cloud.points.astype(np.float64) / size).astype(int)
    out = {}
    for cell in np.unique(cells, axis=0):
        at = (cells == cell).all(1)
        out[tuple(cell.tolist())] = (
            cloud.points[at].mean(0),
            cloud.colours[at].mean(0),
            cloud.confidence[at].mean(),
        )
    return out


def test_trimesh_reads_what_we_write(tmp_path: Path) -> None:
    clouds = some_clouds()
    assert write_ply(tmp_path / "c.ply", iter(clouds), comment="where it is from") == 3500
    loaded = trimesh.load(tmp_path / "c.ply")
    expected = joined(clouds)
    assert_array_equal(loaded.vertices.astype(np.float32), expected.points)
    assert_array_equal(loaded.colors[:, :3], expected.colours)
    raw = loaded.metadata["_ply_raw"]["vertex"]["data"]
    assert_array_equal(raw["confidence"], expected.confidence)
    assert b"comment where it is from" in tmp_path.joinpath("c.ply").read_bytes()


@pytest.mark.parametrize("max_voxels", [64, 1000, 10_000_000])
def test_every_voxel_is_the_mean_of_all_its_points(tmp_path: Path, max_voxels: int) -> None:
    clouds = some_clouds()
    found = joined(voxel_downsampled(iter(clouds), 0.8, max_voxels=max_voxels, scratch=tmp_path))
    reference = dense_reference(joined(clouds), 0.8)
    cells = np.floor(found.points / 0.8).astype(int)
    assert len(found) == len(reference) == len(np.unique(cells, axis=0))
    for k, cell in enumerate(cells.tolist()):
        point, colour, confidence = reference[tuple(cell)]
        assert_allclose(found.points[k], point, atol=1e-5)
        assert_allclose(found.colours[k], colour, atol=0.51)
        assert_allclose(found.confidence[k], confidence, atol=1e-5)
    assert not list(tmp_path.iterdir())


def test_no_more_than_the_limit_is_yielded_at_once() -> None:
    batches = list(voxel_downsampled(iter(some_clouds(20, 2000, 50.0)), 0.5, max_voxels=1000))
    assert sum(map(len, batches)) > 20_000
    assert max(map(len, batches)) <= 1100


def test_the_order_of_the_points_hardly_matters() -> None:
    clouds = some_clouds()
    forth = joined(voxel_downsampled(iter(clouds), 1.0))
    back = joined(voxel_downsampled(reversed(clouds), 1.0, max_voxels=500))
    assert_allclose(forth.points, back.points, atol=1e-5)


def test_the_lot_draws_evenly_and_keeps_the_order() -> None:
    """Of clouds that are numbered by their confidence, each keeps about its share."""
    clouds = [
        replace(cloud, confidence=np.full(500, k, np.float32)) for k, cloud in enumerate(some_clouds(20))
    ]
    drawn = random_subset(iter(clouds), 1000, seed=1)
    assert len(drawn) == 1000
    assert (np.diff(drawn.confidence) >= 0).all()
    shares = np.bincount(drawn.confidence.astype(int), minlength=20)
    assert shares.min() > 25
    assert shares.max() < 80
    assert_array_equal(drawn.points, random_subset(iter(clouds), 1000, seed=1).points)
    assert len(random_subset(iter(clouds), 20_000)) == 10_000
    assert len(random_subset([], 10)) == 0


def test_a_grid_that_cannot_hold_the_map_says_so() -> None:
    far = Cloud(np.full((1, 3), 3e6, np.float32), np.zeros((1, 3), np.uint8), np.ones(1, np.float32))
    with pytest.raises(Anchor3RError, match=r"too small.*larger voxel"):
        list(voxel_downsampled([far], 1.0))
    with pytest.raises(Anchor3RError, match="positive"):
        list(voxel_downsampled([far], 0.0))


def test_points_all_filtered_away_leave_no_file(tmp_path: Path) -> None:
    path = tmp_path / "c.ply"
    path.write_text("what was there before")
    for clouds in ([], [c.__class__(c.points[:0], c.colours[:0], c.confidence[:0]) for c in some_clouds(2)]):
        with pytest.raises(Anchor3RError, match="no points to write"):
            write_ply(path, clouds)
    assert path.read_text() == "what was there before"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_what_was_there(tmp_path: Path) -> None:
    def interrupted() -> Iterator[Cloud]:
        yield some_clouds(1)[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_ply(tmp_path / "c.ply", interrupted())
    assert not list(tmp_path.iterdir())


def test_a_maps_cloud_lies_where_its_poses_put_it(tmp_path: Path) -> None:
    with MapWriter.create(tmp_path / "m") as store:
        for _ in Mapper(GroundTruthPredictor(), store).run(ToySource(4)):
            pass
    with load_map(tmp_path / "m") as made:
        clouds = list(map_clouds(made))
        assert len(list(map_clouds(made, frames=[2]))) == 1
        assert all(len(cloud) == 0 for cloud in map_clouds(made, min_confidence=1.5))
    points = CAMERA.unproject_map(ToySource(4).read(3).depth_m).reshape(-1, 3)
    expected = (toy_pose(0) @ toy_pose(3).inverse()).apply(points)
    assert_allclose(clouds[3].points, expected, atol=0.02)
