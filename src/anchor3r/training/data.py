"""What is trained on: data sets that open sequences, and a mixture that draws clips from them.

A clip is a function of its number alone, so training resumes by counting on, and every process of a cluster
has numbers of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from anchor3r.errors import Anchor3RError
from anchor3r.geometry import SE3, Pinhole
from anchor3r.sources import Frame, open_source
from anchor3r.sources.worlds import world_frame
from anchor3r.training.clips import Clips
from anchor3r.training.sampling import AugmentConfig, SamplingConfig, make_clip, sample_by_pose, sample_video
from anchor3r.worlds import World, make_world, sample_config
from anchor3r.worlds.world import Kind, Motion

FIRST_TRAINING_SEED = 1_000_000
"""Worlds below this seed are for tests and evaluation and are never trained on."""


class Sequence(Protocol):
    """Frames of one place, with depth, pose and intrinsics. Every `Source` with ground truth is one."""

    @property
    def num_frames(self) -> int | None: ...

    def read(self, index: int) -> Frame: ...


class SequenceSet(Protocol):
    """A data set."""

    @property
    def sampling(self) -> SamplingConfig:
        """How its sequences are cut into clips."""

    def draw(self, seed: int, number: int, size: tuple[int, int], rng: np.random.Generator) -> Sequence:
        """A random sequence for the clip with this number, which will be resized to `size` (H, W).

        Clips drawn with another seed share nothing with it where a set is endless.
        """


@dataclass(frozen=True, kw_only=True)
class SourceSet:
    """Sequences on disk, named as `open_source` names them: `kitti:ROOT/00`, `tum:DIR`, `7scenes:DIR`, …"""

    uris: tuple[str, ...]
    """One for each sequence."""
    sampling: SamplingConfig = SamplingConfig()
    """How they are cut into clips."""

    def draw(self, seed: int, number: int, size: tuple[int, int], rng: np.random.Generator) -> Sequence:
        return _open(self.uris[rng.integers(len(self.uris))])


@lru_cache(maxsize=64)
def _open(uri: str) -> Sequence:
    source = open_source(uri)
    if not source.num_frames:
        raise Anchor3RError(f"{uri}: cannot be trained on, it does not say how many frames it has")
    return source


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

    def draw(self, seed: int, number: int, size: tuple[int, int], rng: np.random.Generator) -> Sequence:
        world_rng = np.random.default_rng([FIRST_TRAINING_SEED, seed, number // self.clips_per_world])
        shares = np.array([share for _, _, share in self.shares])
        kind, motion, _ = self.shares[world_rng.choice(len(shares), p=shares / shares.sum())]
        world = _world(int(world_rng.integers(FIRST_TRAINING_SEED, 2**31)), kind, motion, self.frames)
        camera = Pinhole.from_fov(float(rng.uniform(*self.fov_deg)), size[1], size[0])
        return WorldSequence(replace(world, intrinsics=camera))


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
    augment: AugmentConfig = AugmentConfig()
    """How pictures are varied."""
    seed: int = 0
    """Of everything random in the data."""


class ClipBatches(Dataset[Clips]):
    """Batch k of process r, a pure function of (seed, k, r)."""

    def __init__(self, config: DataConfig, batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        self.config, self.batch, self.rank, self.num_ranks = config, batch, rank, num_ranks

    def __getitem__(self, index: int) -> Clips:
        # All processes agree on the size of a step's images, so that none waits for another.
        shape_rng = np.random.default_rng([self.config.seed, 1, index])
        size = self.config.sizes[shape_rng.integers(len(self.config.sizes))]
        first = (index * self.num_ranks + self.rank) * self.batch
        clips = [self._clip(first + k, size) for k in range(self.batch)]
        return Clips(
            *(
                torch.cat([getattr(c, name) for c in clips])
                for name in ("images", "cameras", "depth", "camera_from_world")
            )
        )

    def _clip(self, number: int, size: tuple[int, int]) -> Clips:
        rng = np.random.default_rng([self.config.seed, 2, number])
        shares = np.array([share for _, share in self.config.sets])
        chosen = self.config.sets[rng.choice(len(shares), p=shares / shares.sum())][0]
        sequence = chosen.draw(self.config.seed, number, size, rng)
        indices = _indices(sequence, self.config.num_frames, rng, chosen.sampling)
        frames = [sequence.read(int(i)) for i in indices]
        return make_clip(frames, size, rng, self.config.augment)


def _indices(sequence: Sequence, count: int, rng: np.random.Generator, config: SamplingConfig) -> np.ndarray:
    length = sequence.num_frames
    assert length is not None
    if config.ordered:
        return sample_video(length, count, rng, config)
    poses = [sequence.read(i).camera_from_world for i in range(length)]
    known = [p for p in poses if p is not None]
    stacked = SE3(np.stack([p.rotation for p in known]), np.stack([p.translation for p in known]))
    return sample_by_pose(stacked, count, rng)


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
