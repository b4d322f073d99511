"""Trainings that change their plan while they run, under `weft run --policy`."""

from __future__ import annotations

import re
import unittest

from . import launch


@unittest.skipUnless(launch.WEFT, "needs WEFT_BINARY")
class Switching(unittest.TestCase):
    def train(self, policy: str, *how: str) -> launch.Rank:
        options = ["--policy", policy] if policy else []
        command = [launch.WEFT, "run", "-n", "2", *options, "--", launch.sys.executable, launch.os.path.join(launch.HERE, "switching.py")]
        return launch.run_command([*command, *how], {})[0]

    def test_same_bits(self) -> None:
        """Whatever the plan, however often it changes, and however much ranks differ in speed."""
        plain = self.train("")
        want = set(re.findall(r"weights (\w+)", plain.output))
        self.assertEqual((plain.code, len(want)), (0, 1), plain.output)
        for policy, how in (("dear", []), ("wfbp", ["slow"])):
            got = self.train(policy, *how)
            self.assertEqual(got.code, 0, got.output)
            # Plans that the simulator finds no faster are not tried, and what it finds is the machine's business.
            self.assertRegex(got.output, r"weft: (the plan is (kept|dropped)|plain buckets): ")
            self.assertEqual(re.findall(r"weights (\w+)", got.output), [*want, *want], got.output)

    def test_lost_in_switch(self) -> None:
        for policy in ("dear", "wfbp"):
            got = self.train(policy, "dies")
            if "both are tried" in got.output:
                self.assertNotEqual(got.code, 0, got.output)
                self.assertIn("weft: rank 1 is lost", got.output)
                return
            self.assertEqual(got.code, 0, got.output)
