"""Compiled graphs as a job (docs/job.md): what an iteration computes, how long, and what must precede what. And back: a plan's
computation order as the order of the graphs' nodes."""

from __future__ import annotations

import hashlib
import json
import operator
import os
import statistics
import time
import warnings
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from . import _graph
from ._client import Tensor, WeftError
from ._memory import dtype_name

WARM_UP = 3  # iterations
MEASURED = 10


class Ran(NamedTuple):
    """A graph that has run in an iteration."""

    graph: _graph.Graph
    arguments: Tuple[int, ...]  # ids of a forward graph's
    began: int  # ns
    marks: List[int]  # when nodes ended, in the order in which they ran, if that was wanted
    ended: int
    waited: int  # ns, all time until then that was spent waiting for the agent


class Iteration:
    """The graphs that ran from one optimizer step to the next."""

    def __init__(self, began: int, waited: int) -> None:
        self.began = began
        self.waited = waited
        self.runs: List[Ran] = []
        self.steps: List[Tuple[int, int, int]] = []  # of optimizers: began, ended, waited until the end
        self.kept: Dict[int, int] = {}  # by optimizer, bytes

    def shape(self) -> Any:
        """What is equal if the same graphs ran with the same parameters, in the same order."""
        return [(r.graph, r.arguments if not r.graph.is_backward else ()) for r in self.runs]


class Watch(_graph.Watcher):
    """Notes what runs: of the last iteration, or of all since record()."""

    def __init__(self) -> None:
        self._iterations: List[Iteration] = []
        self._current = Iteration(time.perf_counter_ns(), 0)
        self._parameters: Dict[int, int] = {}
        self._waited: Callable[[], int] = lambda: 0
        self._began = 0
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(lambda *_: self._steps())
        register_optimizer_step_post_hook(lambda optimizer, *_: self._stepped(optimizer))

    def record(self, waited: Callable[[], int]) -> None:
        """Measures nodes from now on, until the recorded iterations are asked for."""
        self._iterations.clear()
        self._waited = waited
        self._current = Iteration(time.perf_counter_ns(), waited())
        self.timing = True

    def recorded(self) -> List[Iteration]:
        self._close()
        self.timing = False
        return list(self._iterations)

    def last(self) -> Optional[Iteration]:
        """The last iteration that has ended."""
        self._close()
        return self._iterations[-1] if self._iterations else None

    def ran(self, graph: _graph.Graph, arguments: Sequence[int], began: int, marks: List[int], ended: int) -> None:
        self._close()
        self._current.runs.append(Ran(graph, tuple(arguments), began, marks, ended, self._waited()))

    def _close(self) -> None:
        """An iteration ends when, after a step, anything else runs."""
        global _planned
        if not self._current.steps:
            return
        if _planned is not None and _planned.settle(self._current.runs):
            _planned = None
        if not self.timing:
            self._iterations.clear()
        self._iterations.append(self._current)
        _, ended, waited = self._current.steps[-1]
        self._current = Iteration(ended, waited)

    def _steps(self) -> None:
        self._began = time.perf_counter_ns()

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        if self._current.runs:
            self._current.steps.append((self._began, time.perf_counter_ns(), self._waited()))
            if self.timing:
                state = (v for s in optimizer.state.values() for v in s.values())
                self._current.kept[id(optimizer)] = sum(map(_bytes, state))


_watch: Optional[Watch] = None


def watch() -> Watch:
    """The process's one."""
    global _watch
    if _watch is None:
        _watch = _graph.watcher = Watch()
    return _watch


class Op:
    """An op of a job. Those of graphs know which node of which run they are."""

    def __init__(self, name: str, phase: str, micro: int, deps: Iterable[int], run: int = -1, node: str = "", output: int = 0) -> None:
        self.name = name
        self.phase = phase
        self.micro = micro
        self.deps = sorted(deps)
        self.run = run
        self.node = node
        self.output = output  # bytes


class Ops:
    """The ops of an iteration, in the graphs' own order, and what they have to do with parameters, which are given by id.

    Between two graphs, and before the first, stands an op for the code that is not compiled; after the last, one in which
    autograd accumulates, and one for the optimizer. Each follows all before it and precedes all after it.
    """

    def __init__(self, runs: Sequence[Ran], parameters: Dict[int, int]) -> None:
        self.ops: List[Op] = []
        self.readers: Dict[int, List[int]] = {}  # by parameter
        self.made: Dict[int, List[Tuple[Any, int, int]]] = {}  # by parameter: graph, position of the result, op
        self._open: Set[int] = set()  # ops that none of the later ones follows
        self._parameters = parameters
        pending: Dict[int, List[Tuple[Dict[str, Any], Tuple[int, ...]]]] = {}  # by pair: forward runs that await their backward run
        micro, turned = 0, False
        for r, run in enumerate(runs):
            backward = run.graph.is_backward
            if turned and not backward:
                micro += 1
            turned = backward
            phase = "backward" if backward else "forward"
            self._fence(f"{r}.python", phase, micro)
            awaiting = pending.setdefault(id(run.graph.pair), [])
            if not backward:
                awaiting.append((self._nodes(r, run.graph, phase, micro, {}, run.arguments), run.arguments))
            else:
                saved, arguments = awaiting.pop() if awaiting else ({}, ())
                self._nodes(r, run.graph, phase, micro, saved, arguments)
        self.accumulate = self._fence("accumulate", "backward", micro)
        self.step = self._fence("optimizer.step", "update", 0)

    def _fence(self, name: str, phase: str, micro: int) -> int:
        return self._add(Op(name, phase, micro, self._open))

    def _add(self, op: Op) -> int:
        self.ops.append(op)
        at = len(self.ops) - 1
        self._open.difference_update(op.deps)
        self._open.add(at)
        return at

    def _nodes(
        self, r: int, graph: _graph.Graph, phase: str, micro: int, saved: Dict[str, Any], arguments: Tuple[int, ...]
    ) -> Dict[str, Any]:
        """Adds a graph's nodes; returns by name of a value the ops that it comes from, and the parameter that it is or shows."""
        values: Dict[str, Tuple[List[int], Optional[int]]] = {}
        backward = graph.is_backward
        begin = len(self.ops) - 1
        for at, n in enumerate(graph.placeholders):
            k = None if backward else self._parameters.get(arguments[at])
            values[n.name] = saved.get(n.name, ([], None)) if backward else ([], k)
        results: Dict[Any, List[int]] = {}
        for at, n in enumerate(graph.results):
            if backward and isinstance(n, torch.fx.Node):
                results.setdefault(n, []).append(at)
        position: Dict[str, int] = {}
        for name, n in graph.nodes.items():
            sources = [values[a.name] for a in n.all_input_nodes]
            deps = {o for ops, _ in sources for o in ops} | {position[other] for other in graph.needs[name]}
            of = [(at, self._parameters.get(arguments[at])) for at in results.get(n, ()) if at < len(arguments)]
            made = [(at, k) for at, k in of if k is not None]
            shows = _shows_its_input(n)
            output = 0 if shows or made else _bytes(n.meta.get("val"))
            op = self._add(Op(f"{r}.{name}", phase, micro, deps or {begin}, r, name, output))
            position[name] = op
            for _, k in sources:
                if k is not None and (not self.readers.get(k) or self.readers[k][-1] != op):
                    self.readers.setdefault(k, []).append(op)
            for at, k in made:
                self.made.setdefault(k, []).append((graph, at, op))
            ops, k = sources[0] if shows and sources else ([], None)
            values[name] = ([*ops, op], k)
        return values


def _shows_its_input(node: Any) -> bool:
    """Whether the node's value lies in the memory of its first argument, or in that of the node that made a tuple."""
    if node.target is operator.getitem:
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(a.alias_info is not None for a in schema.arguments[:1]) and not schema.is_mutable


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return int(value.numel()) * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0


def lane(runs: Sequence[Ran]) -> Dict[str, str]:
    """The one that runs the graphs."""
    gpu = any(_graph.on_gpu(n) for r in runs for n in r.graph.nodes.values())
    return {"name": "graphs", "kind": "device" if gpu else "host"}


def fingerprint(the_lane: Dict[str, str], ops: Sequence[Op]) -> str:
    """The job's of its ops: docs/job.md."""
    sha = hashlib.sha256()

    def number(v: int) -> None:
        sha.update(v.to_bytes(8, "little", signed=True))

    def string(v: str) -> None:
        number(len(v.encode()))
        sha.update(v.encode())

    number(1)
    string(the_lane["name"])
    string(the_lane["kind"])
    for op in ops:
        string(op.name)
        number(0)
        string(op.phase)
        string("")
        number(op.micro)
        number(-1)
        number(len(op.deps))
        for d in op.deps:
            number(d)
    return sha.digest()[:16].hex()


def job(
    iterations: Sequence[Iteration],
    parameters: Sequence[Tuple[str, torch.Tensor]],
    sole: Callable[[int], Any],
    world: int,
    first: Sequence[Tensor] = (),
    buffers: int = 0,
) -> Dict[str, Any]:
    """The job of iterations that were recorded, of which the first few are warm-up.

    Its tensors are those of first, which are the client's own, ready when all gradients are and needed before the next backward
    pass, and then the parameters. sole tells which result of which graph is the whole gradient of a parameter; None: it is
    ready when all have been accumulated. buffers are broadcast after every backward pass, so many bytes.
    """
    if len(iterations) < WARM_UP + MEASURED:
        raise WeftError(f"export_job: {len(iterations)} iterations ran a compiled model and stepped; {WARM_UP + MEASURED} are needed")
    measured = _usual(iterations[WARM_UP:])
    runs = measured[0].runs
    if not any(r.graph.is_backward for r in runs):
        raise WeftError("export_job: no backward graph ran: compile the model with backend=weft.torch.backend, and train it")
    made = Ops(runs, {id(p): k for k, (_, p) in enumerate(parameters)})
    times = _medians(made.ops, list(map(_times, measured)))
    turn = next(o for o, op in enumerate(made.ops) if op.phase == "backward")
    notes = [f"times of nodes are medians of {len(measured)} iterations"]
    others = [name for k, (name, _) in enumerate(parameters) if k not in made.readers]
    if others:
        notes.append(f"no graph reads {others[0]}" + (f", nor {len(others) - 1} others" if others[1:] else "") + ": taken to be read first")

    def producer(k: int) -> int:
        return next((op for graph, at, op in made.made.get(k, ()) if sole(k) == (graph, at)), made.accumulate)

    tensors = [_tensor(t.name, t.elements, t.dtype, [turn - 1], made) for t in first]
    for k, (name, p) in enumerate(parameters):
        t = _tensor(name, p.numel(), dtype_name(p.dtype, name), made.readers.get(k, [0]), made)
        t["producers"] = [producer(k)]
        tensors.append(t)
    return {
        "version": 1,
        "name": "compiled graphs",
        "world": world,
        "lanes": [lane(runs)],
        "ops": [
            {"id": o, "name": op.name, "lane": 0, "phase": op.phase, "micro": op.micro, "time": t, "output": op.output, "deps": op.deps}
            for o, (op, t) in enumerate(zip(made.ops, times))
        ],
        "tensors": tensors,
        "collectives": [
            {"name": "buffers", "kind": "broadcast", "bytes": buffers, "time": 0, "after": [made.accumulate], "before": [made.step]}
        ] if buffers else [],
        "optimizer": sum(measured[-1].kept.values()),
        "notes": notes,
    }


def _tensor(name: str, elements: int, dtype: str, readers: List[int], made: Ops) -> Dict[str, Any]:
    return {
        "name": name, "elements": elements, "param": dtype, "readers": readers, "producers": [made.accumulate], "updaters": [made.step],
    }  # fmt: skip


def _usual(iterations: Sequence[Iteration]) -> List[Iteration]:
    """The iterations in which the same ran as in most, up to MEASURED of them."""
    alike: List[Tuple[Any, List[Iteration]]] = []
    for i in iterations:
        shape = i.shape()
        for known, members in alike:
            if known == shape:
                members.append(i)
                break
        else:
            alike.append((shape, [i]))
    return max((members for _, members in alike), key=len)[:MEASURED]


def _medians(ops: Sequence[Op], times: Sequence[List[int]]) -> List[float]:
    """Of each op the median over iterations, us. Those of a phase are then scaled to the median of all of it: an op is never
    much faster than usual, but sometimes much slower, and each iteration has other slow ops, which all medians leave out."""
    medians = [statistics.median(t) / 1000 for t in zip(*times)]
    for phase in ("forward", "backward", "update"):
        mine = [o for o, op in enumerate(ops) if op.phase == phase]
        total = sum(medians[o] for o in mine)
        whole = statistics.median(sum(t[o] for o in mine) for t in times) / 1000
        for o in mine:
            medians[o] *= whole / total if total else 1
    return [round(m, 3) for m in medians]


def _times(i: Iteration) -> List[int]:
    """The times of an iteration's ops in the order of Ops, ns. Waiting for the agent is none of them."""
    times: List[int] = []
    last, waited = i.began, i.waited
    for r in i.runs:
        times.append(max(0, r.began - last - (r.waited - waited)))
        of: Dict[str, int] = {}
        last = r.began
        for name, mark in zip(r.graph.order, r.marks):
            of[name] = mark - last
            last = mark
        times += [of[name] for name in r.graph.nodes]
        last, waited = r.ended, r.waited
    began, _, until = i.steps[0]
    times.append(max(0, began - last - (until - waited)))
    times.append(sum(ended - began for began, ended, _ in i.steps))
    return times


def write(path: str, content: Dict[str, Any]) -> None:
    """Writes a job file, an element a line; whole or not at all."""
    lines = []
    for key, value in content.items():
        if isinstance(value, list) and value:
            body = "[\n" + ",\n".join(json.dumps(v, separators=(",", ":")) for v in value) + "\n]"
        else:
            body = json.dumps(value)
        lines.append(f"{json.dumps(key)}:{body}")
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "w") as f:
            f.write("{\n" + ",\n".join(lines) + "\n}\n")
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.remove(part)
        raise


def order_from_plan(path: str) -> None:
    """Has the graphs of the last iteration run their nodes in the order of a plan, which was made for the job of these graphs."""
    iteration = watch().last()
    if iteration is None:
        raise WeftError("order_from_plan: no compiled model has been trained yet: call it after an iteration")
    with open(path) as f:
        plan = json.load(f)
    try:
        _set_order(iteration.runs, plan.get("order"), plan.get("ops_fingerprint", ""))
    except ValueError as e:
        raise WeftError(f"{path}: {e}") from e


def take_order(order: Optional[List[List[int]]], of: str) -> None:
    """Has compiled graphs, once they have run for an iteration, run in an order of the ops of the job with this fingerprint;
    None: in their own. If they are others in the first few iterations, they stay as they are, with a warning."""
    global _planned
    _planned = _Planned(order, of)


class _Planned:
    """An order that is to be taken."""

    def __init__(self, order: Optional[List[List[int]]], of: str) -> None:
        self._order = order
        self._of = of
        self._tries = WARM_UP

    def settle(self, runs: Sequence[Ran]) -> bool:
        """Tries it on the graphs of an iteration; returns whether that is all."""
        try:
            _set_order(runs, self._order, self._of)
        except ValueError as e:
            self._tries -= 1
            if self._tries == 0:
                warnings.warn(f"weft: compiled graphs run in their own order: {e}", stacklevel=2)
        else:
            self._tries = 0
        return self._tries == 0


_planned: Optional[_Planned] = None


def _set_order(runs: Sequence[Ran], order: Optional[List[List[int]]], of: str) -> None:
    """Sets the order of the graphs that ran in an iteration. Raises ValueError if it is not one of theirs."""
    made = Ops(runs, {})
    ids: Sequence[int] = range(len(made.ops))
    if order and order[0]:
        if of != fingerprint(lane(runs), made.ops):
            raise ValueError("the plan was made for other graphs than those that ran in the last iteration")
        ids = order[0]
        if sorted(ids) != list(range(len(made.ops))):
            raise ValueError("the plan's order leaves ops out, or has some twice")
    names: List[List[str]] = [[] for _ in runs]
    for o in ids:
        op = made.ops[o]
        if op.run >= 0:
            names[op.run].append(op.node)
    for run, mine in zip(reversed(runs), reversed(names)):  # a graph that ran several times gets the order of its first run
        run.graph.order = mine
