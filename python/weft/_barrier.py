"""What may cross the barrier: whose update may wait for the first read of its parameter, and whose must not."""

from __future__ import annotations

import sys
import warnings
from typing import Any, List, Optional, Sequence, Set, Tuple

import torch

from ._client import Layout
from ._guard import refused

# The optimizers whose update of a tensor depends on nothing but that tensor, its gradient, its state and its group's
# hyper-parameters, and which keep nothing else.
_SEPARABLE = {
    getattr(torch.optim, name)
    for name in "Adadelta Adafactor Adagrad Adam AdamW Adamax ASGD NAdam RAdam RMSprop Rprop SGD Muon".split()
    if hasattr(torch.optim, name)
}


def whole_only(optimizer: torch.optim.Optimizer, separable: Optional[bool] = None) -> Optional[str]:
    """Why an optimizer's step must be applied to all tensors at once, or None if it need not be.

    separable is what the user says of it, if anything.
    """
    name = type(optimizer).__name__
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"{name} is differentiable"
    step = optimizer.__dict__.get("step")
    # By a scheduler (torch 1, torch 2), or by us.
    if step is not None and not any(hasattr(step, mark) for mark in ("_with_counter", "_wrapped_by_lr_sched", "_weft")):
        return f"the step of this {name} was replaced"
    if _has_step_hooks(optimizer):
        return f"{name} has hooks on its step"
    if separable is not None:
        return None if separable else "wrap(separable=False) says so"
    known = next((c for c in type(optimizer).__mro__ if c in _SEPARABLE), None)
    if known is None:
        return f"{name} is not one that is known to update each tensor by itself; if it does, wrap(separable=True) says so"
    if own_step(type(optimizer)) is not own_step(known):
        return f"{name} has a step of its own; if that updates each tensor by itself, wrap(separable=True) says so"
    return None


def _has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    hooks = [getattr(optimizer, f"_optimizer_step_{when}_hooks", None) for when in ("pre", "post")]
    module = sys.modules[torch.optim.Optimizer.__module__]  # torch.optim has no attribute for it
    hooks += [getattr(module, f"_global_optimizer_{when}_hooks", None) for when in ("pre", "post")]
    ours = __name__.rpartition(".")[0]  # they look at the clock
    return any(getattr(f, "__module__", "").rpartition(".")[0] != ours for of in hooks for f in (of or {}).values())


def needs_all(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this call of step must be applied to all tensors at once: of what was not there when whole_only was asked."""
    scaled = any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf"))  # GradScaler's
    return scaled or _has_step_hooks(optimizer)


def own_step(cls: type) -> Any:
    """The step of an optimizer's class, without what torch wraps around it to profile it."""
    step: Any = cls.step  # type: ignore[attr-defined]
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def reads_only(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer's step, tensor by tensor, is known to write no gradient and to keep none. Those for lists of tensors do."""
    known = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
    plain = not any(group.get(how) for group in optimizer.param_groups for how in ("foreach", "fused", "differentiable"))
    return plain and own_step(type(optimizer)) in map(own_step, known)


def barrier(
    model: torch.nn.Module, parameters: Sequence[Tuple[str, torch.Tensor]], optimizer: torch.optim.Optimizer, separable: Optional[bool]
) -> Optional[str]:
    """Why no update of a model's named parameters may wait for a read, or None if it may."""
    if any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        return "TorchScript reads parameters behind Python's back"
    for name, p in parameters:
        why = refused(p)
        if why is not None:
            return f"nothing tells when parameter {name} is read: {why}"
    return whole_only(optimizer, separable)


def updated_at_read(layout: Layout, why_not: Optional[str], rank: int = 0) -> List[Set[int]]:
    """By generation of a period of a plan without delay, the positions of the parameters whose updates wait for a read; none if
    there is a reason.

    Rank 0 warns if there is one.
    """
    if rank == 0 and why_not is not None and layout.policy != "ddp" and not layout.review:  # reviews know that there is a reason
        warnings.warn(
            f"weft: {why_not}. A plan that applies updates one by one, as that of policy {layout.policy} may, is executed so that"
            " backward() returns with all averages",
            stacklevel=6,
        )
    at_read: List[Set[int]] = [set() for _ in layout.ends]
    for u in layout.updates:
        if u.at == "read" and why_not is None:
            at_read[u.generation].update(k - 1 for k in u.tensors)
    return at_read
