"""The prediction heads: poses of a window jointly, and dense maps with confidence from four token levels.

Shapes: B windows or frames, T frames of a window, N = h · w patches, C channels. Parameter names are VGGT's.
Both heads compute in float32 whatever the backbone does.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchor3r.model.layers import Block, Mlp

POSE_DIM = 9
"""Numbers of a raw pose: translation (3), quaternion xyzw (4), vertical and horizontal field of view (2)."""
_MOTION_DIM = 6
"""The first of them, 0 where nothing moves: translation and the imaginary part of the quaternion."""
CameraStart = Literal["zero", "identity"]
_STARTS: dict[CameraStart, list[float]] = {
    "zero": [0.0] * POSE_DIM,
    "identity": [0.0] * _MOTION_DIM + [1.0] * (POSE_DIM - _MOTION_DIM),
}
_IDENTITY_STD = 0.01
"""Spread of the last layer's first weights where a camera starts at the identity: it shall stay near."""


def activate_pose(raw: Tensor) -> Tensor:
    """Raw poses (..., 9) -> the same with fields of view that are not negative."""
    return torch.cat([raw[..., :7], F.relu(raw[..., 7:])], -1)


class CameraHead(nn.Module):
    """Refines the poses of all frames of a window together, each round conditioned on the last one's poses.

    The condition enters by adaptive layer normalisation: shift, scale and gate come from the embedded pose.
    """

    def __init__(
        self,
        dim: int,
        *,
        depth: int = 4,
        num_heads: int = 16,
        iterations: int = 4,
        motion_scale: float = 1.0,
        start: CameraStart = "zero",
    ) -> None:
        super().__init__()
        self.start = start
        self.iterations = iterations
        self.motion_scale = motion_scale
        self.empty_pose_tokens = nn.Parameter(torch.zeros(1, 1, POSE_DIM))
        self.token_norm = nn.LayerNorm(dim)
        self.embed_pose = nn.Linear(POSE_DIM, dim)
        self.poseLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 3 * dim))
        self.trunk = nn.ModuleList(Block(dim, num_heads, layer_scale=0.01) for _ in range(depth))
        self.trunk_norm = nn.LayerNorm(dim)
        self.pose_branch = Mlp(dim, dim // 2, "gelu", out=POSE_DIM)
        if start == "identity":
            nn.init.normal_(self.pose_branch.fc2.weight, std=_IDENTITY_STD)
            nn.init.zeros_(self.pose_branch.fc2.bias)

    def forward(self, pose_tokens: Tensor, valid: Tensor | None = None) -> list[Tensor]:
        """pose_tokens (B, T, C), valid (B, T) bool where windows are ragged -> raw poses (B, T, 9) a round.

        Tokens that are not valid are read by none; what comes out at their places means nothing. Fields of
        view are made positive by `activate_pose`, which the refinement itself does not see.
        """
        with torch.autocast(pose_tokens.device.type, enabled=False):
            tokens = self.token_norm(pose_tokens.float())
            mask = None if valid is None else valid[:, None, None, :]
            # No affine part: the modulation below supplies it.
            normed = F.layer_norm(tokens, tokens.shape[-1:], eps=1e-6)
            previous = tokens.new_tensor(_STARTS[self.start]).expand(*tokens.shape[:-1], POSE_DIM)
            condition = self.empty_pose_tokens.expand_as(previous)
            rounds: list[Tensor] = []
            for _ in range(self.iterations):
                shift, scale, gate = self.poseLN_modulation(self.embed_pose(condition)).chunk(3, -1)
                x = tokens + gate * (normed * (1 + scale) + shift)
                for block in self.trunk:
                    x = block(x, mask=mask)
                rounds.append(previous + self.pose_branch(self.trunk_norm(x)))
                previous = condition = rounds[-1].detach()
            scales = tokens.new_tensor([self.motion_scale] * _MOTION_DIM + [1.0] * (POSE_DIM - _MOTION_DIM))
            return [raw * scales for raw in rounds]


class ResidualConv(nn.Module):
    """Two convolutions with a skip, on rectified input."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(features, features, 3, padding=1)
        self.conv2 = nn.Conv2d(features, features, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        # The skip carries the rectified input too: the public networks rectify in place.
        x = F.relu(x)
        branch: Tensor = self.conv2(F.relu(self.conv1(x)))
        return x + branch


class FusionBlock(nn.Module):
    """Adds one level to what came from the coarser ones and enlarges the sum."""

    def __init__(self, features: int, *, coarsest: bool = False) -> None:
        super().__init__()
        if not coarsest:
            self.resConfUnit1 = ResidualConv(features)
        self.resConfUnit2 = ResidualConv(features)
        self.out_conv = nn.Conv2d(features, features, 1)

    def forward(self, x: Tensor, level: Tensor | None, size: tuple[int, int]) -> Tensor:
        """x, level (B, F, h, w) -> (B, F, *size)"""
        if level is not None:
            x = x + self.resConfUnit1(level)
        enlarged: Tensor = self.out_conv(_enlarge(self.resConfUnit2(x), size))
        return enlarged


class Scratch(nn.Module):
    """The convolutional part of a DPT: four levels of patch grids to one map of the image's size."""

    def __init__(self, channels: tuple[int, int, int, int], features: int, out: int) -> None:
        super().__init__()
        self.layer1_rn, self.layer2_rn, self.layer3_rn, self.layer4_rn = (
            nn.Conv2d(c, features, 3, padding=1, bias=False) for c in channels
        )
        self.refinenet1, self.refinenet2, self.refinenet3 = (FusionBlock(features) for _ in range(3))
        self.refinenet4 = FusionBlock(features, coarsest=True)
        self.output_conv1 = nn.Conv2d(features, features // 2, 3, padding=1)
        self.output_conv2 = nn.Sequential(
            nn.Conv2d(features // 2, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, out, 1)
        )

    def forward(self, levels: list[Tensor], image_size: tuple[int, int]) -> Tensor:
        """levels: (B, channels[k], ...) from fine to coarse -> (B, out, H, W)."""
        fine, medium, coarse, coarsest = (
            layer(level)
            for layer, level in zip(
                (self.layer1_rn, self.layer2_rn, self.layer3_rn, self.layer4_rn), levels, strict=True
            )
        )
        x = self.refinenet4(coarsest, None, coarse.shape[-2:])
        x = self.refinenet3(x, coarse, medium.shape[-2:])
        x = self.refinenet2(x, medium, fine.shape[-2:])
        x = self.refinenet1(x, fine, (2 * fine.shape[-2], 2 * fine.shape[-1]))
        x = _enlarge(self.output_conv1(x), image_size)
        out: Tensor = self.output_conv2(_add_position(x, image_size))
        return out


class DPTHead(nn.Module):
    """Dense prediction from patch tokens of four layers: a value a pixel, and how far to trust it.

    A few small tokens cannot say where in a patch a horizon lies; `detail` is the number of channels of an
    image-side map, four times as fine as the patches, that helps out there.
    """

    def __init__(
        self,
        dim: int,
        *,
        kind: Literal["points", "depth"],
        features: int = 256,
        channels: tuple[int, int, int, int] = (256, 512, 1024, 1024),
        detail: int = 0,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.norm = nn.LayerNorm(dim)
        self.projects = nn.ModuleList(nn.Conv2d(dim, c, 1) for c in channels)
        self.resize_layers = nn.ModuleList(
            [
                nn.ConvTranspose2d(channels[0], channels[0], 4, stride=4),
                nn.ConvTranspose2d(channels[1], channels[1], 2, stride=2),
                nn.Identity(),
                nn.Conv2d(channels[3], channels[3], 3, stride=2, padding=1),
            ]
        )
        self.scratch = Scratch(channels, features, out=4 if kind == "points" else 2)
        self.detail = nn.Conv2d(detail, channels[0], 1) if detail else None
        self._initialise()

    def _initialise(self) -> None:
        """Keeps the signal's size through the stack of convolutions, which torch's own start does not: with
        it, next to nothing of the tokens reaches the output and training only moves the last biases."""
        for module in self.modules():
            if isinstance(module, nn.ConvTranspose2d):
                # As wide as its stride: every output pixel sees one input pixel.
                nn.init.normal_(module.weight, std=module.in_channels**-0.5)
            elif isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, ResidualConv):
                nn.init.normal_(module.conv2.weight, std=0.2 * module.conv2.weight[0].numel() ** -0.5)
        last = self.scratch.output_conv2[-1]
        assert isinstance(last, nn.Conv2d)
        nn.init.normal_(last.weight, std=0.05 * last.in_channels**-0.5)

    def forward(
        self,
        levels: list[Tensor],
        grid: tuple[int, int],
        image_size: tuple[int, int],
        detail: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Patch tokens (B, h w, C) of four layers and, if the head takes it, detail (B, d, 4 h, 4 w) ->
        values (B, H, W, 3 or 1), confidence (B, H, W) > 1."""
        with torch.autocast(levels[0].device.type, enabled=False):
            maps = []
            for tokens, project, resize in zip(levels, self.projects, self.resize_layers, strict=True):
                level = self.norm(tokens.float()).transpose(1, 2).unflatten(2, grid)
                maps.append(resize(_add_position(project(level), image_size)))
            if self.detail is not None:
                assert detail is not None, "this head was built to see detail"
                maps[0] = maps[0] + self.detail(detail.float())
            raw, raw_confidence = self.scratch(maps, image_size).permute(0, 2, 3, 1).tensor_split([-1], -1)
            values = raw.exp() if self.kind == "depth" else raw.sign() * raw.abs().expm1()
            return values, 1 + raw_confidence[..., 0].exp()


def _enlarge(x: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(x, size=size, mode="bilinear", align_corners=True)


def _add_position(x: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Adds a tenth of the sinusoids of where each cell of x (B, C, h, w) lies in the image.

    The image's diagonal has length 2 and its centre is the origin. The first half of the channels depends
    on the column alone, the second on the row alone, so neither needs a map of its own.
    """
    half, (h, w) = x.shape[1] // 2, x.shape[-2:]
    diagonal = (image_size[0] ** 2 + image_size[1] ** 2) ** 0.5
    columns = _sinusoids(half, w, image_size[1] / diagonal, x.device).view(half, 1, w)
    rows = _sinusoids(half, h, image_size[0] / diagonal, x.device).view(half, h, 1)
    return x + 0.1 * torch.cat([columns.expand(-1, h, -1), rows.expand(-1, -1, w)])


def _sinusoids(channels: int, cells: int, half_extent: float, device: torch.device) -> Tensor:
    """Sines, then cosines, at the centres of `cells` cells over ± half_extent: (channels, cells)."""
    edge = half_extent * (cells - 1) / cells
    centres = torch.linspace(-edge, edge, cells, dtype=torch.float64)
    exponents = torch.arange(channels // 2, dtype=torch.float64) / (channels / 2)
    angles = torch.outer(100.0**-exponents, centres)
    return torch.cat([angles.sin(), angles.cos()]).to(device, torch.float32)
