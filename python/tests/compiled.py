"""Trains a model as it is, and compiled, under the plan of the run: the same bits after every step. Run as one rank:
compiled.py [STEPS]"""

from __future__ import annotations

import copy
import sys
from typing import Any, Callable, List

import torch
import weft.torch as weft

from tests.test_graph import Broken, loss_of

STEPS = int(sys.argv[1]) if sys.argv[1:] else 8


def loss_of_broken(run: Any, model: Broken, x: torch.Tensor, step: int) -> torch.Tensor:
    """A graph break."""
    return loss_of(run(x))


def loss_of_twice(run: Any, model: Broken, x: torch.Tensor, step: int) -> torch.Tensor:
    """And the graphs run twice, but for some iterations; batches of several sizes."""
    x = run(x[: 4 - step % 3])
    return loss_of(run(x) if step % 4 != 2 else x)


def loss_of_other(run: Any, model: Broken, x: torch.Tensor, step: int) -> torch.Tensor:
    """And code that is not compiled reads a parameter of the first graph."""
    return loss_of(run(x)) + model.first.weight.norm()


def train(start: Broken, loss: Callable[..., torch.Tensor], compiles: bool) -> List[Any]:
    """The weights after every step."""
    model = copy.deepcopy(start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    weft.wrap(model, optimizer)
    run = torch.compile(model, backend=weft.backend) if compiles else model
    data = torch.Generator().manual_seed(weft.rank())
    weights = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(run, model, torch.randn(4, 10, generator=data), step).backward()
        optimizer.step()
        weights.append([p.detach().clone() for p in model.parameters()])
    return weights


def main() -> None:
    torch.set_num_threads(1)
    weft.init()
    torch.manual_seed(0)
    start = Broken()
    for loss in loss_of_broken, loss_of_twice, loss_of_other:
        torch._dynamo.reset()
        want, got = (train(start, loss, compiles) for compiles in (False, True))
        for step, (w, g) in enumerate(zip(want, got)):
            for k in range(len(w)):
                if not torch.equal(w[k], g[k]):
                    raise AssertionError(f"{loss.__name__}, step {step}, parameter {k}: not the same bits")
        print("same", loss.__name__, flush=True)


if __name__ == "__main__":
    main()
