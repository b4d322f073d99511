"""pip install ./python, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest

PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@unittest.skipIf(subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode, "no pip")
class Install(unittest.TestCase):
    def test_offline(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            # An index that cannot be reached, rather than --no-index: that pip would not ask.
            subprocess.run(
                [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--root-user-action=ignore",
                 "--index-url", "http://127.0.0.1:9", "--retries", "0", "--target", directory, PYTHON],
                check=True,
            )  # fmt: skip
            program = "import weft, weft.torch; print(weft.__version__, weft.__file__, weft.torch.wrap.__name__)"
            got = subprocess.run(
                [sys.executable, "-c", program], env=dict(os.environ, PYTHONPATH=directory), cwd=directory,
                stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            self.assertIn(os.path.join(directory, "weft", "__init__.py"), got.stdout)


if __name__ == "__main__":
    unittest.main()
