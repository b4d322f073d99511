"""What gloo and the machine do outside training: all-reduce times by size, and
how much transfers and computation slow each other.

Started like train.py, one process per rank; shaped.sh does.  Rank 0 writes the
file named by --out.  All fields are in bytes and microseconds unless the name
says otherwise:

all_reduce[]         one entry a size
  bytes              of the float32 tensor that is reduced
  us                 median time of one all_reduce with nothing else in flight
  us_mad             median absolute deviation of it
  repeats            measured all_reduces
  two_us             median time from the start of the first to the end of the
                     second of two all_reduces of this size started together
  two_us_mad         median absolute deviation of it
slowdown[]           one entry a transfer size and number in flight
  bytes, in_flight   all_reduces of this size run back to back, so many at once
  compute_alone_us   median forward and backward pass without transfers
  compute_us         the same during transfers
  compute_slowdown   compute_us / compute_alone_us - 1
  transfer_alone_us  time per all_reduce without computation (total over count)
  transfer_us        the same during computation
  transfer_slowdown  transfer_us / transfer_alone_us - 1
"""
import argparse
import collections
import json
import os
import statistics
import sys
import threading
import time

import torch
import torch.distributed as dist

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples"))
import models  # noqa: E402


def median_and_mad(values):
    m = statistics.median(values)
    return m, statistics.median([abs(v - m) for v in values])


def sync():
    # Shorter than a barrier, and leaves both ranks within a round trip of each
    # other, as the ranks of a training are when a bucket is ready.
    dist.all_reduce(torch.zeros(1))


def time_all_reduce(size, count, in_flight):
    tensors = [torch.zeros(size // 4) for _ in range(in_flight)]
    times = []
    for i in range(count + 2):
        sync()
        start = time.perf_counter()
        works = [dist.all_reduce(t, async_op=True) for t in tensors]
        for w in works:
            w.wait()
        times.append(time.perf_counter() - start)
    # Buffers and connections settle in the first rounds.
    return [1e6 * t for t in times[2:]]


def transfers(size, count, in_flight, done):
    """Run count all_reduces back to back; leaves the time they took in done."""
    tensors = [torch.zeros(size // 4) for _ in range(in_flight)]
    pending = collections.deque()
    start = time.perf_counter()
    for i in range(count):
        if len(pending) == in_flight:
            pending.popleft().wait()
        pending.append(dist.all_reduce(tensors[i % in_flight], async_op=True))
    while pending:
        pending.popleft().wait()
    done.append(time.perf_counter() - start)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default="resnet18")
    p.add_argument("--batch", type=int, default=10)
    p.add_argument("--image-size", type=int, default=128)
    p.add_argument("--seconds", type=float, default=5, help="of transfers for each slowdown")
    p.add_argument("--bytes-per-second", type=float, default=125e6, help="of the link, to choose counts")
    p.add_argument("--note", action="append", default=[], help="key=value kept in the file")
    p.add_argument("--out", required=True)
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method="env://")
    rank = dist.get_rank()
    result = {"torch": torch.__version__, "backend": "gloo", "world_size": dist.get_world_size(),
              "model": args.model, "batch": args.batch, "image_size": args.image_size,
              "units": "bytes and microseconds; fields are explained in scripts/record/calibrate.py"}
    for note in args.note:
        key, _, value = note.partition("=")
        result[key] = value

    result["all_reduce"] = []
    size = 4096
    while size <= 64 << 20:
        count = 15 if size >= 8 << 20 else 41
        one, one_mad = median_and_mad(time_all_reduce(size, count, 1))
        two, two_mad = median_and_mad(time_all_reduce(size, count, 2))
        result["all_reduce"].append({
            "bytes": size, "us": round(one, 1), "us_mad": round(one_mad, 1), "repeats": count,
            "two_us": round(two, 1), "two_us_mad": round(two_mad, 1)})
        size *= 2

    model = models.build(args.model)
    x, y = models.batch(args.model, args.batch, args.image_size, torch.Generator().manual_seed(1))

    def compute():
        start = time.perf_counter()
        model.zero_grad()
        models.loss(args.model, model(x), y).backward()
        return 1e6 * (time.perf_counter() - start)

    for _ in range(5):
        compute()
    result["slowdown"] = []
    for size in 1 << 20, 25 << 20:
        for in_flight in 1, 2:
            count = max(8, int(args.seconds * args.bytes_per_second / size))
            sync()
            alone = [compute() for _ in range(15)]
            sync()
            done = []
            transfers(size, count, in_flight, done)
            transfer_alone = 1e6 * done[0] / count
            sync()
            done = []
            thread = threading.Thread(target=transfers, args=(size, count, in_flight, done))
            thread.start()
            during = []
            while True:
                t = compute()
                # The pass in which the transfers ended had only some of them.
                if done:
                    break
                during.append(t)
            thread.join()
            transfer = 1e6 * done[0] / count
            c_alone, c_during = statistics.median(alone), statistics.median(during)
            result["slowdown"].append({
                "bytes": size, "in_flight": in_flight,
                "compute_alone_us": round(c_alone, 1), "compute_us": round(c_during, 1),
                "compute_slowdown": round(c_during / c_alone - 1, 4),
                "transfer_alone_us": round(transfer_alone, 1), "transfer_us": round(transfer, 1),
                "transfer_slowdown": round(transfer / transfer_alone - 1, 4)})
    if rank == 0:
        with open(args.out, "w") as f:
            json.dump(result, f, indent=2)
            f.write("\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
