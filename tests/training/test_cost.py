"""The cost of a step, counted without computing anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from anchor3r.errors import Anchor3RError
from anchor3r.model.config import PRESETS, shrunk
from anchor3r.model.network import Anchor3RNetwork
from anchor3r.training.cost import step_cost
from anchor3r.training.recipes import Recipe, paper, tiny


@pytest.fixture
def recipe() -> Recipe:
    data = replace(paper().data, num_frames=4, sizes=((28, 42), (28, 28)))
    network = shrunk(PRESETS["small"], window=3)
    return replace(paper(), network=network, data=data, gradient_checkpointing=False)


def test_counts_what_real_tensors_cost(recipe: Recipe) -> None:
    cost = step_cost(recipe)
    network = Anchor3RNetwork(recipe.network).train()
    with FlopCounterMode(display=False) as counter:
        network(torch.rand(1, 4, 3, 28, 42))
    assert cost.size == (28, 42)
    assert cost.parameters == sum(p.numel() for p in network.parameters())
    assert cost.forward_flops == counter.get_total_flops() > 0
    assert cost.step_flops == pytest.approx(3 * cost.forward_flops, rel=0.05)
    assert "4 frames of 42×28" in cost.in_words()


def test_checkpointing_trades_memory_for_arithmetic(recipe: Recipe) -> None:
    kept, recomputed = step_cost(recipe), step_cost(replace(recipe, gradient_checkpointing=True))
    assert recomputed.activation_bytes < 0.5 * kept.activation_bytes
    assert kept.step_flops < recomputed.step_flops < 1.4 * kept.step_flops


def test_a_correlation_stem_cannot_be_counted() -> None:
    with pytest.raises(Anchor3RError, match="'tiny' cannot be counted"):
        step_cost(tiny())
