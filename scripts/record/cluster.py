#!/usr/bin/env python3
"""Writes the cluster file of the shaped recordings from their calibration.

    python3 scripts/record/cluster.py < testdata/traces/calibration.json > testdata/traces/shaped.yaml

The all-reduce curve is the measured one, made non-decreasing (a larger size never
takes less than a smaller one: each time is the largest up to its size). Broadcasts,
which the calibration does not measure, get the link's rate and half the time of the
smallest all-reduce. The slowdown of computation is the median of those measured.
"""
import json
import statistics
import sys

c = json.load(sys.stdin)
print("# Written by scripts/record/cluster.py from calibration.json: two hosts, %s." % c["link"])
print("version: 1\nnodes: 2\nlinks:\n  - name: veth\n    bandwidth: 1Gbit")
print("    latency: %dus" % round(min(p["us"] for p in c["all_reduce"]) / 2))
print("    curve:")
most = 0.0
for p in sorted(c["all_reduce"], key=lambda p: p["bytes"]):
    most = max(most, p["us"])
    print("      - {kind: all-reduce, bytes: %d, time: %.1fus}" % (p["bytes"], most))
print("overlap: %.2f" % statistics.median(s["compute_slowdown"] for s in c["slowdown"]))
