"""Trains a small convolutional network on made-up pictures: bars that lie, stand or lean.

    weft run -n 2 -- python3 examples/cnn.py
"""

import torch
from torch import nn

import weft.torch as weft


def pictures(n: int, generator: torch.Generator):
    """n pictures (n, 1, 16, 16) of a bar in noise, and which way it points (n): across, down, or along a diagonal."""
    ways = torch.randint(4, (n,), generator=generator)
    x = 0.5 * torch.randn(n, 1, 16, 16, generator=generator)
    i = torch.arange(16)
    for picture, way in zip(x[:, 0], ways):
        at = int(torch.randint(4, 12, (1,), generator=generator))
        rows, columns = [(at, i), (i, at), (i, i), (i, 15 - i)][int(way)]
        picture[rows, columns] += 1
    return x, ways


def main() -> None:
    weft.init()
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveMaxPool2d(4),
        nn.Flatten(), nn.Linear(512, 4),
    )  # fmt: skip
    model, optimizer = weft.wrap(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9))
    loss_of = nn.CrossEntropyLoss()

    generator = torch.Generator().manual_seed(weft.rank())  # every worker sees pictures of its own
    for step in range(60):
        x, y = pictures(32, generator)
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            mean = weft.all_reduce(loss.detach(), op="mean")
            if weft.rank() == 0:
                print(f"step {step + 1}: loss {mean:.4f}", flush=True)

    model.eval()
    with torch.no_grad():
        x, y = pictures(500, generator)
        right = weft.all_reduce((model(x).argmax(1) == y).float().mean(), op="mean")
    if weft.rank() == 0:
        print(f"{100 * right:.1f} % of new pictures told right")


if __name__ == "__main__":
    main()
