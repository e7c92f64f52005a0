"""How large the parts of a network may be: far more than any that is published, and nothing that hangs.

A checkpoint says by itself how large its network is, so these are limits on what a file may ask for.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

_MOST: dict[str, int] = {
    # field: its largest value; the smallest is 1 unless it stands below
    "dim": 16_384,
    "embed_dim": 16_384,
    "depth": 256,
    "encoder_depth": 256,
    "camera_depth": 64,
    "camera_trunk_depth": 64,
    "camera_iterations": 64,
    "num_heads": 256,
    "camera_trunk_heads": 256,
    "num_registers": 1_024,
    "register_tokens": 1_024,
    "patch_size": 64,
    "image_size": 4_096,
    "window": 1_000,
    "point_features": 4_096,
    "dpt_features": 4_096,
    "point_channels": 16_384,
    "dpt_out_channels": 16_384,
    "point_stride": 64,
    "channels": 4_096,
    "coarse_dim": 4_096,
    "fine_dim": 4_096,
    "fine_radius": 16,
    "hidden": 4_096,
    "area": 4_000_000,
    "head_layers": 255,
    "rope_base": 1_000_000,
    "layer_scale": 1_000,
    "motion_scale": 1_000,
}
_LEAST = {"num_registers": 0, "register_tokens": 0, "head_layers": 0, "fine_radius": 0}
_POSITIVE = ("rope_base", "layer_scale", "motion_scale")


def insist_on_sizes(config: Any) -> None:
    """A ValueError if a number of the dataclass `config` is none that a network could be built with."""
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in _MOST or value is None:
            continue
        least = math.ulp(0) if field.name in _POSITIVE else _LEAST.get(field.name, 1)
        for number in value if isinstance(value, tuple) else (value,):
            if not least <= number <= _MOST[field.name]:
                raise ValueError(f"{field.name} is {number}, not in {least:g} … {_MOST[field.name]}")
