"""A training whose plan sends over link c10d, beside the script's own use of torch.distributed. Run as one rank:

through.py DIRECTORY [STEPS [how rank 1 ends, at the step before the last]]

Leaves DIRECTORY/RANK.pt: the weights after every step.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, List

import torch
import torch.distributed as dist
import weft.torch as weft

from tests.cases import RANK, WORLD, batches, loss_of, mlp


def check(step: int, place: int) -> None:
    """The script's own all-reduce, on the default group."""
    tensor = torch.full([1000], float(100 * step + 10 * place + RANK))
    dist.all_reduce(tensor)
    want = WORLD * (100 * step + 10 * place) + WORLD * (WORLD - 1) / 2
    if not bool((tensor == want).all()):
        raise AssertionError(f"all_reduce returned {tensor[0]}, want {want}")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    weft.init()
    weights: List[Any] = []
    model = mlp()
    model, optimizer = weft.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), c10d="gloo")
    # In another place of the backward pass in each step: gradients are on their way meanwhile.
    modules = list(model)
    step = 0

    def beside(k: int) -> Any:
        return lambda *_: check(step, k) if step % len(modules) == k else None

    for k, module in enumerate(modules):
        module.register_full_backward_hook(beside(k))
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    for step, (x, y) in enumerate(batches(steps)):
        check(step, 7)
        optimizer.zero_grad()
        if sys.argv[3:] and RANK == 1 and step == steps - 2:
            end(sys.argv[3])
        loss_of(model(x), y).backward()
        check(step, 8)
        optimizer.step()
        weights.append([p.detach().clone() for p in model.parameters()])
    weft.shutdown()
    torch.save(weights, os.path.join(sys.argv[1], f"{RANK}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def end(how: str) -> None:
    """Has the next reduction through torch.distributed end this process, or stop it."""
    from weft._c10d import Group

    def reduce(self: Group, bucket: int, iteration: int) -> None:
        if how == "error":
            raise RuntimeError("no such luck")
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        time.sleep(3600)

    Group.reduce = reduce  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
