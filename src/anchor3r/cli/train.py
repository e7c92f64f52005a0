"""`anchor3r train`: trains a network, alone or under `torchrun`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from anchor3r.cli.progress import progress
from anchor3r.errors import Anchor3RError

if TYPE_CHECKING:
    from anchor3r.training.data import SequenceSet
    from anchor3r.training.recipes import Recipe
    from anchor3r.training.trainer import Progress


def train(
    recipe: Annotated[str, tyro.conf.Positional],
    out: Path | None = None,
    resume: bool = False,
    steps: int | None = None,
    clips: int | None = None,
    accumulate: int | None = None,
    data_root: Path | None = None,
    data: tuple[str, ...] = (),
    held_out: tuple[str, ...] = (),
    init: str | None = None,
    seed: int | None = None,
    sharding: str | None = None,
    workers: int = 0,
    threads: int = 1,
    stop_after: int | None = None,
    cost: bool = False,
) -> None:
    """Train a network on a recipe: tiny (CPU, rendered worlds), ablation-small or paper (GPUs, data sets).

    A run can be stopped or killed at any moment and goes on with --resume as if nothing had happened. On
    several GPUs or machines start it with torchrun; every process takes its own share of each step:
    torchrun --nproc-per-node 8 -m anchor3r train paper --out runs/paper --data-root DATA

    Args:
        recipe: tiny, ablation-small or paper.
        out: Folder for checkpoints (state.pt, best.safetensors), the log and its pictures.
        resume: Go on with the run in that folder, if there is one.
        steps: Optimiser steps in all; the recipe's if not given. The learning rate follows it.
        clips: Clips of a micro-batch in each process.
        accumulate: Micro-batches of a step.
        data_root: Folder with a folder (or link) for each data set of the recipe, called by its name as
            `anchor3r data list` has it; those that are there are trained on.
        data: What to train on instead: a data set as tartanair:ROOT, your own map as map:FOLDER, or sequences
            as kitti:ROOT/00, tum:DIR, 7scenes:DIR, …
        held_out: The same, to validate on. Otherwise one of fifty places of each data set is.
        init: Checkpoint to start from.
        seed: Of the clips drawn, 0 if not given. A stage that starts from an earlier one takes another seed,
            and sees new clips.
        sharding: ddp or fsdp.
        workers: Processes that prepare clips ahead.
        threads: Threads of this process; two processes of one thread beat one process of two.
        stop_after: Stop, resumably, after this step.
        cost: Say what a step costs in arithmetic and memory, and train nothing.
    """
    from anchor3r.training.recipes import load_recipe

    given: dict[str, Any] = {
        "steps": steps, "clips_per_process": clips, "accumulate": accumulate, "init": init,
        "sharding": sharding,
    }  # fmt: skip
    sets, validated = _sets(recipe, data_root, data), _sets(recipe, None, held_out)
    chosen = load_recipe(
        recipe, sets=sets, held_out=validated, needs_data=not cost, seed=seed,
        **{k: v for k, v in given.items() if v is not None},
    )  # fmt: skip
    if cost:
        from anchor3r.training.cost import step_cost

        print(step_cost(chosen).in_words())
        return
    if out is None:
        raise Anchor3RError("training needs a folder for its checkpoints: --out runs/NAME")
    _run(chosen, out, resume=resume, workers=workers, threads=threads, stop_after=stop_after)


def _sets(recipe: str, root: Path | None, uris: tuple[str, ...]) -> tuple[tuple[SequenceSet, float], ...]:
    """The data sets that a user names; says what was found of them."""
    if root is None and not uris:
        return ()
    from rich.console import Console
    from rich.table import Table

    from anchor3r.cli.data import index_with_progress
    from anchor3r.training.mixture import describe, open_mixture, open_sets
    from anchor3r.training.recipes import load_recipe

    plain = load_recipe(recipe, needs_data=False)
    sets: tuple[tuple[SequenceSet, float], ...] = ()
    if root is not None:
        if not plain.mixture:
            raise Anchor3RError(f"recipe '{recipe}' has no mixture of data sets; name them with --data")
        sets = open_mixture(plain.mixture, root, index_with_progress)
    sets += open_sets(uris, plain.data.sampling, index_with_progress)
    if os.environ.get("RANK", "0") != "0":
        return sets
    table = Table("data set", box=None, pad_edge=False)
    for column in ("sequences", "held out", "too short", "unusable", "clips", "share"):
        table.add_column(column, justify="right")
    for row in describe(sets, plain.data.num_frames):
        table.add_row(*row)
    Console(width=100).print(table)
    return sets


def _run(
    recipe: Recipe, out: Path, *, resume: bool, workers: int, threads: int, stop_after: int | None
) -> None:
    """Trains; the first process shows how far it is."""
    import torch

    from anchor3r.training.distributed import processes
    from anchor3r.training.trainer import RunConfig, Trainer

    torch.set_num_threads(threads)
    config = RunConfig(out=out, resume=resume, workers=workers, stop_after=stop_after)
    with processes() as group:
        trainer = Trainer(recipe, config, group)
        if not group.is_first:
            trainer.run()
            return
        with progress("training", recipe.steps, "steps") as advance:

            def show(now: Progress) -> None:
                skipped = f", {now.skipped} skipped" if now.skipped else ""
                advance(now.step, f"loss {now.loss:.3f}, {now.frames_per_s:.0f} frames/s{skipped}")

            trainer.run(show)
    print(f"{out / 'best.safetensors'}: the best averaged weights so far; log and curve beside them")
