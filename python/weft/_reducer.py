"""Averages the gradients of one model over all workers: at the end of each backward pass, or when they are needed."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Callable, Dict, List, Optional, Set

import torch

from ._averages import Averages
from ._barrier import barrier, needs_all, updated_at_read
from ._buckets import Buckets
from ._calls import Calls
from ._client import Client, Layout, Tensor, WeftError
from ._delay import Delays, clip, delays, say
from ._descent import Descent
from ._device import Device
from ._guard import raw_grad
from ._handover import HandOver
from ._hooks import ForwardHook, GradientHook, StepHook, at_end_of_backward, tensors_in
from ._memory import dtype_name
from ._places import Places, stranger
from ._profile import Profile, Watch
from ._state import give
from ._statistics import Statistics
from ._updates import Step, Updates, step_but

# The name of the tensor that says which parameters a worker used, an element a parameter, and which workers trained, an
# element a worker: 1 or 0. It is the first, so that it travels in the last bucket. Optimizers treat a gradient of None and one
# of zeros differently: a parameter that no worker used keeps the gradient that it has. A worker that has no more batches than
# others takes part in their passes without training (join).
USED = "weft.used"

JOINING = "workers with different numbers of batches (join) need averages in each iteration"


class Reducer:
    """The gradients of one model.

    A pass is a backward pass that reduces; the first hook that it reaches begins it. Each parameter's hook copies
    parameter.grad into the input region and declares the buckets whose last gradient it was. When the pass ends, gradients of
    parameters that it did not reach follow.

    Under a plan with a barrier, the averages then replace parameter.grad as they come. So backward() returns when the gradients
    are averages, and the optimizer is nobody's business but the user's. Under one that crosses it, backward() and step() return
    at once, and parameters are guarded: whoever reads a gradient or a parameter waits for its average, and finds it updated.

    parameter.grad never shares memory with a region: clip_grad_norm_ and zero_grad(set_to_none=False) write into it.
    """

    def __init__(
        self,
        client: Client,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        separable: Optional[bool],
        switch: Callable[[], None],
        clip_norm: Optional[float] = None,
        sums: bool = False,
    ) -> None:
        """switch is called between two iterations, none of whose averages is outstanding: restart follows."""
        self._client = client
        self.watch = Watch(client)
        self._model = model
        self._optimizer = optimizer
        self._places = Places(model)
        self.parameters = self._places.trained()
        if not self.parameters:
            raise ValueError("wrap: no parameter of the model requires a gradient")
        for name, t in [*model.named_parameters(), *model.named_buffers()]:
            if t.layout is torch.strided and any(n > 1 and stride == 0 for n, stride in zip(t.size(), t.stride())):
                raise ValueError(f"wrap: elements of {name} share memory, as expand() has them: clone() it")
        self._switch = switch
        self._clip_norm = clip_norm
        self._sums = sums
        self.at_once = barrier(model, self.parameters, optimizer, separable)  # why step() must stay the user's own, or None
        clips = "wrap(clip_norm=...) takes the norm of all gradients" if clip_norm is not None else None
        self.barrier = self.at_once or clips  # why no update may cross the barrier, or None
        self._said: Set[str] = set()  # plans whose delays were told of
        self.ended: Optional[str] = None  # why these gradients are no longer averaged
        self.paused = False  # within no_sync
        self.joining = False  # within join
        self._added = [False] * len(self.parameters)  # within no_sync, since the last pass
        self._trained = list(range(client.world))  # the workers that trained in the last pass in which one did
        self._verified = False  # the forward pass of the next pass has seen that parameters are what they were
        self._in_groups = _in_groups(optimizer)
        self._expected = False  # a forward pass has run since the last step
        self._reduced = False  # and so has a pass
        self._delays: Optional[Delays] = None  # of a plan that delays updates
        self.updates = 0  # that the steps so far make, some of them later
        self._ended = 0  # iterations whose end the agent has been told of
        self._of_step: Any = None  # our part in the optimizer's step
        self._pass: Callable[[], Any] = lambda: None  # weak: what the engine will call at the end of the pass that runs

    def tensors(self) -> List[Tensor]:
        """What is reduced every iteration, for the agent: USED, then the parameters, in the model's order."""
        tensors = [Tensor(n, p.numel(), dtype_name(p.dtype, f"wrap: parameter {n}")) for n, p in self.parameters]
        # The first parameter's type, so that it may share that one's bucket.
        return [Tensor(USED, len(tensors) + self._client.world, tensors[0].dtype), *tensors]

    def buffers(self) -> List[torch.Tensor]:
        """What is broadcast in every iteration."""
        return self._places.buffers()

    def start(self, layout: Layout, calls: Calls, device: Device) -> None:
        """Takes the places that the agent gave to tensors(), and hooks into the model, which lives on the device."""
        parameters = [p for _, p in self.parameters]
        self._reached = [False] * len(parameters)
        self._take(layout, calls, device)
        self.hand_over = HandOver(parameters, self._early)
        self._hooks = [GradientHook(p, lambda k=k: self._gradient(k)) for k, p in enumerate(parameters)]
        self._handles: List[Any] = [
            self._model.register_forward_pre_hook(ForwardHook(lambda *_: self._before_forward())),
            self._model.register_forward_hook(ForwardHook(lambda model, inputs, output: self._after_forward(output))),
        ]
        self._bear()

    def restart(self, layout: Layout, calls: Calls, device: Device) -> None:
        """Goes on with other places and, at its iteration 0, another plan."""
        self.watch.remove()
        self.watch = Watch(self._client)
        self._ended = 0
        self._take(layout, calls, device)
        self._bear()

    def _bear(self) -> None:
        """Leaves a plan that delays updates where there are readers of gradients that it would not tell from its own."""
        if self._delays is None:
            return
        theirs = {p for group in self._optimizer.param_groups for p in group["params"]}
        left_out = next((name for name, p in self.parameters if p not in theirs), None)
        if self.joining:
            self._undelay(JOINING)
        elif left_out is not None:
            self._undelay(f"parameter {left_out} is not in the optimizer that was wrapped, and another one would take a gradient for the average")

    def _undelay(self, why: str) -> None:
        """Has the agent delay no updates of this model any more, as every rank does after the same iteration."""
        if self._client.rank == 0:
            print(f"weft: no updates are delayed from now on: {why}", file=sys.stderr)
        self.at_once = self.barrier = why
        self._switch()

    def _take(self, layout: Layout, calls: Calls, device: Device) -> None:
        self._calls, self._layout = calls, layout
        delayed = delays(layout)
        if delayed and self.at_once is not None:
            raise WeftError(f"policy {layout.policy} delays updates, which this training cannot bear: {self.at_once}; train with --max-delay 0")
        self._at_read: List[Set[int]] = [set()] if delayed else updated_at_read(layout, self.barrier, self._client.rank)
        self._review = layout.review
        if layout.profile > 0 and not any(self._at_read) and not delayed and not self.parameters[0][1].is_cuda:
            last = layout.review - 1
            self.watch = Profile(self._client, self._model, self._optimizer, self.parameters, last - layout.profile, last)
            if layout.descent:
                self.watch.descent = Descent([p for _, p in self.parameters], self._sums)
        self._statistics = Statistics(calls, self._places, self.watch)
        used = (self.parameters[0][1].dtype, [len(self.parameters) + self._client.world])
        self._buckets = Buckets(self._client, self.watch, layout, device, [used, *((p.dtype, p.shape) for _, p in self.parameters)])
        parameters = [p for _, p in self.parameters]
        self._averages = Averages(self._buckets, parameters, self._client.world, self._end_iteration)
        self._delays = Delays(self._client, self._buckets, layout, parameters, self._clip_norm, self._sums) if delayed else None
        if delayed and self._client.rank == 0 and layout.digest not in self._said:
            self._said.add(layout.digest)
            say(layout)
        # Once step is ours it stays so, under plans with a barrier too: each time that it changed hands it would grow longer.
        if (delayed or any(self._at_read)) and not isinstance(self._of_step, Updates):
            if self._of_step is not None:
                self._of_step.remove()
            self._of_step = Updates(self._optimizer, self._step, self.finish)
        elif self._of_step is None:
            self._of_step = StepHook(self._optimizer, self._before_step, self._end_iteration)

    def finish(self) -> None:
        """Waits for all averages that are on their way, and applies the updates that wait for them: not those of a plan that
        delays updates, which all ranks apply at the same time."""
        if self._delays is None:
            self._averages.finish()

    def flush(self) -> bool:
        """Applies all updates, as every rank does after the same iteration. Returns whether a hello must follow."""
        self.finish()
        if self._delays is None or self._delays.iteration == 0:
            return False
        self._client.call(kind="flush")
        self.updates += self._delays.flush(self._calls)
        return True

    def state(self) -> Dict[str, Any]:
        """The model's and the optimizer's state, and what is outstanding on this rank under a plan that delays updates, or None."""
        outstanding = None if self._delays is None else dict(self._delays.state(), world=self._client.world)
        states = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        return dict(states, outstanding=outstanding, updates=self.updates)

    def load(self, state: Dict[str, Any]) -> None:
        """Goes on where state was called, as every rank does after a flush."""
        outstanding = state["outstanding"]
        if outstanding is not None and outstanding["world"] != self._client.world:
            raise WeftError(
                f"weft.load_state_dict: updates were outstanding, and their parts are of {outstanding['world']} workers, not"
                f" {self._client.world}: to resume with others, call weft.flush() before weft.state_dict()"
            )
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]
        if outstanding is None:
            return
        if self._delays is not None and outstanding["plan"] == self._layout.digest:
            self._delays.restore(outstanding, self._optimizer, self._end_iteration)
            return
        if self._client.rank == 0:
            print("weft: this plan is not that of the checkpoint: the updates that were outstanding are applied now", file=sys.stderr)
        parameters = [p for _, p in self.parameters]
        delays = Delays(self._client, self._buckets, self._layout, parameters, self._clip_norm, self._sums)
        delays.settle(outstanding, self._optimizer, self._calls)

    def end(self, successor: "Reducer") -> None:
        """Leaves the parameters of another reducer to it. A backward pass that reaches others raises from now on."""
        self.ended = "this model's gradients are no longer averaged: weft.wrap was called for another one"
        self._of_step.remove()
        theirs = {p for _, p in successor.parameters}
        for (_, p), hook in zip(self.parameters, self._hooks):
            if p in theirs:
                hook.remove()

    def remove(self) -> None:
        """Leaves the model as it was."""
        self.watch.remove()
        for h in [*self._hooks, *self._handles, self._of_step]:
            h.remove()
        self.hand_over.remove()

    def _before_forward(self) -> None:
        if self.ended is not None:
            return
        if torch.is_grad_enabled():
            self._places.verify()
            self._verified = True
        else:
            # Nothing is gained in an evaluation, and modules take other kernels if they find tensors that are not plain.
            self.finish()

    def _after_forward(self, output: Any) -> None:
        # A checkpointed segment is a backward pass within the backward pass: began the segment's hooks the pass, it would end
        # with the segment. So the pass begins at the output, which is reached before any segment.
        if not torch.is_grad_enabled() or self.ended is not None:
            return
        self._expected = True
        for t in tensors_in(output):
            if t.grad_fn is not None:
                t.register_hook(lambda _: self._begin(fresh=True))

    def _before_step(self) -> None:
        """Raises WeftError for a step that no pass came before: the other workers wait for that pass; or of other parameters."""
        if self.ended is None and _in_groups(self._optimizer) != self._in_groups:
            found = stranger(self._places.all(), self._optimizer)
            if found is not None:
                raise WeftError(f"rank {self._client.rank}: {found}")
            self._in_groups = _in_groups(self._optimizer)
        reduced = self._reduced and self.ended is None
        self.updates += reduced and (self._delays is None or not self._delays.awaits_step or self._delays.whole)
        wanting = self._expected and not self._reduced and self.ended is None
        self._expected = self._reduced = False
        if wanting and not any(p.grad is not None and bool(p.grad.any()) for _, p in self.parameters):
            raise WeftError(
                f"rank {self._client.rank}: optimizer.step() without gradients: no backward pass has reached a parameter of the"
                " model since the last step, and other workers may be waiting for it; a worker whose loss does not depend on the"
                " model adds to it 0 times the sum of the model's output"
            )
        if self._clip_norm is not None and reduced and (self._delays is None or not self._delays.awaits_step):
            gradients = [(p, raw_grad(p)) for _, p in self.parameters]
            clip([(p, g) for p, g in gradients if g is not None], self._clip_norm)

    def _step(self, own: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        """In place of the optimizer's own step, which applies at once what does not wait for a read."""
        if self._delays is not None and self.ended is None:
            return self._step_later(self._delays, own, *args, **kwargs)
        self._before_step()
        if self.ended is not None or not any(self._at_read) or args or kwargs or needs_all(self._optimizer):
            self.finish()
            result = own()
            self._end_iteration()
            return result
        self._averages.finish_steps()  # of a step without a pass before this one
        step = Step(self._optimizer)
        at_read = self._at_read[(self._iteration - 1) % len(self._at_read)]
        result = step_but(self._optimizer, own, self._averages.defer(step, at_read.__contains__))
        self._end_iteration()
        return result

    def _step_later(self, delayed: Delays, own: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        """In place of the optimizer's own step, under a plan that delays updates."""
        if args or kwargs:
            raise WeftError("step(closure) under a plan that delays updates: call the closure, then step()")
        if needs_all(self._optimizer):
            raise WeftError(
                "this step needs all gradients, for a GradScaler or hooks of the step. Under a plan that delays updates there are none yet,"
                " and those of a generation may be of several scales: train with --max-delay 0"
            )
        self._before_step()
        if not delayed.awaits_step:
            return own()  # the averages of a pass under another plan, or nothing
        delayed.stepped(self._optimizer)
        result = step_but(self._optimizer, own, [p for _, p in self.parameters])
        delayed.apply("step")
        self._end_iteration()
        delayed.apply("read")  # nothing reads in between
        if delayed.asked:  # all ranks hear of it now
            self._undelay("gradients are read between backward() and step()")
        return result

    @property
    def _iteration(self) -> int:
        """The open one, counted from the hello."""
        return self._buckets.generation if self._delays is None else self._delays.iteration

    def _end_iteration(self) -> None:
        """Tells the agent that the step of the last iteration has been called: or that somebody awaits its averages before."""
        while self.at_once is None and self._ended < self._iteration:
            self._client.boundary(self._ended)
            self._ended += 1

    def _begin(self, fresh: bool = False) -> None:
        """Has the engine call _end at the end of the backward pass that runs, unless it will already.

        fresh says that the pass has accumulated nothing yet.
        """
        if self.ended is not None:
            raise WeftError(self.ended)
        self.watch.backward()
        if self.paused or self._pass() is not None:
            return
        self._open(fresh)
        if any(self._at_read) and not self.joining:
            self._statistics.begin()

        def end() -> None:
            self._pass = lambda: None
            self._end()

        self._pass = weakref.ref(end)
        at_end_of_backward(end)

    def _open(self, fresh: bool = False) -> None:
        # The engine drops the last pass's function, uncalled, when that pass ends by an exception.
        if self._buckets.handed_over():
            raise WeftError(
                f"rank {self._client.rank}: the last backward pass ended by an exception when the other workers already had"
                " some of its gradients; training cannot go on"
            )
        if self._delays is not None and self._delays.awaits_step:
            twice = "two backward passes before step(): all but the last belong in no_sync()"
            # Averages of the pass before become .grad, to which this one adds. That must come before what it accumulates, and no
            # older update may be outstanding: it would change parameters that this pass has read.
            if not fresh or self._delays.iteration > 1:
                raise WeftError(f"rank {self._client.rank}: under a plan that delays updates, {twice}")
            self._undelay(twice)
        self._end_iteration()
        if not self._verified:  # the model was not called as a whole
            self._places.verify()
        self._verified = False
        self._buckets.forget()
        self._reached = [False] * len(self.parameters)

    @torch.no_grad()
    def _gradient(self, k: int) -> None:
        """The hook of parameter k: its gradient is complete."""
        self._begin()
        if self._delays is None:
            self._averages.merge(k)
        if self.hand_over.accumulated(k):
            return
        if self.paused:
            self._added[k] = True
            self.watch.gradient(k)
            return
        if self._reached[k] and self._buckets.gone(k + 1):
            raise WeftError(
                f"{self._name(k)} received a second gradient in one backward pass, after the other workers had the first:"
                " a parameter used in several checkpointed segments needs checkpoint(..., use_reentrant=False); of a compiled model,"
                " code that uses a parameter in some iterations only must be compiled too"
            )
        self._put(k, self.parameters[k][1].grad, again=self._reached[k])
        self._reached[k] = True
        self.watch.gradient(k)

    @torch.no_grad()
    def _early(self, k: int, gradient: torch.Tensor) -> bool:
        """A compiled graph has the gradient of parameter k, which autograd will accumulate: whether it is taken now."""
        self._begin()
        if self.paused or self._reached[k]:
            return False
        self._put(k, gradient)
        self._reached[k] = True
        self.watch.gradient(k)
        return True

    def _put(self, k: int, grad: Any, again: bool = False) -> None:
        if grad is not None and grad.layout is not torch.strided:
            raise WeftError(f"{self._name(k)} has a sparse gradient, which weft does not reduce: use sparse=False")
        (self._buckets if self._delays is None else self._delays).put(k + 1, grad, again)

    @torch.no_grad()
    def _end(self) -> None:
        """Ends the pass: sends what no hook has sent, and waits for the averages, unless the plan does not."""
        mended = [k for k, hook in enumerate(self._hooks) if not self._reached[k] and self._mend(k, hook)]
        if not any(self._reached) and not mended:
            return  # autograd.grad, which adds to no parameter's gradient
        self.finish()  # the last iteration's updates of what this one did not read
        for k in mended:
            self._added[k] = self.parameters[k][1].grad is not None
        used = [reached or added for reached, added in zip(self._reached, self._added)]
        for k, (_, p) in enumerate(self.parameters):
            if not self._reached[k]:
                self._put(k, p.grad)  # None, or added within no_sync, or in an earlier pass
        trains = [rank == self._client.rank for rank in range(self._client.world)]
        if self._delays is not None:
            given = [p.grad is not None for _, p in self.parameters]
            self._delays.end(torch.tensor(given + trains, dtype=self._averages.used.dtype, device="cpu"))
            self._added = [False] * len(self.parameters)
            self._reduced = True
            self._close(crosses=True)
            return
        self._buckets.put(0, torch.tensor(used + trains, dtype=self._averages.used.dtype, device="cpu"))
        crosses = any(self._at_read) and not self.joining
        self._averages.expect(used, guarded=crosses)
        if not crosses:
            self.finish()
        self._added = [False] * len(self.parameters)
        self._reduced = True
        self._close(crosses)

    def _close(self, crosses: bool = False) -> bool:
        """Ends an iteration; returns whether a worker trained in it. If the plan crosses the barrier, all have."""
        self._reached = [False] * len(self.parameters)
        if crosses:
            trained = list(range(self._client.world))
        else:
            trained = [rank for rank, t in enumerate(self._averages.used[len(self.parameters) :].tolist()) if t != 0]
        if trained:
            self._trained = trained
            self._statistics.end(root=trained[0])
        self.watch.ended(self._iteration)
        if self._iteration == self._review:
            self.finish()
            decision = self._client.review(self.watch.report())
            self._review = decision["review"]
            if decision["change"]:
                self._switch()
        return bool(trained)

    def enter_join(self) -> None:
        """Within join, who trains is to be known after each pass."""
        self.joining = True
        if self._delays is not None:
            self._undelay(JOINING)

    @torch.no_grad()
    def join(self) -> None:
        """Takes part, with zeros, in the passes of workers that have more batches, until none has.

        The model and the optimizer's state are then those of a worker that trained last.
        """
        self._open()
        trains = True
        while trains:
            for tensor in range(1 + len(self.parameters)):
                self._buckets.put(tensor, None)
            self._averages.expect_nothing()
            trains = self._close()
            self._end_iteration()
        self.joining = False
        if len(self._trained) < self._client.world:
            root = self._trained[0]
            self._calls.broadcast([*self._model.parameters(), *self._model.buffers()], root)
            give(self._calls, self._client.rank, self._optimizer, root)
            self._trained = list(range(self._client.world))

    def _mend(self, k: int, hook: GradientHook) -> bool:
        """Replaces the hook of parameter k where it is lost; returns whether it was."""
        if not self.parameters[k][1].requires_grad or not hook.lost():
            return False
        hook.remove()
        self._hooks[k] = GradientHook(self.parameters[k][1], lambda: self._gradient(k))
        return True

    def _name(self, k: int) -> str:
        return f"rank {self._client.rank}: parameter {self.parameters[k][0]}"


def _in_groups(optimizer: torch.optim.Optimizer) -> List[int]:
    """How many parameters each group of an optimizer has."""
    return [len(group["params"]) for group in optimizer.param_groups]
