"""An optimizer's state, which all ranks are to have the same."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from ._calls import Calls


def level(calls: Calls, rank: int, optimizer: torch.optim.Optimizer) -> None:
    """Gives an optimizer the state that rank 0 has, where ranks do not have the same: rank 0 alone has loaded a checkpoint, say."""
    mine = _digest(optimizer.state_dict()["state"])
    ends = torch.tensor([mine, -mine], dtype=torch.int64, device="cpu")
    calls.all_reduce(ends, "max")
    if int(ends[0]) != -int(ends[1]):
        give(calls, rank, optimizer, root=0)


def give(calls: Calls, rank: int, optimizer: torch.optim.Optimizer, root: int) -> None:
    """Gives an optimizer the state that rank root has."""
    state = calls.broadcast_object(optimizer.state_dict()["state"], root)
    if rank != root:
        optimizer.load_state_dict(dict(optimizer.state_dict(), state=state))


def _digest(state: Any) -> int:
    sha = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            sha.update(repr((value.dtype, tuple(value.shape))).encode())
            sha.update(memoryview(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()))
        elif isinstance(value, dict):
            for key, of in value.items():
                sha.update(repr(key).encode())
                add(of)
        elif isinstance(value, (list, tuple)):
            for of in value:
                add(of)
        else:
            sha.update(repr(value).encode())

    for k in sorted(state, key=repr):  # parameters' positions; a checkpoint may have them in another order
        add({k: state[k]})
    return int.from_bytes(sha.digest()[:7], "big")
