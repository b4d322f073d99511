"""docs/pytorch.md tells of all calls that there are, with their options, and of no others."""

from __future__ import annotations

import inspect
import os
import re
import unittest
from typing import Any

import weft.torch as weft

from .launch import HERE

NO_CALLS = {"WeftError"}


class Docs(unittest.TestCase):
    def test_calls(self) -> None:
        with open(os.path.join(HERE, "..", "..", "docs", "pytorch.md")) as f:
            page = f.read()
        table = page.partition("## The calls")[2].partition("## ")[0]
        shown = {name: arguments for row in re.findall(r"^\| (`.*?`) \|", table, re.M) for name, arguments in re.findall(r"`(\w+)(?:\((.*?)\))?`", row)}
        self.assertEqual(set(shown), set(weft.__all__) - NO_CALLS)
        for name, arguments in shown.items():
            parameters = inspect.signature(getattr(weft, name)).parameters
            for argument in filter(None, arguments.split(", ")):
                argument, _, default = argument.partition("=")
                self.assertIn(argument, parameters, name)
                if default:
                    self.assertEqual(parameters[argument].default, _literal(default), name)
            for p in parameters.values():
                if p.kind is p.KEYWORD_ONLY:
                    self.assertRegex(page, rf"\b{p.name}\b", f"{name} has an option that the page does not tell of")


def _literal(text: str) -> Any:
    return text.strip('"') if text.startswith('"') else int(text)


if __name__ == "__main__":
    unittest.main()
