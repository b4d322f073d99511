"""Trains, and has `weft run` tell and report on the way: asks.py FILE, in which the report is to be."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

import weft.torch as weft

weft.init()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
weft.wrap(model, optimizer)
for step in range(10):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    if step == 7 and weft.rank() == 0:
        os.kill(os.getppid(), signal.SIGUSR1)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        print("asked, and still training", flush=True)
