"""This rank's own gradients between a backward pass and step(), where the plan delays their average."""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence

import torch

from ._guard import guard, release


class _Local:
    """Guards a gradient: whoever reads it takes it for the average."""

    def __init__(self, gradient: torch.Tensor, read: Callable[[], None]) -> None:
        """read is called at a read."""
        self.gradient = gradient
        self._version = gradient._version
        self._found: Optional[torch.Tensor] = None  # what was there when it was read
        self._read = read
        guard(gradient, self)

    def complete(self) -> None:
        release(self.gradient)
        self._found = self.gradient.detach().clone()
        self._read()

    def changed(self) -> bool:
        """Whether it has been written. Not all of torch counts versions: what GradScaler calls for lists of tensors does not."""
        if self._found is None or self.gradient._version != self._version:
            return self.gradient._version != self._version
        now = self.gradient.detach()
        return not bool(((now == self._found) | ((now != now) & (self._found != self._found))).all())

    def get_grad(self) -> Optional[torch.Tensor]:
        return self.gradient

    def set_grad(self, value: Optional[torch.Tensor]) -> None:
        pass

    def zero(self, tensor: torch.Tensor) -> None:
        self.complete()


class Locals:
    """The gradients of the last pass, which are watched until step()."""

    def __init__(self, parameters: Sequence[torch.Tensor], read: Callable[[], None]) -> None:
        """read is called when one is read."""
        self._parameters = parameters
        self._read = read
        self._grads: List[Optional[torch.Tensor]] = []
        self._guards: List[_Local] = []

    def watch(self) -> None:
        """Looks from now on at what each parameter.grad is now."""
        self._grads = [p.grad for p in self._parameters]
        self._guards = [_Local(g, self._read) for g in {id(g): g for g in self._grads if g is not None}.values()]

    def release(self) -> List[_Local]:
        """Looks no more; returns what there was to look at."""
        for local in self._guards:
            release(local.gradient)
        self._guards, those = [], self._guards
        return those

    def settle(self) -> bool:
        """Looks no more; returns whether a gradient has been changed, or replaced."""
        grads, self._grads = self._grads, []
        changed = any([local.changed() for local in self.release()])
        return changed or any(p.grad is not g for p, g in zip(self._parameters, grads))
