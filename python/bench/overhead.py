"""What a bucket costs beside its transfer: from ready to the agent's start, and from its done to the worker's wake-up.

    weft run -n 1 -- python3 python/bench/overhead.py

With one worker, and a bucket of one number, there is no more to it than that. Prints medians and 99th percentiles in
microseconds, on the machine as it is and with a spinning process on every core.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from typing import List

from weft._agent import Agent
from weft._client import Client, Tensor
from weft._launchers import worker

ROUNDS = 5000


def rounds(client: Client, first: int) -> List[float]:
    """Seconds of each."""
    times = []
    for iteration in range(first, first + ROUNDS):
        start = time.perf_counter()
        client.ready(0, iteration)
        client.done(iteration)
        times.append(time.perf_counter() - start)
    return times


def spin() -> None:
    while True:
        pass


def main() -> None:
    me = worker(os.environ)
    client = Client(Agent(os.environ, me).connect(), me.rank, me.world_size, me.local_rank)
    client.hello([Tensor("t", 1, "float32")], 1 << 20, 1 << 20, "")
    spinning = [multiprocessing.Process(target=spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    for i, name in enumerate(["as it is", "all cores busy"]):
        if i == 1:
            for p in spinning:
                p.start()
        times = sorted(1e6 * t for t in rounds(client, i * ROUNDS))
        if me.rank == 0:
            print(f"{name:15} median {statistics.median(times):6.0f} us   99 % {times[int(0.99 * ROUNDS)]:6.0f} us", flush=True)
    for p in spinning:
        p.kill()
    client.goodbye()


if __name__ == "__main__":
    main()
