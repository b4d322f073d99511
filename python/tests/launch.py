"""Starts the ranks of a test: under the agent for tests, under `weft run`, or with torch.distributed alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Dict, List

from .fake_agent import FakeAgent
from .planned_agent import PlannedAgent

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 300  # seconds: a guard against hangs, on a machine that may do much else

# The binary whose `weft run` is tested, or none.
WEFT = os.environ.get("WEFT_BINARY", "")


@dataclass
class Rank:
    """How a rank ended."""

    code: int
    output: str


def run(via: str, world: int, script: str, *args: str) -> List[Rank]:
    """Runs tests/SCRIPT ARGS once a rank, via "fake", "planned", "weft", "ddp", or "hosts", each of which has one rank.

    Under weft, there is only one code and output for all. Waits for all of them, and kills what lasts longer than LIMIT: its
    output then tells what each rank was doing.
    """
    command = [sys.executable, os.path.join(HERE, script), *args]
    if via == "weft":
        return _wait([_start([WEFT, "run", "-n", str(world), "--", *command], {})])
    with tempfile.TemporaryDirectory() as directory:
        env = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "TEST_STORE": os.path.join(directory, "store")}
        if via == "hosts":
            return run_each(hosts(directory, world), script, *args)
        if via == "ddp":
            return _wait(_start_all(command, world, env))
        path = os.path.join(directory, "agent")
        with PlannedAgent(path, world, elements=300, after_step=True) if via == "planned" else FakeAgent(path, world):
            return _wait(_start_all(command, world, dict(env, WEFT_SOCKET=path)))


def hosts(directory: str, number: int) -> List[Dict[str, str]]:
    """The environments of one rank each on as many hosts, which are all this one. The directory keeps what they need."""
    secret = os.path.join(directory, "secret")
    with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
        f.write("correct horse battery staple")
    port = free_port()
    env = {
        "WORLD_SIZE": str(number), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        "WEFT_PORT": port, "WEFT_RUNTIME_DIR": directory, "WEFT_SECRET_FILE": secret,
    }  # fmt: skip
    return [dict(env, RANK=str(r)) for r in range(number)]


def free_port() -> str:
    """A port of the loopback that nobody has now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def run_each(environments: List[Dict[str, str]], script: str, *args: str) -> List[Rank]:
    """Runs tests/SCRIPT ARGS once for each environment, which is added to this one's. Waits as run does."""
    command = [sys.executable, os.path.join(HERE, script), *args]
    return _wait([_start(command, env) for env in environments])


def run_command(command: List[str], env: Dict[str, str]) -> List[Rank]:
    """Runs a command that starts the ranks itself. Waits as run does."""
    return _wait([_start(command, env)])


def run_commands(commands: List[List[str]], env: Dict[str, str]) -> List[Rank]:
    """Runs commands that start ranks themselves, all at once, each with a MASTER_PORT of its own. Waits as run does."""
    return _wait([_start(c, dict(env, MASTER_PORT=free_port())) for c in commands])


def _start_all(command: List[str], world: int, env: Dict[str, str]) -> List["subprocess.Popen[str]"]:
    return [_start(command, dict(env, RANK=str(r), LOCAL_RANK=str(r))) for r in range(world)]


def _start(command: List[str], env: Dict[str, str]) -> "subprocess.Popen[str]":
    paths = [os.path.dirname(HERE), os.environ.get("PYTHONPATH", "")]
    base = dict(os.environ, OMP_NUM_THREADS="1", PYTHONFAULTHANDLER="1", PYTHONPATH=os.pathsep.join(p for p in paths if p))
    out: Any = tempfile.TemporaryFile("w+")  # a pipe could fill
    process = subprocess.Popen(command, env=dict(base, **env), stdout=out, stderr=subprocess.STDOUT, text=True)
    process.stdout = out
    return process


def _abort(process: "subprocess.Popen[str]") -> None:
    """Has a process and those below it say what they are doing, and end: Python prints its stacks, as PYTHONFAULTHANDLER says."""
    pids = [process.pid]
    for pid in pids:  # which grows
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as f:
                    pids += map(int, f.read().split())
        except OSError:
            pass  # it has ended
    for pid in reversed(pids):
        try:
            with open(f"/proc/{pid}/comm") as f:
                if f.read().startswith("python"):  # weft tells what they say, and then ends
                    os.kill(pid, signal.SIGABRT)
        except OSError:
            pass
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        pass


def _wait(processes: List["subprocess.Popen[str]"]) -> List[Rank]:
    end = time.monotonic() + LIMIT
    ranks = []
    for p in processes:
        try:
            p.wait(max(0, end - time.monotonic()))
            note = ""
        except subprocess.TimeoutExpired:
            _abort(p)
            p.kill()
            p.wait()
            note = f"\nkilled after {LIMIT} s"
        assert p.stdout is not None
        p.stdout.seek(0)
        ranks.append(Rank(p.returncode, p.stdout.read() + note))
        p.stdout.close()
    return ranks
