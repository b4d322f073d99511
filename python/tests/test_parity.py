"""Weft against DistributedDataParallel over gloo: same data, same seeds, same bits after every step."""

from __future__ import annotations

import os
import tempfile
import unittest
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence

import torch

from . import launch
from .cases import CASES, DEVICE

SMALL, LARGE = 2048, 1 << 20  # bytes a bucket: several tensors' worth, and the whole model's

# More than two workers add in an order of their own: the reference's, bit for bit, and DDP's within rounding. All cases but
# uneven hold there (test_reducer joins three); these are those that may differ from two workers in more than the order.
FEW = ["optimizer_adamw", "accumulation", "unused", "unused_set_to_zero", "frozen_in_training", "batchnorm", "types", "scaled"]


@dataclass
class Run:
    """Trainings of several ranks, and what they are compared with."""

    world: int
    cases: Sequence[str]
    like: str
    rounding: float
    ended: List[launch.Rank]


class Parity(unittest.TestCase):
    """Each test compares what all ranks recorded. At two workers one order of additions exists, so bits are compared."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        cls.runs: Dict[str, Run] = {}
        cls.record("ddp", "ddp", bucket_bytes=LARGE)
        if not launch.WEFT:
            cls.record("fake", "fake")
        cls.record("fake, one bucket", "fake", bucket_bytes=LARGE, cases=FEW)
        if DEVICE.type == "cpu":
            cls.record("fake, late", "fake", trainer="late")
            cls.record("across the barrier, late", "planned", trainer="late", cases=FEW)
        cls.record("across the barrier", "planned")
        if launch.WEFT:
            cls.record("weft, a bucket a tensor", "weft", bucket_bytes=2)
        if launch.WEFT and DEVICE.type == "cpu":
            cls.record("two hosts", "hosts", cases=FEW)
            cls.record("reference of 3", "ddp", 3, trainer="reference", cases=FEW)
            cls.record("weft, 3", "weft", 3, cases=FEW, like="reference of 3")
            cls.record("ddp of 3", "ddp", 3, cases=FEW, like="weft, 3", rounding=1e-5)
            cls.record("reference of 4", "ddp", 4, trainer="reference", cases=FEW)
            cls.record("weft, 4", "weft", 4, cases=FEW, like="reference of 4")

    @classmethod
    def record(
        cls, name: str, via: str, world: int = 2, bucket_bytes: int = SMALL, trainer: str = "", cases: Sequence[str] = tuple(CASES),
        like: str = "ddp", rounding: float = 0,
    ) -> None:  # fmt: skip
        directory = os.path.join(cls.directory.name, name)
        os.mkdir(directory)
        trainer = trainer or ("ddp" if via == "ddp" else "weft")
        ended = launch.run(via, world, "cases.py", trainer, directory, str(bucket_bytes), *cases)
        cls.runs[name] = Run(world, cases, name if trainer == "reference" else like, rounding, ended)

    def load(self, run: str, case: str, rank: int) -> List[Any]:
        path = os.path.join(self.directory.name, run, f"{case}.{rank}.pt")
        if not os.path.exists(path):
            said = "\n".join(r.output for r in self.runs[run].ended)
            self.fail(f"{run}: no result of rank {rank}; the ranks said:\n{said}")
        return torch.load(path)

    def same(self, got: List[Any], want: List[Any], what: str, rounding: float = 0) -> None:
        self.assertEqual(len(got), len(want), what)
        for step, (g, w) in enumerate(zip(got, want)):
            self.assertEqual(sorted(g), sorted(w), f"{what}, step {step}")
            for k in w:
                alike = g[k].shape == w[k].shape and torch.allclose(g[k], w[k], rtol=rounding, atol=rounding, equal_nan=True)
                if not alike:
                    self.fail(f"{what}, step {step}, {k}: got {g[k].flatten()[:4]}, want {w[k].flatten()[:4]}")

    def test_ended(self) -> None:
        for name, run in self.runs.items():
            for rank in run.ended:
                self.assertEqual(rank.code, 0, f"{name}\n{rank.output}")


def _add(case: str) -> None:
    def test(self: Parity) -> None:
        for name, run in self.runs.items():
            if case in run.cases and run.like != name:
                for rank in range(run.world):
                    want = self.load(run.like, case, rank)
                    self.same(self.load(name, case, rank), want, f"{name}, rank {rank}", run.rounding)

    test.__doc__ = CASES[case].__doc__
    setattr(Parity, f"test_{case}", test)


for name in CASES:
    _add(name)

if __name__ == "__main__":
    unittest.main()
