"""How the gradients of one model become updates under one plan: what its passes and steps ask of that."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

from ._buckets import Buckets
from ._calls import Calls
from ._client import Client, WeftError


class Execution:
    """A plan in execution, from a hello on. Parameters are told by their positions.

    An iteration is begin, put for each parameter, end; then comes its step. This is what all plans have in common: see Exact
    and Delayed.
    """

    guards = False  # some updates wait until their parameters are read, and what is read waits for its average
    awaits_step = False  # gradients have been handed over that only the step which is yet to come says how to apply

    def __init__(
        self, client: Client, buckets: Buckets, parameters: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer, boundaries: bool
    ) -> None:
        """With boundaries, the agent is told of the ends of iterations."""
        self._client = client
        self._buckets = buckets
        self._parameters = parameters
        self._optimizer = optimizer
        self._boundaries = boundaries
        self._told = 0  # iterations whose end the agent has been told of

    @property
    def iteration(self) -> int:
        """The open one, counted from the hello."""
        return self._buckets.generation

    @property
    def makes_update(self) -> bool:
        """Whether the step that is now called makes an update, be it later."""
        return True

    def verify_pass(self, fresh: bool) -> None:
        """Raises WeftError where no backward pass may begin; or gives way to another execution. fresh: it has accumulated nothing yet."""
        # The engine drops the last pass's function, uncalled, when that pass ends by an exception.
        if self._buckets.handed_over():
            raise WeftError(
                f"rank {self._client.rank}: the last backward pass ended by an exception when the other workers already had"
                " some of its gradients; training cannot go on"
            )

    def begin(self) -> None:
        """A backward pass begins."""
        self.end_iteration()
        self._buckets.forget()

    def merge(self, k: int) -> None:
        """A pass has added to .grad of parameter k, whose last average may still be on its way."""

    def gone(self, k: int) -> bool:
        """Whether some of parameter k has been sent in this iteration."""
        return self._buckets.gone(k + 1)

    def put(self, k: int, gradient: Optional[torch.Tensor], again: bool = False) -> None:
        """Hands over the gradient of parameter k; with again, one that replaces what has been handed over and is not gone."""
        raise NotImplementedError

    def end(self, used: Sequence[bool], guarded: bool) -> List[int]:
        """The pass has ended, and all parameters are put. used says by parameter whether this worker made a gradient of it.

        If guarded, returns before averages have come. Returns the ranks that trained in the iteration.
        """
        raise NotImplementedError

    def idle(self) -> List[int]:
        """An iteration in which this worker does not train; returns the ranks that do."""
        raise NotImplementedError

    def verify_step(self, whole: bool) -> None:
        """Raises WeftError for a step that the plan cannot take. whole: it has arguments, a closure perhaps."""

    def step(self, own: Callable[[], Any], whole: bool) -> Any:
        """In place of the optimizer's own step; returns what that returns."""
        raise NotImplementedError

    def end_iteration(self) -> None:
        """Tells the agent that the step of the last iteration has been called: or that somebody awaits its averages before."""
        while self._boundaries and self._told < self.iteration:
            self._client.boundary(self._told)
            self._told += 1

    def finish(self) -> None:
        """Waits for all averages that are on their way, and applies the updates that wait for them: not those that are delayed,
        which all ranks apply at the same time."""

    def flush(self, calls: Calls) -> Optional[int]:
        """Applies all updates, as every rank does after the same iteration, and ends the execution if it had delayed some.

        Returns how many updates that made which were not to be; None: the execution goes on.
        """
        self.finish()
        return None

    def state(self) -> Optional[Dict[str, Any]]:
        """What is outstanding on this rank, of updates that are delayed."""
        return None

    def restore(self, outstanding: Dict[str, Any]) -> bool:
        """Goes on, instead of from iteration 0, where state was called under this plan; False: it was another."""
        return False

    def _flags(self, used: Sequence[bool]) -> torch.Tensor:
        """What tells the other workers which parameters this one used, and that it trains."""
        trains = [rank == self._client.rank for rank in range(self._client.world)]
        return torch.tensor([*used, *trains], dtype=self._parameters[0].dtype, device="cpu")
