"""Plans without delay: each iteration's averages are in place, and its updates applied, before anybody reads them."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Set

import torch

from ._averages import Averages
from ._barrier import needs_all
from ._buckets import Buckets
from ._client import Client
from ._execution import Execution
from ._updates import Step, step_but


class Exact(Execution):
    """Averages replace parameter.grad: at the end of the pass, if the plan has a barrier. If it crosses that, backward() and
    step() return at once, and parameters are guarded: whoever reads a gradient or a parameter waits for its average, and finds
    it updated."""

    def __init__(
        self,
        client: Client,
        buckets: Buckets,
        parameters: Sequence[torch.Tensor],
        optimizer: torch.optim.Optimizer,
        boundaries: bool,
        at_read: List[Set[int]],
    ) -> None:
        """at_read are by generation of a period the parameters whose updates wait for a read."""
        super().__init__(client, buckets, parameters, optimizer, boundaries)
        self.guards = any(at_read)
        self._at_read = at_read
        self._averages = Averages(buckets, parameters, client.world, self.end_iteration)

    def merge(self, k: int) -> None:
        self._averages.merge(k)

    def put(self, k: int, gradient: Optional[torch.Tensor], again: bool = False) -> None:
        self._buckets.put(k + 1, gradient, again)

    def end(self, used: Sequence[bool], guarded: bool) -> List[int]:
        self._buckets.put(0, self._flags(used))
        self._averages.expect(used, guarded)
        if guarded:  # then all train
            return list(range(self._client.world))
        self.finish()
        return self._averages.trained()

    def idle(self) -> List[int]:
        for tensor in range(1 + len(self._parameters)):
            self._buckets.put(tensor, None)
        self._averages.expect_nothing()
        return self._averages.trained()

    def step(self, own: Callable[[], Any], whole: bool) -> Any:
        """Applies at once what does not wait for a read."""
        if not self.guards or whole or needs_all(self._optimizer):
            self.finish()
            return own()
        self._averages.finish_steps()  # of a step without a pass before this one
        step = Step(self._optimizer)
        at_read = self._at_read[(self.iteration - 1) % len(self._at_read)]
        return step_but(self._optimizer, own, self._averages.defer(step, at_read.__contains__))

    def finish(self) -> None:
        self._averages.finish()
