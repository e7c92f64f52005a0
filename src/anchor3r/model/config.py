"""Sizes of the network: one dataclass, four presets, one code path."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from anchor3r.io.inputs import parse_json
from anchor3r.model.encoder import VARIANTS, EncoderConfig
from anchor3r.model.heads import CameraStart
from anchor3r.model.layers import Activation
from anchor3r.model.sizes import insist_on_sizes
from anchor3r.records import record_from_json

Gauge = Literal["current", "first"]
Preset = Literal["full", "base", "small", "tiny"]


@dataclass(frozen=True, kw_only=True)
class MatchingConfig:
    """The convolutional stem of the `tiny` preset, which measures displacements instead of learning to."""

    channels: tuple[int, int, int] = (32, 64, 96)
    """Channels of the feature maps at strides 2, 4 and 8."""
    coarse_dim: int = 64
    """Channels of the unit-norm descriptors at stride 4 that all pairs are compared with."""
    fine_dim: int = 32
    """Channels of the unit-norm descriptors at stride 2 that refine a match."""
    fine_radius: int = 2
    """Cells searched around the coarse match at stride 2."""
    hidden: int = 64
    """Width of the little network that turns a patch of correlations into a sub-pixel displacement."""
    area: int = 12_800
    """Pixels of the images that the network is made for; their sides follow the aspect ratio."""
    token_gain: float = 1.0
    """Factor on the stem's tokens, where the blocks read them. A stem that was trained beside other blocks
    has tokens of whatever size those liked."""
    match_gain: float = 1.0
    """Factor on what the matches add to tokens and query groups; above 1 they are heard from the first step,
    though training begins with small weights."""
    window_estimation: bool = True
    """Whether poses and depths of a window are to be estimated from matches and images after the heads, and
    its scale filtered; otherwise a predictor returns what the heads predict."""

    def __post_init__(self) -> None:
        insist_on_sizes(self)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Everything that shapes the network; saved inside its checkpoints."""

    encoder: EncoderConfig | None
    """The vision transformer, or None where the convolutional stem takes its place."""
    matching: MatchingConfig | None = None
    """The correlation stem; exactly one of `encoder` and `matching` is given."""
    patch_size: int = 14
    """Side of a patch, in pixels; image sides are multiples of it."""
    dim: int
    """Channels of a token."""
    depth: int
    """Pairs of frame and window blocks."""
    num_heads: int
    """Attention heads of a block."""
    num_registers: int = 31
    """Register tokens beside the one pose token of a query group (X of the paper)."""
    window: int = 10
    """Frames of the active window, the current one included (W of the paper)."""
    activation: Activation = "gelu"
    """Nonlinearity of the blocks' MLPs."""
    layer_scale: float = 0.01
    """Initial gain of every residual branch."""
    rope_base: float = 100.0
    """Base of the 2-D rotary positions."""
    offset_embedding: bool = False
    """Whether a query group carries an embedding of how many frames ago its frame was."""
    head_layers: tuple[int, int, int, int]
    """Layers whose tokens the point head reads."""
    camera_depth: int = 4
    """Blocks of the camera head."""
    camera_iterations: int = 4
    """Refinement rounds of the camera head."""
    motion_scale: float = 1.0
    """Scale of the camera head's translations and imaginary quaternion parts. Below 1 where the network is
    trained from scratch: neighbouring frames move little, and a step of the optimiser moves every output."""
    camera_start: CameraStart = "zero"
    """What the camera head's first round adds to: zeros, as VGGT has it, or a camera that has not moved, with
    a field of view of one radian, which spares a network that is trained from scratch to learn that."""
    point_features: int = 256
    """Width of the point head's fusion."""
    point_channels: tuple[int, int, int, int] = (256, 512, 1024, 1024)
    """Channels of the point head's four levels."""
    point_kind: Literal["points", "depth"] = "points"
    """What the point head predicts: coordinates, or depth along known rays."""
    point_stride: int = 1
    """Pixels between neighbouring points of the point map; they divide those of a patch."""
    gauge: Gauge = "current"
    """`current` is the paper's; `first` the baseline with poses relative to a persistent first frame."""
    cache_pose_tokens: bool = False
    """The paper's ablation: an anchor's own query group stays in the cache beside its image tokens."""

    def __post_init__(self) -> None:
        insist_on_sizes(self)
        if (self.encoder is None) == (self.matching is None):
            raise ValueError("a network has either a transformer encoder or a correlation stem")
        if self.encoder is not None and (self.encoder.dim, self.encoder.patch_size) != (
            self.dim,
            self.patch_size,
        ):
            raise ValueError(
                f"encoder has {self.encoder.dim} channels and patches of {self.encoder.patch_size}, "
                f"the blocks {self.dim} and {self.patch_size}"
            )
        if self.matching is not None and (self.patch_size != 16 or self.window < 2):
            raise ValueError("the correlation stem has patches of 16 and a window of 2 or more")
        if self.patch_size % self.point_stride:
            raise ValueError(
                f"points {self.point_stride} pixels apart do not fill patches of {self.patch_size}"
            )
        if self.window_estimation and self.point_stride != 4:
            raise ValueError(f"windows are estimated at points 4 pixels apart, not {self.point_stride}")
        if self.gauge == "first" and self.window_estimation:
            raise ValueError("windows are estimated in the current frame's gauge, not in the first one's")
        if self.window < (1 if self.gauge == "current" else 2):
            raise ValueError(
                f"a window has at least one frame, or two with the first gauge, not {self.window}"
            )
        if self.dim % self.num_heads or self.dim // self.num_heads % 4:
            raise ValueError(
                f"{self.dim} channels cannot be split over {self.num_heads} heads with positions"
            )
        if len(self.head_layers) != 4 or not all(0 <= layer < self.depth for layer in self.head_layers):
            raise ValueError(f"head layers {self.head_layers} are not four of 0 … {self.depth - 1}")

    @property
    def window_estimation(self) -> bool:
        """Whether windows are to be estimated from matches and images after the heads."""
        return self.matching is not None and self.matching.window_estimation

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> NetworkConfig:
        """From the metadata of a checkpoint; every field of its type and of a size that can be built."""
        return record_from_json(NetworkConfig, parse_json(text, "the configuration"), "the configuration")


PRESETS: dict[Preset, NetworkConfig] = {
    "full": NetworkConfig(
        encoder=VARIANTS["vit_l"], dim=1024, depth=24, num_heads=16, head_layers=(4, 11, 17, 23)
    ),
    "base": NetworkConfig(
        encoder=VARIANTS["vit_b"], dim=768, depth=12, num_heads=12, head_layers=(2, 5, 8, 11),
        point_features=128, point_channels=(96, 192, 384, 768),
    ),
    "small": NetworkConfig(
        encoder=VARIANTS["vit_s"], dim=384, depth=12, num_heads=6, head_layers=(2, 5, 8, 11),
        point_features=64, point_channels=(48, 96, 192, 384),
    ),
    "tiny": NetworkConfig(
        encoder=None, matching=MatchingConfig(), patch_size=16, dim=128, depth=4, num_heads=4,
        num_registers=1, window=6, activation="relu2", layer_scale=0.2, offset_embedding=True,
        head_layers=(0, 1, 2, 3), camera_depth=1, camera_iterations=2, motion_scale=0.05, point_features=32,
        point_channels=(32, 48, 64, 64), point_kind="depth", point_stride=4,
    ),
}  # fmt: skip


def shrunk(config: NetworkConfig, **changes: Any) -> NetworkConfig:
    """A network of the same architecture with few channels and layers, for tests and dry runs."""
    encoder = config.encoder
    if encoder is not None:
        encoder = replace(encoder, dim=48, depth=2, num_heads=4, image_size=4 * encoder.patch_size)
    small: dict[str, Any] = {
        "encoder": encoder, "dim": 48, "depth": 4, "num_heads": 4, "num_registers": 2,
        "head_layers": (0, 1, 2, 3), "camera_depth": 2, "camera_iterations": 2, "point_features": 16,
        "point_channels": (8, 12, 16, 16),
    }  # fmt: skip
    return replace(config, **(small | changes))
