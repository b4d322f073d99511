"""Averages the gradients of one model over all workers, at the end of each backward pass."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from ._calls import Calls
from ._client import Client, Layout, Tensor, WeftError
from ._device import Device
from ._handover import HandOver
from ._hooks import ForwardHook, GradientHook, StepHook, at_end_of_backward, tensors_in
from ._memory import dtype_name, view
from ._profile import Profile, Watch

# The name of the tensor that says which parameters a worker used, an element a parameter, and which workers trained, an
# element a worker: 1 or 0. It is the first, so that it travels in the last bucket. Optimizers treat a gradient of None and one
# of zeros differently: a parameter that no worker used keeps the gradient that it has. A worker that has no more batches than
# others takes part in their passes without training (join).
USED = "weft.used"


class Reducer:
    """The gradients of one model.

    A pass is a backward pass that reduces; the first hook that it reaches begins it. Each parameter's hook copies
    parameter.grad into the input region and declares a bucket whose last gradient it was. When the pass ends, gradients of
    parameters that it did not reach follow, and the averages replace parameter.grad as they come. So backward() returns
    when the gradients are averages, and the optimizer is nobody's business but the user's.

    parameter.grad never shares memory with a region: clip_grad_norm_ and zero_grad(set_to_none=False) write into it.
    """

    def __init__(self, client: Client, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._client = client
        self.watch = Watch(client)
        self._model = model
        self._optimizer = optimizer
        self._places = _Places(model)
        self.parameters = self._places.trained()
        if not self.parameters:
            raise ValueError("wrap: no parameter of the model requires a gradient")
        self.ended: Optional[str] = None  # why these gradients are no longer averaged
        self.paused = False  # within no_sync
        self._iteration = 0
        self._added = [False] * len(self.parameters)  # within no_sync, since the last pass
        self._trained = list(range(client.world))  # the workers that trained in the last pass in which one did
        self._expected = False  # a forward pass has run since the last step
        self._reduced = False  # and so has a pass
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
        self._calls = calls
        self._device = device
        self._layout = layout
        regions = (layout.input, layout.output)
        self._used_in, self._used_out = (
            view(r, self.parameters[0][1].dtype, layout.offsets[0], [len(self.parameters) + self._client.world])
            for r in regions
        )
        self._in, self._out = (
            [view(r, p.dtype, at, p.shape) for (_, p), at in zip(self.parameters, layout.offsets[1:])] for r in regions
        )
        self._bucket_of = {k: b for b, bucket in enumerate(layout.buckets) for k in bucket.tensors}
        self._reset()
        self.hand_over = HandOver([p for _, p in self.parameters], self._early)
        self._hooks = [GradientHook(p, lambda k=k: self._gradient(k)) for k, (_, p) in enumerate(self.parameters)]
        self._handles = [
            self._model.register_forward_pre_hook(ForwardHook(lambda *_: self._before_forward())),
            self._model.register_forward_hook(ForwardHook(lambda model, inputs, output: self._after_forward(output))),
            StepHook(self._optimizer, self._before_step),
        ]
        self._review = layout.review
        if layout.profile > 0:
            if self.parameters[0][1].is_cuda:
                raise WeftError("the profile of a training on a GPU is not there yet: train with weft run, or profile on the CPU")
            last = layout.review - 1
            self.watch = Profile(self._client, self._model, self._optimizer, self.parameters, last - layout.profile, last)

    def end(self, successor: "Reducer") -> None:
        """Leaves the parameters of another reducer to it. A backward pass that reaches others raises from now on."""
        self.ended = "this model's gradients are no longer averaged: weft.wrap was called for another one"
        theirs = {p for _, p in successor.parameters}
        for (_, p), hook in zip(self.parameters, self._hooks):
            if p in theirs:
                hook.remove()

    def remove(self) -> None:
        """Leaves the model as it was."""
        self.watch.remove()
        for h in self._hooks + self._handles:
            h.remove()
        self.hand_over.remove()

    def _reset(self) -> None:
        self._reached = [False] * len(self.parameters)
        self._missing = [len(bucket.tensors) for bucket in self._layout.buckets]

    def _before_forward(self) -> None:
        if torch.is_grad_enabled() and self.ended is None:
            self._places.verify()

    def _after_forward(self, output: Any) -> None:
        # A checkpointed segment is a backward pass within the backward pass: began the segment's hooks the pass, it would end
        # with the segment. So the pass begins at the output, which is reached before any segment.
        if not torch.is_grad_enabled() or self.ended is not None:
            return
        self._expected = True
        for t in tensors_in(output):
            if t.grad_fn is not None:
                t.register_hook(lambda _: self._begin())

    def _before_step(self) -> None:
        """Raises WeftError for a step that no pass came before: the other workers wait for that pass."""
        wanting = self._expected and not self._reduced and self.ended is None
        self._expected = self._reduced = False
        if wanting and not any(p.grad is not None and bool(p.grad.any()) for _, p in self.parameters):
            raise WeftError(
                f"rank {self._client.rank}: optimizer.step() without gradients: no backward pass has reached a parameter of the"
                " model since the last step, and other workers may be waiting for it; a worker whose loss does not depend on the"
                " model adds to it 0 times the sum of the model's output"
            )

    def _begin(self) -> None:
        """Has the engine call _end at the end of the backward pass that runs, unless it will already."""
        if self.ended is not None:
            raise WeftError(self.ended)
        self.watch.backward()
        if self.paused or self._pass() is not None:
            return
        self._open()

        def end() -> None:
            self._pass = lambda: None
            self._end()

        self._pass = weakref.ref(end)
        at_end_of_backward(end)

    def _open(self) -> None:
        # The engine drops the last pass's function, uncalled, when that pass ends by an exception.
        if 0 in self._missing:
            raise WeftError(
                f"rank {self._client.rank}: the last backward pass ended by an exception when the other workers already had"
                " some of its gradients; training cannot go on"
            )
        self._reset()

    @torch.no_grad()
    def _gradient(self, k: int) -> None:
        """The hook of parameter k: its gradient is complete."""
        self._begin()
        if self.hand_over.accumulated(k):
            return
        if self.paused:
            self._added[k] = True
            self.watch.gradient(k)
            return
        if self._reached[k] and self._missing[self._bucket_of[k + 1]] == 0:
            raise WeftError(
                f"{self._name(k)} received a second gradient in one backward pass, after the other workers had the first:"
                " a parameter used in several checkpointed segments needs checkpoint(..., use_reentrant=False); of a compiled model,"
                " code that uses a parameter in some iterations only must be compiled too"
            )
        self._copy(k, self.parameters[k][1].grad)
        if not self._reached[k]:
            self._reached[k] = True
            self._fill(k + 1)
        self.watch.gradient(k)

    @torch.no_grad()
    def _early(self, k: int, gradient: torch.Tensor) -> bool:
        """A compiled graph has the gradient of parameter k, which autograd will accumulate: whether it is taken now."""
        self._begin()
        if self.paused or self._reached[k]:
            return False
        self._copy(k, gradient)
        self._reached[k] = True
        self._fill(k + 1)
        self.watch.gradient(k)
        return True

    def _copy(self, k: int, grad: Any) -> None:
        if grad.layout is not torch.strided:
            raise WeftError(f"{self._name(k)} has a sparse gradient, which weft does not reduce: use sparse=False")
        self._device.copy_in(self._in[k], grad)

    def _fill(self, tensor: int) -> None:
        """Counts a tensor that lies in its bucket; declares the bucket when it is complete, copies included."""
        b = self._bucket_of[tensor]
        self._missing[b] -= 1
        if self._missing[b] == 0:
            self._device.when_copied(self.watch.ready, b, self._iteration)

    @torch.no_grad()
    def _end(self) -> None:
        """Ends the pass: sends what no hook has sent, and waits for the averages."""
        mended = [k for k, hook in enumerate(self._hooks) if not self._reached[k] and self._mend(k, hook)]
        if not any(self._reached) and not mended:
            return  # autograd.grad, which adds to no parameter's gradient
        for k in mended:
            self._added[k] = self.parameters[k][1].grad is not None
        used = [reached or added for reached, added in zip(self._reached, self._added)]
        for k, (_, p) in enumerate(self.parameters):
            if not self._reached[k]:
                if p.grad is None:
                    self._in[k].zero_()
                else:
                    self._copy(k, p.grad)  # added within no_sync, or in an earlier pass
                self._fill(k + 1)
        trains = [rank == self._client.rank for rank in range(self._client.world)]
        self._used_in.copy_(torch.tensor(used + trains, dtype=self._used_in.dtype))
        self._fill(0)
        self._device.settle()
        self.watch.sent()

        rest = []
        for _ in self._layout.buckets:
            bucket = self._layout.buckets[self.watch.done(self._iteration)]
            reduced = [tensor - 1 for tensor in bucket.tensors if tensor]
            self._take([k for k in reduced if used[k]])
            rest += [k for k in reduced if not used[k]]
        used_by_some = self._used_out.tolist()
        self._take([k for k in rest if used_by_some[k] != 0])
        self._added = [False] * len(self.parameters)
        self._reduced = True
        self._close()

    def _close(self) -> bool:
        """Ends an iteration; returns whether a worker trained in it."""
        self._iteration += 1
        self._reset()
        trained = [rank for rank, t in enumerate(self._used_out[len(self.parameters) :].tolist()) if t != 0]
        if trained:
            self._trained = trained
            # DDP broadcasts before the next forward pass, which finds the same values. Here, a worker that evaluates alone
            # needs no other, and all evaluate with the same statistics.
            buffers = self._places.buffers()
            with self.watch.broadcast(buffers):
                self._calls.broadcast(buffers, root=trained[0])
        self.watch.ended(self._iteration)
        if self._iteration == self._review:
            self._review = self._client.review(self.watch.report())["review"]
        return bool(trained)

    @torch.no_grad()
    def join(self) -> None:
        """Takes part, with zeros, in the passes of workers that have more batches, until none has.

        The model and the optimizer's state are then those of a worker that trained last.
        """
        self._open()
        for zeros in self._used_in, *self._in:
            zeros.zero_()
        trains = True
        while trains:
            for tensor in range(1 + len(self.parameters)):
                self._fill(tensor)
            self._device.settle()
            self.watch.sent()
            for _ in self._layout.buckets:
                self.watch.done(self._iteration)
            trains = self._close()
        if len(self._trained) < self._client.world:
            root = self._trained[0]
            self._calls.broadcast([*self._model.parameters(), *self._model.buffers()], root)
            state = self._calls.broadcast_object(self._optimizer.state_dict()["state"], root)
            if self._client.rank != root:
                self._optimizer.load_state_dict(dict(self._optimizer.state_dict(), state=state))
            self._trained = list(range(self._client.world))

    def _take(self, ks: List[int]) -> None:
        """Replaces the gradients of parameters by their averages."""
        parameters = [self.parameters[k][1] for k in ks]
        for p in parameters:
            if p.grad is None:
                p.grad = torch.empty_like(p)
        # .data: with create_graph=True, the gradient has a graph
        self._device.copy_out([p.grad.data for p in parameters], [self._out[k] for k in ks])

    def _mend(self, k: int, hook: GradientHook) -> bool:
        """Replaces the hook of parameter k where it is lost; returns whether it was."""
        if not self.parameters[k][1].requires_grad or not hook.lost():
            return False
        hook.remove()
        self._hooks[k] = GradientHook(self.parameters[k][1], lambda: self._gradient(k))
        return True

    def _name(self, k: int) -> str:
        return f"rank {self._client.rank}: parameter {self.parameters[k][0]}"


class _Places:
    """Where a model keeps its parameters and buffers, so that it is quick to see whether they are still the same."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters: List[Tuple[str, Dict[str, Any], str, torch.nn.Parameter, torch.dtype, bool]] = []
        self._buffers: List[Tuple[Dict[str, Any], str]] = []
        seen = set()
        for prefix, module in model.named_modules():
            for key, p in module._parameters.items():
                if p is not None and p not in seen:
                    seen.add(p)
                    name = f"{prefix}.{key}" if prefix else key
                    self._parameters.append((name, module._parameters, key, p, p.dtype, p.requires_grad))
            self._buffers += [(module._buffers, key) for key in module._buffers]

    def trained(self) -> List[Tuple[str, torch.nn.Parameter]]:
        """Names and parameters that require a gradient, in the order of model.parameters(); empty ones need no reducing."""
        return [(name, p) for name, _, _, p, _, trained in self._parameters if trained and p.numel() > 0]

    def buffers(self) -> List[torch.Tensor]:
        """The model's buffers as they are now: modules replace them."""
        return [module[key] for module, key in self._buffers if module.get(key) is not None]

    def verify(self) -> None:
        """Raises WeftError for a parameter whose gradient would not be averaged, or not as what it is now."""
        for name, module, key, p, dtype, trained in self._parameters:
            if module.get(key) is not p:
                what = "was replaced (load_state_dict(assign=True), for example)"
            elif p.dtype is not dtype:
                what = f"changed from {dtype} to {p.dtype}"
            elif p.requires_grad and not trained:
                what = "requires a gradient now, and did not"
            else:
                continue
            raise WeftError(f"parameter {name} {what} since weft.wrap(model, optimizer): do that first, then wrap")
