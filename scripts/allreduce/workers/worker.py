"""A worker of scripts/allreduce: gloo, weft, and nothing but copies, in turns, in one process."""

import mmap
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist

import weft.torch as weft

torch.set_num_threads(1)
weft.init()
dist.init_process_group("gloo")
rank, world = weft.rank(), weft.world_size()
tensor = shared = torch.zeros(0)


def copies(tensor):
    """To shared memory and back: no system that reduces in another process can be faster."""
    shared.copy_(tensor)
    tensor.copy_(shared)


reduce = {"gloo": dist.all_reduce, "weft": weft.all_reduce, "copies": copies}

control = socket.socket(socket.AF_UNIX)
control.connect(os.environ["ALLREDUCE_SOCKET"])
lines = control.makefile("rw", buffering=1)
lines.write(f"python {rank} {os.getpid()} {os.getppid()}\n")
for line in lines:
    system, size, n = line.split()
    if tensor.numel() != int(size) // 4:
        tensor = torch.empty(int(size) // 4)
        shared = torch.frombuffer(mmap.mmap(-1, int(size)), dtype=torch.float32)
    tensor.fill_(rank + 1)
    if n == "0":  # is it right?
        reduce[system](tensor)
        due = rank + 1 if system == "copies" else world * (world + 1) // 2
        lines.write(f"0 {int((tensor != due).sum())}\n")
        continue
    tensor.zero_()  # sums of sums grow without end
    times = []
    for _ in range(int(n)):
        start = time.perf_counter_ns()
        reduce[system](tensor)
        times.append(time.perf_counter_ns() - start)
    lines.write(f"{int(statistics.median(times))} 0\n")
weft.barrier()
dist.destroy_process_group()
