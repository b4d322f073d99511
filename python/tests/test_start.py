"""Without weft run: the first local rank starts the agent of its host, and nothing is left behind however it ends."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any, Dict, List

from weft._agent import Agent
from weft._client import WeftError
from weft._launchers import worker

from . import launch

# What starts a worker of its own accord, by rank, world size, local rank and local world size.
LAUNCHERS: Dict[str, List[str]] = {
    "torchrun": ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
    "mpirun": [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")],
    "srun": ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE"],
}
HOSTS = {
    "srun": {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "localhost", "SLURM_NODEID": "0"},
    "mpirun": {},
    "torchrun": {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
}


class Start(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.runtime = os.path.join(self.directory, "runtime")
        os.mkdir(self.runtime)

    def run_ranks(self, launcher: str, script: str, *args: str, **more: str) -> List[launch.Rank]:
        """Two ranks of one host, in a runtime directory of this test's own."""
        env = {**HOSTS[launcher], "WEFT_RUNTIME_DIR": self.runtime, **more}
        ranks = [dict(env, **dict(zip(LAUNCHERS[launcher], [str(r), "2", str(r), "2"]))) for r in range(2)]
        return launch.run_each(ranks, script, *args)

    def nothing_left(self) -> None:
        """No file, and no process whose arguments name the runtime directory, within what an agent allows itself."""
        end = time.monotonic() + 30
        while True:
            left: List[Any] = os.listdir(self.runtime)
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/cmdline") as f:
                        arguments = f.read()
                except OSError:
                    continue
                if self.runtime in arguments:
                    left.append((pid, arguments))
            if not left:
                return
            if time.monotonic() > end:
                self.fail(f"left behind: {left}")
            time.sleep(0.05)


@unittest.skipUnless(launch.WEFT, "WEFT_BINARY is not set")
class RealAgent(Start):
    def test_in_order(self) -> None:
        for launcher in LAUNCHERS:
            with self.subTest(launcher):
                for rank in self.run_ranks(launcher, "bare.py"):
                    self.assertEqual(rank.code, 0, rank.output)
                self.nothing_left()

    def test_failures(self) -> None:
        """Either rank is killed: the other says which was lost."""
        for ends in 0, 1:
            with self.subTest(ends=ends):
                ranks = self.run_ranks("torchrun", "ends.py", "kill", str(ends))
                self.assertEqual(ranks[ends].code, -9, ranks[ends].output)
                self.assertEqual(ranks[1 - ends].code, 1, ranks[1 - ends].output)
                self.assertRegex(ranks[1 - ends].output, f"WeftError: rank {ends} is lost")
                self.nothing_left()

    def test_before_hello(self) -> None:
        """Local rank 0 ends between starting the agent and speaking to it."""
        ranks = self.run_ranks("torchrun", "bare.py", "early", "0")
        self.assertEqual(ranks[0].code, -9, ranks[0].output)
        self.assertEqual(ranks[1].code, 1, ranks[1].output)
        self.assertRegex(ranks[1].output, "WeftError: .*rank 0")
        self.nothing_left()

    def test_torchrun(self) -> None:
        """torchrun itself, where this torch has one that works."""
        flags = ["-r", "1", "-t", "1", "--log_dir", self.directory, "--nproc_per_node", "2", "--master_port", launch.free_port()]
        command = [sys.executable, "-m", "torch.distributed.run", *flags, os.path.join(launch.HERE, "ends.py")]
        for way, code in {"none": 0, "exception": 1}.items():
            (job,) = launch.run_command([*command, way], {"WEFT_RUNTIME_DIR": self.runtime})
            if "libuv" in job.output:
                self.skipTest("this torch is built without libuv, which its torchrun asks for")
            self.assertEqual(job.code, code, job.output)
            self.nothing_left()

    def test_mpirun_and_srun(self) -> None:
        """Open MPI's launcher and Slurm's themselves, where they are: srun needs a cluster that has at least this host."""
        for command, works in (["mpirun", "--allow-run-as-root", "--oversubscribe"], ["mpirun", "--version"]), (["srun"], ["sinfo"]):
            for way, code in {"none": 0, "exception": 1}.items():
                with self.subTest(command[0], way=way):
                    if shutil.which(works[0]) is None or subprocess.run(works, capture_output=True, timeout=60).returncode != 0:
                        self.skipTest(f"no {command[0]} that works is installed")
                    ranks = [*command, "-n", "2", sys.executable, os.path.join(launch.HERE, "ends.py"), way]
                    (job,) = launch.run_command(ranks, {"WEFT_RUNTIME_DIR": self.runtime})
                    self.assertEqual(job.code, code, job.output)
                    self.nothing_left()

    def test_two_hosts(self) -> None:
        """Two agents on the loopback, which meet by TCP: one's worker is killed, or they have no secret."""
        hosts = launch.hosts(self.directory, 2)
        for host in hosts:
            host["WEFT_RUNTIME_DIR"] = self.runtime
        ranks = launch.run_each(hosts, "ends.py", "kill")
        self.assertEqual([r.code for r in ranks], [1, -9], [r.output for r in ranks])
        self.nothing_left()
        self.assertIn("rank 1 is lost", ranks[0].output)
        for host in hosts:
            del host["WEFT_SECRET_FILE"]
        for rank in launch.run_each(hosts, "bare.py"):
            self.assertEqual(rank.code, 1, rank.output)
            self.assertIn("WEFT_SECRET_FILE", rank.output)
        self.nothing_left()


class Refusals(Start):
    """What init says where there is no agent that it can use."""

    def env(self, **more: str) -> Dict[str, str]:
        env = dict(zip(LAUNCHERS["torchrun"], ["0", "2", "0", "2"]), **HOSTS["torchrun"])
        return {**env, "PATH": "/nowhere", "WEFT_RUNTIME_DIR": self.runtime, "WEFT_TIMEOUT": "200ms", **more}

    def refused(self, env: Dict[str, str], message: str) -> None:
        with self.assertRaisesRegex(WeftError, message):
            Agent(env, worker(env)).connect()

    def program(self, text: str) -> str:
        path = os.path.join(self.directory, "program")
        with open(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o700), "w") as f:
            f.write("#!/bin/sh\n" + text)
        return path

    def test_no_program(self) -> None:
        self.refused(self.env(), "rank 0: no program weft on PATH.*WEFT_BINARY")
        self.refused(self.env(WEFT_BINARY="/nowhere/weft"), "cannot start the agent /nowhere/weft: No such file")

    def test_not_ready(self) -> None:
        self.refused(self.env(WEFT_BINARY=self.program("echo no such secret; exit 3")), "agent /.*: no such secret")
        self.refused(self.env(WEFT_BINARY=self.program("exit 2")), "ended without a word; is it weft 0")
        self.refused(self.env(WEFT_BINARY=self.program("exec /bin/sleep 60")), "did not get ready")

    def test_nobody_starts_it(self) -> None:
        second = dict(RANK="1", LOCAL_RANK="1")
        self.refused(self.env(**second), r"rank 1: no agent at .* after 0\.2 s \(WEFT_TIMEOUT\): rank 0.* was to start it")
        self.refused(self.env(WEFT_SOCKET="/nowhere/s"), r"no agent at /nowhere/s \(WEFT_SOCKET\): No such file")

    def test_directory_of_others(self) -> None:
        env = self.env(RANK="1", LOCAL_RANK="1")
        directory = Agent(env, worker(env))._directory
        assert directory is not None
        os.mkdir(directory, 0o755)
        os.chmod(directory, 0o755)
        self.refused(env, "not a directory of this user with mode 0700")
        os.rmdir(directory)
        os.symlink(self.directory, directory)
        self.assertEqual(stat.S_IMODE(os.stat(directory).st_mode), 0o700)
        self.refused(env, "not a directory of this user with mode 0700")


if __name__ == "__main__":
    unittest.main()
