"""Plans of policies under `weft run --plan`: the same bits after every step as with plain buckets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, List

import torch

from . import launch
from .cases import mlp

WORLD = 2
POLICIES = {"p3": ["--slice", "100"], "bytescheduler": ["--partition", "64", "--credit", "1KiB"], "dear": [], "us-byte": ["--unit", "50"], "mg-wfbp": []}
# All of one model, as the plan is.
CASES = [
    "sgd", "momentum_in_groups", "optimizer_adamw", "optimizer_lbfgs", "scheduler", "accumulation", "accumulation_reduced_each_pass",
    "uneven", "clipped", "frozen_in_training", "scaled", "penalty", "saved_and_loaded",
]  # fmt: skip


def job(model: torch.nn.Module) -> Dict[str, Any]:
    """A job whose ops read and produce a parameter each, one after the other: times in microseconds."""
    parameters = list(model.named_parameters())
    forward = [{"name": f"forward {n}", "lane": 0, "phase": "forward", "time": 100} for n, _ in parameters]
    backward = [{"name": f"backward {n}", "lane": 0, "phase": "backward", "time": 200} for n, _ in reversed(parameters)]
    last = len(forward) + len(backward) - 1
    readers = [len(forward) - 1]  # late: those who wait for it anyway are few
    used = {"name": "weft.used", "elements": len(parameters) + WORLD, "param": "float32", "readers": readers, "producers": [last]}
    tensors = [
        {"name": n, "elements": p.numel(), "param": "float32", "readers": [k], "producers": [last - k]} for k, (n, p) in enumerate(parameters)
    ]
    return {"version": 1, "lanes": [{"name": "main", "kind": "host"}], "ops": forward + backward, "tensors": [used, *tensors]}


@unittest.skipUnless(launch.WEFT, "WEFT_BINARY is not set")
class Plans(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = directory.name
        cls.job = os.path.join(cls.directory, "job.json")
        with open(cls.job, "w") as f:
            json.dump(job(mlp()), f)
        cls.want = cls.train("plain")

    @classmethod
    def train(cls, name: str, *flags: str) -> List[Any]:
        """Trains all cases; returns what rank 0 and rank 1 recorded of each."""
        results = os.path.join(cls.directory, name)
        os.mkdir(results)
        script = [sys.executable, "-W", "ignore", os.path.join(launch.HERE, "cases.py"), "weft", results, "2048", *CASES]
        (ended,) = launch.run_command([launch.WEFT, "run", "-n", str(WORLD), *flags, "--", *script], {})
        if ended.code != 0:
            raise AssertionError(f"{name}: {ended.output}")
        return [torch.load(os.path.join(results, f"{case}.{rank}.pt")) for case in CASES for rank in range(WORLD)]

    def plan(self, policy: str) -> str:
        plan = os.path.join(self.directory, f"{policy}.json")
        command = [launch.WEFT, "plan", self.job, "--policy", policy, *POLICIES[policy], "--workers", str(WORLD), "--link", "100Mbit,25us", "-o", plan]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return plan

    def same(self, got: List[Any], name: str) -> None:
        for n, (of_case, wanted) in enumerate(zip(got, self.want)):
            self.assertEqual(len(of_case), len(wanted))
            for step, (g, w) in enumerate(zip(of_case, wanted)):
                what = f"{name}: {CASES[n // WORLD]}, rank {n % WORLD}, step {step}"
                self.assertEqual(sorted(g), sorted(w), what)
                for k in w:
                    self.assertTrue(torch.equal(g[k], w[k]) or w[k].isnan().any(), f"{what}, {k}")


def _add(policy: str) -> None:
    def test(self: Plans) -> None:
        self.same(self.train(policy, "--plan", self.plan(policy)), policy)

    setattr(Plans, "test_" + policy.replace("-", "_"), test)


for policy in POLICIES:
    _add(policy)

if __name__ == "__main__":
    unittest.main()
