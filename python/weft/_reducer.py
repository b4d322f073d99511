"""Averages the gradients of one model over all workers: at the end of each backward pass, or when they are needed."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Optional, Set

import torch

from ._barrier import barrier, updated_at_read
from ._buckets import Buckets
from ._calls import Calls
from ._client import ELSE, UPDATE, Client, Layout, Tensor, WeftError
from ._delay import Delayed, clip, delays, say
from ._descent import Descent
from ._device import Device
from ._exact import Exact
from ._execution import Execution
from ._guard import raw_grad
from ._hooks import StepHook
from ._memory import dtype_name
from ._passes import Passes
from ._places import Places, stranger
from ._profile import Profile, Watch
from ._state import give
from ._statistics import Statistics
from ._updates import Updates

# The name of the tensor that says which parameters a worker used, an element a parameter, and which workers trained, an
# element a worker: 1 or 0. It is the first, so that it travels in the last bucket. Optimizers treat a gradient of None and one
# of zeros differently: a parameter that no worker used keeps the gradient that it has. A worker that has no more batches than
# others takes part in their passes without training (join).
USED = "weft.used"

JOINING = "workers with different numbers of batches (join) need averages in each iteration"


class Reducer:
    """The gradients of one model: its passes, the plan in execution, and the optimizer's steps.

    Under a plan with a barrier, averages replace parameter.grad as they come. So backward() returns when the gradients are
    averages, and the optimizer is nobody's business but the user's. Other plans take its steps over: see Exact and Delayed.
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
        self._trained = list(range(client.world))  # the workers that trained in the last pass in which one did
        self._in_groups = _in_groups(optimizer)
        self.passes = Passes(model, self._places, self.parameters, client.rank, self._close)
        self.updates = 0  # that the steps so far make, some of them later
        self._of_step: Any = None  # our part in the optimizer's step

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
        self._take(layout, calls, device)
        self.passes.start()
        self._bear()

    def restart(self, layout: Layout, calls: Calls, device: Device) -> None:
        """Goes on with other places and, at its iteration 0, another plan."""
        self.watch.remove()
        self.watch = Watch(self._client)
        self._take(layout, calls, device)
        self._bear()

    def _bear(self) -> None:
        """Leaves a plan that delays updates where there are readers of gradients that it would not tell from its own."""
        if not isinstance(self._execution, Delayed):
            return
        theirs = {p for group in self._optimizer.param_groups for p in group["params"]}
        left_out = next((name for name, p in self.parameters if p not in theirs), None)
        if self.passes.joining:
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
        at_read: List[Set[int]] = [] if delayed else updated_at_read(layout, self.barrier, self._client.rank)
        parameters = [p for _, p in self.parameters]
        self._review = layout.review
        if layout.profile > 0 and not any(at_read) and not delayed and not parameters[0].is_cuda:
            last = layout.review - 1
            self.watch = Profile(self._client, self._model, self._optimizer, self.parameters, last - layout.profile, last)
            if layout.descent:
                self.watch.descent = Descent(parameters, self._sums)
        self._statistics = Statistics(calls, self._places, self.watch)
        used = (parameters[0].dtype, [len(parameters) + self._client.world])
        self._buckets = Buckets(self._client, self.watch, layout, device, [used, *((p.dtype, p.shape) for p in parameters)])
        if delayed:
            self._execution: Execution = self._delayed()
        else:
            self._execution = Exact(self._client, self._buckets, parameters, self._optimizer, self.at_once is None, at_read)
        self.passes.use(self._execution, self._statistics, self.watch)
        if delayed and self._client.rank == 0 and layout.digest not in self._said:
            self._said.add(layout.digest)
            say(layout)
        # Once step is ours it stays so, under plans with a barrier too: each time that it changed hands it would grow longer.
        if (delayed or any(at_read)) and not isinstance(self._of_step, Updates):
            if self._of_step is not None:
                self._of_step.remove()
            self._of_step = Updates(self._optimizer, self._step, self.finish)
        elif self._of_step is None:
            self._of_step = StepHook(self._optimizer, self._before_step, self._after_step)

    def _delayed(self) -> Delayed:
        """An execution of what is outstanding under a plan with delays."""
        parameters = [p for _, p in self.parameters]
        return Delayed(
            self._client, self._buckets, parameters, self._optimizer, self._layout, self._clip_norm, self._sums, self._undelay
        )

    def finish(self) -> None:
        """Waits for all averages that are on their way, and applies the updates that wait for them, but none that is delayed."""
        self._execution.finish()

    def flush(self) -> bool:
        """Applies all updates, as every rank does after the same iteration. Returns whether a hello must follow."""
        updates = self._execution.flush(self._calls)
        self.updates += updates or 0
        return updates is not None

    def state(self) -> Dict[str, Any]:
        """The model's and the optimizer's state, and what is outstanding on this rank under a plan that delays updates, or None."""
        outstanding = self._execution.state()
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
        if outstanding is None or self._execution.restore(outstanding):
            return
        if self._client.rank == 0:
            print("weft: this plan is not that of the checkpoint: the updates that were outstanding are applied now", file=sys.stderr)
        self._delayed().settle(outstanding, self._calls)

    def end(self, successor: "Reducer") -> None:
        """Leaves the parameters of another reducer to it. A backward pass that reaches others raises from now on."""
        self._of_step.remove()
        why = "this model's gradients are no longer averaged: weft.wrap was called for another one"
        self.passes.end(why, {p for _, p in successor.parameters})

    def remove(self) -> None:
        """Leaves the model as it was."""
        self.watch.remove()
        self.passes.remove()
        self._of_step.remove()

    def _before_step(self) -> None:
        """Raises WeftError for a step that no pass came before: the other workers wait for that pass; or of other parameters."""
        self._client.does(UPDATE)
        if _in_groups(self._optimizer) != self._in_groups:
            found = stranger(self._places.all(), self._optimizer)
            if found is not None:
                raise WeftError(f"rank {self._client.rank}: {found}")
            self._in_groups = _in_groups(self._optimizer)
        reduced, wanting = self.passes.reduced, self.passes.expected and not self.passes.reduced
        self.passes.expected = self.passes.reduced = False
        self.updates += reduced and self._execution.makes_update
        if wanting and not any(p.grad is not None and bool(p.grad.any()) for _, p in self.parameters):
            raise WeftError(
                f"rank {self._client.rank}: optimizer.step() without gradients: no backward pass has reached a parameter of the"
                " model since the last step, and other workers may be waiting for it; a worker whose loss does not depend on the"
                " model adds to it 0 times the sum of the model's output"
            )
        if self._clip_norm is not None and reduced and not self._execution.awaits_step:
            gradients = [(p, raw_grad(p)) for _, p in self.parameters]
            clip([(p, g) for p, g in gradients if g is not None], self._clip_norm)

    def _step(self, own: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        """In place of the optimizer's own step."""
        whole = bool(args or kwargs)
        self._execution.verify_step(whole)
        self._before_step()
        result = self._execution.step(own, whole)
        self._after_step()
        return result

    def _after_step(self) -> None:
        """Tells the agent of a step that returns."""
        if self._execution.iteration > 0:
            self._client.stepped(self._execution.iteration - 1)
        self._execution.end_iteration()

    def _close(self, trained: List[int]) -> None:
        """Ends an iteration, in which these ranks trained."""
        if trained:
            self._trained = trained
            self._statistics.end(root=trained[0])
        self.watch.ended(self._execution.iteration)
        self._client.does(ELSE)
        if self._execution.iteration == self._review:
            self.finish()
            decision = self._client.review(self.watch.report())
            self._review = decision["review"]
            if decision["change"]:
                self._switch()

    def enter_join(self) -> None:
        """Within join, who trains is to be known after each pass."""
        self.passes.joining = True
        if isinstance(self._execution, Delayed):
            self._undelay(JOINING)

    @torch.no_grad()
    def join(self) -> None:
        """Takes part, with zeros, in the passes of workers that have more batches, until none has.

        The model and the optimizer's state are then those of a worker that trained last.
        """
        self.passes.open()
        trained = self._trained
        while trained:
            trained = self._execution.idle()
            self._close(trained)
            self._execution.end_iteration()
        self.passes.joining = False
        if len(self._trained) < self._client.world:
            root = self._trained[0]
            self._calls.broadcast([*self._model.parameters(), *self._model.buffers()], root)
            give(self._calls, self._client.rank, self._optimizer, root)
            self._trained = list(range(self._client.world))


def _in_groups(optimizer: torch.optim.Optimizer) -> List[int]:
    """How many parameters each group of an optimizer has."""
    return [len(group["params"]) for group in optimizer.param_groups]
