"""Recipes: everything that decides what a training run does, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import cos, pi
from typing import Any, Literal

from anchor3r.errors import Anchor3RError
from anchor3r.model import TINY_WEIGHTS
from anchor3r.model.config import PRESETS, MatchingConfig, NetworkConfig
from anchor3r.training.data import DataConfig, SequenceSet, WorldSet
from anchor3r.training.losses import LossConfig
from anchor3r.training.mixture import ABLATION_MIXTURE, PAPER_MIXTURE, MixtureEntry
from anchor3r.training.sampling import NO_AUGMENTATION, AspectJitter, AugmentConfig, SamplingConfig

Sharding = Literal["ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """AdamW with warm-up and cosine decay."""

    learning_rate: float = 1e-4
    """Peak."""
    head_factor: float = 1.0
    """Learning rate of the prediction heads over that of the rest. Below 1 where batches are small: else the
    heads follow the last few clips, and the rest has nothing steady to learn from."""
    warmup_steps: int = 2_000
    """Steps of linear rise to the peak."""
    final_fraction: float = 0.01
    """Share of the peak that is left at the last step."""
    weight_decay: float = 0.05
    """Of matrices; vectors and biases have none."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the moments."""
    clip_norm: float = 1.0
    """Largest gradient norm."""

    def rate(self, step: int, total: int) -> float:
        """Learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, total - self.warmup_steps))
        low = self.final_fraction
        return self.learning_rate * (low + (1 - low) * 0.5 * (1 + cos(pi * progress)))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run."""

    name: str
    """What it is called."""
    network: NetworkConfig
    """What is trained."""
    loss: LossConfig
    """What it minimises."""
    data: DataConfig
    """What it sees."""
    optimiser: OptimiserConfig = OptimiserConfig()
    """How it moves."""
    steps: int
    """Optimiser steps in all."""
    clips_per_process: int = 1
    """Clips of a micro-batch on each process."""
    accumulate: int = 1
    """Micro-batches of a step."""
    ema_decay: float = 0.999
    """Memory of the averaged weights, which are the ones kept."""
    known_camera_probability: float = 1.0
    """Share of batches in which the network gets the intrinsics."""
    gradient_checkpointing: bool = False
    """Recomputes layers in the backward pass to save memory."""
    sharding: Sharding = "ddp"
    """`ddp` keeps the whole network on each device, `fsdp` a share of it."""
    max_bad_steps: int = 20
    """So many steps in a row with a loss that is not finite end the run."""
    init: str | None = None
    """Checkpoint to start from."""
    mixture: tuple[MixtureEntry, ...] = ()
    """Data sets that are looked for under a data root."""
    encoder_init: str | None = None
    """File that the image encoder alone starts from: official DINOv2 weights with registers for a vision
    transformer, one of our checkpoints for a correlation stem."""
    freeze_encoder: bool = False
    """Whether the image encoder, and the matcher of a correlation stem, keep their weights."""

    def __post_init__(self) -> None:
        if self.init is not None and self.encoder_init is not None:
            raise Anchor3RError(
                f"'{self.name}' starts from the whole network {self.init} or from the encoder "
                f"{self.encoder_init}, not from both"
            )
        if self.freeze_encoder and self.loss.match_weight:
            raise ValueError("a frozen matcher has no loss of its own: match_weight must be 0")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def paper() -> Recipe:
    """The paper's training: 48 frames, W = 10, 518 px, 80k steps on 32 GPUs, from VGGT (`convert vggt`).

    Its sixteen data sets are looked for under --data-root; none can be shipped. Pictures are varied as the
    paper says and no further: aspect ratios, landscape and portrait.
    """
    return Recipe(
        name="paper",
        network=PRESETS["full"],
        loss=LossConfig(),
        data=DataConfig(
            sets=(),
            sampling=SamplingConfig(
                max_interval=8, video_probability=0.9, fixed_probability=0.9, reverse_probability=0.0
            ),
            num_frames=48,
            sizes=((518, 518),),
            jitter=AspectJitter(),
            augment=NO_AUGMENTATION,
        ),
        mixture=PAPER_MIXTURE,
        steps=80_000,
        gradient_checkpointing=True,
        sharding="fsdp",
        init="vggt-init.safetensors",
    )


def ablation_small() -> Recipe:
    """The paper's ablations: ViT-S on Virtual KITTI 2, whose sequences are named with --data.

    The paper does not say what the encoder starts from; DINOv2-S (--encoder) is what its size comes with.
    """
    return Recipe(
        name="ablation-small",
        network=PRESETS["small"],
        loss=LossConfig(),
        data=DataConfig(
            sets=(),
            sampling=SamplingConfig(max_interval=5, video_probability=1.0, fixed_probability=0.9),
            num_frames=24,
            sizes=((154, 518),),
        ),
        mixture=ABLATION_MIXTURE,
        steps=40_000,
        gradient_checkpointing=True,
    )


def ablation() -> Recipe:
    """The paper's ablations in miniature: what a CPU core trains in minutes, on rendered streets.

    Nothing but the blocks and the heads is trained: the correlation stem is the one that ships, as a
    pretrained encoder is where there are GPUs. Its matches replace what a vision transformer would have to
    learn about correspondence. What makes a few hundred clips enough to learn to turn, each found on held-out
    clips: clips in which the car turns, played forwards; rotations that count as much as translations; a
    camera head that starts at the identity; matches that are as loud as the stem's tokens; blocks that start
    as nearly nothing; a large learning rate.
    """
    stem = MatchingConfig(area=48 * 64, token_gain=0.05, match_gain=10.0, window_estimation=False)
    network = replace(PRESETS["tiny"], matching=stem, window=10, layer_scale=0.02, camera_start="identity")
    streets = WorldSet(
        shares=(("street", "grid", 1.0),),
        frames=200,
        clips_per_world=8,
        sampling=SamplingConfig(max_interval=1, reverse_probability=0.0, candidates=4),
    )
    return Recipe(
        name="ablation",
        network=network,
        loss=replace(tiny().loss, match_weight=0.0, rotation_weight=50.0),
        data=DataConfig(
            sets=((streets, 1.0),), num_frames=20, sizes=((48, 64),), augment=AugmentConfig(min_crop=0.9)
        ),
        optimiser=OptimiserConfig(
            learning_rate=2.5e-3, warmup_steps=20, final_fraction=0.02, betas=(0.9, 0.98), clip_norm=20.0
        ),
        accumulate=2,
        steps=2_000,
        ema_decay=0.95,
        encoder_init=str(TINY_WEIGHTS),
        freeze_encoder=True,
    )


def _with_network(**changes: Any) -> Callable[[Recipe], Recipe]:
    return lambda recipe: replace(recipe, network=replace(recipe.network, **changes))


def _from_scratch(recipe: Recipe) -> Recipe:
    """Without a pretrained encoder: it is trained, too, a correlation stem by the loss of its matches."""
    match_weight = 0.0 if recipe.network.matching is None else tiny().loss.match_weight
    loss = replace(recipe.loss, match_weight=match_weight)
    return replace(recipe, loss=loss, encoder_init=None, freeze_encoder=False)


VARIANTS: dict[str, Callable[[Recipe], Recipe]] = {
    "baseline": lambda recipe: recipe,
    "pose-cache": _with_network(cache_pose_tokens=True),
    "first-centric": _with_network(gauge="first"),
    "window-5": _with_network(window=5),
    "window-15": _with_network(window=15),
    "scratch": _from_scratch,
}
"""Rows of the paper's ablations: what each changes of `ablation-small` or `ablation`. The baseline is the
paper's method: current-centric, image-only cache, W = 10, pretrained encoder."""
ABLATIONS = ("ablation-small", "ablation")
"""Recipes that have variants."""


TINY_SIZES = ((96, 128), (96, 144), (80, 144), (80, 160), (64, 192), (64, 208))
"""Image sizes (H, W) of the tiny network: from 4:3 to 3.25:1, all of about the same area."""


def tiny() -> Recipe:
    """What a CPU can train: the correlation stem and a small transformer, on rendered worlds alone."""
    return Recipe(
        name="tiny",
        network=PRESETS["tiny"],
        loss=LossConfig(
            scale="metric",
            translation="direction",
            points="log_depth",
            confidence_weight=0.05,  # more would let it give up what is hard: horizons and grazing ground
            match_weight=1.0,
            camera_weight=0.5,
            horizon=100.0,
        ),
        data=DataConfig(sets=((WorldSet(), 1.0),), num_frames=8, sizes=TINY_SIZES),
        optimiser=OptimiserConfig(
            learning_rate=6e-4,
            head_factor=0.5,
            warmup_steps=100,
            final_fraction=0.02,
            betas=(0.9, 0.98),
            clip_norm=20.0,
        ),
        accumulate=2,
        steps=30_000,
        ema_decay=0.998,
        known_camera_probability=0.8,
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    "paper": paper,
    "ablation-small": ablation_small,
    "ablation": ablation,
    "tiny": tiny,
}


def load_recipe(
    name: str,
    *,
    sets: tuple[tuple[SequenceSet, float], ...] = (),
    held_out: tuple[tuple[SequenceSet, float], ...] = (),
    own_share: float = 0.0,
    needs_data: bool = True,
    learning_rate: float | None = None,
    seed: int | None = None,
    variant: str | None = None,
    **changes: Any,
) -> Recipe:
    """A recipe by name, trained on `sets` instead of its own, with fields replaced.

    `own_share` of the clips still comes from the recipe's own sets, so that nothing is forgotten.
    `held_out` is validated on instead of the held-out parts of the sets; `seed` is that of the data and of
    the initial weights, from 0 to 2³¹ - 1; `variant` is one of `VARIANTS`.
    """
    if name not in RECIPES:
        raise Anchor3RError(f"no recipe is called '{name}'; there are {', '.join(RECIPES)}")
    recipe = RECIPES[name]()
    if not 0 <= own_share < 1 or (own_share and not recipe.data.sets):
        raise Anchor3RError(
            f"the share of the recipe's own data is {own_share}; give a number from 0 to below 1, and a "
            "recipe that brings data, such as tiny"
        )
    if sets:
        sets = _mixed(sets, recipe.data.sets, own_share)
        recipe = replace(recipe, data=replace(recipe.data, sets=sets, held_out_sets=held_out))
    if learning_rate is not None:
        recipe = replace(recipe, optimiser=replace(recipe.optimiser, learning_rate=learning_rate))
    if needs_data and not recipe.data.sets:
        raise Anchor3RError(
            f"recipe '{name}' brings no data; name where its sets are with --data-root ROOT, or sequences "
            "with --data vkitti2:ROOT …; see docs/data.md"
        )
    if seed is not None:
        if not 0 <= seed < 2**31:
            raise Anchor3RError(f"seed is {seed}; give a number from 0 to {2**31 - 1}")
        recipe = replace(recipe, data=replace(recipe.data, seed=seed))
    recipe = replace(recipe, **changes)
    return recipe if variant is None else _varied(recipe, variant)


def _mixed(
    sets: tuple[tuple[SequenceSet, float], ...], own: tuple[tuple[SequenceSet, float], ...], own_share: float
) -> tuple[tuple[SequenceSet, float], ...]:
    """Both, the recipe's own with this part of all shares."""
    if not own_share:
        return sets
    total, total_own = (sum(share for _, share in some) for some in (sets, own))
    return (
        *((chosen, share * (1 - own_share) / total) for chosen, share in sets),
        *((chosen, share * own_share / total_own) for chosen, share in own),
    )


def _varied(recipe: Recipe, variant: str) -> Recipe:
    if recipe.name not in ABLATIONS:
        raise Anchor3RError(f"'{recipe.name}' has no variants; {' and '.join(ABLATIONS)} have")
    if variant not in VARIANTS:
        raise Anchor3RError(f"no variant is called '{variant}'; there are {', '.join(VARIANTS)}")
    return replace(VARIANTS[variant](recipe), name=f"{recipe.name}-{variant}")
