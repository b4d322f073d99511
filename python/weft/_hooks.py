"""Hooks into autograd: on the gradients of parameters, on a model's forward pass, on an optimizer's step."""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, Iterator, Optional

import torch

if hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):  # torch 2.1

    class GradientHook:
        """Calls a function each time that a backward pass has added to parameter.grad."""

        def __init__(self, parameter: torch.Tensor, function: Callable[[], None]) -> None:
            self._parameter = parameter
            self._handle = parameter.register_post_accumulate_grad_hook(lambda _: function())

        def lost(self) -> bool:
            """Whether the function will not be called any more."""
            return self._handle.id not in (self._parameter._post_accumulate_grad_hooks or ())

        def remove(self) -> None:
            self._handle.remove()

else:

    class GradientHook:  # type: ignore[no-redef]
        """Calls a function each time that a backward pass has added to parameter.grad."""

        def __init__(self, parameter: torch.Tensor, function: Callable[[], None]) -> None:
            self._parameter = parameter
            # The graph alone keeps this node alive. Were it freed, the next graph would make a new one, without our hook.
            self._node = _accumulate_node(parameter)
            self._handle = self._node.register_hook(lambda *_: function())

        def lost(self) -> bool:
            """Whether the function will not be called any more: the parameter got data of another type or device."""
            return _accumulate_node(self._parameter) is not self._node

        def remove(self) -> None:
            self._handle.remove()

    def _accumulate_node(parameter: torch.Tensor) -> Any:
        """The node of the graph that adds to parameter.grad. The parameter must require a gradient."""
        with torch.enable_grad():
            return parameter.expand_as(parameter).grad_fn.next_functions[0][0]


if hasattr(torch, "compiler") and hasattr(torch.compiler, "is_dynamo_compiling"):
    _is_compiling = torch.compiler.is_dynamo_compiling
else:

    def _is_compiling() -> bool:
        return False


if hasattr(torch._C, "_dynamo"):
    from torch._C._dynamo.eval_frame import set_eval_frame as _set_eval_frame
else:

    def _set_eval_frame(_: Any) -> Any:
        return None


class uncompiled:
    """A context in which torch.compile lets the functions be that are called. Within what it compiles, it would take up ours."""

    def __enter__(self) -> None:
        self._before = _set_eval_frame(None)

    def __exit__(self, *_: Any) -> None:
        _set_eval_frame(self._before)


class ForwardHook:
    """A hook on a model. It does not go along into copies of the model, in memory (deepcopy) or on disk."""

    def __init__(self, function: Optional[Callable[..., None]] = None) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        # The compiler would give up a model, such as a Sequential, whose hooks it meets and cannot compile.
        if self._function is not None and not _is_compiling():
            with uncompiled():
                self._function(*args)

    def __reduce__(self) -> Any:
        return ForwardHook, ()


if hasattr(torch.optim.Optimizer, "register_step_pre_hook"):  # torch 2.0

    class StepHook:
        """Calls a function before each step of an optimizer, and another one after it."""

        def __init__(
            self, optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Optional[Callable[[], None]] = None
        ) -> None:
            self._handles = [optimizer.register_step_pre_hook(lambda *_: before())]
            if after is not None:
                self._handles.append(optimizer.register_step_post_hook(lambda *_: after()))

        def remove(self) -> None:
            for h in self._handles:
                h.remove()

else:

    class StepHook:  # type: ignore[no-redef]
        """Calls a function before each step of an optimizer, and another one after it."""

        def __init__(
            self, optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Optional[Callable[[], None]] = None
        ) -> None:
            self._before: Optional[Callable[[], None]] = before
            self._after = after
            # A scheduler replaces this attribute of the object too, be it before us or after: each calls what it found, and a
            # scheduler needs it to be a method.
            step = optimizer.step

            @functools.wraps(step)
            def hooked(_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
                if self._before is not None:
                    self._before()
                result = step(*args, **kwargs)
                if self._after is not None:
                    self._after()
                return result

            hooked._weft = True  # type: ignore[attr-defined]
            optimizer.step = types.MethodType(hooked, optimizer)  # type: ignore[method-assign]

        def remove(self) -> None:
            self._before = self._after = None


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Has the engine call a function at the end of the backward pass that now runs. Callable in hooks only."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def tensors_in(output: Any) -> Iterator[torch.Tensor]:
    """The tensors in a model's output, however nested."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for o in output.values():
            yield from tensors_in(o)
    elif isinstance(output, (list, tuple)):
        for o in output:
            yield from tensors_in(o)
