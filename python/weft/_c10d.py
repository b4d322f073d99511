"""Reductions through torch.distributed, of the buckets that the agent starts on a plan's link c10d."""

from __future__ import annotations

import datetime
import threading
import time
from statistics import median
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
import torch.distributed as dist

from ._calls import Calls
from ._client import Client, Layout, Tensor, WeftError
from ._memory import DTYPES, view

BACKENDS = ("gloo",)  # those that reduce main memory, where gradients lie; and that were tried

# What is measured: all-reduces of these sizes, up to the first that takes long; and beside those of the agents, some of PAIR bytes,
# for a while. Few times, for a training waits.
_SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]  # bytes
_PAIR = 1 << 20
_TIMES = 5
_LONG = 0.05  # seconds
_WHILE = 0.1


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
        # What gloo's threads may still hold after wait() returned. A thread that is the last to hold a tensor needs Python's lock to
        # let it go, which close() has while it waits for the threads: so all are held here until they have ended.
        self._held: Dict[int, Any] = {}  # by address

    def use(self, layout: Layout, tensors: Sequence[Tensor]) -> None:
        """What is reduced from now on lies as a layout says."""
        self._layout, self._tensors = layout, tensors
        self._held.clear()

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
        self._all_reduce(tensor)

    def _all_reduce(self, tensor: Any) -> None:
        self._held[tensor.data_ptr()] = tensor
        self._group.allreduce([tensor]).wait()  # whatever has become of the default group

    def measure(self, calls: Calls) -> Dict[str, Any]:
        """How long all-reduces take here, alone and beside the agents', as docs/formats/client.md has it: microseconds.

        Every worker calls it at the same time, while neither reduces anything else. Times are those of the rank that took longest.
        """

        def longest(of: Callable[[], Any]) -> float:
            times = []
            for _ in range(_TIMES + 1):
                calls.barrier()
                since = time.perf_counter()
                of()
                times.append(time.perf_counter() - since)
            slowest = torch.tensor(times[1:], dtype=torch.float64)  # the first makes connections and touches memory
            calls.all_reduce(slowest, "max")
            return median(slowest.tolist())

        took: List[float] = []
        for size in _SIZES:
            tensor = torch.zeros(size // 4)
            took.append(longest(lambda: self._all_reduce(tensor)))
            if took[-1] > _LONG:
                break
        size = min(_PAIR, _SIZES[len(took) - 1])
        mine, theirs = torch.zeros(size // 4), torch.zeros(size // 4)
        n = [_number(t) for t in (took[_SIZES.index(size)], longest(lambda: calls.all_reduce(theirs, "sum")))]

        def many(k: int) -> None:
            for _ in range(n[k]):
                self._all_reduce(mine) if k == 0 else calls.all_reduce(theirs, "sum")

        def both() -> None:
            beside = threading.Thread(target=many, args=[0])
            beside.start()
            many(1)
            beside.join()

        alone = [longest(lambda: many(0)), longest(lambda: many(1))]
        rate = max(k / t for k, t in zip(n, alone))
        seconds = {"alone": max(alone), "together": longest(both), "shared": sum(n) / rate}
        points = [{"bytes": b, "time": round(t * 1e6, 3)} for b, t in zip(_SIZES, took)]
        return {"points": points, **{k: round(t * 1e6, 3) for k, t in seconds.items()}}

    def close(self) -> None:
        """Ends its threads: a process that ends with them running may abort."""
        if dist.is_initialized():
            dist.destroy_process_group(self._group)
        del self._group
        self._held.clear()


def _number(seconds: float) -> int:
    """How many of what takes so long take a while."""
    return max(1, min(100, round(_WHILE / max(seconds, 1e-6))))
