"""Trains for 120 steps while plans change, for tests of switches: switching.py [slow|dies]

Prints the weights, as hexadecimal digits. slow: ranks differ in speed, now this way, now that; dies: rank 1 ends in a switch.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time

import torch
from torch import nn

import weft.torch as weft
from weft._client import Client

how = sys.argv[1:2]
hello, hellos = Client.hello, [0]


def die(self, *args, **kwargs):
    hellos[0] += 1
    if hellos[0] == 2 and self.rank == 1:
        os._exit(7)
    return hello(self, *args, **kwargs)


if how == ["dies"]:
    Client.hello = die  # type: ignore[method-assign]

torch.manual_seed(0)
weft.init()
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
model, optimizer = weft.wrap(model, optimizer, bucket_bytes=4096, first_bucket_bytes=1024)
data = torch.Generator().manual_seed(weft.rank())
speed = random.Random(weft.rank())
for step in range(120):
    if how == ["slow"] and speed.random() < 0.3:
        time.sleep(speed.random() * 0.02)
    optimizer.zero_grad()
    model(torch.randn(8, 16, generator=data)).pow(2).mean().backward()
    optimizer.step()
    scheduler.step()
digest = hashlib.sha256()
for t in model.state_dict().values():
    digest.update(t.numpy().tobytes())
print("weights", digest.hexdigest())
