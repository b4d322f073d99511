"""What this worker's iterations consist of: which computation reads which parameters, which gradient becomes ready when.

An iteration is a row of events: a module that has parameters is called, a gradient is ready, the pass has ended. What is
computed between two of them is an op. The order of events is found out, not assumed.
"""

from __future__ import annotations

import collections
import contextlib
import time
from dataclasses import dataclass
from statistics import median
from typing import Any, ContextManager, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import torch

from ._client import Client
from ._descent import Descent
from ._hooks import ForwardHook, StepHook

# The kinds of events. Calls are of a module, gradients of a parameter, both by number.
FORWARD, CALL, OUTPUT, BACKWARD, GRADIENT, SENT, END, STEP, STEPPED = range(9)

Event = Tuple[int, int]  # kind, number


class Watch:
    """Measures how long iterations take. The reducer tells its progress, and sends and waits as the client does."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ends: List[float] = []  # of iterations since the last report, seconds

    def does(self, what: int) -> None:
        """Notes what this worker does from now on, as Client.does does."""
        self._client.does(what)

    def backward(self) -> None:
        """A hook has been reached: a backward pass runs."""

    def gradient(self, k: int) -> None:
        """The gradient of parameter k is complete and handed over."""

    def ready(self, bucket: int, iteration: int) -> None:
        """Declares a bucket, as Client.ready does."""
        self._client.ready(bucket, iteration)

    def sent(self) -> None:
        """The pass has ended, and everything is handed over."""

    def reduced(self) -> Tuple[int, int]:
        """Waits for a bucket, as Client.reduced does."""
        return self._client.reduced()

    def broadcast(self, buffers: Sequence[torch.Tensor]) -> ContextManager[None]:
        """Within it, buffers are broadcast."""
        return contextlib.nullcontext()

    def ended(self, iteration: int) -> None:
        """An iteration's averages are in place; this is the number of the next one."""
        self._ends.append(time.perf_counter())

    def report(self) -> Dict[str, Any]:
        """What was measured since the last report, as docs/formats/client.md has it."""
        ends, self._ends = self._ends, self._ends[-1:]
        return {"iterations": 0, "times": [round((b - a) * 1e6, 3) for a, b in zip(ends, ends[1:])]}

    def remove(self) -> None:
        """Takes all hooks off."""


class Profile(Watch):
    """Measures iterations [first, last), and takes its hooks off after them.

    In every second one, the same on all ranks, buckets are declared only once the backward pass has ended: no transfer slows
    its computation. The times of ops are of these quiet iterations; the others tell how much transfers slow them.

    What is measured as one iteration begins with the first forward pass after a reduction. Where gradients of several passes
    add up (no_sync), it has all of them.
    """

    def __init__(
        self,
        client: Client,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[Tuple[str, torch.nn.Parameter]],
        first: int,
        last: int,
    ) -> None:
        super().__init__(client)
        self.c10d: Dict[str, Any] = {}  # what torch.distributed takes, if it is used, for the report
        self.descent: Optional[Descent] = None  # looks at the iterations before the first
        self._first, self._last = first, last
        self._parameters = parameters
        self._modules = _Modules(model, [p for _, p in parameters])
        self._iteration = 0
        self._events: List[Event] = []  # of the iteration that is being measured; none: none is
        self._times: List[float] = []  # of the events, seconds
        self._in_forward = self._in_backward = False
        self._waited = self._broadcast = 0.0  # in this iteration, seconds
        self._buffers = 0  # bytes
        self._held: List[Tuple[int, int]] = []
        self._measured: List[_Iteration] = []
        self._reads = _GradientReads([p for _, p in parameters])
        self._handles: List[Any] = [
            model.register_forward_pre_hook(ForwardHook(lambda *_: self._forward())),
            model.register_forward_hook(ForwardHook(lambda *_: self._output())),
            StepHook(optimizer, self._step, self._stepped),
        ]
        for number in self._modules.inner():
            hook = ForwardHook(lambda *_, n=number: self._call(n))
            self._handles.append(self._modules.modules[number].register_forward_pre_hook(hook))

    def _forward(self) -> None:
        self._reads.stop()
        if self._in_forward or not torch.is_grad_enabled():
            return
        if not self._events or self._events[-1][0] in (END, STEP, STEPPED):
            self._close()
            if not self._measures():
                return
        self._in_forward, self._in_backward = True, False
        self._mark(FORWARD)

    def _call(self, number: int) -> None:
        if self._in_forward or self._in_backward:  # not an evaluation
            self._mark(CALL, number)

    def _output(self) -> None:
        if self._in_forward and torch.is_grad_enabled():
            self._in_forward = False
            self._mark(OUTPUT)

    def _step(self) -> None:
        self._reads.stop()
        if self._events:
            self._mark(STEP)

    def _stepped(self) -> None:
        if self.descent is not None:
            self.descent.stepped()
        if self._events:
            self._mark(STEPPED)

    def backward(self) -> None:
        if self.descent is not None:
            self.descent.reached()
        if self._events and not self._in_backward:
            self._in_forward, self._in_backward = False, True
            self._mark(BACKWARD)

    def gradient(self, k: int) -> None:
        if self._events:
            self._mark(GRADIENT, k)

    def ready(self, bucket: int, iteration: int) -> None:
        if self._quiet():
            self._held.append((bucket, iteration))
        else:
            self._client.ready(bucket, iteration)

    def sent(self) -> None:
        if self.descent is not None and self._iteration < self._first:
            self.descent.sent()
        if self._events:
            self._mark(SENT)
        for bucket, iteration in self._held:
            self._client.ready(bucket, iteration)
        self._held.clear()

    def reduced(self) -> Tuple[int, int]:
        since = time.perf_counter()
        reduced = self._client.reduced()
        self._waited += time.perf_counter() - since
        return reduced

    @contextlib.contextmanager
    def broadcast(self, buffers: Sequence[torch.Tensor]) -> Iterator[None]:
        self._buffers = sum(b.numel() * b.element_size() for b in buffers)
        since = time.perf_counter()
        yield
        self._broadcast += time.perf_counter() - since

    def ended(self, iteration: int) -> None:
        super().ended(iteration)
        if self._events:
            self._mark(END)
        self._iteration = iteration
        self._in_forward = self._in_backward = False
        if iteration <= self._first:
            self._reads.start()
        if iteration >= self._first and self.descent is not None:
            self.descent.stop()

    def remove(self) -> None:
        self._reads.stop()
        if self.descent is not None:
            self.descent.stop()
        self._events = []
        for h in self._handles:
            h.remove()
        self._handles = []

    def _mark(self, kind: int, number: int = 0) -> None:
        self._events.append((kind, number))
        self._times.append(time.perf_counter())

    def _measures(self) -> bool:
        return self._first <= self._iteration < self._last

    def _quiet(self) -> bool:
        return self._measures() and (self._iteration - self._first) % 2 == 0

    def _close(self) -> None:
        """Notes the iteration that ends where the next forward pass begins. What no reduction ended is none: the model was called
        between the backward pass and the step, say."""
        if any(kind == SENT for kind, _ in self._events):
            self._times.append(time.perf_counter())
            number = self._iteration - 1
            quiet = (number - self._first) % 2 == 0
            self._measured.append(_Iteration(tuple(self._events), self._times, self._waited, self._broadcast, quiet))
        self._events, self._times, self._waited, self._broadcast = [], [], 0.0, 0.0

    def report(self) -> Dict[str, Any]:
        """What was measured, as docs/formats/client.md has it. Takes the hooks off."""
        self.remove()
        report = super().report()
        if self.descent is not None and self.descent.report():
            report["descent"] = self.descent.report()
        if not self._measured:
            return report
        form, _ = collections.Counter(i.events for i in self._measured).most_common(1)[0]
        kept = [i for i in self._measured if i.events == form]
        quiet, loud = [i for i in kept if i.quiet], [i for i in kept if not i.quiet]
        quiet = quiet or loud
        ops = _Ops(form, self._modules, [name for name, _ in self._parameters])
        times = [ops.times(i) for i in quiet]
        report.update(
            iterations=len(self._measured),
            kept=len(kept),
            compute=_us(sum(t) for t in times),
            phases={phase: _us(ops.total(t, phase) for t in times) for phase in PHASES},
            ops=[dict(op, time=_us(t[n] for t in times)) for n, op in enumerate(ops.ops)],
        )
        report["global"] = self._reads.seen
        if loud:
            report["iteration"] = _us(i.times[-1] - i.times[0] for i in loud)
            report["waited"] = _us(i.waited + i.broadcast for i in loud)
            report["overlapped"] = _us(ops.total(ops.times(i), "backward") for i in loud)
        if self.c10d:
            report["c10d"] = self.c10d
        if self._buffers:
            report["buffers"] = {"bytes": self._buffers, "time": _us(i.broadcast for i in quiet)}
        return report


PHASES = ("forward", "backward", "update")


@dataclass(frozen=True)
class _Iteration:
    """Times are of the events, and one more, of the end. Seconds."""

    events: Tuple[Event, ...]
    times: List[float]
    waited: float
    broadcast: float
    quiet: bool


class _Modules:
    """A model's modules that have parameters, themselves or in modules of theirs. The first is the model."""

    def __init__(self, model: torch.nn.Module, parameters: Sequence[torch.nn.Parameter]) -> None:
        number = {p: k for k, p in enumerate(parameters)}
        self.modules: List[torch.nn.Module] = []
        self.names: List[str] = []
        self._own: List[List[int]] = []  # parameters, by module
        for name, module in model.named_modules():
            if not name or any(p in number for p in module.parameters()):
                self.modules.append(module)
                self.names.append(name)
                self._own.append([number[p] for p in module._parameters.values() if p is not None and p in number])

    def inner(self) -> range:
        """The numbers of all but the model."""
        return range(1, len(self.modules))

    def reads(self, called: Set[int]) -> Dict[int, List[int]]:
        """The parameters that calls of modules read.

        Parameters of a module that is not called (a ParameterList, the projection of an attention) are read by the smallest one
        around it that is, or by the model.
        """
        reads: Dict[int, Set[int]] = collections.defaultdict(set)
        number = {name: n for n, name in enumerate(self.names)}
        for n, own in enumerate(self._own):
            while n and n not in called:
                n = number[self.names[n].rpartition(".")[0]]
            reads[n].update(own)
        return {n: sorted(of) for n, of in reads.items() if of}


class _Ops:
    """The ops between the events of an iteration, in the order of a job: what comes before the forward pass is first."""

    def __init__(self, form: Sequence[Event], modules: _Modules, names: Sequence[str]) -> None:
        reads = modules.reads({n for kind, n in form if kind == CALL})
        # An event that changes nothing ends no op.
        self._at = [i for i, (kind, n) in enumerate(form) if kind != CALL or n in reads]
        events = [form[i] for i in self._at]
        self._sent = next(i for i, (kind, _) in enumerate(events) if kind == SENT)
        reached = {k for kind, k in form if kind == GRADIENT}
        rest = [0, *(k + 1 for k in range(len(names)) if k not in reached)]
        self.ops: List[Dict[str, Any]] = []
        backward, micro, stage = False, 0, ""
        for (kind, n), (then, k) in zip(events, [*events[1:], (FORWARD, 0)]):
            if kind == FORWARD:
                micro += backward
                backward = False
            backward = kind == BACKWARD or backward
            op: Dict[str, Any] = {"phase": "backward" if backward else "forward", "micro": micro}
            if kind in (FORWARD, CALL):
                op["name"] = modules.names[n] if kind == CALL else "forward"
                op["phase"] = "backward" if backward and then in (GRADIENT, SENT) else "forward"
                op["reads"] = [r + 1 for r in reads.get(n, [])]
            elif kind in (OUTPUT, BACKWARD, GRADIENT):
                op["name"] = "loss" if kind == OUTPUT else "backward"
            else:
                op["phase"] = "update"
                op["name"] = {SENT: "averages", END: "before step", STEP: "step", STEPPED: "after step"}[kind]
            if then == GRADIENT:
                op["name"], op["gives"] = "backward " + names[k], [k + 1]
            elif then == SENT:
                op["name"], op["gives"] = "end of backward", rest
            self.ops.append(op)
        # From the end of the step to the forward pass: data.
        self.ops[-1].update(name="next batch", phase="forward", micro=0)
        self.ops.insert(0, self.ops.pop())

    def times(self, i: _Iteration) -> List[float]:
        """How long the ops of an iteration of this form took, seconds; what was waited for others apart."""
        at = [i.times[n] for n in self._at] + [i.times[-1]]
        times = [b - a for a, b in zip(at, at[1:])]
        times[self._sent] = max(0.0, times[self._sent] - i.waited - i.broadcast)
        return [times[-1], *times[:-1]]

    def total(self, times: Sequence[float], phase: str) -> float:
        return sum(t for t, op in zip(times, self.ops) if op["phase"] == phase)


class _GradientReads:
    """Whether somebody reads parameters' gradients between the end of the backward pass and the step: a clipping by norm, a
    loss scaler. Such a job cannot be updated tensor by tensor."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = [p for p in parameters if type(p) is torch.nn.Parameter]
        self._on = False
        self.seen = False
        reads = self

        class Guarded(torch.nn.Parameter):
            @classmethod
            def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if func == torch.Tensor.grad.__get__:  # type: ignore[attr-defined]
                    reads.seen = True
                with torch._C.DisableTorchFunction():
                    return func(*args, **(kwargs or {}))

        self._guarded = Guarded

    def start(self) -> None:
        """Looks from now on."""
        if not self.seen:
            self._on = True
            for p in self._parameters:
                p.__class__ = self._guarded

    def stop(self) -> None:
        if self._on:
            self._on = False
            for p in self._parameters:
                p.__class__ = torch.nn.Parameter


def _us(seconds: Iterable[float]) -> float:
    return round(median(seconds) * 1e6, 3)
