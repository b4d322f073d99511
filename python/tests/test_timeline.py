"""What a training did, as `weft run --timeline` writes it."""

from __future__ import annotations

import collections
import json
import os
import sys
import tempfile
import unittest
from typing import Any, Dict, List, Tuple

from . import launch

Lane = Tuple[int, int]  # rank, thread


@unittest.skipUnless(launch.WEFT, "WEFT_BINARY is not set")
class Timeline(unittest.TestCase):
    def trained(self, *flags: str) -> List[Dict[str, Any]]:
        """The events of a training of two ranks."""
        with tempfile.TemporaryDirectory() as directory:
            file = os.path.join(directory, "timeline.json")
            command = [launch.WEFT, "run", "-n", "2", "--timeline", file, *flags, "--", sys.executable, "-W", "ignore"]
            (ended,) = launch.run_command([*command, os.path.join(launch.HERE, "told.py")], {})
            self.assertEqual(ended.code, 0, ended.output)
            with open(file) as f:
                events: List[Dict[str, Any]] = json.load(f)["traceEvents"]
        return events

    def test_behind_a_barrier(self) -> None:
        events = self.trained("--policy", "ddp")
        iterations = [e for e in events if e.get("cat") == "iteration"]
        self.assertEqual(len(iterations), 4)  # the first begins, and the last ends, where nothing is told
        lanes: Dict[Lane, List[Dict[str, Any]]] = collections.defaultdict(list)
        last: Dict[str, Any] = {}
        ends: Dict[str, Tuple[Dict[str, Any], Dict[str, Any]]] = {}  # of arrows
        for e in events:
            if e["ph"] == "X" and e["cat"] != "iteration":
                lanes[e["pid"], e["tid"]].append(e)
                last = e
            elif e["ph"] == "s":
                ends[e["id"]] = (last, ends.get(e["id"], (last, last))[1])
            elif e["ph"] == "f":
                ends[e["id"]] = (ends.get(e["id"], (last, last))[0], last)
        did: Dict[int, Dict[str, float]] = {rank: collections.defaultdict(float) for rank in range(2)}
        for (rank, _), spans in lanes.items():
            for before, after in zip(spans, spans[1:]):
                self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + 0.002, f"{before} and {after} overlap")
            for e in spans:
                did[rank][e["args"].get("phase", e["cat"])] += e["dur"]
        for rank, phases in did.items():
            self.assertEqual(sorted(phases), ["backward", "forward", "transfer", "update", "wait"], f"rank {rank}")
        self.assertGreater(len(ends), 0)
        for transfer, wait in ends.values():
            self.assertEqual(wait["name"], "wait: " + transfer["name"])
            end = transfer["ts"] + transfer["dur"]
            self.assertTrue(wait["ts"] <= end <= wait["ts"] + wait["dur"] + 0.002, f"{wait} for {transfer}")
        transfers = [e for e in events if e.get("cat") == "transfer" and e["pid"] == 0 and 0 <= e["args"]["iteration"] < 4]
        for i in range(4):
            in_it = [e for e in transfers if e["args"]["iteration"] == i]
            self.assertGreater(len(in_it), 0)
            self.assertIn("2.weight", " ".join(e["args"]["tensors"] for e in in_it))
            for e in in_it:
                self.assertGreaterEqual(e["ts"] + 0.002, iterations[i]["ts"])
                self.assertLessEqual(e["ts"] + e["dur"], iterations[i]["ts"] + iterations[i]["dur"] + 0.002)


if __name__ == "__main__":
    unittest.main()
