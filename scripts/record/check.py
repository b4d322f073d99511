"""Says whether recordings are steady: check.py [--max-spread P] DIR...

For each directory: the median ProfilerStep duration and its spread (median
absolute deviation over median), beside the step time without the profiler, and
how many events of the kinds an importer relies on there are a step.  Exits 1
when a spread is above the limit (percent).
"""
import argparse
import collections
import gzip
import json
import os
import statistics
import sys


def events(path):
    with gzip.open(path, "rt") as f:
        doc = json.load(f)
    # Without Kineto the file is a bare array.
    return doc if isinstance(doc, list) else doc["traceEvents"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--max-spread", type=float)
    p.add_argument("--spread-only", action="store_true", help="print only the worst spread")
    p.add_argument("dirs", nargs="+")
    args = p.parse_args()
    bad = False
    for d in args.dirs:
        worst = 0
        with open(os.path.join(d, "meta.json")) as f:
            meta = json.load(f)
        for rank in range(meta["world_size"]):
            ev = events(os.path.join(d, "rank%d.json.gz" % rank))
            steps = [float(e["dur"]) for e in ev
                     if e.get("cat", "") != "gpu_user_annotation"
                     and str(e.get("name", "")).startswith("ProfilerStep") and e.get("ph") == "X"]
            m = statistics.median(steps)
            spread = 100 * statistics.median([abs(s - m) for s in steps]) / m
            worst = max(worst, spread)
            if args.spread_only:
                continue
            count = collections.Counter()
            for e in ev:
                n = str(e.get("name", ""))
                if e.get("ph") == "X" and (n.startswith("gloo:") or n == "torch::autograd::AccumulateGrad"):
                    count[n] += 1
                if e.get("cat") == "fwdbwd" and e.get("ph") == "s":
                    count["fwdbwd"] += 1
                if "Sequence number" in e.get("args", {}):
                    count["Sequence number"] += 1
            print("%s rank %d: %d steps, median %.1f ms, spread %.1f%%, range %.1f to %.1f; unprofiled %.1f ms (mad %.1f)" % (
                d, rank, len(steps), m / 1e3, spread, min(steps) / 1e3, max(steps) / 1e3,
                1e3 * meta["step_seconds"], 1e3 * meta["step_seconds_mad"]))
            forward = [float(e["dur"]) for e in ev
                       if e.get("name") == "DistributedDataParallel.forward" and e.get("cat") != "gpu_user_annotation"]
            if forward:
                print("   forward: median %.1f ms" % (statistics.median(forward) / 1e3))
            print("   a step: " + ", ".join("%s %g" % (k, v / len(steps)) for k, v in sorted(count.items())))
        if args.spread_only:
            print("%.2f" % worst)
        bad = bad or (args.max_spread is not None and worst > args.max_spread)
    sys.exit(bad)


if __name__ == "__main__":
    main()
