"""What a profile costs an iteration, in time of the processor: python3 python/bench/profile.py

A transformer of 6 layers, one thread, iterations with hooks and without in turns.
"""

from __future__ import annotations

import os
import sys
import time
from statistics import median
from typing import Any, List, Optional

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import torch
from torch import nn

from weft._hooks import ForwardHook
from weft._profile import Profile


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(6))
        self.head = nn.Linear(256, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Alone:
    """A client whose buckets are there at once."""

    def ready(self, *_: Any) -> None: ...
    def reduced(self) -> Any:
        return 0, 0


def main() -> None:
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    parameters = list(model.named_parameters())

    def iterate(profile: Optional[Profile]) -> float:
        start = time.process_time()
        optimizer.zero_grad()
        out = model(torch.randint(1000, (8, 64))).sum()
        out.backward()
        if profile:
            for k in range(len(parameters)):
                profile.backward()
                profile.gradient(k)
            profile.sent()
            profile.reduced()
            profile.ended(0)
        optimizer.step()
        return time.process_time() - start

    for _ in range(3):
        iterate(None)
    plain: List[float] = []
    profiled: List[float] = []
    for _ in range(10):
        plain += [iterate(None) for _ in range(2)]
        p = Profile(Alone(), model, optimizer, parameters, 0, 1 << 30)  # type: ignore[arg-type]
        profiled += [iterate(p) for _ in range(3)][1:]
        events = len(p._measured[-1].events)
        p._forward()
        module, calls, x = nn.Identity(), 20000, torch.ones(1)

        def each() -> float:
            start = time.process_time()
            for _ in range(calls):
                module(x)
            return (time.process_time() - start) / calls

        without = each()
        module.register_forward_pre_hook(ForwardHook(lambda *_: p._call(1)))
        event = each() - without
        p.remove()
    iteration = median(plain)
    print(f"an iteration {iteration * 1e3:.1f} ms, with hooks {median(profiled) * 1e3:.1f} ms; {events} events of {event * 1e6:.2f} us:"
          f" {events * event / iteration:.2%}")  # fmt: skip


main()
