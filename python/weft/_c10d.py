"""Reductions through torch.distributed, of the buckets that the agent starts on a plan's link c10d."""

from __future__ import annotations

import datetime
from typing import Optional, Sequence

import torch
import torch.distributed as dist

from ._client import Client, Layout, Tensor, WeftError
from ._memory import DTYPES, view

BACKENDS = ("gloo",)  # those that reduce main memory, where gradients lie; and that were tried


def verify(backend: str, client: Client) -> None:
    """Raises where torch.distributed has not the workers that the agent has, as it does for a backend that is none of BACKENDS."""
    if backend not in BACKENDS:
        raise ValueError(f"wrap: c10d is {backend!r}; there is {', '.join(BACKENDS)}")
    if not dist.is_available() or not dist.is_initialized():
        raise WeftError(f"rank {client.rank}: wrap(c10d={backend!r}) needs torch.distributed.init_process_group before it")
    theirs = (dist.get_rank(), dist.get_world_size())
    if theirs != (client.rank, client.world):
        raise WeftError(
            f"rank {client.rank} of {client.world} is rank {theirs[0]} of {theirs[1]} to torch.distributed: start both by one launcher"
        )


class Group:
    """All workers, on a process group of its own: on one that the script uses too, its calls and these would come in other orders.

    Every worker makes it at the same time.
    """

    def __init__(self, backend: str, world: int, timeout: float) -> None:
        """timeout is how long a worker may wait for another one, seconds."""
        self._world = world
        self._group = dist.new_group(backend=backend, timeout=datetime.timedelta(seconds=min(timeout, 1e8)))
        self._layout: Optional[Layout] = None
        self._tensors: Sequence[Tensor] = []

    def use(self, layout: Layout, tensors: Sequence[Tensor]) -> None:
        """What is reduced from now on lies as a layout says."""
        self._layout, self._tensors = layout, tensors

    def reduce(self, bucket: int, iteration: int) -> None:
        """Replaces a bucket in the input region by the mean over all workers, of integers by the sum."""
        layout = self._layout
        assert layout is not None
        slices = layout.buckets[bucket].slices  # one after the other
        dtype = DTYPES[self._tensors[slices[0].tensor].dtype]
        place = slices[0].place + layout.copy(layout.generation(iteration))
        tensor = view(layout.input, dtype, place, [sum(s.length for s in slices)])
        if dtype.is_floating_point:
            tensor.mul_(1 / self._world)  # first, as the agent and DDP do: it matters to what overflows
        self._group.allreduce([tensor]).wait()  # whatever has become of the default group

    def close(self) -> None:
        """Ends its threads: a process that ends with them running may abort."""
        if dist.is_initialized():
            dist.destroy_process_group(self._group)
        del self._group
