"""Collectives outside the plan: through a part of the shared regions, as many times as it takes.

That part is cut into places. While the agent has what lies in some of them, this worker fills and empties others.
"""

from __future__ import annotations

import collections
import functools
import io
import mmap
from typing import Any, Callable, Deque, Iterable, Iterator, List, Tuple

import torch

from ._client import Client, Layout
from ._device import Device
from ._memory import dtype_name, view

OPS = ("sum", "mean", "min", "max")
_PLACES = 4
# A tensor goes in this many parts, of no more than a place and no less than so many bytes: enough of them to reduce one while
# others are copied, and few, because each is a message to the agent and back.
_PARTS = 8
_LEAST_PART = 1 << 20
_PLACE_ALIGN = 64  # bytes
_ALIGN = 16  # bytes: no element type is larger


class Calls:
    """Collective calls of a worker; every worker makes the same ones, with tensors of the same types and shapes."""

    def __init__(self, client: Client, layout: Layout, device: Device) -> None:
        self._client = client
        self._layout = layout
        self._device = device
        self._place = layout.call_bytes // _PLACES // _PLACE_ALIGN * _PLACE_ALIGN  # bytes
        # The same tensors come again and again: making two views of one takes longer than copying 64 KiB.
        self._view = functools.lru_cache(maxsize=1024)(view)
        self._settle: Callable[[], None] = lambda: None

    def settle(self) -> None:
        """Returns once what begin_broadcast has begun is done."""
        settle, self._settle = self._settle, lambda: None
        settle()

    def barrier(self) -> None:
        """Returns once every worker has called it."""
        self.settle()
        self._client.call(kind="barrier")

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        """Replaces a tensor of any shape by its sum, mean, min or max over all workers, element by element."""
        if op not in OPS:
            raise ValueError(f"all_reduce: op {op!r} is none of {', '.join(OPS)}")
        name = dtype_name(tensor.dtype, "all_reduce: the tensor")
        whole = tensor.data.contiguous()  # the tensor itself, where it can be
        flat = whole.view(-1)
        size = min(self._place, max(_LEAST_PART, -(-_size(flat) // _PARTS))) // tensor.element_size()
        pieces = ([flat[at : at + size]] for at in range(0, flat.numel(), size))

        def request(number: int, piece: List[torch.Tensor]) -> Any:
            return dict(kind="all-reduce", op=op, dtype=name, elements=piece[0].numel(), **{"from": number * size})

        self._each(pieces, request)()
        if not tensor.is_contiguous():
            tensor.data.copy_(whole)

    def broadcast(self, tensors: Iterable[torch.Tensor], root: int) -> None:
        """Replaces tensors of any shapes and types by those of rank root.

        They are written behind autograd's back (.data): a graph that saved a BatchNorm's buffers stays usable.
        """
        self.begin_broadcast(tensors, root)
        self.settle()

    def begin_broadcast(self, tensors: Iterable[torch.Tensor], root: int) -> None:
        """Begins what broadcast does. It ends with settle, or before the next call; the tensors are not to be changed until then."""
        mine = self._client.rank == root
        self._settle = self._each(
            _batches(tensors, self._place),
            lambda _, pieces: dict(kind="broadcast", root=root, bytes=_end(pieces)),
            give=mine,
            take=not mine,
        )

    def _each(
        self,
        batches: Iterable[List[torch.Tensor]],
        request: Callable[[int, List[torch.Tensor]], Any],
        give: bool = True,
        take: bool = True,
    ) -> Callable[[], None]:
        """Makes a call of each list of tensors, which fit into a place together; lists are numbered from 0.

        give and take say whether it needs what they hold, and whether they become what it returns. Returns what ends the last ones.
        """
        self.settle()
        begun: Deque[int] = collections.deque()
        filled: Deque[Tuple[int, List[torch.Tensor]]] = collections.deque()

        def begin(**request: Any) -> None:
            begun.append(self._client.begin(**request))

        def end() -> None:
            self._device.settle()
            self._client.wait(begun.popleft())
            at, pieces = filled.popleft()
            if take:
                self._device.copy_out(pieces, self._views(self._layout.output, at, pieces))

        for number, pieces in enumerate(batches):
            if len(filled) == _PLACES:
                end()
            at = number % _PLACES * self._place
            if give:
                for piece, sent in zip(pieces, self._views(self._layout.input, at, pieces)):
                    self._device.copy_in(sent, piece)
            filled.append((at, pieces))
            # When its data are copied in, and those of the last call there out.
            self._device.when_copied(functools.partial(begin, at=at, **request(number, pieces)))

        def end_all() -> None:
            while filled:
                end()

        return end_all

    def broadcast_object(self, value: Any, root: int) -> Any:
        """Returns rank root's value, of anything that torch.save can write."""
        file = io.BytesIO()
        if self._client.rank == root:
            torch.save(value, file)
        size = torch.tensor(file.tell(), device="cpu")
        self.broadcast([size], root)
        data = torch.empty(int(size), dtype=torch.uint8, device="cpu")
        if self._client.rank == root:
            data.copy_(torch.frombuffer(file.getbuffer(), dtype=torch.uint8))
        self.broadcast([data], root)
        return torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=False)  # from a worker that has our secret

    def _views(self, region: mmap.mmap, at: int, pieces: List[torch.Tensor]) -> List[torch.Tensor]:
        start = self._layout.call_offset + at
        return [self._view(region, p.dtype, start + offset, p.shape) for p, offset in zip(pieces, _offsets(pieces))]


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
