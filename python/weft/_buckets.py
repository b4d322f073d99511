"""The gradients of an iteration on their way through the shared regions, in buckets of tensors and of parts of tensors."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Collection, Dict, List, Optional, Sequence, Tuple

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


@dataclass
class _Awaited:
    """By tensor, of a closed generation: where the averages go, memory of their own for those that come in pieces, elements due;
    tensors that are lent, and those of them that have come and lie where they were reduced."""

    targets: List[torch.Tensor]
    staged: List[Optional[torch.Tensor]]
    due: List[int]
    lent: Collection[int]
    lying: Dict[int, torch.Tensor]


class Buckets:
    """What is handed over, and what has come back.

    Tensors and buckets are numbered as in the layout. One generation is open at a time (of most plans, each iteration is one):
    its tensors are put; when all have been, targets are told, into which the averages go as they come. Until then, buckets that
    are done wait in the output region: nobody writes there before the next generation's are put. There averages that are lent
    stay until then, for who only reads them.
    """

    def __init__(
        self, client: Client, watch: Watch, layout: Layout, device: Device, shapes: Sequence[Tuple[torch.dtype, Sequence[int]]]
    ) -> None:
        """shapes are the tensors' element types and shapes; through watch, buckets are declared and waited for."""
        self._client = client
        self._watch = watch
        self._layout = layout
        self._device = device
        self.generation = 0  # the open one, counted from the hello
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
        # By bucket: the generations that have not come back, first to last.
        self._away: List[List[int]] = [[] for _ in layout.buckets]
        self._early: List[int] = []  # buckets of the open generation that have come back
        self._awaited: Dict[int, _Awaited] = {}  # by generation, those of which something is due
        self._newest = _Awaited([], [], [0] * len(shapes), (), {})  # of the generation that was closed last
        self._reset()

    def _reset(self) -> None:
        generation = self.generation % len(self._layout.ends)
        self._active = [generation in bucket.generations for bucket in self._layout.buckets]
        self._missing = [len(parts) if on else -1 for parts, on in zip(self._parts, self._active)]

    def handed_over(self) -> bool:
        """Whether a bucket of the open generation has gone to the agent."""
        return 0 in self._missing

    def gone(self, tensor: int) -> bool:
        """Whether some of a tensor has, in the open generation."""
        return any(self._missing[part.bucket] == 0 for part in self._inputs_of[tensor])

    def forget(self) -> None:
        """Begins the open generation once more, of which nothing has been handed over."""
        self._reset()

    def put(self, tensor: int, value: Optional[torch.Tensor], again: bool = False) -> None:
        """Hands over a tensor of the open generation, or zeros; declares the buckets that are then complete, copies included.

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
            to = part.inputs[self.generation % self._layout.buffers]
            if value is None:
                to.zero_()
            else:
                self._device.copy_in(to, part.of(value))
            if not again:
                self._missing[part.bucket] -= 1
                if self._missing[part.bucket] == 0:
                    self._vacate(part.bucket)
                    self._away[part.bucket].append(self.generation)
                    self._device.when_copied(self._watch.ready, part.bucket, self._layout.last(self.generation))
        if cut:
            self._device.when_copied(lambda _: None, value)

    def expect(self, targets: Sequence[torch.Tensor], lent: Collection[int] = ()) -> None:
        """Ends the open generation, whose tensors have all been put: their averages are to go into these, a tensor each.

        They go there as they come; those of the tensors that are lent, where that can be, when land is called.
        """
        self._device.settle()
        self._watch.sent()
        staged: List[Optional[torch.Tensor]] = []
        for tensor, target in enumerate(targets):
            pieces = not target.is_contiguous() and not all(p.whole for p in self._inputs_of[tensor])
            staged.append(torch.empty(target.numel(), dtype=target.dtype, device=target.device) if pieces else None)
        self._newest = _Awaited(list(targets), staged, [t.numel() for t in targets], lent, {})
        self._awaited = {g: a for g, a in self._awaited.items() if a.lying or any(a.due)}
        self._awaited[self.generation] = self._newest
        early, self._early = self._early, []
        self.generation += 1
        self._reset()
        for bucket in early:
            self._take(bucket, self.generation - 1)

    def has_come(self, tensor: int, generation: Optional[int] = None) -> bool:
        """Whether the average of a tensor, of a closed generation, by default the last, has come, whole."""
        if generation is None:
            return self._newest.due[tensor] == 0
        return generation not in self._awaited or self._awaited[generation].due[tensor] == 0

    def given(self, tensor: int, generation: int) -> torch.Tensor:
        """A copy of what this worker has put of a tensor in a closed generation, the places of whose buckets are not in use again."""
        copy = generation % self._layout.buffers
        sent = [p for p in self._inputs_of[tensor] if generation % len(self._layout.ends) in self._layout.buckets[p.bucket].generations]
        parts = sorted(sent, key=lambda p: p.offset)
        return parts[0].inputs[copy].clone() if parts[0].whole else torch.cat([p.inputs[copy] for p in parts])

    def land(self, tensor: int, generation: Optional[int] = None) -> None:
        """Has the average of a tensor, which has come, lie in its target."""
        lent = self.borrow(tensor, generation)
        if lent is not None:
            awaited = self._newest if generation is None else self._awaited[generation]
            self._device.copy_out([awaited.targets[tensor]], [lent])

    def borrow(self, tensor: int, generation: Optional[int] = None) -> Optional[torch.Tensor]:
        """The average of a tensor, which has come, where it was reduced, or None if it is in its target.

        It is to be read at once, and not to be written: other workers read it, and it goes with the next put.
        """
        awaited = self._newest if generation is None else self._awaited.get(generation)
        return None if awaited is None else awaited.lying.pop(tensor, None)

    def _vacate(self, bucket: int) -> None:
        """Empties the place of a bucket in the output region, which is about to be written again."""
        for g, awaited in self._awaited.items():
            if awaited.lying and (self.generation - g) % self._layout.buffers == 0:
                for part in self._parts[bucket]:
                    self.land(part.tensor, g)

    def retarget(self, tensor: int) -> torch.Tensor:
        """Has the last average go into a new tensor, which it returns, in place of the target: that is the user's now."""
        old = self._newest.targets[tensor]
        # What has come is kept; mostly nothing has.
        nothing = self._newest.due[tensor] == old.numel() or tensor in self._newest.lying
        new = torch.empty_like(old) if nothing else old.clone()
        self._newest.targets[tensor] = new
        return new

    def all_come(self) -> bool:
        """Whether no average of a closed generation is outstanding."""
        return not any(g < self.generation for away in self._away for g in away)

    def receive(self, wait: bool = True) -> bool:
        """Takes the next bucket that is done, if need be waiting for one; returns whether there was one."""
        if not wait and not self._client.has_reduced():
            return False
        bucket, iteration = self._watch.reduced()
        generation = self._layout.generation(iteration)
        if bucket >= len(self._away) or generation not in self._away[bucket] or iteration != self._layout.last(generation):
            raise self._client.broken(f"the agent has done bucket {bucket} of iteration {iteration}, which this worker has not handed over")
        if generation == self.generation:
            self._early.append(bucket)
        else:
            self._take(bucket, generation)
        return True

    def _take(self, bucket: int, generation: int) -> None:
        """Copies what has come back out of the region that it was reduced in, which is written again once the bucket is declared
        again; or notes that it is there."""
        parts, awaited = self._parts[bucket], self._awaited[generation]
        mine = self._client.in_input(bucket, self._layout.last(generation))
        tos: List[torch.Tensor] = []
        averages: List[torch.Tensor] = []
        for part in parts:
            average = (part.inputs if mine else part.outputs)[generation % self._layout.buffers]
            target, staged = awaited.targets[part.tensor], awaited.staged[part.tensor]
            awaited.due[part.tensor] -= part.length
            if part.tensor in awaited.lent and part.whole and not mine and target.device == average.device:
                awaited.lying[part.tensor] = average
            else:
                tos.append(part.of(target if staged is None else staged))
                averages.append(average)
        self._device.copy_out(tos, averages)
        for part in parts:
            staged = awaited.staged[part.tensor]
            if awaited.due[part.tensor] == 0 and staged is not None:
                target = awaited.targets[part.tensor]
                target.copy_(staged.view(target.shape))
                awaited.staged[part.tensor] = None
        self._away[bucket].remove(generation)
