"""`anchor3r train`: trains a network, alone or under `torchrun`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from anchor3r.cli.output import Json
from anchor3r.cli.progress import progress
from anchor3r.errors import Anchor3RError
from anchor3r.model import TINY_WEIGHTS

if TYPE_CHECKING:
    from anchor3r.training.data import SequenceSet
    from anchor3r.training.recipes import Recipe
    from anchor3r.training.trainer import TrainingProgress

    Sets = tuple[tuple[SequenceSet, float], ...]


@dataclass(frozen=True, kw_only=True)
class AblationOptions:
    """Which variants of an ablation are trained."""

    variant: str | None = None
    """Of an ablation: baseline, pose-cache, first-centric, window-5, window-15 or scratch (the encoder is not
    pretrained)."""
    every_variant: Annotated[bool, tyro.conf.arg(name="all")] = False
    """Of an ablation: train every variant with every seed, one after the other, each into OUT/VARIANT/seed-K.
    Runs that are finished are left as they are; one that was stopped goes on."""
    seeds: int = 3
    """How many seeds --all trains each variant with."""

    def runs(self, out: Path | None, seed: int | None) -> Iterator[tuple[str, int, Path]]:
        """Variant, seed and folder of every run of --all; the first seed of all variants comes first."""
        from anchor3r.training.recipes import VARIANTS

        if not self.every_variant:
            return
        if self.variant is not None or seed is not None:
            raise Anchor3RError("--all trains every variant with every seed; leave --variant and --seed out")
        out = _folder(out)
        for number in range(self.seeds):
            yield from ((name, number, out / name / f"seed-{number}") for name in VARIANTS)


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """How a run uses this machine."""

    workers: int = 0
    """Processes that prepare clips ahead."""
    threads: int = 1
    """Threads of this process; two processes of one thread beat one process of two."""
    stop_after: int | None = None
    """Stop, resumably, after this step."""


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What a run is trained on, instead of what the recipe brings itself."""

    data_root: Path | None = None
    """Folder with a folder (or link) for each data set of the recipe, called by its name in `anchor3r data
    list`; those that are there are trained on."""
    data: tuple[str, ...] = ()
    """What to train on: a data set as tartanair:ROOT, your own map as map:FOLDER, or sequences as
    kitti:ROOT/00, tum:DIR, 7scenes:DIR, …"""
    own_share: float = 0.0
    """With --data: the part of the clips that still comes from what the recipe brings itself, such as
    rendered worlds, so that a network that adapts to a few places does not forget the rest."""
    held_out: tuple[str, ...] = ()
    """Data sets or maps to validate on, written as for --data. Without any, one of fifty places of each data
    set is held out."""

    def opened(self, recipe: str) -> dict[str, Any]:
        """What is trained on and validated on, as arguments of `load_recipe`; says what was found."""
        from anchor3r.cli.data import index_with_progress
        from anchor3r.training.mixture import open_mixture, open_sets
        from anchor3r.training.recipes import load_recipe

        plain = load_recipe(recipe, needs_data=False)
        sets = open_sets(self.data, plain.data.sampling, index_with_progress)
        if self.data_root is not None:
            if not plain.mixture:
                raise Anchor3RError(f"recipe '{recipe}' has no mixture of data sets; name them with --data")
            sets = open_mixture(plain.mixture, self.data_root, index_with_progress) + sets
        held_out = open_sets(self.held_out, plain.data.sampling, index_with_progress)
        if sets and os.environ.get("RANK", "0") == "0":
            _print_sets(sets, plain.data.num_frames, 1 - self.own_share)
        if self.own_share and not sets:
            raise Anchor3RError("--own-share goes with --data or --data-root; all data is the recipe's own")
        return {"sets": sets, "held_out": held_out, "own_share": self.own_share}


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """What is not as the recipe has it."""

    steps: int | None = None
    """Optimiser steps in all; the recipe's if not given. The learning rate follows it."""
    clips: int | None = None
    """Clips of a micro-batch in each process."""
    accumulate: int | None = None
    """Micro-batches of a step."""
    learning_rate: float | None = None
    """Peak of the learning rate; a tenth of the recipe's or less for a short adaptation with --init."""
    init: str | None = None
    """Checkpoint to start from; tiny is the one that ships."""
    encoder: str | None = None
    """File that the image encoder alone starts from: official DINOv2 weights with registers for a vision
    transformer, one of our checkpoints for a correlation stem."""
    sharding: str | None = None
    """ddp or fsdp."""

    def given(self) -> dict[str, Any]:
        """The options that are not left to the recipe, as arguments of `load_recipe`."""
        names = {"clips": "clips_per_process", "encoder": "encoder_init"}
        values = {names.get(field.name, field.name): getattr(self, field.name) for field in fields(self)}
        if self.init == "tiny":
            values["init"] = str(TINY_WEIGHTS)
        return {name: value for name, value in values.items() if value is not None}


_AS_IT_IS, _NO_VARIANT = RecipeOptions(), AblationOptions()
_ONE_THREAD, _OWN_DATA = MachineOptions(), DataOptions()


def train(
    recipe: Annotated[str, tyro.conf.Positional],
    out: Path | None = None,
    resume: bool = False,
    changes: tyro.conf.OmitArgPrefixes[RecipeOptions] = _AS_IT_IS,
    data: tyro.conf.OmitArgPrefixes[DataOptions] = _OWN_DATA,
    ablation: tyro.conf.OmitArgPrefixes[AblationOptions] = _NO_VARIANT,
    seed: int | None = None,
    machine: tyro.conf.OmitArgPrefixes[MachineOptions] = _ONE_THREAD,
    cost: bool = False,
    as_json: Json = False,
) -> dict[str, Any]:
    """Train a network on a recipe: tiny (CPU, rendered worlds), paper (GPUs, data sets), or the paper's
    ablations at their own size (ablation-small) or in miniature on rendered worlds (ablation).

    A run can be stopped or killed at any moment and goes on with --resume as if nothing had happened. On
    several GPUs or machines start it with torchrun; every process takes its own share of each step:
    torchrun --nproc-per-node 8 -m anchor3r train paper --out runs/paper --data-root DATA

    Args:
        recipe: tiny, paper, ablation-small or ablation.
        out: Folder for checkpoints (state.pt, best.safetensors), the log and its pictures.
        resume: Go on with the run in that folder, if there is one.
        changes: What of the recipe is replaced.
        data: What the run is trained on.
        ablation: Which variant of an ablation.
        seed: Of the clips drawn, 0 if not given. A later stage takes another one, and sees new clips.
        machine: How the run uses this machine; nothing of it changes what is learned.
        cost: Say what a step costs in arithmetic and memory, and train nothing.
    """
    from anchor3r.training.recipes import load_recipe

    replaced = changes.given() | data.opened(recipe)
    runs: list[Path] = []
    for name, number, folder in ablation.runs(out, seed):
        chosen = load_recipe(recipe, seed=number, variant=name, **replaced)
        _run(chosen, folder, machine, resume=True)
        runs.append(folder)
    if ablation.every_variant:
        return {"runs": runs, "cost": None}
    chosen = load_recipe(recipe, needs_data=not cost, seed=seed, variant=ablation.variant, **replaced)
    if cost:
        from anchor3r.training.cost import step_cost

        counted = step_cost(chosen)
        print(counted.in_words())
        return {"runs": [], "cost": asdict(counted)}
    _run(chosen, _folder(out), machine, resume=resume)
    return {"runs": [out], "cost": None}


def _print_sets(sets: Sets, num_frames: int, part: float) -> None:
    """What was found; all of it together is this part of the clips."""
    from rich.console import Console
    from rich.table import Table

    from anchor3r.training.mixture import describe

    table = Table("data set", box=None, pad_edge=False)
    for column in ("sequences", "held out", "too short", "unusable", "clips", "share"):
        table.add_column(column, justify="right")
    for row in describe(sets, num_frames, part):
        table.add_row(*row)
    Console(width=100).print(table)


def _folder(out: Path | None) -> Path:
    if out is None:
        raise Anchor3RError("training needs a folder for its checkpoints: --out runs/NAME")
    return out


def _run(recipe: Recipe, out: Path, machine: MachineOptions, *, resume: bool) -> None:
    """Trains; the first process shows how far it is."""
    import torch

    from anchor3r.training.distributed import processes
    from anchor3r.training.trainer import RunConfig, Trainer

    torch.set_num_threads(machine.threads)
    config = RunConfig(out=out, resume=resume, workers=machine.workers, stop_after=machine.stop_after)
    with processes() as group:
        trainer = Trainer(recipe, config, group)
        if not group.is_first:
            trainer.run()
            return
        with progress("training", recipe.steps, "steps") as advance:

            def show(now: TrainingProgress) -> None:
                skipped = f", {now.skipped} skipped" if now.skipped else ""
                advance(now.step, f"loss {now.loss:.3f}, {now.frames_per_s:.0f} frames/s{skipped}")

            trainer.run(show)
    print(f"{out / 'best.safetensors'}: the best averaged weights so far; log and curve beside them")
