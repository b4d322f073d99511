"""Plans that send over link c10d: half of what is reduced goes through torch.distributed, the rest through the agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any, List

import torch

from . import launch
from .cases import mlp
from .test_plans import WORLD, job


@unittest.skipUnless(launch.WEFT, "WEFT_BINARY is not set")
class C10D(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = directory.name
        cls.job = os.path.join(cls.directory, "job.json")
        with open(cls.job, "w") as f:
            json.dump(job(mlp()), f)

    def plan(self, policy: str, *flags: str, swap: bool = False) -> str:
        """A policy's plan, of which every second transfer goes over link c10d. With swap it goes over the other link in
        every second generation."""
        path = os.path.join(self.directory, policy + "".join(flags))
        links = [f"--link={rate}Mbit,25us,name={name}" for rate, name in ((100, "net"), (50, "c10d"))]
        command = [launch.WEFT, "plan", self.job, "--policy", policy, *flags, "--workers", str(WORLD), *links, "-o", path]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(path) as f:
            plan = json.load(f)
        net, c10d = plan["programs"]
        transfers, net["transfers"] = net["transfers"], []
        for n, t in enumerate(transfers):
            (net, c10d)[n % 2]["transfers"].append(t)
        if swap:
            plan["period"] = 2
            plan["generations"].append({"first": 1, "length": 1})
            plan["updates"] += [dict(u, generation=1, iteration=1) for u in plan["updates"]]
            again = [[dict(t, generation=1) for t in p["transfers"]] for p in plan["programs"]]
            net["transfers"] += again[1]
            c10d["transfers"] += again[0]
        with open(path, "w") as f:
            json.dump(plan, f)
        return path

    def train(self, name: str, *flags: str, then: List[str] = [], env: Any = {}) -> launch.Rank:
        results = os.path.join(self.directory, name)
        os.mkdir(results)
        script = [sys.executable, "-W", "ignore", os.path.join(launch.HERE, "through.py"), results, *then]
        port = {"MASTER_PORT": launch.free_port()}
        (ended,) = launch.run_command([launch.WEFT, "run", "-n", str(WORLD), *flags, "--", *script], dict(env, **port))
        return ended

    def weights(self, name: str, *flags: str) -> List[Any]:
        ended = self.train(name, *flags)
        self.assertEqual(ended.code, 0, ended.output)
        self.output = ended.output
        return [torch.load(os.path.join(self.directory, name, f"{rank}.pt")) for rank in range(WORLD)]

    def test_same_weights(self) -> None:
        plain = self.weights("plain", "--policy", "ddp")
        for policy, flags, swap in (("wfbp", [], False), ("p3", ["--slice", "400"], False), ("p3", ["--slice", "100"], True)):
            what = policy + "".join(flags)
            got = self.weights(what + ".weights", "--plan", self.plan(policy, *flags, swap=swap))
            self.assertIn("weights are those of other plans within rounding", self.output)
            for step, (mine, other, want) in enumerate(zip(*got, plain[0])):
                for k, w in enumerate(want):
                    self.assertTrue(torch.equal(mine[k], other[k]), f"{what}, step {step}: ranks differ in parameter {k}")
                    self.assertTrue(torch.allclose(mine[k], w, rtol=1e-6, atol=1e-6), f"{what}, step {step}, parameter {k}")


if __name__ == "__main__":
    unittest.main()
