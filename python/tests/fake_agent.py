"""An agent for tests: docs/formats/client.md with threads, and torch for the arithmetic.

It adds in rank order. It is written from the document, not from the client.
"""

from __future__ import annotations

import array
import json
import mmap
import os
import socket
import struct
import threading
from typing import Any, Dict, List, Optional

import torch

HEADER = struct.Struct("<IBBHIQ")
HELLO, WELCOME, READY, DONE, CALL, RETURNED, FAILED, GOODBYE = range(1, 9)
DTYPES = {
    "float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "int32": torch.int32, "int64": torch.int64,
}  # fmt: skip
CALL_BYTES = 1 << 12  # small, so that calls come in parts


class FakeAgent:
    """Serves the workers of one host until all have gone. Use as a context manager."""

    def __init__(self, path: str, world: int) -> None:
        self.world = world
        self.ready: List[Any] = []  # (bucket, iteration, rank), as they came: for tests
        self.calls: List[Any] = []  # requests made by all
        self._lock = threading.Lock()
        self._workers: Dict[int, _Worker] = {}
        self._gone: Dict[int, str] = {}
        self._failed = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> "FakeAgent":
        return self

    def __exit__(self, *_: Any) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for t in self._threads:
            t.join(10)

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self._listener.accept()
            except OSError:
                return
            t = threading.Thread(target=self._serve, args=[conn], daemon=True)
            self._threads.append(t)
            t.start()

    def _serve(self, conn: socket.socket) -> None:
        with conn, conn.makefile("rb") as f:
            worker = None
            ended = "ended without goodbye"
            try:
                while True:
                    length, kind, _, _, index, iteration = HEADER.unpack(f.read(HEADER.size))
                    body = f.read(length)
                    payload = json.loads(body) if length and kind != READY else None
                    with self._lock:
                        if kind == HELLO:
                            if worker is None:
                                worker = self._workers[payload["rank"]] = _Worker(conn, payload["rank"])
                            worker.hello = payload
                            self._welcome()
                        elif kind == READY:
                            self._ready(worker, index, iteration)
                        elif kind == CALL:
                            worker.calls.append((index, payload))
                            self._call()
                        elif kind == GOODBYE:
                            ended = "ended in order"
                            return
                        else:
                            self._other(worker, kind, iteration)
            except (struct.error, OSError):
                pass
            finally:
                with self._lock:
                    if worker is not None:
                        self._gone[worker.rank] = ended
                        if ended != "ended in order":
                            self._fail(f"rank {worker.rank} {ended}", rank=worker.rank)
                        else:
                            self._check_gone()

    def _other(self, worker: "_Worker", kind: int, iteration: int) -> None:
        """A message of another kind."""

    def _fail(self, message: str, **about: Any) -> None:
        if self._failed:
            return
        self._failed = True
        for w in self._workers.values():
            w.send(FAILED, payload=dict(about, message=message))

    def _check_gone(self) -> None:
        """Fails when somebody waits for a worker that has gone."""
        for rank, why in self._gone.items():
            for w in self._workers.values():
                if w.rank not in self._gone and (w.hello or w.calls or w.ready):
                    self._fail(f"rank {rank} {why} while rank {w.rank} waits for it", rank=rank)

    def _all(self) -> Optional[List["_Worker"]]:
        self._check_gone()
        return [self._workers[r] for r in range(self.world)] if len(self._workers) == self.world else None

    def _welcome(self) -> None:
        workers = self._all()
        if workers is None or not all(w.hello for w in workers):
            return
        tensors = workers[0].hello["tensors"]
        for w in workers[1:]:
            for k in range(max(len(tensors), len(w.hello["tensors"]))):
                a, b = (t[k] if k < len(t) else None for t in (tensors, w.hello["tensors"]))
                if a != b:
                    self._fail(f"tensor {k} is {a} on rank 0, {b} on rank {w.rank}", tensor=(a or b)["name"])
                    return
        self.tensors = tensors
        self.offsets, end, self.buckets = [0] * len(tensors), 0, []
        limit, size = workers[0].hello["first_bucket_bytes"], 0
        for k in reversed(range(len(tensors))):
            dtype = tensors[k]["dtype"]
            bytes_ = tensors[k]["elements"] * _size(dtype)
            if not self.buckets or size + bytes_ > limit or tensors[self.buckets[-1][0]]["dtype"] != dtype:
                if self.buckets:
                    limit = workers[0].hello["bucket_bytes"]
                self.buckets.append([])
                size, end = 0, -(-end // 64) * 64
            self.buckets[-1].append(k)
            self.offsets[k] = end
            size += bytes_
            end += bytes_
            if bytes_ == 0:
                self._fail(f"tensor {tensors[k]['name']} has no elements", tensor=tensors[k]["name"])
                return
        end = -(-end // 64) * 64
        total = end + CALL_BYTES
        self.call_offset = end
        out = _memfd("output", total)
        self.output = mmap.mmap(out, total)
        welcome = {
            "version": 4, "world": self.world, "digest": "sha256:fake", "policy": "ddp", "input_bytes": total, "output_bytes": total,
            "call_offset": end, "call_bytes": CALL_BYTES,
            "tensors": [
                {"offset": o, "bytes": t["elements"] * _size(t["dtype"])} for o, t in zip(self.offsets, tensors)
            ],
            "buckets": [
                {"tensors": b, "offset": self.offsets[b[0]],
                 "bytes": sum(tensors[k]["elements"] * _size(tensors[k]["dtype"]) for k in b)}
                for b in self.buckets
            ],
        }  # fmt: skip
        for w in workers:
            w.hello = None
            fd = _memfd("input", total)
            w.input = mmap.mmap(fd, total)
            w.send(WELCOME, payload=welcome, fds=[fd, out])
            os.close(fd)
        os.close(out)

    def _ready(self, worker: "_Worker", bucket: int, iteration: int) -> None:
        self.ready.append((bucket, iteration, worker.rank))
        if bucket in worker.ready:
            self._fail(f"rank {worker.rank} declared bucket {bucket} twice", rank=worker.rank)
        worker.ready[bucket] = iteration
        workers = self._all()
        if workers is None or not all(bucket in w.ready for w in workers):
            return
        if len({w.ready.pop(bucket) for w in workers}) != 1:
            self._fail(f"iterations differ in bucket {bucket}")
            return
        for k in self.buckets[bucket]:
            t = self.tensors[k]
            self._reduce("mean", DTYPES[t["dtype"]], self.offsets[k], t["elements"])
        for w in workers:
            w.send(DONE, bucket, iteration)

    def _call(self) -> None:
        workers = self._all()
        if workers is None or not all(w.calls for w in workers):
            return
        calls = [w.calls[0] for w in workers]
        for w in workers:
            w.calls.pop(0)
            if calls[w.rank] != calls[0]:
                self._fail(f"call {calls[0]} on rank 0, {calls[w.rank]} on rank {w.rank}", rank=w.rank)
                return
        index, c = calls[0]
        self.calls.append(c)
        at = self.call_offset + c.get("at", 0)
        if c["kind"] == "all-reduce":
            self._reduce(c["op"], DTYPES[c["dtype"]], at, c["elements"])
        elif c["kind"] == "broadcast":
            self.output[at : at + c["bytes"]] = self._workers[c["root"]].input[at : at + c["bytes"]]
        for w in workers:
            w.send(RETURNED, index)

    def _reduce(self, op: str, dtype: torch.dtype, offset: int, elements: int) -> None:
        if elements == 0:
            return
        parts = [
            torch.frombuffer(self._workers[r].input, dtype=dtype, count=elements, offset=offset)
            for r in range(self.world)
        ]
        if op == "mean" and dtype.is_floating_point:  # first, as the agent and DDP do: it matters to what underflows
            parts = [p / self.world for p in parts]
        result = parts[0].clone()
        for p in parts[1:]:
            result = {"min": torch.minimum, "max": torch.maximum}.get(op, torch.add)(result, p)
        torch.frombuffer(self.output, dtype=dtype, count=elements, offset=offset).copy_(result)


class _Worker:
    def __init__(self, conn: socket.socket, rank: int) -> None:
        self.conn, self.rank = conn, rank
        self.hello: Any = None
        self.calls: List[Any] = []  # made, and not by all
        self.ready: Dict[int, int] = {}  # bucket: iteration

    def send(self, kind: int, index: int = 0, iteration: int = 0, payload: Any = None, fds: List[int] = []) -> None:
        body = json.dumps(payload).encode() if payload is not None else b""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.conn.sendmsg([HEADER.pack(len(body), kind, 0, 0, index, iteration) + body], ancillary)
        except OSError:
            pass  # it has gone; its own thread sees that


def _memfd(name: str, size: int) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


def _size(dtype: str) -> int:
    return torch.empty(0, dtype=DTYPES[dtype]).element_size()
