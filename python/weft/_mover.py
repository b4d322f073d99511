"""The threads of a worker that reduces buckets itself, when the agent starts them. Nothing here knows torch."""

from __future__ import annotations

import os
import queue
import threading
from typing import Any, Callable, List, Optional, Set, Tuple

START = 11
_GRACE = 3.0  # seconds after a reduction that failed, in which the agent tells why
_END = 1.0  # seconds that the threads have to end; one that hangs in a reduction is left to the end of the process

Message = Tuple[int, int, int, bytes]  # type, index, iteration, payload


class Mover:
    """Reads what the agent sends in one thread, for it sends starts while the worker computes; reduces in another, in their order."""

    def __init__(
        self,
        read: Callable[[List[int]], Message],
        reduce: Callable[[int, int], None],
        moved: Callable[[int, int], None],
        broken: Callable[[str], Exception],
    ) -> None:
        """read waits for the agent's next message, and raises when there will be none. moved tells the agent that a bucket of an
        iteration, for which reduce was called, is reduced; broken makes the error of a reduction that failed."""
        self._read, self._reduce, self._moved, self._broken = read, reduce, moved, broken
        self._messages: "queue.SimpleQueue[Any]" = queue.SimpleQueue()  # and descriptors; or the error that ended them
        self._starts: "queue.SimpleQueue[Optional[Tuple[int, int]]]" = queue.SimpleQueue()
        self._ended = threading.Event()  # the agent has said its last word
        self.reduced: Set[Tuple[int, int]] = set()  # buckets and iterations
        # Daemons: neither holds up the end of a worker that has failed.
        self._reader = threading.Thread(target=self._read_all, name="weft reads", daemon=True)
        self._reducer = threading.Thread(target=self._reduce_all, name="weft reduces", daemon=True)
        self._reader.start()
        self._reducer.start()

    def next(self, fds: Optional[List[int]]) -> Message:
        """Waits for the next message that is no start; its descriptors are added to fds."""
        message = self._messages.get()
        if isinstance(message, Exception):
            raise message
        for fd in message[1]:
            os.close(fd) if fds is None else fds.append(fd)
        return message[0]  # type: ignore[no-any-return]

    def has_next(self) -> bool:
        """Whether next would not wait."""
        return not self._messages.empty()

    def end(self, connection_ends: bool) -> None:
        """Ends the threads; that which reads only if the connection does."""
        self._starts.put(None)
        self._reducer.join(_END)
        if connection_ends:
            self._reader.join(_END)

    def _read_all(self) -> None:
        try:
            while True:
                fds: List[int] = []
                message = self._read(fds)
                if message[0] == START:
                    self._starts.put(message[1:3])
                else:
                    self._messages.put((message, fds))
        except Exception as e:
            self._messages.put(e)
        self._ended.set()
        self._starts.put(None)

    def _reduce_all(self) -> None:
        for bucket, iteration in iter(self._starts.get, None):
            try:
                self._reduce(bucket, iteration)
            except Exception as e:
                # Mostly another worker is lost, and the agent tells which.
                if not self._ended.wait(_GRACE):
                    self._messages.put(self._broken(f"torch.distributed cannot reduce bucket {bucket} of iteration {iteration}: {e}"))
                return
            self.reduced.add((bucket, iteration))
            self._moved(bucket, iteration)
