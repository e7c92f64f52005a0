"""The whole state of a training run in one file, replaced atomically, whatever the number of processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor

from anchor3r.errors import Anchor3RError
from anchor3r.io.files import replacing
from anchor3r.io.inputs import decoding
from anchor3r.model.checkpoints import load_pickle
from anchor3r.training.distributed import Processes

_DDP_PREFIX = "module."
"""What a replicated model puts before the names of its parameters."""


@dataclass(frozen=True)
class TrainingState:
    """What a run knows besides the network and the optimiser."""

    step: int
    skipped: int
    best_score: float
    ema: dict[str, Tensor]


def save_state(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, state: TrainingState, group: Processes
) -> None:
    """Writes model, optimiser and state; every process has to call it, the first one writes."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, moments = get_state_dict(model, optimiser, options=options)
    ema = whole_tensors(state.ema)
    if not group.is_first:
        return
    content = {
        "weights": weights, "optimiser": moments, "ema": ema,
        "step": state.step, "skipped": state.skipped, "best_score": state.best_score,
    }  # fmt: skip
    with replacing(path) as file:
        torch.save(content, file)


def load_state(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, group: Processes
) -> TrainingState:
    """Puts a saved state back into model and optimiser, whatever number of processes wrote it."""
    content = load_pickle(path)
    if not isinstance(content, dict) or missing_in(content):
        raise Anchor3RError(f"{path}: not a training state of this program; start the run anew")
    with decoding(str(path), "it is not of this recipe; start the run anew"):
        return _restored(content, model, optimiser)


def missing_in(content: dict[str, Any]) -> list[str]:
    """Parts of a training state that a file does not have, or not as they should be."""
    kinds = {
        "weights": dict,
        "optimiser": dict,
        "ema": dict,
        "step": int,
        "skipped": int,
        "best_score": float,
    }
    return [name for name, kind in kinds.items() if not isinstance(content.get(name), kind)]


def _restored(content: dict[str, Any], model: nn.Module, optimiser: torch.optim.Optimizer) -> TrainingState:
    options = StateDictOptions(full_state_dict=True)
    set_state_dict(
        model,
        optimiser,
        model_state_dict=content["weights"],
        optim_state_dict=content["optimiser"],
        options=options,
    )
    ema = {
        name: _like(content["ema"][name.removeprefix(_DDP_PREFIX)], parameter)
        for name, parameter in model.named_parameters()
    }
    return TrainingState(content["step"], content["skipped"], content["best_score"], ema)


def whole_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the CPU, gathered from all processes and under the names of the bare network."""
    whole = {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in tensors.items()}
    return {name.removeprefix(_DDP_PREFIX): value.cpu() for name, value in whole.items()}


def _like(value: Tensor, parameter: Tensor) -> Tensor:
    if isinstance(parameter, DTensor):
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
    return value.to(parameter.device)
