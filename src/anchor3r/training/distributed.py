"""One process or many: what a trainer has to ask the others about."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from anchor3r.model.network import Anchor3RNetwork
from anchor3r.training.recipes import Sharding

_LET_GO_SECONDS = 0.5
"""A release takes microseconds; this is for machines whose cores are all taken."""


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this is, and its device."""

    rank: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def all_finite(self, value: Tensor) -> bool:
        """Whether `value` is finite in every process, so that all skip a step together."""
        bad = (~torch.isfinite(value.detach()).all()).float().to(self.device)
        if self.count > 1:
            dist.all_reduce(bad)
        return bad.item() == 0

    def mean(self, values: dict[str, Tensor]) -> dict[str, float]:
        """Means over all processes."""
        stacked = torch.stack([v.detach().float().to(self.device) for v in values.values()])
        if self.count > 1:
            dist.all_reduce(stacked)
            stacked /= self.count
        return dict(zip(values, stacked.tolist(), strict=True))


@contextmanager
def processes() -> Iterator[Processes]:
    """Joins the group that `torchrun` describes in the environment, or stands alone without one."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if "RANK" not in os.environ:
        yield Processes(0, 1, device)
        return
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()
        _let_go()


def _let_go() -> None:
    """Leaves gloo's threads the interpreter until they have dropped the tensors of the last exchange.

    DTensor's caches keep the group, and so these threads, alive beyond `destroy_process_group`. One that
    drops a tensor only when the interpreter is already going down aborts the process.
    """
    gc.collect()
    time.sleep(_LET_GO_SECONDS)


def distribute(network: Anchor3RNetwork, strategy: Sharding, group: Processes) -> nn.Module:
    """The network on its device, replicated or sharded over all processes."""
    network = network.to(group.device)
    if strategy == "fsdp" and group.count > 1:
        for layer in network.layers:
            fully_shard(layer)
        fully_shard(network)
        return network
    if group.count > 1:
        return DistributedDataParallel(network)
    return network


@contextmanager
def gradient_sync(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Whether the backward pass inside exchanges gradients: only the last micro-batch of a step has to."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(wanted)
        yield
    elif isinstance(model, DistributedDataParallel) and not wanted:
        with model.no_sync():
            yield
    else:
        yield
