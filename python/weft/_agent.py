"""Finds the agent of this host, and starts it where the launcher has not: docs/formats/client.md, "Starting the agent"."""

from __future__ import annotations

import os
import select
import shutil
import socket
import stat
import struct
import subprocess
import time
from typing import Mapping, Optional

from . import __version__
from ._client import WeftError
from ._launchers import Worker, agent_directory, seconds

_PATIENCE = "5m"  # WEFT_TIMEOUT: imports may take long on a shared file system
_READY = 60  # seconds from an agent's start until it listens, at most: it may wait for an earlier one to end


class Agent:
    """The way to the agent of this host.

    Where WEFT_SOCKET is not set, local rank 0 starts it, and owns it: it ends all others if this process ends before hello.
    """

    def __init__(self, env: Mapping[str, str], worker: Worker) -> None:
        self._worker = worker
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._lifeline: Optional[int] = None  # the agent's standard input ends with it
        self._directory: Optional[str] = None
        self._patience = 0.0
        if "WEFT_SOCKET" in env:
            self._path = env["WEFT_SOCKET"]
            return
        self._patience = seconds(env, "WEFT_TIMEOUT", _PATIENCE)
        self._directory = agent_directory(env, worker)
        self._path = os.path.join(self._directory, "agent")
        if worker.local_rank == 0:
            self._start(env)

    def connect(self) -> socket.socket:
        """Connects, waiting for the agent where another worker starts it."""
        deadline = time.monotonic() + self._patience
        pause = 0.01
        while True:
            try:
                return self._connect()
            except (FileNotFoundError, ConnectionRefusedError) as e:
                if time.monotonic() < deadline:
                    time.sleep(pause)
                    pause = min(2 * pause, 0.25)
                    continue
                raise self._error(self._absent(e)) from e
            except OSError as e:
                raise self._error(f"no agent at {self._path}: {e.strerror or e}") from e

    def _connect(self) -> socket.socket:
        if self._directory is not None:
            status = os.lstat(self._directory)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
                raise self._error(f"{self._directory} is not a directory of this user with mode 0700: remove it")
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            s.connect(self._path)
            credentials = s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            _, user, _ = struct.unpack("3i", credentials)
            if user != os.geteuid():
                raise self._error(f"at {self._path} listens a process of user {user}, this one's is {os.geteuid()}")
        except BaseException:
            s.close()
            raise
        return s

    def _start(self, env: Mapping[str, str]) -> None:
        program = env.get("WEFT_BINARY") or shutil.which("weft", path=env.get("PATH"))
        if not program:
            raise self._error("no program weft on PATH, which is this host's agent: install it, or set WEFT_BINARY to its path")
        stdin, self._lifeline = os.pipe()
        os.register_at_fork(after_in_child=self._let_go)  # a data loader would hold it past this worker's end
        command = [program, "agent", self._directory]
        try:
            self._process = subprocess.Popen(
                command, stdin=stdin, stdout=subprocess.PIPE, env={**env, **self._worker.environment()}, start_new_session=True
            )
        except OSError as e:
            raise self._error(f"cannot start the agent {program}: {e.strerror}") from e
        finally:
            os.close(stdin)
        line = self._first_line()
        if line != "ready":
            said = line or f"it ended without a word; is it weft {__version__}?"
            raise self._error(f"{' '.join(map(str, command))}: {said}")

    def _first_line(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        with self._process.stdout as out:
            if not select.select([out], [], [], min(self._patience, _READY))[0]:
                self._process.kill()
                return "it did not get ready"
            return out.readline().decode(errors="replace").strip()

    def _let_go(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _absent(self, e: OSError) -> str:
        if self._directory is None:
            return f"no agent at {self._path} (WEFT_SOCKET): {e.strerror}"
        first = self._worker.rank - self._worker.local_rank
        return (
            f"no agent at {self._path} after {self._patience:g} s (WEFT_TIMEOUT): rank {first}, this host's first, was to start it"
        )

    def _error(self, what: str) -> WeftError:
        return WeftError(f"rank {self._worker.rank}: {what}")
