"""Levels of detail: what a level shows, how much is held and read, and that points follow their poses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from street import bent, record_street, write_street

from anchor3r.store import MapWriter, PointMap, load_map
from anchor3r.trajectory import Trajectory
from anchor3r.viewer.contents import MapContents
from anchor3r.viewer.levels import (
    CACHE,
    LevelPoints,
    Levels,
    LevelsConfig,
    load_levels,
    save_levels,
    to_world,
)


def line(num_poses: int) -> Trajectory:
    """Cameras that move along x."""
    return Trajectory(
        frames=np.arange(num_poses) * 3,
        rotation=np.broadcast_to(np.eye(3), (num_poses, 3, 3)),
        center=np.arange(num_poses)[:, None] * np.array([1.0, 0, 0]),
        log_scale=np.zeros(num_poses),
    )


def cloud(frame: int) -> PointMap:
    """As many points as a small depth map has, in front of the camera."""
    rng = np.random.default_rng(frame)
    points = rng.uniform(-1, 1, (20, 20, 3)) + np.array([0.0, 0, 5])
    return PointMap(
        points.astype(np.float32),
        rng.integers(0, 256, (20, 20, 3), np.uint8),
        rng.uniform(1, 9, (20, 20)).astype(np.float32),
    )


def built(num_poses: int, **config: int) -> Levels:
    levels, poses = Levels(LevelsConfig(**config)), line(num_poses)
    while pending := levels.pending(poses):
        levels.build(pending[0], poses, cloud)
    return levels


def cells(
    points: LevelPoints, poses: Trajectory, size: float, origin: NDArray[np.float32]
) -> NDArray[np.int64]:
    return np.floor((to_world(points, poses) - origin) / size).astype(np.int64)


def test_a_level_has_the_surest_point_of_every_voxel() -> None:
    poses = line(8)
    levels = built(8)
    assert levels.voxel is not None
    points = levels.segments[0].points
    everything = LevelPoints.concatenated(
        [
            LevelPoints(
                frame=np.full(400, frame, np.int32),
                in_camera=cloud(frame).points_in_camera.reshape(-1, 3),
                colours=cloud(frame).colours.reshape(-1, 3),
                confidence=cloud(frame).confidence.ravel(),
                level=np.zeros(400, np.uint8),
            )
            for frame in poses.frames.tolist()
        ]
    )
    origin = np.median(to_world(everything, poses), 0)
    for level in (3, 6):
        size = levels.voxel * 2**level
        shown = points.select(points.level >= level)
        drawn = cells(shown, poses, size, origin)
        assert len(np.unique(drawn, axis=0)) == len(drawn), "one point a voxel"
        assert_array_equal(
            np.unique(drawn, axis=0), np.unique(cells(everything, poses, size, origin), axis=0)
        )
    surest = everything.confidence.max()
    assert points.confidence[points.level == points.level.max()].max() == surest


@pytest.mark.parametrize("budget", [100, 1000, 5000])
def test_a_cut_keeps_to_the_budget_and_uses_it(budget: int) -> None:
    levels = built(100, segment_poses=16)
    cut = levels.cut(4.0, budget)
    parts = [segment.points for segment in levels.segments.values()]
    drawn = sum(int((cut.mask(p) & (p.confidence >= 4.0)).sum()) for p in parts)
    assert 0.75 * budget < drawn <= 1.03 * budget


def test_memory_is_bounded_by_larger_voxels() -> None:
    fine, coarse = built(60, segment_poses=16), built(60, segment_poses=16, capacity=2000)
    assert len(fine) > 10_000
    assert len(coarse) <= 2000
    assert fine.voxel is not None
    assert coarse.voxel is not None
    assert coarse.voxel > fine.voxel


def test_a_long_map_is_looked_at_roughly_first() -> None:
    read: list[int] = []

    def reading(frame: int) -> PointMap:
        read.append(frame)
        return cloud(frame)

    levels, poses = Levels(LevelsConfig(segment_poses=16, first_look_frames=20)), line(160)
    for k in levels.pending(poses):
        levels.build(k, poses, reading)
    assert len(levels.segments) == 10
    assert len(read) == 20
    rough = len(levels)
    assert levels.pending(poses) == list(range(10)), "each once more, thoroughly"
    for k in levels.pending(poses):
        levels.build(k, poses, reading)
    assert len(read) == 20 + 160
    assert len(levels) > 3 * rough
    assert not levels.pending(poses)


def test_only_what_has_changed_is_built_again() -> None:
    levels = built(40, segment_poses=16)
    assert levels.pending(line(44)) == [2], "the last one grew"
    moved = line(40)
    center = moved.center.copy()
    center[20] += 1
    assert levels.pending(replace(moved, center=center)) == [1]
    assert levels.pending(line(20)) == [1], "a shorter map has fewer"
    assert set(levels.segments) == {0, 1}


def test_points_follow_poses_as_the_store_says(tmp_path: Path) -> None:
    write_street(tmp_path / "map", 6, refined=True)
    with load_map(tmp_path / "map") as made:
        poses = replace(bent(made.trajectory()), log_scale=np.linspace(-0.5, 0.5, 6))
        for k in (0, 5):
            grid = made.points(k)
            assert grid is not None
            local = grid.points_in_camera.reshape(-1, 3)
            points = LevelPoints(
                frame=np.full(len(local), k, np.int32),
                in_camera=local,
                colours=grid.colours.reshape(-1, 3),
                confidence=grid.confidence.ravel(),
                level=np.zeros(len(local), np.uint8),
            )
            assert_allclose(to_world(points, poses), poses.pose(k).to_world(local), atol=1e-5)


def test_a_cache_gives_the_same_levels(tmp_path: Path) -> None:
    levels, again = built(40, segment_poses=16), Levels(LevelsConfig(segment_poses=16))
    save_levels(levels, tmp_path, {"source": "a"})
    assert load_levels(again, tmp_path, {"source": "a"})
    assert again.voxel == levels.voxel
    assert not again.pending(line(40))
    for k, segment in levels.segments.items():
        for name, column in vars(segment.points).items():
            assert_array_equal(getattr(again.segments[k].points, name), column)


def test_a_cache_of_another_map_or_a_damaged_one_is_not_used(tmp_path: Path) -> None:
    levels = built(40, segment_poses=16)
    save_levels(levels, tmp_path, {"source": "a"})
    assert not load_levels(Levels(levels.config), tmp_path, {"source": "b"})
    assert not load_levels(Levels(LevelsConfig(segment_poses=8)), tmp_path, {"source": "a"})
    (tmp_path / CACHE).write_bytes((tmp_path / CACHE).read_bytes()[:1000])
    assert not load_levels(Levels(levels.config), tmp_path, {"source": "a"})
    (tmp_path / CACHE).unlink()
    assert not load_levels(Levels(levels.config), tmp_path, {"source": "a"})


def test_contents_read_only_what_is_new(tmp_path: Path) -> None:
    folder, config = tmp_path / "map", LevelsConfig(segment_poses=8)
    write_street(folder, 20)
    with MapContents(folder, config) as contents:
        assert contents.refresh()
        assert not contents.refresh(), "nothing new"
        contents.build()
        assert (folder / CACHE).is_file()
        with MapWriter.open(folder) as store:
            record_street(store, range(20, 24))
        assert contents.refresh()
        assert len(contents.levels.pending(contents.online)) == 1
    with MapContents(folder, config) as contents:
        contents.refresh()
        assert len(contents.levels.pending(contents.online)) == 1, "the cache knows the rest"


def test_a_replaced_map_is_seen_anew(tmp_path: Path) -> None:
    folder = tmp_path / "map"
    write_street(folder, 20)
    with MapContents(folder) as contents:
        contents.refresh()
        with MapWriter.create(folder, {"source": "another"}, overwrite=True) as store:
            record_street(store, range(5))
        assert contents.refresh()
        assert contents.num_frames == 5
        assert not contents.levels.segments


def test_a_folder_that_cannot_be_written_is_viewed_without_a_cache(tmp_path: Path) -> None:
    folder = tmp_path / "map"
    write_street(folder, 20)
    (folder / CACHE).mkdir()  # in the way, as even a superuser finds it
    with MapContents(folder) as contents:
        contents.refresh()
        contents.build()
        assert len(contents.levels) > 0
        assert "cannot be written" in contents.notes[0]


def test_ground_truth_is_aligned_with_the_poses(tmp_path: Path) -> None:
    folder = tmp_path / "map"
    write_street(folder, 20)
    with load_map(folder) as made:
        online = made.trajectory()
    with MapWriter.open(folder) as store:
        store.write_trajectory("half", replace(online, center=online.center / 2))
    with MapContents(folder) as contents:
        contents.refresh()
        aligned = contents.aligned_truth(contents.poses("half"))
        assert aligned is not None
        centers, unit = aligned
        assert_allclose(centers, online.center / 2, atol=1e-9)
        assert unit == pytest.approx(0.5)
