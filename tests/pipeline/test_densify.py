"""Measured depth of a map's keyframes: against exact depth, interrupted, with threads, where it cannot be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anchor3r.cli.main import main
from anchor3r.dense.keyframe_depth import DepthOrigin
from anchor3r.errors import Anchor3RError
from anchor3r.pipeline.densify import densify_map
from anchor3r.pipeline.mapping import map_source
from anchor3r.pipeline.settings import DensifySettings, MapSettings
from anchor3r.predictors.ground_truth import GroundTruthPredictor
from anchor3r.sources import open_source
from anchor3r.store import ONLINE, MapWriter, load_map
from anchor3r.trajectory import Trajectory

WORLD = "world:205?kind=room&motion=handheld&width=128&height=96&frames=16"
FAST = DensifySettings(every=4, threads=1, fill="planes", fuse=False)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("densify") / "room"
    with open_source(WORLD) as world:
        map_source(world, folder, predictor=GroundTruthPredictor())
    return folder


@pytest.fixture
def fresh(room: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(room, tmp_path / "map"))


def stored(folder: Path) -> list[tuple]:
    with load_map(folder) as scene_map:
        return scene_map._all("SELECT * FROM keyframe_depths ORDER BY frame")


def test_depth_is_right_and_says_how_sure_it_is(fresh: Path) -> None:
    told = []
    summary = densify_map(fresh, FAST, progress=lambda stage, done, total: told.append((stage, done, total)))
    assert summary["with_depth"] == summary["keyframes"] == 4
    assert summary["images"] == "source"
    assert told[-1] == ("measuring depth", 4, 4)
    ratios, origins, chances = [], [], []
    with load_map(fresh) as scene_map, open_source(WORLD) as world:
        for view in scene_map.keyframe_depths():
            true = world.read(view.frame).depth_m
            assert true is not None
            known = view.origin != DepthOrigin.NONE
            ratios.append((view.depth / true)[known])
            origins.append(view.origin[known])
            chances.append(view.confidence[known])
    right = np.abs(np.concatenate(ratios) - 1) < 0.05
    origin, chance = np.concatenate(origins), np.concatenate(chances)
    measured = origin == DepthOrigin.MEASURED
    assert summary["measured"] > 0.5
    assert right[measured].mean() > 0.9
    assert abs(right[measured].mean() - chance[measured].mean()) < 0.1
    assert summary["measured"] + summary["planes"] > 0.85


def test_an_interrupted_run_goes_on_to_the_same_bytes_and_so_do_threads(fresh: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(fresh, tmp_path / "other"))

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "measuring depth" and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        densify_map(fresh, FAST, progress=interrupt)
    with load_map(fresh) as scene_map:
        assert len(scene_map.keyframe_depth_frames()) == 2
        assert not scene_map.densification().complete
    assert densify_map(fresh, FAST)["measured_now"] == 2
    assert densify_map(fresh, FAST)["measured_now"] == 0
    densify_map(other, replace(FAST, threads=2))
    assert stored(fresh) == stored(other)


def test_depth_of_other_poses_is_replaced(fresh: Path) -> None:
    densify_map(fresh, FAST)
    with load_map(fresh) as scene_map:
        online = scene_map.trajectory(ONLINE)
    twice = Trajectory(
        frames=online.frames,
        rotation=online.rotation,
        center=2 * online.center,
        component=online.component,
        log_scale=np.full(len(online), np.log(2)),
    )
    with MapWriter.open(fresh) as writer:
        writer.write_trajectory("twice", twice)
    summary = densify_map(fresh, FAST)  # the latest poses are the best ones
    assert summary["poses"] == "twice"
    assert summary["measured_now"] == 4
    with load_map(fresh) as scene_map, open_source(WORLD) as world:
        view = next(scene_map.keyframe_depths())
        true = world.read(view.frame).depth_m
        assert np.nanmedian(view.depth / true) == pytest.approx(2, rel=0.01)


def test_holes_stay_holes_and_the_predictors_points_fill_what_is_left(fresh: Path) -> None:
    holes = densify_map(fresh, DensifySettings(every=8, fill="holes", threads=1, fuse=False))
    assert holes["planes"] == holes["interpolated"] == 0
    filled = densify_map(fresh, DensifySettings(every=8, fill="all", threads=1, fuse=False))
    assert filled["measured"] == holes["measured"]
    assert filled["measured"] + filled["planes"] + filled["interpolated"] > 0.99


def _one_frame(tmp_path: Path) -> Path:
    with open_source("world:205?kind=room&motion=handheld&width=64&height=48", stop=1) as world:
        map_source(world, tmp_path / "map", predictor=GroundTruthPredictor())
    return tmp_path / "map"


def _no_images(tmp_path: Path) -> Path:
    settings = MapSettings(keep_images=False)
    with open_source("world:205?kind=room&motion=handheld&width=64&height=48", stop=4) as world:
        map_source(world, tmp_path / "map", settings, predictor=GroundTruthPredictor())
    with MapWriter.open(tmp_path / "map") as writer:
        writer.write_meta(identity={"source": str(tmp_path / "gone")})
    return tmp_path / "map"


def _no_parallax(tmp_path: Path) -> Path:
    with open_source("world:205?kind=room&motion=handheld&width=64&height=48", stop=4) as world:
        map_source(world, tmp_path / "map", predictor=GroundTruthPredictor())
    with load_map(tmp_path / "map") as scene_map:
        online = scene_map.trajectory(ONLINE)
    still = Trajectory(
        frames=online.frames,
        rotation=online.rotation,
        center=np.zeros_like(online.center),
        component=online.component,
        log_scale=online.log_scale,
    )
    with MapWriter.open(tmp_path / "map") as writer:
        writer.write_trajectory("still", still)
    return tmp_path / "map"


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (_one_frame, "one frame with a pose"),
        (_no_images, "keeps no images and its source is gone"),
        (_no_parallax, "from another place"),
    ],
)
def test_what_cannot_be_measured_is_explained(
    made: Callable[[Path], Path], told: str, tmp_path: Path
) -> None:
    with pytest.raises(Anchor3RError, match=told):
        densify_map(made(tmp_path), DensifySettings(threads=1))


def test_images_of_a_source_that_is_gone_come_from_the_map(fresh: Path) -> None:
    with MapWriter.open(fresh) as writer:
        writer.write_meta(identity={"source": str(fresh / "gone")})
    assert densify_map(fresh, DensifySettings(every=8, threads=1, fuse=False))["images"] == "map"


def test_the_command_line_maps_and_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "map"
    arguments = ["map", WORLD, "--out", str(folder), "--predictor", "ground-truth", "--dense", "--json"]
    assert main(arguments) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["dense"]["with_depth"] > 0
    assert summary["dense"]["fusion"]["vertices"] > 100
    assert (folder / "fused.ply").is_file()
    assert main(["densify", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "0 of them measured now" in said
    assert main(["densify", str(folder), "--size", "16"]) == 1
    assert "too small" in capsys.readouterr().err
    assert main(["densify", str(tmp_path / "nothing")]) == 1
    assert "holds no map" in capsys.readouterr().err
