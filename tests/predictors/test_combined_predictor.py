"""`auto` on a small synthetic room: `features` where that has an answer, and the network elsewhere."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from anchor3r.cli import main as cli
from anchor3r.geometry import SE3, so3_exp, umeyama
from anchor3r.pipeline.mapper import Mapper, Update
from anchor3r.pipeline.mapping import MappingRun, map_source
from anchor3r.pipeline.settings import MapSettings
from anchor3r.predictors.combined import CombinedPredictor
from anchor3r.predictors.interface import WindowPrediction, WindowStatus
from anchor3r.predictors.loading import load_predictor
from anchor3r.predictors.window_scales import StreamScales
from anchor3r.predictors.windows import contradiction
from anchor3r.robust import Estimate
from anchor3r.sources import open_source
from anchor3r.sources.frame import Frame
from anchor3r.store import load_map
from anchor3r.trajectory import FramePose
from box_room import CAMERA, BoxRoom, pose_at

AUTO = MapSettings(predictor="auto")
BLURRED = range(62, 76)
"""Frames of the hard walk that show hardly a corner."""


def _pose(k: int, turn_deg: float) -> SE3:
    """A walk through the room, with a turn of so many degrees on the way."""
    way, turn = 0.045 * k, np.radians(turn_deg) * np.clip((k - BLURRED.start + 2) / 20, 0, 1)
    return pose_at(
        np.array([2.2 * np.sin(way / 2.2) - 0.3, 0.3 * np.sin(way), 1.8 * np.cos(way / 1.7) - 1.0]),
        np.array([0.1 * np.sin(1.3 * way), turn + 0.15 * np.sin(way), 0.0]),
    )


def _walk(num_frames: int, turn_deg: float = 0.0, seed: int = 1) -> list[Frame]:
    room, rng = BoxRoom(seed), np.random.default_rng(3)
    frames = [room.frame(k, _pose(k, turn_deg)) for k in range(num_frames)]
    for k, frame in enumerate(frames):
        image = frame.image + rng.normal(0, 2, frame.image.shape[:2])[..., None]
        frames[k] = replace(frame, image=np.clip(image, 0, 255).astype(np.uint8))
    return frames


@pytest.fixture(scope="module")
def hard() -> list[Frame]:
    """A walk with a fast turn, in which all is blurred."""
    frames = _walk(130, turn_deg=40)
    for k in BLURRED:
        frames[k] = replace(frames[k], image=cv2.GaussianBlur(frames[k].image, (0, 0), 4.0))
    return frames


def _mapped(frames: list[Frame], predictor: str) -> tuple[list[Update], dict[int, FramePose]]:
    mapper, poses = Mapper(load_predictor(predictor)), dict[int, FramePose]()
    updates = [mapper.step(frame) for frame in frames]
    for update in updates:
        for pose in (*update.late_poses, *([update.pose] if update.pose else [])):
            poses.setdefault(pose.frame, pose)
    return updates, poses


def _error(frames: list[int], centers: np.ndarray, truth: list[Frame]) -> float:
    true = np.array([truth[frame].camera_from_world.center() for frame in frames])
    error = umeyama(centers, true).apply(centers) - true
    return float(np.sqrt((error**2).sum(1).mean()))


def test_a_stretch_that_features_cannot_do_is_mapped_better_than_by_either(
    hard: list[Frame], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "images").mkdir()
    for frame in hard:
        Image.fromarray(frame.image).save(tmp_path / "images" / f"{frame.index:04}.png")
    camera = f"{CAMERA.fx},{CAMERA.fy},{CAMERA.cx},{CAMERA.cy}"
    told, errors = {}, {}
    for name in ("features", "tiny", "auto"):
        out = tmp_path / name
        command = ["map", str(tmp_path / "images"), "--intrinsics", camera, "--out", str(out)]
        assert cli.main([*command, "--order", "stream", "--predictor", name, "--json"]) == 0
        told[name] = json.loads(capsys.readouterr().out)
        with load_map(out) as scene_map:
            found = scene_map.trajectory()
            errors[name] = _error(found.frames.tolist(), found.center, hard)
    assert told["features"]["components"] > 1
    assert told["auto"]["with_pose"] == len(hard)
    assert told["auto"]["components"] == 1
    assert errors["auto"] < min(errors["features"], errors["tiny"])
    assert told["auto"]["answers"]["features"] > told["auto"]["answers"]["network:tiny"] > 0
    assert told["features"]["answers"] == {}
    assert cli.main(["report", str(tmp_path / "auto"), "--out", str(tmp_path / "report.html")]) == 0
    assert "measured by network:tiny" in (tmp_path / "report.html").read_text()
    assert cli.main(["refine", str(tmp_path / "auto"), "--keyframe-interval", "3"]) == 0
    with load_map(tmp_path / "auto") as scene_map:
        refined = scene_map.trajectory("offline")
        assert _error(refined.frames.tolist(), refined.center, hard) < 1.5 * errors["auto"]


def test_what_features_can_do_is_its_own_result() -> None:
    frames = _walk(40)
    by_features, by_auto = _mapped(frames, "features")[0], _mapped(frames, "auto")[0]
    for one, other in zip(by_features, by_auto, strict=True):
        assert one.status is other.status
        assert (one.pose is None) == (other.pose is None)
        if one.pose is not None:
            assert other.prediction.measured_by == "features"
            assert_array_equal(one.pose.center, other.pose.center)
            assert_array_equal(one.prediction.points_in_anchor, other.prediction.points_in_anchor)
    assert by_auto[-1].pose is not None


def _bits(folder: Path) -> list[bytes]:
    with load_map(folder) as scene_map:
        poses, edges = scene_map.trajectory(), scene_map.graph().edges
        arrays = (poses.frames, poses.center, poses.rotation, poses.covariance, edges.translation)
        return [array.tobytes() for array in (*arrays, edges.information, edges.log_scale_sigma)]


@pytest.fixture(scope="module")
def whole(hard: list[Frame], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The map of the first part of the hard walk, made in one go."""
    folder = tmp_path_factory.mktemp("whole") / "m"
    map_source(hard[:92], folder, AUTO)
    return folder


@pytest.mark.parametrize("stop", [3, 68])
def test_a_killed_run_ends_with_the_same_bits(
    hard: list[Frame], whole: Path, tmp_path: Path, stop: int
) -> None:
    """Stopped while it waits for a start, and while the network answers."""
    with open_source(hard[:92]) as source, MappingRun(source, load_predictor(), tmp_path / "m", AUTO) as run:
        run.store.config = replace(run.store.config, snapshot_frames=1, snapshot_share=1.0)
        for update in run:
            if update.frame == stop:
                break
    assert map_source(hard[:92], tmp_path / "m", AUTO, resume=True)["replay_is_exact"]
    assert _bits(tmp_path / "m") == _bits(whole)


def test_frames_that_show_something_else_are_no_part_of_the_map() -> None:
    frames = _walk(30)
    frames += [replace(frame, index=30 + k) for k, frame in enumerate(_walk(30, seed=9))]
    updates, poses = _mapped(frames, "auto")
    assert updates[30].status is not WindowStatus.OK
    assert poses[59].component > poses[29].component
    truth = {frame.index: frame for frame in frames}
    late = [frame for frame in range(40, 60) if frame in poses]
    assert _error(late, np.array([poses[frame].center for frame in late]), list(truth.values())) < 0.02


def test_a_covered_lens_is_bridged() -> None:
    frames, rng = _walk(60), np.random.default_rng(0)
    for k in range(30, 36):
        dark = np.clip(rng.normal(6, 2, frames[k].image.shape), 0, 255).astype(np.uint8)
        frames[k] = replace(frames[k], image=dark)
    _, poses = _mapped(frames, "auto")
    assert not any(frame in poses for frame in range(30, 36))
    assert len({pose.component for pose in poses.values()}) == 1
    assert sorted(poses) == [*range(30), *range(36, 60)]
    assert _error(sorted(poses), np.array([poses[k].center for k in sorted(poses)]), frames) < 0.05


def test_a_start_of_few_points_is_in_the_scale_of_what_follows() -> None:
    """The network is surer of the first window than `features`, but nothing relates its scale yet."""
    with open_source("world:101?kind=street&motion=driving&frames=100&width=320&height=240") as source:
        frames = [replace(frame, depth_m=None) for frame in islice(source.frames(), 20)]
    _, poses = _mapped(frames, "auto")
    assert sorted(poses) == list(range(20))
    assert _error(list(poses), np.array([pose.center for pose in poses.values()]), frames) < 0.1


def test_windows_of_a_still_camera_are_the_networks() -> None:
    room, rng = BoxRoom(1), np.random.default_rng(0)
    still = room.frame(0, _pose(0, 0.0))
    frames = []
    for k in range(70):
        image = np.clip(still.image + rng.normal(0, 1, still.image.shape), 0, 255).astype(np.uint8)
        frames.append(replace(still, index=k, image=cv2.medianBlur(image, 3)))
    updates, poses = _mapped(frames, "auto")
    assert sorted(poses) == list(range(70))
    first = next(update for update in updates if update.pose is not None)
    if first.prediction.measured_by == "network:tiny":
        assert {late.frame for late in first.prediction.member_points} <= set(range(first.frame))


def test_a_start_that_the_images_refute_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = load_predictor("auto")
    assert isinstance(predictor, CombinedPredictor)
    features, by = predictor._features, []
    step, wrong = features.step, so3_exp([0.0, 0.07, 0.0])

    def turned(frame: Frame) -> WindowPrediction:
        window = step(frame)
        rotation = window.member_from_anchor_rotation @ wrong
        return replace(window, member_from_anchor_rotation=rotation) if features.is_running else window

    monkeypatch.setattr(features, "step", turned)
    for frame in _walk(24):
        window = predictor.step(frame)
        by.append(window.measured_by)
        assert not features.is_running
    assert set(by) == {None, "network:tiny"}
    monkeypatch.undo()
    for frame in _walk(40)[24:]:
        by.append(predictor.step(frame).measured_by)
    assert by[-1] == "features"


def test_contradiction_is_measured_by_what_both_state() -> None:
    def window(translation: list[float], turn_rad: float, sigma: float) -> WindowPrediction:
        return WindowPrediction(
            anchor=5,
            members=np.array([3, 4]),
            member_from_anchor_rotation=np.stack([np.eye(3), so3_exp([0.0, 0.3 + turn_rad, 0.0])]),
            member_from_anchor_translation=np.array([[9.0, 9.0, 9.0], translation]),
            confidence=np.ones(2),
            covariance=np.tile(sigma**2 * np.eye(6), (2, 1, 1)),
        )

    known, one = Estimate(0.0, 0.0), window([0.0, 0.0, 1.0], 0.0, 0.03)
    assert contradiction(one, one, 4, known) == pytest.approx(0.0, abs=1e-12)
    assert contradiction(one, window([0.0, 0.0, 1.0], 0.1, 0.04), 4, known) == pytest.approx(4.0, rel=1e-6)
    longer = window([0.0, 0.0, 2.0], 0.0, 0.04)
    assert contradiction(one, longer, 4, known) == pytest.approx(400.0)
    assert contradiction(one, longer, 4, Estimate(0.0, 1.0)) == pytest.approx(1 / (4 + 0.0025), rel=1e-3)
    # Twice as long by a scale twice as large is no contradiction; spreads go with the scale.
    assert contradiction(longer, one, 4, Estimate(np.log(2), 0.0)) == pytest.approx(0.0, abs=1e-12)
    aside = window([0.02, 0.0, 1.0], 0.0, 0.0)
    assert contradiction(longer, aside, 4, Estimate(np.log(2), 0.0)) == pytest.approx(1.0)


def test_scales_are_filtered() -> None:
    scales = StreamScales()
    scales.forget(1)
    scales.measure(Estimate(0.7, 0.1))  # the network's scale by that of `features`, which is known
    assert_allclose(scales.mean, [0.0, 0.7], atol=1e-5)
    assert scales.ratio_sigma == pytest.approx(0.1, rel=1e-4)
    scales.walk(0, 0.1)
    scales.measure(Estimate(0.4, 1e-9))  # variances are alike, so both take half of the difference
    assert_allclose(scales.mean, [0.15, 0.55], atol=1e-5)
    scales.forget(0)
    scales.measure(Estimate(-1.0, 0.1))  # a new map of `features`
    assert_allclose(scales.mean, [1.55, 0.55], atol=1e-4)
