"""Where a model keeps its parameters and buffers."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch

from ._client import WeftError
from ._guard import plainly


class Places:
    """Where a model keeps its parameters and buffers, so that it is quick to see whether they are still the same."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters: List[Tuple[str, Dict[str, Any], str, torch.nn.Parameter, torch.dtype, bool]] = []
        self._buffers: List[Tuple[Dict[str, Any], str]] = []
        seen = set()
        # TorchScript's dictionaries have neither get nor iteration.
        for prefix, module in model.named_modules():
            for key, p in module._parameters.items():
                if p is not None and p not in seen:
                    seen.add(p)
                    name = f"{prefix}.{key}" if prefix else key
                    self._parameters.append((name, module._parameters, key, p, p.dtype, p.requires_grad))
            self._buffers += [(module._buffers, key) for key in module._buffers.keys()]

    def trained(self) -> List[Tuple[str, torch.nn.Parameter]]:
        """Names and parameters that require a gradient, in the order of model.parameters(); empty ones need no reducing."""
        return [(name, p) for name, _, _, p, _, trained in self._parameters if trained and p.numel() > 0]

    def buffers(self) -> List[torch.Tensor]:
        """The model's buffers as they are now: modules replace them."""
        return [module[key] for module, key in self._buffers if key in module and module[key] is not None]

    def verify(self) -> None:
        """Raises WeftError for a parameter whose gradient would not be averaged, or not as what it is now."""
        with plainly():  # only what they are is asked, so that none that is guarded need be complete
            self._verify()

    def _verify(self) -> None:
        for name, module, key, p, dtype, trained in self._parameters:
            if key not in module or module[key] is not p:
                what = "was replaced (load_state_dict(assign=True), for example)"
            elif p.dtype is not dtype:
                what = f"changed from {dtype} to {p.dtype}"
            elif p.requires_grad and not trained:
                what = "requires a gradient now, and did not"
            else:
                continue
            raise WeftError(f"parameter {name} {what} since weft.wrap(model, optimizer): do that first, then wrap")
