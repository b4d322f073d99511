"""Plans that send over link c10d: half of what is reduced goes through torch.distributed, the rest through the agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from types import SimpleNamespace
from typing import Any, List

import torch
import torch.distributed as dist
from weft._c10d import verify
from weft._client import WeftError

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

    def run_all(self, *commands: List[str], **env: str) -> List[launch.Rank]:
        """Runs weft run (or profile) at once: each command is flags, -- and what is to run."""
        return launch.run_commands([[launch.WEFT, command, "-n", str(WORLD), *flags] for command, *flags in commands], env)

    def script(self, name: str, *args: str) -> List[str]:
        """What runs through.py with a directory of that name."""
        results = os.path.join(self.directory, name)
        os.mkdir(results)
        return ["--", sys.executable, "-W", "ignore", os.path.join(launch.HERE, "through.py"), results, *args]

    def test_same_weights(self) -> None:
        plans = {"barrier": self.plan("wfbp"), "slices": self.plan("p3", "--slice", "200", swap=True)}
        planned = [["run", "--plan", plan, *self.script(name)] for name, plan in plans.items()]
        out, cluster = (os.path.join(self.directory, name) for name in ("profiled.json", "cluster.yaml"))
        profiled = ["profile", "-o", out, "--cluster", cluster, *self.script("plain")]  # runs plain buckets
        plain, *ended = self.run_all(profiled, *planned, WEFT_PROFILE_ITERATIONS="2")
        self.assertEqual(plain.code, 0, plain.output)
        self.assertRegex(" ".join(plain.output.split()), "link c10d, torch.distributed: .* Gbit/s and .* us a step, .* link net")
        with open(cluster) as f:
            self.assertRegex(f.read(), r'name: "net"[^#]*name: "c10d"\n    bandwidth: [1-9]')
        for name, e in zip(plans, ended):
            self.assertEqual(e.code, 0, e.output)
            self.assertIn("weights are those of other plans within rounding", e.output)
            mine, other, want = (torch.load(os.path.join(self.directory, *path)) for path in ((name, "0.pt"), (name, "1.pt"), ("plain", "0.pt")))
            for step, (m, o, w) in enumerate(zip(mine, other, want)):
                for k in range(len(w)):
                    self.assertTrue(torch.equal(m[k], o[k]), f"{name}, step {step}: ranks differ in parameter {k}")
                    self.assertTrue(torch.allclose(m[k], w[k], rtol=1e-6, atol=1e-6), f"{name}, step {step}, parameter {k}")

    def test_lost(self) -> None:
        plan = self.plan("p3", "--slice", "100")
        messages = {
            "kill": r"rank 1 is lost: .*signal: killed.*while reducing tensor .* of iteration 6",
            "error": r"rank 1: torch.distributed cannot reduce bucket \d+ of iteration 6: no such luck",
            "stop": r"rank 1 is too slow, while .* of iteration 6|all-reduce on link c10d takes too long, while reducing tensor .* of iteration 6",
        }
        timeouts = {"stop": "5s"}  # of the others, nobody has to wait for one
        ended = self.run_all(
            *(["run", "--timeout", timeouts.get(how, "30m"), "--plan", plan, *self.script(how, "8", how)] for how in messages)
        )
        for e, (how, message) in zip(ended, messages.items()):
            self.assertNotEqual(e.code, 0, how)
            self.assertRegex(e.output, message, how)
            # On an idle machine 3 seconds; what is stopped is killed 8 seconds after the others were told.
            self.assertLess(time.time() - os.path.getmtime(os.path.join(self.directory, how, "dying")), 60, how)

    def test_closed(self) -> None:
        """gloo's threads may hold what was reduced last for longer than the reduction takes: the end waits for them, and they not for it."""
        for rank in launch.run("ddp", WORLD, "closed.py", "50"):
            self.assertEqual(rank.code, 0, rank.output)

    def test_refused(self) -> None:
        model = "from tests.cases import *; import torch.distributed as dist, weft.torch as weft; m = mlp(); o = torch.optim.SGD(m.parameters(), 1); "
        refused = {
            "weft.init(); weft.wrap(m, o)": r'wrap\(model, optimizer, c10d="gloo"\)',
            "weft.init(); weft.wrap(m, o, c10d='gloo')": "needs torch.distributed.init_process_group before it",
            "dist.init_process_group('gloo'); weft.init(); weft.wrap(m, o, c10d='gloo' if RANK else None)": "c10d is none on rank 0, gloo on rank 1",
        }
        plan = self.plan("wfbp")
        ended = self.run_all(*(["run", "--plan", plan, "--", sys.executable, "-W", "ignore", "-c", model + script] for script in refused))
        for e, (script, message) in zip(ended, refused.items()):
            self.assertNotEqual(e.code, 0, script)
            self.assertRegex(e.output, message, script)

    def test_verified(self) -> None:
        client: Any = SimpleNamespace(rank=1, world=2)
        with self.assertRaisesRegex(ValueError, "c10d is 'nccl'; there is gloo"):
            verify("nccl", client)
        with tempfile.TemporaryDirectory() as directory:
            dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=0, world_size=1)
            try:
                with self.assertRaisesRegex(WeftError, "rank 1 of 2 is rank 0 of 1 to torch.distributed"):
                    verify("gloo", client)
                verify("gloo", SimpleNamespace(rank=0, world=1))  # type: ignore[arg-type]
            finally:
                dist.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
