"""What a profile finds out about an iteration, and that it changes nothing."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import subprocess
import tempfile
import unittest
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from weft._descent import Descent
from weft._session import Session

from . import launch
from .ranks import ranks

WARM, MEASURED = 2, 4


def measured(session: Session) -> List[Dict[str, Any]]:
    """Has the session's next model measured as if the agent had asked for it; returns where the report will be."""
    hello = session.client.hello
    reports: List[Dict[str, Any]] = []

    def asked(*args: Any, **kwargs: Any) -> Any:
        return dataclasses.replace(hello(*args, **kwargs), review=WARM + MEASURED + 1, profile=MEASURED)

    def review(report: Dict[str, Any]) -> Dict[str, Any]:
        reports.append(json.loads(json.dumps(report)))
        return {"change": False, "review": 0}

    session.client.hello = asked  # type: ignore[method-assign]
    session.client.review = review  # type: ignore[method-assign]
    return reports


Step = Callable[[nn.Module, int], None]


def plain(m: nn.Module, step: int) -> None:
    m(torch.ones(3, 4)).sum().backward()


def profile(m: nn.Module, step: Step = plain, after: Callable[[nn.Module], Any] = lambda m: None) -> Tuple[Any, List[str]]:
    """The report of a training of one worker, and its tensors' names; after runs between a step's backward pass and update."""
    names = ["weft.used", *(n for n, _ in m.named_parameters())]

    def work(session: Session) -> Any:
        reports = measured(session)
        optimizer = torch.optim.SGD(m.parameters(), lr=0.01)
        session.wrap(m, optimizer, 64, 64)
        for i in range(WARM + MEASURED + 2):
            optimizer.zero_grad()
            step(m, i)
            after(m)
            optimizer.step()
        assert len(reports) == 1, reports
        return reports[0]

    (report,) = ranks(1, work)
    if isinstance(report, Exception):
        raise report
    return report, names


def rows(report: Any, names: List[str]) -> List[Tuple[str, List[str], List[str]]]:
    """Ops: phase and name, what they read, what they give."""
    return [
        (f"{o['phase']}: {o['name']}", [names[k] for k in o.get("reads", [])], [names[k] for k in o.get("gives", [])])
        for o in report["ops"]
    ]


def having(report: Any, names: List[str], what: str, tensor: str) -> List[str]:
    """The ops that read or give a tensor."""
    return [o["name"] for o in report["ops"] if names.index(tensor) in o.get(what, [])]


class Profile(unittest.TestCase):
    def test_ops(self) -> None:
        m = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Sequential(nn.Linear(5, 2, bias=False)))
        report, names = profile(m)
        self.assertEqual(rows(report, names), [
            ("forward: next batch", [], []),
            ("forward: forward", [], []),
            ("forward: 0", ["0.weight"], []),
            ("forward: 2.0", ["2.0.weight"], []),
            ("forward: loss", [], []),
            ("backward: backward 2.0.weight", [], ["2.0.weight"]),
            ("backward: backward 0.weight", [], ["0.weight"]),
            ("backward: end of backward", [], ["weft.used"]),
            ("update: averages", [], []),
            ("update: before step", [], []),
            ("update: step", [], []),
        ])  # fmt: skip
        self.assertEqual((report["iterations"], report["kept"], report["global"]), (MEASURED, MEASURED, False))
        self.assertEqual(len(report["times"]), WARM + MEASURED)
        for o in report["ops"]:
            self.assertGreaterEqual(o["time"], 0)
            self.assertEqual(o["micro"], 0)
        self.assertGreater(report["compute"], 0)
        self.assertAlmostEqual(sum(report["phases"].values()) / report["compute"], 1, delta=0.5)
        self.assertGreater(report["iteration"], report["waited"])

    def test_tied_weight(self) -> None:
        class Tied(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
                self.head.weight = self.embed.weight

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.head(self.embed(x))

        report, names = profile(Tied(), lambda m, _: m(torch.arange(5)).sum().backward())
        self.assertEqual(having(report, names, "reads", "embed.weight"), ["embed", "head"])
        self.assertEqual(having(report, names, "gives", "embed.weight"), ["backward embed.weight"])

    def test_read_by_other_modules(self) -> None:
        """An attention reads its projection, a model the parameters in a list, and its own."""

        class Attends(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(4))
                self.biases = nn.ParameterList([nn.Parameter(torch.zeros(4))])
                self.block = nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2)})

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = x * self.scale + self.biases[0]
                return self.block["attention"](x, x, x)[0]

        report, names = profile(Attends(), lambda m, _: m(torch.randn(3, 1, 4)).sum().backward())
        for tensor, op in {
            "scale": "forward", "biases.0": "forward", "block.attention.in_proj_weight": "block.attention",
            "block.attention.out_proj.weight": "block.attention",
        }.items():  # fmt: skip
            self.assertEqual(having(report, names, "reads", tensor), [op], tensor)
        self.assertEqual(sorted(k for o in report["ops"] for k in o.get("gives", [])), list(range(len(names))))

    def test_checkpoint(self) -> None:
        """A module that is computed again in the backward pass reads its parameters again."""

        for reentrant in (False, True):

            class Checkpointed(nn.Module):
                def __init__(self) -> None:
                    super().__init__()
                    self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

                def forward(self, x: torch.Tensor) -> torch.Tensor:
                    x = self.first(x)
                    return checkpoint(self.second, x, use_reentrant=reentrant)

            report, names = profile(Checkpointed())
            phases = [r[0] for r in rows(report, names) if r[1] == ["second.weight"]]
            self.assertEqual(phases, ["forward: second", "backward: backward second.weight"], f"reentrant: {reentrant}")
            self.assertEqual(having(report, names, "gives", "first.weight"), ["backward first.weight"])

    def test_several_passes(self) -> None:
        def work(session: Session) -> Any:
            reports = measured(session)
            m = nn.Sequential(nn.Linear(4, 2, bias=False))
            optimizer = torch.optim.SGD(m.parameters(), lr=0.01)
            session.wrap(m, optimizer, 64, 64)
            for _ in range(WARM + MEASURED + 2):
                optimizer.zero_grad()
                session.reducer.passes.paused = True
                plain(m, 0)
                session.reducer.passes.paused = False
                plain(m, 0)
                optimizer.step()
            return reports[0]

        (report,) = ranks(1, work)
        self.assertEqual(
            [(o["name"], o["micro"]) for o in report["ops"] if o.get("reads") or o.get("gives")],
            [("0", 0), ("backward 0.weight", 0), ("0", 1), ("backward 0.weight", 1), ("end of backward", 1)],
        )

    def test_unused(self) -> None:
        class Part(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.used, self.unused = nn.Linear(4, 2, bias=False), nn.Linear(4, 2, bias=False)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.used(x)

        report, names = profile(Part())
        self.assertEqual(having(report, names, "gives", "unused.weight"), ["end of backward"])
        self.assertEqual(having(report, names, "reads", "unused.weight"), ["forward"])

    def test_commonest_order(self) -> None:
        """Another order in one iteration, and evaluations between them, do not count."""

        class Turns(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

            def forward(self, x: torch.Tensor, turned: bool = False) -> torch.Tensor:
                return self.a(self.b(x)) if turned else self.b(self.a(x))

        def step(m: nn.Module, i: int) -> None:
            with torch.no_grad():
                m(torch.ones(1, 4))
            m(torch.ones(1, 4), turned=i == WARM + 1).sum().backward()

        report, names = profile(Turns(), step)
        self.assertEqual((report["iterations"], report["kept"]), (MEASURED, MEASURED - 1))
        self.assertEqual([r[0] for r in rows(report, names) if r[1]], ["forward: a", "forward: b"])

    def test_gradients_read(self) -> None:
        m = nn.Sequential(nn.Linear(4, 2))
        report, _ = profile(m, after=lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1.0))
        self.assertTrue(report["global"])
        for p in m.parameters():
            self.assertIs(type(p), nn.Parameter)

    def test_called_before_the_step(self) -> None:
        """With gradients, which nobody takes: no iteration begins there."""
        m = nn.Linear(4, 2)
        report, names = profile(m, after=lambda m: m(torch.ones(3, 4)))
        self.assertEqual((report["iterations"], report["kept"]), (MEASURED, MEASURED))
        self.assertEqual(having(report, names, "gives", "weight"), ["backward weight"])

    def test_hooks_go(self) -> None:
        def work(session: Session) -> Any:
            reports = measured(session)
            m = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))
            optimizer = torch.optim.SGD(m.parameters(), lr=0.01)
            session.wrap(m, optimizer, 64, 64)
            hooks = [len(x._forward_pre_hooks) for x in m.modules()]
            for i in range(WARM + MEASURED + 2):
                optimizer.zero_grad()
                plain(m, i)
                optimizer.step()
            return len(reports), hooks, [len(x._forward_pre_hooks) for x in m.modules()]

        self.assertEqual(ranks(1, work), [(1, [2, 1, 1], [1, 0, 0])])

    def test_quiet(self) -> None:
        """In every second iteration no bucket is declared before the backward pass has ended; in the others, some are."""

        def work(session: Session) -> Any:
            measured(session)
            m = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
            optimizer = torch.optim.SGD(m.parameters(), lr=0.01)
            ready, early = session.client.ready, []
            session.wrap(m, optimizer, 4, 4)
            sent, ended = session.reducer.watch.sent, [False]
            session.client.ready = lambda bucket, i: (ended[0] or early.append(i), ready(bucket, i))[1]
            session.reducer.watch.sent = lambda: (ended.__setitem__(0, True), sent())[1]
            for i in range(WARM + MEASURED + 2):
                ended[0] = False
                plain(m, i)
                optimizer.step()
            return sorted(set(early))

        (early,) = ranks(1, work)
        quiet = range(WARM, WARM + MEASURED, 2)
        self.assertEqual(early, [i for i in range(WARM + MEASURED + 2) if i not in quiet])

    def test_same_bits(self) -> None:
        """With several ranks and an uneven end: the weights are those without a profile."""

        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))

        def training(asks: bool) -> List[Any]:
            def work(session: Session) -> Any:
                reports = measured(session) if asks else []
                m = copy.deepcopy(model)
                optimizer = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
                session.wrap(m, optimizer, 64, 64)
                g = torch.Generator().manual_seed(session.client.rank)
                for _ in range(WARM + MEASURED - 2 + 2 * session.client.rank):
                    optimizer.zero_grad()
                    m(torch.randn(5, 4, generator=g)).pow(2).mean().backward()
                    optimizer.step()
                session.reducer.join()
                return [t.clone() for t in m.state_dict().values()], [r["iterations"] for r in reports]

            return ranks(2, work)

        with_, without = training(True), training(False)
        for (a, reports), (b, _) in zip(with_, without):
            self.assertEqual(len(reports), 1)
            for x, y in zip(a, b):
                self.assertTrue(torch.equal(x, y))


class Descends(unittest.TestCase):
    def test_descent(self) -> None:
        """A step of SGD takes the learning rate times the squared norm of the gradient off the loss. Other losses do not count."""
        w = nn.Parameter(torch.tensor([1.0, 2.0]))
        optimizer = torch.optim.SGD([w], lr=0.25)
        own, seen = torch.autograd.backward, Descent([w], sums=False)
        other = nn.Parameter(torch.ones(3))
        try:
            for _ in range(2):
                optimizer.zero_grad()
                other.sum().backward()  # reaches none of ours
                for _ in range(2):  # gradients of two passes add up: of w * w
                    hook = w.register_hook(lambda _: seen.reached())
                    (w * w).sum().div(2).backward()
                    hook.remove()
                seen.sent()
                optimizer.step()
                seen.stepped()
        finally:
            seen.stop()
        self.assertIs(torch.autograd.backward, own)
        # Gradients are 2 w. The first step halves w.
        self.assertEqual(seen.report(), {"losses": [5.0, 1.25], "drifts": [0.25 * 20, 0.25 * 5], "sum": False})
        seen._losses.append(math.nan)
        self.assertEqual(seen.report(), {})


@unittest.skipUnless(launch.WEFT, "needs WEFT_BINARY")
class Command(unittest.TestCase):
    def profile(self, directory: str, model: str) -> Tuple[Any, Any]:
        job, cluster = os.path.join(directory, "job.json"), os.path.join(directory, "cluster.yaml")
        ended = launch.run_command(
            [launch.WEFT, "profile", "-n", "2", "--json", "-o", job, "--cluster", cluster, "--", launch.sys.executable,
             os.path.join(launch.HERE, "profiled.py"), model],
            {"WEFT_PROFILE_ITERATIONS": "6"},
        )[0]  # fmt: skip
        self.assertEqual(ended.code, 0, ended.output)
        with open(job) as f:
            return json.load(f), json.loads(ended.output[ended.output.index("{") :])

    def test_cnn(self) -> None:
        with tempfile.TemporaryDirectory() as d:
            job, report = self.profile(d, "cnn")
            self.assertEqual(job["tensors"][0]["name"], "weft.used")
            self.assertEqual(job["collectives"][0]["kind"], "broadcast")
            self.assertEqual(job["mode"], "per-tensor")
            for t in job["tensors"]:
                self.assertTrue(t["readers"] and t["producers"] and t["updaters"], t)
            # The same computer at the same time: whatever else it does, the prediction is of this order.
            self.assertLess(abs(math.log2(report["simulated_us"] / report["iteration_us"])), 3, report)
            compared = subprocess.run(
                [launch.WEFT, "compare", os.path.join(d, "job.json"), "--cluster", os.path.join(d, "cluster.yaml")],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            self.assertEqual(compared.returncode, 0)
            self.assertIn("dear", compared.stdout)

    def test_transformer(self) -> None:
        with tempfile.TemporaryDirectory() as d:
            job, _ = self.profile(d, "transformer")
            self.assertEqual(job["mode"], "global")
            (tied,) = [t for t in job["tensors"] if t["name"] == "embed.weight"]
            self.assertEqual([job["ops"][o]["name"] for o in tied["readers"]], ["embed", "head"])

    def test_too_short(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            job = os.path.join(directory, "job.json")
            ended = launch.run_command(
                [launch.WEFT, "profile", "-o", job, "--", launch.sys.executable, os.path.join(launch.HERE, "profiled.py"), "cnn"],
                {"WEFT_PROFILE_ITERATIONS": "30"},
            )[0]  # fmt: skip
            self.assertEqual(os.listdir(directory), [])
        self.assertEqual(ended.code, 3, ended.output)
        self.assertIn("the training ended before 36 iterations, which a profile needs", ended.output)

    def test_no_place(self) -> None:
        """A file that cannot be written is said before the training, or the training goes on without it."""
        command = [launch.sys.executable, os.path.join(launch.HERE, "profiled.py"), "cnn"]
        for file, said in {"/nowhere/job.json": "no such file", "/dev/full": "no space left on device; the training goes on"}.items():
            ended = launch.run_command([launch.WEFT, "profile", "-o", file, "--", *command], {"WEFT_PROFILE_ITERATIONS": "2"})[0]
            self.assertEqual(ended.code, 3, ended.output)
            self.assertIn(f"write {file}: {said}", ended.output)
            self.assertNotIn("Traceback", ended.output)
