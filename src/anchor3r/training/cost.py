"""What a training step of a recipe costs, counted on tensors that have shapes but no memory.

Nothing is estimated but the precision: activations are counted as 2 bytes a number, as automatic mixed
precision keeps most of them; weights, gradients, the optimiser's moments and the averaged weights as 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from anchor3r.errors import Anchor3RError
from anchor3r.model.network import Anchor3RNetwork
from anchor3r.training.recipes import Recipe

_STATE_BYTES = 5 * 4  # weight, gradient, two moments, average
_ACTIVATION_BYTES = 2


@dataclass(frozen=True)
class StepCost:
    """Of one micro-batch in one process."""

    size: tuple[int, int]
    """(H, W) of the images, the largest of the recipe"""
    frames: int
    parameters: int
    forward_flops: int
    """floating-point operations of the forward pass, a multiplication and an addition being two"""
    step_flops: int
    """of forward and backward pass, and of the recomputation that gradient checkpointing asks for"""
    activation_bytes: int
    """what the backward pass needs of the forward pass"""
    state_bytes: int
    """weights, gradients, moments, average; shared by all processes where they are sharded"""

    def in_words(self, processes: int = 1) -> str:
        """A line for a reader; `processes` share the state."""
        height, width = self.size
        return (
            f"{self.frames} frames of {width}×{height}, {self.parameters / 1e6:,.1f} M parameters: "
            f"{self.forward_flops / 1e12:.3g} TFLOP forward, {self.step_flops / 1e12:.3g} TFLOP a step; "
            f"{self.activation_bytes / 2**30:.3g} GiB of activations, "
            f"{self.state_bytes / processes / 2**30:.3g} GiB of weights, gradients, moments and average"
            + (f" in each of {processes} processes" if processes > 1 else "")
        )


def step_cost(recipe: Recipe) -> StepCost:
    """Counts one micro-batch at the recipe's largest image size."""
    if recipe.network.matching is not None:
        raise Anchor3RError(
            f"the cost of '{recipe.name}' cannot be counted: what a correlation stem compares depends on the "
            "images; run a few steps and read frames/s instead"
        )
    size = max(recipe.data.sizes, key=prod)
    frames = recipe.clips_per_process * recipe.data.num_frames
    kept: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        if not isinstance(x, torch.nn.Parameter):
            kept[id(x)] = x
        return x

    with torch.device("meta"):
        network = Anchor3RNetwork(recipe.network).train()
    network.gradient_checkpointing = recipe.gradient_checkpointing
    with FakeTensorMode(allow_non_fake_inputs=True):
        network.to_empty(device="cpu")
        images = torch.zeros(recipe.clips_per_process, recipe.data.num_frames, 3, *size)
        with FlopCounterMode(display=False) as forward:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
                output = network(images)
            loss = sum((x.sum() for x in (*output.poses, output.points, output.confidence)), torch.zeros(()))
        with FlopCounterMode(display=False) as backward:
            loss.backward()
    parameters = sum(p.numel() for p in network.parameters())
    return StepCost(
        size,
        frames,
        parameters,
        forward.get_total_flops(),
        forward.get_total_flops() + backward.get_total_flops(),
        sum(x.numel() for x in kept.values()) * _ACTIVATION_BYTES,
        parameters * _STATE_BYTES,
    )
