"""The protocol's bytes: an agent that breaks it costs an error, never a crash or a hang."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import tempfile
import threading
import unittest
from typing import Any, Callable, Dict, List, Optional

from weft._client import Bucket, Client, Slice, Tensor, Update, WeftError

HELLO, WELCOME, READY, DONE, CALL, RETURNED, FAILED, GOODBYE, BOUNDARY = range(1, 10)
GOOD: Dict[str, Any] = {
    "version": 4, "world": 1, "digest": "sha256:x", "policy": "ddp", "input_bytes": 320, "output_bytes": 320, "call_offset": 64,
    "call_bytes": 256, "tensors": [{"offset": 0, "bytes": 12}], "buckets": [{"tensors": [0], "offset": 0, "bytes": 12}],
}  # fmt: skip


# A plan that cuts the tensor; of three iterations, the first two are a generation, which is applied one iteration later.
PLANNED: Dict[str, Any] = dict(
    GOOD, policy="deft", tensors=[], period=3, ends=[1, 2], buffers=2, buffer_bytes=64, call_offset=128, input_bytes=384,
    output_bytes=384,
    updates=[{"generation": 0, "at": "read", "iteration": 2, "tensors": [0]}, {"generation": 1, "at": "step", "iteration": 2}],
    buckets=[{"tensors": [0], "offset": 0, "bytes": 12, "slices": [
        {"tensor": 0, "offset": 2, "length": 1}, {"tensor": 0, "offset": 0, "length": 2},
    ]}],
)  # fmt: skip


def planned(slices: Optional[List[List[int]]] = None, **bucket: Any) -> Dict[str, Any]:
    """PLANNED with another bucket."""
    if slices is not None:
        bucket["slices"] = [dict(zip(("tensor", "offset", "length"), s)) for s in slices]
        bucket["bytes"] = 4 * sum(length for _, _, length in slices)
    return dict(PLANNED, buckets=[dict(PLANNED["buckets"][0], **bucket)])


def message(kind: int, payload: bytes = b"", index: int = 0, iteration: int = 0, length: Optional[int] = None) -> bytes:
    size = len(payload) if length is None else length
    return struct.pack("<IBBHIQ", size, kind, 0, 0, index, iteration) + payload


def welcome(sock: socket.socket, layout: Dict[str, Any], sizes: Optional[List[int]] = None) -> None:
    if sizes is None:
        sizes = [layout["input_bytes"], layout["output_bytes"]]
    fds = [os.memfd_create("region") for _ in sizes]
    for fd, size in zip(fds, sizes):
        os.ftruncate(fd, size)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
    sock.sendmsg([message(WELCOME, json.dumps(layout).encode())], ancillary if fds else [])
    for fd in fds:
        os.close(fd)


class Protocol(unittest.TestCase):
    def play(self, agent: Callable[[socket.socket], Any], worker: Callable[[Client], Any]) -> Any:
        """Runs a worker against one connection of an agent, which is closed when agent returns."""
        with tempfile.TemporaryDirectory() as directory:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(directory + "/s")
                listener.listen()

                def serve() -> None:
                    conn, _ = listener.accept()
                    with conn:
                        agent(conn)

                t = threading.Thread(target=serve, daemon=True)
                t.start()
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.connect(directory + "/s")
                client = Client(connection, 0, 1, 0)
                try:
                    return worker(client)
                finally:
                    client.close()
                    t.join(10)
                    self.assertFalse(t.is_alive())

    def hello(self, client: Client) -> Any:
        return client.hello([Tensor("w", 3, "float32")], 1 << 20, 1 << 10, "1.13.1")

    def test_bytes(self) -> None:
        """Each message of the worker is as docs/formats/client.md has it."""
        got: Dict[str, Any] = {}

        def agent(sock: socket.socket) -> None:
            f = sock.makefile("rb")
            header = struct.unpack("<IBBHIQ", f.read(20))
            got["hello"] = header[1:], json.loads(f.read(header[0]))
            welcome(sock, GOOD)
            got["ready"] = struct.unpack("<IBBHIQ", f.read(20))
            got["waited"] = struct.unpack("<Q", f.read(8))
            got["boundary"] = struct.unpack("<IBBHIQ", f.read(20))
            sock.sendall(message(DONE, index=0, iteration=7))
            header = struct.unpack("<IBBHIQ", f.read(20))
            got["call"] = header[1:], json.loads(f.read(header[0]))
            sock.sendall(message(RETURNED))
            got["goodbye"] = struct.unpack("<IBBHIQ", f.read(20))
            got["end"] = f.read()

        def worker(client: Client) -> None:
            layout = self.hello(client)
            self.assertEqual((layout.offsets, layout.call_offset, layout.call_bytes), ([0], 64, 256))
            client.ready(0, 7)
            client.boundary(7)
            self.assertEqual(client.done(7), 0)
            client.call(kind="barrier")
            client.goodbye()

        self.play(agent, worker)
        header, hello = got["hello"]
        self.assertEqual(header, (HELLO, 0, 0, 0, 0))
        self.assertEqual(
            {k: hello[k] for k in hello if k != "weft"},
            {"version": 4, "rank": 0, "world": 1, "local_rank": 0, "pid": os.getpid(), "torch": "1.13.1",
             "bucket_bytes": 1 << 20, "first_bucket_bytes": 1 << 10, "mode": "global", "boundaries": False,
             "tensors": [{"name": "w", "elements": 3, "dtype": "float32"}]},
        )  # fmt: skip
        self.assertEqual(got["ready"], (8, READY, 0, 0, 0, 7))
        self.assertGreater(got["waited"][0], 0)  # for the welcome, nanoseconds
        self.assertEqual(got["boundary"], (0, BOUNDARY, 0, 0, 0, 7))
        self.assertEqual(got["call"], ((CALL, 0, 0, 0, 0), {"kind": "barrier"}))
        self.assertEqual((got["goodbye"], got["end"]), ((0, GOODBYE, 0, 0, 0, 0), b""))

    def test_plan(self) -> None:
        """What a worker learns of a plan, and where generations lie in a period, counted by hand."""

        def agent(sock: socket.socket) -> None:
            sock.recv(1 << 16)
            welcome(sock, PLANNED)

        got = self.play(agent, self.hello)
        self.assertEqual((got.policy, got.period, got.ends, got.offsets), ("deft", 3, [1, 2], []))
        self.assertEqual(got.buckets, [Bucket([0], [Slice(0, 2, 1, 0), Slice(0, 0, 2, 4)], [0, 1])])
        self.assertEqual(got.updates, [Update(0, "read", 2, [0]), Update(1, "step", 2, [0])])
        self.assertEqual([got.generation(i) for i in range(7)], [0, 0, 1, 2, 2, 3, 4])
        self.assertEqual([got.last(g) for g in range(5)], [1, 2, 4, 5, 7])
        self.assertEqual([got.copy(g) for g in range(3)], [0, 64, 0])

    def test_plain_buckets(self) -> None:
        """A welcome that says nothing of a plan: one generation an iteration, applied by its step."""

        def agent(sock: socket.socket) -> None:
            sock.recv(1 << 16)
            welcome(sock, GOOD)

        got = self.play(agent, self.hello)
        self.assertEqual((got.policy, got.period, got.ends, got.buffers, got.buffer_bytes), ("ddp", 1, [0], 1, 0))
        self.assertEqual((got.offsets, got.buckets), ([0], [Bucket([0], [Slice(0, 0, 3, 0)], [0])]))
        self.assertEqual(got.updates, [Update(0, "step", 0, [0])])

    def test_broken_welcome(self) -> None:
        cases: Dict[str, Callable[[socket.socket], Any]] = {
            "nothing": lambda s: None,
            "half a header": lambda s: s.sendall(message(WELCOME)[:9]),
            "half a payload": lambda s: s.sendall(message(WELCOME, b"{", length=100)),
            "4 GiB announced": lambda s: s.sendall(message(WELCOME, length=0xFFFFFFFF)),
            "another type": lambda s: s.sendall(message(DONE)),
            "not JSON": lambda s: s.sendall(message(WELCOME, b"\xff{")),
            "a number": lambda s: s.sendall(message(WELCOME, b"3")),
            "no descriptors": lambda s: welcome(s, GOOD, []),
            "one descriptor": lambda s: welcome(s, GOOD, [320]),
            "short region": lambda s: welcome(s, GOOD, [320, 319]),
            "version 1": lambda s: welcome(s, dict(GOOD, version=1)),
            "tensor outside": lambda s: welcome(s, dict(GOOD, tensors=[{"offset": 310, "bytes": 12}])),
            "negative offset": lambda s: welcome(s, dict(GOOD, tensors=[{"offset": -1, "bytes": 12}])),
            "tensor of the wrong size": lambda s: welcome(s, dict(GOOD, tensors=[{"offset": 0, "bytes": 8}])),
            "calls outside": lambda s: welcome(s, dict(GOOD, call_bytes=257)),
            "no room for calls": lambda s: welcome(s, dict(GOOD, call_bytes=0)),
            "tensor in no bucket": lambda s: welcome(s, dict(GOOD, buckets=[])),
            "tensor in two": lambda s: welcome(s, dict(GOOD, buckets=GOOD["buckets"] * 2)),
            "text for a number": lambda s: welcome(s, dict(GOOD, call_offset="64")),
            "no policy": lambda s: welcome(s, {k: v for k, v in GOOD.items() if k != "policy"}),
            "copies outside": lambda s: welcome(s, dict(PLANNED, buffers=7)),
            "no copies": lambda s: welcome(s, dict(PLANNED, buffers=0)),
            "slices that overlap": lambda s: welcome(s, planned(slices=[[0, 0, 2], [0, 1, 2]])),
            "slices with a hole": lambda s: welcome(s, planned(slices=[[0, 2, 1], [0, 0, 1]])),
            "slices of no tensor": lambda s: welcome(s, planned(slices=[[-1, 0, 3]])),
            "slices of another": lambda s: welcome(s, planned(slices=[[1, 0, 3]])),
            "more bytes than slices": lambda s: welcome(s, planned(bytes=16)),
            "no slices": lambda s: welcome(s, planned(slices=[])),
            "a generation without a bucket": lambda s: welcome(s, planned(generations=[0])),
            "a period of no end": lambda s: welcome(s, dict(PLANNED, period=4)),
            "no generations": lambda s: welcome(s, dict(PLANNED, ends=[])),
            "an update too early": lambda s: welcome(s, dict(PLANNED, updates=[
                {"generation": 0, "at": "step", "iteration": 0}, {"generation": 1, "at": "step", "iteration": 1},
            ])),
            "an update at another point": lambda s: welcome(s, dict(PLANNED, updates=[
                {"generation": 0, "at": "step", "iteration": 1}, {"generation": 1, "at": "noon", "iteration": 2},
            ])),
            "no update of a generation": lambda s: welcome(s, dict(PLANNED, updates=PLANNED["updates"][:1])),
            "two updates of a generation": lambda s: welcome(s, dict(PLANNED, updates=PLANNED["updates"] * 2)),
            "an update of no generation": lambda s: welcome(s, dict(PLANNED, updates=[
                {"generation": 0, "at": "step", "iteration": 1}, {"generation": 2, "at": "step", "iteration": 2},
            ])),
        }  # fmt: skip
        before = len(os.listdir("/proc/self/fd"))
        for name, agent in cases.items():

            def read_first(sock: socket.socket) -> None:
                sock.recv(1 << 16)
                agent(sock)

            with self.subTest(name):
                with self.assertRaises(WeftError) as e:
                    self.play(read_first, self.hello)
                self.assertIn("rank 0", str(e.exception))
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_failed(self) -> None:
        """The agent's message is raised wherever the worker is, then and afterwards."""
        about = {"message": "rank 1 ended", "rank": 1, "tensor": "w", "phase": "reduce"}

        def agent(sock: socket.socket) -> None:
            sock.recv(1 << 16)
            welcome(sock, GOOD)
            sock.recv(1 << 16)
            sock.sendall(message(FAILED, json.dumps(about).encode()))

        def worker(client: Client) -> None:
            self.hello(client)
            client.ready(0, 0)
            for again in (lambda: client.done(0), lambda: client.ready(0, 0), lambda: client.call(kind="barrier")):
                with self.assertRaisesRegex(WeftError, "^rank 1 ended$") as e:
                    again()
                self.assertEqual((e.exception.rank, e.exception.tensor, e.exception.phase), (1, "w", "reduce"))

        self.play(agent, worker)

    def test_failed_before_a_send(self) -> None:
        """The agent said why, and was gone before the worker wrote again."""
        gone = threading.Event()

        def agent(sock: socket.socket) -> None:
            sock.recv(1 << 16)
            welcome(sock, GOOD)
            sock.sendall(message(DONE) + message(FAILED, b'{"message": "no room"}'))
            sock.close()
            gone.set()

        def worker(client: Client) -> None:
            self.hello(client)
            gone.wait(10)
            with self.assertRaisesRegex(WeftError, "no room"):
                client.ready(0, 0)

        self.play(agent, worker)

    def test_out_of_step(self) -> None:
        for name, reply, worker in (
            ("iteration", message(DONE, iteration=3), lambda c: c.done(2)),
            ("call", message(RETURNED, index=4), lambda c: c.call(kind="barrier")),
            ("type", message(RETURNED), lambda c: c.done(0)),
        ):
            with self.subTest(name), self.assertRaises(WeftError):
                self.play(lambda sock: sock.sendall(reply), worker)

    def test_forked_process_is_not_the_worker(self) -> None:
        """A child does not keep the connection open: the agent sees the end of the worker itself."""
        ended = threading.Event()

        def agent(sock: socket.socket) -> None:
            if sock.recv(1) == b"":
                ended.set()

        def worker(client: Client) -> None:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(writer)
                os.read(reader, 1)  # until the test has seen the end
                os._exit(0)
            client.close()
            self.assertTrue(ended.wait(10))
            os.close(writer)
            os.close(reader)
            os.waitpid(child, 0)

        self.play(agent, worker)


if __name__ == "__main__":
    unittest.main()
