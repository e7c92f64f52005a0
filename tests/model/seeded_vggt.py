"""A VGGT whose weights follow from a seed, a clip to try it on, and what to remember of its output.

The numbers in vggt_expected.json were made by this file on a day when the same code agreed with the outputs
that the public VGGT code gave for other weights. To write them anew:
PYTHONPATH=src:tests python tests/model/seeded_vggt.py
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anchor3r.model.vggt import VGGT, VGGTConfig, VGGTOutput

EXPECTED = Path(__file__).with_name("vggt_expected.json")
NAMES = ("patch_tokens", "pose_enc", "points", "points_conf", "depth", "depth_conf")
NUM_SAMPLES = 8


def seeded_vggt(config: VGGTConfig) -> VGGT:
    """Every weight from numpy's generator, in the order of the names: the same on every machine."""
    rng = np.random.default_rng(20)
    model = VGGT(config).eval()
    for name, tensor in sorted(model.state_dict().items()):
        is_gain = tensor.ndim == 1 and name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "gamma"))
        values = 0.1 * rng.standard_normal(tuple(tensor.shape)) + (1.0 if is_gain else 0.0)
        tensor.copy_(torch.from_numpy(values))
    return model


def seeded_output(config: VGGTConfig) -> VGGTOutput:
    clip = np.random.default_rng(21).random((3, 3, 42, 56), np.float32)
    with torch.inference_mode():
        return seeded_vggt(config)(torch.from_numpy(clip), with_tokens=True)


def summary(tensor: Tensor) -> list[float]:
    """Mean size of the values, and some of them from all over the tensor."""
    flat = tensor.double().flatten()
    chosen = np.random.default_rng(22).integers(len(flat), size=NUM_SAMPLES)
    return [float(flat.abs().mean()), *flat[chosen].tolist()]


def digest_of_names(shapes: dict[str, list[int]]) -> str:
    """Of the names and shapes of all tensors of a network."""
    return hashlib.sha256(json.dumps(sorted(shapes.items())).encode()).hexdigest()


if __name__ == "__main__":
    from small_vggt import SMALL_VGGT

    output = seeded_output(SMALL_VGGT)
    numbers = {name: summary(getattr(output, name)) for name in NAMES}
    numbers |= {f"block.{k}": summary(tokens) for k, tokens in enumerate(output.block_outputs or ())}
    EXPECTED.write_text(json.dumps(numbers, indent=1) + "\n")
