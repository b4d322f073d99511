"""The gradients of an iteration on their way through the shared regions, in buckets of tensors and of parts of tensors."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

import torch

from ._client import Client, Layout
from ._device import Device
from ._memory import view
from ._profile import Watch


@dataclass(frozen=True)
class _Part:
    """Elements of a tensor in a bucket.

    inputs and outputs have one view a copy of the buckets: of the tensor's shape if it is whole, else of [length].
    """

    bucket: int
    tensor: int
    offset: int  # elements
    length: int
    whole: bool
    inputs: List[torch.Tensor]
    outputs: List[torch.Tensor]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """These elements of a tensor: a view of one that is whole or contiguous, else a copy."""
        return tensor if self.whole else tensor.reshape(-1)[self.offset : self.offset + self.length]


class Buckets:
    """What is handed over, and what has come back.

    Tensors and buckets are numbered as in the layout. Every iteration is a generation. One iteration is open at a time: its
    tensors are put; when all have been, targets are told, into which the averages go as they come. Until then, buckets that are
    done wait in the output region: nobody writes there before the next iteration's are put.
    """

    def __init__(
        self, client: Client, watch: Watch, layout: Layout, device: Device, shapes: Sequence[Tuple[torch.dtype, Sequence[int]]]
    ) -> None:
        """shapes are the tensors' element types and shapes; through watch, buckets are declared and waited for."""
        self._client = client
        self._watch = watch
        self._layout = layout
        self._device = device
        self.iteration = 0  # the open one
        self._inputs_of: List[List[_Part]] = [[] for _ in shapes]
        self._parts: List[List[_Part]] = []
        copies = [layout.copy(g) for g in range(layout.buffers)]
        for b, bucket in enumerate(layout.buckets):
            self._parts.append([])
            for s in bucket.slices:
                dtype, shape = shapes[s.tensor]
                whole = s.length == torch.Size(shape).numel()

                def views(region: mmap.mmap) -> List[torch.Tensor]:
                    return [view(region, dtype, s.place + at, shape if whole else [s.length]) for at in copies]

                part = _Part(b, s.tensor, s.offset, s.length, whole, views(layout.input), views(layout.output))
                self._parts[b].append(part)
                self._inputs_of[s.tensor].append(part)
        # By bucket: the iterations that have not come back, first to last.
        self._away: List[List[int]] = [[] for _ in layout.buckets]
        self._early: List[int] = []  # buckets of the open iteration that have come back
        self._targets: List[Optional[torch.Tensor]] = [None] * len(shapes)
        self._staged: List[Optional[torch.Tensor]] = [None] * len(shapes)
        self._due = [0] * len(shapes)  # elements of the target's that have not come
        self._reset()

    def _reset(self) -> None:
        generation = self.iteration % len(self._layout.ends)
        self._active = [generation in bucket.generations for bucket in self._layout.buckets]
        self._missing = [len(parts) if on else -1 for parts, on in zip(self._parts, self._active)]

    def handed_over(self) -> bool:
        """Whether a bucket of the open iteration has gone to the agent."""
        return 0 in self._missing

    def gone(self, tensor: int) -> bool:
        """Whether some of a tensor has, in the open iteration."""
        return any(self._missing[part.bucket] == 0 for part in self._inputs_of[tensor])

    def forget(self) -> None:
        """Begins the open iteration once more, of which nothing has been handed over."""
        self._reset()

    def put(self, tensor: int, value: Optional[torch.Tensor], again: bool = False) -> None:
        """Hands over a tensor of the open iteration, or zeros; declares the buckets that are then complete, copies included.

        With again, the value replaces one that was handed over, and has not gone yet.
        """
        # One that is cut is made contiguous once; what the device copies late lives until then.
        cut = value is not None and not value.is_contiguous() and not all(p.whole for p in self._inputs_of[tensor])
        if cut:
            value = value.contiguous()
        for part in self._inputs_of[tensor]:
            if not self._active[part.bucket]:
                continue
            while len(self._away[part.bucket]) >= self._layout.buffers:
                self.receive()
            to = part.inputs[self.iteration % self._layout.buffers]
            if value is None:
                to.zero_()
            else:
                self._device.copy_in(to, part.of(value))
            if not again:
                self._missing[part.bucket] -= 1
                if self._missing[part.bucket] == 0:
                    self._away[part.bucket].append(self.iteration)
                    self._device.when_copied(self._watch.ready, part.bucket, self.iteration)
        if cut:
            self._device.when_copied(lambda _: None, value)

    def expect(self, targets: Sequence[torch.Tensor]) -> None:
        """Ends the open iteration, whose tensors have all been put: their averages are to go into these, a tensor each."""
        self._device.settle()
        self._watch.sent()
        for tensor, target in enumerate(targets):
            self._targets[tensor] = target
            self._due[tensor] = target.numel()
            pieces = not target.is_contiguous() and not all(p.whole for p in self._inputs_of[tensor])
            self._staged[tensor] = torch.empty(target.numel(), dtype=target.dtype, device=target.device) if pieces else None
        early, self._early = self._early, []
        self.iteration += 1
        self._reset()
        for bucket in early:
            self._take(bucket, self.iteration - 1)

    def has_come(self, tensor: int) -> bool:
        """Whether the average of a tensor lies in its target, whole."""
        return self._due[tensor] == 0

    def retarget(self, tensor: int) -> torch.Tensor:
        """Has the average go into a new tensor, which it returns, in place of the target: that is the user's now."""
        old = self._targets[tensor]
        assert old is not None
        # What has come is kept; mostly nothing has.
        new = torch.empty_like(old) if self._due[tensor] == old.numel() else old.clone()
        self._targets[tensor] = new
        return new

    def all_come(self) -> bool:
        """Whether no average of a closed iteration is outstanding."""
        return not any(i < self.iteration for away in self._away for i in away)

    def receive(self, wait: bool = True) -> bool:
        """Takes the next bucket that is done, if need be waiting for one; returns whether there was one."""
        if not wait and not self._client.has_reduced():
            return False
        bucket, iteration = self._watch.reduced()
        if bucket >= len(self._away) or iteration not in self._away[bucket]:
            raise self._client.broken(f"the agent has done bucket {bucket} of iteration {iteration}, which this worker has not handed over")
        if iteration == self.iteration:
            self._early.append(bucket)
        else:
            self._take(bucket, iteration)
        return True

    def _take(self, bucket: int, iteration: int) -> None:
        """Copies what has come back out of the output region, or where it was reduced in this worker's input out of that, which the agent may write once the bucket is declared again."""
        parts = self._parts[bucket]
        tos: List[torch.Tensor] = []
        for part in parts:
            target, staged = self._targets[part.tensor], self._staged[part.tensor]
            assert target is not None
            tos.append(part.of(target if staged is None else staged))
        mine = self._client.in_input(bucket, iteration)
        self._device.copy_out(tos, [(p.inputs if mine else p.outputs)[iteration % self._layout.buffers] for p in parts])
        for part in parts:
            self._due[part.tensor] -= part.length
            staged, target = self._staged[part.tensor], self._targets[part.tensor]
            if self._due[part.tensor] == 0 and staged is not None:
                target.copy_(staged.view(target.shape))
                self._staged[part.tensor] = None
        self._away[bucket].remove(iteration)


