"""A training under a plan that delays updates, and what it must come to, in one process. Run as one rank: delayed.py PLAN OUT.
delayed.py PLAN flush: rank 1 is killed in a flush. delayed.py PLAN killed: between two updates.
delayed.py PLAN save OUT: saves a checkpoint after several iterations. delayed.py PLAN resume OUT: goes on from each, and must come
to the same. delayed.py PLAN other OUT: does so under another plan, which applies at once what was outstanding.

The oracle knows the plan's generations and updates, both ranks' batches, and when the training flushed.
"""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from torch import nn

import weft.torch as weft
from weft._delay import Delayed

RANK = int(os.environ.get("RANK", "0"))
WORLD, STEPS, FLUSH = 2, 11, 6  # FLUSH: after so many iterations
LOADED = (2, 9)  # before these iterations, states are loaded
SAVED = (1, 4, 5, 6)  # after so many iterations, a checkpoint
# An optimizer, and what else wrap is told.
OPTIMIZERS: Dict[str, Tuple[Any, Dict[str, Any]]] = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01), {}),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=0.01), {}),
    "clipped": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), {"clip_norm": 0.3}),
    "sums": (lambda p: torch.optim.SGD(p, lr=0.1), {"generations": "sum"}),
    "by updates": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), {}),
}
CLOCKED = "by updates"  # its learning rate counts updates, not iterations


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


def oracle(plan: Dict[str, Any], optimizer_of: Any, clip_norm: float = 0.0, generations: str = "mean", clocked: bool = False, model_of: Any = Model, batches: Any = batches) -> List[List[torch.Tensor]]:
    """The weights after every iteration, after the flush, and at the end."""
    model = model_of()
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
                total = parts[0] + parts[1]
                out.append(total / length if generations == "mean" else total)
        return out

    def apply(grads: List[Any], lr: float) -> None:
        for p, g in zip(parameters, grads):
            p.grad = g
        if clip_norm:
            nn.utils.clip_grad_norm_(parameters, clip_norm)
        now, optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"], lr
        optimizer.step()
        optimizer.param_groups[0]["lr"] = now

    def empty() -> List[List[Any]]:
        return [[None] * len(parameters) for _ in range(WORLD)]

    sums, gathered, updates = empty(), 0, 0
    for n in range(STEPS):
        while clocked and scheduler.last_epoch < updates:
            scheduler.step()
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
            sums, gathered, updates = empty(), 0, updates + 1
        for u in plan["updates"]:
            periods, behind = divmod(i - u["iteration"], period)
            if behind == 0 and periods >= 0:
                g = periods * len(lengths) + u["generation"]
                grads, of = closed[g]
                apply(grads, of)
                closed[g] = None
        if not clocked:
            scheduler.step()
        seen.append(state(model))
        if n + 1 in (FLUSH, STEPS):
            for g in sorted(closed):
                if closed[g] is not None:
                    apply(*closed[g])
            if gathered:
                apply(average(gathered), lr)
                updates += 1
            sums, gathered, closed, since = empty(), 0, {}, n + 1
            seen.append(state(model))
    return seen


def train(model: nn.Module, optimizer: Any, n: int, between: Any = lambda: None) -> None:
    x, y = next(batches(RANK))
    optimizer.zero_grad(set_to_none=True)
    model(x, y, n, RANK).backward()
    between()
    optimizer.step()


def same(model: nn.Module) -> bool:
    """Whether all ranks have the same weights."""
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    return torch.equal(weft.all_reduce(mine.clone(), "max"), weft.all_reduce(mine.clone(), "min"))


def refused(call: Callable[[], Any], message: str) -> None:
    """Calls what must raise a WeftError of that message."""
    try:
        call()
    except weft.WeftError as e:
        assert re.search(message, str(e)), e
    else:
        raise AssertionError(f"nothing was raised: {message}")


def changed(model: nn.Module, optimizer: Any) -> None:
    """Gradients are clipped, or replaced: an error, and the update is made when step is called again."""

    def replace() -> None:
        p = next(model.parameters())
        p.grad = torch.zeros_like(p)

    for between in (lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-3), replace):
        refused(lambda: train(model, optimizer, 9, between), "clip_norm")
        optimizer = one_step(model)


def scaled(model: nn.Module, optimizer: Any) -> None:
    """GradScaler: an error that says so."""
    if not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"):
        return  # there is none for CPUs
    optimizer = one_step(model)
    scaler = torch.amp.GradScaler("cpu")
    x, y = next(batches(RANK))
    scaler.scale(model(x, y, 9, RANK)).backward()
    refused(lambda: scaler.step(optimizer), "GradScaler.*--max-delay 0")


def alone(model: nn.Module, optimizer: Any) -> None:
    """One rank reads everything between two iterations. It sees what all have then, and nobody is waited for."""
    optimizer = one_step(model)
    for n in range(7):
        train(model, optimizer, 9)
        if RANK == 1:
            held = [p.clone() for p in model.state_dict().values()], optimizer.state_dict()
            assert all(torch.equal(a, b) for a, b in zip(held[0], model.parameters()))
    assert same(model)


def read(model: nn.Module, optimizer: Any) -> None:
    """One rank reads gradients before step: soon no update is delayed any more."""
    optimizer = one_step(model)
    reducer = weft._session.reducer  # type: ignore[union-attr]
    for n in range(16):
        train(model, optimizer, 9, lambda: [float(p.grad.norm()) for p in model.parameters() if p.grad is not None] if RANK == 1 else None)
        assert same(model)
    assert not isinstance(reducer._execution, Delayed)  # type: ignore[union-attr]


def twice(model: nn.Module, optimizer: Any) -> None:
    """Two passes before each step: nothing is delayed. Where they come later, an error says so."""
    alone = copy.deepcopy(model)
    own = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = one_step(model)
    for n in range(3):
        optimizer.zero_grad(set_to_none=True)
        for x, y in list(batches(RANK))[:2]:
            model(x, y, n, RANK).backward()
        optimizer.step()
        own.zero_grad(set_to_none=True)
        for rank in range(WORLD):
            for x, y in list(batches(rank))[:2]:
                (alone.loss(x, y, n, rank) / WORLD).backward()
        own.step()
        for a, b in zip(state(model), state(alone)):
            assert torch.allclose(a, b, atol=1e-6), float((a - b).abs().max())
        assert same(model)
    assert not isinstance(weft._session.reducer._execution, Delayed)  # type: ignore[union-attr]
    optimizer = one_step(model)
    for n in range(2):
        train(model, optimizer, 9)
    x, y = next(batches(RANK))
    model(x, y, 9, RANK).backward()
    refused(model(x, y, 9, RANK).backward, f"rank {RANK}:.*no_sync")
    optimizer.step()


def two_optimizers(model: nn.Module, optimizer: Any) -> None:
    """One of them is unknown to weft, and reads gradients after step: nothing is delayed."""
    parameters = list(model.parameters())
    own, other = (torch.optim.SGD(p, lr=0.1) for p in (parameters[:3], parameters[3:]))
    weft.wrap(model, own)
    for n in range(5):
        train(model, own, 9)
        other.step()
        other.zero_grad(set_to_none=True)
    assert same(model)


def one_step(model: nn.Module) -> Any:
    """Wraps the model anew."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weft.wrap(model, optimizer)
    return optimizer


def dies(when: str) -> None:
    weft.init()
    model = Model()
    optimizer = one_step(model)

    def kill() -> None:
        print("dies at", time.time(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(5):
        train(model, optimizer, 9)
    if RANK == 1 and when == "flush":
        weft._session.client.call = lambda **_: kill()  # type: ignore[union-attr, method-assign]
    try:
        while when == "killed":
            train(model, optimizer, 9, kill if RANK == 1 else lambda: None)
        weft.flush()
    except weft.WeftError:
        print("told at", time.time(), flush=True)
        raise


def resumable(what: str, out: str) -> None:
    weft.init()
    for name, (optimizer_of, options) in OPTIMIZERS.items():
        for saved in (0,) if what == "save" else SAVED:
            model = Model()
            optimizer = optimizer_of(model.parameters())
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            weft.wrap(model, optimizer, **options)
            if what != "save":
                at = torch.load(f"{out}.{name}.{saved}.{RANK}")
                weft.load_state_dict(at["weft"])
                scheduler.load_state_dict(at["scheduler"])
            if what == "other":
                want = torch.load(f"{out}.{name}.{saved}.flushed")
            else:
                for n, (x, y) in list(enumerate(batches(RANK)))[saved:]:
                    if what == "save" and n in SAVED:
                        torch.save({"weft": weft.state_dict(), "scheduler": scheduler.state_dict()}, f"{out}.{name}.{n}.{RANK}")
                    while name == CLOCKED and scheduler.last_epoch < weft.updates():
                        scheduler.step()
                    optimizer.zero_grad()
                    model(x, y, n, RANK).backward()
                    optimizer.step()
                    if name != CLOCKED:
                        scheduler.step()
                weft.flush()
                if what == "save":
                    torch.save(state(model), f"{out}.{name}.end.{RANK}")
                want = torch.load(f"{out}.{name}.end.{RANK}")
            for k, (a, b) in enumerate(zip(state(model), want)):
                assert torch.equal(a, b), f"{name} from {saved}: parameter {k} differs by {float((a - b).abs().max())}"
            if what == "resume":
                weft.load_state_dict(torch.load(f"{out}.{name}.{saved}.{RANK}")["weft"])  # the optimizer has written into the other
                weft.flush()
                if RANK == 0:
                    torch.save(state(model), f"{out}.{name}.{saved}.flushed")
    print("resumed" if what == "resume" else what)


def main(plan: Dict[str, Any], out: str) -> None:
    through = any(p["link"] == "c10d" for p in plan["programs"])
    if through:
        torch.distributed.init_process_group("gloo")
    weft.init()
    for name, (optimizer_of, options) in OPTIMIZERS.items():
        model = Model()
        optimizer = optimizer_of(model.parameters())
        weft.wrap(model, optimizer, **options, c10d="gloo" if through else None)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        seen = []
        for n, (x, y) in enumerate(batches(weft.rank())):
            while name == CLOCKED and scheduler.last_epoch < weft.updates():
                scheduler.step()
            if n in LOADED:  # what is there: nothing changes, and nothing outstanding is lost
                model.load_state_dict(copy.deepcopy(model.state_dict()))
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer.zero_grad(set_to_none=True)
            model(x, y, n, weft.rank()).backward()
            optimizer.step()
            if name != CLOCKED:
                scheduler.step()
            seen.append(state(model))
            if n + 1 == FLUSH and through:
                refused(weft.state_dict, "every rank calls weft.flush\\(\\) .* before it")
            if n + 1 in (FLUSH, STEPS):
                weft.flush()
                seen.append(state(model))
                weft.load_state_dict(copy.deepcopy(weft.state_dict()))  # nothing changes
        want = oracle(plan, optimizer_of, clocked=name == CLOCKED, **options)
        assert len(seen) == len(want)
        for n, (g, w) in enumerate(zip(seen, want)):
            for k, (a, b) in enumerate(zip(g, w)):
                assert torch.equal(a, b), f"{name}: state {n}, parameter {k} differs by {float((a - b).abs().max())}"
    if not through:
        others(model, optimizer)
    open(f"{out}.{weft.rank()}", "w").close()


def others(model: nn.Module, optimizer: Any) -> None:
    """What a script may do that such a plan cannot bear."""
    changed(model, optimizer)
    scaled(model, optimizer)
    alone(model, optimizer)
    read(model, optimizer)
    twice(model, optimizer)
    two_optimizers(model, optimizer)


if __name__ == "__main__" and sys.argv[2] in ("flush", "killed"):
    dies(sys.argv[2])
elif __name__ == "__main__" and len(sys.argv) > 3:
    resumable(sys.argv[2], sys.argv[3])
elif __name__ == "__main__":
    with open(sys.argv[1]) as f:
        main(json.load(f), sys.argv[2])
