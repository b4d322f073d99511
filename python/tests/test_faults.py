"""What may happen to a training on its way, under plans that a training chooses and under plans that it is given: the weights
are those of plain buckets, bit for bit, or all ranks end with an error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from typing import Dict, List, Tuple

import torch

from . import faults, launch
from .test_plans import job
from .test_switching import OFTEN

# What goes on, exactly, whatever the plan.
EXACT = [
    "shapes", "order_of_iterations", "order_of_ranks", "frozen", "frozen_on_one_rank", "thawed", "removed", "replaced_without_parameters",
    "another_optimizer", "two_optimizers", "lbfgs", "whole", "clipped",
]  # fmt: skip
if hasattr(torch.optim.Optimizer, "register_step_post_hook"):
    EXACT.append("hooks_late")
# What goes on after another wrap. A given plan is for the first model alone.
WRAPPED = ["added_and_wrapped", "thawed_and_wrapped"]
REFUSED = {
    "added": "parameter extra.weight was added since weft.wrap",
    "added_parameter": "parameter a.scale was added since weft.wrap",
    "added_to_the_optimizer": "parameter 0 (shape (1,)) of the optimizer's group 1 is not one of the model's",
    "replaced": "parameter head.weight was replaced",
    "thawed_late": "parameter a.weight requires a gradient now, and did not since weft.wrap",
}
OTHER = "the plan is for another model: it moves 9 tensors, and the training has 7; make it"  # for thawed_late


def run(flags: List[str], *what: str) -> Tuple[launch.Rank, List[Dict[str, str]]]:
    """Runs faults.py on two workers; returns by rank what each WHAT printed: "digest ..." or "refused ..."."""
    script = [sys.executable, "-W", "ignore", os.path.join(launch.HERE, "faults.py"), *what]
    ended = launch.run_command([launch.WEFT, "run", "-n", "2", *flags, "--", *script], OFTEN)[0]
    said: List[Dict[str, str]] = [{}, {}]
    now = ["", ""]
    for rank, kind, text in re.findall(r"^\[(\d)\] (what|digest|refused) (.*)$", ended.output, re.M):
        if kind == "what":
            now[int(rank)] = text
        else:
            said[int(rank)][now[int(rank)]] = f"{kind} {text}"
    return ended, said


@unittest.skipUnless(launch.WEFT, "needs WEFT_BINARY")
class Faults(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls) -> None:
        _, (cls.want, other) = run(["--policy", "ddp"], *EXACT, *WRAPPED)
        for what in [*EXACT, *WRAPPED]:
            assert cls.want[what].startswith("digest") and other == cls.want, f"{what}: {cls.want} {other}"

    def check(self, flags: List[str], exact: List[str], code: int, refused: Dict[str, str]) -> None:
        ended, said = run(flags, *exact, *refused)
        self.assertEqual(ended.code, code, ended.output)
        for of in said:
            self.assertEqual({what: of.get(what) for what in exact}, {what: self.want[what] for what in exact}, ended.output)
            for what, why in refused.items():
                self.assertTrue(of[what].startswith("refused ") and why in of[what], f"{what}: {of[what]}")

    def test_chosen(self) -> None:
        self.check(["--policy", "dear"], [*EXACT, *WRAPPED], 0, REFUSED)

    def test_given(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            of, plan = os.path.join(directory, "job.json"), os.path.join(directory, "plan.json")
            with open(of, "w") as f:
                json.dump(job(faults._Model()), f)
            command = [launch.WEFT, "plan", of, "--policy", "p3", "--slice", "20", "--workers", "2", "--link", "100Mbit,25us", "-o", plan]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            self.check(["--plan", plan], EXACT, 3, dict(REFUSED, thawed_late=OTHER))


if __name__ == "__main__":
    unittest.main()
