"""Loops by features, from the images to the refined map."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from anchor3r.evaluation.metrics import Alignment, trajectory_errors
from anchor3r.geometry import rotation_angle
from anchor3r.pipeline.loop_search import LoopChoices
from anchor3r.pipeline.mapper import Mapper
from anchor3r.pipeline.refine import refine_map
from anchor3r.pipeline.settings import RefineSettings
from anchor3r.pose_graph.edges import EdgeKind
from anchor3r.predictors.features.predictor import FeaturesPredictor
from anchor3r.sources import Frame
from anchor3r.store import MapWriter, load_map
from box_room import CAMERA, BoxRoom, pose_at

NUM_FRAMES, ROUND = 110, 80


def _frames() -> Iterator[Frame]:
    """Once around in a room and a little on, looking at the walls."""
    room = BoxRoom(3)
    for k in range(NUM_FRAMES):
        angle = 2 * np.pi * k / ROUND
        center = np.array([2.0 * np.sin(angle), 0.0, -2.0 * np.cos(angle)])
        yield room.frame(k, pose_at(center, np.array([0.0, 0.5 * np.sin(angle), 0.0])), CAMERA)


@pytest.fixture(scope="module")
def refined(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("loops") / "map"
    with MapWriter.create(folder, {"source": "room"}) as writer:
        mapper = Mapper(FeaturesPredictor(), writer)
        for frame in _frames():
            mapper.step(frame)
    return folder, refine_map(folder, RefineSettings(keyframe_interval=4), predictor=FeaturesPredictor)


def test_loops_are_found_measured_and_believed(refined: tuple[Path, dict]) -> None:
    folder, summary = refined
    assert summary["scale"] == "free"
    assert summary["accepted"] >= 3
    with load_map(folder) as made:
        pose, edges = made.true_trajectory().camera_from_world, made.graph("offline").edges
    edges = edges.select(edges.kind == EdgeKind.LOOP)
    assert len(np.unique(edges.group)) == 2 * summary["accepted"]
    # A wall is recognised from the other side of the room, too: what counts is what is said of both frames.
    true = pose[edges.frame_i] @ pose[edges.frame_t].inverse()
    assert np.degrees(rotation_angle(edges.rotation @ np.swapaxes(true.rotation, 1, 2))).max() < 1
    for group in np.unique(edges.group):
        said, told = (x.translation[edges.group == group] for x in (edges, true))
        scale = (said * told).sum() / (said * said).sum()
        assert np.linalg.norm(scale * said - told, axis=1).max() < 0.15


def test_closing_them_makes_the_map_better(refined: tuple[Path, dict]) -> None:
    folder, _ = refined
    with load_map(folder) as made:
        truth = made.true_trajectory()
        world_from_camera = truth.camera_from_world.inverse()
        ate = {
            name: trajectory_errors(
                made.trajectory(name).camera_from_world.inverse(), world_from_camera, Alignment.SIM3
            ).metrics()["ate_rmse_m"]
            for name in ("online", "offline")
        }
    assert ate["offline"] <= 1.05 * ate["online"]
    assert ate["offline"] < 0.02


def test_threads_do_not_change_what_is_measured(refined: tuple[Path, dict]) -> None:
    folder, summary = refined
    measured = []
    for threads in (1, 2):
        settings = RefineSettings(keyframe_interval=4, threads=threads)
        refine_map(
            folder,
            settings,
            name=f"with-{threads}",
            predictor=FeaturesPredictor,
            choices=LoopChoices(redo=True),
        )
        with load_map(folder) as made:
            events = made.loops(f"with-{threads}")
            graph = made.graph(f"with-{threads}").edges
        assert len(events) == summary["loop_events"]
        measured.append(([(e.query, e.match, e.figures) for e in events], graph))
    assert measured[0][0] == measured[1][0]
    np.testing.assert_array_equal(measured[0][1].rotation, measured[1][1].rotation)
    np.testing.assert_array_equal(measured[0][1].translation, measured[1][1].translation)
