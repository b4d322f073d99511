"""How a rank, 1 if none is given, may end while the other trains. Run as one rank: ends.py WAY [RANK]"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

import weft.torch as weft


def main() -> None:
    ends = sys.argv[2] if len(sys.argv) > 2 else "1"
    weft.init()
    weft.init()  # harmless
    assert weft.world_size() == 2
    weft.barrier()  # before there is a model
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    model, optimizer = weft.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = iter(torch.utils.data.DataLoader(torch.ones(100, 4), num_workers=1))
    for step in range(3):
        if step == 2 and str(weft.rank()) == ends:
            if sys.argv[1] == "exception":
                raise ValueError("a bug in the step")
            if sys.argv[1] == "kill":  # its loader's process lives on for a while
                os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(next(loader)).sum().backward()
        optimizer.step()
    total = weft.all_reduce(torch.ones(2), op="sum")
    weft.broadcast(total, src=1)
    assert total.tolist() == [2, 2]
    print("finished at", time.monotonic())


main()
