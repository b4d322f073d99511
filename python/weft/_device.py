"""Copies between tensors, wherever they live, and the shared regions.

In main memory a copy is done when copy_ returns. A GPU copies later: when it comes to it, on a stream of its own, so that it
goes on computing meanwhile. A bucket is complete when its copies are, and not when they were asked for.
"""

from __future__ import annotations

import collections
import mmap
from typing import Any, Callable, Deque, Iterable, Protocol, Sequence, Tuple

import torch

from ._client import WeftError
from ._memory import view


class Device:
    """Main memory: every copy is done at once. So it is from other devices, where copy_ waits for what the copy needs."""

    def copy_in(self, to: torch.Tensor, tensor: torch.Tensor) -> None:
        """Copies a tensor into the input region."""
        to.copy_(tensor)

    def when_copied(self, function: Callable[..., Any], *args: Any) -> None:
        """Calls a function when the copies so far, in and out, are done: now, in a later call, or in settle; in order."""
        function(*args)

    def settle(self) -> None:
        """Returns when the functions given to when_copied have been called."""

    def copy_out(self, tensors: Sequence[torch.Tensor], averages: Iterable[torch.Tensor]) -> None:
        """Copies from the output region into tensors. Whatever the caller does with them next finds the new values."""
        for tensor, average in zip(tensors, averages):
            tensor.copy_(average)

    def close(self) -> None:
        """Ends the use of the regions."""


class Event(Protocol):
    """A point in a stream (torch.cuda.Event)."""

    def query(self) -> bool:
        """Whether it has been passed."""

    def synchronize(self) -> None:
        """Waits until it has."""


class Stream(Protocol):
    """Copies that are done in order, at some time, beside what the caller's own stream does."""

    def copies(self, tensor: torch.Tensor) -> bool:
        """Whether the stream is for tensors that live where this one does."""

    def follow(self) -> None:
        """Copies from now on come after what the caller's stream has been given so far."""

    def lead(self) -> None:
        """What the caller's stream is given from now on comes after the copies so far."""

    def copy(self, to: torch.Tensor, tensor: torch.Tensor) -> None:
        """Copies, in its turn. Both tensors stay as they are until then."""

    def record(self) -> Event:
        """The point after the copies so far."""

    def close(self) -> None:
        """Waits for the copies so far, and ends."""


class Streaming(Device):
    """A device that copies later, on one stream.

    Nothing here waits before settle, so that a backward pass's hooks go on giving the GPU work. What is complete is noticed in
    each copy_in, that is in the hooks that follow; where the GPU is behind, as it should be, settle waits for one bucket
    after the other. It costs no thread.

    One stream for both directions, and events after all that it was given, keep the regions' rules: an output that is still
    being read holds back the next declaration of its bucket, and so do a call's.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._waiting: Deque[Tuple[Event, Callable[..., Any], Tuple[Any, ...]]] = collections.deque()

    def copy_in(self, to: torch.Tensor, tensor: torch.Tensor) -> None:
        while self._waiting and self._waiting[0][0].query():
            self._next()
        if self._stream.copies(tensor):
            self._stream.follow()
            self._stream.copy(to, tensor)
        else:
            to.copy_(tensor)

    def when_copied(self, function: Callable[..., Any], *args: Any) -> None:
        self._waiting.append((self._stream.record(), function, args))

    def settle(self) -> None:
        while self._waiting:
            self._waiting[0][0].synchronize()
            self._next()

    def copy_out(self, tensors: Sequence[torch.Tensor], averages: Iterable[torch.Tensor]) -> None:
        self._stream.follow()  # tensors may be in use there, or their memory may have been
        for tensor, average in zip(tensors, averages):
            if self._stream.copies(tensor):
                self._stream.copy(tensor, average)
            else:
                tensor.copy_(average)
        self._stream.lead()

    def close(self) -> None:
        self._waiting.clear()
        self._stream.close()

    def _next(self) -> None:
        _, function, args = self._waiting.popleft()
        function(*args)


class CUDAStream:
    """A stream of a GPU beside the one that computes, and regions that the GPU can reach.

    Regions are page-locked: the driver would copy from and to other memory in pieces, through memory of its own, and make the
    caller wait. Several processes may do this with the same region, and share a GPU.
    """

    def __init__(self, device: torch.device, regions: Sequence[mmap.mmap]) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._locked = []
        for region in regions:
            pages = view(region, torch.uint8, 0, [len(region)])
            error = int(torch.cuda.cudart().cudaHostRegister(pages.data_ptr(), len(region), 1))  # 1: for all devices
            if error != 0:
                self.close()
                raise WeftError(f"cannot page-lock {len(region)} bytes of shared memory for {device}: CUDA error {error}")
            self._locked.append(pages)

    def copies(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self._device

    def follow(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def lead(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def copy(self, to: torch.Tensor, tensor: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            to.copy_(tensor, non_blocking=True)

    def record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(blocking=True)  # synchronize sleeps: other processes compute on this core
        event.record(self._stream)
        return event

    def close(self) -> None:
        self._stream.synchronize()
        for pages in self._locked:
            torch.cuda.cudart().cudaHostUnregister(pages.data_ptr())
        self._locked = []


def place_of(parameters: Sequence[Tuple[str, torch.Tensor]]) -> torch.device:
    """Where named parameters live.

    Raises ValueError where they live on several devices: gradients of each would come in a thread of its own.
    """
    name, first = parameters[0]
    for other, p in parameters:
        if p.device != first.device:
            raise ValueError(f"wrap: parameter {name} is on {first.device}, {other} on {p.device}: a worker has one device")
    return first.device


def device_at(place: torch.device, regions: Sequence[mmap.mmap]) -> Device:
    """The device for gradients that live at a place, with the regions that it copies to and from."""
    return Streaming(CUDAStream(place, regions)) if place.type == "cuda" else Device()
