"""Gradients that leave a compiled backward graph as soon as their node has run, not when the whole graph has."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ._hooks import at_end_of_backward

# Which node made a gradient: its graph, and the position among the graph's results.
Source = Tuple[Any, int]


class _Made(NamedTuple):
    """A gradient of a parameter that a graph has made and autograd is to accumulate."""

    task: int  # of autograd's engine: one pass
    source: Source
    storage: Any  # weak; while it is referenced, no other storage has its address
    version: int
    taken: bool


class HandOver:
    """Hands over the gradients of some parameters as early as it is known that they are whole.

    Of a parameter used elsewhere as well (in another graph, twice in this one's iteration, in code that is not compiled), a
    graph makes a part of the gradient only. Nothing tells how many parts autograd will add; so a gradient is handed over early
    only if, in the parameter's last pass, what autograd accumulated was the very tensor that this node had made. Every pass
    looks again, at accumulation: a part that was handed over is noticed there, and never taken for the whole.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], take: Callable[[int, torch.Tensor], bool]) -> None:
        """take is called with a parameter's position and its gradient, and returns whether it has taken it.

        accumulated() is to be called in each parameter's only accumulate hook. A later HandOver of a parameter replaces this one.
        """
        self._take = take
        self._parameters = list(parameters)
        self._runs = [0] * len(parameters)  # by parameter: forward graphs that have read it since the last pass
        self._sole: List[Optional[Source]] = [None] * len(parameters)  # what alone made the gradient in the last pass
        self._made: Dict[int, _Made] = {}
        self._task = -1
        for k, p in enumerate(parameters):
            _handed[id(p)] = (self, k)

    def remove(self) -> None:
        """Hands over nothing any more."""
        for k, p in enumerate(self._parameters):
            if _handed.get(id(p)) == (self, k):
                del _handed[id(p)]

    def accumulated(self, k: int) -> bool:
        """The accumulate hook of parameter k: whether parameter.grad has been taken already."""
        made = self._made.pop(k, None)
        if made is None or made.task != torch._C._current_graph_task_id():
            self._sole[k] = None
            return False
        grad = self._parameters[k].grad
        same = grad.layout is torch.strided and made.storage.holds(grad) and grad._version == made.version
        self._sole[k] = made.source if same else None
        return same and made.taken

    def sole(self, k: int) -> Optional[Source]:
        """What alone made the gradient of parameter k in its last pass; None: several, or what is not known."""
        return self._sole[k]

    def _reads(self, k: int) -> None:
        self._runs[k] += 1

    def _begins(self, task: int) -> None:
        if task != self._task:
            self._task = task
            at_end_of_backward(self._ends)

    def _ends(self) -> None:
        self._runs = [0] * len(self._parameters)

    def _is_whole(self, k: int, source: Source, node: Any) -> bool:
        """Whether what a source will make is all that the node accumulates into parameter k, and all that .grad will then hold."""
        p = self._parameters[k]
        return (
            self._sole[k] == source
            and self._runs[k] <= 1
            and p.grad is None
            and not p._backward_hooks
            and len(p._post_accumulate_grad_hooks or ()) == 1
            and _executes(node)
        )

    def _makes(self, k: int, source: Source, gradient: torch.Tensor, task: int, whole: bool) -> torch.Tensor:
        """A gradient of parameter k is made: what autograd is to get in its place."""
        p = self._parameters[k]
        if gradient.layout is not torch.strided or gradient.shape != p.shape or gradient.dtype != p.dtype:
            return gradient
        if gradient.stride() != p.stride():  # or autograd would copy it, for this reason
            gradient = torch.empty_like(p).copy_(gradient)
        taken = whole and self._take(k, gradient)
        self._made[k] = _Made(task, source, _StorageRef(gradient), gradient._version, taken)
        return gradient


# By id of a parameter: who gets its gradients, as the parameter of which position.
_handed: Dict[int, Tuple[HandOver, int]] = {}


def forward(arguments: Sequence[Any]) -> None:
    """The forward graph of a pair runs, with these arguments."""
    if torch._C._current_graph_task_id() != -1:
        return  # a checkpointed part runs again, and will make no second gradient
    for a in arguments:
        handed = _handed.get(id(a))
        if handed is not None:
            handed[0]._reads(handed[1])


def backward(graph: Any) -> Callable[[int, Any], Any]:
    """A backward graph runs, within autograd. Returns what it is to call with each result's position and value.

    That returns what the graph is to return in the value's place: equal, but laid out as autograd takes it without a copy.
    """
    if not _handed:
        return lambda _, value: value
    task = torch._C._current_graph_task_id()
    copied = torch._C._autograd._get_current_graph_task_keep_graph()
    receivers: List[Optional[Tuple[HandOver, int, bool]]] = []
    for at, node in enumerate(_accumulate_nodes(graph)):
        handed = _handed.get(id(node.variable)) if node is not None else None
        if handed is None:
            receivers.append(None)
            continue
        to, k = handed
        to._begins(task)
        receivers.append((to, k, not copied and to._is_whole(k, (graph, at), node)))

    def made(at: int, value: Any) -> Any:
        receiver = receivers[at] if at < len(receivers) else None
        if receiver is None or not isinstance(value, torch.Tensor):
            return value
        to, k, whole = receiver
        return to._makes(k, (graph, at), value, task, whole)

    return made


class _StorageRef:
    """A weak reference to the memory of a tensor: autograd accumulates without a copy only what nobody else references."""

    def __init__(self, tensor: torch.Tensor) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self._ref = StorageWeakRef(tensor.untyped_storage())

    def holds(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.untyped_storage()._cdata == self._ref.cdata)


def _accumulate_nodes(graph: Any) -> List[Any]:
    """By result of the graph that runs: the node that accumulates it into a parameter, or None."""
    node = torch._C._current_autograd_node()
    following = iter(node.next_functions if node is not None else ())
    nodes = []
    for is_tensor in graph.tensors_in:  # autograd has no edge for an argument that is no tensor
        function = next(following, (None, 0))[0] if is_tensor else None
        nodes.append(function if function is not None and hasattr(function, "variable") else None)
    return nodes if next(following, None) is None else []


def _executes(node: Any) -> bool:
    """Whether the pass that runs will accumulate at the node."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # autograd.grad of a parameter
        return False
