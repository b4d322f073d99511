"""One rank of a small DDP training over gloo, profiled.

Start one process per rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
set (record.sh and shaped.sh do).  In --out it leaves rankR.json.gz and, from
rank 0, tensors.txt and meta.json.
"""
import argparse
import contextlib
import gzip
import json
import os
import shutil
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples"))
import models  # noqa: E402


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--model", choices=["resnet18", "gpt"], required=True)
    p.add_argument("--tie", action="store_true", help="gpt: share head and token embedding")
    p.add_argument("--layers", type=int, default=4, help="gpt: number of layers")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--image-size", type=int, default=128)
    p.add_argument("--bucket-cap-mb", type=float, help="leave out for DDP's own default")
    p.add_argument("--first-bucket-mb", type=float, help="leave out for DDP's own default")
    p.add_argument("--accumulate", type=int, default=1, help="micro-batches a step")
    p.add_argument("--steps", type=int, default=5, help="steps kept in the trace")
    p.add_argument("--timed", type=int, default=12, help="steps timed without profiler")
    p.add_argument("--out", required=True)
    p.add_argument("--note", action="append", default=[], help="key=value kept in meta.json")
    return p.parse_args()


def median_and_mad(values):
    m = statistics.median(values)
    return m, statistics.median([abs(v - m) for v in values])


def compress(path):
    # A fixed time and no file name in the header: the same trace gives the same
    # bytes wherever and whenever it is compressed.
    with open(path, "rb") as src, open(path + ".gz", "wb") as dst:
        with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=dst, mtime=0) as z:
            shutil.copyfileobj(src, z)
    os.remove(path)


def main():
    args = arguments()
    # The ranks share the machine: more threads would make them fight for cores
    # and the recorded times would be those of the fight.
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method="env://")
    rank, world = dist.get_rank(), dist.get_world_size()
    # Kineto writes the path it is given into the trace, so hand it a bare name.
    os.makedirs(args.out, exist_ok=True)
    os.chdir(args.out)

    model = models.build(args.model, args.tie, args.layers)
    if rank == 0:
        # The documentation quotes the next three lines:
        with open("tensors.txt", "w") as f:
            for name, p in model.named_parameters():
                print(name, p.numel(), str(p.dtype).replace("torch.", ""), file=f)

    ddp_args = {}
    if args.bucket_cap_mb is not None:
        ddp_args["bucket_cap_mb"] = args.bucket_cap_mb
    if args.first_bucket_mb is not None:
        # DDP has no argument for it, and reads this when it is constructed.
        dist._DEFAULT_FIRST_BUCKET_BYTES = int(args.first_bucket_mb * 1024 * 1024)
    ddp = DistributedDataParallel(model, **ddp_args)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)

    g = torch.Generator().manual_seed(100 + rank)
    data = [models.batch(args.model, args.batch, args.image_size, g) for _ in range(4)]

    def step(i):
        optimizer.zero_grad()
        for k in range(args.accumulate):
            x, y = data[(i * args.accumulate + k) % len(data)]
            last = k == args.accumulate - 1
            with contextlib.nullcontext() if last else ddp.no_sync():
                loss = models.loss(args.model, ddp(x), y)
                if args.accumulate > 1:
                    loss = loss / args.accumulate
                loss.backward()
        optimizer.step()

    def timed(i):
        start = time.perf_counter()
        step(i)
        return time.perf_counter() - start

    # The first step runs with provisional buckets, and allocator and oneDNN
    # caches fill over a few more.
    for i in range(5):
        step(i)
    plain = [timed(i) for i in range(args.timed)]

    def export(prof):
        prof.export_chrome_trace("rank%d.json" % rank)

    wait, warmup = 1, 2
    profiled = []
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=wait, warmup=warmup, active=args.steps),
        on_trace_ready=export,
        record_shapes=True,
    ) as prof:
        for i in range(wait + warmup + args.steps):
            profiled.append(timed(i))
            prof.step()
    profiled = profiled[wait + warmup:]
    compress("rank%d.json" % rank)

    if rank == 0:
        log = ddp._get_ddp_logging_data()
        plain_s, plain_mad = median_and_mad(plain)
        prof_s, prof_mad = median_and_mad(profiled)
        meta = {
            "torch": torch.__version__,
            "kineto": torch.profiler.kineto_available(),
            "backend": "gloo",
            "world_size": world,
            "threads": torch.get_num_threads(),
            "model": args.model + ("-tied" if args.tie else ""),
            "parameters": sum(p.numel() for p in model.parameters()),
            "batch": args.batch,
            "image_size": args.image_size if args.model == "resnet18" else None,
            "layers": args.layers if args.model == "gpt" else None,
            "accumulate": args.accumulate,
            "bucket_cap_mb_given": args.bucket_cap_mb,
            "first_bucket_mb_given": args.first_bucket_mb,
            "bucket_cap_bytes": log.get("bucket_cap_bytes"),
            # In the order in which they are launched.
            "bucket_bytes": [int(b) for b in str(log.get("rebuilt_bucket_sizes", "")).split(",") if b.strip()],
            "steps": args.steps,
            "step_seconds": round(plain_s, 6),
            "step_seconds_mad": round(plain_mad, 6),
            "step_seconds_profiled": round(prof_s, 6),
            "step_seconds_profiled_mad": round(prof_mad, 6),
        }
        for note in args.note:
            key, _, value = note.partition("=")
            meta[key] = value
        with open("meta.json", "w") as f:
            json.dump(meta, f, indent=2)
            f.write("\n")
        print("plain    %.4f s  mad %.4f  %s" % (plain_s, plain_mad, " ".join("%.3f" % v for v in plain)))
        print("profiled %.4f s  mad %.4f  %s" % (prof_s, prof_mad, " ".join("%.3f" % v for v in profiled)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
