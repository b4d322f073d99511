"""Tensors that lie in a shared region."""

from __future__ import annotations

import mmap
from typing import Sequence

import torch

from ._client import ELEMENT_BYTES

DTYPES = {name: getattr(torch, name) for name in ELEMENT_BYTES}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype, of: str) -> str:
    """The wire name of a type. Raises TypeError, naming what it is the type of, for one that cannot be reduced."""
    try:
        return _NAMES[dtype]
    except KeyError:
        raise TypeError(f"{of} is of type {dtype}, which weft cannot reduce; it can: {', '.join(DTYPES)}") from None


def view(region: mmap.mmap, dtype: torch.dtype, offset: int, shape: Sequence[int]) -> torch.Tensor:
    """A contiguous tensor of a shape, offset bytes into a region, sharing its memory.

    It keeps the region mapped. Never call region.close(): the tensor would then point nowhere.
    """
    elements = torch.Size(shape).numel()
    if elements == 0:  # frombuffer refuses
        return torch.empty(torch.Size(shape), dtype=dtype)
    return torch.frombuffer(region, dtype=dtype, count=elements, offset=offset).view(torch.Size(shape))
