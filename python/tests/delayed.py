"""A training under a plan that delays updates, and what it must come to, in one process. Run as one rank: delayed.py PLAN OUT.

The oracle knows the plan's generations and updates, both ranks' batches, and when the training flushed.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch import nn

WORLD, STEPS, FLUSH = 2, 11, 6  # FLUSH: after so many iterations
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


class Model(nn.Sequential):
    """As tests.cases.mlp. The last layer's bias is unused in some iterations."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 5))

    def loss(self, x: torch.Tensor, y: torch.Tensor, i: int, rank: int) -> torch.Tensor:
        h = self[3](self[2](self[1](self[0](x))))
        bias = self[4].bias if i > 3 and (i + rank) % 3 else None
        return nn.functional.cross_entropy(nn.functional.linear(h, self[4].weight, bias), y)

    def forward(self, *args: Any) -> torch.Tensor:
        return self.loss(*args)


def batches(rank: int) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(100 + rank)
    for _ in range(STEPS):
        yield torch.randn(6, 20, generator=g), torch.randint(5, (6,), generator=g)


def state(model: nn.Module) -> List[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def oracle(plan: Dict[str, Any], optimizer_of: Any) -> List[List[torch.Tensor]]:
    """The weights after every iteration, after the flush, and at the end."""
    model = Model()
    parameters = list(model.parameters())
    optimizer = optimizer_of(parameters)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    lengths, period = [g["length"] for g in plan["generations"]], plan["period"]
    data = list(zip(*(batches(r) for r in range(WORLD))))
    seen, since = [], 0
    sums: List[List[Any]] = []
    closed: Dict[int, Any] = {}

    def average(length: int) -> List[Any]:
        out = []
        for k in range(len(parameters)):
            if all(sums[r][k] is None for r in range(WORLD)):
                out.append(None)
            else:
                parts = [torch.zeros_like(parameters[k]) if s[k] is None else s[k] * (1 / WORLD) for s in sums]
                out.append((parts[0] + parts[1]) / length)
        return out

    def apply(grads: List[Any], lr: float) -> None:
        for p, g in zip(parameters, grads):
            p.grad = g
        now, optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"], lr
        optimizer.step()
        optimizer.param_groups[0]["lr"] = now

    def empty() -> List[List[Any]]:
        return [[None] * len(parameters) for _ in range(WORLD)]

    sums, gathered = empty(), 0
    for n in range(STEPS):
        i = n - since
        for r in range(WORLD):
            grads = torch.autograd.grad(model.loss(*data[n][r], n, r), parameters, allow_unused=True)
            for k, g in enumerate(grads):
                if g is not None:
                    sums[r][k] = g if sums[r][k] is None else sums[r][k] + g
        gathered += 1
        g = len(closed)
        lr = optimizer.param_groups[0]["lr"]
        if gathered == lengths[g % len(lengths)]:
            closed[g] = (average(gathered), lr)
            sums, gathered = empty(), 0
        for u in plan["updates"]:
            periods, behind = divmod(i - u["iteration"], period)
            if behind == 0 and periods >= 0:
                g = periods * len(lengths) + u["generation"]
                grads, of = closed[g]
                apply(grads, of)
                closed[g] = None
        scheduler.step()
        seen.append(state(model))
        if n + 1 in (FLUSH, STEPS):
            for g in sorted(closed):
                if closed[g] is not None:
                    apply(*closed[g])
            if gathered:
                apply(average(gathered), lr)
            sums, gathered, closed, since = empty(), 0, {}, n + 1
            seen.append(state(model))
    return seen


def main(plan: Dict[str, Any], out: str) -> None:
    import weft.torch as weft

    weft.init()
    for name, optimizer_of in OPTIMIZERS.items():
        model = Model()
        optimizer = optimizer_of(model.parameters())
        weft.wrap(model, optimizer)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        seen = []
        for n, (x, y) in enumerate(batches(weft.rank())):
            optimizer.zero_grad(set_to_none=True)
            model(x, y, n, weft.rank()).backward()
            optimizer.step()
            scheduler.step()
            seen.append(state(model))
            if n + 1 in (FLUSH, STEPS):
                weft.flush()
                seen.append(state(model))
        want = oracle(plan, optimizer_of)
        assert len(seen) == len(want)
        for n, (g, w) in enumerate(zip(seen, want)):
            for k, (a, b) in enumerate(zip(g, w)):
                assert torch.equal(a, b), f"{name}: state {n}, parameter {k} differs by {float((a - b).abs().max())}"
    model[0].weight.grad = None
    optimizer.zero_grad(set_to_none=True)
    model(x, y, 9, weft.rank()).backward()
    try:
        nn.utils.clip_grad_norm_(model.parameters(), 1)
    except weft.WeftError as e:
        assert "--max-delay 0" in str(e), e
    else:
        raise AssertionError("a gradient was read")
    optimizer.step()
    open(f"{out}.{weft.rank()}", "w").close()


if __name__ == "__main__":
    with open(sys.argv[1]) as f:
        main(json.load(f), sys.argv[2])
