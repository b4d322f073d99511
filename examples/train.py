"""Trains a model on random batches, and says how long an iteration takes: with weft, with DDP over gloo, or each worker alone.

loaded is the control: each worker trains alone, and in every iteration another process on its host moves as many bytes as its
gradients have. An iteration then takes what it must where computation and communication share the processors, and neither waits
for the other within it.

    weft run -n 2 -- python3 examples/train.py resnet18
    weft lab --hosts 2 --rate 1Gbit -- python3 examples/train.py gpt --with ddp

`weft study live` runs it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

import models
from library import LIBRARIES, Alone

BATCH = {"resnet18": 16, "gpt": 4, "mlp": 128}


class Mover:
    """Another process, which reduces a tensor each time that it is told to."""

    def __init__(self, elements: int) -> None:
        self._process: Any = subprocess.Popen(
            [sys.executable, __file__, "--move", str(elements)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.wait()

    def start(self) -> None:
        self._process.stdin.write(b"x")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Until it has started, or done what it was told last."""
        if not self._process.stdout.read(1):
            sys.exit("the process that moves bytes has ended")

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def move(elements: int) -> None:
    import weft.torch as weft

    torch.set_num_threads(1)
    weft.init()
    tensor = torch.zeros(elements)
    weft.barrier()
    done = os.write(1, b"x")
    while done and os.read(0, 1):
        weft.all_reduce(tensor)
        done = os.write(1, b"x")


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("model", choices=sorted(BATCH), nargs="?", default="resnet18")
    p.add_argument("--with", dest="library", choices=[*LIBRARIES, "loaded"], default="weft")
    p.add_argument("--move", type=int, help=argparse.SUPPRESS)
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--warm-up", type=int, default=5, help="steps before, which are not timed")
    p.add_argument("--batch", type=int, help="examples a worker and step")
    p.add_argument("--out", help="file for the times, JSON, of rank 0")
    args = p.parse_args()
    if args.move is not None:
        return move(args.move)

    torch.set_num_threads(1)
    torch.manual_seed(1)
    library = LIBRARIES.get(args.library, Alone)()
    model = models.build(args.model)
    network, optimizer = library.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    mover = Mover(sum(q.numel() for q in model.parameters())) if args.library == "loaded" else None

    generator = torch.Generator().manual_seed(100 + library.rank)
    batches = [models.batch(args.model, args.batch or BATCH[args.model], 64, generator) for _ in range(4)]
    ends = []
    for i in range(args.warm_up + args.steps):
        x, y = batches[i % len(batches)]
        if mover is not None:
            mover.start()
        optimizer.zero_grad()
        models.loss(args.model, network(x), y).backward()
        optimizer.step()
        if mover is not None:
            mover.wait()
        if i + 1 >= args.warm_up:
            ends.append(time.perf_counter())
    times = [b - a for a, b in zip(ends, ends[1:])]
    if library.rank == 0:
        print(f"{args.model}, {args.library}: {1e3 * statistics.median(times):.1f} ms a step", flush=True)
        if args.out:
            with open(args.out, "w") as f:
                json.dump({"bytes": sum(4 * p.numel() for p in model.parameters()), "times": times}, f)
    if mover is not None:
        mover.close()
    library.close()


if __name__ == "__main__":
    main()
