"""The current-centric pose-query transformer: one set of weights, a streaming and a parallel way to run it.

At every frame t the network takes I_t as a transient anchor, gives each frame i of the window a group of
query tokens, and alternates two kinds of blocks. In a frame block image tokens attend to their own image and
each query group reads the image tokens of its own frame; in a window block the current image tokens and all
query groups attend to each other and to the cached image tokens of the window. Then the camera head decodes
every T_{i<-t} of the window jointly and the point head the point map of I_t (paper: sections 3.1 to 3.3).

Shapes: B streams or clips, S frames of a clip, N image tokens a frame, M query groups, G tokens a group,
C channels, H heads, D channels a head. B' is B in a stream and B·S in a clip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import radians, tan
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anchor3r.model.cache import ImageCache, KeysValues, Memory
from anchor3r.model.checkpoints import load_tensors, read_tensors
from anchor3r.model.config import Gauge, NetworkConfig
from anchor3r.model.encoder import Encoder, load_dinov2
from anchor3r.model.heads import CameraHead, DPTHead, activate_pose
from anchor3r.model.layers import Block, RotaryTable
from anchor3r.model.matching import ConvStem, DenseMatches, MatchEmbedding, Matcher, cell_pixels, summarise

DEFAULT_FOV_DEG = 65.0
"""Horizontal field of view assumed where the camera is unknown; the network knows that it is a guess."""
_FRAMES_AT_ONCE = 8
"""Frames that the point head takes together where activations are computed anew: a limit of memory."""
_MAX_GRID = 128
"""Most patches a side: the size of the table of rotary positions."""
Probe = Callable[[Tensor, Tensor, Tensor | None], None]
"""Called with what a window block attends with: query groups' queries, all keys, mask."""


@dataclass(frozen=True)
class WindowOutput:
    """What the network says at one anchor (or at every frame of a clip, with axes B, S for B')."""

    poses: list[Tensor]
    """(B', M, 9) a refinement round, the last is the result: member_from_anchor translation, quaternion
    xyzw (to be normalised), vertical and horizontal field of view in radians. With the `first` gauge M = 1,
    the member is the first frame and the pose is the other way round, anchor_from_first."""
    ages: Tensor
    """(B', M) how many frames before the anchor each group's frame was; -1 where there is no such frame"""
    gauge: Gauge
    """Which way round the poses are"""
    points: Tensor
    """(B', H / stride, W / stride, 3) in the anchor's camera frame"""
    confidence: Tensor
    """(B', H / stride, W / stride), greater than 1"""
    tokens: Tensor
    """(B', N, C) encoder tokens of the anchor, for place retrieval"""
    matches: DenseMatches | None
    """Of the pairs below, where the network has a correlation stem"""
    pairs: Tensor
    """(pairs, 3) stream or clip, anchor, age of each pair that was matched"""


class Layer(nn.Module):
    """A decoupled frame block and a current-centric window block (paper: section 3.2)."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        block = partial(
            Block,
            config.dim,
            config.num_heads,
            qk_norm=True,
            layer_scale=config.layer_scale,
            activation=config.activation,
        )
        self.frame = block()
        self.window = block()

    def forward(
        self,
        patches: Tensor,
        queries: Tensor,
        *,
        index: int,
        memory: Memory,
        rope: tuple[Tensor, Tensor],
        probe: Probe | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """patches (B', N, C), queries (B', M, G, C) -> both after the frame, both after the window block.

        `rope` has the positions of the image tokens, then those of all query tokens.
        """
        frame, window = self.frame, self.window
        b, m, g, c = queries.shape
        n = patches.shape[1]

        q, k, v = frame.attn.project(frame.norm1(patches), (rope[0][:n], rope[1][:n]))
        frame_patches = frame.finish(patches, F.scaled_dot_product_attention(q, k, v))
        group_k, group_v = memory.frame_context(index, (k, v))
        groups = queries.reshape(b * m, g, c)
        # Query tokens sit at position 0, where the rotation is the identity.
        q = frame.attn.project_query(frame.norm1(groups), None)
        read = F.scaled_dot_product_attention(q, group_k.flatten(0, 1), group_v.flatten(0, 1))
        frame_queries = frame.finish(groups, read).view(b, m * g, c)

        x = torch.cat([frame_patches, frame_queries], 1)
        q, k, v = window.attn.project(window.norm1(x), rope)
        keys, values, mask = memory.window_context(
            index, (k[:, :, :n], v[:, :, :n]), (k[:, :, n:], v[:, :, n:])
        )
        if probe is not None:
            probe(q[:, :, n:], keys, mask)
        x = window.finish(x, F.scaled_dot_product_attention(q, keys, values, attn_mask=mask))
        return frame_patches, frame_queries.view(b, m, g, c), x[:, :n], x[:, n:].reshape(b, m, g, c)


class Anchor3RNetwork(nn.Module):
    """`stream` takes a frame at a time and a cache; `forward` takes clips, for training. Both agree."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = c = config
        self._recomputes = False
        if c.encoder is not None:
            self.encoder: Encoder | ConvStem = Encoder(c.encoder)
        else:
            assert c.matching is not None
            self.encoder = ConvStem(c.matching, c.dim)
            self.matcher = Matcher(c.matching)
            self.match_embedding = MatchEmbedding(c.window - 1, c.dim)
        # Templates of a query group: index 0 for the reference (the anchor), 1 for the source frames.
        self.query_tokens = nn.Parameter(0.02 * torch.randn(2, 1 + c.num_registers, c.dim))
        if c.offset_embedding:
            self.age_embedding = nn.Parameter(0.02 * torch.randn(c.window, c.dim))
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.depth))
        self.camera_head = CameraHead(
            2 * c.dim,
            depth=c.camera_depth,
            num_heads=c.num_heads,
            iterations=c.camera_iterations,
            motion_scale=c.motion_scale,
            start=c.camera_start,
        )
        self.point_head = DPTHead(
            2 * c.dim,
            kind=c.point_kind,
            features=c.point_features,
            channels=c.point_channels,
            detail=0 if c.matching is None else c.matching.channels[1],
        )
        self._rope = RotaryTable(c.dim // c.num_heads, c.rope_base, _MAX_GRID + 1)

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether training computes activations anew in the backward pass instead of keeping them."""
        return self._recomputes

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, wanted: bool) -> None:
        self._recomputes = wanted
        if isinstance(self.encoder, Encoder):
            self.encoder.gradient_checkpointing = wanted

    @property
    def encoder_parts(self) -> list[nn.Module]:
        """What looks at images before any block does: the encoder, or the stem and its matcher."""
        return [self.encoder] if self.config.matching is None else [self.encoder, self.matcher]

    def load_encoder(self, path: Path | str) -> None:
        """Takes the image encoder over from a file: a vision transformer from official DINOv2 weights with
        registers, a correlation stem from a checkpoint of ours that has the same."""
        if isinstance(self.encoder, Encoder):
            load_dinov2(self.encoder, path)
            return
        tensors, _ = read_tensors(path)
        for part, prefix in ((self.encoder, "encoder."), (self.matcher, "matcher.")):
            own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            load_tensors(part, own, source=str(path))

    def compile_parts(self, backend: str = "inductor") -> None:
        """Has `torch.compile` translate encoder and heads, which see no cache; the first step is slow."""
        for part in (self.encoder, self.camera_head, self.point_head):
            part.compile(backend=backend)

    def new_cache(
        self, height: int, width: int, *, batch: int = 1, dtype: torch.dtype = torch.float32
    ) -> ImageCache:
        """An empty cache for streams of this image size, on the network's device.

        With bfloat16 it takes half the memory; `stream` is then called under `torch.autocast`.
        """
        rows, cols = self._grid(height, width)
        device = self.query_tokens.device
        return ImageCache(self.config, rows * cols, batch=batch, device=device, dtype=dtype)

    def stream(self, image: Tensor, cache: ImageCache, camera: Tensor | None = None) -> WindowOutput:
        """One step: image (B, 3, H, W) in 0–1, camera (B, 4) fx, fy, cx, cy in pixels if known."""
        size = self._check_image(image, ndim=4)
        rows, cols = self._grid(*size)
        if cache.config != self.config or (cache.num_image_tokens, cache.batch) != (rows * cols, len(image)):
            raise ValueError(
                f"the cache was made for another configuration or for {cache.batch} streams of "
                f"{cache.num_image_tokens} tokens; this step has {len(image)} streams of {rows * cols} tokens"
            )
        tokens, features, detail = self._encode(image)
        cache.advance(features)
        ages = torch.tensor(cache.group_ages, device=image.device)
        patches, member_matches, matches, pairs = tokens, None, None, ages.new_zeros((0, 3))
        if features is not None:
            slots = sorted((age, slot) for slot, age in enumerate(cache.ages) if age > 0)
            index = [(b, 0, age) for age, _ in slots for b in range(len(image))]
            pairs = torch.tensor(index, device=image.device).view(-1, 3)
            others = [
                torch.cat(level) for level in zip(*(cache.features(s) or [] for _, s in slots), strict=True)
            ]
            current = [level[None].expand(len(slots), *level.shape).flatten(0, 1) for level in features]
            roles = self._roles(pairs[:, 2], cache.num_steps - 1)
            matches, patches, member_matches = self._match(
                tokens, current, others, pairs[:, 0], roles, camera, size
            )
        each = ages[None].expand(len(image), -1)
        queries = self._instantiate(self._roles(each, cache.num_steps - 1), member_matches)
        levels, pose_tokens = self._blocks(patches, queries, cache, (rows, cols))
        return self._decode(levels, pose_tokens, each, size, camera, tokens, detail, matches, pairs)

    def forward(
        self, clips: Tensor, cameras: Tensor | None = None, probe: Probe | None = None
    ) -> WindowOutput:
        """Every frame of clips (B, S, 3, H, W) as anchor of its own window; cameras (B, S, 4) if known."""
        size = self._check_image(clips, ndim=5)
        b, s = clips.shape[:2]
        tokens, features, detail = self._encode(clips.flatten(0, 1))
        camera = None if cameras is None else cameras.flatten(0, 1)
        memory = ClipMemory(self.config, b, s, clips.device)
        patches, member_matches, matches, pairs = tokens, None, None, memory.ages.new_zeros((0, 3))
        if features is not None:
            pairs = memory.pairs()
            anchor = pairs[:, 0] * s + pairs[:, 1]
            current = [level[anchor] for level in features]
            others = [level[anchor - pairs[:, 2]] for level in features]
            roles = self._roles(pairs[:, 2], pairs[:, 1])
            matches, patches, member_matches = self._match(
                tokens, current, others, anchor, roles, camera, size
            )
        time = torch.arange(s, device=clips.device).repeat(b)[:, None]
        queries = self._instantiate(self._roles(memory.ages, time), member_matches)
        levels, pose_tokens = self._blocks(patches, queries, memory, self._grid(*size), probe)
        return self._decode(levels, pose_tokens, memory.ages, size, camera, tokens, detail, matches, pairs)

    @torch.no_grad()
    def attention_by_frame(self, clip: Tensor, camera: Tensor | None = None) -> Tensor:
        """(L, S, S) share of attention that the query tokens at frame t (row) pay to frame i, layer by layer.

        clip (1, S, 3, H, W). Means over heads and tokens: the paper's attention figure.
        """
        rows, cols = self._grid(*clip.shape[-2:])
        memory = ClipMemory(self.config, 1, clip.shape[1], clip.device)
        layers: list[Tensor] = []

        def probe(queries: Tensor, keys: Tensor, mask: Tensor | None) -> None:
            logits = queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5
            if mask is not None:
                logits = logits.masked_fill(~mask, -torch.inf)
            attention = logits.softmax(-1)
            layers.append(memory.sum_by_frame(attention.mean((1, 2)), rows * cols))

        self(clip, camera, probe)
        return torch.stack(layers)

    def _check_image(self, image: Tensor, *, ndim: int) -> tuple[int, int]:
        if image.ndim != ndim or image.shape[-3] != 3:
            expected = "(B, 3, H, W)" if ndim == 4 else "(B, S, 3, H, W)"
            raise ValueError(f"the network takes images {expected}, not {tuple(image.shape)}")
        # In training the trainer watches the loss instead, which spares a GPU the wait.
        if not self.training and not torch.isfinite(image).all():
            raise ValueError("an image holds values that are not finite")
        return image.shape[-2], image.shape[-1]

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches."""
        patch = self.config.patch_size
        if height % patch or width % patch or not height or not width:
            raise ValueError(f"image size {height}×{width} is no multiple of the patch size {patch}")
        if max(height, width) > patch * _MAX_GRID:
            raise ValueError(f"image size {height}×{width} has more than {_MAX_GRID} patches a side")
        return height // patch, width // patch

    def _encode(self, images: Tensor) -> tuple[Tensor, list[Tensor] | None, Tensor | None]:
        """(B', 3, H, W) -> tokens (B', N, C) and, with the correlation stem, descriptors and detail."""
        if isinstance(self.encoder, ConvStem):
            with torch.autocast(images.device.type, enabled=False):
                tokens, features, detail = self.encoder(images)
            return tokens, features, detail
        return self.encoder(images), None, None

    def _match(
        self,
        tokens: Tensor,
        current: list[Tensor],
        others: list[Tensor],
        anchor: Tensor,
        roles: Tensor,
        camera: Tensor | None,
        size: tuple[int, int],
    ) -> tuple[DenseMatches | None, Tensor, Tensor]:
        """Matches all pairs; what they say is in the tokens (B', N, C) and, by role, in (B', W - 1, C).

        anchor (pairs,) says which of the B' frames a pair is of, roles (pairs,) what its member is there.
        """
        assert self.config.matching is not None
        token_gain, match_gain = self.config.matching.token_gain, self.config.matching.match_gain
        known = torch.full((len(tokens),), float(camera is not None), device=tokens.device)
        if camera is None:
            camera = default_camera(*size, device=tokens.device).expand(len(tokens), -1)
        pixels = cell_pixels(*size, device=tokens.device)
        summary = tokens.new_zeros(len(tokens), self.config.window - 1, len(pixels), 4)
        matches = None
        if len(anchor):
            with torch.autocast(tokens.device.type, enabled=False):
                matches = self.matcher(current, others)
            found = summarise(matches, pixels, camera[anchor])
            summary = summary.index_put((anchor, roles - 1), found.to(summary.dtype))
        to_tokens, by_role = self.match_embedding(summary, camera, known, size)
        return matches, token_gain * tokens + match_gain * to_tokens, match_gain * by_role

    def _roles(self, ages: Tensor, time: Tensor | int) -> Tensor:
        """What each frame is to its anchor, the frame number `time` of its stream: 0 the reference, k > 0 a
        source frame; -1 where there is none.

        In the current gauge that is the age. In the first one's the reference is the first frame itself, to
        every later anchor it has the oldest role, and others have their age.
        """
        if self.config.gauge == "current":
            return ages
        return torch.where((ages > 0) & (ages == time), self.config.window - 1, ages)

    def _instantiate(self, roles: Tensor, by_role: Tensor | None) -> Tensor:
        """Query groups (B', M, G, C) from the templates, for roles (B', M), with matches (B', W - 1, C)."""
        queries = self.query_tokens[(roles != 0).long()]
        if self.config.offset_embedding:
            queries = queries + self.age_embedding[roles.clamp(min=0)][:, :, None]
        if by_role is not None:
            index = (roles - 1).clamp(min=0)[..., None].expand(-1, -1, by_role.shape[-1])
            embedded = by_role.gather(1, index) * (roles > 0)[..., None]
            queries = queries + embedded[:, :, None]
        return queries

    def _blocks(
        self,
        patches: Tensor,
        queries: Tensor,
        memory: Memory,
        grid: tuple[int, int],
        probe: Probe | None = None,
    ) -> tuple[list[Tensor], Tensor]:
        """All layers: image tokens (B', N, 2C) of the head layers, and pose tokens (B', M, 2C)."""
        rope = self._positions(grid, queries.shape[1] * queries.shape[2], patches.device)
        levels: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            run = partial(layer, index=index, memory=memory, rope=rope, probe=probe)
            if self.gradient_checkpointing and self.training:
                run = partial(checkpoint, run, use_reentrant=False)
            frame_patches, frame_queries, patches, queries = run(patches, queries)
            if index in self.config.head_layers:
                levels[index] = torch.cat([frame_patches, patches], -1)
        pose_tokens = torch.cat([frame_queries[:, :, 0], queries[:, :, 0]], -1)
        return [levels[layer] for layer in self.config.head_layers], pose_tokens

    def _positions(
        self, grid: tuple[int, int], num_queries: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Rotary table of the image tokens, at (row + 1, column + 1), then of query tokens, at the origin."""
        rows, cols = (torch.arange(1, side + 1, device=device) for side in grid)
        patches = torch.stack(torch.meshgrid(rows, cols, indexing="ij"), -1).flatten(0, 1)
        return self._rope.lookup(torch.cat([patches, patches.new_zeros((num_queries, 2))]))

    def _decode(
        self,
        levels: list[Tensor],
        pose_tokens: Tensor,
        ages: Tensor,
        size: tuple[int, int],
        camera: Tensor | None,
        tokens: Tensor,
        detail: Tensor | None,
        matches: DenseMatches | None,
        pairs: Tensor,
    ) -> WindowOutput:
        stride = self.config.point_stride
        rounds = self.camera_head(pose_tokens, ages >= 0)
        poses = [activate_pose(raw) for raw in rounds]
        values, confidence = self._points(
            levels, self._grid(*size), (size[0] // stride, size[1] // stride), detail
        )
        if self.config.point_kind == "depth":
            if camera is None:
                camera = default_camera(*size, device=values.device).expand(len(values), -1)
            values = values * camera_rays(camera, size, stride)
        return WindowOutput(poses, ages, self.config.gauge, values, confidence, tokens, matches, pairs)

    def _points(
        self, levels: list[Tensor], grid: tuple[int, int], size: tuple[int, int], detail: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The point head; its maps are large, so where memory is short a few frames at a time.

        Not with detail, which comes from a stem for small images.
        """
        if detail is not None or not (self._recomputes and self.training):
            values, confidence = self.point_head(levels, grid, size, detail)
            return values, confidence
        chunks = zip(*(torch.split(level, _FRAMES_AT_ONCE) for level in levels), strict=True)
        parts = [checkpoint(self.point_head, list(c), grid, size, use_reentrant=False) for c in chunks]
        return torch.cat([values for values, _ in parts]), torch.cat([confidence for _, confidence in parts])


class ClipMemory:
    """The context of every frame of a clip at once: gathers of keys and values along the time axis.

    Frame t of a clip sees what `ImageCache` would hold after t steps; frames before the clip are masked.
    """

    def __init__(self, config: NetworkConfig, batch: int, num_frames: int, device: torch.device) -> None:
        self._config, self._batch, self._num_frames = config, batch, num_frames
        time = torch.arange(num_frames, device=device)[:, None]
        past = time - torch.arange(1, config.window, device=device)
        if config.gauge == "first":
            past = past.clone()
            past[:, -1] = torch.where(time[:, 0] > 0, 0, -1)
            past[:, :-1] = torch.where(past[:, :-1] > 0, past[:, :-1], -1)
        # (S, W - 1) frames that frame t reads besides itself; -1 where there is none.
        self._past = past.clamp(min=-1)
        ages = torch.cat([torch.zeros_like(time), time - self._past], 1).masked_fill(
            torch.cat([torch.zeros_like(time), self._past], 1) < 0, -1
        )
        if config.gauge == "first":
            ages = time
        self.ages = ages.repeat(batch, 1)

    def pairs(self) -> Tensor:
        """(pairs, 3) clip, anchor frame, age of every pair of a window, within the clip."""
        frame, slot = (self._past >= 0).nonzero(as_tuple=True)
        pairs = torch.stack([frame, frame - self._past[frame, slot]], -1)
        clips = torch.arange(self._batch, device=pairs.device).repeat_interleave(len(pairs))
        return torch.cat([clips[:, None], pairs.repeat(self._batch, 1)], 1)

    def frame_context(self, layer: int, image: KeysValues) -> KeysValues:
        own = [x[:, None] for x in image]
        if self._config.gauge == "first":
            return own[0], own[1]
        k, v = (torch.cat([o, self._gather(x)], 1) for o, x in zip(own, image, strict=True))
        return k, v

    def window_context(
        self, layer: int, image: KeysValues, queries: KeysValues
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        group = 1 + self._config.num_registers
        num_kept = image[0].shape[2] + (group if self._config.cache_pose_tokens else 0)
        parts = []
        for of_image, of_queries in zip(image, queries, strict=True):
            own = torch.cat([of_image, of_queries], 2)
            # The frame's own group comes first among its queries, right behind its image tokens.
            past = self._gather(own[:, :, :num_kept]).transpose(1, 2).flatten(2, 3)
            parts.append(torch.cat([own, past], 2))
        valid = torch.cat(
            [
                torch.ones_like(self.ages[:, :1]).expand(-1, image[0].shape[2]).bool(),
                (self.ages >= 0).repeat_interleave(group, 1),
                (self._past >= 0).repeat(self._batch, 1).repeat_interleave(num_kept, 1),
            ],
            1,
        )
        return parts[0], parts[1], valid[:, None, None]

    def sum_by_frame(self, attention: Tensor, num_image_tokens: int) -> Tensor:
        """Weights of one clip's window keys (S, T), in the order of `window_context` -> (S, S) by frame."""
        s, slots = self._num_frames, self._config.window - 1
        own = num_image_tokens + self.ages.shape[1] * (1 + self._config.num_registers)
        by_frame = attention.new_zeros(s, s)
        by_frame[range(s), range(s)] = attention[:, :own].sum(1)
        past = (
            torch.unflatten(attention[:, own:], 1, (slots, -1)).sum(2) if slots else attention.new_zeros(s, 0)
        )
        return by_frame.scatter_add(1, self._past.clamp(min=0), past)

    def _gather(self, x: Tensor) -> Tensor:
        """(B S, H, T, D) -> (B S, W - 1, H, T, D), what each frame sees of the frames before it."""
        clips = torch.unflatten(x, 0, (self._batch, self._num_frames))
        return clips[:, self._past.clamp(min=0)].flatten(0, 1)


def default_camera(height: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """(4,) fx, fy, cx, cy of a camera with the default field of view and square pixels."""
    focal = width / 2 / tan(radians(DEFAULT_FOV_DEG / 2))
    return torch.tensor([focal, focal, (width - 1) / 2, (height - 1) / 2], device=device)


def camera_rays(camera: Tensor, size: tuple[int, int], stride: int) -> Tensor:
    """camera (B, 4) -> rays (B, H / stride, W / stride, 3) with z = 1, through the middle of each cell."""
    ys = torch.arange(size[0] // stride, device=camera.device) * stride + (stride - 1) / 2
    xs = torch.arange(size[1] // stride, device=camera.device) * stride + (stride - 1) / 2
    fx, fy, cx, cy = camera[:, :, None, None].unbind(1)
    y = ((ys[:, None] - cy) / fy).expand(-1, len(ys), len(xs))
    x = ((xs - cx) / fx).expand(-1, len(ys), len(xs))
    return torch.stack([x, y, torch.ones_like(x)], -1)
