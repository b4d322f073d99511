"""Weft against DistributedDataParallel over gloo: same data, same seeds, same bits after every step."""

from __future__ import annotations

import os
import tempfile
import unittest
from typing import Any, List

import torch

from . import launch
from .cases import CASES, DEVICE

SMALL, LARGE = 2048, 1 << 20  # bytes a bucket: several tensors' worth, and the whole model's


class Parity(unittest.TestCase):
    """Each test compares what all ranks recorded. At two workers one order of additions exists, so bits are compared."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        cls.runs = {}
        cls.record("ddp", "ddp", 2, LARGE)
        cls.record("fake", "fake", 2, SMALL)
        cls.record("fake, one bucket", "fake", 2, LARGE)
        if DEVICE.type == "cpu":
            cls.record("fake, late", "fake", 2, SMALL, "late")
        if launch.WEFT:
            cls.record("weft", "weft", 2, SMALL)

    @classmethod
    def record(cls, name: str, via: str, world: int, bucket_bytes: int, trainer: str = "") -> None:
        directory = os.path.join(cls.directory.name, name)
        os.mkdir(directory)
        trainer = trainer or ("ddp" if via == "ddp" else "weft")
        cls.runs[name] = launch.run(via, world, "cases.py", trainer, directory, str(bucket_bytes))

    def load(self, run: str, case: str, rank: int) -> List[Any]:
        path = os.path.join(self.directory.name, run, f"{case}.{rank}.pt")
        if not os.path.exists(path):
            self.fail(f"{run}: no result of rank {rank}; the ranks said:\n" + "\n".join(r.output for r in self.runs[run]))
        return torch.load(path)

    def same(self, got: List[Any], want: List[Any], what: str) -> None:
        self.assertEqual(len(got), len(want), what)
        for step, (g, w) in enumerate(zip(got, want)):
            self.assertEqual(sorted(g), sorted(w), f"{what}, step {step}")
            for k in w:
                if not torch.equal(torch.nan_to_num(g[k]), torch.nan_to_num(w[k])):
                    self.fail(f"{what}, step {step}, {k}: got {g[k].flatten()[:4]}, want {w[k].flatten()[:4]}")

    def test_ended(self) -> None:
        for name, ranks in self.runs.items():
            self.assertEqual([r.code for r in ranks], [0] * len(ranks), name + "\n" + "\n".join(r.output for r in ranks))


def _add(case: str) -> None:
    def test(self: Parity) -> None:
        for run in self.runs:
            if run != "ddp":
                for rank in range(2):
                    self.same(self.load(run, case, rank), self.load("ddp", case, rank), f"{run}, rank {rank}")

    test.__doc__ = CASES[case].__doc__
    setattr(Parity, f"test_{case}", test)


for name in CASES:
    _add(name)

if __name__ == "__main__":
    unittest.main()
