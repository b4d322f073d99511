"""torch.compile(model, backend=weft.torch.backend): a model's forward and backward graphs, run node by node.

AOTAutograd makes the two graphs, of the operators that plain PyTorch would call; nothing is compiled. The nodes of a graph may
run in any order that their dependencies allow, and a gradient is handed over as soon as its node has run.
"""

from __future__ import annotations

import operator
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import torch
import torch.fx

from . import _handover
from ._client import WeftError

NEEDED = (2, 6)


class Watcher:
    """Is told what graphs run: see _graph_job."""

    timing = False  # whether times are wanted of each node

    def ran(self, graph: "Graph", arguments: Sequence[int], began: int, marks: List[int], ended: int) -> None:
        """A graph has run. arguments are the ids of a forward graph's; times are ns, marks those at which nodes ended."""


watcher = Watcher()


def backend(module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend for torch.compile: runs what plain PyTorch would, and hands each gradient over as soon as it is made.

    torch.compile(model, backend=weft.torch.backend), with torch 2.6 or later.
    """
    version = tuple(int(v) for v in torch.__version__.split("+")[0].split(".")[:2])
    if version < NEEDED:
        raise WeftError(f"weft.torch.backend needs torch {NEEDED[0]}.{NEEDED[1]} or later; this is {torch.__version__}")
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import config
    from torch._functorch.partitioners import default_partition

    from ._graph_job import watch

    watch()
    pair = Pair()
    compiler = aot_autograd(fw_compiler=pair.compile_forward, bw_compiler=pair.compile_backward, partition_fn=default_partition)
    # With donated buffers, which nothing here uses, backward(retain_graph=True) is an error: that is looked at when it runs.
    config.donated_buffer = False
    return compiler(module, inputs)


class Pair:
    """The forward graph of a piece of a model and, if it is trained, its backward graph."""

    def __init__(self) -> None:
        self.forward: Optional[Graph] = None
        self.backward: Optional[Graph] = None

    def compile_forward(self, module: Any, _: Any) -> Callable[[List[Any]], Any]:
        self.forward = Graph(self, module, backward=False)
        return boxed(self.forward.run)

    def compile_backward(self, module: Any, _: Any) -> Callable[[List[Any]], Any]:
        split_convolutions(module.graph)
        self.backward = Graph(self, module, backward=True)
        return boxed(self.backward.run)


def boxed(run: Callable[[List[Any]], Any]) -> Callable[[List[Any]], Any]:
    """A function that AOTAutograd calls with a list, which it empties: else values would live as long as the caller's list."""

    def call(arguments: List[Any]) -> Any:
        return run(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


class Graph:
    """A graph, and how it runs.

    nodes are what it runs, by name, in the order in which autograd would; needs names for each the nodes that it must follow.
    """

    def __init__(self, pair: Pair, module: Any, backward: bool) -> None:
        self.pair = pair
        self.is_backward = backward
        self.module = module
        graph = module.graph
        self.placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        self.nodes = {n.name: n for n in graph.nodes if n.op not in ("placeholder", "output")}
        (output,) = [n for n in graph.nodes if n.op == "output"]
        self.results = list(output.args[0])
        self.needs = dependencies(self.nodes)
        self._order = list(self.nodes)
        self._programs: Dict[bool, Callable[[List[Any]], Any]] = {}  # by whether times are wanted

    @property
    def tensors_in(self) -> List[bool]:
        """By argument of the forward graph, for each of which a backward graph has a result: whether it is a tensor."""
        assert self.pair.forward is not None
        return [isinstance(n.meta.get("val"), torch.Tensor) for n in self.pair.forward.placeholders]

    @property
    def order(self) -> List[str]:
        """The names of the nodes in the order in which they run. May be set to any order that needs allows."""
        return list(self._order)

    @order.setter
    def order(self, names: Sequence[str]) -> None:
        check_order(names, self.needs)
        if list(names) != self._order:
            self._order = list(names)
            self._programs = {}

    def run(self, arguments: List[Any]) -> Any:
        timing = watcher.timing
        if timing not in self._programs:
            self._programs[timing] = program(self, timing)
        made, ids = _handover.backward(self) if self.is_backward else None, []
        if made is None:
            ids = [id(a) for a in arguments]
            if self.pair.backward is not None:
                _handover.forward(arguments)
        run = _Run(made, [])
        arguments.append(run)
        began = time.perf_counter_ns()
        results = self._programs[timing](arguments)
        watcher.ran(self, ids, began, run.marks, time.perf_counter_ns())
        return results


class _Run(NamedTuple):
    """What a program calls while it runs."""

    made: Optional[Callable[[int, Any], Any]]  # with each result of a backward graph, which is to return the value returned
    marks: List[int]

    def mark(self) -> None:
        """A node has ended."""
        self.marks.append(time.perf_counter_ns())

    def mark_device(self) -> None:
        """A node has been given to a GPU, which must end it."""
        torch.cuda.synchronize()
        self.mark()


def program(graph: Graph, timing: bool) -> Callable[[List[Any]], Any]:
    """Code that runs the nodes in the graph's order, drops each value after its last use, and empties its list of arguments.

    The last argument is a _Run.
    """
    copy = torch.fx.Graph()
    copies: Dict[Any, Any] = {}
    for n in graph.placeholders:
        copies[n] = copy.node_copy(n)
    run = copy.placeholder("weft_run")
    results = list(graph.results)
    mark = "mark_device" if any(on_gpu(n) for n in graph.nodes.values()) else "mark"
    for name in graph.order:
        n = graph.nodes[name]
        copies[n] = copy.node_copy(n, copies.__getitem__)
        if graph.is_backward:
            for at, result in enumerate(graph.results):
                if result is n:
                    results[at] = copy.call_method("made", (run, at, copies[n]))
        if timing:
            copy.call_method(mark, (run,))
    copy.output([copies.get(r, r) if isinstance(r, torch.fx.Node) else r for r in results])
    copy.set_codegen(_Boxed())
    return torch.fx.GraphModule(graph.module, copy).forward  # type: ignore[no-any-return]


def on_gpu(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


class _Boxed(torch.fx.graph.CodeGen):
    """Code of a function that takes its arguments in a list, and empties that."""

    def gen_fn_def(self, free_vars: List[str], maybe_return_annotation: str) -> str:
        names = [v.split(":")[0].strip() for v in free_vars if v != "self"]
        return f"def {self._func_name}(self, arguments):\n    {', '.join(names)}, = arguments\n    arguments.clear()"


def dependencies(nodes: Dict[str, Any]) -> Dict[str, List[str]]:
    """For each node the names of those that must run before it.

    Beside the nodes whose values it takes: of nodes that draw random numbers or write into a value, each stays where it is, after
    all that stand before it and before all that stand after.
    """
    needs: Dict[str, List[str]] = {}
    fence: Optional[str] = None
    since: List[str] = []  # the fence
    for name, n in nodes.items():
        mine = [a.name for a in n.all_input_nodes if a.name in nodes]
        if _is_fence(n):
            mine += [s for s in since if s not in mine]
        if fence is not None and fence not in mine:
            mine.append(fence)
        needs[name] = mine
        if _is_fence(n):
            fence, since = name, []
        else:
            since.append(name)
    return needs


def _is_fence(node: Any) -> bool:
    if node.op == "get_attr":
        return False
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return bool(target._schema.is_mutable) or torch.Tag.nondeterministic_seeded in target.tags
    return getattr(target, "__module__", "") not in ("_operator", "math")


def check_order(names: Sequence[str], needs: Dict[str, List[str]]) -> None:
    """Raises ValueError unless names are the keys of needs, each after what it needs."""
    done = set()
    for name in names:
        if name not in needs or name in done:
            raise ValueError(f"order: {name} " + ("occurs twice" if name in done else "is no node of the graph"))
        for other in needs[name]:
            if other not in done:
                raise ValueError(f"order: {name} needs {other}, which comes later")
        done.add(name)
    if len(done) < len(needs):
        raise ValueError(f"order: {next(n for n in needs if n not in done)} is missing")


def split_convolutions(graph: Any) -> None:
    """Makes two nodes of each that computes both the gradients of a convolution's input and of its weight.

    They take as long as the one, and give the same bits. In one node, neither gradient of a chain of convolutions can wait for
    the other, which leaves nothing to re-order.
    """
    convolution_backward = torch.ops.aten.convolution_backward.default
    for n in list(graph.nodes):
        if n.op != "call_function" or n.target is not convolution_backward:
            continue
        *arguments, mask = n.args
        of_input, of_weight, of_bias = mask
        if n.kwargs or not of_input or not (of_weight or of_bias):
            continue
        with graph.inserting_before(n):
            parts = [graph.call_function(n.target, (*arguments, m)) for m in ([False, of_weight, of_bias], [True, False, False])]
        for part in parts:
            value, wanted = n.meta.get("val"), part.args[-1]
            part.meta = dict(n.meta)
            if value is not None:
                part.meta["val"] = tuple(v if w else None for v, w in zip(value, wanted))
        for user in list(n.users):
            assert user.target is operator.getitem
            user.args = (parts[1 if user.args[1] == 0 else 0], user.args[1])
        graph.erase_node(n)
    graph.lint()
