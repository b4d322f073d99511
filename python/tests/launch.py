"""Starts the ranks of a test: under the agent for tests, under `weft run`, or with torch.distributed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Dict, List

from .fake_agent import FakeAgent

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
    """Runs tests/SCRIPT ARGS once a rank, via "fake", "weft" or "ddp"; under weft, only one code and output for all.

    Waits for all of them, and kills what lasts longer than LIMIT.
    """
    command = [sys.executable, os.path.join(HERE, script), *args]
    if via == "weft":
        return _wait([_start([WEFT, "run", "-n", str(world), "--", *command], {})])
    with tempfile.TemporaryDirectory() as directory:
        env = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "TEST_STORE": os.path.join(directory, "store")}
        if via == "ddp":
            return _wait(_start_all(command, world, env))
        path = os.path.join(directory, "agent")
        with FakeAgent(path, world):
            return _wait(_start_all(command, world, dict(env, WEFT_SOCKET=path)))


def _start_all(command: List[str], world: int, env: Dict[str, str]) -> List["subprocess.Popen[str]"]:
    return [_start(command, dict(env, RANK=str(r), LOCAL_RANK=str(r))) for r in range(world)]


def _start(command: List[str], env: Dict[str, str]) -> "subprocess.Popen[str]":
    paths = [os.path.dirname(HERE), os.environ.get("PYTHONPATH", "")]
    base = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(p for p in paths if p))
    out: Any = tempfile.TemporaryFile("w+")  # a pipe could fill
    process = subprocess.Popen(command, env=dict(base, **env), stdout=out, stderr=subprocess.STDOUT, text=True)
    process.stdout = out
    return process


def _wait(processes: List["subprocess.Popen[str]"]) -> List[Rank]:
    end = time.monotonic() + LIMIT
    ranks = []
    for p in processes:
        try:
            p.wait(max(0, end - time.monotonic()))
            note = ""
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
            note = f"\nkilled after {LIMIT} s"
        assert p.stdout is not None
        p.stdout.seek(0)
        ranks.append(Rank(p.returncode, p.stdout.read() + note))
        p.stdout.close()
    return ranks
