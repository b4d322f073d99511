"""A device in main memory that copies late: each copy in its turn, after a random delay, in a thread of its own.

Whoever reads what has not been copied yet, or declares it, gets other bits than the tests expect.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from typing import Any

import torch

from weft import _session
from weft._device import Device, Streaming

DELAY = 0.002  # seconds, at most


class LateStream:
    """A weft._device.Stream. The caller's own stream is the caller itself, so that what must follow a copy waits for it."""

    def __init__(self) -> None:
        self._todo: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._random = random.Random(1)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def copies(self, tensor: torch.Tensor) -> bool:
        return True

    def follow(self) -> None:
        pass

    def lead(self) -> None:
        self.record().synchronize()

    def copy(self, to: torch.Tensor, tensor: torch.Tensor) -> None:
        self._todo.put(lambda: (time.sleep(self._random.uniform(0, DELAY)), _copy(to, tensor)))

    def record(self) -> "LateEvent":
        event = LateEvent()
        self._todo.put(event.passed.set)
        return event

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join()

    def _work(self) -> None:
        for do in iter(self._todo.get, None):
            do()


class LateEvent:
    """A weft._device.Event."""

    def __init__(self) -> None:
        self.passed = threading.Event()

    def query(self) -> bool:
        return self.passed.is_set()

    def synchronize(self) -> None:
        self.passed.wait()


@torch.no_grad()
def _copy(to: torch.Tensor, tensor: torch.Tensor) -> None:
    to.copy_(tensor)


def device_at(place: torch.device, regions: Any) -> Device:
    """In place of weft._session.device_at."""
    return Streaming(LateStream())


def use() -> None:
    """Has every session of this process copy late."""
    _session.device_at = device_at
