"""Where averages lie, from their arrival until somebody needs them."""

from __future__ import annotations

import mmap
import unittest
from typing import Any, List, Tuple

import torch
from weft._buckets import Buckets
from weft._client import Bucket, Layout, Slice, Update
from weft._device import Device
from weft._memory import view
from weft._profile import Watch

ELEMENTS = 4
BYTES = 4 * ELEMENTS


class Doubling:
    """An agent whose all-reduce is at once, and doubles."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._done: List[Tuple[int, int]] = []

    def ready(self, bucket: int, iteration: int) -> None:
        at = self._layout.copy(self._layout.generation(iteration))
        for s in self._layout.buckets[bucket].slices:
            source, to = (view(r, torch.float32, s.place + at, [s.length]) for r in (self._layout.input, self._layout.output))
            to.copy_(source * 2)
        self._done.append((bucket, iteration))

    def has_reduced(self) -> bool:
        return bool(self._done)

    def reduced(self) -> Tuple[int, int]:
        return self._done.pop(0)

    def in_input(self, bucket: int, iteration: int) -> bool:
        return False


class Lending(unittest.TestCase):
    """Two tensors, one a bucket; the first may be lent, the second not."""

    def setUp(self) -> None:
        tensors = [[Slice(0, 0, ELEMENTS, 0)], [Slice(1, 0, ELEMENTS, BYTES)]]
        buckets = [Bucket([k], slices, [0]) for k, slices in enumerate(tensors)]
        layout = Layout(
            digest="", input=mmap.mmap(-1, 4096), output=mmap.mmap(-1, 4096), offsets=[0, BYTES], buckets=buckets, call_offset=2048,
            call_bytes=1024, policy="dear", period=1, ends=[0], updates=[Update(0, "read", 0, [0, 1])], buffers=1, buffer_bytes=0,
        )  # fmt: skip
        client: Any = Doubling(layout)
        self.buckets = Buckets(client, Watch(client), layout, Device(), [(torch.float32, [2, 2])] * 2)
        self.output = view(layout.output, torch.float32, 0, [2, 2])

    def reduce(self, value: float) -> List[torch.Tensor]:
        """An iteration in which both gradients have a value; returns the targets of their averages, which have come."""
        for tensor in range(2):
            self.buckets.put(tensor, torch.full([2, 2], value))
        targets = [torch.zeros(2, 2), torch.zeros(2, 2)]
        self.buckets.expect(targets, lent={0})
        while not self.buckets.all_come():
            self.buckets.receive()
        return targets

    def test_borrowed(self) -> None:
        targets = self.reduce(3)
        self.assertEqual([t.sum() for t in targets], [0, 24], "which are in their targets")
        self.assertTrue(self.buckets.has_come(0))
        lent = self.buckets.borrow(0)
        assert lent is not None
        self.assertEqual(lent.data_ptr(), self.output.data_ptr())
        self.assertIsNone(self.buckets.borrow(0), "a second time")
        self.assertIsNone(self.buckets.borrow(1))

    def test_landed(self) -> None:
        targets = self.reduce(3)
        self.buckets.land(0)
        self.buckets.land(1)
        self.assertEqual([t.sum() for t in targets], [24, 24])

    def test_place_is_needed(self) -> None:
        targets = self.reduce(3)
        newer = self.reduce(5)
        self.assertEqual(targets[0].sum(), 24, "nobody took it before the next iteration")
        self.buckets.land(0)
        self.assertEqual(newer[0].sum(), 40)

    def test_another_target(self) -> None:
        old = self.reduce(3)[0]
        new = self.buckets.retarget(0)
        self.buckets.land(0)
        self.assertEqual([old.sum(), new.sum()], [0, 24])


if __name__ == "__main__":
    unittest.main()
