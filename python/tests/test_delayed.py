"""Plans that delay updates, under `weft run --plan`: the bits of one process that replays the plan's generations."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

from . import launch
from .delayed import WORLD, Model
from .test_plans import job

# Links, largest delays, and the lengths of the plan's generations, whose delay is the largest.
PLANS = [
    ("100Mbit,25us", 1, [1]),
    ("20Mbit,10us", 1, [3]),
    ("15Mbit,10us", 2, [2]),
    ("20Mbit,10us", 2, [2, 1]),
]


def made(directory: str, *links: str, delay: int = 1) -> str:
    """The file of a plan for these links."""
    path, plan = (os.path.join(directory, n) for n in ("job.json", "plan.json"))
    with open(path, "w") as f:
        json.dump(job(Model()), f)
    command = [launch.WEFT, "plan", path, "--policy", "deft", "--max-delay", str(delay), "--workers", str(WORLD), *(f"--link={link}" for link in links), "-o", plan]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return plan


@unittest.skipUnless(launch.WEFT, "WEFT_BINARY is not set")
class Delayed(unittest.TestCase):
    def test_oracle(self) -> None:
        for link, delay, lengths in PLANS:
            with self.subTest(link, delay=delay), tempfile.TemporaryDirectory() as directory:
                plan, out = made(directory, link, delay=delay), os.path.join(directory, "out")
                with open(plan) as f:
                    self.assertEqual([g["length"] for g in json.load(f)["generations"]], lengths)
                script = [sys.executable, os.path.join(launch.HERE, "delayed.py"), plan, out]
                (ended,) = launch.run_command([launch.WEFT, "run", "-n", str(WORLD), "--plan", plan, "--max-delay", str(delay), "--", *script], {})
                self.assertEqual(ended.code, 0, ended.output)
                self.assertIn(f"delays updates: delay {delay}", ended.output)
                self.assertIn("no updates are delayed from now on: two backward passes before step()", ended.output)
                for rank in range(WORLD):
                    self.assertTrue(os.path.exists(f"{out}.{rank}"), ended.output)

    def test_through_torch_distributed(self) -> None:
        """Half of what is sent goes over link c10d: of two workers the bits are the same. state_dict() says what to do."""
        with tempfile.TemporaryDirectory() as directory:
            plan, out = made(directory, "20Mbit,10us,name=net", "20Mbit,10us,name=c10d"), os.path.join(directory, "out")
            with open(plan) as f:
                given = json.load(f)
            self.assertTrue(all(p["transfers"] for p in given["programs"]), given["programs"])
            script = [sys.executable, "-W", "ignore", os.path.join(launch.HERE, "delayed.py"), plan, out]
            (ended,) = launch.run_commands([[launch.WEFT, "run", "-n", str(WORLD), "--plan", plan, "--max-delay", "1", "--", *script]], {})
            self.assertEqual(ended.code, 0, ended.output)
            self.assertIn("delays updates: delay 1", ended.output)
            for rank in range(WORLD):
                self.assertTrue(os.path.exists(f"{out}.{rank}"), ended.output)

    def test_resume(self) -> None:
        for link, delay, _ in PLANS[1::2]:
            with self.subTest(link, delay=delay), tempfile.TemporaryDirectory() as directory:
                plan, out = made(directory, link, delay=delay), os.path.join(directory, "out")
                for what, said in (("save", "save"), ("resume", "resumed"), ("other", "this plan is not that of the checkpoint")):
                    how = ["--policy", "ddp"] if what == "other" else ["--plan", plan, "--max-delay", str(delay)]
                    script = [sys.executable, "-W", "ignore", os.path.join(launch.HERE, "delayed.py"), plan, what, out]
                    (ended,) = launch.run_command([launch.WEFT, "run", "-n", str(WORLD), *how, "--", *script], {})
                    self.assertEqual(ended.code, 0, ended.output)
                    self.assertIn(said, ended.output)

    def test_lost(self) -> None:
        for when in ("flush", "killed"):
            with self.subTest(when), tempfile.TemporaryDirectory() as directory:
                plan = made(directory, "20Mbit,10us")
                script = [sys.executable, os.path.join(launch.HERE, "delayed.py"), plan, when]
                (ended,) = launch.run_command([launch.WEFT, "run", "-n", str(WORLD), "--plan", plan, "--max-delay", "1", "--", *script], {})
                self.assertNotEqual(ended.code, 0, ended.output)
                self.assertIn("rank 1 is lost: signal: killed", ended.output)
                (died,), (told,) = (re.findall(rf"{what} at (\S+)", ended.output) for what in ("dies", "told"))
                self.assertLess(float(told) - float(died), 10, ended.output)


if __name__ == "__main__":
    unittest.main()
