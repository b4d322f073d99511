"""Guards, without an agent: whoever reads a tensor finds it complete; what tells nothing of its elements completes nothing."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import unittest
from typing import Any, Callable, Dict, List, Optional, Set
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

from weft._guard import guard, pending, raw_grad, refused, release, set_raw_grad


class Adding:
    """A pending update that adds 1 to a parameter; .grad of it is one, on its way."""

    def __init__(self, p: torch.Tensor) -> None:
        self.p = p
        self.completed = 0
        guard(p, self)

    def complete(self) -> None:
        self.completed += 1
        release(self.p)
        with torch.inference_mode(False), torch.no_grad():
            self.p.add_(1)

    def get_grad(self) -> Optional[torch.Tensor]:
        return raw_grad(self.p)

    def set_grad(self, value: Optional[torch.Tensor]) -> None:
        set_raw_grad(self.p, value)

    def zero(self, tensor: torch.Tensor) -> None:
        self.complete()


class Special(nn.Parameter):
    """A user's subclass of Parameter."""


class Traced(nn.Parameter):
    """One with a __torch_function__ of its own."""

    seen: List[Any] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


READS: Dict[str, Callable[[nn.Parameter], Any]] = {
    "operator": lambda p: p + 0,
    "matrix product": lambda p: p @ torch.ones(3, 1),
    "functional": lambda p: F.linear(torch.ones(1, 3), p),
    "keyword": lambda p: F.linear(input=torch.ones(1, 3), weight=p),
    "list": lambda p: torch.cat([torch.zeros(1, 3), p]),
    "foreach": lambda p: torch._foreach_add([p, torch.ones(1)], 1)[0],
    "in place": lambda p: p.data.mul_(2),
    "into another": lambda p: torch.zeros(2, 3).copy_(p),
    "out": lambda p: torch.add(p.detach(), 1, out=torch.zeros(2, 3)),
    "data": lambda p: p.data,
    "detach": lambda p: p.detach(),
    "numpy": lambda p: torch.from_numpy(p.detach().numpy()),
    "tolist": lambda p: torch.tensor(p.tolist()),
    "index": lambda p: p[0],
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda p: pickle.loads(pickle.dumps(p)),
    "save": lambda p: _saved(p),
    "module": lambda p: copy.deepcopy(_module(p)).weight,
    "state_dict": lambda p: _module(p).state_dict()["weight"],
    "repr": lambda p: repr(p),
    "norm": lambda p: torch.linalg.vector_norm(p),
    "equal": lambda p: torch.tensor(torch.equal(p, p)),
    "vector": lambda p: nn.utils.parameters_to_vector([p]),
    "init": lambda p: nn.init.zeros_(p).detach().clone(),
    "type": lambda p: p.double(),
    "pointer": lambda p: torch.tensor(p.data_ptr()) * 0 + p.data.sum(),
}


def _saved(p: nn.Parameter) -> torch.Tensor:
    f = io.BytesIO()
    torch.save(p, f)
    f.seek(0)
    return torch.load(f, **({"weights_only": False} if torch.__version__ >= "2" else {}))


def _module(p: nn.Parameter) -> nn.Linear:
    m = nn.Linear(3, 2, bias=False)
    m.weight = p
    return m


class Guard(unittest.TestCase):
    def setUp(self) -> None:
        # Trainings of other tests that failed have left tensors guarded, for averages that never come.
        only = mock.patch.dict("weft._guard._guarded", clear=True)
        only.start()
        self.addCleanup(only.stop)

    def parameter(self, cls: Any = nn.Parameter) -> Any:
        return cls(torch.arange(6.0).view(2, 3))

    def test_reads(self) -> None:
        for cls in nn.Parameter, Special:
            for name, read in READS.items():
                p, after = self.parameter(cls), self.parameter(cls)
                with torch.no_grad():
                    after.add_(1)
                update = Adding(p)
                got, want = read(p), read(after)
                self.assertEqual(update.completed, 1, name)
                self.assertIs(type(p), cls, name)
                self.assertIs(type(got), type(want), name)
                self.assertTrue(torch.equal(got, want) if isinstance(got, torch.Tensor) else got == want, f"{name}: {got}, want {want}")
                self.assertTrue(torch.equal(p, after), name)

    def test_metadata(self) -> None:
        p = self.parameter()
        update = Adding(p)
        of = [p.shape, p.size(0), p.dtype, p.device, p.numel(), p.dim(), p.requires_grad, p.is_leaf, p.grad_fn, p.stride(), len(p),
              p.is_contiguous(), torch.is_floating_point(p), p.is_cuda, p.layout, hash(p), isinstance(p, nn.Parameter), id(p),
              p.grad is None, p in {p}]  # fmt: skip
        p.requires_grad_(True)
        p.grad = None
        p.register_hook(lambda g: g).remove()
        nn.Module.register_parameter(nn.Linear(1, 1), "p", p)
        self.assertEqual((len(of), update.completed), (20, 0))
        self.assertEqual((of[0], of[4], of[6]), ((2, 3), 6, True))
        release(p)
        self.assertIs(type(p), nn.Parameter)
        self.assertIsNone(pending(p))

    def test_subclass_is_heard(self) -> None:
        p = Traced(torch.ones(2))
        update = Adding(p)
        Traced.seen.clear()
        self.assertEqual(p.shape, (2,))
        self.assertEqual(update.completed, 0)
        (p * 2).sum()
        self.assertIn(torch.Tensor.shape.__get__, Traced.seen)
        self.assertIn(torch.Tensor.mul, Traced.seen)
        self.assertEqual(update.completed, 1)

    def test_several(self) -> None:
        """All guarded tensors of a call are completed, and no others; the call sees plain ones."""
        a, b, c = self.parameter(), self.parameter(), self.parameter()
        updates = [Adding(p) for p in (a, b, c)]
        self.assertTrue(torch.equal(torch.stack([a, b]), torch.stack([torch.arange(1.0, 7).view(2, 3)] * 2)))
        self.assertEqual([u.completed for u in updates], [1, 1, 0])
        release(c)

    def test_threads(self) -> None:
        """In a container that nobody looks into: what this thread guards is completed, if that is enough, and nobody else's."""

        def total(of: Set[torch.Tensor]) -> Any:
            if torch.overrides.has_torch_function(tuple(of)):
                return torch.overrides.handle_torch_function(total, tuple(of), of)
            return sum(float(p.sum()) for p in of)

        a, b, theirs = (self.parameter() for _ in range(3))
        of_theirs: List[Adding] = []
        thread = threading.Thread(target=lambda: of_theirs.append(Adding(theirs)))
        own = [Adding(a), Adding(b)]
        thread.start()
        thread.join()
        self.assertEqual(total({a}), 21)
        self.assertEqual(([u.completed for u in own], of_theirs[0].completed), ([1, 1], 0))
        self.assertEqual(total({theirs}), 21)
        thread = threading.Thread(target=lambda: of_theirs.append(Adding(theirs)))
        Adding(a)
        thread.start()
        thread.join()
        self.assertEqual(total({theirs}), 27)

    def test_autograd(self) -> None:
        """A graph made of a guarded parameter is that of a plain one; a custom function reads inside its forward."""

        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, p: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(p)
                return p * p

            @staticmethod
            def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
                return 2 * g * ctx.saved_tensors[0]

        for f in (lambda p: p * p), Twice.apply:
            p = self.parameter()
            Adding(p)
            f(p).sum().backward()
            self.assertTrue(torch.equal(p.grad, 2 * torch.arange(1.0, 7).view(2, 3)))

    def test_modules(self) -> None:
        """Modules that read parameters of others, or lists of them, without calling anything."""
        torch.manual_seed(0)
        x = torch.randn(4, 3, 8)
        modules = [nn.MultiheadAttention(8, 2), nn.LSTM(8, 8, 2), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), nn.GRU(8, 4)]
        for m in modules:
            args = (x, x, x) if isinstance(m, nn.MultiheadAttention) else (x,)
            after = copy.deepcopy(m)
            with torch.no_grad():
                for p in after.parameters():
                    p.add_(1)
            for p in m.parameters():
                Adding(p)
            got, want = m(*args), after(*args)
            got, want = (got[0], want[0]) if isinstance(got, tuple) else (got, want)
            self.assertTrue(torch.equal(got, want), type(m).__name__)

    def test_inference(self) -> None:
        p = self.parameter()
        Adding(p)
        with torch.inference_mode():
            (p * 2).sum()
        (p * 2).sum().backward()  # it is no inference tensor

    def test_refused(self) -> None:
        class Wrapped(torch.Tensor):
            @classmethod
            def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                raise NotImplementedError

        self.assertIsNone(refused(self.parameter()))
        self.assertIsNone(refused(self.parameter(Special)))
        self.assertRegex(str(refused(torch.Tensor._make_subclass(Wrapped, torch.ones(1)))), "__torch_dispatch__ of its own")


if __name__ == "__main__":
    unittest.main()
