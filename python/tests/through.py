"""A training whose plan sends over link c10d, beside the script's own use of torch.distributed. Run as one rank:

through.py DIRECTORY [STEPS [how rank 1 ends, at the step before the last]]

Leaves DIRECTORY/RANK.pt: the weights after every step; and DIRECTORY/dying when rank 1 ends.
"""

from __future__ import annotations

import os
import signal
import sys
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
    step, steps = 0, int(sys.argv[2]) if len(sys.argv) > 2 else 10
    if sys.argv[3:] and RANK == 1:
        ends(sys.argv[3], lambda: step == steps - 2)
    weights: List[Any] = []
    model = mlp()
    model, optimizer = weft.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), c10d="gloo")
    # In another place of the backward pass in each step: gradients are on their way meanwhile.
    modules = list(model)

    def beside(k: int) -> Any:
        return lambda *_: check(step, k) if step % len(modules) == k else None

    for k, module in enumerate(modules):
        module.register_full_backward_hook(beside(k))
    for step, (x, y) in enumerate(batches(steps)):
        check(step, 7)
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        check(step, 8)
        optimizer.step()
        weights.append([p.detach().clone() for p in model.parameters()])
    weft.shutdown()
    torch.save(weights, os.path.join(sys.argv[1], f"{RANK}.pt"))
    dist.barrier()
    os._exit(0)  # as in cases.py


def ends(how: str, now: Any) -> None:
    """Has the first reduction through torch.distributed once now() is true end this process, or stop it."""
    from weft._c10d import Group

    plain = Group.reduce

    def reduce(self: Group, bucket: int, iteration: int) -> None:
        if now():
            open(os.path.join(sys.argv[1], "dying"), "w").close()
            if how == "error":
                raise RuntimeError("no such luck")
            os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        plain(self, bucket, iteration)

    Group.reduce = reduce  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
