"""A worker without torch, which starts at once: says hello, waits for the others, leaves. Run as one rank: bare.py [early RANK]

With early, RANK is killed before it has said hello.
"""

from __future__ import annotations

import os
import signal
import sys

from weft._agent import Agent
from weft._client import Client
from weft._launchers import worker

me = worker(os.environ)
client = Client(Agent(os.environ, me).connect(), me.rank, me.world_size, me.local_rank)
if sys.argv[1:] == ["early", str(me.rank)]:
    os.kill(os.getpid(), signal.SIGKILL)
client.hello([], 1, 1, "")
client.call(kind="barrier")
client.goodbye()
