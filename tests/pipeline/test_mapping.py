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
from anchor3r.pipeline.mapper import Update
from anchor3r.pipeline.mapping import MappingRun, map_source
from anchor3r.pipeline.settings import MapSettings
from anchor3r.predictors.ground_truth import GroundTruthPredictor
from anchor3r.predictors.loading import load_predictor
from anchor3r.sources import Frame, open_source
from anchor3r.store import Map, load_map
from toy_source import ToySource

WORLD = "world:5?width=64&height=48&motion=grid&frames=40"
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
