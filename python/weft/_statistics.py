"""A model's buffers (BatchNorm's statistics), which become those of one rank in every iteration."""

from __future__ import annotations

from typing import List, Tuple

import torch

from ._calls import Calls
from ._places import Places
from ._profile import Watch


class Statistics:
    """The buffers of a model.

    DistributedDataParallel broadcasts them before the next forward pass, which finds the same values. Here they are broadcast
    when an iteration ends: a worker that evaluates alone needs no other, and all evaluate with the same statistics.
    """

    def __init__(self, calls: Calls, places: Places, watch: Watch) -> None:
        self._calls = calls
        self._places = places
        self._watch = watch
        self._sent: List[Tuple[torch.Tensor, int]] = []  # what is on its way since begin: buffers and their versions

    def begin(self) -> None:
        """A backward pass begins, on every rank: rank 0's are on their way from now on, before the gradients are."""
        buffers = self._places.buffers()
        if buffers and not self._sent:
            self._sent = [(b, b._version) for b in buffers]
            self._calls.begin_broadcast(buffers, root=0)

    def end(self, root: int) -> None:
        """Returns when all buffers are those of a rank, which is 0 after begin."""
        buffers = self._places.buffers()
        sent, self._sent = self._sent, []
        # A checkpointed segment runs forward again in the backward pass, and counts its batches again.
        if sent and len(sent) == len(buffers) and all(b is s and b._version == version for b, (s, version) in zip(buffers, sent)):
            self._calls.settle()
            return
        with self._watch.broadcast(buffers):
            self._calls.broadcast(buffers, root)
