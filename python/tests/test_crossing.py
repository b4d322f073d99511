"""Trainings across the barrier: the same bits as behind it, whatever reads parameters, and when."""

from __future__ import annotations

import copy
import threading
import unittest
import warnings
from typing import Any, Callable, Dict, List
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import weft.torch as weft
from weft._client import WeftError
from weft._guard import pending

from .fake_agent import FakeAgent
from .planned_agent import PlannedAgent
from .ranks import ranks
from .test_updates import Counting

STEPS = 4
SCENARIOS: Dict[str, Callable[["Run"], None]] = {}


def scenario(f: Callable[["Run"], None]) -> Callable[["Run"], None]:
    SCENARIOS[f.__name__] = f
    return f


class Run:
    """What a scenario has: a rank's session, models alike on all ranks, and what is compared in the end."""

    def __init__(self, session: Any, crosses: bool) -> None:
        self.session = session
        self.rank = session.client.rank
        self.crosses = crosses
        self.values: List[torch.Tensor] = []
        self.waits = 0  # steps that returned with an update pending

    def wrap(self, model: nn.Module, optimizer: Any, separable: Any = None) -> None:
        self.model, self.optimizer = model, optimizer
        self.session.wrap(model, optimizer, 1 << 20, 1 << 20, separable)

    def mlp(self) -> Any:
        """One that is wrapped, with momentum."""
        m = made(mlp)
        self.wrap(m, momentum(m))
        return m

    def note(self, *values: Any) -> None:
        self.values += [torch.as_tensor(v).detach().clone() for v in values]

    def batch(self, step: int, *shape: int) -> torch.Tensor:
        return torch.randn(shape or (5, 8), generator=torch.Generator().manual_seed(100 * step + self.rank))

    def step(self, loss: torch.Tensor, *args: Any) -> None:
        loss.backward()
        self.optimizer.step(*args)
        self.waits += any(pending(p) for p in self.model.parameters())
        self.note(loss)

    def train(self, loss: Callable[[torch.Tensor], torch.Tensor], steps: int = STEPS, *shape: int, **zero: Any) -> None:
        for step in range(steps):
            self.optimizer.zero_grad(**zero)
            self.step(loss(self.batch(step, *shape)))

    def result(self) -> List[torch.Tensor]:
        for p in self.model.parameters():
            self.note(p, *([] if p.grad is None else [p.grad]))
        self.note(*self.model.buffers())
        for _, state in sorted(self.optimizer.state_dict()["state"].items()):
            self.note(*(v for v in state.values() if v is not None and not isinstance(v, (list, dict))))
        return self.values


_one = threading.Lock()


def made(make: Callable[[], nn.Module]) -> Any:
    """A model with the same weights every time: ranks are threads, and have one random generator."""
    with _one:
        torch.manual_seed(0)
        return make()


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def momentum(m: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(m.parameters(), **{"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, **options})


def plain(run: Run, make: Callable[[], nn.Module] = mlp, *shape: int, **zero: Any) -> None:
    m = made(make)
    run.wrap(m, momentum(m))
    run.train(lambda x: m(x).pow(2).mean(), STEPS, *shape, **zero)


@scenario
def sgd(run: Run) -> None:
    plain(run, set_to_none=True)


@scenario
def zeroed(run: Run) -> None:
    plain(run, set_to_none=False)


@scenario
def zeroed_by_the_model(run: Run) -> None:
    m = run.mlp()
    for step in range(STEPS):
        m.zero_grad(*[[], [True], [False]][step % 3])
        run.step(m(run.batch(step)).pow(2).mean())


@scenario
def never_zeroed(run: Run) -> None:
    """Gradients add up from step to step."""
    m = made(mlp)
    run.wrap(m, momentum(m, lr=0.01))
    for step in range(STEPS):
        run.step(m(run.batch(step)).pow(2).mean())


@scenario
def zeroed_after_step(run: Run) -> None:
    for set_to_none in True, False:
        m = run.mlp()
        for step in range(STEPS):
            run.step(m(run.batch(step)).pow(2).mean())
            run.optimizer.zero_grad(set_to_none=set_to_none)


@scenario
def adamw(run: Run) -> None:
    m = made(mlp)
    run.wrap(m, torch.optim.AdamW(m.parameters(), lr=0.01))
    run.train(lambda x: m(x).pow(2).mean())


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.attention(x, x, x)[0])


@scenario
def attention(run: Run) -> None:
    plain(run, Attention, 4, 3, 8)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.inner = nn.Linear(8, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.inner(self.embedding(x.argmax(-1))))
        return self.head(h) + F.linear(h, self.embedding.weight)  # a read that calls no module


@scenario
def tied(run: Run) -> None:
    plain(run, Tied)


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(8, 8)) for _ in range(3)])
        self.named = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(8)), "scale": nn.Parameter(torch.ones(()))})
        self.sub = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for w in self.weights:
            x = torch.tanh(x @ w)
        return self.sub.forward(x * self.named["scale"] + self.named["bias"])


@scenario
def lists(run: Run) -> None:
    plain(run, Lists)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(8, 6, 2), nn.GRU(6, 4, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(self.lstm(x)[0])[0]


@scenario
def recurrent(run: Run) -> None:
    plain(run, Recurrent, 4, 3, 8)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.Flatten(), nn.Linear(3, 2))
        self.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.contiguous(memory_format=torch.channels_last))


@scenario
def channels_last(run: Run) -> None:
    plain(run, Images, 3, 2, 4, 4)


class Types(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8).double(), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x.double())).float())


@scenario
def types(run: Run) -> None:
    plain(run, Types)


class Special(nn.Parameter):
    pass


class OfUsers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = Special(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.w)


@scenario
def parameters_of_users(run: Run) -> None:
    plain(run, OfUsers)
    assert type(run.model.w.sum()) is torch.Tensor and type(run.model.w) is Special


@scenario
def moving_average(run: Run) -> None:
    m = made(mlp)
    ema = copy.deepcopy(m)
    run.wrap(m, momentum(m))
    for step in range(STEPS):
        run.optimizer.zero_grad()
        run.step(m(run.batch(step)).pow(2).mean())
        with torch.no_grad():
            for e, p in zip(ema.parameters(), m.parameters()):
                e.lerp_(p, 0.1)
    run.note(*ema.parameters())


class Halting(torch.optim.SGD):
    """Halts in the middle of an update, in any thread but the one that made it, until that has read or does not get to it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.thread = threading.get_ident()
        self.halfway, self.read = threading.Event(), threading.Event()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                for _ in range(2):
                    if p.grad is not None:
                        p.add_(p.grad, alpha=-group["lr"] / 2)
                    if threading.get_ident() != self.thread and not self.halfway.is_set():
                        self.halfway.set()
                        self.read.wait(0.2)


@scenario
def read_by_another_thread(run: Run) -> None:
    """It applies the updates, while this one trains on: with whole parameters, and all groups."""
    m = made(mlp)
    o = Halting(m.parameters(), lr=0.1)
    run.wrap(m, o, separable=True)
    for step in range(STEPS):
        run.optimizer.zero_grad()
        run.step(m(run.batch(step)).pow(2).mean())
        o.halfway.clear()
        o.read.clear()
        reader = threading.Thread(target=lambda: [p.sum() for p in m.parameters()])
        reader.start()
        while reader.is_alive() and not o.halfway.wait(0.01):
            pass
        run.note(len(o.param_groups[0]["params"]), m(run.batch(step)))
        o.read.set()
        reader.join()


class Checkpointed(nn.Module):
    reentrant = True

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.inner = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.inner:
            # Ranks are threads: the generator whose state a checkpoint puts back is the other rank's too, who makes a model by it.
            x = checkpoint(lambda h, layer=layer: torch.tanh(layer(h)), x, use_reentrant=self.reentrant, preserve_rng_state=False)
        return self.last(x)


class NotReentrant(Checkpointed):
    reentrant = False


@scenario
def checkpointed(run: Run) -> None:
    plain(run, Checkpointed)
    plain(run, NotReentrant)


@scenario
def schedulers(run: Run) -> None:
    """One made before wrap, one after."""
    m = made(mlp)
    o = momentum(m)
    before = torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5)
    run.wrap(m, o)
    after = torch.optim.lr_scheduler.ExponentialLR(o, 0.5)
    for step in range(STEPS):
        o.zero_grad()
        run.step(m(run.batch(step)).pow(2).mean())
        before.step()
        after.step()
        run.note(o.param_groups[0]["lr"])


@scenario
def loaded(run: Run) -> None:
    m = made(mlp)
    run.wrap(m, torch.optim.AdamW(m.parameters(), lr=0.01))
    for step in range(2 * STEPS):
        if step == 3:
            kept = copy.deepcopy((m.state_dict(), run.optimizer.state_dict()))
        if step == 5:
            kept[1]["param_groups"][0]["lr"] = 0.02
            m.load_state_dict(kept[0])
            run.optimizer.load_state_dict(kept[1])
        run.optimizer.zero_grad()
        run.step(m(run.batch(step)).pow(2).mean())


@scenario
def optimizers_of_users(run: Run) -> None:
    class Sub(torch.optim.Adam):
        pass

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.mul_(0.5)
            return super().step(closure)

    makes: List[Any] = [(Sub, {"lr": 0.01}, None), (Own, {"lr": 0.1, "momentum": 0.9}, True), (Counting, {}, True)]
    for cls, options, separable in makes:
        m = made(mlp)
        run.wrap(m, cls(m.parameters(), **options), separable)
        run.train(lambda x: m(x).pow(2).mean())
        run.note(run.optimizer.param_groups[0].get("count", 0))


@scenario
def autocast(run: Run) -> None:
    m = run.mlp()
    for step in range(STEPS):
        run.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = m(run.batch(step)).float().pow(2).mean()
        run.step(loss)


@scenario
def evaluated(run: Run) -> None:
    """Between steps, in inference mode, on one rank alone, without gradients, and through parts of the model."""
    m = made(mlp)
    run.wrap(m, torch.optim.AdamW(m.parameters(), lr=0.01))
    for step in range(2 * STEPS):
        run.optimizer.zero_grad()
        run.step(m(run.batch(step)).pow(2).mean())
        with [torch.inference_mode, torch.no_grad][step % 2]():
            if step % 3 == 0 or run.rank == 0:
                run.note(m[2:](m[:2](run.batch(99))) if step % 4 == 2 else m(run.batch(99)))


@scenario
def one_rank_saves(run: Run) -> None:
    m = made(mlp)
    run.wrap(m, torch.optim.AdamW(m.parameters(), lr=0.01))
    for step in range(STEPS):
        run.optimizer.zero_grad()
        run.step(m(run.batch(step)).pow(2).mean())
        if run.rank == 1:
            run.note(*copy.deepcopy(m.state_dict()).values())
            run.note(*(v for _, s in sorted(run.optimizer.state_dict()["state"].items()) for v in s.values()))


@scenario
def clipped(run: Run) -> None:
    m = run.mlp()
    for step in range(STEPS):
        run.optimizer.zero_grad()
        loss = m(run.batch(step)).pow(2).mean()
        loss.backward()
        run.note(loss, nn.utils.clip_grad_norm_(m.parameters(), 0.1))
        run.optimizer.step()


@scenario
def scaled(run: Run) -> None:
    """A loss scaler's steps, one of which is not made."""
    m = run.mlp()
    for step in range(STEPS):
        run.optimizer.zero_grad()
        loss = m(run.batch(step)).pow(2).mean() * (float("inf") if (step, run.rank) == (1, 1) else 1024.0)
        loss.backward()
        grads = [p.grad for p in m.parameters()]
        torch._foreach_mul_(grads, 1 / 1024.0)
        if all(bool(g.isfinite().all()) for g in grads):
            run.optimizer.step()


@scenario
def one_rank_logs(run: Run) -> None:
    """The norm of the gradients, before and after the step."""
    m = run.mlp()
    for step in range(STEPS):
        run.optimizer.zero_grad()
        m(run.batch(step)).pow(2).mean().backward()
        if (run.rank + step) % 2:
            run.note(*(p.grad.norm() for p in m.parameters()))
        run.optimizer.step()
        if run.rank == 0:
            run.note(*(p.grad for p in m.parameters()))


@scenario
def accumulated(run: Run) -> None:
    m = run.mlp()
    for step in range(3 * STEPS):
        run.session.reducer.passes.paused = step % 3 != 2
        loss = m(run.batch(step)).pow(2).mean() / 3
        if step % 3 == 2:
            run.step(loss)
            run.optimizer.zero_grad(set_to_none=step % 2 == 0)
        else:
            loss.backward()


@scenario
def reduced_each_pass(run: Run) -> None:
    """Two passes a step, both reduced; one without a step of its own goes on in no_sync."""
    m = run.mlp()
    for step in range(3 * STEPS):
        run.session.reducer.passes.paused = step % 3 == 1
        m(run.batch(step)).pow(2).mean().backward()
        if step % 3 == 2:
            run.optimizer.step()
            run.optimizer.zero_grad(set_to_none=True)


@scenario
def two_steps_a_pass(run: Run) -> None:
    m = run.mlp()
    for step in range(STEPS):
        run.optimizer.zero_grad()
        run.step(m(run.batch(step)).pow(2).mean())
        run.optimizer.step()


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.never, self.trunk, self.left, self.right = (nn.Linear(8, 3) for _ in range(4))
        self.use = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.trunk(x)
        for name in self.use.split():
            y = y + getattr(self, name)(x)
        return y


@scenario
def unused(run: Run) -> None:
    uses = [("left right", "left right"), ("left", "right"), ("", ""), ("left", ""), ("right", "right"), ("", "left"), ("", "")]
    for set_to_none in True, False:
        m = made(Branches)
        run.wrap(m, momentum(m))
        for step, use in enumerate(uses):
            m.use = use[run.rank]
            run.optimizer.zero_grad(set_to_none=set_to_none)
            run.step(m(run.batch(step)).pow(2).mean())


@scenario
def frozen_in_training(run: Run) -> None:
    m = run.mlp()
    for step in range(6):
        m[2].requires_grad_(not 2 <= step < 4)
        run.optimizer.zero_grad(set_to_none=True)
        run.step(m(run.batch(step)).pow(2).mean())


@scenario
def several_groups(run: Run) -> None:
    """Groups with options of their own; some parameters belong to no optimizer's group."""
    m = made(mlp)
    groups = [{"params": m[0].parameters(), "lr": 0.05}, {"params": [m[2].weight, *m[4].parameters()], "momentum": 0.5}]
    run.wrap(m, torch.optim.SGD(groups, lr=0.1))
    run.train(lambda x: m(x).pow(2).mean())


@scenario
def closures(run: Run) -> None:
    for cls in torch.optim.SGD, torch.optim.LBFGS:
        m = made(mlp)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run.wrap(m, cls(m.parameters(), lr=0.1))
        for step in range(STEPS):

            def closure() -> torch.Tensor:
                run.optimizer.zero_grad()
                loss = m(run.batch(step)).pow(2).mean()
                loss.backward()
                return loss

            run.note(run.optimizer.step(closure))


@scenario
def joined(run: Run) -> None:
    """Rank 0 has two batches more; the passes within join are behind a barrier, those after it are not."""
    m = run.mlp()
    run.train(lambda x: m(x).pow(2).mean())
    run.session.reducer.passes.joining = True
    run.train(lambda x: m(x).pow(2).mean(), 4 - 2 * run.rank)
    run.session.reducer.join()
    run.train(lambda x: m(x).pow(2).mean())


@scenario
def own_calls(run: Run) -> None:
    """Collectives between steps, of parameters too."""
    m = run.mlp()
    for step in range(STEPS):
        run.optimizer.zero_grad()
        run.step(m(run.batch(step)).pow(2).mean())
        loss = torch.ones(1) * run.rank
        run.session.calls().all_reduce(loss, "sum")
        whole = m[0].weight.detach().clone() if step % 2 else torch.ones(3)
        run.session.calls().all_reduce(whole, "mean")
        run.note(loss, whole)


@scenario
def wrapped_again(run: Run) -> None:
    """With the same optimizer, as after unfreezing a parameter."""
    m = made(mlp)
    m[0].requires_grad_(False)
    o = momentum(m)
    for _ in range(3):
        run.wrap(m, o)
        run.train(lambda x: m(x).pow(2).mean())
        m[0].requires_grad_(True)


@scenario
def copied(run: Run) -> None:
    """A copy of the model and the optimizer, made while updates are pending, is complete and plain."""
    m = run.mlp()
    run.train(lambda x: m(x).pow(2).mean())
    c, o = copy.deepcopy((m, run.optimizer))
    assert type(c[0].weight) is nn.Parameter and type(o) is torch.optim.SGD
    c(run.batch(50)).pow(2).mean().backward()
    o.step()
    run.note(*c.parameters())


# Where nothing is pending after a step, for a reason that the scenario is about.
BARRED = {"clipped", "scaled", "one_rank_logs", "reduced_each_pass", "closures"}
AGENTS: Dict[str, Callable[[str, int], PlannedAgent]] = {
    "parts": lambda path, world: PlannedAgent(path, world, elements=7),
    "after the step, two buffers": lambda path, world: PlannedAgent(path, world, elements=40, buffers=2, after_step=True),
    "at the step": lambda path, world: PlannedAgent(path, world, elements=7, at="step"),
}


class Crossing(unittest.TestCase):
    def results(self, name: str, **agent: Any) -> List[Any]:
        def work(session: Any) -> Any:
            run = Run(session, bool(agent))
            SCENARIOS[name](run)
            run.result()
            return run

        runs = ranks(2, work, **agent)
        for r in runs:
            if isinstance(r, Exception):
                raise r
        return runs


def _add(name: str) -> None:
    def test(self: Crossing) -> None:
        want = self.results(name)
        for kind, agent in AGENTS.items():
            got = self.results(name, agent=agent)
            for rank in range(2):
                what = f"{kind}, rank {rank}"
                self.assertEqual(len(got[rank].values), len(want[rank].values), what)
                for n, (g, w) in enumerate(zip(got[rank].values, want[rank].values)):
                    self.assertTrue(torch.equal(g, w), f"{what}, value {n} of {len(want[rank].values)}: got {g.flatten()[:4]}, want {w.flatten()[:4]}")
                if kind == "after the step, two buffers" and name not in BARRED:
                    self.assertGreater(got[rank].waits, 0, f"{what}: no step returned before its averages had come")
            if kind == "at the step":
                self.assertEqual(got[0].waits, 0)

    test.__doc__ = SCENARIOS[name].__doc__
    setattr(Crossing, f"test_{name}", test)


for name in SCENARIOS:
    _add(name)


class Replaced:
    """Replaces the step of an optimizer, as libraries do that count its calls."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.calls = 0
        step = optimizer.step

        def counted(*args: Any) -> Any:
            self.calls += 1
            return step(*args)

        optimizer.step = counted  # type: ignore[method-assign]


class Barred(unittest.TestCase):
    """What may not cross the barrier says so, once, and trains behind it."""

    def train(self, make: Callable[[], Any], steps: int = 2) -> List[str]:
        """Trains what make returns, a model and an optimizer, on one rank; returns the warnings."""

        def work(session: Any) -> None:
            run = Run(session, True)
            m, o = make()
            run.wrap(m, o)
            run.train(lambda x: m(x).pow(2).mean(), steps)
            self.assertEqual(run.waits, 0)

        agent: List[PlannedAgent] = []

        def started(path: str, world: int) -> PlannedAgent:
            agent.append(PlannedAgent(path, world, after_step=True))
            return agent[0]

        with mock.patch("weft._barrier.warnings.warn") as warned:
            (result,) = ranks(1, work, started)
        if result is not None:
            raise result
        self.assertEqual(agent[0].modes, {"global"})
        return [call.args[0] for call in warned.call_args_list]

    def test_scripted(self) -> None:
        def make() -> Any:
            m = nn.Sequential(torch.jit.script(nn.Linear(8, 8)), nn.Linear(8, 3))
            return m, momentum(m)

        (warning,) = self.train(make)
        self.assertRegex(warning, "TorchScript reads parameters")

    def test_step_replaced(self) -> None:
        def make() -> Any:
            m = made(mlp)
            o = momentum(m)
            Replaced(o)
            return m, o

        (warning,) = self.train(make)
        self.assertRegex(warning, "the step of this SGD was replaced")

    def test_unknown_optimizer(self) -> None:
        def make() -> Any:
            m = made(mlp)
            return m, Counting(m.parameters())

        (warning,) = self.train(make)
        self.assertRegex(warning, r"Counting is not one that is known .* wrap\(separable=True\)")

    @unittest.skipUnless(hasattr(torch.optim.Optimizer, "register_step_pre_hook"), "this torch has no hooks on steps")
    def test_hook_after_wrap(self) -> None:
        """A hook that comes later sees all parameters, with their averages."""

        def work(session: Any) -> List[Any]:
            run = Run(session, True)
            m = run.mlp()
            seen: List[Any] = []
            run.optimizer.register_step_pre_hook(lambda o, *_: seen.extend(p.grad.clone() for p in o.param_groups[0]["params"]))
            run.train(lambda x: m(x).pow(2).mean(), 1)
            return [torch.equal(g, p.grad) for g, p in zip(seen, m.parameters())]

        for got in ranks(2, work, AGENTS["after the step, two buffers"]):
            self.assertEqual(got, [True] * 6)


class Failing(unittest.TestCase):
    def test_rank_lost(self) -> None:
        """While an update waits, whoever reads its parameter is told; so is, again, who reads another one."""

        def work(session: Any) -> Any:
            run = Run(session, True)
            m = run.mlp()
            if session.client.rank == 1:
                raise ZeroDivisionError
            m(run.batch(0)).pow(2).mean().backward()
            run.optimizer.step()
            errors = []
            for read in (lambda: m(run.batch(1)), lambda: m[4].weight.sum(), lambda: run.optimizer.state_dict()):
                try:
                    read()
                except WeftError as e:
                    errors.append(str(e))
            return errors

        got, lost = ranks(2, work, AGENTS["parts"])
        self.assertIsInstance(lost, ZeroDivisionError)
        if isinstance(got, Exception):  # it was told in backward already
            self.assertRegex(str(got), "rank 1 ended without goodbye")
        else:
            self.assertEqual(len(got), 3)
            for error in got:
                self.assertRegex(error, "rank 1 ended without goodbye")


@unittest.skipUnless(hasattr(torch, "compiler") and hasattr(torch.compiler, "is_dynamo_compiling"), "compiles with torch 2.6 only")
class Compiled(unittest.TestCase):
    def test_compiled(self) -> None:
        def work(session: Any, backend: Any) -> List[torch.Tensor]:
            run = Run(session, True)
            m = run.mlp()
            compiled = torch.compile(m, backend=backend)
            run.train(lambda x: compiled(x).pow(2).mean())
            return run.result()

        for backend in "eager", weft.backend:
            results = []
            for agent in FakeAgent, AGENTS["after the step, two buffers"]:
                torch._dynamo.reset()
                (got,) = ranks(1, lambda session: work(session, backend), agent)
                if isinstance(got, Exception):
                    raise got
                results.append(got)
            for g, w in zip(*results):
                self.assertTrue(torch.equal(g, w), f"{backend}")


if __name__ == "__main__":
    unittest.main()
