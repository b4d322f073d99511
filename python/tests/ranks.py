"""Several ranks as threads of one process, for what needs no process of its own."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import traceback
from typing import Any, Callable, List

from weft._session import Session

from .fake_agent import FakeAgent
from .launch import LIMIT


def ranks(world: int, function: Callable[[Session], Any], agent: Callable[[str, int], FakeAgent] = FakeAgent) -> List[Any]:
    """Calls a function once a rank under an agent for tests; returns results, or the exceptions that ended them."""
    results: List[Any] = [None] * world

    def rank(r: int, path: str) -> None:
        session = Session({"WEFT_SOCKET": path, "RANK": str(r), "WORLD_SIZE": str(world), "LOCAL_RANK": str(r),
                           "LOCAL_WORLD_SIZE": str(world)})  # fmt: skip
        try:
            results[r] = function(session)
            session.close()
        except Exception as e:
            results[r] = e
            session.client.close()

    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "agent")
        with agent(path, world):
            threads = [threading.Thread(target=rank, args=[r, path], daemon=True) for r in range(world)]
            for t in threads:
                t.start()
            for t in threads:
                t.join(LIMIT)
                if t.is_alive():
                    raise TimeoutError("a rank hangs:\n" + "".join(traceback.format_stack(sys._current_frames()[t.ident or 0])))
    return results
