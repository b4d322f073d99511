"""All-reduce of a tensor by weft and by Gloo, in turns, in the same processes.

    weft run -n 2 -- python3 python/bench/allreduce.py [BYTES...]

Prints, on rank 0, the median time and the bus bandwidth (that of a ring: 2(n-1)/n of the bytes) of both, for each size.
The results of both are compared.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Callable, List

import torch
import torch.distributed as dist

import weft.torch as weft

SIZES = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
SECONDS = 1.0  # about, for a size and a library


def main() -> None:
    sizes = [int(a) for a in sys.argv[1:]] or SIZES
    weft.init()
    rank, world = weft.rank(), weft.world_size()
    dist.init_process_group("gloo", rank=rank, world_size=world)
    if rank == 0:
        print(f"{world} workers, torch {torch.__version__}; times in us, bus bandwidths in 1e9 bytes a second")
        print(f"{'bytes':>10} {'weft':>10} {'gloo':>10} {'weft':>8} {'gloo':>8} {'ratio':>6}", flush=True)
    for size in sizes:
        given = torch.arange(size // 4, dtype=torch.float32) % 251 + rank  # whose sums are exact
        mine, theirs = given.clone(), given.clone()
        both = [lambda: weft.all_reduce(mine), lambda: dist.all_reduce(theirs)]
        times: List[List[float]] = [[], []]
        for turn in range(2 + rounds(both)):
            mine.copy_(given)
            theirs.copy_(given)
            for do, taken in zip(both, times):
                elapsed = timed(do)
                if turn >= 2:
                    taken.append(elapsed)
            if not torch.equal(mine, theirs):
                raise SystemExit(f"rank {rank}: weft and Gloo differ, {size} bytes")
        if rank == 0:
            ours, gloo = (statistics.median(t) for t in times)
            moved = size * 2 * (world - 1) / world / 1e9
            print(f"{size:10d} {ours * 1e6:10.1f} {gloo * 1e6:10.1f} {moved / ours:8.2f} {moved / gloo:8.2f} {gloo / ours:6.2f}", flush=True)
    dist.destroy_process_group()


def timed(do: Callable[[], object]) -> float:
    """Seconds that a collective takes on this worker, once all are there."""
    weft.barrier()
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def rounds(both: List[Callable[[], object]]) -> int:
    """How many turns fill the time; the same on every worker."""
    once = torch.tensor([sum(timed(do) for do in both for _ in range(2)) / 2])
    weft.all_reduce(once, "max")
    return max(5, min(500, int(2 * SECONDS / once.item())))


main()
