"""A small VGGT with random weights, a clip, and numbers that the public VGGT code computed for them.

Weights and clip follow from a seed: torch's generator fills the tensors in the order in which the public
module lists them. vggt_public.json has that order, the size of the network, and of each output of the public
code its largest magnitude and values from all over the tensor.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anchor3r.model.vggt import NOT_USED, VGGT, VGGTConfig

EXPECTED = Path(__file__).with_name("vggt_public.json")
SEED = 1
OUTPUTS = ("patch_tokens", "pose_enc", "points", "points_conf", "depth", "depth_conf")
BLOCKS = tuple(f"tokens.{layer}" for layer in range(4))


@dataclass(frozen=True)
class Expected:
    """What the public code gave for one output."""

    shape: tuple[int, ...]
    largest: float
    values: Tensor

    def assert_same(self, ours: Tensor) -> None:
        """The goal is 1e-4 of the largest value; anything above a few float32 roundings is a difference."""
        assert tuple(ours.shape) == self.shape
        found = ours.flatten()[sampled(ours.numel(), len(self.values))]
        assert float((found - self.values).abs().max()) <= 1e-5 * self.largest


def sampled(size: int, count: int) -> Tensor:
    """Which of `size` numbers are remembered."""
    return torch.from_numpy(np.random.default_rng(22).permutation(size)[:count].copy())


@cache
def _stored() -> dict:
    return json.loads(EXPECTED.read_text())


def expected(name: str) -> Expected:
    stored = _stored()["outputs"][name]
    return Expected(tuple(stored["shape"]), stored["largest"], torch.tensor(stored["values"]))


def public_tensors() -> tuple[dict[str, Tensor], Tensor]:
    """All weights by their public names, and the clip."""
    generator = torch.Generator().manual_seed(SEED)
    weights = {name: _drawn(name, shape, generator) for name, shape in _stored()["tensors"]}
    return weights, torch.rand(_stored()["clip"], generator=generator)


def _drawn(name: str, shape: list[int], generator: torch.Generator) -> Tensor:
    if name.endswith("gamma"):
        return 0.3 + 0.2 * torch.rand(shape, generator=generator)
    values = torch.randn(shape, generator=generator)
    if name.endswith("weight"):
        return 1 + 0.1 * values if len(shape) == 1 else values / math.sqrt(math.prod(shape[1:]))
    return 0.1 * values


def public_vggt() -> tuple[VGGT, Tensor]:
    """Our network with those weights, and the clip."""
    weights, clip = public_tensors()
    model = VGGT(VGGTConfig.from_json(json.dumps(_stored()["config"]))).eval()
    model.load_state_dict({name: w for name, w in weights.items() if not name.startswith(NOT_USED)})
    return model, clip


def digest_of_names(shapes: dict[str, list[int]]) -> str:
    """Of the names and shapes of all tensors of a network."""
    return hashlib.sha256(json.dumps(sorted(shapes.items())).encode()).hexdigest()
