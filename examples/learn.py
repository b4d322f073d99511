"""Trains a model on real data, and says how good it is after how long: with weft, with DDP over gloo, or each worker alone.

    weft run -n 2 -- python3 examples/learn.py cnn MNIST
    weft lab --hosts 2 --rate 100Mbit -- python3 examples/learn.py gpt /usr/local/go/src --with ddp

MNIST is a directory with its four files, gzipped; cnn and resnet18 learn to read its digits. gpt learns to go on with Go source,
character by character, from a directory of it. `weft study accuracy` runs it.
"""

import argparse
import gzip
import hashlib
import json
import os
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

import models
from library import LIBRARIES, settle


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


class Digits:
    """MNIST. Better is more of the test's digits read right, in percent.

    The momentum is one that updates an iteration late bear too: at 0.9 they swing (docs/studies.md, "Accuracy").
    """

    batch, rate, momentum = 32, 0.05, 0.5

    def __init__(self, directory: str):
        self.x, self.y = pictures(directory, "train")
        self.test = pictures(directory, "t10k")

    def draw(self, n: int, generator: torch.Generator):
        i = torch.randint(len(self.x), (n,), generator=generator)
        return self.x[i], self.y[i]

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, y)

    def tests(self, rank: int, world: int):
        """This rank's part of the test, in batches."""
        return zip(*(t[rank::world].split(250) for t in self.test))

    def score(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 100 * (out.argmax(1) == y).double()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.rate, momentum=self.momentum)


class Source:
    """Go source in 97 characters; every twentieth file is for the test. Better is less loss, in nats a character."""

    batch, rate, context = 4, 2e-3, 128

    def __init__(self, directory: str):
        parts = [], []
        for root, dirs, files in os.walk(directory):
            dirs[:] = sorted(d for d in dirs if d not in ("cmd", "testdata", "vendor"))
            for name in sorted(files):
                if name.endswith(".go") and not name.endswith("_test.go"):
                    held = hashlib.sha256(name.encode()).digest()[0] < 13
                    with open(os.path.join(root, name), "rb") as f:
                        parts[held].append(f.read())
        known = bytes(range(32, 127)) + b"\n\t"
        codes = bytes(max(known.find(bytes([c])), 0) for c in range(256))
        self.text, self.held = (torch.frombuffer(bytearray(b"".join(p).translate(codes)), dtype=torch.uint8) for p in parts)

    def windows(self, text: torch.Tensor, starts: torch.Tensor):
        ids = text[starts[:, None] + torch.arange(self.context + 1)].long()
        return ids[:, :-1], ids[:, 1:]

    def draw(self, n: int, generator: torch.Generator):
        return self.windows(self.text, torch.randint(len(self.text) - self.context, (n,), generator=generator))

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out.flatten(0, 1), y.flatten())

    def tests(self, rank: int, world: int):
        starts = torch.linspace(0, len(self.held) - self.context - 1, 256).long()[rank::world]
        return (self.windows(self.held, s) for s in starts.split(16))

    def score(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none").double()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.rate)


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


# What is trained: the data, the model, and how many steps.
TASKS = {
    "cnn": (Digits, cnn, 1800),
    "resnet18": (Digits, lambda: models.ResNet18(classes=10), 60),
    "gpt": (Source, lambda: models.GPT(vocab=97, context=Source.context, width=192, layers=4, heads=4), 600),
}


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("task", choices=sorted(TASKS))
    p.add_argument("data")
    p.add_argument("--with", dest="library", choices=[*LIBRARIES], default="weft")
    p.add_argument("--seed", type=int, default=1, help="of weights and batches")
    p.add_argument("--steps", type=int, help="the learning rate falls to zero over them")
    p.add_argument("--tests", type=int, default=10, help="how many times to test; 0: never")
    p.add_argument("--out", help="file for what was measured, JSON, of rank 0")
    args = p.parse_args()

    data, build, steps = TASKS[args.task]
    data, steps = data(args.data), args.steps or steps
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    library = LIBRARIES[args.library]()
    model = build()
    network, optimizer = library.wrap(model, data.optimizer(model))

    warm = max(steps // 20, 1)
    pace = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min((i + 1) / warm, max(steps - i, 0) / (steps - warm + 1)))
    generator = torch.Generator().manual_seed(1000 * args.seed + library.rank)

    def step() -> None:
        x, y = data.draw(data.batch, generator)
        optimizer.zero_grad()
        data.loss(network(x), y).backward()
        optimizer.step()
        pace.step()

    def test() -> float:
        """The mean score of the whole test."""
        model.eval()
        total = torch.zeros(2, dtype=torch.float64)
        with torch.no_grad():
            for x, y in data.tests(library.rank, library.world):
                scores = data.score(model(x), y)
                total += torch.tensor([scores.sum(), scores.numel()], dtype=torch.float64)
        model.train()
        total = library.sum(total)
        return float(total[0] / total[1])

    # Tests take no time of what is told: the clock stands still, after the last update is in place.
    times, scores, spent = [], [], 0.0
    last = time.perf_counter()
    for i in range(1, steps + 1):
        step()
        due = args.tests and i * args.tests // steps > (i - 1) * args.tests // steps
        if i == steps:
            library.flush()
        if due or i == steps:
            settle(model)
        now = time.perf_counter()
        times.append(now - last)
        spent += now - last
        if due:
            scores.append({"step": i, "time": spent, "score": test()})
            if library.rank == 0:
                print(f"{args.task}, {args.library}: step {i}, {spent:.1f} s: {scores[-1]['score']:.4f}", flush=True)
        last = time.perf_counter() if due else now
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    if library.rank == 0:
        print(f"{args.task}, {args.library}: {1e3 * statistics.median(times):.0f} ms a step, weights {weights[:16]}", flush=True)
    if library.rank == 0 and args.out:
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        with open(args.out, "w") as f:
            json.dump({"bytes": size, "times": times, "tests": scores, "weights": weights}, f)
    library.close()


if __name__ == "__main__":
    main()
