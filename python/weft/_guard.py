"""Tensors that are not yet what they should be, and become it when somebody looks.

While a tensor is guarded, its class is one made for that: a subclass of its own, through whose __torch_function__ every call
passes that torch dispatches, methods, attributes, functions with lists of tensors, in-place ones. Modules, optimizers and
users meet the very object that they know. What bypasses __torch_function__ is not seen: TorchScript, extensions in C++ that take
tensors from Python themselves, and aliases (w = p.data) made before.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Protocol

import torch

from ._hooks import uncompiled

if hasattr(torch._C, "DisableTorchFunctionSubclass"):  # torch 2.0
    plainly = torch._C.DisableTorchFunctionSubclass
else:
    plainly = torch._C.DisableTorchFunction  # a context in which guards, too, are called as plain tensors


class Pending(Protocol):
    """Why a tensor is guarded."""

    def complete(self) -> None:
        """Makes the tensor what it should be, and releases it."""

    def get_grad(self) -> Optional[torch.Tensor]:
        """What .grad of the parameter is to a reader."""

    def set_grad(self, value: Optional[torch.Tensor]) -> None:
        """.grad of the parameter becomes another tensor, or None."""

    def zero(self, tensor: torch.Tensor) -> None:
        """The tensor is about to be set to zero: a gradient need not come any more, a parameter must be complete."""


class _Guarded(NamedTuple):
    tensor: torch.Tensor  # so that its Python object, and with it its class, lives on
    cls: type  # its own
    why: Pending
    thread: int  # that guarded it


_guarded: Dict[int, _Guarded] = {}  # by id of the tensor


def guard(tensor: torch.Tensor, why: Pending) -> None:
    """Guards a tensor until release. It is the caller's to guard no tensor twice."""
    cls = type(tensor)
    _guarded[id(tensor)] = _Guarded(tensor, cls, why, threading.get_ident())
    tensor.__class__ = _guard_class(cls)


def release(tensor: torch.Tensor) -> None:
    """The tensor is what it should be, and of its own class again. Nothing happens to one that is not guarded."""
    found = _guarded.pop(id(tensor), None)
    if found is not None:
        tensor.__class__ = found.cls


def pending(tensor: torch.Tensor) -> Optional[Pending]:
    """Why a tensor is guarded, or None if it is not."""
    found = _guarded.get(id(tensor))
    return found.why if found is not None else None


def refused(tensor: torch.Tensor) -> Optional[str]:
    """Why a tensor cannot be guarded, or None if it can."""
    cls = type(tensor)
    if cls.__torch_dispatch__ not in (torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl):
        return f"{cls.__name__} has a __torch_dispatch__ of its own"
    try:
        tensor.__class__ = _guard_class(cls)
        tensor.__class__ = cls
    except TypeError as e:
        return str(e)
    return None


def raw_grad(parameter: torch.Tensor) -> Optional[torch.Tensor]:
    """What autograd has in parameter.grad, guarded or not."""
    with plainly():
        return parameter.grad


def set_raw_grad(parameter: torch.Tensor, grad: Optional[torch.Tensor]) -> None:
    """Sets what autograd has in parameter.grad, guarded or not."""
    with plainly():
        parameter.grad = grad


class _Guard:
    """What a guarded tensor's class has before its own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[misc]
        special = _SPECIAL.get(func)
        if special is not None:
            return special(*args, **kwargs)
        _complete(args, kwargs)
        return func(*args, **kwargs)

    # These ask for type(self) before they ask torch for anything.
    def __deepcopy__(self, memo: Any) -> Any:
        _complete([self])
        return self.__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _complete([self])
        return self.__reduce_ex__(protocol)


@functools.lru_cache(maxsize=None)
def _guard_class(cls: type) -> type:
    return type(cls)(cls.__name__, (_Guard, cls), {"__module__": cls.__module__, "__qualname__": cls.__qualname__})


def _complete(*arguments: Any) -> None:
    """Completes all guarded tensors among arguments, in any lists, tuples and dicts."""
    found = [t for a in arguments for t in _guarded_in(a)]
    if not found:  # in a container of another kind: of one model, all may be waited for at any time
        here = threading.get_ident()
        # First what this thread guards: where ranks are threads, another's model may wait for this one. What it was not, comes back.
        found = [g for g in _guarded.values() if g.thread == here] or list(_guarded.values())
    with uncompiled():
        for g in found:
            if pending(g.tensor) is g.why:  # one may be there twice, or complete others
                g.why.complete()


def _guarded_in(value: Any) -> Iterator[_Guarded]:
    if isinstance(value, _Guard):
        found = _guarded.get(id(value))
        if found is not None:
            yield found
    elif isinstance(value, dict):
        for v in value.values():
            yield from _guarded_in(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _guarded_in(v)


def _get_grad(parameter: torch.Tensor) -> Optional[torch.Tensor]:
    why = pending(parameter)
    return why.get_grad() if why is not None else parameter.grad


def _set_grad(parameter: torch.Tensor, value: Any = None) -> None:
    why = pending(parameter)
    if why is not None:
        why.set_grad(value)
    else:
        parameter.grad = value


def _zero(gradient: torch.Tensor) -> torch.Tensor:
    why = pending(gradient)
    if why is not None:
        why.zero(gradient)
    return gradient.zero_()


def _foreach_zero(gradients: List[torch.Tensor]) -> None:
    for g in gradients:
        _zero(g)


# What tells nothing of a tensor's elements, nor leads to them. What a torch has not, it need not ignore.
_METADATA = {
    getattr(torch.Tensor, name).__get__
    for name in (
        "shape dtype device layout ndim names is_leaf grad_fn requires_grad output_nr is_cuda is_cpu is_sparse is_sparse_csr"
        " is_quantized is_meta is_mkldnn is_mps is_xpu is_ipu is_nested is_vulkan retains_grad itemsize nbytes"
        " _backward_hooks _post_accumulate_grad_hooks"
    ).split()
    if hasattr(torch.Tensor, name)
} | {
    torch.Tensor.requires_grad.__set__,
    torch.Tensor._backward_hooks.__set__,
    torch.is_floating_point, torch.is_complex, torch.numel, torch.is_same_size, torch.is_inference,
} | {
    getattr(torch.Tensor, name)
    for name in (
        "size stride dim ndimension numel nelement element_size is_contiguous is_floating_point is_complex is_signed"
        " storage_offset get_device __len__ has_names is_inference is_same_size register_hook requires_grad_ is_distributed"
        " register_post_accumulate_grad_hook retain_grad"
    ).split()
    if hasattr(torch.Tensor, name)
}  # fmt: skip

# .grad of a parameter, and the ways of zero_grad to discard what it holds: none of them waits.
_SPECIAL = {
    torch.Tensor.grad.__get__: _get_grad,
    torch.Tensor.grad.__set__: _set_grad,
    torch.Tensor.grad.__delete__: _set_grad,
    torch.Tensor.zero_: _zero,
    torch.zero_: _zero,
    torch._foreach_zero_: _foreach_zero,
}
