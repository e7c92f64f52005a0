"""VGGT's weights as a start for the current-centric network.

Both alternate attention within a frame with attention over frames, so blocks, encoder and heads go over as
they are. VGGT's camera and register tokens, which come as one set for the reference frame and one for all
others, seed the query templates; the registers that the network has beyond VGGT's start near them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from anchor3r.errors import Anchor3RError
from anchor3r.model.checkpoints import load_tensors
from anchor3r.model.config import PRESETS, NetworkConfig
from anchor3r.model.network import Anchor3RNetwork
from anchor3r.model.vggt import NOT_USED, VGGTConfig, build_vggt, read_vggt

RENAMED = {
    "aggregator.patch_embed": "encoder",
    "aggregator.frame_blocks": "layers.*.frame",
    "aggregator.global_blocks": "layers.*.window",
    "camera_head": "camera_head",
    "point_head": "point_head",
}
"""VGGT's parts that go over as they are, and what they become; * is the number of a block."""
DROPPED = (*NOT_USED, "depth_head.")
"""Beginnings of the names of VGGT's tensors that the network has no place for."""
REGISTER_NOISE = 0.1
"""Spread of additional registers around VGGT's, as a share of the spread of VGGT's own values."""


@dataclass(frozen=True, kw_only=True)
class ConvertedPart:
    """One line of the account of a conversion."""

    fate: Literal["taken", "new", "dropped"]
    source: str
    """VGGT's name of the part, or what a new one is made from."""
    target: str
    """Our name of the part; empty if it was dropped."""
    num_tensors: int
    num_parameters: int


def convert_vggt(path: Path | str, *, seed: int) -> tuple[Anchor3RNetwork, list[ConvertedPart]]:
    """The network that starts from a VGGT file, and the account of every parameter on both sides."""
    vggt_config, tensors = read_vggt(path)
    # Checks names and shapes in VGGT's own terms before anything is renamed.
    build_vggt(vggt_config, tensors, source=str(path))
    config = matching_config(vggt_config)
    dropped = {prefix: [t for n, t in tensors.items() if n.startswith(prefix)] for prefix in DROPPED}
    tensors = {n: t for n, t in tensors.items() if not n.startswith(DROPPED)}
    converted: dict[str, Tensor] = {}
    account = []
    for source, target in RENAMED.items():
        part = {_renamed(n, source, target): t for n, t in tensors.items() if n.startswith(source + ".")}
        converted |= part
        account.append(_part("taken", source, target, list(part.values())))
    camera, registers, added = _templates(tensors, config.num_registers, seed)
    converted["query_tokens"] = torch.cat([camera, registers, added], 1)
    account.append(_part("taken", "aggregator.*_token", "query_tokens", [camera, registers]))
    account.append(_part("new", "registers with noise", "query_tokens", [added]))
    account += [_part("dropped", prefix, "", part) for prefix, part in dropped.items() if part]
    with torch.device("meta"):
        network = Anchor3RNetwork(config)
    load_tensors(network, converted, source=str(path))
    return network, account


def matching_config(config: VGGTConfig) -> NetworkConfig:
    """The `full` preset in the size of a VGGT; for VGGT-1B, the preset itself."""
    if config.camera_trunk_heads != config.num_heads:
        raise Anchor3RError(
            f"this VGGT's camera head has {config.camera_trunk_heads} attention heads and its blocks have "
            f"{config.num_heads}: the network needs one number for both"
        )
    return replace(
        PRESETS["full"],
        encoder=config.encoder,
        patch_size=config.patch_size,
        dim=config.embed_dim,
        depth=config.depth,
        num_heads=config.num_heads,
        head_layers=config.head_layers,
        camera_depth=config.camera_trunk_depth,
        camera_iterations=config.camera_iterations,
        point_features=config.dpt_features,
        point_channels=config.dpt_out_channels,
    )


def _renamed(name: str, source: str, target: str) -> str:
    rest = name.removeprefix(source + ".")
    if "*" in target:
        number, rest = rest.split(".", 1)
        target = target.replace("*", number)
    return f"{target}.{rest}"


def _templates(tensors: Mapping[str, Tensor], num_registers: int, seed: int) -> list[Tensor]:
    """Pose tokens (2, 1, C), VGGT's registers (2, r, C), new ones (2, R - r, C): reference, then source."""
    camera, registers = (tensors[f"aggregator.{name}_token"][0].float() for name in ("camera", "register"))
    num_new = max(num_registers - registers.shape[1], 0)
    near = registers[:, torch.arange(num_new) % registers.shape[1]]
    noise = torch.randn(near.shape, generator=torch.Generator().manual_seed(seed))
    return [camera, registers[:, :num_registers], near + REGISTER_NOISE * registers.std() * noise]


def _part(
    fate: Literal["taken", "new", "dropped"], source: str, target: str, tensors: Sequence[Tensor]
) -> ConvertedPart:
    return ConvertedPart(
        fate=fate,
        source=source.rstrip("."),
        target=target,
        num_tensors=len(tensors),
        num_parameters=sum(tensor.numel() for tensor in tensors),
    )
