"""The image encoder: a DINOv2 vision transformer with register tokens, under DINOv2's parameter names.

Shapes: B images, H × W pixels, N = h · w patches, C channels. Images come in 0–1 and are normalised here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anchor3r.model.checkpoints import load_tensors, read_tensors
from anchor3r.model.layers import Activation, Block
from anchor3r.model.sizes import insist_on_sizes

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Variant = Literal["vit_s", "vit_b", "vit_l", "vit_g"]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Size of a vision transformer; the defaults that all public variants share are here."""

    dim: int
    """Channels of a token."""
    depth: int
    """Number of blocks."""
    num_heads: int
    """Attention heads of a block."""
    activation: Activation = "gelu"
    """Nonlinearity of the MLP; the giant variant has "swiglu"."""
    patch_size: int = 14
    """Side of a square patch, in pixels."""
    image_size: int = 518
    """Side of the square image whose patches the stored position embedding is for, in pixels."""
    num_registers: int = 4
    """Extra tokens that belong to no patch."""

    def __post_init__(self) -> None:
        insist_on_sizes(self)
        if self.dim % self.num_heads:
            raise ValueError(f"{self.dim} channels cannot be split over {self.num_heads} heads")
        if self.image_size % self.patch_size:
            raise ValueError(f"image size {self.image_size} is no multiple of the patch {self.patch_size}")


VARIANTS: dict[Variant, EncoderConfig] = {
    "vit_s": EncoderConfig(dim=384, depth=12, num_heads=6),
    "vit_b": EncoderConfig(dim=768, depth=12, num_heads=12),
    "vit_l": EncoderConfig(dim=1024, depth=24, num_heads=16),
    "vit_g": EncoderConfig(dim=1536, depth=40, num_heads=24, activation="swiglu"),
}


class PatchEmbed(nn.Module):
    """Cuts images into patches and maps each to a token."""

    def __init__(self, dim: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, N, C)"""
        tokens: Tensor = self.proj(images).flatten(2).transpose(1, 2)
        return tokens


class Encoder(nn.Module):
    """DINOv2 with registers, from pixels to normalised patch tokens."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        side = config.image_size // config.patch_size
        self.patch_embed = PatchEmbed(config.dim, config.patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, config.dim))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + side * side, config.dim))
        self.register_tokens = nn.Parameter(torch.empty(1, config.num_registers, config.dim))
        self.blocks = nn.ModuleList(
            Block(config.dim, config.num_heads, layer_scale=1.0, activation=config.activation, norm_eps=1e-6)
            for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.dim, eps=1e-6)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.register_tokens, std=1e-6)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches of an image; both sides have to be multiples of the patch size."""
        patch = self.config.patch_size
        if height % patch or width % patch or not height or not width:
            raise ValueError(f"image size {height}×{width} is no multiple of the patch size {patch}")
        return height // patch, width // patch

    def forward(self, images: Tensor) -> Tensor:
        """images (B, 3, H, W) in 0–1 -> patch tokens (B, N, C) after the final norm."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"the encoder takes images (B, 3, H, W), not {tuple(images.shape)}")
        grid = self.grid(*images.shape[-2:])
        mean, std = (images.new_tensor(v).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
        x = torch.cat(
            [self.cls_token.expand(len(images), -1, -1), self.patch_embed((images - mean) / std)], 1
        )
        x = x + self.position_embedding(grid).to(x.dtype)
        registers = self.register_tokens.to(x.dtype).expand(len(x), -1, -1)
        x = torch.cat([x[:, :1], registers, x[:, 1:]], 1)
        for block in self.blocks:
            recompute = self.gradient_checkpointing and self.training
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        tokens: Tensor = self.norm(x[:, 1 + self.config.num_registers :])
        return tokens

    def position_embedding(self, grid: tuple[int, int]) -> Tensor:
        """(1, 1 + h w, C) for a grid of h × w patches, resampled from the stored square one."""
        side = self.config.image_size // self.config.patch_size
        if grid == (side, side):
            return self.pos_embed
        square = torch.unflatten(self.pos_embed[:, 1:], 1, (side, side)).permute(0, 3, 1, 2).float()
        # Given as a size, not as a scale factor: DINOv2 with registers was trained without the offset
        # that older variants add to the factor.
        resized = F.interpolate(square, size=grid, mode="bicubic", antialias=True)
        return torch.cat([self.pos_embed[:, :1].float(), resized.flatten(2).transpose(1, 2)], 1)


def load_dinov2(encoder: Encoder, path: Path | str) -> None:
    """Puts the weights of an official DINOv2 file (with registers) into an encoder."""
    tensors, _ = read_tensors(path)
    # Stands for hidden patches in DINOv2's own training, and for nothing else.
    tensors.pop("mask_token", None)
    load_tensors(encoder, tensors, source=str(path))
