"""VGGT from our own layers: the public network that predicts cameras, depth and points of a whole clip.

Shapes: B clips, S frames, H × W pixels, N = h · w patches, P = 1 + R + N tokens a frame, C channels.
The first frame of a clip is its reference: all poses and points are in that camera's frame.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn

from anchor3r.errors import Anchor3RError
from anchor3r.io.inputs import parse_json
from anchor3r.model.checkpoints import load_tensors, read_tensors
from anchor3r.model.encoder import Encoder, EncoderConfig
from anchor3r.model.heads import CameraHead, DPTHead, activate_pose
from anchor3r.model.layers import Block, RotaryTable
from anchor3r.model.sizes import insist_on_sizes
from anchor3r.records import record_from_json

NOT_USED = ("track_head.", "aggregator.patch_embed.mask_token")
"""Beginnings of the names of public tensors that take no part here: point tracking, and training by masks."""

_FRAMES_AT_ONCE = 8
"""Frames that a dense head takes together: its maps of full size are what takes the memory of a long clip."""
MAX_POSITIONS = 256
"""Rows or columns of tokens for which rotary positions are tabulated."""


@dataclass(frozen=True, kw_only=True)
class VGGTConfig:
    """Size of the network; the defaults are the public VGGT-1B."""

    embed_dim: int = 1024
    """Channels of a token."""
    num_heads: int = 16
    """Attention heads of every block of encoder and backbone."""
    depth: int = 24
    """Number of frame blocks, and of global blocks."""
    encoder_depth: int = 24
    """Number of encoder blocks."""
    head_layers: tuple[int, int, int, int] = (4, 11, 17, 23)
    """The layers whose tokens the dense heads read."""
    dpt_features: int = 256
    """Channels of the dense heads' fusion."""
    dpt_out_channels: tuple[int, int, int, int] = (256, 512, 1024, 1024)
    """Channels of the dense heads' four levels."""
    camera_trunk_heads: int = 16
    """Attention heads of the camera head."""
    camera_trunk_depth: int = 4
    """Blocks of the camera head."""
    camera_iterations: int = 4
    """Refinement rounds of the camera head."""
    patch_size: int = 14
    """Side of a patch, in pixels."""
    register_tokens: int = 4
    """Registers of a frame, in the encoder and in the backbone."""

    def __post_init__(self) -> None:
        insist_on_sizes(self)
        if self.embed_dim % self.num_heads or 2 * self.embed_dim % self.camera_trunk_heads:
            raise ValueError(f"{self.embed_dim} channels cannot be split over {self.num_heads} heads")
        if self.embed_dim // self.num_heads % 4:
            raise ValueError(
                f"{self.embed_dim // self.num_heads} channels of a head have no rotary positions"
            )
        if len(self.head_layers) != 4 or not all(0 <= layer < self.depth for layer in self.head_layers):
            raise ValueError(f"head_layers names four of {self.depth} layers, not {self.head_layers}")
        if len(self.dpt_out_channels) != 4:
            raise ValueError(f"dpt_out_channels are four numbers, not {self.dpt_out_channels}")

    @property
    def encoder(self) -> EncoderConfig:
        """Its position embedding is for 37 × 37 patches, as DINOv2's."""
        return EncoderConfig(
            dim=self.embed_dim,
            depth=self.encoder_depth,
            num_heads=self.num_heads,
            patch_size=self.patch_size,
            image_size=37 * self.patch_size,
            num_registers=self.register_tokens,
        )

    @staticmethod
    def from_json(text: str) -> VGGTConfig:
        """From a file's metadata; what it says beyond the architecture is left aside."""
        values = parse_json(text, "the config")
        if not isinstance(values, dict):
            raise ValueError(f"a JSON object is needed, not {text[:80]!r}")
        names = {field.name for field in fields(VGGTConfig)}
        known = {name: value for name, value in values.items() if name in names}
        return record_from_json(VGGTConfig, known, "the config")


@dataclass(frozen=True, kw_only=True)
class VGGTOutput:
    """What the network says about a clip; the leading B is there only if the clip had it."""

    pose_enc: Tensor
    """(B, S, 9) camera_from_reference: translation, quaternion xyzw, vertical and horizontal fov (rad)."""
    points: Tensor
    """(B, S, H, W, 3) in the reference camera's frame."""
    points_conf: Tensor
    """(B, S, H, W), above 1."""
    depth: Tensor
    """(B, S, H, W, 1) along each camera's own z."""
    depth_conf: Tensor
    """(B, S, H, W), above 1."""
    patch_tokens: Tensor | None = None
    """(B, S, N, C) of the encoder, if asked for."""
    block_outputs: tuple[Tensor, ...] | None = None
    """(B, S, P, 2C) a layer, frame block then global block, if asked for."""


class Aggregator(nn.Module):
    """The backbone: blocks that look within each frame alternate with blocks that look over all."""

    def __init__(self, config: VGGTConfig) -> None:
        super().__init__()
        dim = config.embed_dim
        self.patch_embed = Encoder(config.encoder)
        # Index 0 on the second axis is for the reference frame, 1 for all others.
        self.camera_token = nn.Parameter(torch.empty(1, 2, 1, dim))
        self.register_token = nn.Parameter(torch.empty(1, 2, config.register_tokens, dim))
        self.frame_blocks, self.global_blocks = (
            nn.ModuleList(
                Block(dim, config.num_heads, qk_norm=True, layer_scale=0.01) for _ in range(config.depth)
            )
            for _ in range(2)
        )
        self.patch_start = 1 + config.register_tokens
        self.rope = RotaryTable(dim // config.num_heads, base=100.0, num_positions=MAX_POSITIONS)
        nn.init.normal_(self.camera_token, std=1e-6)
        nn.init.normal_(self.register_token, std=1e-6)

    def forward(
        self, patch_tokens: Tensor, grid: tuple[int, int], keep: Collection[int]
    ) -> dict[int, Tensor]:
        """patch_tokens (B, S, N, C) -> for each layer in `keep`, frame and global output (B, S, P, 2C)."""
        b, s = patch_tokens.shape[:2]
        special = torch.cat([self.camera_token, self.register_token], 2)
        special = torch.cat([special[:, :1], special[:, 1:].expand(-1, s - 1, -1, -1)], 1)
        x = torch.cat([special.to(patch_tokens.dtype).expand(b, -1, -1, -1), patch_tokens], 2)
        positions = self.positions(grid, x.device)
        cos, sin = self.rope.lookup(positions)
        all_rope = cos.repeat(s, 1), sin.repeat(s, 1)
        kept = {}
        for layer, (frame_block, global_block) in enumerate(
            zip(self.frame_blocks, self.global_blocks, strict=True)
        ):
            within = frame_block(x.flatten(0, 1), (cos, sin)).unflatten(0, (b, s))
            x = global_block(within.flatten(1, 2), all_rope).unflatten(1, (s, -1))
            if layer in keep:
                kept[layer] = torch.cat([within, x], -1)
        return kept

    def positions(self, grid: tuple[int, int], device: torch.device) -> Tensor:
        """(P, 2) row and column of each token, counted from 1; special tokens are at 0, 0."""
        if max(grid) >= MAX_POSITIONS:
            raise ValueError(f"{grid[0]}×{grid[1]} patches are more than {MAX_POSITIONS - 1} a side")
        rows, columns = (torch.arange(1, n + 1, device=device) for n in grid)
        patches = torch.cartesian_prod(rows, columns)
        return torch.cat([patches.new_zeros(self.patch_start, 2), patches])


class VGGT(nn.Module):
    """The whole network. `forward` serves a clip; the steps in between serve overlapping windows."""

    def __init__(self, config: VGGTConfig) -> None:
        super().__init__()
        self.config = config
        self.aggregator = Aggregator(config)
        dim = 2 * config.embed_dim
        self.camera_head = CameraHead(
            dim,
            depth=config.camera_trunk_depth,
            num_heads=config.camera_trunk_heads,
            iterations=config.camera_iterations,
        )
        features, channels = config.dpt_features, config.dpt_out_channels
        self.point_head = DPTHead(dim, kind="points", features=features, channels=channels)
        self.depth_head = DPTHead(dim, kind="depth", features=features, channels=channels)

    def encode(self, images: Tensor) -> Tensor:
        """images (..., 3, H, W) in 0–1 -> patch tokens (..., N, C); a frame's do not depend on the others."""
        tokens: Tensor = self.aggregator.patch_embed(images.flatten(0, -4))
        return torch.unflatten(tokens, 0, images.shape[:-3])

    def aggregate(
        self, patch_tokens: Tensor, grid: tuple[int, int], *, all_layers: bool = False
    ) -> dict[int, Tensor]:
        """patch_tokens (B, S, N, C) -> tokens (B, S, P, 2C) of the layers that the heads read, or of all."""
        last = self.config.depth - 1
        keep = range(last + 1) if all_layers else {*self.config.head_layers, last}
        layers: dict[int, Tensor] = self.aggregator(patch_tokens, grid, keep)
        return layers

    def cameras(self, layers: Mapping[int, Tensor]) -> Tensor:
        """-> pose encodings (B, S, 9) of the last refinement round."""
        return activate_pose(self.camera_head(layers[self.config.depth - 1][:, :, 0])[-1])

    def dense(
        self, head: DPTHead, layers: Mapping[int, Tensor], grid: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """`point_head` or `depth_head` -> values (B, S, H, W, 3 or 1) and confidence (B, S, H, W)."""
        levels = [
            layers[k][:, :, self.aggregator.patch_start :].flatten(0, 1) for k in self.config.head_layers
        ]
        image_size = grid[0] * self.config.patch_size, grid[1] * self.config.patch_size
        parts = [
            head(list(part), grid, image_size)
            for part in zip(*(torch.split(v, _FRAMES_AT_ONCE) for v in levels), strict=True)
        ]
        values, confidence = (torch.cat(p) for p in zip(*parts, strict=True))
        batch = layers[self.config.head_layers[0]].shape[:2]
        return torch.unflatten(values, 0, batch), torch.unflatten(confidence, 0, batch)

    def forward(self, clip: Tensor, *, with_tokens: bool = False) -> VGGTOutput:
        """clip (S, 3, H, W) or (B, S, 3, H, W) in 0–1; `with_tokens` adds what lies between."""
        if clip.ndim not in (4, 5) or clip.shape[-3] != 3 or 0 in clip.shape:
            raise ValueError(f"a clip is (S, 3, H, W) or (B, S, 3, H, W), not {tuple(clip.shape)}")
        if not torch.isfinite(clip).all():
            raise ValueError("the clip has values that are not finite")
        images = clip if clip.ndim == 5 else clip[None]
        grid = self.aggregator.patch_embed.grid(*clip.shape[-2:])
        patch_tokens = self.encode(images)
        layers = self.aggregate(patch_tokens, grid, all_layers=with_tokens)
        points, points_conf = self.dense(self.point_head, layers, grid)
        depth, depth_conf = self.dense(self.depth_head, layers, grid)

        def batched(x: Tensor) -> Tensor:
            return x if clip.ndim == 5 else x[0]

        return VGGTOutput(
            pose_enc=batched(self.cameras(layers)),
            points=batched(points),
            points_conf=batched(points_conf),
            depth=batched(depth),
            depth_conf=batched(depth_conf),
            patch_tokens=batched(patch_tokens) if with_tokens else None,
            block_outputs=tuple(map(batched, layers.values())) if with_tokens else None,
        )


def load_vggt(path: Path | str) -> VGGT:
    """The network in a `.safetensors` or `.pt` file; VGGT-1B if the file's metadata has no `config`."""
    config, tensors = read_vggt(path)
    return build_vggt(config, tensors, source=str(path))


def read_vggt(path: Path | str) -> tuple[VGGTConfig, dict[str, Tensor]]:
    """A file's config and all its weights, used here or not."""
    tensors, config_json = read_tensors(path)
    if any(name.startswith("weight.") for name in tensors):
        # A file that holds more than weights keeps them apart by this prefix.
        tensors = {n.removeprefix("weight."): t for n, t in tensors.items() if n.startswith("weight.")}
    try:
        return VGGTConfig.from_json(config_json or "{}"), tensors
    except (Anchor3RError, ValueError) as error:
        raise Anchor3RError(
            f"{path}: the config in the file's metadata describes no VGGT: {error}"
        ) from error


def build_vggt(config: VGGTConfig, tensors: Mapping[str, Tensor], *, source: str) -> VGGT:
    """The network around the given weights, which are not copied; `source` names them in errors."""
    with torch.device("meta"):
        model = VGGT(config)
    used = {name: tensor for name, tensor in tensors.items() if not name.startswith(NOT_USED)}
    load_tensors(model, used, source=source)
    return model.eval()
