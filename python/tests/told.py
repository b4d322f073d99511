"""A worker that trains a few iterations, the second one in two passes."""

import torch

import weft.torch as weft


def main() -> None:
    torch.manual_seed(0)
    weft.init()
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model, optimizer = weft.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for i in range(6):
        optimizer.zero_grad()
        if i == 1:
            with weft.no_sync():
                model(torch.randn(8, 16)).sum().backward()
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()
    weft.shutdown()


if __name__ == "__main__":
    main()
