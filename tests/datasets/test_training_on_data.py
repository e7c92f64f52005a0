"""Training on data sets: mixtures, streams of clips that resume, held-out places, all sixteen sets."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import dataset_miniatures as miniatures
import numpy as np
import pytest
import torch

from anchor3r.cli.main import main
from anchor3r.datasets import DATA_SETS
from anchor3r.datasets.index import Entry, SetIndex, index_set
from anchor3r.geometry import SE3
from anchor3r.model.config import PRESETS, shrunk
from anchor3r.training import recipes, validation
from anchor3r.training.data import ClipBatches, DataConfig, RecordedSet, batches, clip_indices
from anchor3r.training.mixture import PAPER_MIXTURE, open_mixture
from anchor3r.training.recipes import paper
from anchor3r.training.sampling import AspectJitter, SamplingConfig

THREE = ("replica", "mapfree", "blendedmvs")
"""A video with depth, a video without, and pictures without order."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("three")
    for name in THREE:
        miniatures.write(name, root / name)
    return root


@pytest.fixture
def config(three: Path) -> DataConfig:
    sets = open_mixture(PAPER_MIXTURE, three, index_set)
    return DataConfig(sets=sets, num_frames=5, sizes=((56, 84), (84, 56)), jitter=AspectJitter(long_side=84))


def test_the_mixture_is_the_papers() -> None:
    assert [entry.name for entry in PAPER_MIXTURE] == list(DATA_SETS)
    for entry in PAPER_MIXTURE:
        card = DATA_SETS[entry.name].card
        assert entry.sampling.ordered == card.ordered
        assert entry.use_depth == (card.depth != "none")
        assert entry.sampling.reverse_probability == 0


def test_sampling_numbers_are_the_published_ones() -> None:
    """Largest interval, chances of video order and of a fixed interval, block, as CUT3R's code has them."""
    published = {
        "waymo": (8, 0.9, 0.9, 16),
        "vkitti2": (5, 1.0, 0.9, None),
        "tartanair": (20, 0.8, 0.8, 16),
        "scannet": (30, 0.6, 0.6, 16),
        "dl3dv": (20, 0.5, 0.5, 25),
    }
    for entry in PAPER_MIXTURE:
        if entry.name in published:
            s = entry.sampling
            interval, video, fixed, block = published[entry.name]
            assert (s.max_interval, s.video_probability, s.fixed_probability) == (interval, video, fixed)
            assert block in (s.block, None)


def test_the_stream_of_clips_is_the_same_with_workers_and_goes_on_where_it_stopped(
    config: DataConfig,
) -> None:
    data = ClipBatches(config, 2)
    alone = batches(data, 0, workers=0)
    expected = [next(alone) for _ in range(4)]
    ahead = batches(data, 2, workers=2)
    for k in (2, 3):
        clips = next(ahead)
        assert torch.equal(clips.images, expected[k].images)
        assert torch.equal(clips.camera_from_world, expected[k].camera_from_world)
    assert len({tuple(clips.images.shape) for clips in expected}) > 1, "aspect ratios vary"


def test_all_three_kinds_of_sets_are_drawn(config: DataConfig) -> None:
    clips = [ClipBatches(config, 1)[k] for k in range(20)]
    with_depth = [bool((clip.depth > 0).any()) for clip in clips]
    assert 0.3 < np.mean(with_depth) < 0.95
    assert all(torch.isfinite(clip.camera_from_world).all() for clip in clips)
    assert {clip.images.shape[1] for clip in clips} == {5}


def test_a_sequence_shorter_than_a_clip_is_used_at_its_length(config: DataConfig) -> None:
    clips = ClipBatches(replace(config, num_frames=48), 2)[0]
    assert clips.images.shape[1] == miniatures.NUM_FRAMES


@pytest.mark.parametrize("ordered", [True, False])
def test_frames_without_a_pose_keep_their_indices(ordered: bool) -> None:
    class Gaps:
        num_frames = 9

        def poses(self) -> list[SE3 | None]:
            return [SE3.identity() if k in (2, 5, 6, 8) else None for k in range(9)]

        def read(self, index: int) -> None:
            raise AssertionError("poses are enough")

    for seed in range(10):
        chosen = clip_indices(Gaps(), 3, np.random.default_rng(seed), SamplingConfig(ordered=ordered))
        assert set(chosen.tolist()) <= {2, 5, 6, 8}
        assert len(set(chosen.tolist())) == 3


def make_index(name: str, names: list[str]) -> SetIndex:
    entries = tuple(Entry(name=n, num_frames=50, num_posed=50, has_depth=True) for n in names)
    return SetIndex(dataset=DATA_SETS[name], root=Path("."), folder=Path("."), entries=entries, broken=())


def test_places_are_held_out_whole_and_by_name() -> None:
    names = [f"Scene{k:02d}/{c}/Camera_{e}" for k in range(10) for c in ("clone", "rain") for e in (0, 1)]
    chosen = RecordedSet(make_index("vkitti2", names), SamplingConfig())
    held_out = {entry.name.split("/")[0] for entry in chosen.validation}
    assert len(held_out) == 1
    assert len(chosen.validation) == 4
    assert not held_out & {entry.name.split("/")[0] for entry in chosen.training}
    again = RecordedSet(make_index("vkitti2", names[::-1]), SamplingConfig())
    assert {e.name for e in again.validation} == {e.name for e in chosen.validation}


def test_segments_that_are_evaluated_on_are_never_trained_on() -> None:
    names = [f"training/{k}_6380_000_6400_000/1" for k in (1634531910000, 10017090168044687777, 22)]
    chosen = RecordedSet(make_index("waymo", names), SamplingConfig())
    assert [entry.name for entry in chosen.validation] == [names[0]]


@pytest.mark.parametrize(
    ("file", "told"), [("frame000004.jpg", "cannot decode"), ("depth000004.png", "cannot read")]
)
def test_a_broken_or_missing_frame_is_drawn_around(
    file: str, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    miniatures.write("replica", tmp_path / "replica")
    sets = open_mixture(PAPER_MIXTURE, tmp_path, index_set)
    config = DataConfig(sets=sets, num_frames=2, sizes=((56, 84),))
    path = tmp_path / "replica/room0/results" / file
    path.write_bytes(b"broken since") if told == "cannot decode" else path.unlink()
    for k in range(8):
        assert ClipBatches(config, 1)[k].images.shape[1] == 2
    assert f"is drawn again: {told}" in caplog.text


def test_aspect_ratios_vary_in_steps_of_the_patch() -> None:
    rng, jitter = np.random.default_rng(0), AspectJitter()
    sizes = [jitter.draw(rng) for _ in range(300)]
    assert all(h % 14 == 0 and w % 14 == 0 and max(h, w) == 518 for h, w in sizes)
    assert min(min(size) for size in sizes) <= 182
    assert 0.15 < np.mean([h > w for h, w in sizes]) < 0.35
    assert len(set(sizes)) > 20


def shrunk_paper() -> recipes.Recipe:
    whole = paper()
    network = shrunk(PRESETS["full"], window=3)
    return replace(whole, network=network, data=replace(whole.data, num_frames=4), steps=2, init=None)


def test_the_papers_training_starts_on_all_sixteen_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command, at the paper's image sizes; the network alone is shrunk."""
    for name in DATA_SETS:
        miniatures.write(name, tmp_path / "data" / name)
    monkeypatch.setitem(recipes.RECIPES, "paper", shrunk_paper)
    monkeypatch.setattr(validation, "NUM_BATCHES", 1)
    command = ["train", "paper", "--data-root", str(tmp_path / "data"), "--out", str(tmp_path / "run")]
    assert main(command) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    listed = {row[0]: row for row in rows if row and row[0] in DATA_SETS}
    assert set(listed) == set(DATA_SETS)
    assert all(row[1] == "1" and row[-2:] == ["6.2", "%"] for row in listed.values())
    assert (tmp_path / "run/best.safetensors").is_file()
    log = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert np.isfinite([line["total"] for line in log if "total" in line]).all()
    # And every set gives clips: each alone, through the same mixture.
    sets = open_mixture(PAPER_MIXTURE, tmp_path / "data", index_set)
    for chosen, _ in sets:
        clip = ClipBatches(DataConfig(sets=((chosen, 1.0),), num_frames=4, sizes=((56, 84),)), 1)[0]
        assert clip.images.shape == (1, 4, 3, 56, 84)


def torchrun(out: Path, root: Path, preset: str, stop: int) -> list[str]:
    script = Path(__file__).with_name("run_on_miniatures.py")
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(script), str(out), str(root), preset, str(stop),
    ]  # fmt: skip


def losses(out: Path) -> list[float]:
    """Of the log's whole lines."""
    log = out / "log.jsonl"
    written = log.read_text().splitlines(keepends=True) if log.is_file() else []
    lines = [json.loads(line) for line in written if line.endswith("\n")]
    return [line["total"] for line in lines if "total" in line]


@pytest.mark.parametrize("preset", ["full", "base", "small"])
def test_two_sharded_processes_are_stopped_and_resumed(three: Path, tmp_path: Path, preset: str) -> None:
    """Two steps, the end of both processes, two more; in one go and in two the losses are the same."""

    def train(out: str, stop: int) -> None:
        command = torchrun(tmp_path / out, three, preset, stop)
        done = subprocess.run(command, timeout=300, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]

    train("parts", 2)
    train("parts", 4)
    assert len(losses(tmp_path / "parts")) == 4
    if preset == "small":
        train("whole", 4)
        assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the processes to kill in /proc")
def test_two_sharded_processes_are_killed_and_resumed(three: Path, tmp_path: Path) -> None:
    """All processes of a run killed at once, between any two instructions after the second step."""
    out = tmp_path / "run"
    running = subprocess.Popen(
        torchrun(out, three, "small", 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 300
    while len(losses(out)) < 2 and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(out).encode() in (place / "cmdline").read_bytes():
                os.kill(int(place.name), signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    assert 2 <= len(losses(out)) <= 4
    done = subprocess.run(torchrun(out, three, "small", 4), timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(losses(out)) == 4
    assert np.isfinite(losses(out)).all()
