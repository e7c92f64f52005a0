"""A map as a training set: its poses, depth and confidence come back, and what is contradicted stays out."""

from pathlib import Path

import numpy as np
import pytest

from anchor3r.cli.main import main
from anchor3r.datasets import maps
from anchor3r.datasets.index import index_set
from anchor3r.datasets.maps import OwnMap
from anchor3r.model import TINY_WEIGHTS
from anchor3r.model.checkpoints import read_tensors
from anchor3r.sources import open_source
from anchor3r.store import Map
from anchor3r.training import validation
from anchor3r.training.data import ClipBatches, DataConfig
from anchor3r.training.mixture import open_sets
from anchor3r.training.sampling import SamplingConfig
from anchor3r.trajectory import Trajectory


def test_a_map_is_a_sequence_with_its_worlds_depth(street_folder: Path) -> None:
    found = index_set(OwnMap(), street_folder)
    recording = found.recording(found.entries[0].name)
    assert recording.num_frames == 11
    with open_source("world:5?width=64&height=48&motion=driving&frames=11") as world:
        for k in (0, 5, 10):
            frame, true = recording.read(k), world.read(k)
            assert frame.depth_m is not None
            assert true.depth_m is not None
            assert frame.camera_from_world is not None
            assert frame.depth_confidence is not None
            known = (frame.depth_m > 0) & (true.depth_m > 0)
            assert known.mean() > 0.3
            np.testing.assert_allclose(frame.depth_m[known], true.depth_m[known], rtol=2e-3)
            first = recording.read(0).camera_from_world
            start = world.read(0).camera_from_world
            assert first is not None
            assert start is not None
            assert true.camera_from_world is not None
            moved = frame.camera_from_world @ first.inverse()
            expected = true.camera_from_world @ start.inverse()
            np.testing.assert_allclose(moved.matrix(), expected.matrix(), atol=1e-3)


def test_clips_of_a_map_carry_weights(street_folder: Path) -> None:
    sets = open_sets((f"map:{street_folder}",), SamplingConfig(max_interval=1), index_set)
    clips = ClipBatches(DataConfig(sets=sets, num_frames=4, sizes=((48, 64),)), 1)[0]
    assert clips.depth_weight is not None
    assert clips.pose_weight is not None
    assert clips.depth_weight.shape == clips.depth.shape
    assert float(clips.depth_weight.max()) <= 1


def test_the_shipped_network_is_adapted_to_a_map(
    street_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "NUM_BATCHES", 1)
    command = ["train", "tiny", "--data", f"map:{street_folder}", "--init", "tiny", "--own-share", "0.5"]
    options = ["--learning-rate", "1e-5", "--steps", "1", "--accumulate", "1", "--out", str(tmp_path / "run")]
    assert main([*command, *options]) == 0
    before, after = (read_tensors(path)[0] for path in (TINY_WEIGHTS, tmp_path / "run/best.safetensors"))
    changes = [float((after[name] - tensor).abs().max()) for name, tensor in before.items()]
    assert 0 < max(changes) < 1e-4


def test_steps_that_ground_truth_contradicts_are_left_out(street: Map) -> None:
    truth = street.true_trajectory()
    assert truth is not None
    center = truth.center.copy()
    center[6:] += 0.6 * (center[6] - center[5])
    bent = Trajectory(frames=truth.frames, rotation=truth.rotation, center=center)
    np.testing.assert_array_equal(np.flatnonzero(maps._contradicted(bent, truth)), [6])
    assert not maps._contradicted(truth, truth).any()


def test_a_map_without_images_cannot_be_trained_on(street: Map, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Map, "keeps_images", lambda _: False)
    with pytest.raises(Exception, match="no sequence of a map in"):
        index_set(OwnMap(), street.folder)
