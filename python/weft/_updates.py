"""An optimizer whose step() returns before all gradients have come: each tensor's update is applied when its own has.

The user's own step does the work, on a part of the parameters at a time, with the hyper-parameters that held when it was called.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import types
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, List, Optional, Tuple

import torch

from ._barrier import own_step, reads_only
from ._guard import raw_grad, set_raw_grad


class Step:
    """A call of step(), of which some parameters' updates are yet to be applied."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = [_options(group) for group in optimizer.param_groups]
        self._group_of = {p: g for g, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self._modes = _modes()
        self.reads_only = reads_only(optimizer)  # the gradients that apply is given, which others must be able to write

    def state(self) -> List[Dict[str, Any]]:
        """Its hyper-parameters, for restored."""
        return [_options(group) for group in self._groups]

    @classmethod
    def restored(cls, optimizer: torch.optim.Optimizer, state: Optional[List[Dict[str, Any]]]) -> Optional["Step"]:
        """A call of step() that had these hyper-parameters, in the modes of now; None of None."""
        if state is None:
            return None
        step = cls(optimizer)
        step._groups = [_options(group) for group in state]
        return step

    def has(self, parameter: torch.Tensor) -> bool:
        """Whether the optimizer has a parameter."""
        return parameter in self._group_of

    def apply(self, gradients: List[Tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Updates parameters by their gradients, which may be written unless reads_only. Each parameter's .grad is what it was afterwards."""
        members: Dict[int, List[torch.Tensor]] = {}
        before = []
        for p, grad in gradients:
            members.setdefault(self._group_of[p], []).append(p)
            before.append((p, raw_grad(p)))
            set_raw_grad(p, grad)
        groups = [dict(_options(self._groups[g]), params=members[g]) for g in sorted(members)]
        try:
            with _twin(self._optimizer, groups) as twin, self._modes():
                own_step(type(twin))(twin)
        finally:
            for p, grad in before:
                set_raw_grad(p, grad)


def _options(group: Dict[str, Any]) -> Dict[str, Any]:
    """A group without its parameters, copied: tensors, and lists that a step may write into."""
    return {k: _copied(v) for k, v in group.items() if k != "params"}


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (list, dict)):
        return type(value)(value)
    return value


@contextlib.contextmanager
def _twin(optimizer: torch.optim.Optimizer, groups: List[Dict[str, Any]]) -> Iterator[torch.optim.Optimizer]:
    """The optimizer, with other groups, in a step: other threads see none of it, but the state, which is the same."""
    twin: torch.optim.Optimizer = object.__new__(type(optimizer))
    own = {"param_groups": groups, "_weft_busy": True}
    twin.__dict__.update(optimizer.__dict__, **own)
    try:
        yield twin
    finally:
        for name, value in twin.__dict__.items():
            if name not in own and optimizer.__dict__.get(name) is not value:
                optimizer.__dict__[name] = value


def _autocast(kind: str) -> Tuple[bool, torch.dtype]:
    """Whether autocast is on for a kind of device, and to which type."""
    if hasattr(torch, "get_autocast_dtype"):  # torch 2.4
        return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    if kind == "cuda":
        return torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()
    return torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()


def _modes() -> Callable[[], ContextManager[Any]]:
    """Makes contexts with torch's modes as they are now, for a step: without gradients, and never in inference mode."""
    kinds = [kind for kind in ("cpu", "cuda") if kind == "cpu" or torch.cuda.is_available()]
    states = {kind: _autocast(kind) for kind in kinds}

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            for kind, state in states.items():
                if _autocast(kind) != state:
                    stack.enter_context(torch.autocast(kind, dtype=state[1], enabled=state[0]))
            yield

    return context


class Deferring:
    """What the class of a wrapped optimizer has before the user's own: nobody sees its state before it is up to date."""

    _weft_finish: Callable[[], None]

    @property
    def state(self) -> Any:
        if not self.__dict__.get("_weft_busy"):
            self._weft_finish()
        return self.__dict__["state"]

    @state.setter
    def state(self, value: Any) -> None:
        self.__dict__["state"] = value

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self._weft_finish()  # load_state_dict
        super().__setstate__(state)  # type: ignore[misc]

    def __getstate__(self) -> Dict[str, Any]:
        self._weft_finish()
        return super().__getstate__()  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies, in memory or on disk, are of the user's own class."""
        return copyreg._reconstructor, (type(self).__mro__[2], object, None), self.__getstate__()  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=None)
def _deferring_class(cls: type) -> type:
    return type(cls)(cls.__name__, (Deferring, cls), {"__module__": cls.__module__, "__qualname__": cls.__qualname__})


class Updates:
    """Makes an optimizer's step() return at once. The optimizer stays the user's own object; its class is swapped.

    step is called in place of it, with a function that calls the user's own and its arguments; finish, before the optimizer's
    state is read or replaced: no update may be outstanding then.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, step: Callable[..., Any], finish: Callable[[], None]) -> None:
        self._optimizer = optimizer
        self._class = type(optimizer)
        self._step: Optional[Callable[..., Any]] = step
        # A scheduler replaces this attribute of the object too, be it before us or after: each calls what it found.
        outer = optimizer.step

        @functools.wraps(outer)
        def deferred(_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            own = functools.partial(outer, *args, **kwargs)
            return self._step(own, *args, **kwargs) if self._step is not None else own()

        deferred._weft = True  # type: ignore[attr-defined]
        optimizer.__class__ = _deferring_class(self._class)
        optimizer.__dict__["_weft_finish"] = finish
        optimizer.step = types.MethodType(deferred, optimizer)  # type: ignore[method-assign]

    def remove(self) -> None:
        """Leaves the optimizer of its own class."""
        self._step = None
        self._optimizer.__class__ = self._class
        self._optimizer.__dict__.pop("_weft_finish", None)


def step_but(optimizer: torch.optim.Optimizer, own: Callable[[], Any], deferred: Iterable[torch.Tensor]) -> Any:
    """Calls the user's step with all parameters but some, and returns what it returns.

    So a scheduler's count, a profiler's mark and a group's own counters advance once for each call of step().
    """
    left_out = set(deferred)
    groups = optimizer.param_groups
    kept = [group["params"] for group in groups]
    for group, params in zip(groups, kept):
        group["params"] = [p for p in params if p not in left_out]
    before, optimizer.__dict__["_weft_busy"] = optimizer.__dict__.get("_weft_busy", False), True
    try:
        return own()
    finally:
        optimizer.__dict__["_weft_busy"] = before
        for group, params in zip(groups, kept):
            group["params"] = params
