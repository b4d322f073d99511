"""The worker's end of the client protocol, docs/formats/client.md: a socket and two shared regions.

Nothing here knows torch.
"""

from __future__ import annotations

import array
import functools
import json
import mmap
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Set, Tuple

from . import __version__

VERSION = 1
HELLO, WELCOME, READY, DONE, CALL, RETURNED, FAILED, GOODBYE = range(1, 9)
HEADER = struct.Struct("<IBBHIQ")  # payload's length, type, flags, 0, index, iteration
MAX_PAYLOAD = 64 << 20  # bytes

# Bytes of an element, by the name of its type on the wire: what the agent can reduce.
ELEMENT_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}


class WeftError(RuntimeError):
    """Training cannot go on.

    The message is complete. rank, tensor and phase are what it is about, where the agent knows.
    """

    def __init__(
        self,
        message: str,
        rank: Optional[int] = None,
        tensor: Optional[str] = None,
        phase: Optional[str] = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.tensor = tensor
        self.phase = phase


@dataclass(frozen=True)
class Tensor:
    """A tensor that is reduced every iteration: its name, number of elements and type ("float32")."""

    name: str
    elements: int
    dtype: str


@dataclass(frozen=True)
class Bucket:
    """Tensors reduced together, as places in the list of tensors given to hello."""

    tensors: List[int]


@dataclass(frozen=True)
class Layout:
    """Where things lie in the shared regions. Offsets and sizes are in bytes.

    This worker writes input; the agent writes output. Tensor k lies at offsets[k] of either.
    """

    digest: str
    input: mmap.mmap
    output: mmap.mmap
    offsets: List[int]
    buckets: List[Bucket]
    call_offset: int
    call_bytes: int


class Client:
    """One worker's connection to the agent of its host.

    Not for several threads at once. Once the agent has failed, every method raises its message.
    """

    def __init__(self, connection: socket.socket, rank: int, world: int, local_rank: int) -> None:
        self.rank = rank
        self.world = world
        self._local_rank = local_rank
        self._calls = 0
        self._begun: Set[int] = set()  # calls that have not returned
        self._error: Optional[WeftError] = None
        self._header = bytearray(HEADER.size)
        self._socket: Optional[socket.socket] = connection
        # A forked data loader would hold the connection open past this worker's end, and hide it from the agent.
        os.register_at_fork(after_in_child=self.close)

    def hello(self, tensors: Sequence[Tensor], bucket_bytes: int, first_bucket_bytes: int, torch: str) -> Layout:
        """Says which tensors this worker has, and returns where the agent wants them.

        Returns once every worker has said the same. The earlier layout's regions, if any, are done with.
        """
        self._send(HELLO, body=json.dumps({
            "version": VERSION, "weft": __version__, "rank": self.rank, "world": self.world,
            "local_rank": self._local_rank, "pid": os.getpid(), "torch": torch,
            "bucket_bytes": bucket_bytes, "first_bucket_bytes": first_bucket_bytes,
            "tensors": [vars(t) for t in tensors],
        }).encode())  # fmt: skip
        fds: List[int] = []
        try:
            _, _, payload = self._receive(WELCOME, fds)
            return self._layout(json.loads(payload), fds, tensors)
        except (KeyError, TypeError, ValueError) as e:
            raise self._fail(WeftError(f"rank {self.rank}: cannot use the agent's layout: {e!r}")) from e
        finally:
            for fd in fds:
                os.close(fd)

    def ready(self, bucket: int, iteration: int) -> None:
        """Declares that a bucket lies complete in the input region; it is not written again before done."""
        self._send(READY, bucket, iteration)

    def done(self, iteration: int) -> int:
        """Waits for the next bucket of an iteration that lies reduced in the output region; returns which."""
        bucket, of, _ = self._receive(DONE)
        if of != iteration:
            raise self._fail(WeftError(f"rank {self.rank}: the agent is at iteration {of}, this worker at {iteration}"))
        return bucket

    def call(self, **request: Any) -> None:
        """Makes a collective outside the plan and waits for it; every worker makes the same ones in the same order."""
        self.wait(self.begin(**request))

    def begin(self, **request: Any) -> int:
        """Makes a collective outside the plan, and says which call it is.

        Its data lie from call_offset + request["at"] of the input region, its result there in the output region; neither
        overlaps that of a call that has not returned.
        """
        index = self._calls
        self._calls += 1
        self._begun.add(index)
        self._send(CALL, index, body=_request(**request))
        return index

    def wait(self, call: int) -> None:
        """Waits for a call to return. Those begun after it may have returned before."""
        while call in self._begun:
            returned, _, _ = self._receive(RETURNED)
            if returned not in self._begun:
                raise self._fail(WeftError(f"rank {self.rank}: the agent returned call {returned}, which this worker has not made"))
            self._begun.remove(returned)

    def goodbye(self) -> None:
        """Ends the connection in order. Without it, the agent ends the other workers too."""
        if self._error is None and self._socket is not None:
            try:
                self._send(GOODBYE)
            except WeftError:
                pass  # it has gone before us
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def leave_open(self) -> None:
        """Leaves the connection to end with the process, and not before: its exit code says more than a lost connection."""
        if self._socket is not None:
            self._socket.detach()
            self._socket = None

    def _layout(self, w: Any, fds: List[int], tensors: Sequence[Tensor]) -> Layout:
        if w["version"] != VERSION:
            raise ValueError(f"version {w['version']}, this client knows {VERSION}")
        if len(fds) != 2:
            raise ValueError(f"{len(fds)} file descriptors, want 2")
        sizes = (w["input_bytes"], w["output_bytes"])
        for fd, size in zip(fds, sizes):
            if os.fstat(fd).st_size < size:  # reading past the end would be a bus error
                raise ValueError(f"a region of {os.fstat(fd).st_size} bytes, {size} announced")
        if [t["bytes"] for t in w["tensors"]] != [t.elements * ELEMENT_BYTES[t.dtype] for t in tensors]:
            raise ValueError("other tensors than this worker's")
        places = [(t["offset"], t["bytes"]) for t in w["tensors"]] + [(w["call_offset"], w["call_bytes"])]
        if any(offset < 0 or offset + size > min(sizes) for offset, size in places):
            raise ValueError("a tensor outside its region")
        if w["call_bytes"] < 256:  # four times the alignment of a call's data
            raise ValueError("no room for calls")
        if sorted(k for b in w["buckets"] for k in b["tensors"]) != list(range(len(tensors))):
            raise ValueError("not every tensor in one bucket")
        return Layout(
            digest=w["digest"],
            input=mmap.mmap(fds[0], sizes[0]),
            output=mmap.mmap(fds[1], sizes[1]),
            offsets=[t["offset"] for t in w["tensors"]],
            buckets=[Bucket(b["tensors"]) for b in w["buckets"]],
            call_offset=w["call_offset"],
            call_bytes=w["call_bytes"],
        )

    def _send(self, kind: int, index: int = 0, iteration: int = 0, body: bytes = b"") -> None:
        sock = self._open()
        try:
            sock.sendall(HEADER.pack(len(body), kind, 0, 0, index, iteration) + body)
        except OSError:
            # The agent closed its end; it said why before that.
            while True:
                self._receive(FAILED)

    def _receive(self, expected: int, fds: Optional[List[int]] = None) -> Tuple[int, int, bytes]:
        """Waits for a message; returns its index, iteration and payload, and adds descriptors that come with it to fds."""
        while True:
            self._read(memoryview(self._header), fds)
            length, kind, _, _, index, iteration = HEADER.unpack(self._header)
            if length > MAX_PAYLOAD:
                raise self._fail(WeftError(f"rank {self.rank}: the agent announced {length} bytes, {MAX_PAYLOAD} are allowed"))
            payload = bytearray(length)
            if length:
                self._read(memoryview(payload), fds)
            if kind == FAILED:
                raise self._fail(_failure(payload))
            if kind == expected:
                return index, iteration, bytes(payload)
            if expected != FAILED:
                raise self._fail(WeftError(f"rank {self.rank}: the agent sent a message of type {kind}, expected {expected}"))

    def _read(self, into: memoryview, fds: Optional[List[int]]) -> None:
        sock = self._open()
        while into:
            try:
                if fds is None:
                    n = sock.recv_into(into)
                else:
                    n = _recv_with_fds(sock, into, fds)
            except ConnectionError:
                n = 0
            if n == 0:
                raise self._fail(WeftError(f"rank {self.rank}: the agent of this host ended without a message"))
            into = into[n:]

    def _open(self) -> socket.socket:
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._socket is None:
            raise WeftError(f"rank {self.rank}: not connected: shut down, or a process forked from the worker")
        return self._socket

    def _fail(self, error: WeftError) -> WeftError:
        self._error = error
        return error


@functools.lru_cache(maxsize=256)  # a training makes the same calls again and again
def _request(**request: Any) -> bytes:
    return json.dumps(request).encode()


def _recv_with_fds(sock: socket.socket, into: memoryview, fds: List[int]) -> int:
    size = array.array("i").itemsize
    n, ancillary, _, _ = sock.recvmsg_into([into], socket.CMSG_SPACE(2 * size), socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            got = array.array("i")
            got.frombytes(data[: len(data) - len(data) % size])
            fds.extend(got)
    return n


def _failure(payload: bytes) -> WeftError:
    try:
        f = json.loads(payload)
        return WeftError(str(f["message"]), f.get("rank"), f.get("tensor"), f.get("phase"))
    except (KeyError, TypeError, ValueError, AttributeError):
        return WeftError("the agent failed, and said: " + bytes(payload).decode(errors="replace"))
