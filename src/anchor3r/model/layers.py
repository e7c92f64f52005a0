"""The parts every transformer here is made of: 2-D rotary positions, attention, MLP, block.

Shapes: B batch, T tokens, C channels, H heads, D channels a head. Names of parameters are those of DINOv2 and
VGGT, so that their weights load as they are.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Literal["gelu", "relu2", "swiglu"]


class RotaryTable:
    """Cosines and sines of 2-D rotary position embeddings for integer positions, made once and looked up.

    A head is split into a y and an x half of D/2 channels; pair k of a half turns by position · base^(-4k/D).
    """

    def __init__(self, head_dim: int, base: float, num_positions: int) -> None:
        if head_dim % 4:
            raise ValueError(f"2-D rotary positions need a head dimension divisible by 4, not {head_dim}")
        # Real numbers even where modules are built on the meta device to be filled from a file.
        exponents = torch.arange(0, head_dim // 2, 2, dtype=torch.float32, device="cpu") / (head_dim // 2)
        positions = torch.arange(num_positions, dtype=torch.float32, device="cpu")
        angles = torch.outer(positions, base**-exponents)
        angles = torch.cat([angles, angles], -1)
        self.cos, self.sin = angles.cos(), angles.sin()

    def lookup(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions (..., T, 2) integer (y, x) -> cos, sin (..., T, D)."""
        if self.cos.device != positions.device:
            self.cos, self.sin = self.cos.to(positions.device), self.sin.to(positions.device)
        return self.cos[positions].flatten(-2), self.sin[positions].flatten(-2)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
    """Applies rotary positions to x (B, H, T, D); `rope` is cos, sin of shape (T, D) or (B, 1, T, D)."""
    if rope is None:
        return x
    cos, sin = rope[0].to(x.dtype), rope[1].to(x.dtype)
    y_low, y_high, x_low, x_high = x.chunk(4, -1)
    return x * cos + torch.cat([-y_high, y_low, -x_high, x_low], -1) * sin


class LayerScale(nn.Module):
    """A learned gain per channel."""

    def __init__(self, dim: int, init: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), init))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Mlp(nn.Module):
    """Two linear maps with a nonlinearity between them."""

    def __init__(self, dim: int, hidden: int, activation: Activation, out: int | None = None) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim if out is None else out)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1(x)
        hidden = F.gelu(hidden) if self.activation == "gelu" else F.relu(hidden).square()
        out: Tensor = self.fc2(hidden)
        return out


class SwiGlu(nn.Module):
    """The gated MLP of DINOv2's giant variant, narrowed to two thirds to be as large as an `Mlp`."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        hidden = -(-(hidden * 2 // 3) // 8) * 8
        self.w12 = nn.Linear(dim, 2 * hidden)
        self.w3 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.w12(x).chunk(2, -1)
        out: Tensor = self.w3(F.silu(gate) * value)
        return out


class Attention(nn.Module):
    """Multi-head attention in three steps, so that keys and values can be cached or come from elsewhere."""

    def __init__(self, dim: int, num_heads: int, *, qk_norm: bool) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"{dim} channels cannot be split over {num_heads} heads")
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm = nn.LayerNorm(head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(head_dim) if qk_norm else nn.Identity()
        self.proj = nn.Linear(dim, dim)

    def project(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, C) -> q, k, v (B, H, T, D), q and k normalised and rotated."""
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        return rotate(self.q_norm(q), rope), rotate(self.k_norm(k), rope), v

    def project_query(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        """x (B, T, C) -> q (B, H, T, D) alone, for tokens that read but are not read."""
        b, t, c = x.shape
        q = F.linear(x, self.qkv.weight[:c], self.qkv.bias[:c])
        q = q.view(b, t, self.num_heads, c // self.num_heads).transpose(1, 2)
        return rotate(self.q_norm(q), rope)

    def merge(self, attended: Tensor) -> Tensor:
        """attended (B, H, T, D) -> (B, T, C)."""
        merged: Tensor = self.proj(attended.transpose(1, 2).flatten(2))
        return merged

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None = None) -> Tensor:
        q, k, v = self.project(x, rope)
        return self.merge(F.scaled_dot_product_attention(q, k, v))


class Block(nn.Module):
    """Pre-norm transformer block: x + attention, then x + MLP, each with a layer scale."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        mlp_ratio: float = 4.0,
        qk_norm: bool = False,
        layer_scale: float | None = None,
        activation: Activation = "gelu",
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attn = Attention(dim, num_heads, qk_norm=qk_norm)
        self.ls1 = LayerScale(dim, layer_scale) if layer_scale is not None else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps)
        hidden = int(dim * mlp_ratio)
        self.mlp = SwiGlu(dim, hidden) if activation == "swiglu" else Mlp(dim, hidden, activation)
        self.ls2 = LayerScale(dim, layer_scale) if layer_scale is not None else nn.Identity()

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Everything after attention: x (B, T, C) and attended (B, H, T, D) -> (B, T, C)."""
        x = x + self.ls1(self.attn.merge(attended))
        branch: Tensor = self.ls2(self.mlp(self.norm2(x)))
        return x + branch

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor] | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """x (B, T, C); mask broadcasts to (B, H, T, T), true where a token (row) reads another (column)."""
        q, k, v = self.attn.project(self.norm1(x), rope)
        return self.finish(x, F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
