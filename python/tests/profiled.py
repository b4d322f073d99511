"""Trains a small model for 16 steps, for weft profile: profiled.py cnn|transformer."""

from __future__ import annotations

import sys

import torch
from torch import nn

import weft.torch as weft


class Transformer(nn.Module):
    """The head has the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(x)))


def main() -> None:
    torch.manual_seed(0)
    weft.init()
    cnn = sys.argv[1] == "cnn"
    model: nn.Module = Transformer()
    if cnn:
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 10)
        )
    model, optimizer = weft.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), bucket_bytes=1 << 14, first_bucket_bytes=1 << 12)
    for _ in range(16):
        optimizer.zero_grad()
        x = torch.randn(4, 3, 16, 16) if cnn else torch.randint(50, (4, 8))
        model(x).pow(2).mean().backward()
        if not cnn:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


main()
