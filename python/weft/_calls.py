"""Collectives outside the plan: through a part of the shared regions, as many times as it takes."""

from __future__ import annotations

import io
from typing import Any, Iterable, Iterator, List, Tuple

import torch

from ._client import Client, Layout
from ._device import Device
from ._memory import dtype_name, view

OPS = ("sum", "mean", "min", "max")
_ALIGN = 16  # bytes: no element type is larger


class Calls:
    """Collective calls of a worker; every worker makes the same ones, with tensors of the same types and shapes."""

    def __init__(self, client: Client, layout: Layout, device: Device) -> None:
        self._client = client
        self._layout = layout
        self._device = device

    def barrier(self) -> None:
        """Returns once every worker has called it."""
        self._client.call(kind="barrier")

    @torch.no_grad()
    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        """Replaces a tensor of any shape by its sum, mean, min or max over all workers, element by element."""
        if op not in OPS:
            raise ValueError(f"all_reduce: op {op!r} is none of {', '.join(OPS)}")
        name = dtype_name(tensor.dtype, "all_reduce: the tensor")
        whole = tensor.data.contiguous()  # the tensor itself, where it can be
        for piece in whole.view(-1).split(self._layout.call_bytes // tensor.element_size()):
            if piece.numel() == 0:  # split's only piece of an empty tensor
                continue
            (sent,), (got,) = self._views([piece])
            self._device.copy_in(sent, piece)
            self._call(kind="all-reduce", op=op, dtype=name, elements=piece.numel())
            self._device.copy_out([piece], [got])
        if not tensor.is_contiguous():
            tensor.data.copy_(whole)

    @torch.no_grad()
    def broadcast(self, tensors: Iterable[torch.Tensor], root: int) -> None:
        """Replaces tensors of any shapes and types by those of rank root.

        They are written behind autograd's back (.data): a graph that saved a BatchNorm's buffers stays usable.
        """
        for pieces in _batches(tensors, self._layout.call_bytes):
            sent, got = self._views(pieces)
            if self._client.rank == root:
                for s, piece in zip(sent, pieces):
                    self._device.copy_in(s, piece)
            self._call(kind="broadcast", root=root, bytes=_end(pieces))
            if self._client.rank != root:
                self._device.copy_out(pieces, got)

    def _call(self, **request: Any) -> None:
        """Makes a call when its data are copied in, and those of the last one out."""
        self._device.when_copied(lambda: self._client.call(**request))
        self._device.settle()

    def broadcast_object(self, value: Any, root: int) -> Any:
        """Returns rank root's value, of anything that torch.save can write."""
        file = io.BytesIO()
        if self._client.rank == root:
            torch.save(value, file)
        size = torch.tensor(file.tell())
        self.broadcast([size], root)
        data = torch.empty(int(size), dtype=torch.uint8)
        if self._client.rank == root:
            data.copy_(torch.frombuffer(file.getbuffer(), dtype=torch.uint8))
        self.broadcast([data], root)
        return torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=False)  # from a worker that has our secret

    def _views(self, pieces: List[torch.Tensor]) -> Tuple[List[torch.Tensor], List[torch.Tensor]]:
        at = [self._layout.call_offset + offset for offset in _offsets(pieces)]
        return (
            [view(self._layout.input, p.dtype, a, p.shape) for a, p in zip(at, pieces)],
            [view(self._layout.output, p.dtype, a, p.shape) for a, p in zip(at, pieces)],
        )


def _size(piece: torch.Tensor) -> int:
    return piece.numel() * piece.element_size()


def _offsets(pieces: List[torch.Tensor]) -> List[int]:
    offsets, end = [], 0
    for p in pieces:
        offsets.append(-(-end // _ALIGN) * _ALIGN)
        end = offsets[-1] + _size(p)
    return offsets


def _end(pieces: List[torch.Tensor]) -> int:
    return _offsets(pieces)[-1] + _size(pieces[-1])


def _batches(tensors: Iterable[torch.Tensor], limit: int) -> Iterator[List[torch.Tensor]]:
    """Lists of tensors that fit into limit bytes together: views of the given ones, those too large cut."""
    batch: List[torch.Tensor] = []
    room = limit
    for piece in _pieces(tensors, limit):
        need = -(-_size(piece) // _ALIGN) * _ALIGN
        if batch and need > room:
            yield batch
            batch, room = [], limit
        batch.append(piece)
        room -= need
    if batch:
        yield batch


def _pieces(tensors: Iterable[torch.Tensor], limit: int) -> Iterator[torch.Tensor]:
    for t in tensors:
        if t.numel() == 0:
            continue
        if _size(t) <= limit:
            yield t.data
        elif t.dim() > 0 and t.is_contiguous():
            yield from t.data.view(-1).split(limit // t.element_size())
        else:  # cut along the first dimension, which a view of any strides allows
            yield from _pieces(t.data.unbind(0), limit)
