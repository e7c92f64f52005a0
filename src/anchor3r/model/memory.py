"""How much memory a network takes, counted on tensors that have shapes but no memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from anchor3r.model.cache import ImageCache
from anchor3r.model.config import NetworkConfig
from anchor3r.model.network import Anchor3RNetwork
from anchor3r.model.vggt import VGGT, VGGTConfig


class _LiveBytes(TorchDispatchMode):
    """Adds up the storages that are alive; what existed before is not counted."""

    live: dict[int, int]
    """Bytes of each storage, by its identity"""
    peak: int

    def __enter__(self) -> _LiveBytes:
        self.live, self.peak = {}, 0
        super().__enter__()
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        known = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and id(storage) not in known and id(storage) not in self.live:
                self.live[id(storage)] = storage.nbytes()
                weakref.finalize(storage, self.live.pop, id(storage), None)
        self.peak = max(self.peak, sum(self.live.values()))
        return out


def peak_bytes(run: Callable[[], object]) -> int:
    """Most bytes of tensors that `run` makes and are alive at once, under a `FakeTensorMode`."""
    with torch.inference_mode(False), torch.no_grad(), _LiveBytes() as counter:
        run()
    return counter.peak


@lru_cache(maxsize=8)
def streaming_bytes(config: NetworkConfig, height: int, width: int, dtype: torch.dtype) -> int:
    """What a stream of images of that size takes beside the weights: the cache, and a step's tensors.

    What kernels need inside is not in it. Of a correlation stem only the cache is counted, since what it
    compares depends on the images; such networks are small.
    """
    with torch.device("meta"):
        network = Anchor3RNetwork(config).requires_grad_(False).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        tokens = (height // config.patch_size) * (width // config.patch_size)
        cache = ImageCache(config, tokens, dtype=dtype)
        if config.matching is not None:
            return cache.nbytes
        network.to_empty(device="cpu")
        image = torch.zeros(1, 3, height, width)
        for _ in range(config.window - 1):
            cache.advance()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            return cache.nbytes + peak_bytes(lambda: network.stream(image, cache))


@lru_cache(maxsize=8)
def window_bytes(
    config: VGGTConfig, height: int, width: int, num_frames: int, num_dense: int, dtype: torch.dtype
) -> int:
    """What one window of VGGT takes beside the weights; `num_dense` of its frames get a depth map."""
    grid = height // config.patch_size, width // config.patch_size
    with torch.device("meta"):
        model = VGGT(config).requires_grad_(False)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        tokens = torch.zeros(1, num_frames, grid[0] * grid[1], config.embed_dim)

        def run() -> object:
            layers = model.aggregate(tokens, grid)
            model.cameras(layers)
            return model.dense(model.depth_head, {k: x[:, :num_dense] for k, x in layers.items()}, grid)

        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            return tokens.nbytes + peak_bytes(run)
