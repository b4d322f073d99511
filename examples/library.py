"""What averages gradients: weft, DistributedDataParallel over gloo, or nothing, where each worker trains alone."""

import os

import torch
from torch import nn


class Alone:
    def __init__(self):
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        """The network to call in place of the model, and the optimizer to step."""
        return model, optimizer

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all workers, in the tensor's place."""
        return tensor

    def flush(self) -> None:
        """Applies the updates that are delayed."""

    def close(self) -> None:
        """Leaves in order."""


class Weft(Alone):
    def __init__(self):
        super().__init__()
        import weft.torch as weft

        weft.init()
        self.wrap, self.sum, self.flush = weft.wrap, weft.all_reduce, weft.flush


class DDP(Alone):
    def __init__(self):
        super().__init__()
        torch.distributed.init_process_group("gloo")

    def wrap(self, model, optimizer):
        return nn.parallel.DistributedDataParallel(model), optimizer

    def sum(self, tensor):
        torch.distributed.all_reduce(tensor)
        return tensor

    def close(self):
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


LIBRARIES = {"weft": Weft, "ddp": DDP, "alone": Alone}


def settle(model: nn.Module) -> None:
    """Waits for the last update, which may be under way: it is applied when its parameter is read."""
    for parameter in model.parameters():
        parameter.sum()
