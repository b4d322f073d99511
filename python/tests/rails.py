"""Trains a small GPT, and prints a digest of its weights and what this host has sent on each rail: rails.py STEPS [PLAN].

With a plan that delays updates, weights are compared with those of one process that replays it, after every step. rails.py STEPS cut: in
step 5 the second rail of rank 1 goes down.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import struct
import sys
import time
from typing import Any, Iterator, List, Tuple

import delayed
import torch

import weft.torch as weft

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples"))
import models  # noqa: E402

CONTEXT = 16


class Model(models.GPT):  # type: ignore[misc]
    """0.9 MB of gradients. Its head's weight is that of its embedding, at both ends of the passes."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(context=CONTEXT, width=96, layers=2, tie=True)

    def loss(self, x: torch.Tensor, y: torch.Tensor, *_: int) -> torch.Tensor:
        return models.loss("gpt", self(x), y)  # type: ignore[no-any-return]


def batches(rank: int) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(100 + rank)
    while True:
        ids = torch.randint(96, (2, CONTEXT + 1), generator=g)
        yield ids[:, :-1], ids[:, 1:]


def optimizer_of(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def sent() -> List[int]:
    """Bytes by interface: eth0, eth1, ..."""
    with open("/proc/self/net/dev") as f:
        lines = dict(line.split(":") for line in f if ":" in line)
    return [int(fields.split()[8]) for name, fields in sorted((k.strip(), v) for k, v in lines.items()) if name.startswith("eth")]


def down(interface: str) -> None:
    """As `ip link set INTERFACE down`."""
    get, put, up = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        name, flags = struct.unpack("16sh", fcntl.ioctl(s, get, struct.pack("16sh", interface.encode(), 0)))
        fcntl.ioctl(s, put, struct.pack("16sh", name, flags & ~up))
    print("cut at", time.time(), flush=True)


def main(steps: int, plan: str = "", cut: bool = False) -> None:
    torch.set_num_threads(1)
    weft.init()
    model = Model()
    optimizer = optimizer_of(model.parameters())
    weft.wrap(model, optimizer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    seen = []
    for n, (x, y) in zip(range(steps), batches(weft.rank())):
        optimizer.zero_grad()
        if cut and n == 5 and weft.rank() == 1:
            down("eth1")
        model.loss(x, y).backward()
        optimizer.step()
        scheduler.step()
        if plan:
            seen.append(delayed.state(model))
            if n + 1 in (delayed.FLUSH, delayed.STEPS):
                weft.flush()
                seen.append(delayed.state(model))
    if plan:
        with open(plan) as f:
            want = delayed.oracle(json.load(f), optimizer_of, model_of=Model, batches=lambda r: zip_steps(batches(r)))
        assert len(seen) == len(want)
        for n, (g, w) in enumerate(zip(seen, want)):
            assert all(map(torch.equal, g, w)), f"state {n} differs"
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    weft.barrier()
    print("digest", digest.hexdigest(), "sent", *sent(), flush=True)


def zip_steps(data: Iterator[Any]) -> List[Any]:
    return [b for _, b in zip(range(delayed.STEPS), data)]


if __name__ == "__main__" and sys.argv[2:] == ["cut"]:
    try:
        main(int(sys.argv[1]), cut=True)
    except weft.WeftError as e:
        print("told at", time.time(), e, flush=True)
        raise
elif __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
