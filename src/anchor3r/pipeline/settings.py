"""What a user can choose about mapping and refining: one default each, for Python and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anchor3r.dense.depth_images import Fill
from anchor3r.errors import Anchor3RError
from anchor3r.limits import LIMITS
from anchor3r.loops.retrieval import RetrievalConfig
from anchor3r.predictors.interface import Dtype

NOT_A_RECONSTRUCTION = "NOT A RECONSTRUCTION: the poses are the source's own ground truth with noise added"
"""What has to be said of every map that the ground-truth predictor made."""
_MOST_PLACES = 1_000
"""Earlier places for one keyframe: each is measured, so that more would be a search through all pairs."""
Method = Literal["joint", "decoupled", "paper"]
ScaleModel = Literal["fixed", "free"]


@dataclass(frozen=True, kw_only=True)
class MapSettings:
    """How a source becomes a map."""

    predictor: str = "auto"
    """What measures windows: auto, tiny, features, a checkpoint, vggt:PATH or
    ground-truth[:DEGREES,FRACTION]."""
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
    keep_images: bool = True
    """Keep a small JPEG of every frame, for loop closure and viewing."""
    seed: int = 0
    """Seed of every random choice."""
    threads: int | None = None
    """CPU threads; if not given one, or all cores with a network that is large enough to gain from them."""

    def __post_init__(self) -> None:
        _insist_on_ranges(self, window=LIMITS.window, every=LIMITS.window, threads=LIMITS.threads)
        if not 0 <= self.seed <= LIMITS.seed:
            raise Anchor3RError(f"--seed must lie in 0 … {LIMITS.seed}, not {self.seed}")


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
    """Compare one frame out of so many with earlier places."""
    top_k: int = RetrievalConfig.top_k
    """Earlier places to try for a keyframe."""
    descriptor: str | None = None
    """How places are recognised: tokens (from the predictor, as it mapped), gradients (from the kept images)
    or netvlad:PATH (public Pittsburgh weights). Tokens if the map has them."""
    predictor: str | None = None
    """What measures loops; the predictor that the map was made with if not given."""
    device: str = "auto"
    """Where a network that measures loops runs: auto (a GPU if there is one), cpu, cuda or cuda:1."""
    threads: int | None = None
    """CPU threads; if not given one, or all cores with a network that is large enough to gain from them."""

    def __post_init__(self) -> None:
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
    fill: Fill = "planes"
    """What to do where nothing can be measured, as on walls without texture: holes leaves them, planes
    puts planes through what is measured around them, all also takes the predictor's own points over. Each
    depth says where it comes from and how likely it is right."""
    threads: int | None = None
    """CPU threads, one keyframe each; all cores if not given. The result is the same."""

    def __post_init__(self) -> None:
        _insist_on_ranges(self, size=LIMITS.image_side, every=LIMITS.frames, threads=LIMITS.threads)


def _insist_on_ranges(settings: MapSettings | RefineSettings | DensifySettings, **most: int) -> None:
    for name, largest in most.items():
        value = getattr(settings, name)
        if value is not None and not 1 <= value <= largest:
            raise Anchor3RError(f"--{name.replace('_', '-')} must lie in 1 … {largest}, not {value}")
