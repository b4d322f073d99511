"""The backward passes of a model, as hooks tell of them: when one begins, which gradients it makes, when it ends."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Collection, List, Optional, Sequence, Tuple

import torch

from ._client import BACKWARD, FORWARD, WeftError
from ._execution import Execution
from ._handover import HandOver
from ._hooks import ForwardHook, GradientHook, at_end_of_backward, tensors_in
from ._places import Places
from ._profile import Watch
from ._statistics import Statistics


class Passes:
    """Hands the gradients of each pass to a plan's execution.

    A pass is a backward pass that reduces; the first hook that it reaches begins it. Each parameter's hook hands over
    parameter.grad. When the pass ends, gradients of parameters that it did not reach follow.

    parameter.grad never shares memory with a region: clip_grad_norm_ and zero_grad(set_to_none=False) write into it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        places: Places,
        parameters: Sequence[Tuple[str, torch.nn.Parameter]],
        rank: int,
        closed: Callable[[List[int]], None],
    ) -> None:
        """closed is called at the end of each pass, with the ranks that trained in it."""
        self._model = model
        self._places = places
        self._parameters = parameters
        self._rank = rank
        self._closed = closed
        self.ended: Optional[str] = None  # why there may be no more
        self.paused = False  # within no_sync
        self.joining = False  # within join
        self.expected = False  # a forward pass has run since the last step
        self.reduced = False  # and so has a pass
        self._verified = False  # the forward pass of the next pass has seen that parameters are what they were
        self._reached = [False] * len(parameters)
        self._added = [False] * len(parameters)  # within no_sync, since the last pass
        self._pass: Callable[[], Any] = lambda: None  # weak: what the engine will call at the end of the pass that runs
    def use(self, execution: Execution, statistics: Statistics, watch: Watch) -> None:
        """From now on, gradients are handed to another execution."""
        self._execution, self._statistics, self._watch = execution, statistics, watch

    def start(self) -> None:
        """Hooks into the model, after use."""
        self.hand_over = HandOver([p for _, p in self._parameters], self._early)
        self._hooks = [self._hook(k) for k in range(len(self._parameters))]
        self._handles: List[Any] = [
            self._model.register_forward_pre_hook(ForwardHook(lambda *_: self._before_forward())),
            self._model.register_forward_hook(ForwardHook(lambda model, inputs, output: self._after_forward(output))),
        ]

    def end(self, why: str, theirs: Collection[torch.Tensor]) -> None:
        """Leaves some parameters, a set, to others. A backward pass that reaches the rest raises from now on."""
        self.ended = why
        for (_, p), hook in zip(self._parameters, self._hooks):
            if p in theirs:
                hook.remove()

    def remove(self) -> None:
        """Leaves the model as it was."""
        for h in [*self._hooks, *self._handles]:
            h.remove()
        self.hand_over.remove()

    def open(self, fresh: bool = False) -> None:
        """Begins a pass. fresh says that it has accumulated nothing yet."""
        self._execution.verify_pass(fresh)  # which may put another one in its place
        self._execution.begin()
        if not self._verified:  # the model was not called as a whole
            self._places.verify()
        self._verified = False
        self._reached = [False] * len(self._parameters)

    def _before_forward(self) -> None:
        if self.ended is not None:
            return
        if torch.is_grad_enabled():
            self._watch.does(FORWARD)
            self._places.verify()
            self._verified = True
        else:
            # Nothing is gained in an evaluation, and modules take other kernels if they find tensors that are not plain.
            self._execution.finish()

    def _after_forward(self, output: Any) -> None:
        # A checkpointed segment is a backward pass within the backward pass: began the segment's hooks the pass, it would end
        # with the segment. So the pass begins at the output, which is reached before any segment.
        if not torch.is_grad_enabled() or self.ended is not None:
            return
        self.expected = True
        for t in tensors_in(output):
            if t.grad_fn is not None:
                t.register_hook(lambda _: self._begin_at_output())

    def _begin_at_output(self) -> None:
        self._begin(fresh=True)
        self._watch.does(BACKWARD)

    @property
    def _guarded(self) -> bool:
        """Whether the pass ends before its averages have come. Within join it tells who trains."""
        return self._execution.guards and not self.joining

    def _begin(self, fresh: bool = False) -> None:
        """Has the engine call _end at the end of the backward pass that runs, unless it will already."""
        if self.ended is not None:
            raise WeftError(self.ended)
        self._watch.backward()
        if self.paused or self._pass() is not None:
            return
        self.open(fresh)
        if self._guarded:
            self._statistics.begin()

        def end() -> None:
            self._pass = lambda: None
            self._end()

        self._pass = weakref.ref(end)
        at_end_of_backward(end)

    @torch.no_grad()
    def _gradient(self, k: int) -> None:
        """The hook of parameter k: its gradient is complete."""
        self._begin()
        self._execution.merge(k)
        if self.hand_over.accumulated(k):
            return
        if self.paused:
            self._added[k] = True
            self._watch.gradient(k)
            return
        if self._reached[k] and self._execution.gone(k):
            raise WeftError(
                f"{self._name(k)} received a second gradient in one backward pass, after the other workers had the first:"
                " a parameter used in several checkpointed segments needs checkpoint(..., use_reentrant=False); of a compiled model,"
                " code that uses a parameter in some iterations only must be compiled too"
            )
        self._put(k, self._parameters[k][1].grad, again=self._reached[k])
        self._reached[k] = True
        self._watch.gradient(k)

    @torch.no_grad()
    def _early(self, k: int, gradient: torch.Tensor) -> bool:
        """A compiled graph has the gradient of parameter k, which autograd will accumulate: whether it is taken now."""
        self._begin()
        if self.paused or self._reached[k]:
            return False
        self._put(k, gradient)
        self._reached[k] = True
        self._watch.gradient(k)
        return True

    @torch.no_grad()
    def _end(self) -> None:
        """Hands over what no hook has."""
        mended = [k for k, hook in enumerate(self._hooks) if not self._reached[k] and self._mend(k, hook)]
        if not any(self._reached) and not mended:
            return  # autograd.grad, which adds to no parameter's gradient
        self._execution.finish()  # the last iteration's updates of what this one did not read
        for k in mended:
            self._added[k] = self._parameters[k][1].grad is not None
        used = [reached or added for reached, added in zip(self._reached, self._added)]
        for k, (_, p) in enumerate(self._parameters):
            if not self._reached[k]:
                self._put(k, p.grad)  # None, or added within no_sync, or in an earlier pass
        trained = self._execution.end(used, self._guarded)
        self._reached = [False] * len(self._parameters)
        self._added = [False] * len(self._parameters)
        self.reduced = True
        self._closed(trained)

    def _put(self, k: int, grad: Any, again: bool = False) -> None:
        if grad is not None and grad.layout is not torch.strided:
            raise WeftError(f"{self._name(k)} has a sparse gradient, which weft does not reduce: use sparse=False")
        self._execution.put(k, grad, again)

    def _hook(self, k: int) -> GradientHook:
        return GradientHook(self._parameters[k][1], lambda: self._gradient(k))

    def _mend(self, k: int, hook: GradientHook) -> bool:
        """Replaces the hook of parameter k where it is lost; returns whether it was."""
        if not self._parameters[k][1].requires_grad or not hook.lost():
            return False
        hook.remove()
        self._hooks[k] = self._hook(k)
        return True

    def _name(self, k: int) -> str:
        return f"rank {self._rank}: parameter {self._parameters[k][0]}"
