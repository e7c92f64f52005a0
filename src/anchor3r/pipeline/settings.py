"""What a user can choose about mapping and refining: one default each, for Python and the command line."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from anchor3r.dense.depth_images import Fill
from anchor3r.errors import Anchor3RError
from anchor3r.limits import LIMITS
from anchor3r.loops.retrieval import RetrievalConfig
from anchor3r.pipeline.knowledge import PriorSettings
from anchor3r.pipeline.placing import PositionSettings
from anchor3r.predictors.confidence import LIKELY
from anchor3r.predictors.interface import Dtype

NOT_A_RECONSTRUCTION = "NOT A RECONSTRUCTION: the poses are the source's own ground truth with noise added"
"""What has to be said of every map that the ground-truth predictor made."""
_MOST_PLACES = 1_000
"""Earlier places for one keyframe: each is measured, so that more would be a search through all pairs."""
Method = Literal["joint", "decoupled", "paper"]
ScaleModel = Literal["fixed", "free"]
Depths = Literal["measured", "predicted"]
OnlineLoops = Literal["auto", "online", "off"]
Progress = Callable[[str, int, int | None], None]
"""Told which stage the work is at, how much of it is done, and of how much; None where that is not known."""


def unwatched(stage: str, done: int, total: int | None) -> None:
    """The progress of work that nobody watches."""


@dataclass(frozen=True, kw_only=True)
class MapSettings:
    """How a source becomes a map."""

    predictor: str = "auto"
    """What measures windows: auto (features, and tiny where that has no answer), tiny, features, a
    checkpoint, vggt:PATH or ground-truth[:DEGREES,FRACTION]."""
    window: int | None = None
    """Frames in a window; the predictor's own number if not given."""
    every: int = 1
    """With vggt:PATH, one frame out of so many is an anchor; its window places those before it."""
    device: str = "auto"
    """Where a network runs: auto (a GPU if there is one), cpu, cuda or cuda:1."""
    dtype: Dtype = "auto"
    """Precision of a network's backbone and cache: auto is bfloat16 on a GPU that computes in it and float32
    elsewhere. Half the memory; heads stay in float32."""
    compile: bool = False
    """Have torch.compile translate a network's encoder and heads: a minute at the start, faster after it."""
    camera: str | None = None
    """Folder of a map whose camera, as it was found there, is taken and held: a second pass over a source, or
    another video of the same camera and size."""
    keep_images: bool = True
    """Keep a small JPEG of every frame, for loop closure and viewing."""
    loops: OnlineLoops = "auto"
    """online closes loops while the source streams, on a second thread: poses told before are corrected, and
    parts that were lost are joined again where a place is recognised. It needs the kept images. auto does so
    with what was recorded, off with live cameras and where no images are kept."""
    seed: int = 0
    """Seed of every random choice."""
    threads: int | None = None
    """CPU threads of a network that is large enough to gain from them, all cores if not given; everything
    else has one, so that its results do not depend on it."""
    positions: PositionSettings = PositionSettings()
    """Positions that place the map while it grows, as soon as they tell its scale and direction."""

    def __post_init__(self) -> None:
        _insist_on_ranges(self, window=LIMITS.window, every=LIMITS.window, threads=LIMITS.threads)
        if not 0 <= self.seed <= LIMITS.seed:
            raise Anchor3RError(f"--seed must lie in 0 … {LIMITS.seed}, not {self.seed}")
        if self.loops == "online" and not self.keep_images:
            raise Anchor3RError("--loops online measures on kept images; leave --no-keep-images away")


@dataclass(frozen=True, kw_only=True)
class RefineSettings:
    """How a finished map is refined."""

    loops: bool = True
    """Look for places that were seen before and close the loops."""
    method: Method = "joint"
    """joint solves rotations, positions and scales together; decoupled averages rotations first, then
    positions; paper is Algorithm 2 of the paper to the letter: one scale, and no verification of loops."""
    scale: ScaleModel | None = None
    """One scale for the whole map, or one for each window; free if not given and the predictor measured how
    its scale changes."""
    keyframe_interval: int = 5
    """Compare one frame out of so many with earlier places; by places, one out of five or a multiple."""
    top_k: int = RetrievalConfig.top_k
    """Earlier places to try for a keyframe."""
    descriptor: str | None = None
    """How places are recognised: tokens (from the predictor, as it mapped), places (by local features, also
    from elsewhere), gradients (of the kept images) or netvlad:PATH (public Pittsburgh weights). If not given,
    tokens if the map has them, else places if it has depths."""
    predictor: str | None = None
    """What measures loops; the predictor that the map was made with if not given. Where it finds no relation,
    places are measured by the matches of their features."""
    device: str = "auto"
    """Where a network that measures loops runs: auto (a GPU if there is one), cpu, cuda or cuda:1."""
    threads: int | None = None
    """CPU threads of a network that is large enough to gain from them, or of the classical predictor, one
    loop event each; all cores if not given. Everything else has one. The classical predictor's result is the
    same with any number."""
    priors: PriorSettings = PriorSettings()
    """What is known from elsewhere; it gives the map metres, and its place on the Earth."""

    def __post_init__(self) -> None:
        if self.priors and (self.method != "joint" or self.scale == "fixed"):
            raise Anchor3RError("priors need method joint with free scales; leave --method and --scale away")
        _insist_on_ranges(self, keyframe_interval=LIMITS.frames, top_k=_MOST_PLACES, threads=LIMITS.threads)


@dataclass(frozen=True, kw_only=True)
class DensifySettings:
    """How the depth of a map's keyframes is measured."""

    poses: str | None = None
    """online, or the name of a refinement; the refined ones if there are any. Depth that was measured with
    other poses is replaced."""
    size: int = 640
    """Longer side in pixels that images are reduced to; the time goes with its square."""
    every: int | None = None
    """Measure one frame out of so many; if not given, keyframes are as far apart as what they see is new."""
    fill: Fill = "holes"
    """What to do where nothing can be measured, as on walls without texture: holes leaves them, planes
    puts planes through what is measured around them, all also takes the predictor's own points over. Each
    depth says where it comes from and how likely it is right."""
    fuse: bool = True
    """Then fuse the depths into one surface, as anchor3r fuse does with its own settings."""
    threads: int | None = None
    """CPU threads, one keyframe each; all cores if not given. The result is the same."""

    def __post_init__(self) -> None:
        _insist_on_ranges(self, size=LIMITS.image_side, every=LIMITS.frames, threads=LIMITS.threads)


@dataclass(frozen=True, kw_only=True)
class FuseSettings:
    """How the depths of a map become one surface."""

    poses: str | None = None
    """online, or the name of a refinement; the refined ones if there are any."""
    depths: Depths = "measured"
    """measured are those of anchor3r densify, predicted the point maps that the predictor gave as it
    mapped: a network's dense ones are worth it, those of features are interpolated between few points."""
    voxel: float | None = None
    """Side of a voxel in the map's unit, below which nothing is resolved; if not given, three pixels of the
    depth images at their median depth."""
    confidence: float = LIKELY
    """Leave out depths that are less likely than this to be within 5 %."""
    min_views: int = 3
    """Keep surfaces that so many images saw."""
    min_component: int = 200
    """Leave out pieces of surface with fewer vertices than this that nothing holds to the rest."""
    truncation: float = 4.0
    """Distance from a surface in voxels over which depths are averaged: more for noisier depths, less for
    thinner things."""
    memory_mb: int = 256
    """Memory for voxels; what is more waits in a temporary file in the folder of the map."""
    threads: int | None = None
    """CPU threads; all cores if not given. The result is the same."""

    def __post_init__(self) -> None:
        _insist_on_ranges(self, threads=LIMITS.threads)
        if self.voxel is not None and not (math.isfinite(self.voxel) and self.voxel > 0):
            raise Anchor3RError(f"--voxel must be a positive length, not {self.voxel}")
        if not 0 <= self.confidence <= 1:
            raise Anchor3RError(f"--confidence is a probability between 0 and 1, not {self.confidence}")
        for name, least in (("min_views", 1), ("min_component", 0), ("truncation", 2), ("memory_mb", 16)):
            if getattr(self, name) < least:
                option = name.replace("_", "-")
                raise Anchor3RError(f"--{option} must be at least {least}, not {getattr(self, name)}")


def _insist_on_ranges(
    settings: MapSettings | RefineSettings | DensifySettings | FuseSettings, **most: int
) -> None:
    for name, largest in most.items():
        value = getattr(settings, name)
        if value is not None and not 1 <= value <= largest:
            raise Anchor3RError(f"--{name.replace('_', '-')} must lie in 1 … {largest}, not {value}")
