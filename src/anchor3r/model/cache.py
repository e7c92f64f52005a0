"""What the network remembers of past frames: image-side keys, values and descriptors, never a pose.

Shapes: B streams, W slots, L layers, H heads, N image tokens a frame, M query groups of G tokens, D channels
a head. `Memory` is what a layer talks to: it hands in the keys and values of its current tokens and gets back
those of its context. `ImageCache` serves a stream, `ClipMemory` (in network.py) a whole training clip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from anchor3r.model.config import NetworkConfig

KeysValues = tuple[Tensor, Tensor]


class Memory(Protocol):
    """The context of the current frame's tokens, layer by layer."""

    def frame_context(self, layer: int, image: KeysValues) -> KeysValues:
        """Takes the current frame's image keys and values, returns those that each query group reads.

        image: (B, H, N, D) -> (B, M, H, N, D)
        """

    def window_context(
        self, layer: int, image: KeysValues, queries: KeysValues
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns keys and values of the whole window and a mask (B, 1, 1, T) of those that may be read.

        image: (B, H, N, D), queries: (B, H, M G, D) -> (B, H, T, D)
        """


class ImageCache:
    """Ring buffer of W frames, allocated once; the current frame is written into its slot, over the oldest.

    Window keys and values of all slots lie behind one another, so that a step attends to one contiguous view;
    the room in front of them is scratch for the query groups, which are forgotten with the next step.
    With the `first` gauge slot 0 keeps the first frame for good.
    """

    def __init__(
        self,
        config: NetworkConfig,
        num_image_tokens: int,
        *,
        batch: int = 1,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config = config
        self.num_image_tokens = num_image_tokens
        self.batch = batch
        self._group_size = 1 + config.num_registers
        self._num_groups = config.window if config.gauge == "current" else 1
        self._slot_size = num_image_tokens + (self._group_size if config.cache_pose_tokens else 0)
        self._scratch = self._num_groups * self._group_size
        w, h, d = config.window, config.num_heads, config.dim // config.num_heads
        layers, tokens = config.depth, self._scratch + w * self._slot_size
        frame_shape = (layers, 2, batch, w, h, num_image_tokens, d)
        self._frame = torch.zeros(frame_shape, device=device, dtype=dtype)
        self._window = torch.zeros((layers, 2, batch, h, tokens, d), device=device, dtype=dtype)
        self._features: list[list[Tensor] | None] = [None] * w
        self.reset()

    def reset(self) -> None:
        """Forgets the stream; nothing is reallocated."""
        self._steps = 0
        self._slot = 0
        self._filled = 0
        self._age = [-1] * self.config.window
        self._features = [None] * self.config.window

    def advance(self, features: list[Tensor] | None = None) -> None:
        """Opens the slot of a new current frame; its descriptors, if there are any, are kept with it."""
        pinned = 1 if self.config.gauge == "first" else 0
        ring = self.config.window - pinned
        if self._steps < self.config.window or ring < 1:
            self._slot = min(self._steps, self.config.window - 1)
        else:
            self._slot = pinned + (self._steps - pinned) % ring
        self._age = [age + 1 if age >= 0 else -1 for age in self._age]
        self._age[self._slot] = 0
        self._features[self._slot] = features
        self._filled = max(self._filled, self._slot + 1)
        self._steps += 1

    @property
    def ages(self) -> list[int]:
        """Of each filled slot: how many frames ago its frame was current. The current one has age 0."""
        return self._age[: self._filled]

    @property
    def group_ages(self) -> list[int]:
        """Of each query group: how many frames ago the frame was that its pose is relative to or of."""
        return self.ages if self.config.gauge == "current" else [self._steps - 1]

    @property
    def num_steps(self) -> int:
        """Frames seen since the reset."""
        return self._steps

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values, which does not change over the stream."""
        return self._frame.nbytes + self._window.nbytes

    def view(self, layer: int) -> KeysValues:
        """Image keys and values (B, frames, H, N, D) of a layer's frame block, oldest frame first."""
        newest_last = sorted(range(self._filled), key=lambda slot: -self._age[slot])
        keys, values = self._frame[layer]
        return keys[:, newest_last], values[:, newest_last]

    def features(self, slot: int) -> list[Tensor] | None:
        """Descriptors of a slot's frame."""
        return self._features[slot]

    def frame_context(self, layer: int, image: KeysValues) -> KeysValues:
        store = self._frame[layer]
        for target, source in zip(store, image, strict=True):
            target[:, self._slot] = source
        if self.config.gauge == "first":
            return image[0][:, None], image[1][:, None]
        return store[0][:, : self._filled], store[1][:, : self._filled]

    def window_context(
        self, layer: int, image: KeysValues, queries: KeysValues
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        start = self._scratch + self._slot * self._slot_size
        end = self._scratch + self._filled * self._slot_size
        n, group = self.num_image_tokens, self._group_size
        own = self._slot * group if self.config.gauge == "current" else 0
        views = []
        for target, of_image, of_queries in zip(self._window[layer], image, queries, strict=True):
            target[:, :, start : start + n] = of_image
            transient = of_queries
            if self.config.cache_pose_tokens:
                target[:, :, start + n : start + n + group] = of_queries[:, :, own : own + group]
                transient = torch.cat([of_queries[:, :, :own], of_queries[:, :, own + group :]], 2)
            begin = self._scratch - transient.shape[2]
            target[:, :, begin : self._scratch] = transient
            views.append(target[:, :, begin:end])
        return views[0], views[1], None

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of everything, to go on from here later (`restore`)."""
        state = {"frame": self._frame.clone(), "window": self._window.clone()}
        state["position"] = torch.tensor([self._steps, self._slot, self._filled, *self._age])
        for slot, features in enumerate(self._features):
            for level, feature in enumerate(features or []):
                state[f"features.{slot}.{level}"] = feature.clone()
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Puts back a snapshot of a cache of the same configuration."""
        for name, own in (("frame", self._frame), ("window", self._window)):
            if name not in state or state[name].shape != own.shape:
                found = tuple(state[name].shape) if name in state else "nothing"
                raise ValueError(
                    f"this cache's '{name}' is {tuple(own.shape)}, the snapshot's is {found}: "
                    "it was made with another configuration or image size"
                )
            own.copy_(state[name])
        steps, slot, filled, *ages = (int(v) for v in state["position"])
        self._steps, self._slot, self._filled, self._age = steps, slot, filled, ages
        for index in range(self.config.window):
            levels = sorted(k for k in state if k.startswith(f"features.{index}."))
            self._features[index] = [state[k].to(self._frame.device) for k in levels] or None
