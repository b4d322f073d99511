"""Trainings that must come out the same with weft and with DistributedDataParallel. Run as one rank:

cases.py weft|late|ddp|reference DIRECTORY BUCKET_BYTES [CASE...]

Leaves DIRECTORY/CASE.RANK.pt: what the training recorded after every step. "late" is weft with a device that copies late;
WEFT_TEST_DEVICE=cuda trains there.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Tuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
DEVICE = torch.device(os.environ.get("WEFT_TEST_DEVICE", "cpu"))
STEPS = 4
CASES: Dict[str, Callable[["Trainer"], None]] = {}


def case(f: Callable[["Trainer"], None]) -> Callable[["Trainer"], None]:
    CASES[f.__name__] = f
    return f


class Trainer:
    """What a case needs: one implementation a library."""

    def __init__(self) -> None:
        self.recorded: List[Dict[str, torch.Tensor]] = []

    def wrap(self, model: nn.Module, optimizer: Any, unused: bool = False) -> Tuple[nn.Module, Any]:
        raise NotImplementedError

    def no_sync(self) -> ContextManager[Any]:
        raise NotImplementedError

    def join(self) -> ContextManager[Any]:
        raise NotImplementedError

    def record(self, **more: Any) -> None:
        """Keeps weights, gradients, and whatever is given, as they are now. Buffers are rank 0's in DDP."""
        r = {"weight " + n: p.detach().cpu().clone() for n, p in self.model.named_parameters()}
        r.update(("gradient " + n, p.grad.detach().cpu().clone()) for n, p in self.model.named_parameters() if p.grad is not None)
        if RANK == 0:
            r.update(("buffer " + n, b.cpu().clone()) for n, b in self.model.named_buffers())
        r.update((k, torch.as_tensor(v).detach().cpu().clone()) for k, v in more.items())
        self.recorded.append(r)


class Weft(Trainer):
    def wrap(self, model: nn.Module, optimizer: Any, unused: bool = False) -> Tuple[nn.Module, Any]:
        import weft.torch as weft

        weft.init()
        self.model = model
        size = int(sys.argv[3])
        return weft.wrap(model, optimizer, bucket_bytes=size, first_bucket_bytes=max(1, size // 2))

    def no_sync(self) -> ContextManager[Any]:
        import weft.torch as weft

        return weft.no_sync()

    def join(self) -> ContextManager[Any]:
        import weft.torch as weft

        return weft.join()


class Late(Weft):
    def __init__(self) -> None:
        super().__init__()
        from tests import late

        late.use()


class DDP(Trainer):
    def wrap(self, model: nn.Module, optimizer: Any, unused: bool = False) -> Tuple[nn.Module, Any]:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo", init_method="file://" + os.environ["TEST_STORE"], rank=RANK, world_size=WORLD)
        self.model = model
        self.ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=unused)
        return self.ddp, optimizer

    def no_sync(self) -> ContextManager[Any]:
        return self.ddp.no_sync()

    def join(self) -> ContextManager[Any]:
        from torch.distributed.algorithms.join import Join

        return Join([self.ddp])


class Reference(Trainer):
    """What weft must come to, in plain torch: every rank gets all gradients, and adds them in rank order."""

    def wrap(self, model: nn.Module, optimizer: Any, unused: bool = False) -> Tuple[nn.Module, Any]:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo", init_method="file://" + os.environ["TEST_STORE"], rank=RANK, world_size=WORLD)
            plain = torch.Tensor.backward
            torch.Tensor.backward = lambda *args, **kwargs: (plain(*args, **kwargs), Reference.current.reduce())[0]
        Reference.current = self
        self.model, self.paused, self.used = model, False, set()
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        for k, p in enumerate(self.parameters):
            p.register_hook(lambda _, k=k: self.used.add(k))
        for t in [*model.parameters(), *model.buffers()]:
            dist.broadcast(t.data, 0)
        return model, optimizer

    @torch.no_grad()
    def reduce(self) -> None:
        import torch.distributed as dist

        if self.paused:
            return
        of_ranks: List[Any] = [None] * WORLD
        dist.all_gather_object(of_ranks, (self.used, [p.grad for p in self.parameters]))
        for k, p in enumerate(self.parameters):
            if any(k in used for used, _ in of_ranks):
                parts = [(torch.zeros_like(p) if g[k] is None else g[k]) * (1 / WORLD) for _, g in of_ranks]
                p.grad = sum(parts[1:], parts[0])
        self.used.clear()
        for b in self.model.buffers():
            dist.broadcast(b.data, 0)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self.paused = True
        yield
        self.paused = False


def mlp() -> nn.Sequential:
    torch.manual_seed(RANK)  # rank 0's weights must win
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 5)).to(DEVICE)


def batches(n: int = STEPS, size: int = 6) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(100 + RANK)
    for _ in range(n):
        yield torch.randn(size, 20, generator=g).to(DEVICE), torch.randint(5, (size,), generator=g).to(DEVICE)


loss_of = nn.CrossEntropyLoss()


def train(t: Trainer, model: nn.Module, optimizer: Any, unused: bool = False) -> None:
    model, optimizer = t.wrap(model, optimizer, unused)
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
        t.record()


@case
def sgd(t: Trainer) -> None:
    model = mlp()
    train(t, model, torch.optim.SGD(model.parameters(), lr=0.1))


@case
def momentum_in_groups(t: Trainer) -> None:
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": [*model[2].parameters(), *model[4].parameters()]}]
    train(t, model, torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01))


def optimizer_case(name: str) -> Callable[["Trainer"], None]:
    """Trains with an optimizer of torch.optim at its default settings."""

    def f(t: Trainer) -> None:
        model = mlp()
        wrapped, optimizer = t.wrap(model, getattr(torch.optim, name)(model.parameters(), lr=0.01))
        for x, y in batches():

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(wrapped(x), y)
                loss.backward()
                return loss

            if name == "LBFGS":  # several passes a step
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            t.record()

    f.__name__ = f"optimizer_{name.lower()}"
    return f


# Those for sparse gradients, or for matrices only, and their base.
NOT_HERE = {"Optimizer", "SparseAdam", "Muon"}
for name, value in sorted(vars(torch.optim).items()):
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name not in NOT_HERE:
        case(optimizer_case(name))


@case
def scheduler(t: Trainer) -> None:
    """One made before wrap, one after."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    wrapped, optimizer = t.wrap(model, optimizer)
    after = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(wrapped(x), y).backward()
        optimizer.step()
        before.step()
        after.step()
        t.record(lr=optimizer.param_groups[0]["lr"])


@case
def accumulation(t: Trainer) -> None:
    """Three passes a step, of which two do not reduce; set_to_none as the library has it."""
    model = mlp()
    wrapped, optimizer = t.wrap(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    for i, (x, y) in enumerate(batches(3 * STEPS)):
        with contextlib.nullcontext() if i % 3 == 2 else t.no_sync():
            (loss_of(wrapped(x), y) / 3).backward()
        if i % 3 == 2:
            optimizer.step()
            t.record()
            optimizer.zero_grad()


@case
def accumulation_reduced_each_pass(t: Trainer) -> None:
    model = mlp()
    wrapped, optimizer = t.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for i, (x, y) in enumerate(batches(2 * STEPS)):
        loss_of(wrapped(x), y).backward()
        t.record()
        if i % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()


@case
def uneven(t: Trainer) -> None:
    """Two epochs; rank 0 has two batches more than rank 1 in the first, and none in the second."""
    model = mlp()
    wrapped, optimizer = t.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for n in [(4, 2), (0, 3)]:
        with t.join():
            for x, y in batches(n[RANK % 2]):
                optimizer.zero_grad()
                loss_of(wrapped(x), y).backward()
                optimizer.step()
                t.record()
        t.record()


@case
def clipped(t: Trainer) -> None:
    for set_to_none in (True, False):
        model = mlp()
        wrapped, optimizer = t.wrap(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))
        for x, y in batches():
            optimizer.zero_grad(set_to_none=set_to_none)
            loss_of(wrapped(x), y).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            t.record(norm=norm)


@case
def frozen(t: Trainer) -> None:
    model = mlp()
    model[0].weight.requires_grad_(False)
    model[4].bias.requires_grad_(False)
    train(t, model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))


@case
def frozen_in_training(t: Trainer) -> None:
    """Frozen after two steps, on all ranks, and back again."""
    model = mlp()
    wrapped, optimizer = t.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), unused=True)
    for i, (x, y) in enumerate(batches(6)):
        model[2].requires_grad_(not 2 <= i < 4)
        optimizer.zero_grad(set_to_none=True)
        loss_of(wrapped(x), y).backward()
        optimizer.step()
        t.record()


@case
def unfrozen(t: Trainer) -> None:
    """Frozen at first; wrapped again when it no longer is."""
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(t, model, optimizer)
    model[0].requires_grad_(True)
    train(t, model, optimizer)


class Twice(nn.Module):
    """A parameter used twice, and one under two names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(RANK)
        self.first, self.inner, self.last = nn.Linear(20, 24), nn.Linear(24, 24), nn.Linear(24, 5)
        self.again = nn.Linear(20, 24)
        self.again.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x) + self.again(x))
        return self.last(self.inner(torch.tanh(self.inner(h))))


@case
def used_twice(t: Trainer) -> None:
    model = Twice().to(DEVICE)
    train(t, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


class Branches(nn.Module):
    """Parameters that only some passes use: left, right, both or none of two branches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(RANK)
        self.never = nn.Linear(3, 3)
        self.trunk, self.left, self.right = nn.Linear(20, 5), nn.Linear(20, 5), nn.Linear(20, 5)
        self.use = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.trunk(x)
        if "l" in self.use:
            y = y + self.left(x)
        if "r" in self.use:
            y = y + self.right(x)
        return y


def branches(t: Trainer, set_to_none: bool, uses: List[Tuple[str, str]], passes: int = 1) -> None:
    model = Branches().to(DEVICE)
    # Momentum and weight decay move a parameter whose gradient is zero, and not one whose gradient is None.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    wrapped, optimizer = t.wrap(model, optimizer, unused=True)
    for i, (x, y) in enumerate(batches(len(uses))):
        model.use = uses[i][RANK % 2]
        reduce = i % passes == passes - 1
        with contextlib.nullcontext() if reduce else t.no_sync():
            loss_of(wrapped(x), y).backward()
        if reduce:
            optimizer.step()
            t.record()
            optimizer.zero_grad(set_to_none=set_to_none)


USES = [("lr", "lr"), ("l", "r"), ("", ""), ("l", ""), ("r", "r"), ("", "l"), ("lr", "lr"), ("", "r")]  # by rank, by pass


@case
def unused(t: Trainer) -> None:
    branches(t, True, USES)


@case
def unused_set_to_zero(t: Trainer) -> None:
    branches(t, False, USES)


@case
def unused_accumulating(t: Trainer) -> None:
    """What a pass that does not reduce uses, some rank also uses in the one that does: DDP's ranks drift apart otherwise."""
    branches(t, True, [("lr", "l"), ("l", "r"), ("", "r"), ("r", ""), ("", ""), ("l", ""), ("l", "l"), ("r", "l")], passes=2)


@case
def batchnorm(t: Trainer) -> None:
    """Statistics are rank 0's, in training and in an evaluation in between; convolutions lie channels last."""
    torch.manual_seed(RANK)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 2), nn.Flatten(), nn.Linear(16, 5)
    ).to(DEVICE, memory_format=torch.channels_last)
    wrapped, optimizer = t.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(wrapped(x.view(-1, 1, 4, 5)), y).backward()
        optimizer.step()
        t.record()
        model.eval()
        with torch.no_grad():
            t.record(evaluated=wrapped(x.view(-1, 1, 4, 5)))
        model.train()


class TwoTypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(RANK)
        self.first, self.middle, self.last = nn.Linear(20, 8).double(), nn.Linear(8, 8), nn.Linear(8, 5).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.middle(self.first(x.double()).float())).double())


@case
def types(t: Trainer) -> None:
    model = TwoTypes().to(DEVICE)
    train(t, model, torch.optim.AdamW(model.parameters(), lr=0.01))


@case
def scaled(t: Trainer) -> None:
    """A loss scaler's steps: scaled loss, unscaled gradients, no step where rank 1's is not finite."""
    model = mlp()
    wrapped, optimizer = t.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    scale = 1024.0
    for i, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        loss = loss_of(wrapped(x), y) * (float("inf") if (i, RANK) == (1, 1) else 1)
        (loss * scale).backward()
        finite = all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())
        for p in model.parameters():
            p.grad /= scale
        if finite:
            optimizer.step()
        else:
            scale /= 2
        t.record(scale=scale)


@case
def penalty(t: Trainer) -> None:
    """Double backward: a penalty on the norm of the gradient by the input."""
    model = mlp()
    wrapped, optimizer = t.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), unused=True)
    for x, y in batches():
        optimizer.zero_grad()
        x.requires_grad_()
        loss = loss_of(wrapped(x), y)
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + g.norm()).backward()
        optimizer.step()
        t.record()


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(RANK)
        self.reentrant = reentrant
        self.first, self.last = nn.Linear(20, 24), nn.Linear(24, 5)
        self.inner = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for layer in self.inner:
            h = checkpoint(lambda h, layer=layer: torch.tanh(layer(h)), h, use_reentrant=self.reentrant)
        return self.last(h)


@case
def checkpointed(t: Trainer) -> None:
    for reentrant in (True, False):
        model = Checkpointed(reentrant).to(DEVICE)
        train(t, model, torch.optim.SGD(model.parameters(), lr=0.1))


class Behind(nn.Module):
    """Passes on what it gets. On a GPU, the gradients before it come some milliseconds after the hooks that are told of them."""

    class Pass(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            if g.is_cuda:
                torch.cuda._sleep(10_000_000)  # cycles
            return g.clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Behind.Pass.apply(x)


@case
def behind(t: Trainer) -> None:
    """Large gradients, which a GPU is yet to compute when it is asked to copy them, and a step that follows at once."""
    torch.manual_seed(RANK)
    model = nn.Sequential(
        nn.Linear(20, 2048), nn.Tanh(), Behind(), nn.Linear(2048, 256), nn.Tanh(), Behind(), nn.Linear(256, 5)
    ).to(DEVICE)
    wrapped, optimizer = t.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(wrapped(x), y).backward()
        optimizer.step()
    t.record()


@case
def forked_loader(t: Trainer) -> None:
    """Worker processes forked from the training process, while training."""
    model = mlp()
    data = [(x[0].cpu(), y[0].cpu()) for x, y in batches(24)]
    wrapped, optimizer = t.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        for x, y in torch.utils.data.DataLoader(data, batch_size=6, num_workers=2):
            optimizer.zero_grad()
            loss_of(wrapped(x.to(DEVICE)), y.to(DEVICE)).backward()
            optimizer.step()
            t.record()


@case
def saved_and_loaded(t: Trainer) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    wrapped, optimizer = t.wrap(model, optimizer)
    states: Any = None
    for i, (x, y) in enumerate(batches(6)):
        if i == 3:
            states = {k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict()
            model.load_state_dict(states[0])
            optimizer.load_state_dict(states[1])
        optimizer.zero_grad()
        loss_of(wrapped(x), y).backward()
        optimizer.step()
        t.record()


def main() -> None:
    torch.set_num_threads(1)
    if DEVICE.type == "cuda":  # the same sums in the same order, every time
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    trainer = {"weft": Weft, "late": Late, "ddp": DDP, "reference": Reference}[sys.argv[1]]
    for name in sys.argv[4:] or CASES:
        t = trainer()
        CASES[name](t)
        torch.save(t.recorded, os.path.join(sys.argv[2], f"{name}.{RANK}.pt"))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # Results are written. A process that ends with gloo's threads running may abort; destroy_process_group may wait forever for one
        # that is the last to hold a tensor, and waits for Python's lock.
        torch.distributed.barrier()
        os._exit(0)


if __name__ == "__main__":
    main()
