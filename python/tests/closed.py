"""Process groups of weft's own, closed as soon as they have reduced something, many times. Run as one rank."""

from __future__ import annotations

import mmap
import os
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from weft._c10d import Group

from tests.cases import RANK, WORLD


def main() -> None:
    dist.init_process_group("gloo", init_method="file://" + os.environ["TEST_STORE"], rank=RANK, world_size=WORLD)
    region = mmap.mmap(-1, 3 * 4096)
    buckets = [SimpleNamespace(slices=[SimpleNamespace(tensor=0, place=4096 * b, length=1000)]) for b in range(3)]
    layout: Any = SimpleNamespace(buckets=buckets, input=region, generation=lambda i: i, copy=lambda g: 0)
    tensors: Any = [SimpleNamespace(dtype="float32")]
    for _ in range(int(sys.argv[1])):
        group = Group("gloo", WORLD, 60)
        group.use(layout, tensors)
        for b in range(len(buckets)):
            group.reduce(b, 0)
        group.close()
    dist.barrier()
    os._exit(0)  # as in cases.py


if __name__ == "__main__":
    main()
