"""The averages of one iteration on their way to parameters, and the updates that wait for them."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from ._buckets import Buckets
from ._guard import guard, plainly, raw_grad, release, set_raw_grad
from ._hooks import uncompiled
from ._updates import Step


class Average:
    """The average of a parameter's gradient, on its way; parameter and gradient are guarded until it has come.

    Meanwhile autograd has no .grad of the parameter: a pass that begins before the average has come makes a tensor of its own,
    and writes into none that is awaited. A reader of .grad gets the tensor that will hold the average.
    """

    def __init__(self, owner: "Averages", k: int, parameter: torch.Tensor, grad: Optional[torch.Tensor], used: bool) -> None:
        self._owner = owner
        self.k = k
        self.parameter = parameter
        self.grad = grad  # what .grad was when the pass ended
        self.used = used  # by this rank: then the average goes into grad; if not, only if another rank used it
        # .data: with create_graph=True, the gradient has a graph
        self.target = grad.data if used and grad is not None else torch.empty_like(parameter.data)
        self.kept = True  # .grad of the parameter is still grad, to its readers
        self.step: Optional[Step] = None  # the update that waits
        self.settled = False

    def guard(self) -> None:
        set_raw_grad(self.parameter, None)
        guard(self.parameter, self)
        if self.grad is not None:
            guard(self.grad, self)

    def complete(self) -> None:
        self._owner.complete(self)

    def get_grad(self) -> Optional[torch.Tensor]:
        with self._owner.lock:
            if self.kept and not self.used:
                self.complete()  # whether there is one
            return self.grad if self.kept and not self.settled else raw_grad(self.parameter)

    def set_grad(self, value: Optional[torch.Tensor]) -> None:
        with self._owner.lock:
            if value is not None and value is self.grad and self.kept:
                return
            self._leave(value)

    def zero(self, tensor: torch.Tensor) -> None:
        """The gradient is to be zero, at once: the average will go elsewhere. A parameter must be up to date first."""
        with self._owner.lock:
            if self.settled or tensor is not self.grad:
                self.complete()
                return
            release(tensor)
            if self.used:
                self.target = self._owner.buckets.retarget(self.k + 1)
                self.grad = None
            else:  # if no rank used the parameter, the step was to take the gradient as it is
                self.grad = tensor.data.clone()
            if self.kept:
                self._leave(tensor)

    def _leave(self, value: Optional[torch.Tensor]) -> None:
        """.grad is the user's again. Without a step that awaits the average, nothing does."""
        self.kept = False
        set_raw_grad(self.parameter, value)
        if self.step is None:
            release(self.parameter)
            self._owner.discard(self)


class Averages:
    """The averages of the last iteration that was handed over. All methods may be called in any thread."""

    def __init__(self, buckets: Buckets, parameters: Sequence[torch.Tensor], world: int, before_wait: Callable[[], None]) -> None:
        """before_wait is called before any wait for an average."""
        self.buckets = buckets
        self.lock = threading.RLock()
        self._parameters = parameters
        self._before_wait = before_wait
        self._trainer = threading.get_ident()  # the thread that calls step
        # By parameter, whether somebody used it, and by rank, whether it trained: a number above 0.
        self.used = torch.zeros(len(parameters) + world, dtype=parameters[0].dtype, device="cpu")
        self._all: List[Average] = []  # that are not settled
        self._of: Dict[int, Average] = {}  # by parameter, those that .grad or an update waits for

    def expect(self, used: Sequence[bool], guarded: bool) -> None:
        """The open iteration has been handed over. used says by parameter whether this rank used it.

        If guarded, returns at once, and the averages are taken when somebody needs them. Else, follow it by finish.
        """
        with self.lock, plain_tensors():
            for k, p in enumerate(self._parameters):
                if used[k] and p.grad is None:
                    p.grad = torch.empty_like(p.data)
                self._all.append(Average(self, k, p, p.grad, used[k]))
            self.buckets.expect([self.used, *(a.target for a in self._all)], lent=range(1, 1 + len(self._all)) if guarded else ())
            self._of = {a.k: a for a in self._all}
            if guarded:
                for a in self._all:
                    a.guard()

    def trained(self) -> List[int]:
        """The ranks that trained in the last iteration, whose averages have all come."""
        return [rank for rank, t in enumerate(self.used[len(self._parameters) :].tolist()) if t != 0]

    def expect_nothing(self) -> None:
        """Waits for the open iteration, in which this rank does not train."""
        with self.lock, plain_tensors():
            self.buckets.expect([self.used, *(torch.empty_like(p.data) for p in self._parameters)])
            self.finish()

    def complete(self, average: Average) -> None:
        """Waits for an average; applies it, and whatever else has come."""
        with self.lock:
            if average.settled:
                return
            self._wait(lambda: self._has_come(average))
            self.drain()

    def finish(self) -> None:
        """Waits for all averages, and applies them."""
        with self.lock:
            self._wait(self.buckets.all_come)
            self._settle(self._all)

    def finish_steps(self) -> None:
        """Waits for what updates wait for, and applies them."""
        with self.lock:
            for a in list(self._all):
                if a.step is not None:
                    self.complete(a)

    def drain(self) -> None:
        """Takes and applies what has come, without waiting."""
        with self.lock:
            while not self.buckets.all_come() and self.buckets.receive(wait=False):
                pass
            self._settle([a for a in self._all if self._has_come(a)])

    def defer(self, step: Step, at_read: Callable[[int], bool]) -> List[torch.Tensor]:
        """Has a step's updates wait for the averages of its parameters, if at_read says so of a parameter; returns which."""
        with self.lock:
            self._trainer = threading.get_ident()
            for a in list(self._of.values()):
                if a.step is None and not a.settled and step.has(a.parameter):
                    if at_read(a.k):
                        a.step = step
                    else:
                        self.complete(a)
            return [a.parameter for a in self._all if a.step is step]

    def merge(self, k: int) -> None:
        """A pass has added to .grad of parameter k while its average was on its way: adds what it made to the average."""
        with self.lock:
            average = self._of.get(k)
            if average is None:
                return
            p, kept = average.parameter, average.kept
            made = raw_grad(p)
            self.complete(average)
            if kept and made is not None:
                p.grad = made if p.grad is None else p.grad.add_(made)

    def discard(self, average: Average) -> None:
        """Nobody reads this average as .grad any more."""
        self._of.pop(average.k, None)

    def _has_come(self, average: Average) -> bool:
        return self.buckets.has_come(average.k + 1) and (average.used or self.buckets.has_come(0))

    def _wait(self, come: Callable[[], bool]) -> None:
        if not come():
            self._before_wait()
        while not come():
            self.buckets.receive()

    def _settle(self, averages: List[Average]) -> None:
        """Puts averages that have come where they belong, and applies the updates that waited for them."""
        if not averages:
            return
        # The thread that trains, should it read what another one updates, has to wait for that: there, guards stay to the end.
        # In its own, optimizers meet the parameters as they are, and may choose by their class how to step.
        stay = threading.get_ident() != self._trainer
        if not stay:
            self._release(averages)
        try:
            with plain_tensors(), uncompiled(), plainly() if stay else contextlib.nullcontext():
                self._apply(averages)
        finally:
            if stay:
                self._release(averages)

    def _release(self, averages: List[Average]) -> None:
        for a in averages:
            release(a.parameter)
            if a.grad is not None:
                release(a.grad)

    def _apply(self, averages: List[Average]) -> None:
        updates: Dict[Step, List[Tuple[torch.Tensor, torch.Tensor]]] = {}
        for a in averages:
            a.settled = True
            self._of.pop(a.k, None)
            read = a.used and not a.kept and a.step is not None and a.step.reads_only
            average = self.buckets.borrow(a.k + 1) if read else None
            if average is None:
                self.buckets.land(a.k + 1)
                average = a.grad
                if a.used or float(self.used[a.k]) != 0:
                    if average is None:
                        average = a.target
                    elif not a.used:
                        average.data.copy_(a.target)
            if a.step is not None and average is not None:
                updates.setdefault(a.step, []).append((a.parameter, average))
            if a.kept:
                a.parameter.grad = average
        settled = set(averages)
        self._all = [a for a in self._all if a not in settled]
        for step, gradients in updates.items():
            step.apply(gradients)


class plain_tensors:
    """A context in which tensors are made that may be used anywhere: outside of inference mode too."""

    def __enter__(self) -> None:
        self._modes: List[Any] = [torch.no_grad()]
        if torch.is_inference_mode_enabled():
            self._modes.insert(0, torch.inference_mode(False))
        for m in self._modes:
            m.__enter__()

    def __exit__(self, *error: Any) -> None:
        for m in reversed(self._modes):
            m.__exit__(*error)
