"""Trainings that change their plan while they run, under `weft run`: the weights are those of plain buckets, bit for bit."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import unittest
from typing import Sequence

from . import launch

# Warm-up, profile, settling, window, turns, rest: so few iterations that a training changes its plan several times.
OFTEN = {"WEFT_PILOT": "2,6,1,2,2,10"}


def train(policy: str, *how: str, hosts: bool = False, delay: int = 0, flags: Sequence[str] = ()) -> launch.Rank:
    """Runs switching.py on two workers of this host, or one each of two."""
    run, script = [launch.WEFT, "run", "--policy", policy, *(["--max-delay", str(delay)] if delay else []), *flags], ["--", sys.executable, "-W", "ignore", launch.os.path.join(launch.HERE, "switching.py"), *how]
    if not hosts:
        return launch.run_command([*run, "-n", "2", *script], OFTEN)[0]
    with tempfile.TemporaryDirectory() as directory:
        two = launch.hosts(directory, 2)
        env = dict(OFTEN, WEFT_SECRET_FILE=two[0]["WEFT_SECRET_FILE"])
        at = f"127.0.0.1:{two[0]['MASTER_PORT']}"
        run += ["-n", "1", "--nodes", "2", "--master", at]
        ranks = launch._wait([launch._start([*run, "--node-rank", str(n), *script], env) for n in range(2)])
        return launch.Rank(max(r.code for r in ranks), "".join(r.output for r in ranks))


@unittest.skipUnless(launch.WEFT, "needs WEFT_BINARY")
class Switching(unittest.TestCase):
    def check(self, how: str, policy: str, hosts: bool = False) -> None:
        plain, got = train("ddp", how), train(policy, how, hosts=hosts)
        want = set(re.findall(r"digest (\w+)", plain.output))
        self.assertEqual((plain.code, len(want), got.code), (0, 1, 0), plain.output + got.output)
        self.assertEqual(re.findall(r"digest (\w+)", got.output), [*want, *want], got.output)
        self.assertGreaterEqual(int(re.findall(r"switches (\d+)", got.output)[0]), 3, got.output)
        self.assertRegex(got.output, r"weft: plan sha256:\w+, policy \S+, delay 0\n(.*\n)*weft: the plan is (kept|dropped)")
        self.assertRegex(got.output, r"weft: measured: \d+\.\d ms an iteration, \d+\.\d ms of it exposed; plain buckets \d+\.\d ms")
        self.assertNotIn("weft:", plain.output)

    def test_across_the_barrier(self) -> None:
        self.check("plain", "dear")

    def test_behind_it(self) -> None:
        self.check("plain", "mg-wfbp")

    def test_hosts(self) -> None:
        self.check("plain", "p3", hosts=True)

    def test_accumulated(self) -> None:
        self.check("sums", "dear")

    def test_unused(self) -> None:
        self.check("some", "p3")

    def test_report(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            file = f"{directory}/report.json"
            got = train("dear", "plain", flags=["--report", file])
            with open(file) as f:
                report = json.load(f)
        plans = report["plans"]
        self.assertEqual({p["policy"] for p in plans}, {"ddp", "dear"}, got.output)
        for p in plans:
            self.assertTrue(0 <= p["exposed_us"] < p["time_us"] and p["iterations"] > 0, p)
        self.assertTrue(any(p["predicted_us"] for p in plans), plans)
        self.assertRegex(report["notes"][-1], "^measured: ")
        self.assertEqual([n for n in report["notes"] if f"weft: {n}\n" not in got.output], [])

    def test_asked(self) -> None:
        """SIGUSR1 has a training tell and report, as its end does, and it goes on."""
        with tempfile.TemporaryDirectory() as directory:
            file = f"{directory}/report.json"
            script = launch.os.path.join(launch.HERE, "asks.py")
            got = launch.run_command([launch.WEFT, "run", "-n", "2", "--report", file, "--", sys.executable, "-W", "ignore", script, file], {})[0]
            with open(file) as f:
                plans = json.load(f)["plans"]
        told = r"weft: measured: plain buckets [\d.]+ ms an iteration, [\d.]+ ms of it exposed\n"
        self.assertEqual((got.code, len(re.findall(told, got.output))), (0, 2), got.output)
        self.assertRegex(got.output, told + r"(.*\n)*\[0\] asked, and still training\n(.*\n)*weft: plain buckets: the training ended before iteration 25")
        self.assertEqual([p["policy"] for p in plans], ["ddp"], plans)

    def test_join(self) -> None:
        self.check("join", "dear")

    def test_speeds(self) -> None:
        self.check("slow", "dear")

    def test_delayed(self) -> None:
        """Plain buckets and a plan that delays updates take turns; weights are those of all ranks, not those of plain buckets."""
        judged = r"weft: convergence: the loss expected after 1 updates in 1 iterations is 1\.0000 times that of an update in each, from [\d.]+\n"
        for how, told in (("plain", r"weft: plan sha256:.*, policy deft, delay 1\n(.*\n)*" + judged), ("parts", "weft: what delay costs in convergence is not judged: some rank's loss is not known"), ("join", "no updates are delayed from now on"), ("reads", "weft: no updates are delayed, whatever")):
            with self.subTest(how):
                got = train("deft", how, delay=1)
                digests = re.findall(r"digest (\w+)", got.output)
                self.assertEqual((got.code, len(digests), len(set(digests))), (0, 2, 1), got.output)
                self.assertRegex(got.output, told)
                self.assertEqual("delays updates: delay 1" in got.output, how != "reads", got.output)

    def test_lost_in_switch(self) -> None:
        """Before the first review, and between the answer and the hello of a switch into a plan and of one out of it."""
        for number, when in ((1, "before"), (1, "after"), (2, "after")):
            with self.subTest(number=number, when=when):
                got = train("dear", "dies", str(number), when)
                self.assertNotEqual(got.code, 0, got.output)
                self.assertIn("weft: rank 1 is lost: signal: killed", got.output)
                died = [float(t) for t in re.findall(r"dies at (\S+)", got.output)]
                told = [float(t) for t in re.findall(r"told at (\S+)", got.output)]
                self.assertEqual((len(died), len(told)), (1, 1), got.output)
                self.assertLess(told[0] - died[0], 10)
