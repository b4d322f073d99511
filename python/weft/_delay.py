"""Delayed updates: gradients are gathered over generations, and each generation's average is applied iterations later."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import torch

from ._averages import plain_tensors
from ._buckets import Buckets
from ._calls import Calls
from ._client import Client, Layout, WeftError
from ._guard import guard, plainly, raw_grad, release, set_raw_grad
from ._updates import Step


def delays(layout: Layout) -> bool:
    """Whether a plan applies updates later than the first read behind the iteration, or gathers iterations."""
    return layout.period != len(layout.ends) or any(u.iteration != layout.ends[u.generation] for u in layout.updates)


def say(layout: Layout) -> None:
    """Tells on standard error how late and how rare updates are."""
    lengths = [layout.last(g) - layout.last(g - 1) for g in range(len(layout.ends))]
    late = [(u.iteration - layout.ends[u.generation], lengths[u.generation]) for u in layout.updates]
    print(
        f"weft: policy {layout.policy} delays updates: delay {max(d for d, _ in late)}, staleness {max(d + n - 1 for d, n in late)},"
        f" {len(layout.ends)} updates in {layout.period} iterations",
        file=sys.stderr,
    )


class _Local:
    """Guards a gradient of this rank between the backward pass and step(): whoever reads it there takes it for the average."""

    def __init__(self, gradient: torch.Tensor, read: Callable[[], None]) -> None:
        """read is called at a read."""
        self.gradient = gradient
        self._version = gradient._version
        self._found: Optional[torch.Tensor] = None  # what was there when it was read
        self._read = read
        guard(gradient, self)

    def complete(self) -> None:
        release(self.gradient)
        self._found = self.gradient.detach().clone()
        self._read()

    def changed(self) -> bool:
        """Whether it has been written. Not all of torch counts versions: what GradScaler calls for lists of tensors does not."""
        if self._found is None or self.gradient._version != self._version:
            return self.gradient._version != self._version
        now = self.gradient.detach()
        return not bool(((now == self._found) | ((now != now) & (self._found != self._found))).all())

    def get_grad(self) -> Optional[torch.Tensor]:
        return self.gradient

    def set_grad(self, value: Optional[torch.Tensor]) -> None:
        pass

    def zero(self, tensor: torch.Tensor) -> None:
        self.complete()


class _Generation:
    """A closed generation: the averages over workers of its gradients' sums, on their way."""

    def __init__(self, targets: List[torch.Tensor], length: int) -> None:
        self.targets = targets  # the flags of use, then a tensor a parameter
        self.averaged = False  # they are what is applied
        self.length = length  # iterations
        self.step: Optional[Step] = None  # the last one called within it
        self.left = set(range(1, len(targets)))  # tensors that are yet to be applied


class Delays:
    """The generations of one model's gradients under a plan that delays updates.

    parameter.grad is this rank's gradient. Of a generation's iterations the gradients are summed in memory of its own; in its
    last one the sums are handed over. The average over workers is divided by the number of iterations, and applied where the
    plan says, with the hyper-parameters of the last step() within the generation. So one update is made a generation. A
    parameter is updated if, in the generation, some rank's .grad was not None at the end of a pass.

    A rank whose script reads gradients between backward() and step(), and takes them for averages, asks all to delay nothing. It
    says so with the flags of use, so that all ranks hear of it when they apply the same generation.
    """

    def __init__(
        self, client: Client, buckets: Buckets, layout: Layout, parameters: Sequence[torch.Tensor], clip_norm: Optional[float], sums: bool
    ) -> None:
        """With sums, a generation's gradients are not divided by their number of iterations."""
        self._clip_norm = clip_norm
        self._sums_up = sums
        self._asks = False  # this rank
        self.asked = False  # some rank has, as all know
        self._client = client
        self._buckets = buckets
        self._layout = layout
        self._parameters = parameters
        self.iteration = 0  # the open one, counted from the hello
        self._sums: List[Optional[torch.Tensor]] = [None] * (1 + len(parameters))  # of the open generation's earlier iterations
        self._gathered = 0  # how many these are
        self._sent: List[torch.Tensor] = []  # what may still be copied
        self._closed: Dict[int, _Generation] = {}
        self._step: Optional[Step] = None  # the last one
        self._locals: List[_Local] = []
        self._grads: List[Optional[torch.Tensor]] = []  # of the last pass
        self.awaits_step = False  # a pass has ended, and its step not been called

    @property
    def last(self) -> bool:
        """Whether the open iteration ends its generation."""
        return self._layout.last(self._buckets.generation) == self.iteration

    @property
    def whole(self) -> bool:
        """Whether the iteration whose step is awaited has ended its generation."""
        return self.awaits_step and self._gathered == 0

    def put(self, tensor: int, value: Optional[torch.Tensor], again: bool = False) -> None:
        """The gradient of a tensor in the open iteration, which end gathers if the generation goes on."""
        if not self.last:
            return
        before = self._sums[tensor]
        if before is not None:
            value = before if value is None else before + value
            self._sent.append(value)
        self._buckets.put(tensor, value, again)

    def end(self, used: torch.Tensor) -> None:
        """The pass of the open iteration has ended, and all has been put but tensor 0, which is used."""
        grads = [p.grad for p in self._parameters]
        with plain_tensors():
            if self.last:
                if self._asks:
                    used[len(self._parameters) + self._client.rank] = 2
                self.put(0, used)
                targets = [torch.empty_like(used), *(torch.empty_like(p.data) for p in self._parameters)]
                self._closed[self._buckets.generation] = _Generation(targets, self._gathered + 1)
                self._buckets.expect(targets, lent=range(1, len(targets)))
                self._sums, self._gathered = [None] * len(self._sums), 0
                self._sent = []
            else:
                for tensor, value in enumerate([used, *grads]):
                    before = self._sums[tensor]
                    if value is not None:
                        self._sums[tensor] = value.detach().clone() if before is None else before.add_(value.detach())
                self._gathered += 1
        self._grads = grads
        self._locals = [_Local(g, self._read) for g in {id(g): g for g in grads if g is not None}.values()]
        self.iteration += 1
        self.awaits_step = True

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """step() of the last iteration has been called: notes its hyper-parameters."""
        self._release()
        self._step = Step(optimizer)
        newest = self._closed.get(self._buckets.generation - 1)
        if newest is not None and newest.step is None:
            newest.step = self._step

    def apply(self, at: str) -> None:
        """Applies what the plan applies at a point of the last iteration."""
        for u in self._layout.updates:
            periods, behind = divmod(self.iteration - 1 - u.iteration, self._layout.period)
            if u.at == at and behind == 0 and periods >= 0:
                self._apply(periods * len(self._layout.ends) + u.generation, u.tensors)

    def _apply(self, g: int, tensors: Sequence[int]) -> None:
        generation = self._closed[g]
        # A norm is of all of them.
        needed = range(len(generation.targets)) if self._clip_norm is not None else [0, *tensors]
        while not all(self._buckets.has_come(k, g) for k in needed):
            self._buckets.receive()
        divided = self._sums_up or generation.length == 1 or generation.averaged
        read = divided and self._clip_norm is None and generation.step is not None and generation.step.reads_only
        with plain_tensors():
            if not read:
                for k in needed:
                    self._buckets.land(k, g)
            used = generation.targets[0]
            workers = used[len(self._parameters) :]
            self.asked = self.asked or float(workers.max()) * self._client.world > generation.length + 0.5
            left = generation.left.intersection(range(1, len(generation.targets)) if self._clip_norm is not None else tensors)
            if not divided:
                for k in left:
                    generation.targets[k].div_(generation.length)
            if self._clip_norm is not None and not generation.averaged and generation.step is not None:
                clip([(p, t) for p, t, u in zip(self._parameters, generation.targets[1:], used.tolist()) if u != 0], self._clip_norm)
            generation.averaged = self._clip_norm is not None
            gradients: List[Tuple[torch.Tensor, torch.Tensor]] = []
            for k in sorted(generation.left.intersection(tensors)):
                p = self._parameters[k - 1]
                if float(used[k - 1]) == 0:
                    continue
                lent = self._buckets.borrow(k, g) if read else None
                average = generation.targets[k] if lent is None else lent
                if generation.step is None:
                    p.grad = average
                elif generation.step.has(p):
                    gradients.append((p, average))
            if gradients and generation.step is not None:
                generation.step.apply(gradients)
        generation.left.difference_update(tensors)
        if not generation.left:
            del self._closed[g]

    def flush(self, calls: Calls) -> bool:
        """Applies all that is outstanding; the agent has flushed. What a step() is yet to come for becomes .grad, for that step.

        Returns whether a generation that is not whole has been an update of its own.
        """
        self._unguard()
        everything = range(1, 1 + len(self._parameters))
        for g in sorted(self._closed):
            self._apply(g, everything)
        if self._gathered > 0:
            self._settle(self._sums, self._gathered, None if self.awaits_step else self._step, everything, calls)
            self._gathered = 0
            return not self.awaits_step
        return False

    def _settle(self, given: Sequence[Optional[torch.Tensor]], length: int, step: Optional[Step], left: Iterable[int], calls: Calls) -> None:
        """Averages a generation's sums, which are written, by calls, and applies it."""
        with plain_tensors():
            used = given[0]
            assert used is not None
            sums = [used, *(torch.zeros_like(p.data) if s is None else s.view_as(p.data) for p, s in zip(self._parameters, given[1:]))]
            for s in sums:
                calls.all_reduce(s, "mean")
        g = self._buckets.generation
        self._closed[g] = _Generation(sums, length)
        self._closed[g].step, self._closed[g].left = step, set(left)
        self._apply(g, range(1, len(sums)))

    def state(self) -> Dict[str, Any]:
        """What is outstanding on this rank between two iterations: by how many generations ago it was closed, or gathered yet."""
        if self.awaits_step:
            raise WeftError("weft.state_dict() between backward() and step(): call it between two iterations")
        newest = self._buckets.generation
        if any(newest - g > self._layout.buffers for g in self._closed):
            raise WeftError(f"weft.state_dict(): policy {self._layout.policy} keeps no more what it has sent; call weft.flush() before it")
        closed = {}
        for g, generation in self._closed.items():
            sums = [self._buckets.given(k, g) for k in range(1 + len(self._parameters))]
            step = None if generation.step is None else generation.step.state()
            closed[newest - g] = {"sums": sums, "length": generation.length, "step": step, "left": sorted(generation.left)}
        return {
            "plan": self._layout.digest,
            "iteration": self.iteration % self._layout.period,
            "closed": closed,
            "sums": [None if s is None or self._gathered == 0 else s.clone() for s in self._sums],
            "gathered": self._gathered,
            "step": None if self._step is None else self._step.state(),
        }

    def restore(self, state: Dict[str, Any], optimizer: torch.optim.Optimizer, ended: Callable[[], None]) -> None:
        """Goes on, instead of from iteration 0, where state was called under this plan. ended is called after each iteration.

        The iterations before are run again without any computation: generations that are outstanding are handed over, others
        are of zeros, which nobody has used, so that they update nothing.
        """
        closed, until = state["closed"], state["iteration"]
        while self._layout.generation(until) < max(closed, default=0):
            until += self._layout.period
        last, count = self._layout.generation(until), 1 + len(self._parameters)
        everything = list(range(1, count))
        while self.iteration < until:
            g = self._buckets.generation
            if self.last:
                was = closed.get(last - g, {"sums": [None] * count, "length": 1, "step": None, "left": everything})
                used = torch.zeros(len(self._parameters) + self._client.world, dtype=self._parameters[0].dtype)
                targets = [used, *(torch.empty_like(p.data) for p in self._parameters)]
                with plain_tensors():
                    for k, target in enumerate(targets):
                        given = was["sums"][k]
                        self._buckets.put(k, None if given is None else given.view(target.shape))
                    self._closed[g] = _Generation(targets, was["length"])
                    self._closed[g].step, self._closed[g].left = Step.restored(optimizer, was["step"]), set(was["left"])
                    self._buckets.expect(targets, lent=everything)
            self.iteration += 1
            self.apply("step")
            ended()
            self.apply("read")
        self._sums = [None if s is None else s.clone() for s in state["sums"]]
        self._gathered = state["gathered"]
        self._step = Step.restored(optimizer, state["step"])

    def settle(self, state: Dict[str, Any], optimizer: torch.optim.Optimizer, calls: Calls) -> None:
        """Applies what was outstanding under another plan."""
        for age in sorted(state["closed"], reverse=True):
            was = state["closed"][age]
            self._settle([s.clone() for s in was["sums"]], was["length"], Step.restored(optimizer, was["step"]), was["left"], calls)
        if state["gathered"] > 0:
            sums = [None if s is None else s.clone() for s in state["sums"]]
            everything = range(1, 1 + len(self._parameters))
            self._settle(sums, state["gathered"], Step.restored(optimizer, state["step"]), everything, calls)

    def _unguard(self) -> List[_Local]:
        for local in self._locals:
            release(local.gradient)
        self._locals, those = [], self._locals
        return those

    def _read(self) -> None:
        if not self._asks:
            self._asks = True
            print(
                f"weft: rank {self._client.rank}: a gradient was read between backward() and step(). Under a plan that delays updates it is"
                " this rank's alone, and its average comes later: asking for a plan without delay",
                file=sys.stderr,
            )

    def _release(self) -> None:
        self.awaits_step = False
        grads, self._grads = self._grads, []
        changed = any([local.changed() for local in self._unguard()])
        if changed or any(p.grad is not g for p, g in zip(self._parameters, grads)):
            raise WeftError(
                f"rank {self._client.rank}: a gradient was changed between backward() and step(), by clipping or GradScaler perhaps. Under"
                " a plan that delays updates it has left by then, and its average comes later: to clip, use wrap(clip_norm=...); for"
                " anything else train with --max-delay 0"
            )


def clip(gradients: Sequence[Tuple[torch.Tensor, torch.Tensor]], norm: float) -> None:
    """Clips gradients of parameters by the norm of all of them. Each parameter's .grad is what it was afterwards."""
    before = [(p, raw_grad(p)) for p, _ in gradients]
    for p, grad in gradients:
        set_raw_grad(p, grad)
    try:
        with plainly():
            torch.nn.utils.clip_grad_norm_([p for p, _ in gradients], norm)
    finally:
        for p, own in before:
            set_raw_grad(p, own)
