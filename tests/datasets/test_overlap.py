"""Overlap of pictures from their depths: against a wall whose overlaps are known, and kept on disk."""

from pathlib import Path

import dataset_miniatures as miniatures
import numpy as np
import pytest

from anchor3r.datasets import DATA_SETS
from anchor3r.datasets.index import index_set
from anchor3r.datasets.overlap import measure_overlap
from anchor3r.geometry import SE3, Pinhole, so3_exp
from anchor3r.sources import Frame
from anchor3r.training.data import clip_indices
from anchor3r.training.sampling import SamplingConfig, sample_by_overlap

CAMERA = Pinhole.from_fov(90, 120, 90)


def wall_frame(index: int, x: float, *, turned: bool = False, depth: float = 5.0) -> Frame:
    """A picture of the wall z = 5, ten metres of it wide, from (x, 0, 5 - depth), or of the other side."""
    rotation = so3_exp(np.array([0.0, np.pi if turned else 0.0, 0.0]))
    center = np.array([x, 0.0, 5 - depth])
    return Frame(
        index=index,
        timestamp_s=0.0,
        image=np.zeros((90, 120, 3), np.uint8),
        intrinsics=CAMERA,
        depth_m=np.full((90, 120), depth, np.float32),
        camera_from_world=SE3(rotation, -rotation @ center),
    )


def test_overlap_is_the_share_of_the_wall_that_both_see() -> None:
    frames = [wall_frame(0, 0), wall_frame(1, 2.5), wall_frame(2, 5), wall_frame(3, 11)]
    overlap = measure_overlap([*frames, wall_frame(4, 0, turned=True)])
    np.testing.assert_allclose(overlap[0, :4], [1, 0.75, 0.5, 0], atol=0.09)
    np.testing.assert_array_equal(overlap, overlap.T)
    assert overlap[4, :4].max() == 0


def test_what_hides_a_wall_and_pictures_without_depth_do_not_overlap_with_it() -> None:
    """The second camera stands at the same place, before something that is a metre away."""
    hidden = wall_frame(1, 0)
    assert hidden.depth_m is not None
    hidden.depth_m[:] = 1
    blind = Frame(
        index=2,
        timestamp_s=0.0,
        image=hidden.image,
        intrinsics=CAMERA,
        camera_from_world=hidden.camera_from_world,
    )
    overlap = measure_overlap([wall_frame(0, 0), hidden, blind])
    assert overlap[0, 1] == overlap[0, 2] == overlap[2, 2] == 0


def test_clips_are_chained_by_overlap() -> None:
    """Two rooms of four pictures each: a clip stays in its room."""
    overlap = np.kron(np.eye(2), np.full((4, 4), 0.5)).astype(np.float32)
    for seed in range(20):
        chosen = sample_by_overlap(overlap, 4, np.random.default_rng(seed))
        assert len({k // 4 for k in chosen}) == 1
        assert len(set(chosen)) == 4
    with pytest.raises(ValueError, match="a clip of 9 frames"):
        sample_by_overlap(overlap, 9, np.random.default_rng(0))


def test_overlap_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    miniatures.write("blendedmvs", tmp_path / "data")
    index = index_set(DATA_SETS["blendedmvs"], tmp_path / "data", folder=tmp_path / "index")
    recording = index.recording(index.entries[0].name)
    broken = tmp_path / "data" / recording.table.images[1]
    broken.write_bytes(b"no picture")
    config = SamplingConfig(ordered=False, overlap="depth")
    first = clip_indices(recording, 4, np.random.default_rng(5), config)
    kept = list((tmp_path / "index/overlaps").iterdir())
    assert [path.suffix for path in kept] == [".npy"]
    overlap = np.load(kept[0])
    assert overlap.shape == (recording.num_frames, recording.num_frames)
    assert overlap[0, 2] > 0.3
    assert overlap[1].max() == 0
    again = type(recording)(recording.dataset, recording.files, recording.table, recording.overlap_path)
    monkeypatch.setattr(type(recording), "read", None)
    np.testing.assert_array_equal(clip_indices(again, 4, np.random.default_rng(5), config), first)
