"""Trains ResNet-18 on MNIST, its gradients averaged by weft, or, to compare, by PyTorch's DistributedDataParallel.

    weft run -n 2 -- python3 examples/mnist.py DATA
    weft lab --hosts 2 --rate 1Gbit -- python3 examples/mnist.py DATA --with ddp

DATA has the four files of MNIST, gzipped. `make demo` fetches them and runs both.
"""

import argparse
import gzip
import hashlib
import os
import statistics
import time

import torch
from torch import nn

from models import ResNet18


def read(directory: str, name: str) -> torch.Tensor:
    """The contents of one file, uint8: a header of 16 bits of zero, type and number of dimensions, the dimensions, the data."""
    with gzip.open(os.path.join(directory, name)) as f:
        b = bytearray(f.read())
    n = b[3]
    shape = [int.from_bytes(b[4 + 4 * i : 8 + 4 * i], "big") for i in range(n)]
    return torch.frombuffer(b, dtype=torch.uint8, offset=4 + 4 * n).view(shape)


def pictures(directory: str, name: str):
    """Pictures, float32 (n, 3, 28, 28), three times the same grey, and digits (n)."""
    x = read(directory, f"{name}-images-idx3-ubyte.gz").float().div_(255).sub_(0.1307).div_(0.3081)
    return x[:, None].expand(-1, 3, -1, -1), read(directory, f"{name}-labels-idx1-ubyte.gz").long()


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("data")
    p.add_argument("--with", dest="library", choices=["weft", "ddp"], default="weft")
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=64, help="pictures a worker and step")
    args = p.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = ResNet18(classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if args.library == "weft":
        import weft.torch as weft

        weft.init()
        network, optimizer = weft.wrap(model, optimizer)
        rank, world, sum_of = weft.rank(), weft.world_size(), weft.all_reduce
    else:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        network = nn.parallel.DistributedDataParallel(model)
        rank, world = dist.get_rank(), dist.get_world_size()

        def sum_of(t: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(t)
            return t

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    x, y = pictures(args.data, "train")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))[rank::world]
    loss_of = nn.CrossEntropyLoss()
    times = []
    for step in range(args.steps):
        mine = order[torch.arange(step * args.batch, (step + 1) * args.batch) % len(order)]
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of(network(x[mine]), y[mine])
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
        if (step + 1) % 10 == 0:
            loss = float(sum_of(loss.detach())) / world
            say(f"{args.library:4} step {step + 1}: loss {loss:.4f}, {1e3 * statistics.median(times[-10:]):.0f} ms a step")

    model.eval()
    x, y = (t[rank:2000:world] for t in pictures(args.data, "t10k"))
    with torch.no_grad():
        right = float(sum_of((model(x).argmax(1) == y).sum().float())) / 2000
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    kept = times[len(times) // 4 :]  # the first steps fill caches
    say(
        f"{args.library:4} {world * args.batch / statistics.mean(kept):.0f} pictures/s, {1e3 * statistics.median(kept):.0f} ms a step,"
        f" {100 * right:.1f} % of 2000 new ones read right, weights {weights.hexdigest()[:16]}"
    )


if __name__ == "__main__":
    main()
