"""Mapping from Python: the same map as the command line makes, which says itself how to go on with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import anchor3r
from anchor3r.cli import main as cli
from anchor3r.errors import Anchor3RError
from anchor3r.export.cameras import camera_in_words
from anchor3r.pipeline.mapper import Update
from anchor3r.pipeline.mapping import MappingRun, find_camera, map_source
from anchor3r.pipeline.settings import MapSettings
from anchor3r.predictors.ground_truth import GroundTruthPredictor
from anchor3r.predictors.loading import load_predictor
from anchor3r.sources import Frame, Source, open_source
from anchor3r.store import Map, load_map
from anchor3r.trajectory import estimated_from_true_world
from box_room import CAMERA, BoxRoom, pose_at
from toy_source import ToySource

WORLD = "world:5?width=64&height=48&motion=grid&frames=40"
FEATURES = MapSettings(predictor="features")
NOISY = MapSettings(predictor="ground-truth:0.3,0.02", window=6, seed=3)


def contents(scene_map: Map) -> dict[str, object]:
    """Everything of a map that is not a time of day."""
    return {
        "meta": scene_map.meta,
        "poses": scene_map.trajectory().center.tobytes() + scene_map.trajectory().rotation.tobytes(),
        "edges": scene_map.graph().edges.translation.tobytes(),
        "image": scene_map.image(7).tobytes(),
    }


def test_python_makes_the_map_of_the_command_line(tmp_path: Path) -> None:
    seen: list[Update] = []
    summary = map_source(WORLD, tmp_path / "python", NOISY, on_update=seen.append)
    options = ["--predictor", NOISY.predictor, "--window", "6", "--seed", "3"]
    assert cli.main(["map", WORLD, "--out", str(tmp_path / "shell"), *options]) == 0
    with load_map(tmp_path / "python") as one, load_map(tmp_path / "shell") as other:
        assert contents(one) == contents(other)
        assert one.meta["versions"]["anchor3r"] == anchor3r.__version__
    assert [update.frame for update in seen] == list(range(40))
    assert summary["with_pose"] == summary["frames"] == 40


def test_a_map_made_in_python_is_refined_without_naming_its_predictor(tmp_path: Path) -> None:
    anchor3r.map_source(WORLD, tmp_path / "m", NOISY)
    with load_map(tmp_path / "m") as scene_map:
        assert scene_map.meta["loaded_as"] == {
            "name": "ground-truth:0.3,0.02", "window": 6, "seed": 3, "every": 1, "dtype": "auto",
        }  # fmt: skip
    assert anchor3r.refine_map(tmp_path / "m")["frames"] == 40
    assert cli.main(["refine", str(tmp_path / "m"), "--redo-loops"]) == 0


def test_a_run_that_is_left_early_is_gone_on_with(tmp_path: Path) -> None:
    whole = map_source(WORLD, tmp_path / "whole", NOISY)
    predictor = load_predictor(NOISY.predictor, window=NOISY.window, seed=NOISY.seed)
    with open_source(WORLD) as source, MappingRun(source, predictor, tmp_path / "m", NOISY) as run:
        for update in run:
            if update.frame == 17:
                break
    assert run.num_updates == 18
    resumed = map_source(WORLD, tmp_path / "m", NOISY, resume=True)
    assert resumed["resumed_after"] == 17
    assert resumed["replay_is_exact"]
    assert (resumed["frames"], whole["resumed_after"]) == (40, None)
    with load_map(tmp_path / "whole") as one, load_map(tmp_path / "m") as other:
        assert_array_equal(one.trajectory().center, other.trajectory().center)


def test_what_a_map_depends_on_is_insisted_on(tmp_path: Path) -> None:
    map_source(WORLD, tmp_path / "m", NOISY)
    with pytest.raises(Anchor3RError, match="window"):
        map_source(WORLD, tmp_path / "m", MapSettings(predictor=NOISY.predictor, window=5), resume=True)
    with pytest.raises(Anchor3RError, match="already holds a map"):
        map_source(WORLD, tmp_path / "m", NOISY)
    with pytest.raises(Anchor3RError, match="choose one"):
        map_source(WORLD, tmp_path / "m", NOISY, resume=True, overwrite=True)


def test_ground_truth_is_not_taken_from_where_there_is_none(tmp_path: Path) -> None:
    class Untold(ToySource):
        def _load(self, index: int) -> Frame:
            return replace(super()._load(index), camera_from_world=None)

    with pytest.raises(Anchor3RError, match="no ground truth"):
        map_source(Untold(5), tmp_path / "m", predictor=GroundTruthPredictor())
    assert not (tmp_path / "m").exists()


def test_a_second_pass_holds_the_camera_that_the_first_one_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = "world:5?width=256&height=192&motion=driving&frames=24"
    assert cli.main(["map", world, "--out", str(tmp_path / "first"), "--predictor", "features"]) == 0
    assert "the stated camera, refined: focal length" in capsys.readouterr().out
    again = ["map", world, "--out", str(tmp_path / "second"), "--camera", str(tmp_path / "first")]
    assert cli.main(again) == 0
    assert "the camera as found before, held: focal length" in capsys.readouterr().out
    with load_map(tmp_path / "first") as first, load_map(tmp_path / "second") as second:
        assert second.meta["camera"]["held"]
        for name in ("fx", "cx", "k1"):
            assert second.meta["camera"][name] == pytest.approx(first.meta["camera"][name])
        camera = second.intrinsics(20)
        assert camera is not None
        assert camera.fx == pytest.approx(second.meta["camera"]["fx"])
    assert cli.main([*again, "--fov", "60", "--overwrite"]) == 1
    assert "state nothing else" in capsys.readouterr().err
    map_source(WORLD, tmp_path / "other", NOISY)
    with pytest.raises(Anchor3RError, match="does not say what its camera"):
        map_source(WORLD, tmp_path / "third", MapSettings(camera=str(tmp_path / "other")))
    with pytest.raises(Anchor3RError, match="takes no camera"):
        map_source(WORLD, tmp_path / "third", replace(NOISY, camera=str(tmp_path / "first")))


def test_the_gauge_is_certain_and_later_frames_are_not(tmp_path: Path) -> None:
    map_source(WORLD, tmp_path / "m", NOISY)
    with load_map(tmp_path / "m") as scene_map:
        covariance = scene_map.trajectory().covariance
    assert covariance is not None
    assert_array_equal(covariance[0], np.zeros((6, 6)))
    assert (np.einsum("nkk->nk", covariance[2:]) > 0).all()


def test_the_package_shows_what_it_offers() -> None:
    assert set(anchor3r.__all__) == set(dir(anchor3r))
    for name in anchor3r.__all__:
        assert getattr(anchor3r, name) is not None
    with pytest.raises(AttributeError):
        getattr(anchor3r, "nothing")  # noqa: B009


@pytest.fixture(scope="module")
def walk() -> list[Frame]:
    """Through a room, with a camera that the source does not state."""
    room, angles = BoxRoom(), 0.1 * np.arange(45)
    centers = np.stack([1.2 * np.sin(angles), 0.3 * np.sin(2.3 * angles), 0.8 * np.cos(angles) - 1], 1)
    turns = np.stack([0.1 * np.sin(2 * angles), 0.6 * np.sin(angles), 0.1 * angles], 1)
    poses = [pose_at(center, turn) for center, turn in zip(centers, turns, strict=True)]
    return [replace(room.frame(k, pose), intrinsics=None) for k, pose in enumerate(poses)]


def test_an_unknown_camera_is_found_before_the_map_begins(tmp_path: Path, walk: list[Frame]) -> None:
    summary = map_source(walk, tmp_path / "m", FEATURES)
    assert summary["with_pose"] == len(walk)
    assert not summary["camera"]["stated"]
    assert summary["camera"]["determined"]
    assert 0 < (bend := summary["camera"]["path_bend"]) < 0.02
    assert f"put positions off by {bend:.2%} of the path" in camera_in_words(summary["camera"])
    with load_map(tmp_path / "m") as scene_map:
        found = scene_map.meta["first_pass_camera"]
        first, last = scene_map.intrinsics(0), scene_map.intrinsics(len(walk) - 1)
        poses, truth = scene_map.trajectory(), scene_map.true_trajectory()
    assert found["determined"]
    assert found["checked"]  # by a second pass
    # Every frame was mapped with a camera that is right, the first one too.
    assert found["focal_px"] == pytest.approx(CAMERA.fx, rel=0.04)
    for camera in (first, last):
        assert camera is None or camera.fx == pytest.approx(CAMERA.fx, rel=0.04)
    similarity = estimated_from_true_world(poses, truth)
    error = np.linalg.norm(similarity.inverse().apply(poses.center) - truth.center, axis=1)
    assert np.sqrt(np.mean(error**2)) < 0.005 * truth.path_length()


def test_a_resumed_run_goes_on_with_the_camera_that_was_found(tmp_path: Path, walk: list[Frame]) -> None:
    map_source(walk, tmp_path / "whole", FEATURES)
    predictor = load_predictor("features")
    with open_source(walk) as source, MappingRun(source, predictor, tmp_path / "m", FEATURES) as run:
        for update in run:
            if update.frame == 30:
                break
    resumed = map_source(walk, tmp_path / "m", FEATURES, resume=True)
    assert resumed["replay_is_exact"]
    with load_map(tmp_path / "whole") as one, load_map(tmp_path / "m") as other:
        assert one.meta["first_pass_camera"] == other.meta["first_pass_camera"]
        assert contents(one) == contents(other)


def test_nothing_is_gone_through_twice_without_need(walk: list[Frame]) -> None:
    def steps(source: Source) -> int:
        seen: list[int] = []
        camera = find_camera(source, load_predictor("features"), seen.append)
        assert camera is None
        return len(seen)

    with open_source([replace(frame, intrinsics=CAMERA) for frame in walk[:9]]) as source:
        assert steps(source) == 0  # the camera is stated
    with open_source(frame for frame in walk[:9]) as source:
        assert steps(source) == 0  # a generator cannot be gone through again
    with open_source(walk[:9]) as source:
        assert steps(source) == 9  # too few to tell


def test_a_camera_that_is_found_is_looked_at_twice(walk: list[Frame]) -> None:
    seen: list[int] = []
    with open_source(walk) as source:
        camera = find_camera(source, load_predictor("features"), seen.append)
    assert camera is not None
    assert camera["checked"]
    assert seen == list(range(1, 2 * len(walk) + 1))


def test_a_broken_frame_in_the_first_pass_leaves_the_frames_before_it(
    tmp_path: Path, walk: list[Frame]
) -> None:
    frames = [*walk[:40], replace(walk[40], image=walk[40].image[:100])]
    with pytest.raises(Anchor3RError, match="240×100"):
        map_source(frames, tmp_path / "m", FEATURES)
    with load_map(tmp_path / "m") as scene_map:
        assert scene_map.num_frames == 40
        assert scene_map.meta["first_pass_camera"] is not None
