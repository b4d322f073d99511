"""Trains a model on random batches, and says how long an iteration takes: with weft, with DDP over gloo, or each worker alone.

    weft run -n 2 -- python3 examples/train.py resnet18
    weft lab --hosts 2 --rate 1Gbit -- python3 examples/train.py gpt --with ddp

`weft study live` runs it.
"""

import argparse
import json
import os
import statistics
import time

import torch
from torch import nn

import models

BATCH = {"resnet18": 16, "gpt": 4}


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("model", choices=sorted(BATCH))
    p.add_argument("--with", dest="library", choices=["weft", "ddp", "alone"], default="weft")
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--warm-up", type=int, default=5, help="steps before, which are not timed")
    p.add_argument("--batch", type=int, help="examples a worker and step")
    p.add_argument("--out", help="file for the times, JSON, of rank 0")
    args = p.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = network = models.build(args.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    rank = int(os.environ.get("RANK", 0))
    if args.library == "weft":
        import weft.torch as weft

        weft.init()
        network, optimizer = weft.wrap(model, optimizer)
    elif args.library == "ddp":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        network = nn.parallel.DistributedDataParallel(model)

    generator = torch.Generator().manual_seed(100 + rank)
    batches = [models.batch(args.model, args.batch or BATCH[args.model], 64, generator) for _ in range(4)]
    ends = []
    for i in range(args.warm_up + args.steps):
        x, y = batches[i % len(batches)]
        optimizer.zero_grad()
        models.loss(args.model, network(x), y).backward()
        optimizer.step()
        if i + 1 == args.warm_up + args.steps:
            for parameter in model.parameters():
                parameter.sum()  # the last update may be under way
        if i + 1 >= args.warm_up:
            ends.append(time.perf_counter())
    times = [b - a for a, b in zip(ends, ends[1:])]
    if rank == 0:
        print(f"{args.model}, {args.library}: {1e3 * statistics.median(times):.1f} ms a step", flush=True)
        if args.out:
            with open(args.out, "w") as f:
                json.dump({"bytes": sum(4 * p.numel() for p in model.parameters()), "times": times}, f)
    if args.library == "ddp":
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
