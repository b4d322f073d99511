"""Collectives outside the plan. The agent for tests takes 4096 bytes at a time, so that larger tensors come in parts."""

from __future__ import annotations

import unittest

import torch

from weft._client import WeftError
from weft._memory import DTYPES

from .ranks import ranks


class Calls(unittest.TestCase):
    def equal(self, got, want) -> None:
        if isinstance(got, Exception):
            raise got
        self.assertTrue(torch.equal(got, want), f"got {got}, want {want}")

    def test_all_reduce(self) -> None:
        """Ranks 0, 1, 2 give x, 2x, 3x with x >= 0: sum 6x, mean 2x, min x, max 3x."""
        for name, dtype in DTYPES.items():
            x = (torch.arange(3000) % 40).to(dtype)
            for op, times in {"sum": 6, "mean": 2, "min": 1, "max": 3}.items():
                if op == "mean" and not dtype.is_floating_point:
                    continue

                def work(session):
                    t = x * (session.client.rank + 1)
                    session.calls().all_reduce(t, op)
                    return t

                with self.subTest(dtype=name, op=op):
                    for got in ranks(3, work):
                        self.equal(got, x * times)

    def test_shapes(self) -> None:
        """A scalar, nothing, a transposed matrix, a part of one, a parameter."""
        x = torch.arange(2400.0).view(40, 60)
        for name, make in {
            "scalar": lambda: torch.tensor(3.0),
            "empty": lambda: torch.empty(0, 4),
            "transposed": lambda: x.clone().t(),
            "part": lambda: x.clone()[:, 3:50:2],
            "parameter": lambda: torch.nn.Parameter(x.clone()),
        }.items():

            def work(session):
                t, b = make(), make()
                b.data *= session.client.rank
                session.calls().all_reduce(t, "sum")
                session.calls().broadcast([b, t], 1)
                session.calls().barrier()
                return t.detach(), b.detach()

            with self.subTest(name):
                for got in ranks(2, work):
                    if isinstance(got, Exception):
                        raise got
                    self.equal(got[0], make().detach() * 2)
                    self.equal(got[1], make().detach())

    def test_broadcast_any_type(self) -> None:
        def tensors(k):
            small = [torch.tensor(k > 0), torch.full((7,), k, dtype=torch.uint8), torch.full((3,), k)]
            return [*small, torch.full((900,), k * 1j)]

        def work(session):
            mine = tensors(session.client.rank)
            session.calls().broadcast(mine, 2)
            return mine

        for got in ranks(3, work):
            for g, w in zip(got, tensors(2)):
                self.equal(g, w)

    def test_refused(self) -> None:
        def work(session):
            with self.assertRaisesRegex(TypeError, "torch.uint8"):
                session.calls().all_reduce(torch.zeros(3, dtype=torch.uint8), "sum")
            with self.assertRaisesRegex(ValueError, "product"):
                session.calls().all_reduce(torch.zeros(3), "product")

        self.assertEqual(ranks(2, work), [None, None])

    def test_calls_differ(self) -> None:
        def work(session):
            session.calls().all_reduce(torch.zeros(3 + session.client.rank), "sum")

        for e in ranks(2, work):
            self.assertIsInstance(e, WeftError)
            self.assertRegex(str(e), "rank 1")


if __name__ == "__main__":
    unittest.main()
