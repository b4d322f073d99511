"""Hosts that two networks of different rates join, in a lab: plans over both give the weights of plain buckets over one, bit for bit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from typing import Any, List, Tuple

from . import launch
from .test_plans import job

STEPS, FEW = 11, {"WEFT_PROFILE_ITERATIONS": "4"}
# Warm-up, profile, settling, window, turns, rest: a choice is made within 20 steps.
OFTEN = {"WEFT_PILOT": "1,4,1,1,2,9"}
# How much of the bytes goes over the second rail at least, by what became of the plan: it runs in 12 of those 20 steps, or in the
# 4 of its turns, where plain buckets, which use the first alone, are no slower on the machine that day. Of 1/3, as in a plan.
ENOUGH = {"kept": 0.1, "dropped": 0.03}
LINKS = ["--link", "200Mbit,50us,name=net", "--link", "100Mbit,50us,name=rail1"]


def lab(hosts: int, rates: str = "200Mbit,100Mbit") -> List[str]:
    return [launch.WEFT, "lab", "--hosts", str(hosts), "--rails", "2", "--rate", rates, "--"]


def made() -> str:
    """Why no lab can be made here; in CI, that is an error."""
    if not launch.WEFT:
        return "WEFT_BINARY is not set"
    ended = subprocess.run([*lab(1), "true"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode and os.environ.get("WEFT_TEST_LAB"):
        raise AssertionError(ended.stdout)
    return ended.stdout if ended.returncode else ""


class Rails(unittest.TestCase):
    directory: str

    @classmethod
    def setUpClass(cls) -> None:
        why = made()
        if why:
            raise unittest.SkipTest(why)
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = directory.name
        sys.path.append(launch.HERE)  # as it is for the script
        try:
            import rails  # type: ignore[import-not-found]
        finally:
            sys.path.remove(launch.HERE)
        with open(cls.file("job.json"), "w") as f:
            json.dump(job(rails.Model()), f)

    @classmethod
    def file(cls, name: str) -> str:
        return os.path.join(cls.directory, name)

    def start(self, where: List[str], command: List[str], *script: str, env: Any = {}) -> launch.Rank:
        python = [sys.executable, "-W", "ignore", os.path.join(launch.HERE, "rails.py"), *script]
        return launch.run_command([*where, launch.WEFT, *command, "--", *python], env)[0]

    def train(self, hosts: int, command: List[str], *script: str, env: Any = {}, rates: str = "200Mbit,100Mbit") -> Tuple[str, float, str]:
        """The digest of all ranks, how much of the bytes went over the second rail, and the output."""
        ended = self.start(lab(hosts, rates), command, *(script or [str(STEPS)]), env=env)
        found = re.findall(r"digest (\w+) sent (\d+) (\d+)", ended.output)
        self.assertEqual((ended.code, [d for d, _, _ in found]), (0, hosts * [(found or [[""]])[0][0]]), ended.output)
        first, second = (sum(int(x[rail]) for x in found) for rail in (1, 2))
        return found[0][0], second / (first + second), ended.output

    def plain(self, hosts: int, steps: int = STEPS) -> str:
        """The digest of plain buckets, which go over the first rail, while both are measured."""
        digest, _, output = self.train(hosts, ["profile", "-o", self.file("profiled.json"), "--cluster", self.file("cluster.yaml")], str(steps), env=FEW)
        with open(self.file("cluster.yaml")) as f:
            self.assertEqual(re.findall(r'name: "?(\w+)"?', f.read()), ["net", "rail1"], output)
        return digest

    def test_exact(self) -> None:
        want = self.plain(2)
        for policy in ("dear", "p3", "caramel"):
            with self.subTest(policy):
                run = ["run", "--policy", policy, "--spread", "--job", self.file("job.json"), *LINKS]
                digest, second, output = self.train(2, run)
                self.assertEqual(digest, want, output)
                self.assertTrue(0.2 < second < 0.45, second)  # of 1/3

    def test_cut(self) -> None:
        """An interface that goes down in mid-run: both ranks are told soon which rail, rank and tensor it is about."""
        ended = self.start(lab(2), ["run", "--policy", "dear", "--spread", "--job", self.file("job.json"), *LINKS], "1000", "cut")
        self.assertNotEqual(ended.code, 0, ended.output)
        (at,), told = re.findall(r"cut at (\S+)", ended.output), re.findall(r"told at (\S+) (.*)", ended.output)
        self.assertEqual(len(told), 2, ended.output)
        for when, message in told:
            self.assertLess(float(when) - float(at), 10, ended.output)
            self.assertRegex(message, r"rank [01] is lost: on rail rail1: .*tensor \S+ ")

    def test_chosen(self) -> None:
        """By a training that measures both rails itself; between three hosts, of which none adds in the order of the others."""
        want = self.plain(3, 20)
        digest, second, output = self.train(3, ["run", "--policy", "dear", "--spread"], "20", env=OFTEN)
        self.assertEqual(digest, want, output)
        (verdict,) = re.findall(r"weft: plan sha256:\w+, policy dear, delay 0\n(?:.*\n)*.*weft: the plan is (kept|dropped)", output)
        self.assertGreater(second, ENOUGH[verdict], output)

    def test_best(self) -> None:
        """The best plan of all policies, which a training chooses by itself: on lines as slow as these one over both."""
        want = self.plain(2, 20)
        digest, second, output = self.train(2, ["run"], "20", env=OFTEN, rates="40Mbit,20Mbit")
        self.assertEqual(digest, want, output)
        told = r"weft: plan sha256:\w+, policy auto, delay 0\n.*weft: the best of \d+ plans is that of .* over 2 links: (?:.*\n)*.*weft: the plan is (kept|dropped)"
        (verdict,) = re.findall(told, output)
        self.assertGreater(second, ENOUGH[verdict], output)

    def test_delayed(self) -> None:
        plan = self.file("plan.json")
        command = [launch.WEFT, "plan", self.file("job.json"), "--policy", "deft", "--max-delay", "1", "--workers", "2", *LINKS, "-o", plan]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        _, second, output = self.train(2, ["run", "--plan", plan, "--max-delay", "1"], str(STEPS), plan)
        self.assertIn("delays updates: delay 1", output)
        self.assertGreater(second, 0.15)


if __name__ == "__main__":
    unittest.main()
