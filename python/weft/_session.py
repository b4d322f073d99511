"""One process's membership of a training, from init to shutdown."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping, Optional, Tuple

import torch

from ._agent import Agent
from ._c10d import Group, verify
from ._calls import Calls
from ._client import Client, Layout, WeftError
from ._device import Device, device_at, place_of
from ._graph_job import take_order
from ._launchers import seconds, worker
from ._profile import Profile
from ._reducer import Reducer
from ._state import level

# DistributedDataParallel's: a small first bucket starts the network early.
BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20


class Session:
    """A connection to the agent, and the model whose gradients it averages, if any."""

    def __init__(self, env: Mapping[str, str]) -> None:
        me = worker(env)
        self._agent = Agent(env, me)
        self.client = Client(self._agent.connect(), me.rank, me.world_size, me.local_rank)
        self.pid = os.getpid()
        self.reducer: Optional[Reducer] = None
        self._device = Device()
        self._calls: Optional[Calls] = None
        self._patience = seconds(env, "WEFT_TIMEOUT", "30m")
        self._c10d: Optional[str] = None  # the backend by which this model's gradients may be reduced, beside the agent
        self._group: Optional[Group] = None

    def calls(self) -> Calls:
        """The collectives outside the plan. Before a model is wrapped, the agent is told that there is none yet."""
        if self._calls is None:
            layout = self.client.hello([], BUCKET_BYTES, FIRST_BUCKET_BYTES, torch.__version__)
            self._calls = Calls(self.client, layout, self._device)
        return self._calls

    def wrap(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        bucket_bytes: int,
        first_bucket_bytes: int,
        separable: Optional[bool] = None,
        c10d: Optional[str] = None,
        clip_norm: Optional[float] = None,
        sums: bool = False,
    ) -> None:
        """Makes model the one whose gradients are averaged, with the parameters, buffers and optimizer's state of rank 0."""
        if self.reducer is not None:
            self.reducer.flush()
        reducer = Reducer(self.client, model, optimizer, separable, self._switch, clip_norm, sums)
        self._sizes = bucket_bytes, first_bucket_bytes
        if c10d is not None:
            self._distribute(c10d)
        self._c10d = c10d
        layout, calls, device = self._hello(reducer, *self._sizes)
        calls.broadcast([*model.parameters(), *model.buffers()], root=0)
        level(calls, self.client.rank, optimizer)
        if self.reducer is not None:
            self.reducer.end(reducer)
        self.reducer = reducer
        reducer.start(layout, calls, device)
        if c10d is not None and self._group is not None and isinstance(reducer.watch, Profile):
            reducer.watch.c10d = self._group.measure(calls)
        take_order(layout.order, layout.order_of)

    def _distribute(self, backend: str) -> None:
        """Makes the process group, once all workers have said that they will."""
        verify(backend, self.client)
        if self._group is None:
            layout = self.client.hello([], BUCKET_BYTES, FIRST_BUCKET_BYTES, torch.__version__, c10d=backend)
            self._calls = Calls(self.client, layout, self._device)
            self._group = Group(backend, self.client.world, self._patience)
            self.client.serve(self._group.reduce)

    def flush(self) -> None:
        """Applies all updates that a plan delays, and begins it anew. Every worker calls it after the same iteration."""
        if self.reducer is not None and self.reducer.flush():
            self._greet(self.reducer)

    def state(self, reducer: Reducer) -> Dict[str, Any]:
        """What weft.state_dict returns."""
        state = reducer.state()
        if self._c10d is not None and state["outstanding"] is not None and state["outstanding"]["closed"]:
            raise WeftError(
                f"rank {self.client.rank}: weft.state_dict(): updates are outstanding, and what went through torch.distributed is not kept:"
                " every rank calls weft.flush() after step(), before it"
            )
        return state

    def load(self, reducer: Reducer, state: Dict[str, Any]) -> None:
        """Does what weft.load_state_dict says."""
        self.flush()
        reducer.load(state)

    def _switch(self) -> None:
        """Goes on with another plan, which the agent has decided on."""
        assert self.reducer is not None
        if not self.reducer.flush():
            self.client.call(kind="flush")
        self._greet(self.reducer)

    def _greet(self, reducer: Reducer) -> None:
        layout, calls, device = self._hello(reducer, *self._sizes)
        reducer.restart(layout, calls, device)
        take_order(layout.order, layout.order_of)

    def _hello(self, reducer: Reducer, bucket_bytes: int, first_bucket_bytes: int) -> Tuple[Layout, Calls, Device]:
        place = place_of(reducer.parameters)
        mode = "per-tensor" if reducer.barrier is None else "global"
        tensors = reducer.tensors()
        layout = self.client.hello(
            tensors, bucket_bytes, first_bucket_bytes, torch.__version__, mode, reducer.at_once is None, self._c10d
        )
        if self._group is not None:
            self._group.use(layout, tensors)
        device = device_at(place, [layout.input, layout.output])
        self._calls = Calls(self.client, layout, device)
        self._device.close()
        self._device = device
        return layout, self._calls, device

    def close(self) -> None:
        """Leaves the training in order, and the model as it was."""
        if self.reducer is not None:
            if not self.client.failed():  # else somebody has been told
                self.reducer.flush()
            self.reducer.remove()
        self._device.close()
        self.client.goodbye()
        if self._group is not None:
            self._group.close()

