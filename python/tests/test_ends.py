"""However one rank ends, the other ends too, and says why."""

from __future__ import annotations

import unittest

from . import launch


class Ends(unittest.TestCase):
    def run_both(self, way: str) -> None:
        code, reason = {"exception": (1, "ValueError: a bug in the step"), "kill": (-9, "")}[way]
        one, two = launch.run("fake", 2, "ends.py", way)
        self.assertEqual(two.code, code, two.output)
        self.assertIn(reason, two.output)
        self.assertEqual(one.code, 1, one.output)
        self.assertRegex(one.output, "WeftError: rank 1 ended")

    def test_exception(self) -> None:
        self.run_both("exception")

    def test_kill(self) -> None:
        self.run_both("kill")

    def test_in_order(self) -> None:
        for rank in launch.run("fake", 2, "ends.py", "none"):
            self.assertEqual(rank.code, 0, rank.output)

    @unittest.skipUnless(launch.WEFT, "WEFT_BINARY is not set")
    def test_weft_run(self) -> None:
        for way, code in {"none": 0, "exception": 1, "kill": 137}.items():
            with self.subTest(way):
                (both,) = launch.run("weft", 2, "ends.py", way)
                self.assertEqual(both.code, code, both.output)
                if code != 0:
                    self.assertRegex(both.output, "(?m)^weft: rank 1 is lost")


if __name__ == "__main__":
    unittest.main()
