"""Trains for 200 steps while plans change, and prints a digest of the weights: switching.py HOW.

plain; sums: of several passes (no_sync); some: parameters that are not always used; join: workers have different numbers of
batches; reads: gradients are clipped; parts: of a loss in two parts; slow: one rank is; dies NUMBER before|after: rank 1 is killed in a review.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
import time
from typing import Any

import torch
from torch import nn

import weft.torch as weft
from weft import torch as module

STEPS = 200


class Some(nn.Module):
    """Uses one branch or the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 1)
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return self.head((self.a if (self.step // 3 + weft.rank()) % 2 else self.b)(x).tanh())  # type: ignore[no-any-return]


def dies(number: int, when: str) -> None:
    """Has this rank killed in its review of this number: before it, or after it, which is before hello."""
    client = module._session.client  # type: ignore[union-attr]
    review, made = client.review, 0

    def kill() -> None:
        print("dies at", time.time(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def reviewed(report: Any) -> Any:
        nonlocal made
        made += 1
        if (made, when) == (number, "before"):
            kill()
        decision = review(report)
        if (made, when) == (number, "after"):
            kill()
        return decision

    client.review = reviewed  # type: ignore[method-assign]


def main() -> None:
    what = sys.argv[1]
    torch.manual_seed(0)
    weft.init()
    rank = weft.rank()
    model: nn.Module = Some() if what == "some" else nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    weft.wrap(model, optimizer, bucket_bytes=1 << 9, first_bucket_bytes=1 << 8)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50)
    if what == "dies" and rank == 1:
        dies(int(sys.argv[2]), sys.argv[3])
    data = torch.Generator().manual_seed(rank)
    reducer = module._session.reducer  # type: ignore[union-attr]
    switches, restart = 0, reducer.restart  # type: ignore[union-attr]

    def counted(*args: Any) -> None:
        nonlocal switches
        switches += 1
        restart(*args)

    reducer.restart = counted  # type: ignore[union-attr, method-assign]
    with weft.join() if what == "join" else contextlib.nullcontext():
        for step in range(STEPS - 70 * rank if what == "join" else STEPS):
            optimizer.zero_grad()
            if what == "slow" and rank == 1:
                time.sleep(0.003)
            for part in range(3 if what == "sums" else 1):
                with weft.no_sync() if what == "sums" and part < 2 else contextlib.nullcontext():
                    loss = model(torch.randn(4, 8, generator=data)).pow(2).mean()
                    if what == "parts":
                        torch.autograd.backward([loss / 2, loss / 2])
                    else:
                        loss.backward()
            if what == "reads":
                nn.utils.clip_grad_norm_(model.parameters(), 1)
            optimizer.step()
            scheduler.step()
    weft.flush()
    digest = hashlib.sha256()
    state = optimizer.state_dict()["state"]
    for t in [*model.parameters(), *model.buffers(), *(state[k]["exp_avg_sq"] for k in sorted(state))]:
        digest.update(t.detach().double().numpy().tobytes())
    print(f"switches {switches} digest {digest.hexdigest()}")


try:
    main()
except weft.WeftError:
    print("told at", time.time(), flush=True)
    raise
