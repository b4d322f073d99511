"""Trains models to which something happens on the way, one after the other: faults.py WHAT...

Prints a digest of the weights of each, or what weft says of it. WHAT is a function below.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any, Callable, Optional

import torch
from torch import nn

import weft.torch as weft

STEPS = 90
AT = 50  # the step at which it happens: most plans change before and after it


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.norm = nn.BatchNorm1d(8)
        self.extra: Optional[nn.Module] = None
        self.order = [0, 1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k in self.order:
            x = (self.a, self.b)[k](x).tanh()
        x = self.norm(x)
        if self.extra is not None:
            x = self.extra(x)
        return self.head(x)  # type: ignore[no-any-return]


class _Training:
    """A model, its optimizer, and what is done before each step."""

    def __init__(self, optimizer: Callable[[Any], torch.optim.Optimizer] = lambda ps: torch.optim.AdamW(ps, lr=1e-2)) -> None:
        torch.manual_seed(0)
        self.model: Any = _Model()
        self.optimizer = optimizer(self.model.parameters())
        self.data = torch.Generator().manual_seed(weft.rank())
        self.run: Any = self.model

    def wrap(self) -> None:
        weft.wrap(self.model, self.optimizer, bucket_bytes=1 << 8, first_bucket_bytes=1 << 7)

    def loss(self, rows: int = 4) -> torch.Tensor:
        return self.run(torch.randn(rows, 8, generator=self.data)).pow(2).mean()  # type: ignore[no-any-return]

    def step(self, rows: int = 4) -> None:
        self.optimizer.zero_grad()
        self.loss(rows).backward()
        self.optimizer.step()

    def train(self, before: Callable[[int], None] = lambda step: None, rows: Callable[[int], int] = lambda step: 4) -> None:
        self.wrap()
        for step in range(STEPS):
            before(step)
            self.step(rows(step))
        self.tell()

    def tell(self) -> None:
        digest = hashlib.sha256()
        for t in [*self.model.parameters(), *self.model.buffers()]:
            digest.update(t.detach().double().numpy().tobytes())
        print("digest", digest.hexdigest(), flush=True)  # of the WHAT before it


def plain() -> None:
    _Training().train()


def shapes() -> None:
    """Batches of other sizes, by step and by rank."""
    _Training().train(rows=lambda step: 2 + (step // 7 + 3 * weft.rank()) % 5)


def order_of_iterations() -> None:
    t = _Training()
    t.train(lambda step: setattr(t.model, "order", [[0, 1], [1, 0], [0], [1, 1, 0]][step // 5 % 4]))


def order_of_ranks() -> None:
    t = _Training()
    t.train(lambda step: setattr(t.model, "order", [[0, 1], [1, 0], [1]][(step // 11 + weft.rank()) % 3]))


def frozen() -> None:
    t = _Training()
    t.train(lambda step: t.model.a.requires_grad_(step < AT) and None)


def frozen_on_one_rank() -> None:
    t = _Training()
    t.train(lambda step: t.model.a.requires_grad_(step < AT or weft.rank() == 0) and None)


def thawed() -> None:
    """Frozen for a while after wrap."""
    t = _Training()
    t.train(lambda step: t.model.a.requires_grad_(not 20 <= step < AT) and None)


def thawed_late() -> None:
    """Frozen before wrap: it is not among those that are reduced."""
    t = _Training()
    t.model.a.requires_grad_(False)
    t.train(lambda step: t.model.a.requires_grad_(step >= AT) and None)


def thawed_and_wrapped() -> None:
    t = _Training()
    t.model.a.requires_grad_(False)

    def before(step: int) -> None:
        if step == AT:
            t.model.a.requires_grad_()
            t.wrap()

    t.train(before)


def added() -> None:
    """A layer more, whose parameters the optimizer gets, and weft does not hear of."""
    t = _Training()

    def before(step: int) -> None:
        if step == AT:
            t.model.extra = nn.Linear(8, 8)
            t.optimizer.add_param_group({"params": list(t.model.extra.parameters())})

    t.train(before)


def added_and_wrapped() -> None:
    t = _Training()

    def before(step: int) -> None:
        if step == AT:
            t.model.extra = nn.Linear(8, 8)
            t.optimizer.add_param_group({"params": list(t.model.extra.parameters())})
            t.wrap()

    t.train(before)


def added_parameter() -> None:
    t = _Training()

    def before(step: int) -> None:
        if step == AT:
            t.model.a.register_parameter("scale", nn.Parameter(torch.ones(8)))

    t.train(before)


def added_to_the_optimizer() -> None:
    """A parameter that is not of the model."""
    t = _Training()
    more = nn.Parameter(torch.ones(1))
    loss = t.loss
    t.loss = lambda rows=4: loss(rows) * more.pow(2).sum()
    t.train(lambda step: t.optimizer.add_param_group({"params": [more]}) if step == AT else None)


def removed() -> None:
    t = _Training()

    def before(step: int) -> None:
        if step == AT:
            del t.model.a
            t.model.a = None
            t.model.order = [1]

    t.train(before)


def replaced() -> None:
    """A layer becomes another object."""
    t = _Training()

    def before(step: int) -> None:
        if step == AT:
            t.model.head = nn.Linear(8, 1)
            t.optimizer.param_groups[0]["params"] = list(t.model.parameters())

    t.train(before)


def replaced_without_parameters() -> None:
    """What has none is nobody's business."""
    t = _Training()
    t.model.extra = nn.Tanh()
    t.train(lambda step: setattr(t.model, "extra", nn.Sigmoid()) if step == AT else None)


def another_optimizer() -> None:
    t = _Training()

    def before(step: int) -> None:
        if step == AT:
            t.optimizer = torch.optim.SGD(t.model.parameters(), lr=1e-2, momentum=0.9)

    t.train(before)


def two_optimizers() -> None:
    """One of them is unknown to weft."""
    t = _Training(lambda ps: torch.optim.AdamW(list(ps)[:4], lr=1e-2))
    other = torch.optim.SGD(list(t.model.parameters())[4:], lr=1e-2, momentum=0.9)
    own = t.optimizer
    t.wrap()
    for _ in range(STEPS):
        own.zero_grad()
        other.zero_grad()
        t.loss().backward()
        own.step()
        other.step()
    t.tell()


def lbfgs() -> None:
    t = _Training(lambda ps: torch.optim.LBFGS(ps, lr=0.05, max_iter=2))

    def step(rows: int = 4) -> None:
        x = torch.randn(rows, 8, generator=t.data)

        def closure() -> torch.Tensor:
            t.optimizer.zero_grad()
            loss = t.model(x).pow(2).mean()
            loss.backward()
            return loss  # type: ignore[no-any-return]

        t.optimizer.step(closure)

    t.step = step
    t.train()


class _Whole(torch.optim.SGD):
    """Scales each gradient by the norm of all."""

    def step(self, closure: Any = None) -> Any:
        ps = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in ps]).norm()
        for p in ps:
            p.grad /= norm + 1
        return super().step(closure)


def whole() -> None:
    _Training(lambda ps: _Whole(ps, lr=1e-2)).train()


def clipped() -> None:
    t = _Training()

    def step(rows: int = 4) -> None:
        t.optimizer.zero_grad()
        t.loss(rows).backward()
        nn.utils.clip_grad_norm_(t.model.parameters(), 0.1)
        t.optimizer.step()

    t.step = step
    t.train()


def hooks_late() -> None:
    """A hook on the optimizer's step, made when plans cross the barrier already."""
    t = _Training()

    def before(step: int) -> None:
        if step == AT:
            t.optimizer.register_step_post_hook(lambda o, *_: [p.data.clamp_(-1, 1) for g in o.param_groups for p in g["params"]] and None)

    t.train(before)


def main() -> None:
    weft.init()
    for what in sys.argv[1:]:
        print("what", what, flush=True)
        try:
            globals()[what]()
        except weft.WeftError as e:
            print("refused", e, flush=True)


if __name__ == "__main__":
    main()
