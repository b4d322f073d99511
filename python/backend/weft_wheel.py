"""Builds the wheel: the package's files, zipped beside the three that pip asks for.

setuptools would do the same, but pip fetches it from the network to build anything.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import zipfile
from typing import Any, Dict, Optional

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def build_wheel(directory: str, config_settings: Any = None, metadata_directory: Optional[str] = None) -> str:
    """Writes the wheel into a directory and returns its name, as pip wants it (PEP 517)."""
    with open(os.path.join(ROOT, "weft", "__init__.py")) as f:
        (version,) = re.findall(r'^__version__ = "(.+)"$', f.read(), re.M)
    info = f"weft-{version}.dist-info"
    files: Dict[str, bytes] = {}
    for name in sorted(os.listdir(os.path.join(ROOT, "weft"))):
        if name.endswith(".py") or name == "py.typed":
            with open(os.path.join(ROOT, "weft", name), "rb") as f:
                files[f"weft/{name}"] = f.read()
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: weft\nVersion: {version}\nRequires-Python: >=3.8\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: weft\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()

    wheel = f"weft-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, wheel), "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            z.writestr(zipfile.ZipInfo(name), data)  # with a fixed date: the same files give the same wheel
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
