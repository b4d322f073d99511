"""What launchers say, as they say it, and what follows."""

from __future__ import annotations

import hashlib
import os
import unittest
from typing import Any, Dict

from weft._client import WeftError
from weft._launchers import Worker, agent_directory, seconds, worker

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}  # fmt: skip
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "9", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "6", "SLURM_NTASKS": "7", "SLURM_LOCALID": "0", "SLURM_NODEID": "3", "SLURM_TASKS_PER_NODE": "2(x3),1",
    "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "gpu[07-09,12]", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.250",
}  # fmt: skip


def without(env: Dict[str, str], name: str) -> Dict[str, str]:
    return {k: v for k, v in env.items() if k != name}


class Launchers(unittest.TestCase):
    def test_worker(self) -> None:
        master = {"MASTER_ADDR": "a", "MASTER_PORT": "1234"}
        for name, env, want in (
            ("torchrun", TORCHRUN, Worker(5, 8, 1, 4, "10.0.0.1", 29500)),
            ("Open MPI, one host", OPENMPI, Worker(3, 4, 3, 4, "127.0.0.1", 29500)),
            ("MPICH", HYDRA, Worker(1, 2, 1, 2, "127.0.0.1", 29500)),
            ("MPICH, two hosts", {**HYDRA, "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1", **master}, Worker(1, 2, 0, 1, "a", 1234)),
            ("Slurm", SLURM, Worker(6, 7, 0, 1, "gpu07", 20000 + 2 * 4711)),
            ("Slurm, a port of the user's", {**SLURM, "MASTER_PORT": "1234"}, Worker(6, 7, 0, 1, "gpu07", 1234)),
            ("Slurm, a step", {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2,2,2,1"}, Worker(6, 7, 0, 1, "gpu07", 20000 + 2 * 4711)),
            ("mpirun in a Slurm job", {**SLURM, **OPENMPI, "SLURM_PROCID": "0"}, Worker(3, 4, 3, 4, "127.0.0.1", 29500)),
            ("torchrun in a Slurm job", {**SLURM, **TORCHRUN}, Worker(5, 8, 1, 4, "10.0.0.1", 29500)),
            ("srun --mpi=pmi2", {**SLURM, "PMI_RANK": "6", "PMI_SIZE": "7"}, Worker(6, 7, 0, 1, "gpu07", 20000 + 2 * 4711)),
        ):
            with self.subTest(name):
                self.assertEqual(worker(env), want)

    def test_slurm_lists(self) -> None:
        for node, tasks in enumerate([2, 2, 2, 1]):
            env = {**SLURM, "SLURM_PROCID": str(2 * node), "SLURM_NODEID": str(node)}
            self.assertEqual(worker(env).local_world_size, tasks)
        for hosts, first in (("n1", "n1"), ("n1,n2", "n1"), ("n[1-3]", "n1"), ("a[01,03]-ib,b", "a01-ib"), ("n-1,n-2", "n-1")):
            self.assertEqual(worker({**SLURM, "SLURM_JOB_NODELIST": hosts}).master_addr, first)
        self.assertEqual(worker(without(SLURM, "SLURM_JOB_NODELIST")).master_addr, "10.0.0.250")

    def test_environment(self) -> None:
        """What the agent is told is what torchrun says."""
        self.assertEqual({**TORCHRUN, **worker(TORCHRUN).environment()}, TORCHRUN)
        w = worker(SLURM)
        self.assertEqual(worker(w.environment()), w)

    def test_refused(self) -> None:
        for env, message in (
            ({}, "weft run -n 2 -- python3"),
            (without(TORCHRUN, "LOCAL_WORLD_SIZE"), "LOCAL_WORLD_SIZE: not set, though torchrun or weft run sets it and RANK is"),
            ({**TORCHRUN, "RANK": "five"}, "RANK is 'five', not a number"),
            ({**TORCHRUN, "RANK": "8"}, "rank 8 of 8, local rank 1 of 4"),
            ({**TORCHRUN, "LOCAL_RANK": "4"}, "local rank 4 of 4"),
            ({**OPENMPI, "OMPI_COMM_WORLD_SIZE": "8"}, "rank 3: MASTER_ADDR is not set, and there are several hosts.*mpirun -x"),
            ({**OPENMPI, "OMPI_COMM_WORLD_SIZE": "8", "MASTER_ADDR": "a"}, "MASTER_PORT is not set"),
            ({**SLURM, "SLURM_TASKS_PER_NODE": "2(x3)"}, r"'2\(x3\)', in which node 3 is not found"),
            ({**SLURM, "SLURM_TASKS_PER_NODE": "two"}, "'two'"),
        ):
            with self.subTest(message), self.assertRaisesRegex(WeftError, message):
                worker(env)

    def test_directory(self) -> None:
        def directory(env: Any) -> str:
            return agent_directory(env, worker(env))

        key = hashlib.sha256(b"10.0.0.1\n29500\nnone:2\n4").hexdigest()[:16]
        name = f"weft-{os.geteuid()}-{key}"
        self.assertEqual(directory(TORCHRUN), f"/tmp/{name}")
        self.assertEqual(directory({**TORCHRUN, "LOCAL_RANK": "0", "RANK": "4"}), f"/tmp/{name}")
        self.assertNotEqual(directory({**TORCHRUN, "RANK": "4"}), f"/tmp/{name}")  # another host's
        self.assertEqual(directory({**TORCHRUN, "TMPDIR": "/t", "XDG_RUNTIME_DIR": ""}), f"/t/{name}")
        self.assertEqual(directory({**TORCHRUN, "TMPDIR": "/t", "XDG_RUNTIME_DIR": "/r"}), f"/r/{name}")
        self.assertEqual(directory({**TORCHRUN, "WEFT_RUNTIME_DIR": "/w", "XDG_RUNTIME_DIR": "/r"}), f"/w/{name}")
        self.assertNotEqual(directory(SLURM), directory({**SLURM, "SLURM_JOB_ID": "9711"}))  # whose port is the same

    def test_seconds(self) -> None:
        for text, want in {"0": float("inf"), "90s": 90, "1h30m": 5400, "500ms": 0.5, "1.5m": 90}.items():
            self.assertEqual(seconds({"T": text}, "T", "1s"), want)
        self.assertEqual(seconds({}, "T", "1s"), 1)
        for text in "90", "m", "1 h", "1h!":
            with self.assertRaisesRegex(WeftError, "T is"):
                seconds({"T": text}, "T", "1s")


if __name__ == "__main__":
    unittest.main()
