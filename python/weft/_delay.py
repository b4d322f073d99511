"""Delayed updates: gradients are gathered over generations, and each generation's average is applied iterations later."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import torch

from ._averages import plain_tensors
from ._barrier import needs_all
from ._buckets import Buckets
from ._calls import Calls
from ._client import Client, Layout, WeftError
from ._execution import Execution
from ._guard import plainly, raw_grad, set_raw_grad
from ._local import Locals
from ._updates import Step, step_but


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


class _Generation:
    """A closed generation: the averages over workers of its gradients' sums, on their way."""

    def __init__(self, targets: List[torch.Tensor], length: int) -> None:
        self.targets = targets  # the flags of use, then a tensor a parameter
        self.averaged = False  # they are what is applied
        self.length = length  # iterations
        self.step: Optional[Step] = None  # the last one called within it
        self.left = set(range(1, len(targets)))  # tensors that are yet to be applied


class Delayed(Execution):
    """The generations of one model's gradients under a plan that delays updates.

    parameter.grad is this rank's gradient. Of a generation's iterations the gradients are summed in memory of its own; in its
    last one the sums are handed over. The average over workers is divided by the number of iterations, and applied where the
    plan says, with the hyper-parameters of the last step() within the generation. So one update is made a generation. A
    parameter is updated if, in the generation, some rank's .grad was not None at the end of a pass.

    A rank whose script reads gradients between backward() and step(), and takes them for averages, asks all to delay nothing. It
    says so with the flags of use, so that all ranks hear of it when they apply the same generation.
    """

    def __init__(
        self,
        client: Client,
        buckets: Buckets,
        parameters: Sequence[torch.Tensor],
        optimizer: torch.optim.Optimizer,
        layout: Layout,
        clip_norm: Optional[float],
        sums: bool,
        leave: Callable[[str], None],
    ) -> None:
        """With sums, a generation's gradients are not divided by their number of iterations. leave is called where all ranks are to
        delay nothing any more, with the reason."""
        super().__init__(client, buckets, parameters, optimizer, boundaries=True)
        self._clip_norm = clip_norm
        self._sums_up = sums
        self._leave = leave
        self._asks = False  # this rank
        self._asked = False  # some rank has, as all know
        self._layout = layout
        self._iteration = 0
        self._sums: List[Optional[torch.Tensor]] = [None] * (1 + len(parameters))  # of the open generation's earlier iterations
        self._gathered = 0  # how many these are
        self._sent: List[torch.Tensor] = []  # what may still be copied
        self._closed: Dict[int, _Generation] = {}
        self._step: Optional[Step] = None  # the last one
        self._locals = Locals(parameters, self._read)

    @property
    def iteration(self) -> int:
        return self._iteration

    @property
    def makes_update(self) -> bool:
        """By a step of its own, or by that of an iteration that has ended its generation."""
        return not self.awaits_step or self._gathered == 0

    def verify_pass(self, fresh: bool) -> None:
        super().verify_pass(fresh)
        if self.awaits_step:
            twice = "two backward passes before step(): all but the last belong in no_sync()"
            # Averages of the pass before become .grad, to which this one adds. That must come before what it accumulates, and no
            # older update may be outstanding: it would change parameters that this pass has read.
            if not fresh or self._iteration > 1:
                raise WeftError(f"rank {self._client.rank}: under a plan that delays updates, {twice}")
            self._leave(twice)

    @property
    def _ends(self) -> bool:
        """Whether the open iteration ends its generation."""
        return self._layout.last(self._buckets.generation) == self._iteration

    def put(self, k: int, gradient: Optional[torch.Tensor], again: bool = False) -> None:
        """If the generation goes on, end gathers it."""
        if not self._ends:
            return
        before = self._sums[k + 1]
        if before is not None:
            gradient = before if gradient is None else before + gradient
            self._sent.append(gradient)
        self._buckets.put(k + 1, gradient, again)

    def end(self, used: Sequence[bool], guarded: bool) -> List[int]:
        """A parameter counts as used that has a gradient, whoever made it. Never waits for averages."""
        grads = [p.grad for p in self._parameters]
        flags = self._flags([g is not None for g in grads])
        with plain_tensors():
            if self._ends:
                self._hand_over(flags)
            else:
                self._gather([flags, *grads])
        self._locals.watch()
        self._iteration += 1
        self.awaits_step = True
        return list(range(self._client.world))

    def _gather(self, given: Sequence[Optional[torch.Tensor]]) -> None:
        for tensor, value in enumerate(given):
            before = self._sums[tensor]
            if value is not None:
                self._sums[tensor] = value.detach().clone() if before is None else before.add_(value.detach())
        self._gathered += 1

    def _hand_over(self, flags: torch.Tensor) -> None:
        """Ends the generation, of which all gradients have been put."""
        if self._asks:
            flags[len(self._parameters) + self._client.rank] = 2
        if self._sums[0] is not None:
            flags = self._sums[0] + flags
        self._buckets.put(0, flags)
        targets = [torch.empty_like(flags), *(torch.empty_like(p.data) for p in self._parameters)]
        self._closed[self._buckets.generation] = _Generation(targets, self._gathered + 1)
        self._buckets.expect(targets, lent=range(1, len(targets)))
        self._sums, self._gathered = [None] * len(self._sums), 0
        self._sent = []

    def verify_step(self, whole: bool) -> None:
        if whole:
            raise WeftError("step(closure) under a plan that delays updates: call the closure, then step()")
        if needs_all(self._optimizer):
            raise WeftError(
                "this step needs all gradients, for a GradScaler or hooks of the step. Under a plan that delays updates there are none yet,"
                " and those of a generation may be of several scales: train with --max-delay 0"
            )

    def step(self, own: Callable[[], Any], whole: bool) -> Any:
        """Notes its hyper-parameters, for the updates that the plan has later, and applies those that it has now."""
        if not self.awaits_step:
            return own()  # the averages of a pass under another plan, or nothing
        self._settle_locals()
        self._step = Step(self._optimizer)
        newest = self._closed.get(self._buckets.generation - 1)
        if newest is not None and newest.step is None:
            newest.step = self._step
        result = step_but(self._optimizer, own, self._parameters)
        self._apply_at("step")
        self.end_iteration()
        self._apply_at("read")  # nothing reads in between
        if self._asked:
            self._leave("gradients are read between backward() and step()")
        return result

    def _apply_at(self, at: str) -> None:
        """Applies what the plan applies at a point of the last iteration."""
        for u in self._layout.updates:
            periods, behind = divmod(self._iteration - 1 - u.iteration, self._layout.period)
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
            self._asked = self._asked or float(workers.max()) * self._client.world > generation.length + 0.5
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

    def flush(self, calls: Calls) -> Optional[int]:
        """What a step() is yet to come for becomes .grad, for that step. A generation that is not whole is an update of its own."""
        if self._iteration == 0:
            return None
        self._client.call(kind="flush")
        self._locals.release()
        everything = range(1, 1 + len(self._parameters))
        for g in sorted(self._closed):
            self._apply(g, everything)
        if self._gathered == 0:
            return 0
        self._settle(self._sums, self._gathered, None if self.awaits_step else self._step, everything, calls)
        self._gathered = 0
        return 0 if self.awaits_step else 1

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

    def state(self) -> Optional[Dict[str, Any]]:
        """Between two iterations: by how many generations ago it was closed, or gathered yet."""
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
            "world": self._client.world,
            "iteration": self._iteration % self._layout.period,
            "closed": closed,
            "sums": [None if s is None or self._gathered == 0 else s.clone() for s in self._sums],
            "gathered": self._gathered,
            "step": None if self._step is None else self._step.state(),
        }

    def restore(self, outstanding: Dict[str, Any]) -> bool:
        """The iterations before are run again without any computation: generations that are outstanding are handed over, others
        are of zeros, which nobody has used, so that they update nothing."""
        if outstanding["plan"] != self._layout.digest:
            return False
        closed, until = outstanding["closed"], outstanding["iteration"]
        while self._layout.generation(until) < max(closed, default=0):
            until += self._layout.period
        last, count = self._layout.generation(until), 1 + len(self._parameters)
        everything = list(range(1, count))
        while self._iteration < until:
            g = self._buckets.generation
            if self._ends:
                was = closed.get(last - g, {"sums": [None] * count, "length": 1, "step": None, "left": everything})
                used = torch.zeros(len(self._parameters) + self._client.world, dtype=self._parameters[0].dtype)
                targets = [used, *(torch.empty_like(p.data) for p in self._parameters)]
                with plain_tensors():
                    for k, target in enumerate(targets):
                        given = was["sums"][k]
                        self._buckets.put(k, None if given is None else given.view(target.shape))
                    self._closed[g] = _Generation(targets, was["length"])
                    self._closed[g].step, self._closed[g].left = Step.restored(self._optimizer, was["step"]), set(was["left"])
                    self._buckets.expect(targets, lent=everything)
            self._iteration += 1
            self._apply_at("step")
            self.end_iteration()
            self._apply_at("read")
        self._sums = [None if s is None else s.clone() for s in outstanding["sums"]]
        self._gathered = outstanding["gathered"]
        self._step = Step.restored(self._optimizer, outstanding["step"])
        return True

    def settle(self, outstanding: Dict[str, Any], calls: Calls) -> None:
        """Applies what was outstanding where state was called under another plan."""

        def step(of: Any) -> Optional[Step]:
            return Step.restored(self._optimizer, of["step"])

        for age in sorted(outstanding["closed"], reverse=True):
            was = outstanding["closed"][age]
            self._settle([s.clone() for s in was["sums"]], was["length"], step(was), was["left"], calls)
        if outstanding["gathered"] > 0:
            sums = [None if s is None else s.clone() for s in outstanding["sums"]]
            everything = range(1, 1 + len(self._parameters))
            self._settle(sums, outstanding["gathered"], step(outstanding), everything, calls)

    def _read(self) -> None:
        if not self._asks:
            self._asks = True
            print(
                f"weft: rank {self._client.rank}: a gradient was read between backward() and step(). Under a plan that delays updates it is"
                " this rank's alone, and its average comes later: asking for a plan without delay",
                file=sys.stderr,
            )

    def _settle_locals(self) -> None:
        self.awaits_step = False
        if self._locals.settle():
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
