"""When a model's buffers are broadcast: weft._statistics."""

import contextlib
import unittest

import torch

from weft._statistics import Statistics


class Recorder:
    """In place of calls, of the model's places, and of who watches."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.calls = []

    def buffers(self):
        return list(self.tensors)

    def begin_broadcast(self, tensors, root):
        self.calls.append(("begin", root, len(tensors)))

    def settle(self):
        self.calls.append("settle")

    def broadcast(self, tensors, root=None):
        if root is None:  # the watch's
            return contextlib.nullcontext()
        self.calls.append(("broadcast", root, len(tensors)))


class StatisticsTest(unittest.TestCase):
    def check(self, want, between=lambda tensors: None, begin=True, root=0):
        r = Recorder([torch.zeros(3), torch.zeros((), dtype=torch.int64)])
        s = Statistics(r, r, r)
        for _ in range(2):  # the second time as the first
            if begin:
                s.begin()
            between(r.tensors)
            s.end(root)
            self.assertEqual(r.calls, want)
            r.calls.clear()

    def test_unchanged(self):
        self.check([("begin", 0, 2), "settle"])

    def test_changed_in_the_backward_pass(self):
        self.check([("begin", 0, 2), ("broadcast", 0, 2)], lambda t: t[1].add_(1))

    def test_replaced_in_the_backward_pass(self):
        self.check([("begin", 0, 2), ("broadcast", 0, 2)], lambda t: t.__setitem__(0, torch.ones(3)))

    def test_not_begun(self):
        self.check([("broadcast", 1, 2)], begin=False, root=1)

    def test_two_passes(self):
        r = Recorder([torch.zeros(3)])
        s = Statistics(r, r, r)
        s.begin()
        s.begin()
        s.end(0)
        self.assertEqual(r.calls, [("begin", 0, 1), "settle"])


if __name__ == "__main__":
    unittest.main()
