"""Compiled graphs as a job file, and a plan's computation order as theirs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
import unittest
import warnings
from typing import Any, Callable, List
from unittest import mock

import torch
from torch import nn

import weft.torch as weft
from weft import _graph_job

from . import launch
from .ranks import ranks
from .test_graph import COMPILES, MODELS, any_order, batch, compiled, fresh, loss_of, made


@unittest.skipUnless(COMPILES, "torch.compile with this backend needs torch 2.6")
class Job(unittest.TestCase):
    maxDiff = None

    def setUp(self) -> None:
        fresh(self)
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, "job.json")
        self.plan = os.path.join(directory.name, "plan.json")

    def exported(self, model: nn.Module, iteration: Callable[[Any, int], None], iterations: int = 13, **options: Any) -> Any:
        """The job of a training under an agent. iteration is called with the compiled model and the iteration's number."""

        def work(session: Any) -> None:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            session.wrap(model, optimizer, 1 << 20, 1 << 20)
            run = compiled(model)
            with mock.patch.object(weft, "_session", session), weft.export_job(self.path, **options):
                for i in range(iterations):
                    optimizer.zero_grad()
                    iteration(run, i)
                    optimizer.step()

        (result,) = ranks(1, work)
        if isinstance(result, Exception):
            raise result
        with open(self.path) as f:
            return json.load(f)

    def weft(self, *args: str) -> str:
        return subprocess.run([launch.WEFT, *args], check=True, stdout=subprocess.PIPE, text=True).stdout

    def test_linear(self) -> None:
        """A layer, whose graphs are known: y = x w' + b, loss = sum(tanh(y))."""
        model = nn.Linear(3, 2)
        x = torch.randn(4, 3)
        job = self.exported(model, lambda run, i: torch.tanh(run(x)).sum().backward(), workers=4)
        ops = {op["name"]: op for op in job["ops"]}
        names = [op["name"] for op in job["ops"]]
        deps = {op["name"]: [names[d] for d in op["deps"]] for op in job["ops"]}
        self.assertEqual(
            deps,
            {
                "0.python": [],
                "0.t": ["0.python"],  # of the weight, a view
                "0.addmm": ["0.t"],
                "1.python": ["0.addmm"],  # tanh and sum, forward and backward
                "1.t_1": ["1.python"],  # of dy
                "1.mm": ["1.t_1"],
                "1.t_2": ["1.mm"],
                "1.sum_1": ["1.python"],
                "1.view": ["1.sum_1"],
                "1.t_3": ["1.mm", "1.t_2"],  # of a view of mm's result
                "accumulate": ["1.view", "1.t_3"],
                "optimizer.step": ["accumulate"],
            },
        )
        self.assertEqual([op["phase"] for op in job["ops"]], ["forward"] * 3 + ["backward"] * 8 + ["update"])
        self.assertTrue(all(op["time"] >= 0 for op in job["ops"]) and ops["0.addmm"]["time"] > 0)
        # y; dw before it is the gradient; the rest are views, gradients, or no tensors
        self.assertEqual({n: op["output"] for n, op in ops.items() if op["output"]}, {"0.addmm": 4 * 2 * 4, "1.mm": 2 * 3 * 4, "1.sum_1": 8})
        tensors = {t["name"]: {k: [names[o] for o in t[k]] for k in ("readers", "producers", "updaters")} for t in job["tensors"]}
        step = ["optimizer.step"]
        self.assertEqual(
            tensors,
            {
                "weft.used": {"readers": ["0.addmm"], "producers": ["accumulate"], "updaters": step},
                "weight": {"readers": ["0.t", "0.addmm"], "producers": ["1.t_3"], "updaters": step},
                "bias": {"readers": ["0.addmm"], "producers": ["1.view"], "updaters": step},
            },
        )
        self.assertEqual([t["elements"] for t in job["tensors"]], [2 + 4, 6, 2])
        self.assertEqual((job["world"], job["optimizer"]), (4, 8 * 4))  # momentum

    def test_parts(self) -> None:
        """A gradient that has parts is ready when all are accumulated; a micro-batch is one more."""
        model = nn.Sequential(nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 10))
        x = torch.randn(4, 10)

        def iteration(run: Any, i: int) -> None:
            with weft.no_sync():
                loss_of(run(x)).backward()
            (loss_of(run(x)) + model[0].bias.norm()).backward()

        job = self.exported(model, iteration)
        ops = job["ops"]
        self.assertEqual(sorted({(op["micro"], op["phase"]) for op in ops if op["phase"] != "update"}),
                         [(0, "backward"), (0, "forward"), (1, "backward"), (1, "forward")])  # fmt: skip
        # .grad of the first micro-batch is there when the second's is made
        self.assertEqual({ops[o]["name"] for t in job["tensors"] for o in t["producers"]}, {"accumulate"})
        weight = next(t for t in job["tensors"] if t["name"] == "0.weight")
        self.assertEqual({ops[o]["micro"] for o in weight["readers"]}, {0, 1})

    def test_refused(self) -> None:
        x = batch("mlp", 0)
        for iterations, compile, why in (12, compiled, "12 iterations .* 13 are needed"), (13, lambda m: m, "0 iterations .* 13 are needed"):
            with self.assertRaisesRegex(weft.WeftError, why), mock.patch(__name__ + ".compiled", compile):
                self.exported(made("mlp"), lambda run, i: loss_of(run(x)).backward(), iterations)
        self.assertFalse(os.path.exists(self.path))

    @unittest.skipUnless(launch.WEFT, "WEFT_BINARY is not set")
    def test_binary(self) -> None:
        """The binary reads the job; a plan with any valid order fits it, and the graphs compute the same bits in that order."""
        shuffle = random.Random(1)
        for name in MODELS:
            torch._dynamo.reset()
            model = made(name)
            # These graphs stay in use: what the session leaves behind is the model, compiled.
            runs: List[Any] = []
            job = self.exported(model, lambda run, i: (runs.append(run), loss_of(run(batch(name, i))).backward()))
            self.weft("import", self.path, "-o", self.path + ".copy")
            self.weft("plan", self.path, "--workers", "4", "--link", "1Gbit,25us", "--policy", "caramel", "-o", self.plan)
            self.order(self.plan, runs[-1], model, name)

            self.weft("plan", self.path, "--workers", "4", "--link", "1Gbit,25us", "--policy", "wfbp", "-o", self.plan)
            with open(self.plan) as f:
                plan = json.load(f)
            needs = {op["id"]: op["deps"] for op in job["ops"]}
            for op in job["ops"]:  # what plans may permute: bound.Stretches
                if op["phase"] != "backward" and op["id"] > 0:
                    needs[op["id"]] = [op["id"] - 1]
            plan["order"] = [any_order(needs, shuffle)]
            plan["ops_fingerprint"] = _graph_job.fingerprint(job["lanes"][0], _graph_job.Ops(last().runs, {}).ops)
            with open(self.plan, "w") as f:
                json.dump(plan, f)
            self.weft("plan", "check", self.plan, "--job", self.path)
            before = [r.graph.order for r in last().runs]
            self.order(self.plan, runs[-1], model, name)
            self.assertNotEqual(before, [r.graph.order for r in last().runs])

            plan["ops_fingerprint"] = "0" * 32
            with open(self.plan, "w") as f:
                json.dump(plan, f)
            with self.assertRaisesRegex(weft.WeftError, "other graphs"):
                weft.order_from_plan(self.plan)

    def order(self, plan: str, run: Any, model: nn.Module, name: str) -> None:
        """Takes the plan's order, and compares gradients with plain PyTorch's."""
        weft.order_from_plan(plan)
        for i in range(2):
            gradients: List[List[torch.Tensor]] = []
            state = {k: v.clone() for k, v in model.state_dict().items()}
            for forward in run, model:
                model.load_state_dict(state)  # the statistics of batch norm
                model.zero_grad()
                loss_of(forward(batch(name, i))).backward()
                gradients.append([p.grad for p in model.parameters()])
            for (n, _), a, b in zip(model.named_parameters(), *gradients):
                self.assertTrue(torch.equal(a, b), f"{name}: {n}")
            torch.optim.SGD(model.parameters(), lr=0.0).step()  # ends the iteration

    def test_taken(self) -> None:
        """The order that comes with a plan is taken after an iteration of the graphs that it is for; else there is one warning."""
        for mine in True, False:
            model = made("mlp")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            run = compiled(model)

            def iteration() -> None:
                loss_of(run(batch("mlp", 0))).backward()
                optimizer.step()

            iteration()
            runs = last().runs
            ops = _graph_job.Ops(runs, {}).ops
            order = any_order({o: op.deps if op.phase == "backward" else list(range(o)) for o, op in enumerate(ops)}, random.Random(1))
            of = _graph_job.fingerprint(_graph_job.lane(runs), ops)
            _graph_job.take_order([order], of if mine else "5" * 32)
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                for _ in range(5):
                    iteration()
            want = [ops[o].node for o in order if ops[o].run == 1] if mine else list(runs[1].graph.nodes)
            self.assertEqual(runs[1].graph.order, want)
            self.assertEqual(["made for other graphs" in str(w.message) for w in warned], [] if mine else [True])
            _graph_job.take_order(None, "")
            for _ in range(2):
                iteration()
            self.assertEqual(runs[1].graph.order, list(runs[1].graph.nodes))

    def test_order_too_early(self) -> None:
        with mock.patch.object(_graph_job, "_watch", _graph_job.Watch()):
            with self.assertRaisesRegex(weft.WeftError, "call it after an iteration"):
                weft.order_from_plan(self.plan)


def last() -> Any:
    return _graph_job.watch().last()


if __name__ == "__main__":
    unittest.main()
