"""The streaming loop: gauge, votes, late poses, components, scale, and going on after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from anchor3r.errors import Anchor3RError
from anchor3r.pipeline.mapper import Mapper, MapperConfig, Update
from anchor3r.predictors import WindowPrediction, WindowStatus
from anchor3r.predictors.ground_truth import GroundTruthConfig, GroundTruthPredictor
from anchor3r.sources import Frame
from anchor3r.store import MapWriter, StoreConfig, load_map
from toy_source import ToySource, toy_pose

NOISY = GroundTruthConfig(window=5, rotation_deg=0.5, translation_fraction=0.02)


def true_window(
    anchor: int, members: Iterable[int], *, scale: float = 1.0, **fields: object
) -> WindowPrediction:
    """The exact window of chosen frames, its lengths told in `scale`."""
    members = list(members)
    edges = [toy_pose(i) @ toy_pose(anchor).inverse() for i in members]
    prediction = WindowPrediction(
        anchor=anchor,
        members=np.array(members, np.int64),
        member_from_anchor_rotation=np.array([e.rotation for e in edges]).reshape(-1, 3, 3),
        member_from_anchor_translation=np.array([e.translation for e in edges]).reshape(-1, 3) / scale,
        confidence=np.ones(len(members)),
        points_in_anchor=np.full((2, 2, 3), 1 / scale, np.float32),
    )
    return replace(prediction, **fields)


class Scripted:
    """Says what the test wrote down for each frame."""

    name, window = "scripted", 10

    def __init__(self, script: Callable[[int], WindowPrediction]) -> None:
        self.script = script

    def reset(self) -> None: ...

    def step(self, frame: Frame) -> WindowPrediction:
        return self.script(frame.index)

    def relate(self, members: Sequence[Frame], anchor: Frame) -> WindowPrediction:
        return true_window(anchor.index, [m.index for m in members])

    def snapshot(self) -> dict[str, NDArray]:
        return {}

    def restore(self, state: Mapping[str, NDArray]) -> None: ...


def run(script: Callable[[int], WindowPrediction], length: int) -> list[Update]:
    return list(Mapper(Scripted(script)).run(ToySource(length)))


def assert_true_relative(update: Update, reference: Update) -> None:
    """The motion between two frames of one component is the true one."""
    assert update.camera_from_world is not None
    assert reference.camera_from_world is not None
    found = update.camera_from_world @ reference.camera_from_world.inverse()
    true = toy_pose(update.frame) @ toy_pose(reference.frame).inverse()
    assert_allclose(found.matrix(), true.matrix(), atol=1e-9)


def test_exact_windows_give_the_exact_trajectory_with_the_first_frame_as_gauge() -> None:
    updates = list(Mapper(GroundTruthPredictor()).run(ToySource(40)))
    first = updates[0].camera_from_world
    assert first is not None
    assert_array_equal(first.matrix(), np.eye(4))
    for update in updates:
        assert_true_relative(update, updates[0])
        assert update.component == 0
        assert len(update.edges) == min(update.frame, 9)
    assert_allclose(
        updates[5].points_in_world, updates[5].pose.to_world(updates[5].prediction.points_in_anchor)
    )


def test_a_few_wild_edges_do_not_move_the_pose_and_widen_nothing() -> None:
    def script(t: int) -> WindowPrediction:
        window = true_window(t, range(max(0, t - 7), t))
        if len(window.members) == 7:
            window.member_from_anchor_rotation[1] = np.diag([1.0, -1, -1])
            window.member_from_anchor_translation[4] += 50
        return window

    updates = run(script, 20)
    assert_true_relative(updates[-1], updates[0])
    assert updates[-1].covariance is not None
    assert np.all(np.diag(updates[-1].covariance) < 1e-12)


def test_frames_of_the_initialisation_get_their_poses_late() -> None:
    def script(t: int) -> WindowPrediction:
        if t < 4:
            return true_window(t, [], status=WindowStatus.INITIALISING)
        return true_window(t, range(max(0, t - 6), t))

    updates = run(script, 8)
    assert all(update.pose is None and not len(update.edges) for update in updates[:4])
    assert [pose.frame for pose in updates[4].late_poses] == [0, 1, 2, 3]
    assert_array_equal(updates[4].late_poses[0].camera_from_world.matrix(), np.eye(4))
    for pose in updates[4].late_poses:
        true = toy_pose(pose.frame) @ toy_pose(0).inverse()
        assert_allclose(pose.camera_from_world.matrix(), true.matrix(), atol=1e-9)
    assert not updates[5].late_poses
    assert {update.component for update in updates[4:]} == {0}


def test_after_a_loss_a_new_component_starts_at_the_last_known_pose() -> None:
    def script(t: int) -> WindowPrediction:
        if t in (10, 11):
            return true_window(t, range(5, 10), status=WindowStatus.LOST)
        return true_window(t, range(max(0 if t < 10 else 12, t - 4), t))

    updates = run(script, 20)
    assert [update.component for update in updates] == [0] * 10 + [None] * 2 + [1] * 8
    assert updates[10].pose is None
    assert not len(updates[10].edges)
    assert_array_equal(updates[12].camera_from_world.matrix(), updates[9].camera_from_world.matrix())
    for update in updates[12:]:
        assert_true_relative(update, updates[12])


def test_members_of_an_older_component_have_no_vote_but_their_edges_are_kept() -> None:
    def script(t: int) -> WindowPrediction:
        members = {5: [], 7: [0, 1, 2, 3, 4, 6]}.get(t, range(0 if t < 5 else 5, t))
        return true_window(t, members)

    updates = run(script, 8)
    assert [update.component for update in updates] == [0] * 5 + [1] * 3
    assert_true_relative(updates[7], updates[5])
    assert len(updates[7].edges) == 6


def test_measured_scale_ratios_keep_the_map_in_one_scale_and_the_edges_raw() -> None:
    """The scale shrinks by 3 % a frame; only every ratio is told."""
    scales = 0.97 ** np.arange(30)

    def script(t: int) -> WindowPrediction:
        ratio = float(np.log(scales[t] / scales[t - 1])) if t else 0.0
        return true_window(
            t, range(max(0, t - 4), t), scale=scales[t], log_scale_ratio=ratio, log_scale_sigma=0.01
        )

    updates = run(script, 30)
    for t, update in enumerate(updates):
        assert_true_relative(update, updates[0])
        assert_allclose(update.pose.log_scale, np.log(scales[t]), atol=1e-12)
    assert_allclose(updates[-1].pose.log_scale_sigma, 0.01 * np.sqrt(29))
    raw = true_window(29, range(25, 29), scale=scales[29])
    assert_array_equal(updates[29].edges.translation, raw.member_from_anchor_translation)
    assert_allclose(updates[29].edges.log_scale_ratio, [np.nan] * 3 + [np.log(0.97)])
    assert_allclose(updates[29].edges.log_scale_sigma, [np.nan] * 3 + [0.01])
    # The point map is in the window's scale too: in the world it is where it always was.
    expected = updates[29].pose.to_world(np.full((2, 2, 3), 1 / scales[29]))
    assert_allclose(updates[29].points_in_world, expected)


def test_a_new_component_has_a_scale_of_its_own() -> None:
    """The ratio that its first window tells is to a window of another world."""

    def script(t: int) -> WindowPrediction:
        members = range(max(0 if t < 6 else 5, t - 3), t)
        status = WindowStatus.INITIALISING if t == 5 else WindowStatus.OK
        window = true_window(t, [] if t == 5 else members, scale=0.5 if t < 6 else 3.0, status=status)
        return replace(window, log_scale_ratio=0.7 if t == 6 else 0.0, log_scale_sigma=0.01)

    updates = run(script, 10)
    assert updates[6].component == 1
    assert [update.pose.log_scale for update in updates[6:]] == [0.0] * 4
    assert np.isnan(updates[6].edges.log_scale_ratio).all()
    assert_allclose(updates[8].edges.log_scale_ratio, [np.nan, np.nan, 0.0])
    step = updates[9].pose.center - updates[6].pose.center
    true_step = toy_pose(9).center() - toy_pose(6).center()
    assert_allclose(np.linalg.norm(step), np.linalg.norm(true_step) / 3.0)


def test_edges_that_are_not_numbers_are_dropped_and_a_window_of_them_is_lost() -> None:
    def script(t: int) -> WindowPrediction:
        window = true_window(t, range(max(0, t - 4), t), covariance=None)
        if t == 6:
            window.member_from_anchor_translation[0] = np.nan
        if t == 8:
            window.member_from_anchor_rotation[:] = np.nan
        return window

    updates = run(script, 10)
    assert len(updates[6].edges) == 3
    assert_true_relative(updates[6], updates[0])
    assert updates[8].status is WindowStatus.LOST
    assert updates[8].pose is None
    assert_true_relative(updates[9], updates[0])


def test_covariances_become_information_and_confidence_becomes_weight() -> None:
    covariance = np.diag([1.0, 2, 4, 8, 16, 32])

    def script(t: int) -> WindowPrediction:
        n = min(t, 3)
        window = true_window(t, range(t - n, t), covariance=np.broadcast_to(covariance, (n, 6, 6)))
        return replace(window, confidence=np.arange(n) + 0.5)

    edges = run(script, 6)[5].edges
    assert_allclose(edges.information, np.broadcast_to(np.linalg.inv(covariance), (3, 6, 6)))
    assert_array_equal(edges.weight, [0.5, 1.5, 2.5])
    assert len(edges) == 3


@pytest.mark.parametrize("stated_alone", [True, False])
def test_a_pose_is_as_sure_as_its_own_window_says_where_that_is_told_apart(stated_alone: bool) -> None:
    shared, alone = np.diag([1.0, 2, 4, 8, 16, 32]), 1e-3 * np.eye(6)

    def script(t: int) -> WindowPrediction:
        n = min(t, 3)
        fields = {"covariance": np.broadcast_to(shared, (n, 6, 6))}
        if stated_alone:
            fields["covariance_alone"] = np.broadcast_to(alone, (n, 6, 6))
        return true_window(t, range(t - n, t), **fields)

    update = run(script, 6)[5]
    found = update.covariance
    # The frame before is a member: its edge is all there is to say. Axes of rotations are the camera's.
    assert_allclose(np.linalg.eigvalsh(found), np.diag(alone if stated_alone else shared), rtol=1e-9)
    assert_allclose(update.edges.information, np.broadcast_to(np.linalg.inv(shared), (3, 6, 6)))


def test_restoring_a_snapshot_goes_on_bit_for_bit() -> None:
    source = ToySource(30)
    whole = list(Mapper(GroundTruthPredictor(NOISY)).run(source))
    first = Mapper(GroundTruthPredictor(NOISY))
    for index in range(13):
        first.step(source.read(index))
    second = Mapper(GroundTruthPredictor(NOISY))
    second.restore(first.snapshot())
    for index in range(13, 30):
        pose = second.step(source.read(index)).pose
        assert_array_equal(pose.center, whole[index].pose.center)
        assert_array_equal(pose.rotation, whole[index].pose.rotation)


def map_toy(folder: Path, stop: int, *, crash_after: int | None = None, **store_fields: object) -> MapWriter:
    """Maps the toy source; a crash loses whatever has not been committed."""
    store = MapWriter.resume(folder, config=StoreConfig(**store_fields))
    for update in Mapper(GroundTruthPredictor(NOISY), store).run(ToySource(50, stop=stop)):
        if update.frame == crash_after:
            store._database.rollback()
            break
    store.close()
    return store


@pytest.mark.parametrize("commit_frames", [1, 4])
@pytest.mark.parametrize("snapshot_frames", [1, 7, 1000])
def test_a_map_that_crashed_again_and_again_ends_as_if_it_had_not(
    tmp_path: Path, commit_frames: int, snapshot_frames: int
) -> None:
    often = {"commit_frames": commit_frames, "snapshot_frames": snapshot_frames, "snapshot_share": 1.0}
    map_toy(tmp_path / "whole", 40, **often)
    for crash_after in (0, 3, 10, 10, 24, 39):
        map_toy(tmp_path / "crashed", 40, crash_after=crash_after, **often)
    assert map_toy(tmp_path / "crashed", 40, **often).replay_is_exact
    with load_map(tmp_path / "whole") as whole, load_map(tmp_path / "crashed") as crashed:
        for name in ("frames", "rotation", "center", "covariance"):
            assert_array_equal(getattr(crashed.trajectory(), name), getattr(whole.trajectory(), name))
        for name in ("frame_i", "frame_t", "rotation", "translation", "group"):
            assert_array_equal(getattr(crashed.graph().edges, name), getattr(whole.graph().edges, name))
        assert crashed.num_frames == 40
        assert_array_equal(crashed.points(17).points_in_camera, whole.points(17).points_in_camera)


def test_a_finished_map_goes_on_when_there_is_more_and_ignores_being_run_again(tmp_path: Path) -> None:
    map_toy(tmp_path / "whole", 40)
    for stop in (25, 25, 10, 40):
        map_toy(tmp_path / "longer", stop)
    with load_map(tmp_path / "whole") as whole, load_map(tmp_path / "longer") as longer:
        assert_array_equal(longer.trajectory().center, whole.trajectory().center)


@pytest.mark.parametrize("keep_images", [True, False])
def test_a_map_does_not_go_on_with_another_source(tmp_path: Path, keep_images: bool) -> None:
    class OtherImages(ToySource):
        def _load(self, index: int) -> Frame:
            return replace(super()._load(index), image=super()._load(index + 1).image)

    class OtherPath(ToySource):
        def _load(self, index: int) -> Frame:
            return replace(super()._load(index), camera_from_world=toy_pose(index + 1))

    map_toy(tmp_path / "m", 10, keep_images=keep_images)
    for other in (OtherImages, OtherPath):
        with MapWriter.resume(tmp_path / "m") as store:
            updates = Mapper(GroundTruthPredictor(NOISY), store).run(other(20))
            if other is OtherPath or keep_images:
                with pytest.raises(Anchor3RError, match="frame 9 of the source is not the one in the map"):
                    next(updates)


def test_poses_that_memory_has_dropped_come_from_the_store(tmp_path: Path) -> None:
    """Keyframes of a camera at rest are members long after everything else was forgotten."""

    def script(t: int) -> WindowPrediction:
        return true_window(t, [m for m in (0, 1, 2) if m < t] if t % 9 == 0 else range(max(0, t - 3), t))

    config = MapperConfig(remembered_poses=2)
    with MapWriter.create(tmp_path / "m") as store:
        mapper = Mapper(Scripted(script), store, config)
        mapper._capacity = 4
        updates = list(mapper.run(ToySource(40)))
    assert not any(update.late_poses for update in updates)
    for update in updates:
        assert_true_relative(update, updates[0])


def test_a_replay_does_not_know_poses_that_came_later(tmp_path: Path) -> None:
    """Frame 3 gets its pose from frame 6; a replay from frame 5 must find it without one."""

    def script(t: int) -> WindowPrediction:
        if t == 3:
            return true_window(t, [], status=WindowStatus.INITIALISING)
        return true_window(t, [m for m in range(max(0, t - 4), t) if m != 3 or t >= 6])

    config = StoreConfig(commit_frames=1, snapshot_frames=6)
    with MapWriter.create(tmp_path / "m", config=config) as store:
        for update in Mapper(Scripted(script), store).run(ToySource(12)):
            if update.frame == 8:
                break
    with MapWriter.resume(tmp_path / "m", config=config) as store:
        replayed = list(Mapper(Scripted(script), store).run(ToySource(12)))
    assert replayed[0].frame == 6
    assert [pose.frame for pose in replayed[0].late_poses] == [3]
    assert store.replay_is_exact


def test_a_live_source_goes_on_in_a_new_component(tmp_path: Path) -> None:
    class LiveToy(ToySource):
        live = True

    map_toy(tmp_path / "m", 10)
    with MapWriter.resume(tmp_path / "m") as store:
        source = LiveToy(14)
        updates = list(Mapper(GroundTruthPredictor(NOISY), store).run(source))
    assert [update.frame for update in updates] == [10, 11, 12, 13]
    with load_map(tmp_path / "m") as scene_map:
        trajectory = scene_map.trajectory()
    assert trajectory.component.tolist() == [0] * 10 + [1] * 4
    assert_array_equal(trajectory.center[10], trajectory.center[9])
