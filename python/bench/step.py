"""How long a training step takes with plain buckets, by weft and by DistributedDataParallel over gloo, and without other workers.

    weft run -n 2 -- python3 python/bench/step.py resnet18
    weft lab --hosts 4 --rate 1Gbit -- python3 python/bench/step.py gpt

The same processes train three copies of one model in turns, a few steps each, so that whatever else the machine does comes to
all alike. Prints, for each, the median step over all turns, and of the two libraries' difference, turn by turn, the mean with its
95 % interval (Student's t). Both have DDP's bucket sizes.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import statistics
import sys
import time
from typing import Callable, Dict, List

import torch
import torch.distributed as dist
from torch import nn

import weft.torch as weft

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples"))
import models  # noqa: E402

# Student's t, two-sided 95 %, by degrees of freedom; beyond the table that of the last.
T95 = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09]


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("model", choices=["resnet18", "gpt"])
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--image-size", type=int, default=64)
    p.add_argument("--turns", type=int, default=12)
    p.add_argument("--steps", type=int, default=3, help="steps a turn; one more, before, is not counted")
    args = p.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    weft.init()
    dist.init_process_group("gloo")
    rank, world = weft.rank(), weft.world_size()
    g = torch.Generator().manual_seed(100 + rank)
    data = [models.batch(args.model, args.batch, args.image_size, g) for _ in range(4)]
    first = models.build(args.model)

    def trainer(wrap: Callable) -> Callable[[int], None]:
        model = copy.deepcopy(first)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        network = wrap(model, optimizer)

        def step(i: int) -> None:
            x, y = data[i % len(data)]
            optimizer.zero_grad()
            models.loss(args.model, network(x), y).backward()
            optimizer.step()

        return step

    trainers: Dict[str, Callable[[int], None]] = {
        "alone": trainer(lambda model, optimizer: model),
        "ddp": trainer(lambda model, optimizer: nn.parallel.DistributedDataParallel(model)),
        "weft": trainer(lambda model, optimizer: weft.wrap(model, optimizer)[0]),
    }
    turns: Dict[str, List[float]] = {name: [] for name in trainers}
    steps: Dict[str, List[float]] = {name: [] for name in trainers}
    for turn in range(args.turns + 1):  # the first warms up
        names = list(trainers)
        for name in names if turn % 2 else reversed(names):
            weft.barrier()
            times = []
            for i in range(args.steps + 1):
                start = time.perf_counter()
                trainers[name](turn + i)
                times.append(time.perf_counter() - start)
            if turn:
                steps[name] += times[1:]
                turns[name].append(statistics.mean(times[1:]))

    if rank == 0:
        for name in trainers:
            s = 1e3 * statistics.median(steps[name])
            print(f"{args.model}, {world} workers, {name:5}: {s:8.1f} ms a step")
        d = [1e3 * (w - r) for w, r in zip(turns["weft"], turns["ddp"])]
        t = T95[min(len(d) - 1, len(T95)) - 1]
        half = t * statistics.stdev(d) / math.sqrt(len(d))
        ratio = statistics.median(turns["ddp"]) / statistics.median(turns["weft"])
        print(f"{args.model}, {world} workers, weft - ddp: {statistics.mean(d):+.1f} ms +- {half:.1f} (95 %); ddp / weft: {ratio:.2f}")
    weft.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
