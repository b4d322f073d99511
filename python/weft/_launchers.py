"""Who this worker is, as its launcher says, and where the agent of its host listens.

Nothing here acts: an environment goes in, values come out.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple

from ._client import WeftError


@dataclass(frozen=True)
class Worker:
    """A worker's place among all, and where the first host is: what torchrun calls by the same names, in capitals."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str
    master_port: int

    def environment(self) -> Dict[str, str]:
        """What torchrun would have said."""
        return {name.upper(): str(value) for name, value in vars(self).items()}


# Variables that hold rank, world size, local rank and local world size; the first launcher counts that has set all. torchrun
# is first because it also starts workers within the jobs of others, MPI before Slurm for the same reason.
_LAUNCHERS: List[Tuple[str, List[str]]] = [
    ("torchrun or weft run", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]),
    ("Open MPI", [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]),
    ("MPICH or Intel MPI", ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
    ("Slurm", ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE"]),
]


def worker(env: Mapping[str, str]) -> Worker:
    """Reads an environment. Raises WeftError that says what is missing."""
    for _, names in _LAUNCHERS:
        if all(name in env for name in names):
            break
    else:
        raise WeftError(_unknown(env))
    slurm = names[0].startswith("SLURM_")
    rank, world, local_rank = (_number(env, name) for name in names[:3])
    local_world = _tasks_here(env) if slurm else _number(env, names[3])
    if not (0 <= local_rank < local_world and local_rank <= rank and rank - local_rank + local_world <= world):
        raise WeftError(
            f"rank {rank} of {world}, local rank {local_rank} of {local_world} ({', '.join(names)}): not possible where the ranks"
            " of a host follow each other"
        )
    # On one host nobody meets at the address and the port; they tell this training from others.
    address: Optional[str] = "127.0.0.1" if local_world == world else None
    port: Optional[int] = 29500 if local_world == world else None
    if slurm:
        address, port = _first_host(env), _port_of_job(env)
    address = env.get("MASTER_ADDR") or address
    port = _number(env, "MASTER_PORT") if env.get("MASTER_PORT") else port
    if address is None or port is None:
        name = "MASTER_PORT" if address else "MASTER_ADDR"
        raise WeftError(
            f"rank {rank}: {name} is not set, and there are several hosts: export MASTER_ADDR, the host of rank 0, and MASTER_PORT,"
            " a free port there, to all workers (mpirun -x MASTER_ADDR=... -x MASTER_PORT=29500, with MPICH -genv MASTER_ADDR ...)"
        )
    return Worker(rank, world, local_rank, local_world, address, port)


def agent_directory(env: Mapping[str, str], w: Worker) -> str:
    """The directory of the agent that local rank 0 starts: one for each host, training and attempt. Its socket is "agent"."""
    job = env.get("TORCHELASTIC_RUN_ID") or env.get("SLURM_JOB_ID") or ""
    if "TORCHELASTIC_RESTART_COUNT" in env:
        job += ":" + env["TORCHELASTIC_RESTART_COUNT"]
    what = f"{w.master_addr}\n{w.master_port}\n{job}\n{w.rank - w.local_rank}"
    key = hashlib.sha256(what.encode()).hexdigest()[:16]
    base = env.get("WEFT_RUNTIME_DIR") or env.get("XDG_RUNTIME_DIR") or env.get("TMPDIR") or "/tmp"
    return os.path.join(base, f"weft-{os.geteuid()}-{key}")


def seconds(env: Mapping[str, str], name: str, default: str) -> float:
    """A duration as Go writes it: "30m", "1h30m", "500ms"; "0" is for ever."""
    text = env.get(name) or default
    if text == "0":
        return math.inf
    units = {"ms": 1e-3, "s": 1, "m": 60, "h": 3600}
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise WeftError(f"{name} is {text!r}, which is no duration as 90s or 1h30m, nor 0 for ever")
    return sum(float(number) * units[unit] for number, unit in parts)


def _unknown(env: Mapping[str, str]) -> str:
    for launcher, names in _LAUNCHERS:
        missing = [name for name in names if name not in env]
        if len(missing) < len(names):
            return f"{', '.join(missing)}: not set, though {launcher} sets it and {next(n for n in names if n in env)} is set"
    return (
        "this process was not started as one of several: start it with weft run -n 2 -- python3 SCRIPT, or with torchrun, mpirun"
        " or srun"
    )


def _number(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise WeftError(f"{name} is {env[name]!r}, not a number") from None


def _tasks_here(env: Mapping[str, str]) -> int:
    """The number of this node's tasks, of a list such as "2(x3),1": two on each of three nodes, then one."""
    name = "SLURM_STEP_TASKS_PER_NODE" if "SLURM_STEP_TASKS_PER_NODE" in env else "SLURM_TASKS_PER_NODE"
    node = _number(env, "SLURM_NODEID") if "SLURM_NODEID" in env else 0
    for part in env[name].split(","):
        m = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if m is None:
            break
        node -= int(m[2] or 1)
        if node < 0:
            return int(m[1])
    raise WeftError(f"{name} is {env[name]!r}, in which node {env.get('SLURM_NODEID', 0)} is not found")


def _first_host(env: Mapping[str, str]) -> Optional[str]:
    """Of a list such as "gpu[07-09,12],login1": gpu07. Task 0 runs there."""
    hosts = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    m = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", hosts or "")
    return m[1] + (m[2] or "") + (m[3] or "") if m else env.get("SLURM_LAUNCH_NODE_IPADDR")


def _port_of_job(env: Mapping[str, str]) -> Optional[int]:
    """An even port below those that systems hand out; the agents meet at the next one. Jobs near in time have other ports."""
    return 20000 + 2 * (_number(env, "SLURM_JOB_ID") % 5000) if "SLURM_JOB_ID" in env else None
