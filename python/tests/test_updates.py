"""Updates that wait, without an agent: applied one tensor at a time, late, in any order, they are those of a plain step()."""

from __future__ import annotations

import copy
import pickle
import random
import unittest
import warnings
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn

from weft._barrier import whole_only
from weft._updates import Step, Updates, step_but

STEPS = 5


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def backward(m: nn.Module, step: int) -> None:
    g = torch.Generator().manual_seed(step)
    m(torch.randn(5, 4, generator=g)).pow(2).mean().backward()


def groups(m: nn.Sequential) -> List[Dict[str, Any]]:
    return [{"params": list(m[0].parameters())}, {"params": [*m[2].parameters(), *m[4].parameters()], "lr": 0.02}]


# Every dense optimizer of torch.optim but LBFGS, with what makes it keep more state.
OPTIONS: Dict[str, Dict[str, Any]] = {
    "Adadelta": {"weight_decay": 0.1}, "Adafactor": {"weight_decay": 0.1}, "Adagrad": {"weight_decay": 0.1, "lr_decay": 0.1},
    "Adam": {"weight_decay": 0.1, "amsgrad": True}, "AdamW": {"weight_decay": 0.1, "amsgrad": True},
    "Adamax": {"weight_decay": 0.1}, "ASGD": {"weight_decay": 0.1, "t0": 2}, "NAdam": {"weight_decay": 0.1},
    "RAdam": {"weight_decay": 0.1}, "RMSprop": {"weight_decay": 0.1, "momentum": 0.9, "centered": True}, "Rprop": {},
    "SGD": {"weight_decay": 0.1, "momentum": 0.9, "nesterov": True},
}  # fmt: skip


class Counting(torch.optim.Optimizer):
    """A user's own: SGD whose group counts its steps, and decays by the count."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, dict(lr=lr, count=0))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"] / group["count"])


def variants() -> List[Tuple[str, Callable[[nn.Module], torch.optim.Optimizer]]]:
    made: List[Tuple[str, Callable[[nn.Module], torch.optim.Optimizer]]] = []
    for name, options in OPTIONS.items():
        cls = getattr(torch.optim, name, None)
        for flag in {}, {"foreach": True}, {"fused": True}, {"maximize": True}, {"lr": torch.tensor(0.01)}:
            if cls is None:
                continue

            def make(m: nn.Module, cls: Any = cls, options: Any = dict({"lr": 0.01}, **options, **{} if "lr" in flag else flag)) -> Any:
                return cls(groups(m), **options)

            if "lr" in flag:

                def make(m: nn.Module, cls: Any = cls, options: Any = options) -> Any:  # type: ignore[no-redef]
                    return cls(list(m.parameters()), lr=torch.tensor(0.01), **options)

            try:
                m = network()
                backward(m, 0)
                make(m).step()
            except (TypeError, ValueError, RuntimeError):
                continue  # this torch has not this flag, or not here
            made.append((f"{name} {flag}", make))
    made.append(("Counting", lambda m: Counting(groups(m))))
    return made


class Deferred:
    """An optimizer whose updates wait until apply."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.waiting: List[Tuple[Step, torch.Tensor, torch.Tensor]] = []
        self.updates = Updates(optimizer, self._step, self.apply)

    def _step(self, own: Callable[[], Any]) -> Any:
        self.apply()
        step = Step(self.optimizer)
        with_grad = [p for g in self.optimizer.param_groups for p in g["params"] if p.grad is not None]
        result = step_but(self.optimizer, own, with_grad)
        self.waiting = [(step, p, p.grad) for p in with_grad]
        return result

    def apply(self, shuffle: Any = None) -> None:
        waiting, self.waiting = self.waiting, []
        if shuffle is not None:
            shuffle.shuffle(waiting)
        for step, p, grad in waiting:
            step.apply([(p, grad)])


class Updating(unittest.TestCase):
    def same(self, got: Any, want: Any, what: str) -> None:
        for (name, g), w in zip(got.state_dict().items(), want.state_dict().values()):
            self.assertTrue(torch.equal(g, w), f"{what}: {name}")

    def test_any_order(self) -> None:
        """Each tensor by itself, in random order, after the schedulers (of before and after) and zero_grad have run."""
        shuffle = random.Random(1)
        seen = set()
        for name, make in variants():
            plain, model = network(), network()
            optimizers = [make(plain), make(model)]
            deferred: Any = None
            schedulers: List[Any] = [torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5) for o in optimizers]
            deferred = Deferred(optimizers[1])
            with warnings.catch_warnings():
                warnings.filterwarnings("error", ".*lr_scheduler")  # which warns where it finds that step was not called
                schedulers += [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in optimizers]
                for step in range(STEPS):
                    for m, o in zip((plain, model), optimizers):
                        o.zero_grad()
                        backward(m, step)
                        o.step()
                    for s in schedulers:
                        s.step()
                    optimizers[1].zero_grad(set_to_none=True)
                    deferred.apply(shuffle)
                    self.same(model, plain, f"{name}, step {step}")
            self.assertEqual(
                [{k: v for k, v in g.items() if k != "params"} for g in optimizers[1].param_groups],
                [{k: v for k, v in g.items() if k != "params"} for g in optimizers[0].param_groups],
                name,
            )
            seen.add(name.split()[0])
        self.assertEqual(seen, {n for n in OPTIONS if hasattr(torch.optim, n)} | {"Counting"})

    def test_state_is_up_to_date(self) -> None:
        """Whoever reads or replaces the state finds no update waiting; a copy is of the user's class."""
        reads: Dict[str, Callable[[torch.optim.Optimizer], Any]] = {
            "state_dict": lambda o: o.state_dict()["state"][0]["momentum_buffer"],
            "state": lambda o: o.state[o.param_groups[0]["params"][0]]["momentum_buffer"],
            "deepcopy": lambda o: copy.deepcopy(o).state_dict()["state"][0]["momentum_buffer"],
            "pickle": lambda o: pickle.loads(pickle.dumps(o)).state_dict()["state"][0]["momentum_buffer"],
        }
        for name, read in reads.items():
            got = []
            for defer in False, True:
                m = network()
                o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
                d = Deferred(o) if defer else None
                for step in range(2):
                    if d is not None:
                        d.apply()
                    o.zero_grad(set_to_none=True)
                    backward(m, step)
                    o.step()
                got.append(read(o).clone())
            self.assertTrue(torch.equal(*got), name)
        self.assertIs(type(copy.deepcopy(o)), torch.optim.SGD)
        self.assertIs(type(pickle.loads(pickle.dumps(o))), torch.optim.SGD)

    def test_load(self) -> None:
        """load_state_dict comes after the update that waits; later ones find its groups."""
        results = []
        for defer in False, True:
            m = network()
            o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
            d = Deferred(o) if defer else None
            for step in range(4):
                o.zero_grad()
                backward(m, step)
                o.step()
                if step == 1:
                    kept = copy.deepcopy(o.state_dict())
                if step == 2:
                    kept["param_groups"][0]["lr"] = 0.3
                    o.load_state_dict(kept)
                if d is not None and step != 2:
                    d.apply()
            if d is not None:
                d.apply()
            results.append(m)
        self.same(results[1], results[0], "loaded")

    def test_removed(self) -> None:
        m = network()
        o = torch.optim.SGD(m.parameters(), lr=0.1)
        d = Deferred(o)
        self.assertIsInstance(o, torch.optim.SGD)
        d.updates.remove()
        self.assertIs(type(o), torch.optim.SGD)
        before = m[0].weight.clone()
        backward(m, 0)
        o.step()
        self.assertFalse(torch.equal(m[0].weight, before))

    def test_modes(self) -> None:
        """Applied within inference mode and autocast, as when step() was called: outside of both."""
        results = []
        for apply_in in [torch.no_grad()], [torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16)]:
            m = network()
            o = torch.optim.AdamW(m.parameters(), lr=0.1)
            d = Deferred(o)
            for step in range(3):
                o.zero_grad()
                backward(m, step)
                o.step()
                if len(apply_in) == 1:
                    d.apply()
                else:
                    with apply_in[0], apply_in[1]:
                        d.apply()
            self.assertFalse(any(t.is_inference() for s in o.state.values() for t in s.values() if isinstance(t, torch.Tensor)))
            results.append(m)
        self.same(results[1], results[0], "modes")

    def test_whole_only(self) -> None:
        """What cannot be applied one tensor at a time, and why."""

        class Plain(torch.optim.SGD):
            pass

        class Own(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                return super().step(closure)

        def of(o: Any, separable: Any = None) -> str:
            return str(whole_only(o, separable))

        p = list(network().parameters())
        self.assertEqual(of(torch.optim.SGD(p, lr=0.1)), "None")
        self.assertEqual(of(Plain(p, lr=0.1)), "None")
        self.assertRegex(of(Own(p, lr=0.1)), "Own has a step of its own")
        self.assertEqual(of(Own(p, lr=0.1), True), "None")
        self.assertRegex(of(Counting(p)), "Counting is not one that is known")
        self.assertEqual(of(Counting(p), True), "None")
        self.assertRegex(of(torch.optim.LBFGS(p)), "LBFGS is not one")
        self.assertRegex(of(torch.optim.SGD(p, lr=0.1), False), "separable=False")
        o = torch.optim.SGD(p, lr=0.1)
        torch.optim.lr_scheduler.StepLR(o, 1)
        self.assertEqual(of(o), "None")
        o = torch.optim.SGD(p, lr=0.1)
        o.step = lambda: None  # type: ignore[method-assign]
        self.assertRegex(of(o), "was replaced")
        if hasattr(o, "register_step_post_hook"):
            o = torch.optim.SGD(p, lr=0.1)
            o.register_step_post_hook(lambda *_: None)
            self.assertRegex(of(o), "hooks on its step")


if __name__ == "__main__":
    unittest.main()
