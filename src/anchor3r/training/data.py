"""What is trained on: data sets that open sequences, and a mixture that draws clips from them.

A clip is a function of its number alone, so training resumes by counting on, and every process of a cluster
has numbers of its own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from anchor3r.datasets import DataSet, RecordedSequence
from anchor3r.datasets.index import MIN_POSED, Entry, SetIndex
from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole
from anchor3r.sources import Frame, Source, open_source
from anchor3r.sources.source import UndecodableFrameError, logger
from anchor3r.sources.worlds import world_frame
from anchor3r.training.clips import Clips, stack_clips
from anchor3r.training.sampling import (
    AspectJitter,
    AugmentConfig,
    SamplingConfig,
    make_clip,
    sample_by_overlap,
    sample_by_pose,
    sample_video,
    total_turn,
)
from anchor3r.worlds import World, make_world, sample_config
from anchor3r.worlds.world import Kind, Motion

HELD_OUT_ONE_OF = 50
"""One of so many places is held out of training …"""
MIN_PLACES_TO_HOLD_OUT = 4
"""… if there are so many at all."""
MAX_ATTEMPTS = 8
"""A clip with an undecodable frame is drawn again so often."""
FIRST_TRAINING_SEED = 1_000_000
"""Worlds below this seed are for tests and evaluation and are never trained on."""


class Sequence(Protocol):
    """Frames of one place with poses and intrinsics, with depth or without."""

    @property
    def num_frames(self) -> int | None: ...

    def poses(self) -> list[SE3 | None]:
        """Poses of all frames, without decoding any."""

    def read(self, index: int) -> Frame: ...


class SequenceSet(Protocol):
    """A data set."""

    @property
    def sampling(self) -> SamplingConfig:
        """How its sequences are cut into clips."""

    @property
    def metric(self) -> bool:
        """Whether its lengths are metres; otherwise each clip is compared at its best scale."""

    def draw(self, seed: int, number: int, size: tuple[int, int], rng: np.random.Generator) -> Sequence:
        """A random sequence for the clip with this number, which will be resized to `size` (H, W).

        Clips drawn with another seed share nothing with it where a set is endless.
        """

    def held_out(self) -> SequenceSet | None:
        """The part that is never trained on; None if there is none."""


@dataclass(frozen=True, kw_only=True)
class SourceSet:
    """Sequences on disk, named as `open_source` names them: `kitti:ROOT/00`, `tum:DIR`, `7scenes:DIR`, …"""

    uris: tuple[str, ...]
    """One for each sequence."""
    metric: bool = True
    """Whether lengths are metres."""
    sampling: SamplingConfig = SamplingConfig()
    """How they are cut into clips."""

    def draw(self, seed: int, number: int, size: tuple[int, int], rng: np.random.Generator) -> Sequence:
        return _open(self.uris[rng.integers(len(self.uris))])

    def held_out(self) -> SequenceSet | None:
        return None


@dataclass(frozen=True)
class SourceSequence:
    """A source with ground truth as a sequence. Its poses are read once."""

    source: Source
    known: list[SE3 | None]

    @property
    def num_frames(self) -> int:
        return len(self.known)

    def poses(self) -> list[SE3 | None]:
        return self.known

    def read(self, index: int) -> Frame:
        return self.source.read(index)


@lru_cache(maxsize=64)
def _open(uri: str) -> Sequence:
    source = open_source(uri)
    if not source.num_frames:
        raise Anchor3RError(f"{uri}: cannot be trained on, it does not say how many frames it has")
    frames = [source.read(k) for k in (0, source.num_frames - 1)]
    if any(frame.camera_from_world is None or frame.intrinsics is None for frame in frames):
        raise Anchor3RError(f"{uri}: cannot be trained on, its frames have no poses or no intrinsics")
    known = [source.true_pose(k) for k in range(source.num_frames)]
    return SourceSequence(source, known)


class RecordedSet:
    """Sequences of a data set on disk, those of held-out places apart."""

    def __init__(
        self, index: SetIndex, sampling: SamplingConfig, *, use_depth: bool = True, shortest: int = MIN_POSED
    ) -> None:
        """`shortest`: sequences with fewer posed frames are left out, and counted."""
        long = [entry for entry in index.entries if entry.num_posed >= shortest]
        self.index, self.sampling, self.use_depth = index, sampling, use_depth
        self.metric = index.dataset.card.metric
        self.num_short = len(index.entries) - len(long)
        chosen = _held_out_places(index.dataset, long)
        places = {entry.name: index.dataset.place(entry.name) for entry in long}
        self.training = [e for e in long if places[e.name] not in chosen]
        self.validation = [e for e in long if places[e.name] in chosen]

    def __str__(self) -> str:
        counts = f"{len(self.training)} sequences, {len(self.validation)} held out"
        return f"{self.index.name} in {self.index.root}: {counts}"

    def __deepcopy__(self, _: object) -> RecordedSet:
        return self  # never changed

    def draw(self, seed: int, number: int, size: tuple[int, int], rng: np.random.Generator) -> Sequence:
        return self._drawn(self.training, rng)

    def held_out(self) -> SequenceSet | None:
        return _HeldOut(self) if self.validation else None

    def _drawn(self, entries: list[Entry], rng: np.random.Generator) -> Sequence:
        """Longer sequences are drawn more often: all frames are alike."""
        lengths = np.array([entry.num_posed for entry in entries], float)
        entry = entries[rng.choice(len(entries), p=lengths / lengths.sum())]
        recording = self.index.recording(entry.name)
        return recording if self.use_depth else _WithoutDepth(recording)

    def num_clips(self, num_frames: int) -> int:
        """Places where a clip can begin; a shorter sequence is one clip."""
        return sum(max(1, entry.num_posed - num_frames + 1) for entry in self.training)


@dataclass(frozen=True)
class _HeldOut:
    """The held-out part of a set, as a set."""

    whole: RecordedSet

    @property
    def sampling(self) -> SamplingConfig:
        return self.whole.sampling

    @property
    def metric(self) -> bool:
        return self.whole.metric

    def draw(self, seed: int, number: int, size: tuple[int, int], rng: np.random.Generator) -> Sequence:
        return self.whole._drawn(self.whole.validation, rng)

    def held_out(self) -> SequenceSet | None:
        return self


@dataclass(frozen=True)
class _WithoutDepth:
    """A sequence whose depth is not used."""

    recording: RecordedSequence

    @property
    def num_frames(self) -> int:
        return self.recording.num_frames

    def poses(self) -> list[SE3 | None]:
        return self.recording.poses()

    def read(self, index: int) -> Frame:
        return replace(self.recording.read(index), depth_m=None, depth_confidence=None)


def _held_out_places(dataset: DataSet, entries: list[Entry]) -> set[str]:
    """About one of fifty places, by their names alone, and all that are evaluated on; never all."""
    places = sorted({dataset.place(entry.name) for entry in entries})
    reserved = {dataset.place(entry.name) for entry in entries if dataset.reserved(entry.name)}
    ranks = {place: hashlib.sha256(os.fsencode(place)).digest() for place in places}
    free = sorted((place for place in places if place not in reserved), key=lambda place: ranks[place])
    count = max(len(free) // HELD_OUT_ONE_OF, 1) if len(free) >= MIN_PLACES_TO_HOLD_OUT else 0
    return reserved | set(free[:count])


@dataclass(frozen=True, kw_only=True)
class WorldSet:
    """Endless procedural worlds, rendered where they are needed, at the size and view they are needed."""

    shares: tuple[tuple[Kind, Motion, float], ...] = (
        ("street", "driving", 0.35),
        ("street", "grid", 0.05),
        ("room", "handheld", 0.2),
        ("room", "orbit", 0.04),
        ("open", "handheld", 0.3),
        ("open", "orbit", 0.06),
    )
    """Kinds of world and camera motion with their shares. Open ground has a large one: its depths are the
    hardest to tell."""
    fov_deg: tuple[float, float] = (40.0, 100.0)
    """Range of the horizontal field of view."""
    frames: int = 48
    """Length of a world's path."""
    clips_per_world: int = 6
    """Clips that share a world, each with a stretch and a camera of its own: building takes longer than
    rendering."""
    sampling: SamplingConfig = SamplingConfig(max_interval=2, fixed_probability=0.8)
    """How they are cut into clips."""
    metric: bool = True
    """Whether lengths are metres."""

    def draw(self, seed: int, number: int, size: tuple[int, int], rng: np.random.Generator) -> Sequence:
        world_rng = np.random.default_rng([FIRST_TRAINING_SEED, seed, number // self.clips_per_world])
        shares = np.array([share for _, _, share in self.shares])
        kind, motion, _ = self.shares[world_rng.choice(len(shares), p=shares / shares.sum())]
        world = _world(int(world_rng.integers(FIRST_TRAINING_SEED, 2**31)), kind, motion, self.frames)
        camera = Pinhole.from_fov(float(rng.uniform(*self.fov_deg)), size[1], size[0])
        return WorldSequence(replace(world, intrinsics=camera))

    def held_out(self) -> SequenceSet | None:
        return self  # another seed shows other worlds


@lru_cache(maxsize=4)
def _world(seed: int, kind: Kind, motion: Motion, frames: int) -> World:
    return make_world(sample_config(seed, kind=kind, motion=motion, frames=frames))


@dataclass(frozen=True)
class WorldSequence:
    """A world as a sequence: frames are rendered when they are read."""

    world: World

    @property
    def num_frames(self) -> int:
        return len(self.world)

    def poses(self) -> list[SE3 | None]:
        return [self.world.camera_from_world[k] for k in range(len(self.world))]

    def read(self, index: int) -> Frame:
        return world_frame(self.world, index)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A mixture of data sets and the shape of its clips."""

    sets: tuple[tuple[SequenceSet, float], ...]
    """Data sets with their shares."""
    sampling: SamplingConfig = SamplingConfig()
    """How sequences that a user names are cut into clips."""
    num_frames: int
    """Frames of a clip."""
    sizes: tuple[tuple[int, int], ...]
    """Image sizes (H, W); every batch has one of them."""
    jitter: AspectJitter | None = None
    """Draws image sizes instead; `sizes` then has the largest."""
    augment: AugmentConfig = AugmentConfig()
    """How pictures are varied."""
    seed: int = 0
    """Of everything random in the data."""

    held_out_sets: tuple[tuple[SequenceSet, float], ...] = ()
    """What validation sees instead of the held-out parts of `sets`."""

    def held_out(self) -> DataConfig | None:
        """What validation sees: the held-out part of each set; None if no set has any."""
        if self.held_out_sets:
            return replace(self, sets=self.held_out_sets)
        parts = [(chosen.held_out(), share) for chosen, share in self.sets]
        sets = tuple((part, share) for part, share in parts if part is not None)
        return replace(self, sets=sets) if sets else None


class ClipBatches(Dataset[Clips]):
    """Batch k of process r, a pure function of (seed, k, r)."""

    def __init__(self, config: DataConfig, batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        self.config, self.batch, self.rank, self.num_ranks = config, batch, rank, num_ranks

    def __getitem__(self, index: int) -> Clips:
        # All processes agree on the size of a step's images, so that none waits for another.
        shape_rng = np.random.default_rng([self.config.seed, 1, index])
        if self.config.jitter is None:
            size = self.config.sizes[shape_rng.integers(len(self.config.sizes))]
        else:
            size = self.config.jitter.draw(shape_rng)
        first = (index * self.num_ranks + self.rank) * self.batch
        return stack_clips([self._clip(first + k, size) for k in range(self.batch)])

    def _clip(self, number: int, size: tuple[int, int]) -> Clips:
        """A function of its number alone; drawn again where a frame cannot be decoded."""
        for attempt in range(MAX_ATTEMPTS):
            again = [attempt] if attempt else []
            try:
                return self._drawn(number, size, np.random.default_rng([self.config.seed, 2, number, *again]))
            except UndecodableFrameError as error:
                logger.warning("clip %d is drawn again: %s", number, error)
        raise Anchor3RError(f"clip {number} met undecodable frames {MAX_ATTEMPTS} times; check the data")

    def _drawn(self, number: int, size: tuple[int, int], rng: np.random.Generator) -> Clips:
        shares = np.array([share for _, share in self.config.sets])
        chosen = self.config.sets[rng.choice(len(shares), p=shares / shares.sum())][0]
        sequence = chosen.draw(self.config.seed, number, size, rng)
        indices = clip_indices(sequence, self.config.num_frames, rng, chosen.sampling)
        frames = (sequence.read(int(i)) for i in indices)
        clip = make_clip(frames, len(indices), size, rng, self.config.augment)
        return clip if chosen.metric else replace(clip, metric=torch.tensor([False]))


def clip_indices(
    sequence: Sequence, count: int, rng: np.random.Generator, config: SamplingConfig
) -> NDArray[np.int64]:
    """Frames of a clip out of those that have a pose; all of them where a sequence is shorter than a clip."""
    poses = sequence.poses()
    known = np.array([k for k, pose in enumerate(poses) if pose is not None])
    count = min(count, len(known))
    if config.ordered and config.candidates == 1:
        return known[sample_video(len(known), count, rng, config)]
    posed = [pose for pose in poses if pose is not None]
    stacked = SE3(np.stack([p.rotation for p in posed]), np.stack([p.translation for p in posed]))
    if not config.ordered:
        measured = None
        if config.overlap == "depth" and isinstance(sequence, RecordedSequence):
            measured = sequence.overlap()
        if measured is not None:
            return known[sample_by_overlap(measured, count, rng)]
        return known[sample_by_pose(stacked, count, rng)]
    drawn = [sample_video(len(known), count, rng, config) for _ in range(config.candidates)]
    return known[max(drawn, key=lambda indices: total_turn(stacked[indices]))]


def batches(data: ClipBatches, first: int, *, workers: int) -> Iterator[Clips]:
    """Batches first, first + 1, … without end; with workers they are made ahead, in order."""
    loader = DataLoader(
        data,
        sampler=range(first, 2**40),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        persistent_workers=bool(workers),
    )
    return iter(loader)
