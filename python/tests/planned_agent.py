"""An agent for tests that executes a plan which crosses the barrier: parts of tensors, updates at the first read, buckets that
are done late and in any order. An input that is written too early, or an output that is read too late, gives other bits."""

from __future__ import annotations

import json
import mmap
import os
import random
import threading
from typing import Any, Dict, List, Set, Tuple

from .fake_agent import CALL_BYTES, DTYPES, WELCOME, DONE, FakeAgent, _memfd, _size

BOUNDARY = 9
DELAY = 0.003  # seconds, at most


class PlannedAgent(FakeAgent):
    """Cuts tensors into parts of at most so many elements, three a bucket.

    With after_step, a bucket of an iteration is done only once every worker has told the end of the iteration. at says when
    updates are: "read" or "step".
    """

    def __init__(self, path: str, world: int, elements: int = 7, buffers: int = 1, after_step: bool = False, at: str = "read") -> None:
        self._elements, self._buffers, self._after_step, self._at = elements, buffers, after_step, at
        self._random = random.Random(elements)
        self._whole: List[Tuple[int, int]] = []  # bucket and iteration that all have declared
        self._ended: Dict[int, Set[int]] = {}  # ranks that have told the end of an iteration
        self._wake = threading.Condition()
        self._over = False
        self.late = 0  # buckets that were done after their iteration's end
        super().__init__(path, world)
        self._threads.append(threading.Thread(target=self._deliver, daemon=True))
        self._threads[-1].start()

    def __exit__(self, *error: Any) -> None:
        with self._wake:
            self._over = True
            self._wake.notify()
        super().__exit__(*error)

    def _other(self, worker: Any, kind: int, iteration: int) -> None:
        if kind == BOUNDARY:
            with self._wake:
                self._ended.setdefault(iteration, set()).add(worker.rank)
                self._wake.notify()

    def _welcome(self) -> None:
        workers = self._all()
        if workers is None or not all(w.hello for w in workers) or not workers[0].hello["tensors"]:
            return super()._welcome()
        if any(w.hello["tensors"] != workers[0].hello["tensors"] for w in workers):
            return super()._welcome()
        self.tensors = workers[0].hello["tensors"]
        self.modes = {w.hello["mode"] for w in workers}
        self._after_step &= all(w.hello["boundaries"] for w in workers)
        parts = [
            {"tensor": k, "offset": at, "length": min(self._elements, t["elements"] - at)}
            for k, t in reversed(list(enumerate(self.tensors)))
            for at in range(0, t["elements"], self._elements)
        ]
        self.buckets: List[Any] = []
        end, room = 0, 0
        for part in parts:
            size = _size(self.tensors[part["tensor"]]["dtype"])
            if room == 0 or _size(self.tensors[self.buckets[-1]["slices"][0]["tensor"]]["dtype"]) != size:
                end = -(-end // 64) * 64
                self.buckets.append({"slices": [], "offset": end, "bytes": 0})
                room = 3
            b = self.buckets[-1]
            b["slices"].append(part)
            b["bytes"] += part["length"] * size
            end += part["length"] * size
            room -= 1
        for b in self.buckets:
            b["tensors"] = list(dict.fromkeys(s["tensor"] for s in b["slices"]))
        self._copy_bytes = -(-end // 64) * 64
        self.call_offset = self._copy_bytes * self._buffers
        total = self.call_offset + CALL_BYTES
        out = _memfd("output", total)
        self.output = mmap.mmap(out, total)
        at = self._at if self.modes == {"per-tensor"} else "step"
        welcome = {
            "version": 4, "world": self.world, "digest": "sha256:fake", "policy": "fake", "input_bytes": total, "output_bytes": total,
            "call_offset": self.call_offset, "call_bytes": CALL_BYTES, "tensors": [], "buckets": self.buckets, "period": 1, "ends": [0],
            "buffers": self._buffers, "buffer_bytes": self._copy_bytes, "updates": [{"generation": 0, "at": at, "iteration": 0}],
        }  # fmt: skip
        self._ended.clear()
        for w in workers:
            w.hello = None
            fd = _memfd("input", total)
            w.input = mmap.mmap(fd, total)
            w.send(WELCOME, payload=json.loads(json.dumps(welcome)), fds=[fd, out])
            os.close(fd)
        os.close(out)
        self._declared: Dict[Tuple[int, int], Set[int]] = {}

    def _ready(self, worker: Any, bucket: int, iteration: int) -> None:
        self.ready.append((bucket, iteration, worker.rank))
        declared = self._declared.setdefault((bucket, iteration), set())
        if worker.rank in declared:
            self._fail(f"rank {worker.rank} declared bucket {bucket} twice", rank=worker.rank)
        declared.add(worker.rank)
        if len(declared) == self.world:
            del self._declared[bucket, iteration]
            with self._wake:
                self._whole.append((bucket, iteration))
                self._wake.notify()
        else:
            self._check_gone()

    def _deliver(self) -> None:
        while True:
            with self._wake:
                able: List[Tuple[int, int]] = []
                while not able:
                    if self._over:
                        return
                    able = [w for w in self._whole if not self._after_step or len(self._ended.get(w[1], ())) == self.world]
                    if not able:
                        self._wake.wait()
                bucket, iteration = self._random.choice(able)
                self._whole.remove((bucket, iteration))
                self._wake.wait(self._random.uniform(0, DELAY))
                self.late += iteration in self._ended
            with self._lock:
                place = self.buckets[bucket]["offset"] + iteration % self._buffers * self._copy_bytes
                for s in self.buckets[bucket]["slices"]:
                    dtype = self.tensors[s["tensor"]]["dtype"]
                    self._reduce("mean", DTYPES[dtype], place, s["length"])
                    place += s["length"] * _size(dtype)
                for w in self._workers.values():
                    w.send(DONE, bucket, iteration)
