"""How this worker's loss falls: by this the agent judges what fewer updates would cost (policy deft's preserver)."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from ._guard import raw_grad


class Descent:
    """The losses of iterations, and what their steps take off them: this rank's gradient times the change of the parameters.

    A loss is what backward() was called on. Until stop, torch.autograd.backward, through which that goes, is one that looks. It
    takes memory for the parameters and their gradients once more.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], sums: bool) -> None:
        self._parameters = parameters
        self._sums = sums
        self._on = True
        self._root: Optional[float] = None  # of the backward pass that runs, if it has reached none of our parameters yet
        self._loss: Optional[float] = None  # of this iteration's passes; None: there was none
        # Of the iteration whose step is yet to come: the parameters, as they are, and their gradients on this rank.
        self._before: List[Tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._losses: List[float] = []
        self._drifts: List[float] = []
        own = self._own = torch.autograd.backward

        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self._on:
                scalar = isinstance(tensors, torch.Tensor) and tensors.numel() == 1 and grad_tensors is None
                self._root = float(tensors.detach()) if scalar else None
            return own(tensors, grad_tensors, *args, **kwargs)

        self._backward = backward
        torch.autograd.backward = backward

    def reached(self) -> None:
        """A backward pass has reached a parameter."""
        if self._root is not None:
            self._loss = (self._loss or 0.0) + self._root
            self._root = None

    def sent(self) -> None:
        """The iteration's gradients are complete, and still this rank's."""
        self._before = []
        if self._loss is not None:
            for p in self._parameters:
                grad = raw_grad(p)
                if grad is not None:
                    self._before.append((p, p.detach().clone(), grad.detach().clone()))
            self._losses.append(self._loss)
        self._loss = None

    def stepped(self) -> None:
        """The optimizer has made its step."""
        if self._before:
            self._drifts.append(sum(float(((before - p.detach()) * grad).sum(dtype=torch.float64)) for p, before, grad in self._before))
            self._before = []

    def stop(self) -> None:
        """Looks at no further iteration, but at the step of the last one."""
        self._on = False
        if torch.autograd.backward is self._backward:
            torch.autograd.backward = self._own

    def report(self) -> Dict[str, Any]:
        """What was seen; nothing if that is not whole."""
        seen = [*self._losses, *self._drifts]
        if not seen or len(self._losses) != len(self._drifts) or not all(map(math.isfinite, seen)):
            return {}
        return {"losses": self._losses, "drifts": self._drifts, "sum": self._sums}
