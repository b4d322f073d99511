"""Compiled models with graph breaks under `weft run`, with plans across the barrier, delayed, and over two links, and with one that the
training chooses: the bits of models that are not compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest

from . import launch
from .test_graph import COMPILES, Broken
from .test_plans import WORLD, job

PLANS = {
    "dear": ["--policy", "dear", "--link", "100Mbit,25us"],
    "two links": ["--policy", "p3", "--slice", "30", "--spread", "--link", "2Mbit,10us,name=a", "--link", "1Mbit,10us,name=b"],
    "delayed": ["--policy", "deft", "--max-delay", "1", "--link", "8Mbit,5us"],
    "generations": ["--policy", "deft", "--max-delay", "1", "--link", "5Mbit,5us"],
}
SCRIPT = [sys.executable, "-W", "ignore", os.path.join(launch.HERE, "compiled.py")]
SOON = {"WEFT_PILOT": "1,2,1,1,2,4"}  # as test_switching has OFTEN: all turns within 14 steps
UPDATES = {"delayed": "1 updates in 1 iterations", "generations": "1 updates in 2 iterations"}


@unittest.skipUnless(COMPILES, "torch.compile with this backend needs torch 2.6")
@unittest.skipUnless(launch.WEFT, "WEFT_BINARY is not set")
class Compiled(unittest.TestCase):
    def test_same_weights(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            of = os.path.join(directory, "job.json")
            with open(of, "w") as f:
                json.dump(job(Broken()), f)
            commands = []
            for name, flags in PLANS.items():
                plan = os.path.join(directory, name)
                subprocess.run([launch.WEFT, "plan", of, "--workers", str(WORLD), *flags, "-o", plan], check=True, stdout=subprocess.DEVNULL)
                delay = ["--max-delay", "1"] if name in UPDATES else []
                commands.append([launch.WEFT, "run", "-n", str(WORLD), "--plan", plan, *delay, "--", *SCRIPT])
            for name, ended in zip(PLANS, launch.run_commands(commands, {})):
                self.assertEqual(ended.code, 0, f"{name}: {ended.output}")
                self.assertEqual(ended.output.count("same loss_of"), 3 * WORLD, f"{name}: {ended.output}")
                self.assertIn(UPDATES.get(name, ""), ended.output, name)

    def test_chosen(self) -> None:
        """A plan of what each training measures, in turns with plain buckets."""
        command = [launch.WEFT, "run", "-n", str(WORLD), "--policy", "dear", "--", *SCRIPT, "14"]
        (ended,) = launch.run_command(command, SOON)
        self.assertEqual(ended.code, 0, ended.output)
        self.assertEqual(ended.output.count("same loss_of"), 3 * WORLD, ended.output)
        self.assertRegex(ended.output, r"weft: plan sha256:\w+, policy dear, delay 0\n(.*\n)*weft: the plan is (kept|dropped)")


if __name__ == "__main__":
    unittest.main()
