"""The training loop: plain PyTorch, from one CPU process to many GPUs.

Nothing is drawn from a global random generator, batches and learning rates are functions of the step, and the
state is written whole: a run that was killed goes on as if nothing had happened.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from anchor3r.errors import Anchor3RError
from anchor3r.io.files import replacing
from anchor3r.model.checkpoints import load_tensors, read_tensors, save_checkpoint
from anchor3r.model.network import Anchor3RNetwork
from anchor3r.training.clips import Clips
from anchor3r.training.data import ClipBatches, batches
from anchor3r.training.distributed import Processes, distribute, gradient_sync
from anchor3r.training.journal import Journal
from anchor3r.training.losses import Loss
from anchor3r.training.recipes import Recipe
from anchor3r.training.state import TrainingState, load_state, save_state, whole_tensors
from anchor3r.training.validation import validate


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How a run behaves on this machine; does not change what is learned."""

    out: Path
    """Folder of checkpoints and logs."""
    resume: bool = False
    """Goes on from the folder's last state; without one it starts."""
    workers: int = 0
    """Processes that make clips ahead; 0 makes them in the training process."""
    save_every_s: float = 120.0
    """Seconds between checkpoints."""
    log_every: int = 20
    """Steps between lines of the log."""
    validate_every: int = 1_000
    """Steps between validations, each followed by a picture of samples and of the curve."""
    stop_after: int | None = None
    """Stops (resumably) after this step."""


@dataclass(frozen=True)
class TrainingProgress:
    """How far a run has come, for a progress bar."""

    step: int
    steps: int
    loss: float
    frames_per_s: float
    skipped: int


class Trainer:
    """One run of a recipe; `run` trains until the end of its steps."""

    def __init__(self, recipe: Recipe, config: RunConfig, group: Processes) -> None:
        self.recipe, self.config, self.group = recipe, config, group
        torch.manual_seed(recipe.data.seed)
        network = Anchor3RNetwork(recipe.network)
        network.gradient_checkpointing = recipe.gradient_checkpointing
        if recipe.init is not None:
            load_tensors(network, read_tensors(recipe.init)[0], source=recipe.init)
        if recipe.encoder_init is not None:
            network.load_encoder(recipe.encoder_init)
        for part in network.encoder_parts if recipe.freeze_encoder else ():
            part.requires_grad_(False)
        self.model = distribute(network, recipe.sharding, group)
        self.optimiser = make_optimiser(self.model, recipe)
        self.ema = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.loss = Loss(recipe.loss)
        self.step = 0
        self.skipped = 0
        self.bad_steps = 0
        self.best_score = float("inf")
        self._prepare_folder()
        self.journal = Journal(config.out, self.step) if group.is_first else None

    def run(self, on_step: Callable[[TrainingProgress], None] | None = None) -> None:
        """Trains; `on_step` is called after every step."""
        recipe, config = self.recipe, self.config
        data = ClipBatches(recipe.data, recipe.clips_per_process, self.group.rank, self.group.count)
        stream = batches(data, self.step * recipe.accumulate, workers=config.workers)
        last = min(recipe.steps, config.stop_after or recipe.steps)
        frames = recipe.data.num_frames * recipe.clips_per_process * recipe.accumulate * self.group.count
        saved = time.monotonic()
        self.model.train()
        while self.step < last:
            began = time.monotonic()
            terms = self.group.mean(self._step(stream))
            self.step += 1
            rate = frames / (time.monotonic() - began)
            if self.journal and (self.step % config.log_every == 0 or self.step == last):
                lr = recipe.optimiser.rate(self.step - 1, recipe.steps)
                self.journal.log(self.step, terms | {"lr": lr, "frames_per_s": rate, "skipped": self.skipped})
            if self.step % config.validate_every == 0 or self.step == last:
                self._validate()
            if time.monotonic() - saved > config.save_every_s or self.step == last:
                self.save()
                saved = time.monotonic()
            if on_step:
                on_step(TrainingProgress(self.step, recipe.steps, terms["total"], rate, self.skipped))

    def _step(self, stream: Iterator[Clips]) -> dict[str, Tensor]:
        """One optimiser step; left out, and counted, where the loss or its gradient is not finite."""
        recipe = self.recipe
        self.optimiser.zero_grad(set_to_none=True)
        finite = True
        terms: dict[str, Tensor] = {}
        for micro in range(recipe.accumulate):
            with gradient_sync(self.model, micro == recipe.accumulate - 1):
                loss, terms = self._forward(next(stream))
                finite = self.group.all_finite(loss) and finite
                (loss / recipe.accumulate).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), recipe.optimiser.clip_norm)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if not (finite and self.group.all_finite(norm)):
            self._skip()
            return terms
        self.bad_steps = 0
        rate = recipe.optimiser.rate(self.step, recipe.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        self.optimiser.step()
        self._update_ema()
        return terms | {"gradient_norm": norm}

    def _forward(self, clips: Clips) -> tuple[Tensor, dict[str, Tensor]]:
        device = self.group.device
        clips = clips.to(device)
        draw = np.random.default_rng([self.recipe.data.seed, 3, self.step]).random()
        cameras = clips.cameras if draw < self.recipe.known_camera_probability else None
        # Half precision only where the hardware is made for it; on CPUs it is slower than float32.
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            output = self.model(clips.images, cameras)
        return self.loss(output, clips)

    def _skip(self) -> None:
        self.skipped += 1
        self.bad_steps += 1
        if self.journal:
            self.journal.log(self.step, {"skipped": self.skipped})
        if self.bad_steps >= self.recipe.max_bad_steps:
            raise Anchor3RError(
                f"the loss was not finite for {self.bad_steps} steps up to step {self.step}; the last good "
                f"state is {self.config.out / 'state.pt'}: lower the learning rate and resume"
            )

    @torch.no_grad()
    def _update_ema(self) -> None:
        # Early on the average would remember little but the random start.
        decay = min(self.recipe.ema_decay, (1 + self.step) / (10 + self.step))
        for name, parameter in self.model.named_parameters():
            self.ema[name].lerp_(parameter.detach(), 1 - decay)

    def _validate(self) -> None:
        """Scores the averaged weights on held-out clips and keeps the best; every process takes part."""
        with _Swapped(self.model, self.ema):
            scores = validate(self.model, self.recipe, self.group)
        if scores is None:
            self.export(self.config.out / "best.safetensors")
            return
        if self.journal is not None:
            self.journal.log(self.step, {f"val/{k}": v for k, v in scores.numbers.items()})
            self.journal.draw(self.step, scores.picture)
        if scores.numbers["score"] < self.best_score:
            self.best_score = scores.numbers["score"]
            self.export(self.config.out / "best.safetensors")

    def export(self, path: Path) -> None:
        """Writes the averaged weights as a checkpoint; every process takes part, the first one writes."""
        tensors = whole_tensors(self.ema)
        if self.group.is_first:
            save_checkpoint(path, tensors, config=self.recipe.network.to_json())

    def save(self) -> None:
        """Writes everything needed to go on; collective where parameters are sharded."""
        state = TrainingState(self.step, self.skipped, self.best_score, self.ema)
        save_state(self.config.out / "state.pt", self.model, self.optimiser, state, self.group)

    def _prepare_folder(self) -> None:
        out, state = self.config.out, self.config.out / "state.pt"
        resuming = self.config.resume and state.exists()
        if state.exists() and not self.config.resume:
            raise Anchor3RError(f"{out} holds a run already; go on with --resume or choose another folder")
        if resuming:
            loaded = load_state(state, self.model, self.optimiser, self.group)
            self.step, self.skipped, self.best_score = loaded.step, loaded.skipped, loaded.best_score
            for name, value in loaded.ema.items():
                self.ema[name].copy_(value)
        if self.group.is_first:
            with replacing(out / "recipe.json") as file:
                file.write(json.dumps(self.recipe.to_dict(), indent=1, default=str).encode())


class _Swapped:
    """Exchanges a model's parameters with others for the length of a `with` block."""

    def __init__(self, model: nn.Module, other: dict[str, Tensor]) -> None:
        self.model, self.other = model, other

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        if isinstance(self.model, FSDPModule):
            # A forward pass without a backward pass leaves the outermost parameters gathered.
            self.model.reshard()
        for name, parameter in self.model.named_parameters():
            kept = parameter.detach().clone()
            parameter.copy_(self.other[name])
            self.other[name].copy_(kept)


def make_optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW that decays matrices only; `factor` of a group scales its learning rate."""
    config = recipe.optimiser
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault(("_head." in name, parameter.ndim >= 2), []).append(parameter)
    return torch.optim.AdamW(
        [
            {
                "params": parameters,
                "weight_decay": config.weight_decay if is_matrix else 0.0,
                "factor": config.head_factor if in_head else 1.0,
            }
            for (in_head, is_matrix), parameters in groups.items()
        ],
        lr=config.learning_rate,
        betas=config.betas,
    )
