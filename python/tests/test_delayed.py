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

# By link: a delay of 1; a delay of 1 and generations of 3 iterations.
LINKS = {"100Mbit,25us": 1, "20Mbit,10us": 3}


def made(directory: str, link: str) -> str:
    """The file of a plan for a link."""
    path, plan = (os.path.join(directory, n) for n in ("job.json", "plan.json"))
    with open(path, "w") as f:
        json.dump(job(Model()), f)
    command = [launch.WEFT, "plan", path, "--policy", "deft", "--max-delay", "1", "--workers", str(WORLD), "--link", link, "-o", plan]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return plan


@unittest.skipUnless(launch.WEFT, "WEFT_BINARY is not set")
class Delayed(unittest.TestCase):
    def test_oracle(self) -> None:
        for link, length in LINKS.items():
            with self.subTest(link), tempfile.TemporaryDirectory() as directory:
                plan, out = made(directory, link), os.path.join(directory, "out")
                with open(plan) as f:
                    self.assertEqual(json.load(f)["generations"][0]["length"], length)
                script = [sys.executable, os.path.join(launch.HERE, "delayed.py"), plan, out]
                (ended,) = launch.run_command([launch.WEFT, "run", "-n", str(WORLD), "--plan", plan, "--max-delay", "1", "--", *script], {})
                self.assertEqual(ended.code, 0, ended.output)
                self.assertIn("delays updates: delay 1", ended.output)
                for rank in range(WORLD):
                    self.assertTrue(os.path.exists(f"{out}.{rank}"), ended.output)

    def test_lost_in_flush(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            plan = made(directory, "20Mbit,10us")
            script = [sys.executable, os.path.join(launch.HERE, "delayed.py"), plan, "flush"]
            (ended,) = launch.run_command([launch.WEFT, "run", "-n", str(WORLD), "--plan", plan, "--max-delay", "1", "--", *script], {})
            self.assertNotEqual(ended.code, 0, ended.output)
            self.assertIn("rank 1 is lost: signal: killed", ended.output)
            (died,), (told,) = (re.findall(rf"{what} at (\S+)", ended.output) for what in ("dies", "told"))
            self.assertLess(float(told) - float(died), 10, ended.output)


if __name__ == "__main__":
    unittest.main()
