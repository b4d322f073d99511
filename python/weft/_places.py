"""Where a model keeps its parameters and buffers."""

from __future__ import annotations

import itertools
from typing import Any, Collection, Dict, List, Optional, Tuple

import torch

from ._client import WeftError
from ._guard import plainly


def stranger(mine: Collection[torch.Tensor], optimizer: torch.optim.Optimizer) -> Optional[str]:
    """What an optimizer has beside the model's parameters, a set, or None."""
    for g, group in enumerate(optimizer.param_groups):
        for i, p in enumerate(group["params"]):
            if p not in mine:
                return (
                    f"parameter {i} (shape {tuple(p.shape)}) of the optimizer's group {g} is not one of the model's:"
                    " its gradient would not be averaged"
                )
    return None


class Places:
    """Where a model keeps its parameters and buffers, so that it is quick to see whether they are still the same."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._look()
        self._was = {p: (p.dtype, p.requires_grad) for _, p in self._parameters}
        self._names = {name for name, _ in self._parameters}

    def _look(self) -> None:
        self._parameters: List[Tuple[str, torch.nn.Parameter]] = []
        self._buffers: List[Tuple[Dict[str, Any], str]] = []
        self._modules = list(self._model.named_modules())
        # Looking them up in a module takes longer. TorchScript's have neither get nor iteration.
        self._dicts = [of for _, module in self._modules for of in (module._parameters, module._modules)]
        self._found = self._contents()
        seen = set()
        for prefix, module in self._modules:
            for key, p in module._parameters.items():
                if p is not None and p not in seen:
                    seen.add(p)
                    self._parameters.append((f"{prefix}.{key}" if prefix else key, p))
            self._buffers += [(module._buffers, key) for key in module._buffers.keys()]

    def _contents(self) -> List[int]:
        """The ids of all parameters and modules that modules have. They are held, so no other object has them."""
        return list(map(id, itertools.chain.from_iterable(of.values() for of in self._dicts)))

    def all(self) -> Collection[torch.Tensor]:
        """All parameters that the model has had."""
        return self._was.keys() | {p for _, p in self._parameters}

    def trained(self) -> List[Tuple[str, torch.nn.Parameter]]:
        """Names and parameters that require a gradient, in the order of model.parameters(); empty ones need no reducing."""
        return [(name, p) for name, p in self._parameters if self._was[p][1] and p.numel() > 0]

    def buffers(self) -> List[torch.Tensor]:
        """The model's buffers as they are now: modules replace them."""
        return [module[key] for module, key in self._buffers if key in module and module[key] is not None]

    def verify(self) -> None:
        """Raises WeftError for a parameter whose gradient would not be averaged, or not as what it is now."""
        with plainly():  # only what they are is asked, so that none that is guarded need be complete
            if self._contents() != self._found:  # what needs no gradient may come and go
                self._look()
            for name, p in self._parameters:
                was = self._was.get(p)
                if was is None:
                    if not p.requires_grad:
                        continue
                    what = "was replaced (load_state_dict(assign=True), for example)" if name in self._names else "was added"
                elif p.dtype is not was[0]:
                    what = f"changed from {was[0]} to {p.dtype}"
                elif p.requires_grad and not was[1]:
                    what = "requires a gradient now, and did not"
                else:
                    continue
                raise WeftError(f"parameter {name} {what} since weft.wrap(model, optimizer): do that first, then wrap")
