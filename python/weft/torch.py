"""weft for PyTorch.

    import weft.torch as weft

    weft.init()
    model, optimizer = weft.wrap(model, optimizer)
    for x, y in loader:
        optimizer.zero_grad(); loss_fn(model(x), y).backward(); optimizer.step()

Started with `weft run -n 2 -- python3 train.py`, torchrun, srun or mpirun. docs/pytorch.md says what holds.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import sys
from typing import Any, Dict, Iterator, Optional, Tuple, TypeVar

import torch

from ._client import WeftError
from ._graph import backend
from ._graph_job import job, order_from_plan, watch, write
from ._places import stranger
from ._reducer import Reducer
from ._session import BUCKET_BYTES, FIRST_BUCKET_BYTES, Session

__all__ = [
    "WeftError", "all_reduce", "backend", "barrier", "broadcast", "export_job", "flush", "init", "join", "load_state_dict", "no_sync",
    "order_from_plan", "rank", "shutdown", "state_dict", "updates", "world_size", "wrap",
]  # fmt: skip

Model = TypeVar("Model", bound=torch.nn.Module)
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)

_session: Optional[Session] = None


def init() -> None:
    """Joins the training: connects to the agent of this host.

    The environment says who this worker is: as `weft run` and torchrun set it, or Slurm, Open MPI, MPICH. Where WEFT_SOCKET is
    not set (by `weft run`), the first worker of the host starts the agent. Raises WeftError, which says what is missing.
    A second call does nothing.
    """
    global _session
    if _session is None:
        _session = Session(os.environ)
        atexit.register(_at_exit)


def wrap(
    model: Model,
    optimizer: Optimizer,
    *,
    bucket_bytes: int = BUCKET_BYTES,
    first_bucket_bytes: int = FIRST_BUCKET_BYTES,
    separable: Optional[bool] = None,
    c10d: Optional[str] = None,
    clip_norm: Optional[float] = None,
    generations: str = "mean",
) -> Tuple[Model, Optimizer]:
    """Averages the gradients of a model over all workers from now on. Returns the very model and optimizer it was given.

    Every worker calls it with the same model. Parameters, buffers and the optimizer's state become those of rank 0. When
    backward() returns, each parameter.grad holds the mean over all workers, and the buffers (BatchNorm's statistics) are those
    of rank 0.

    One model at a time: wrapping another ends the averaging of the first, whose backward() then raises.

    bucket_bytes and first_bucket_bytes say how many bytes of gradients are reduced together, and in the first bucket.
    They change no bit of the result.

    separable says whether the optimizer updates each tensor by itself, from its gradient, its state and its group's
    hyper-parameters: then plans may let the update of a tensor wait for its first read. Of the dense ones of torch.optim but
    LBFGS it is known; of others, it is taken to be False.

    c10d is the backend, "gloo", of a process group of torch.distributed that this makes, for plans that send over a link of the
    name c10d. torch.distributed is initialized before, with the same ranks.

    clip_norm clips gradients as torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm) before step() does, under every
    plan: under one that delays updates, of which a script's own call sees no average, those of an update when it is applied.

    generations is "mean" or "sum": what an update is made of, under a plan that makes one of several iterations.
    """
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"wrap: clip_norm is {clip_norm}; it must be more than 0")
    if generations not in ("mean", "sum"):
        raise ValueError(f"wrap: generations is {generations!r}; there are mean, sum")
    session = _open()
    found = stranger(set(model.parameters()), optimizer)
    if found is not None:
        raise ValueError(f"wrap: {found}")
    session.wrap(model, optimizer, bucket_bytes, first_bucket_bytes, separable, c10d, clip_norm, generations == "sum")
    return model, optimizer


@contextlib.contextmanager
def no_sync() -> Iterator[None]:
    """Within it, backward() adds to gradients on this worker only; the next backward() outside averages the sums.

    Every worker accumulates over the same number of passes.
    """
    passes = _reducer("no_sync").passes
    before, passes.paused = passes.paused, True
    try:
        yield
    finally:
        passes.paused = before


@contextlib.contextmanager
def join() -> Iterator[None]:
    """Within it, workers may have different numbers of batches.

    One that leaves it takes part in the backward passes of the others, with gradients of zero, until all have left. Averages
    are still over all workers. Then every worker has the model and the optimizer's state of one that trained last.

    Every worker enters it, and makes no other calls (all_reduce, ...) within.
    """
    reducer = _reducer("join")
    reducer.enter_join()
    yield
    reducer.join()


def all_reduce(tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """Replaces a tensor of any shape by its sum ("sum"), mean, min or max over all workers; returns it.

    float32, float64, float16, bfloat16, int32 or int64. Every worker calls it with the same shape and type.
    """
    _open().calls().all_reduce(tensor, op)
    return tensor


def broadcast(tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
    """Replaces a tensor of any shape and type by that of rank src; returns it. Every worker calls it."""
    session = _open()
    if not 0 <= src < session.client.world:
        raise ValueError(f"broadcast: src is {src}, of {session.client.world} workers")
    session.calls().broadcast([tensor], src)
    return tensor


def barrier() -> None:
    """Returns once every worker has called it."""
    _open().calls().barrier()


def flush() -> None:
    """Applies all updates that the plan delays, those of gradients that it still gathers too. Nothing happens under other plans.

    Every worker calls it between the same two iterations: after step(), before a checkpoint for example.
    """
    _open().flush()


def updates() -> int:
    """How many updates the calls of step() since wrap make. Under a plan that makes one of several iterations, it is of whole ones.

    For a learning rate that counts updates, not iterations, before step(): while scheduler.last_epoch < weft.updates(): scheduler.step()
    """
    return _reducer("updates").updates


def state_dict() -> Dict[str, Any]:
    """The states of the model and the optimizer, and what updates are outstanding, for torch.save: to resume from exactly.

    The outstanding part is this rank's own: each saves to a file of its own. Nobody is waited for, so that ranks need not call
    it together. Between two iterations.
    """
    return _open().state(_reducer("state_dict"))


def load_state_dict(state: Dict[str, Any]) -> None:
    """Goes on where state_dict() was called on this rank, in a training with as many workers. Every worker calls it, after wrap.

    Under the same plan the training goes on as if it had not ended, bit for bit. Under others, what was outstanding is applied
    at once.
    """
    _open().load(_reducer("load_state_dict"), state)


@contextlib.contextmanager
def export_job(path: str, workers: Optional[int] = None) -> Iterator[None]:
    """Within it, the iterations of a compiled model are measured; at its end rank 0 writes them as a job file (docs/job.md).

    The model is wrapped, and compiled with backend=weft.torch.backend; 13 iterations or more, of which the first 3 are warm-up.
    The job is of so many workers as there are, or as are given.
    """
    session, reducer = _open(), _reducer("export_job")
    watch().record(lambda: session.client.waited)
    try:
        yield
    finally:
        iterations = watch().recorded()
    if session.client.rank == 0:
        world = workers or session.client.world
        used = reducer.tensors()[0]
        used = dataclasses.replace(used, elements=used.elements - session.client.world + world)
        buffers = sum(b.numel() * b.element_size() for b in reducer.buffers())
        write(path, job(iterations, reducer.parameters, reducer.passes.hand_over.sole, world, [used], buffers))


def rank() -> int:
    """This worker's number, from 0."""
    return _open().client.rank


def world_size() -> int:
    """The number of workers."""
    return _open().client.world


def shutdown() -> None:
    """Leaves the training in order, and the model as it was before wrap. Called at exit."""
    global _session
    session, _session = _session, None
    if session is not None:
        session.close()


def _open() -> Session:
    if _session is None:
        raise WeftError("weft.init() has not been called")
    return _session


def _reducer(of: str) -> Reducer:
    reducer = _open().reducer
    if reducer is None:
        raise WeftError(f"{of}: no model is wrapped")
    return reducer


def _at_exit() -> None:
    if _session is None or _session.pid != os.getpid():
        return
    if hasattr(sys, "last_value"):  # an exception ends the interpreter
        _session.client.leave_open()
    else:
        shutdown()
