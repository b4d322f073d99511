"""The worker's end of the client protocol, docs/formats/client.md: a socket and two shared regions.

Nothing here knows torch.
"""

from __future__ import annotations

import array
import collections
import functools
import json
import mmap
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Set, Tuple

from . import __version__
from ._mover import Mover

VERSION = 4
HELLO, WELCOME, READY, DONE, CALL, RETURNED, FAILED, GOODBYE, BOUNDARY = range(1, 10)
MOVED = 12
WAITED = struct.Struct("<Q")  # ns
DID = struct.Struct("<BQQ")  # what, from when, until when: ns
# What a worker does: WAITING for the agent, a phase of its computation, or something ELSE, which is not told; a step that
# has returned is STEPPED, and tells its iteration in place of from when.
WAITING, FORWARD, BACKWARD, UPDATE, STEPPED, ELSE = range(6)
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
class Slice:
    """Elements of a tensor, length from offset on. They lie from byte place on in the first copy of the buckets."""

    tensor: int
    offset: int
    length: int
    place: int


@dataclass(frozen=True)
class Bucket:
    """Slices reduced together, and their tensors, each once, as places in the list of tensors given to hello.

    It is declared for these generations of the period.
    """

    tensors: List[int]
    slices: List[Slice]
    generations: List[int]


@dataclass(frozen=True)
class Update:
    """When a generation is applied to tensors. Generation and iteration are relative to the period.

    at is "step": by optimizer.step() of the iteration; or "read": before a tensor's first read in the iteration after it.
    """

    generation: int
    at: str
    iteration: int
    tensors: List[int]


@dataclass(frozen=True)
class Layout:
    """Where things lie in the shared regions, and when updates are applied. Offsets and sizes are in bytes.

    This worker writes input; the agent writes output. Tensor k lies at offsets[k] of either, in the first copy of the
    buckets; offsets is empty if buckets have parts of tensors. There are buffers copies, buffer_bytes apart.

    Iterations are counted from the hello. A period is so many of them; ends are those of a period that end a generation.
    """

    digest: str
    input: mmap.mmap
    output: mmap.mmap
    offsets: List[int]
    buckets: List[Bucket]
    call_offset: int
    call_bytes: int
    policy: str
    period: int
    ends: List[int]
    updates: List[Update]
    buffers: int
    buffer_bytes: int
    review: int = 0  # after how many iterations to call review; 0: never
    order: Optional[List[List[int]]] = None  # by lane, in which to run ops of the job with the fingerprint order_of; None: any
    order_of: str = ""
    timeline: bool = False  # the agent wants to be told what this worker does
    profile: int = 0  # how many iterations, before the last one then, to measure op by op
    descent: bool = False  # of those before these, to tell how the loss falls

    def generation(self, iteration: int) -> int:
        """The generation that an iteration is part of, counted from the hello."""
        periods, i = divmod(iteration, self.period)
        return periods * len(self.ends) + sum(end < i for end in self.ends)

    def last(self, generation: int) -> int:
        """The iteration that ends a generation."""
        periods, g = divmod(generation, len(self.ends))
        return periods * self.period + self.ends[g]

    def copy(self, generation: int) -> int:
        """How far behind the first copy of the buckets that for a generation lies."""
        return generation % self.buffers * self.buffer_bytes


class Client:
    """One worker's connection to the agent of its host.

    Not for several threads at once. Once the agent has failed, every method raises its message.
    """

    def __init__(self, connection: socket.socket, rank: int, world: int, local_rank: int) -> None:
        self.rank = rank
        self.world = world
        self._local_rank = local_rank
        self.waited = 0  # for the agent, ns, since the start
        self._did: Optional[List[bytes]] = None  # since the agent was last told; None: it does not want to know
        self._doing = (ELSE, 0)  # and since when
        self._calls = 0
        self._begun: Set[int] = set()  # calls that have not returned
        self._reduced: Deque[Tuple[int, int]] = collections.deque()  # buckets and iterations that came while a call was waited for
        self._error: Optional[WeftError] = None
        self._header = bytearray(HEADER.size)
        self._socket: Optional[socket.socket] = connection
        self._sending = threading.Lock()
        self._mover: Optional[Mover] = None
        # A forked data loader would hold the connection open past this worker's end, and hide it from the agent.
        os.register_at_fork(after_in_child=self.close)

    def hello(
        self,
        tensors: Sequence[Tensor],
        bucket_bytes: int,
        first_bucket_bytes: int,
        torch: str,
        mode: str = "global",
        boundaries: bool = False,
        c10d: Optional[str] = None,
    ) -> Layout:
        """Says which tensors this worker has, and returns where the agent wants them.

        mode is "per-tensor" if tensors may be updated one by one, "global" if not before all gradients are reduced;
        boundaries says that boundary will be called; c10d is the backend of torch.distributed, if serve has been called. Returns once every worker has said the same. The earlier layout's
        regions, if any, are done with.
        """
        self._send(HELLO, body=json.dumps({
            "version": VERSION, "weft": __version__, "rank": self.rank, "world": self.world,
            "local_rank": self._local_rank, "pid": os.getpid(), "torch": torch,
            "bucket_bytes": bucket_bytes, "first_bucket_bytes": first_bucket_bytes, "mode": mode, "boundaries": boundaries,
            **({"c10d": c10d} if c10d else {}), "tensors": [vars(t) for t in tensors],
        }).encode())  # fmt: skip
        fds: List[int] = []
        try:
            _, _, payload = self._receive(WELCOME, fds)
            layout = self._layout(json.loads(payload), fds, tensors)
            self._did, self._doing = [] if layout.timeline else None, (ELSE, 0)
            return layout
        except (LookupError, TypeError, ValueError) as e:
            raise self._fail(WeftError(f"rank {self.rank}: cannot use the agent's layout: {e!r}")) from e
        finally:
            for fd in fds:
                os.close(fd)

    def ready(self, bucket: int, iteration: int) -> None:
        """Declares that a bucket lies complete in the input region; it is not written again before done."""
        self._send(READY, bucket, iteration, WAITED.pack(self.waited) + self._tell())

    def done(self, iteration: int) -> int:
        """Waits for the next bucket of an iteration that lies reduced in the output region; returns which."""
        bucket, of = self.reduced()
        if of != iteration:
            raise self._fail(WeftError(f"rank {self.rank}: the agent is at iteration {of}, this worker at {iteration}"))
        return bucket

    def reduced(self) -> Tuple[int, int]:
        """Waits for the next bucket, of any iteration, that lies reduced in the output region; returns it and the iteration."""
        if self._reduced:
            return self._reduced.popleft()
        bucket, iteration, _ = self._receive(DONE)
        return bucket, iteration

    def has_reduced(self) -> bool:
        """Whether reduced would not wait."""
        while not self._reduced:
            if not self._has_next():
                return False
            kind, index, iteration, _ = self._next()
            self._note(kind, index, iteration)
        return True

    def serve(self, reduce: Callable[[int, int], None]) -> None:
        """From now on, the agent may have this worker reduce a bucket of an iteration in its input region: reduce does that.

        It is called in a thread, in the order in which the agent starts them.
        """
        self._mover = Mover(self._read_message, reduce, self._moved, self.broken)

    def in_input(self, bucket: int, iteration: int) -> bool:
        """Whether what reduced has returned lies in the input region: this worker has reduced it. True once."""
        if self._mover is None or (bucket, iteration) not in self._mover.reduced:
            return False
        self._mover.reduced.remove((bucket, iteration))
        return True

    def boundary(self, iteration: int) -> None:
        """Tells that an iteration has ended."""
        self._send(BOUNDARY, iteration=iteration, body=b"" if self._did is None else WAITED.pack(self.waited) + self._tell())

    def does(self, what: int) -> None:
        """Notes, for the agent if it wants to know, what this worker does from now on: FORWARD, BACKWARD, UPDATE or ELSE."""
        before, since = self._doing
        if self._did is None or before == what:
            return
        now = time.perf_counter_ns()
        if before != ELSE:
            self._did.append(DID.pack(before, since, now))
        self._doing = what, now

    def stepped(self, iteration: int) -> None:
        """Notes that optimizer.step() of an iteration has returned."""
        self.does(ELSE)
        if self._did is not None:
            self._did.append(DID.pack(STEPPED, iteration, time.perf_counter_ns()))

    def _tell(self) -> bytes:
        """What this worker has done since this was last called, for the agent."""
        if not self._did:
            return b""
        told = b"".join(self._did)
        self._did.clear()
        return told

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
            self._returned(self._receive(RETURNED)[0])

    def review(self, report: Dict[str, Any]) -> Dict[str, Any]:
        """Tells what this worker has measured, as every worker does after the same iteration; returns what is decided."""
        index = self._calls
        self._calls += 1
        self._send(CALL, index, body=json.dumps({"kind": "review", "report": report}).encode())
        returned, _, payload = self._receive(RETURNED)
        try:
            decision = json.loads(payload)
            if returned != index or type(decision["change"]) is not bool or type(decision["review"]) is not int:
                raise ValueError(payload)
        except (LookupError, TypeError, ValueError) as e:
            raise self._fail(WeftError(f"rank {self.rank}: the agent's answer to a review makes no sense: {e!r}")) from e
        return dict(decision)

    def failed(self) -> bool:
        """Whether training cannot go on, as an error has said."""
        return self._error is not None

    def goodbye(self) -> None:
        """Ends the connection in order. Without it, the agent ends the other workers too."""
        if self._error is None and self._socket is not None:
            try:
                self._send(GOODBYE)
            except WeftError:
                pass  # it has gone before us
        if self._mover is not None:
            if self._socket is not None:
                try:
                    self._socket.shutdown(socket.SHUT_RD)  # wakes the thread that reads
                except OSError:
                    pass
            self._mover.end(connection_ends=True)
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def leave_open(self) -> None:
        """Leaves the connection to end with the process, and not before: its exit code says more than a lost connection."""
        if self._mover is not None:
            self._mover.end(connection_ends=False)
        if self._socket is not None:
            self._socket.detach()
            self._socket = None

    def _returned(self, call: int) -> None:
        if call not in self._begun:
            raise self._fail(WeftError(f"rank {self.rank}: the agent returned call {call}, which this worker has not made"))
        self._begun.remove(call)

    def _layout(self, w: Any, fds: List[int], tensors: Sequence[Tensor]) -> Layout:
        if w["version"] != VERSION:
            raise ValueError(f"version {w['version']}, this client knows {VERSION}")
        if len(fds) != 2:
            raise ValueError(f"{len(fds)} file descriptors, want 2")
        sizes = (w["input_bytes"], w["output_bytes"])
        for fd, size in zip(fds, sizes):
            if os.fstat(fd).st_size < size:  # reading past the end would be a bus error
                raise ValueError(f"a region of {os.fstat(fd).st_size} bytes, {size} announced")
        buffers, buffer_bytes = w.get("buffers", 1), w.get("buffer_bytes", 0)
        if buffers < 1 or buffer_bytes < 0:
            raise ValueError(f"{buffers} buffers of {buffer_bytes} bytes")
        if w["tensors"] and [t["bytes"] for t in w["tensors"]] != [t.elements * ELEMENT_BYTES[t.dtype] for t in tensors]:
            raise ValueError("other tensors than this worker's")
        if w["call_bytes"] < 256:  # four times the alignment of a call's data
            raise ValueError("no room for calls")
        period, ends = w.get("period", 1), w.get("ends", [0])
        if not ends or ends != sorted(set(ends)) or ends[0] < 0 or ends[-1] != period - 1:
            raise ValueError(f"generations that end with iterations {ends} of {period}")
        buckets = [_bucket(b, w["tensors"], tensors, len(ends)) for b in w["buckets"]]
        for g in range(len(ends)):
            _verify_slices([s for b in buckets if g in b.generations for s in b.slices], tensors)
        places = [(t["offset"], t["bytes"]) for t in w["tensors"]]
        places += [(s.place, s.length * ELEMENT_BYTES[tensors[s.tensor].dtype]) for b in buckets for s in b.slices]
        last = (buffers - 1) * buffer_bytes
        places = [(offset, size + last) for offset, size in places] + [(w["call_offset"], w["call_bytes"])]
        if any(offset < 0 or size < 0 or offset + size > min(sizes) for offset, size in places):
            raise ValueError("a tensor outside its region")
        return Layout(
            digest=w["digest"],
            input=mmap.mmap(fds[0], sizes[0]),
            output=mmap.mmap(fds[1], sizes[1]),
            offsets=[t["offset"] for t in w["tensors"]],
            buckets=buckets,
            call_offset=w["call_offset"],
            call_bytes=w["call_bytes"],
            policy=w["policy"],
            period=period,
            ends=ends,
            updates=_updates(w.get("updates"), ends, len(tensors)),
            buffers=buffers,
            buffer_bytes=buffer_bytes,
            review=w.get("review", 0),
            timeline=w.get("timeline", False),
            profile=w.get("profile", 0),
            descent=w.get("descent", False),
            order=w.get("order"),
            order_of=w.get("order_of", ""),
        )

    def _send(self, kind: int, index: int = 0, iteration: int = 0, body: bytes = b"") -> None:
        sock = self._open()
        try:
            with self._sending:
                sock.sendall(HEADER.pack(len(body), kind, 0, 0, index, iteration) + body)
        except OSError:
            # The agent closed its end; it said why before that.
            while True:
                self._receive(FAILED)

    def _moved(self, bucket: int, iteration: int) -> None:
        sock = self._socket
        try:
            if sock is not None:
                with self._sending:
                    sock.sendall(HEADER.pack(0, MOVED, 0, 0, bucket, iteration))
        except OSError:
            pass  # the thread that reads will see that

    def _receive(self, expected: int, fds: Optional[List[int]] = None) -> Tuple[int, int, bytes]:
        """Waits for a message; returns its index, iteration and payload, and adds descriptors that come with it to fds."""
        while True:
            kind, index, iteration, payload = self._next(fds)
            if kind == expected:
                return index, iteration, payload
            if expected in (DONE, RETURNED):
                self._note(kind, index, iteration)
            elif expected != FAILED:
                raise self._fail(WeftError(f"rank {self.rank}: the agent sent a message of type {kind}, expected {expected}"))

    def _note(self, kind: int, index: int, iteration: int) -> None:
        """Keeps a message that came while another one was waited for."""
        if kind == DONE:
            self._reduced.append((index, iteration))
        elif kind == RETURNED:
            self._returned(index)
        else:
            raise self._fail(WeftError(f"rank {self.rank}: the agent sent a message of type {kind}, which nothing asked for"))

    def _has_next(self) -> bool:
        """Whether _next would not wait long."""
        sock = self._open()
        if self._mover is not None:
            return self._mover.has_next()
        try:
            sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:
            pass  # reading tells more
        return True

    def _next(self, fds: Optional[List[int]] = None) -> Tuple[int, int, int, bytes]:
        """Waits for any message but failed; returns its type, index, iteration and payload."""
        self._open()
        began = time.perf_counter_ns()
        try:
            return self._read_message(fds) if self._mover is None else self._mover.next(fds)
        finally:
            now = time.perf_counter_ns()
            self.waited += now - began
            if self._did is not None:
                self._did.append(DID.pack(WAITING, began, now))

    def _read_message(self, fds: Optional[List[int]]) -> Tuple[int, int, int, bytes]:
        self._read(memoryview(self._header), fds)
        length, kind, _, _, index, iteration = HEADER.unpack(self._header)
        if length > MAX_PAYLOAD:
            raise self._fail(WeftError(f"rank {self.rank}: the agent announced {length} bytes, {MAX_PAYLOAD} are allowed"))
        payload = bytearray(length)
        if length:
            self._read(memoryview(payload), fds)
        if kind == FAILED:
            raise self._fail(_failure(payload))
        return kind, index, iteration, bytes(payload)

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

    def broken(self, what: str) -> WeftError:
        """The error of an agent that does not hold to the protocol, which ends the connection's use."""
        return self._fail(WeftError(f"rank {self.rank}: {what}"))

    def _fail(self, error: WeftError) -> WeftError:
        self._error = error
        return error


def _bucket(b: Any, places: Any, tensors: Sequence[Tensor], generations: int) -> Bucket:
    """A bucket of the welcome. Without slices it has its tensors whole, at their places."""
    declared = b.get("generations", list(range(generations)))
    if "slices" not in b:
        return Bucket(b["tensors"], [Slice(k, 0, tensors[k].elements, places[k]["offset"]) for k in b["tensors"]], declared)
    slices, place = [], b["offset"]
    for s in b["slices"]:
        slices.append(Slice(s["tensor"], s["offset"], s["length"], place))
        place += s["length"] * ELEMENT_BYTES[tensors[s["tensor"]].dtype]
    if place != b["offset"] + b["bytes"] or set(b["tensors"]) != {s.tensor for s in slices}:
        raise ValueError("a bucket of other slices than it says")
    return Bucket(b["tensors"], slices, declared)


def _verify_slices(slices: List[Slice], tensors: Sequence[Tensor]) -> None:
    """Raises ValueError unless each element of each tensor is in one of the slices."""
    covered = [0] * len(tensors)  # elements
    for s in sorted(slices, key=lambda s: (s.tensor, s.offset)):
        if s.tensor < 0 or s.offset != covered[s.tensor] or s.length < 1:
            raise ValueError(f"slices of tensor {tensors[s.tensor].name} overlap, or leave elements out")
        covered[s.tensor] += s.length
    if covered != [t.elements for t in tensors]:
        raise ValueError("not every tensor in one bucket")


def _updates(updates: Any, ends: List[int], tensors: int) -> List[Update]:
    """The table of updates; where there is none, each generation is applied by the step that ends it."""
    everything = list(range(tensors))
    if updates is None:
        return [Update(g, "step", last, everything) for g, last in enumerate(ends)]
    table = [Update(u["generation"], u["at"], u["iteration"], u.get("tensors", everything)) for u in updates]
    for u in table:
        if u.at not in ("step", "read") or u.iteration < ends[u.generation]:
            raise ValueError(f"generation {u.generation} is applied at {u.at!r} of iteration {u.iteration}")
    if sorted((u.generation, k) for u in table for k in u.tensors) != [(g, k) for g in range(len(ends)) for k in everything]:
        raise ValueError("not every generation is applied to every tensor once")
    return table


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
