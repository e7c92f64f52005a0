"""The map on disk: what goes in comes out, frames are there wholly or not at all, misuse is explained."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import so3_exp
from anchor3r.pipeline.mapper import Mapper
from anchor3r.pose_graph.edges import EdgeKind, Edges
from anchor3r.predictors import WindowPrediction, WindowStatus
from anchor3r.predictors.ground_truth import GroundTruthConfig, GroundTruthPredictor
from anchor3r.store import Counts, Loop, LoopState, MapWriter, StoreConfig, best_poses, load_map, rows
from anchor3r.store.database import DATABASE, FORMAT_VERSION
from anchor3r.store.pointmaps import decode_points, encode_points
from anchor3r.trajectory import FramePose, Trajectory
from toy_source import CAMERA, ToySource, toy_pose

HALF_EPS = 2.0**-10


def fill(store: MapWriter, length: int) -> None:
    for _ in Mapper(GroundTruthPredictor(), store).run(ToySource(length)):
        pass


def make_map(folder: Path, length: int = 12) -> Path:
    with MapWriter.create(folder, {"source": "toy"}) as store:
        fill(store, length)
    return folder


def some_edges(anchor: int, members: list[int], kind: EdgeKind = EdgeKind.WINDOW) -> Edges:
    rng = np.random.default_rng(anchor)
    n = len(members)
    rotations, translations = so3_exp(rng.normal(size=(n, 3))), rng.normal(size=(n, 3))
    return Edges.of(members, anchor, rotations, translations, kind=kind, weight=rng.random(n))


def some_pose(frame: int, **fields: object) -> FramePose:
    pose = toy_pose(frame)
    return FramePose(frame=frame, rotation=pose.rotation, center=pose.center(), **fields)


def window_of(anchor: int, **fields: object) -> WindowPrediction:
    none = np.empty(0)
    return WindowPrediction(
        anchor=anchor,
        members=none.astype(np.int64),
        member_from_anchor_rotation=none.reshape(0, 3, 3),
        member_from_anchor_translation=none.reshape(0, 3),
        confidence=none,
        **fields,
    )


def test_everything_recorded_is_read_back_exactly(tmp_path: Path) -> None:
    source = ToySource(3)
    edges = some_edges(1, [0])
    descriptor = np.arange(5, dtype=np.float32)
    with MapWriter.create(tmp_path / "m", {"source": "toy", "stride": 2}) as store:
        store.record(source.read(0), window_of(0), some_edges(0, []), [some_pose(0)])
        late = some_pose(1, component=3, log_scale=0.5, covariance=np.eye(6) / 7)
        store.record(source.read(1), window_of(1, descriptor=descriptor), edges, [late])
        store.record(source.read(2), window_of(2, status=WindowStatus.LOST), some_edges(2, []), [])
        store.write_meta(note=[1, "two"])
    with load_map(tmp_path / "m") as scene_map:
        assert scene_map.meta["identity"] == {"source": "toy", "stride": 2}
        assert scene_map.meta["note"] == [1, "two"]
        frames = scene_map.frames()
        assert frames.index.tolist() == [0, 1, 2]
        assert frames.status.tolist() == ["ok", "ok", "lost"]
        assert scene_map.counts() == Counts(frames=3, with_pose=2, lost=1, components=2)
        assert_array_equal(frames.timestamp_s, [0, 0.1, 0.2])
        trajectory = scene_map.trajectory()
        assert trajectory.frames.tolist() == [0, 1]
        assert trajectory.component.tolist() == [0, 3]
        assert trajectory.log_scale.tolist() == [0, 0.5]
        assert_array_equal(trajectory.center, [toy_pose(k).center() for k in (0, 1)])
        assert_array_equal(trajectory.rotation, [toy_pose(k).rotation for k in (0, 1)])
        assert np.isnan(trajectory.covariance[0]).all()
        assert_array_equal(trajectory.covariance[1], np.eye(6) / 7)
        stored = scene_map.graph().edges
        for name in ("frame_i", "frame_t", "rotation", "translation", "weight", "kind"):
            assert_array_equal(getattr(stored, name), getattr(edges, name))
        assert not scene_map.graph().edges.has_information().any()
        truth = scene_map.true_trajectory()
        assert_allclose(truth.camera_from_world.matrix()[2], toy_pose(2).matrix(), atol=1e-12)
        described, descriptors = scene_map.descriptors()
        assert described.tolist() == [1]
        assert_array_equal(descriptors, [descriptor])
        assert scene_map.points(0) is None
        assert len(scene_map.runtime().seconds) == 3


def test_information_is_kept_for_those_groups_that_have_it(tmp_path: Path) -> None:
    source = ToySource(3)
    plain, informed = some_edges(1, [0]), some_edges(2, [0, 1])
    information = np.arange(72.0).reshape(2, 6, 6)
    informed = Edges(**{**vars(informed), "information": information})
    with MapWriter.create(tmp_path / "m") as store:
        for frame, edges in enumerate([some_edges(0, []), plain, informed]):
            store.record(source.read(frame), window_of(frame), edges, [])
    with load_map(tmp_path / "m") as scene_map:
        stored = scene_map.graph().edges.information
    assert np.isnan(stored[0]).all()
    assert_array_equal(stored[1:], information)


def test_a_kept_frame_can_be_measured_again(tmp_path: Path) -> None:
    """Larger pictures are reduced, and their intrinsics with them."""
    make = StoreConfig(image_side=16)
    with MapWriter.create(tmp_path / "m", config=make) as store:
        fill(store, 3)
    with load_map(tmp_path / "m") as scene_map:
        frame = scene_map.frame(2)
    assert frame.image.shape == (12, 16, 3)
    assert frame.intrinsics == CAMERA.resized(16, 12)
    assert_array_equal(frame.camera_from_world.matrix(), toy_pose(2).matrix())
    related = GroundTruthPredictor().relate([frame], ToySource(9).read(8))
    assert related.members.tolist() == [2]


def test_images_are_left_out_on_request(tmp_path: Path) -> None:
    with MapWriter.create(tmp_path / "m", config=StoreConfig(keep_images=False)) as store:
        fill(store, 3)
    with load_map(tmp_path / "m") as scene_map:
        assert scene_map.points(1) is not None
        with pytest.raises(Anchor3RError, match="made with keep_images=False"):
            scene_map.image(1)
        with pytest.raises(Anchor3RError, match="no frame 7"):
            scene_map.frame(7)


def test_a_reader_sees_what_is_committed_while_the_writer_goes_on(tmp_path: Path) -> None:
    source = ToySource(10)
    config = StoreConfig(commit_interval_s=1000, commit_frames=4)
    with MapWriter.create(tmp_path / "m", config=config) as store, load_map(tmp_path / "m") as scene_map:
        seen = []
        for index in range(10):
            store.record(source.read(index), window_of(index), some_edges(index, []), [])
            seen.append(scene_map.num_frames)
        assert seen == [0, 0, 0, 4, 4, 4, 4, 8, 8, 8]
        points = scene_map.iter_points()
        next(points, None)
        store.commit()
        assert scene_map.num_frames == 10


def test_each_frame_is_committed_once_the_interval_has_passed(tmp_path: Path) -> None:
    source = ToySource(3)
    with MapWriter.create(tmp_path / "m", config=StoreConfig(commit_interval_s=0)) as store:
        for index in range(3):
            store.record(source.read(index), window_of(index), some_edges(index, []), [])
            with load_map(tmp_path / "m") as scene_map:
                assert scene_map.num_frames == index + 1


def test_loop_events_are_numbered_from_0_without_gaps(tmp_path: Path) -> None:
    make_map(tmp_path / "m")
    with MapWriter.open(tmp_path / "m") as store:
        assert store.next_event() == 0
        loop = Loop(event=0, query=9, match=2, state=LoopState.PENDING, figures={})
        store.write_loops([(loop, [])])
        assert store.next_event() == 1


def test_only_one_process_writes(tmp_path: Path) -> None:
    with MapWriter.create(tmp_path / "m"):
        for begin in (MapWriter.resume, partial(MapWriter.create, overwrite=True), MapWriter.open):
            with pytest.raises(Anchor3RError, match="another process is writing"):
                begin(tmp_path / "m")
    MapWriter.resume(tmp_path / "m").close()


def test_an_existing_map_is_neither_lost_nor_mixed_with_another(tmp_path: Path) -> None:
    folder = make_map(tmp_path / "m")
    with pytest.raises(Anchor3RError, match=r"already holds a map.*resume.*overwrite"):
        MapWriter.create(folder)
    with pytest.raises(Anchor3RError, match="made with source = 'toy', not 'other'"):
        MapWriter.resume(folder, {"source": "other"})
    (folder / "notes.txt").write_text("mine")
    MapWriter.create(folder, overwrite=True).close()
    with load_map(folder) as scene_map:
        assert scene_map.num_frames == 0
        assert len(scene_map.trajectory()) == len(scene_map.graph()) == 0
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_map_that_died_before_its_first_transaction_is_begun_anew(tmp_path: Path) -> None:
    tmp_path.joinpath(DATABASE).touch()
    with pytest.raises(Anchor3RError, match="never begun"):
        load_map(tmp_path)
    with MapWriter.resume(tmp_path) as store:
        assert store.last_frame == -1


def test_bad_folders_have_words(tmp_path: Path) -> None:
    with pytest.raises(Anchor3RError, match="holds no map; check the path"):
        load_map(tmp_path / "nowhere")
    tmp_path.joinpath("file").touch()
    with pytest.raises(Anchor3RError, match="choose another folder"):
        MapWriter.create(tmp_path / "file")
    tmp_path.joinpath(DATABASE).write_bytes(b"not a database" * 100)
    for begin in (load_map, MapWriter.resume, MapWriter.create):
        with pytest.raises(Anchor3RError, match="is not a map"):
            begin(tmp_path)


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / DATABASE)
    database.execute("CREATE TABLE precious (x)")
    database.close()
    with pytest.raises(Anchor3RError, match="is not a map"):
        load_map(tmp_path)
    with pytest.raises(Anchor3RError, match="another program"):
        MapWriter.create(tmp_path, overwrite=True)


def test_a_newer_format_asks_for_an_update(tmp_path: Path) -> None:
    folder = make_map(tmp_path / "m")
    database = sqlite3.connect(folder / DATABASE)
    database.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    database.close()
    for begin in (load_map, MapWriter.resume):
        with pytest.raises(Anchor3RError, match=f"format {FORMAT_VERSION + 1}.*update anchor3r"):
            begin(folder)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a file system that refuses new folders")
def test_a_folder_that_cannot_be_made_has_words() -> None:
    with pytest.raises(Anchor3RError, match="choose another folder"):
        MapWriter.create("/proc/anchor3r-map")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_map_can_be_read_but_not_written(tmp_path: Path) -> None:
    folder = make_map(tmp_path / "m")
    for leftover in folder.glob(f"{DATABASE}-*"):
        leftover.unlink()
    folder.chmod(0o555)
    with load_map(folder) as scene_map:
        assert scene_map.num_frames == 12
    with pytest.raises(Anchor3RError, match=r"read-only|permissions"):
        MapWriter.resume(folder)
    folder.chmod(0o755)


def test_a_full_disk_leaves_a_map_that_can_be_read_and_resumed(tmp_path: Path) -> None:
    whole = make_map(tmp_path / "whole", 40)
    store = MapWriter.create(tmp_path / "m", {"source": "toy"}, config=StoreConfig(commit_frames=3))
    store._database.execute("PRAGMA max_page_count = 60")
    with pytest.raises(Anchor3RError, match=r"disk is full.*The map is whole as far as it goes"), store:
        fill(store, 40)
    with load_map(tmp_path / "m") as scene_map:
        kept = scene_map.num_frames
        assert 0 < kept < 40
        assert len(scene_map.trajectory()) == kept
        assert all(scene_map.points(index) is not None for index in range(kept))
    with MapWriter.resume(tmp_path / "m", {"source": "toy"}) as store:
        fill(store, 40)
    with load_map(tmp_path / "m") as scene_map, load_map(whole) as expected:
        assert_array_equal(scene_map.trajectory().center, expected.trajectory().center)


def test_a_frame_is_recorded_wholly_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ToySource(3)

    def failing(*arguments: object) -> Iterator[rows.TableRow]:
        yield rows.TableRow("points", {"frame": 1})  # misses what the table demands

    with MapWriter.create(tmp_path / "m") as store:
        store.record(source.read(0), window_of(0), some_edges(0, []), [some_pose(0)])
        monkeypatch.setattr(rows, "bulk", failing)
        with pytest.raises(Anchor3RError):
            store.record(source.read(1), window_of(1), some_edges(1, [0]), [some_pose(1)])
    with load_map(tmp_path / "m") as scene_map:
        assert scene_map.frames().index.tolist() == [0]
        assert len(scene_map.trajectory()) == 1
        assert len(scene_map.graph()) == 0


def replay(folder: Path, *, pose_error: float = 0.0, members: tuple[int, ...] = (0,)) -> MapWriter:
    """Records two frames, or compares them if they are there."""
    source = ToySource(2)
    pose = some_pose(1)
    moved = FramePose(frame=1, rotation=pose.rotation, center=pose.center + pose_error)
    edges = some_edges(1, [0])
    edges = Edges(**{**vars(edges), "frame_i": np.array(members)})
    with MapWriter.resume(folder) as store:
        store.record(source.read(0), window_of(0), some_edges(0, []), [])
        store.record(source.read(1), window_of(1), edges, [moved])
    return store


def test_a_replay_is_compared_with_what_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replay(tmp_path)
    assert replay(tmp_path).replay_is_exact
    assert not caplog.records
    assert not replay(tmp_path, pose_error=1e-6).replay_is_exact
    assert "not bit for bit" in caplog.text
    with pytest.raises(Anchor3RError, match=r"frame 1 came out differently.*poses differ by"):
        replay(tmp_path, pose_error=0.5)
    with pytest.raises(Anchor3RError, match="edge_groups differ"):
        replay(tmp_path, members=(7,))
    with load_map(tmp_path) as scene_map:
        assert_array_equal(scene_map.trajectory().center, [toy_pose(1).center()])


def test_snapshots_keep_any_arrays_and_only_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_PART_BYTES", 100)
    rng = np.random.default_rng(0)
    state = {
        "scalar": np.array(7),
        "nothing": np.empty((0, 3), np.float32),
        "long": rng.normal(size=(13, 11)),
        "transposed": rng.integers(0, 99, (5, 7)).T,
        "halves": rng.normal(size=40).astype(np.float16),
    }
    with MapWriter.create(tmp_path / "m") as store:
        assert store.load_snapshot() is None
        store.save_snapshot({"old": np.zeros(3)})
        store.save_snapshot(state)
        frame, loaded = store.load_snapshot()
    assert frame == -1
    assert loaded.keys() == state.keys()
    for name, value in state.items():
        assert loaded[name].dtype == value.dtype
        assert_array_equal(loaded[name], value)


def test_snapshots_are_due_by_count_unless_they_cost_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("anchor3r.store.writer.time.monotonic", lambda: clock[0])
    source = ToySource(9)

    def slow(*arguments: object) -> Iterator[rows.TableRow]:
        clock[0] += 2.0
        return iter(())

    monkeypatch.setattr(rows, "snapshot", slow)
    config = StoreConfig(snapshot_frames=3, snapshot_share=0.1)
    taken = []
    with MapWriter.create(tmp_path / "m", config=config) as store:
        for index in range(9):
            store.record(source.read(index), window_of(index), some_edges(index, []), [])
            clock[0] += 5.0
            if store.snapshot_due:
                taken.append(index)
                store.save_snapshot({})
    assert taken == [2, 6]  # 2 s each may come every 20 s


def test_refined_poses_and_loops_live_beside_the_online_ones(tmp_path: Path) -> None:
    folder = make_map(tmp_path / "m")
    with load_map(folder) as scene_map:
        assert best_poses(scene_map.trajectory_names()) == "online"
        online = scene_map.trajectory()
        num_windows = len(scene_map.graph())
    refined = Trajectory(frames=online.frames, rotation=online.rotation, center=online.center + 1)
    true_loop = Loop(event=0, query=11, match=1, state=LoopState.SUPPORTED, figures={"inliers": 0.9})
    false_loop = Loop(event=1, query=9, match=0, state=LoopState.CONTRADICTED, figures={})
    with MapWriter.open(folder) as store:
        store.write_trajectory("offline", refined)
        store.write_trajectory("offline", refined)
        groups = [some_edges(11, [0, 1], EdgeKind.LOOP), some_edges(1, [10, 11], EdgeKind.LOOP)]
        store.write_loops([(true_loop, groups), (false_loop, [some_edges(9, [0], EdgeKind.LOOP)])])
    with load_map(folder) as scene_map:
        assert scene_map.trajectory_names() == ["online", "offline"]
        assert best_poses(scene_map.trajectory_names()) == "offline"
        assert_array_equal(scene_map.trajectory("offline").center, online.center + 1)
        assert_array_equal(scene_map.trajectory().center, online.center)
        assert scene_map.loops() == [true_loop, false_loop]
        assert len(scene_map.graph()) == num_windows + 4
        assert len(scene_map.graph(rejected_loops=True)) == num_windows + 5
        assert np.count_nonzero(scene_map.graph().edges.kind == EdgeKind.LOOP) == 4
        with pytest.raises(Anchor3RError, match="no 'best' poses, only: online, offline"):
            scene_map.trajectory("best")
    changed = replace(false_loop, state=LoopState.ACCEPTED_BY_HAND, figures={"excess": 0.5})
    with MapWriter.open(folder) as store:
        store.write_refinement("offline", refined, [true_loop, changed], search=0)
    with load_map(folder) as scene_map:
        assert scene_map.loops() == [true_loop, changed]
        assert len(scene_map.graph()) == num_windows + 5


def test_maps_of_format_1_are_read_as_they_are_and_upgraded_when_written(tmp_path: Path) -> None:
    """One search and one refinement, whose verdicts stand in the loops, as texts in the oldest ones."""
    folder = make_map(tmp_path / "m")
    loop = Loop(event=0, query=11, match=1, state=LoopState.FITS, figures={})
    with load_map(folder) as scene_map:
        refined = replace(scene_map.trajectory(), covariance=None)
    with MapWriter.open(folder) as store:
        store.write_loops([(loop, [some_edges(11, [0, 1], EdgeKind.LOOP)])])
        store.write_trajectory("offline", refined)
        store.write_meta(refinement={"accepted": 0}, loop_search={"identity": {"k": 5}, "complete": True})
    with sqlite3.connect(folder / "map.sqlite") as database:
        database.execute("UPDATE loops SET accepted = 0, reason = 'the map contradicts it'")
        database.execute("ALTER TABLE loops DROP COLUMN search")
        for table in ("searches", "refinements", "verdicts"):
            database.execute(f"DROP TABLE {table}")
        database.execute("DELETE FROM meta WHERE key = 'checksum'")
        database.execute("PRAGMA user_version = 1")

    def check() -> None:
        with load_map(folder) as scene_map:
            assert scene_map.loops()[0].state is LoopState.CONTRADICTED
            assert not (scene_map.graph().edges.kind == EdgeKind.LOOP).any()
            assert scene_map.refinement("offline").summary == {"accepted": 0}
            assert scene_map.search_identity(0) == {"k": 5}
            assert scene_map.trajectory_names()[:2] == ["online", "offline"]

    check()
    with MapWriter.open(folder) as store:
        assert store.begin_search({"k": 5}) == (0, True)
        assert store.begin_search({"k": 10}) == (1, False)
        store.write_refinement("other", refined, [], search=1)
    check()
    with sqlite3.connect(folder / "map.sqlite") as database:
        assert database.execute("PRAGMA user_version").fetchone()[0] == FORMAT_VERSION


def test_every_state_of_a_loop_has_words_of_its_own() -> None:
    texts = [state.text for state in LoopState]
    assert len(set(texts)) == len(texts)
    assert {s for s in LoopState if s.is_accepted} == {"supported", "fits", "unverified", "accepted_by_hand"}
    assert not any(state.is_accepted and state.is_left_out for state in LoopState)


def test_a_refined_map_goes_on_growing(tmp_path: Path) -> None:
    folder = make_map(tmp_path / "m", 12)
    with MapWriter.open(folder) as store:
        loop = Loop(event=0, query=11, match=1, state=LoopState.FITS, figures={})
        store.write_loops([(loop, [some_edges(11, [1], EdgeKind.LOOP)])])
    with MapWriter.resume(folder) as store:
        fill(store, 20)
    with load_map(folder) as scene_map:
        assert scene_map.num_frames == 20
        assert len(scene_map.loops()) == 1


def test_points_follow_the_pose_that_is_asked_for(tmp_path: Path) -> None:
    folder = make_map(tmp_path / "m", 4)
    with load_map(folder) as scene_map:
        placed = [
            (pose.frame, pose.to_world(points.points_in_camera)) for pose, points in scene_map.iter_points()
        ]
        only = [pose.frame for pose, _ in scene_map.iter_points(frames=np.array([1, 3]))]
        assert all(scene_map.points(index) is not None for index in scene_map.frames().index)
        assert [scene_map.frame(index).index for index in scene_map.frames().index] == [0, 1, 2, 3]
    assert [frame for frame, _ in placed] == [0, 1, 2, 3]
    assert only == [1, 3]
    truth = CAMERA.unproject_map(ToySource(4).read(3).depth_m)
    expected = (toy_pose(0) @ toy_pose(3).inverse()).apply(truth)
    assert_allclose(placed[3][1], expected, atol=0.02)


@given(
    scale=st.floats(1e-6, 1e6),
    noise=st.sampled_from([0.0, 0.05]),
    holes=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_point_maps_survive_to_half_precision(scale: float, noise: float, holes: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = CAMERA.unproject_map(rng.uniform(0.5, 40, (24, 32)))
    points = (scale * (points + noise * rng.normal(size=points.shape))).astype(np.float32)
    points[rng.random((24, 32)) < holes] = np.nan
    confidence = rng.uniform(0, 1, (24, 32)).astype(np.float32)
    image = rng.integers(0, 256, (24, 32, 3), np.uint8)
    encoded = encode_points(points, confidence, image, CAMERA)
    if holes < 0.9:
        assert (encoded.camera is not None) == (noise == 0)
    decoded = decode_points(encoded)
    assert_array_equal(np.isnan(decoded.points_in_camera), np.isnan(points))
    error = np.linalg.norm(decoded.points_in_camera - points, axis=-1)
    assert np.all((error <= HALF_EPS * np.linalg.norm(points, axis=-1)) | np.isnan(error))
    assert_allclose(decoded.confidence, confidence, rtol=HALF_EPS, atol=1e-7)


def test_points_beyond_half_range_are_no_points() -> None:
    points = np.ones((4, 4, 3), np.float32)
    points[0, 0] = 1e9
    decoded = decode_points(encode_points(points, None, np.zeros((8, 8, 3), np.uint8), None))
    assert np.isnan(decoded.points_in_camera[0, 0]).all()
    assert np.isfinite(decoded.points_in_camera).sum() == 45
    assert_array_equal(decoded.confidence, 1)


def test_colours_are_those_of_the_image(tmp_path: Path) -> None:
    image = np.zeros((48, 64, 3), np.uint8)
    image[:, 32:] = (200, 40, 90)
    decoded = decode_points(encode_points(np.ones((24, 32, 3), np.float32), None, image, None))
    assert_allclose(decoded.colours[5, 25].astype(int), (200, 40, 90), atol=4)
    assert_allclose(decoded.colours[5, 5].astype(int), 0, atol=4)


def test_configs_refuse_nonsense() -> None:
    for bad in (
        {"image_side": 0},
        {"image_quality": 101},
        {"snapshot_share": 0.0},
        {"commit_interval_s": -1.0},
    ):
        with pytest.raises(ValueError, match=next(iter(bad))):
            StoreConfig(**bad)
    for bad in ({"window": 1}, {"rotation_deg": -1.0}, {"translation_fraction": float("nan")}):
        with pytest.raises(Anchor3RError):
            GroundTruthConfig(**bad)


def test_confidences_are_probabilities_also_in_maps_that_are_older(tmp_path: Path) -> None:
    source, folder = ToySource(1), tmp_path / "m"
    points = CAMERA.unproject_map(np.full((24, 32), 5.0)).astype(np.float32)
    with MapWriter.create(folder, {"predictor": "features"}) as store:
        wild = window_of(0, points_in_anchor=points, points_confidence=np.full((24, 32), 9, np.float32))
        with pytest.raises(Anchor3RError, match="they are probabilities"):
            store.record(source.read(0), wild, some_edges(0, []), [some_pose(0)])
        sure = replace(wild, points_confidence=np.full((24, 32), 0.75, np.float32))
        store.record(source.read(0), sure, some_edges(0, []), [some_pose(0)])
    with load_map(folder) as scene_map:
        point_map = scene_map.points(0)
        assert point_map is not None
        assert_allclose(point_map.confidence, 0.75)
    database = sqlite3.connect(folder / DATABASE)
    with database:
        database.execute("DELETE FROM meta WHERE key IN ('points_confidence', 'checksum')")
    database.close()
    with load_map(folder) as older:
        point_map = older.points(0)
        assert point_map is not None
        assert (point_map.confidence < 0.1).all(), "one over a relative deviation of 1.3"
    with pytest.raises(Anchor3RError, match="begun by an earlier anchor3r"):
        MapWriter.resume(folder, {"predictor": "features"})


def test_threads_that_read_one_map_do_not_wait_for_each_other_forever(tmp_path: Path) -> None:
    """Checksums are computed by Python inside SQLite, which must not be entered by two threads at once."""
    make_map(tmp_path / "m", 12)
    with load_map(tmp_path / "m") as scene_map, ThreadPoolExecutor(4) as pool:
        frames = [int(k) for k in scene_map.frames().index] * 25
        read = [pool.submit(scene_map.frame, frame) for frame in frames]
        assert all(future.result(timeout=60) is not None for future in read)
