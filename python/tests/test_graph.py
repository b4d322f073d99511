"""Compiled models: the same bits as plain PyTorch's, in any order of the backward graph; gradients handed over early, and whole."""

from __future__ import annotations

import copy
import random
import threading
import unittest
import weakref
from typing import Any, Callable, Dict, List, Tuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import weft.torch as weft
from weft import _graph, _graph_job
from weft._client import Client
from weft._guard import pending
from weft._handover import HandOver

from .fake_agent import FakeAgent
from .launch import LIMIT
from .planned_agent import PlannedAgent
from .ranks import ranks

COMPILES = tuple(int(v) for v in torch.__version__.split(".")[:2]) >= _graph.NEEDED


def cnn() -> nn.Module:
    # Where a convolution has fewer channels, the kernels of its gradients do not give the same bits twice.
    return nn.Sequential(
        nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16),
        nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5),
    )  # fmt: skip


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 20), nn.GELU(), nn.Linear(20, 3))


class Transformer(nn.Module):
    """Its head's weight is that of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def images(g: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 16, 8, 8, generator=g)


def rows(g: torch.Generator) -> torch.Tensor:
    return torch.randn(4, 10, generator=g)


def words(g: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 20, (3, 7), generator=g)


Batch = Callable[[torch.Generator], torch.Tensor]
MODELS: Dict[str, Tuple[Callable[[], nn.Module], Batch]] = {"cnn": (cnn, images), "mlp": (mlp, rows), "transformer": (Transformer, words)}


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=weft.backend, **options)


def compiled_at_once(function: Any) -> Any:
    """Of dynamic shapes, backward graphs are compiled when they first run, which threads cannot do at the same time."""
    return compiled(function, dynamic=False)


def made(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[name][0]()


def batch(name: str, step: int, rank: int = 0) -> torch.Tensor:
    return MODELS[name][1](torch.Generator().manual_seed(100 * step + rank))


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.pow(2).mean()


def fresh(test: unittest.TestCase) -> None:
    """Forgets what was compiled; one thread, for kernels that divide their sums among threads."""
    torch._dynamo.reset()
    test.addCleanup(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)


class Graphs:
    """The graphs that are made while it is entered."""

    def __enter__(self) -> "Graphs":
        self.pairs: List[_graph.Pair] = []
        init = _graph.Pair.__init__

        def noted(pair: Any) -> None:
            init(pair)
            self.pairs.append(pair)

        self._patch = mock.patch.object(_graph.Pair, "__init__", noted)
        self._patch.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._patch.stop()

    def backward(self) -> List[Any]:
        return [p.backward for p in self.pairs if p.backward is not None]


class Taken:
    """Hands over a model's gradients; step() gives what was handed over before the accumulation, by parameter, and checks it."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.early: Dict[int, torch.Tensor] = {}
        self.claimed: List[int] = []  # whose accumulate hook was told to skip them
        self._hand_over = HandOver(self.parameters, self._take)
        for k, p in enumerate(self.parameters):
            p.register_post_accumulate_grad_hook(lambda _, k=k: self._accumulated(k))

    def _take(self, k: int, gradient: torch.Tensor) -> bool:
        self.early[k] = gradient.clone()
        return True

    def _accumulated(self, k: int) -> None:
        if self._hand_over.accumulated(k):
            self.claimed.append(k)

    def step(self, work: Callable[[], Any]) -> List[int]:
        self.early.clear()
        self.claimed.clear()
        for p in self.parameters:
            p.grad = None
        work()
        for k in self.claimed:
            assert torch.equal(self.early[k], self.parameters[k].grad), f"parameter {k} was handed over in part"
        return sorted(self.early)


class Refused(unittest.TestCase):
    @unittest.skipIf(COMPILES, "this torch has torch.compile")
    def test_version(self) -> None:
        with self.assertRaisesRegex(weft.WeftError, "needs torch 2.6 or later; this is "):
            weft.backend(None, [])


@unittest.skipUnless(COMPILES, "torch.compile with this backend needs torch 2.6")
class Compiled(unittest.TestCase):
    def setUp(self) -> None:
        fresh(self)

    def same(self, got: nn.Module, want: nn.Module, what: str) -> None:
        for (name, g), w in zip(got.state_dict().items(), want.state_dict().values()):
            self.assertTrue(torch.equal(g, w), f"{what}: {name}")
        for (name, g), w in zip(got.named_parameters(), want.parameters()):
            self.assertTrue(g.grad is None and w.grad is None or torch.equal(g.grad, w.grad), f"{what}: gradient of {name}")

    def test_same_weights(self) -> None:
        """Five steps of SGD with momentum, against plain PyTorch."""
        for name in MODELS:
            plain, model = made(name), made(name)
            run = compiled(model)
            optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9) for m in (plain, model)]
            for step in range(5):
                for o in optimizers:
                    o.zero_grad()
                x = batch(name, step)
                loss_of(plain(x)).backward()
                loss_of(run(x)).backward()
                for o in optimizers:
                    o.step()
                self.same(model, plain, f"{name}, step {step}")
            model.eval(), plain.eval()
            with torch.no_grad():
                self.assertTrue(torch.equal(run(x), plain(x)), name)

    def test_shapes(self) -> None:
        """Batches of several sizes, as the last of an epoch: graphs of which sizes are arguments."""
        for name in "mlp", "transformer":
            plain, model = made(name), made(name)
            run = compiled(model)
            taken = Taken(model)
            everyone = list(range(len(taken.parameters)))
            for step, size in enumerate((4, 4, 3, 3, 2, 4, 4)):
                x = batch(name, step)[:size]
                plain.zero_grad()
                loss_of(plain(x)).backward()
                early = taken.step(lambda: loss_of(run(x)).backward())
                self.same(model, plain, f"{name}, step {step}")
            self.assertEqual(early, everyone)

    def test_any_order(self) -> None:
        """Every valid order of the backward graph gives the same gradients."""
        shuffle = random.Random(1)
        for name in MODELS:
            plain, model = made(name), made(name)
            with Graphs() as graphs:
                run = compiled(model)
                x = batch(name, 0)
                loss_of(run(x)).backward()
            (graph,) = graphs.backward()
            loss_of(plain(x)).backward()
            self.same(model, plain, name)
            recorded = graph.order
            for _ in range(10):
                graph.order = any_order(graph.needs, shuffle)
                self.assertNotEqual(graph.order, recorded)
                model.zero_grad()
                plain.zero_grad()
                loss_of(run(x)).backward()
                loss_of(plain(x)).backward()
                self.same(model, plain, f"{name}, in the order {graph.order}")

    def test_wrong_order(self) -> None:
        needs = {"a": [], "b": ["a"], "c": ["a"]}
        _graph.check_order(["a", "c", "b"], needs)
        for order, why in (
            (["b", "a", "c"], "b needs a, which comes later"),
            (["a", "b"], "c is missing"),
            (["a", "b", "b", "c"], "b occurs twice"),
            (["a", "x", "b", "c"], "x is no node of the graph"),
        ):
            with self.assertRaisesRegex(ValueError, why):
                _graph.check_order(order, needs)

    def test_fences(self) -> None:
        """A node that draws random numbers, and one that writes into a value, keep their places."""
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        before = graph.call_function(torch.ops.aten.relu.default, (x,))
        random_ = graph.call_function(torch.ops.aten.bernoulli.default, (x,))
        between = graph.call_function(torch.ops.aten.neg.default, (x,))
        write = graph.call_function(torch.ops.aten.add_.Tensor, (x, 1))
        after = graph.call_function(torch.ops.aten.abs.default, (x,))
        needs = _graph.dependencies({n.name: n for n in (before, random_, between, write, after)})
        self.assertEqual(
            needs,
            {
                "relu_default": [],
                "bernoulli_default": ["relu_default"],
                "neg_default": ["bernoulli_default"],
                "add__tensor": ["neg_default", "bernoulli_default"],
                "abs_default": ["add__tensor"],
            },
        )

    def test_convolutions(self) -> None:
        """One node for the gradients of input and weight, or two: the same bits."""
        backward = torch.ops.aten.convolution_backward.default
        for stride, padding, groups, bias in (1, 0, 1, True), (2, 1, 1, False), (1, 1, 2, True), (1, 1, 16, False):
            g = torch.Generator().manual_seed(stride + groups)
            x, w = torch.randn(4, 16, 9, 9, generator=g), torch.randn(16, 16 // groups, 3, 3, generator=g)
            y = F.conv2d(x, w, stride=stride, padding=padding, groups=groups)
            rest = (torch.randn(y.shape, generator=g), x, w, [16] if bias else None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)
            both = backward(*rest, [True, True, bias])
            (of_input, _, _), (_, *of_weight) = backward(*rest, [True, False, False]), backward(*rest, [False, True, bias])
            self.assertTrue(torch.equal(of_input, both[0]))
            for got, want in zip(of_weight, both[1:]):
                self.assertTrue(got is None and want is None or torch.equal(got, want))
        with Graphs() as graphs:
            loss_of(compiled(made("cnn"))(batch("cnn", 0))).backward()
        (graph,) = graphs.backward()
        masks = [n.args[-1] for n in graph.nodes.values() if n.target is backward]
        self.assertEqual(sorted(m[0] for m in masks), [False] * 3 + [True] * 2)

    def test_frees(self) -> None:
        """A value is gone after its last use: when the last gradient is made, nothing of the others' ops is left."""
        with Graphs() as graphs:
            run = compiled(made("mlp"))
            run(batch("mlp", 0)).sum().backward()
        (graph,) = graphs.backward()
        arguments = [torch.zeros(n.meta["val"].shape) for n in graph.placeholders]
        last = graph.nodes[graph.order[-1]]
        needed = {a.name for a in last.all_input_nodes}
        alive = [(n.name, weakref.ref(a)) for n, a in zip(graph.placeholders, arguments)]
        left: List[str] = []

        def note(at: int, value: Any) -> Any:
            if graph.results[at] is last:
                left.extend(name for name, a in alive if a() is not None and name not in needed)
            return value

        program = _graph.program(graph, timing=False)
        arguments.append(_graph._Run(note, []))  # type: ignore[arg-type]
        program(arguments)
        self.assertEqual((arguments, left), ([], []))


def any_order(needs: Dict[str, List[str]], source: random.Random) -> List[str]:
    """A random one of the orders that needs allows."""
    left = {name: set(before) for name, before in needs.items()}
    order: List[str] = []
    while left:
        name = source.choice([n for n, before in left.items() if not before])
        del left[name]
        for before in left.values():
            before.discard(name)
        order.append(name)
    return order


if COMPILES:

    @torch.compiler.disable
    def uncompiled(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return x * bias


class Broken(nn.Module):
    """Two graphs, with code between them that is not compiled and uses a parameter of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(10, 10), nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        return self.second(x) + uncompiled(x, self.first.bias)


@unittest.skipUnless(COMPILES, "torch.compile with this backend needs torch 2.6")
class Early(unittest.TestCase):
    """What is handed over before it is accumulated, and that it is whole."""

    def setUp(self) -> None:
        fresh(self)

    def check(self, model: nn.Module, run: Callable[[], torch.Tensor], want: List[List[int]], backward: Any = None) -> Taken:
        """Runs passes; compares who is handed over early in each."""
        taken = Taken(model)
        for n, early in enumerate(want):
            got = taken.step(lambda: (backward or torch.Tensor.backward)(run()))
            self.assertEqual((got, sorted(taken.claimed)), (early, early), f"pass {n}")
        return taken

    def test_all(self) -> None:
        """Once a pass has shown that nothing else adds to a gradient."""
        for name in MODELS:
            model = made(name)
            run, everyone = compiled(model), list(range(len(list(model.parameters()))))
            self.check(model, lambda: loss_of(run(batch(name, 0))), [[], everyone, everyone])

    def test_graph_break(self) -> None:
        model = Broken()
        run, x = compiled(model), torch.randn(4, 10)
        # 1 is first.bias, of which code that is not compiled makes a part
        self.check(model, lambda: loss_of(run(x)), [[], [0, 2, 3], [0, 2, 3]])

    def test_called_twice(self) -> None:
        model = mlp()
        block = compiled(model[2])
        x = torch.randn(4, 10)
        self.check(model, lambda: loss_of(block(block(model[0](x)))), [[], [], []])
        model = mlp()
        run = compiled(model)
        # A pass that shows the gradients whole; then two runs of the graph in one iteration.
        taken = self.check(model, lambda: loss_of(run(x)), [[], [0, 1, 2, 3, 4, 5]])
        self.assertEqual(taken.step(lambda: (loss_of(run(x)) + loss_of(run(2 * x))).backward()), [])

    def test_two_graphs(self) -> None:
        """A parameter in two graphs."""
        model = mlp()
        first, second = compiled(lambda x: model[0](x)), compiled(lambda y: y @ model[0].weight)
        x = torch.randn(4, 10)
        self.check(model, lambda: loss_of(second(first(x))), [[], [1], [1]])

    def test_other_use(self) -> None:
        """Code that is not compiled adds to a gradient."""
        model = mlp()
        run, x = compiled(model), torch.randn(4, 10)
        self.check(model, lambda: loss_of(run(x)) + model[0].weight.norm(), [[], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]])

    def test_other_use_later(self) -> None:
        """A part that was handed over is noticed when the rest comes, before and after the graph's part."""
        for order in 1, -1:
            model = mlp()
            run, x = compiled(model), torch.randn(4, 10)
            everyone = [0, 1, 2, 3, 4, 5]
            taken = self.check(model, lambda: loss_of(run(x)), [[], everyone])
            parts = [lambda: loss_of(run(x)), lambda: model[0].weight.norm()][::order]
            self.assertEqual(taken.step(lambda: (parts[0]() + parts[1]()).backward()), everyone)
            self.assertEqual(sorted(taken.claimed), [1, 2, 3, 4, 5])
            self.assertEqual(taken.step(lambda: loss_of(run(x)).backward()), [1, 2, 3, 4, 5])

    def test_hooks(self) -> None:
        """A hook on a parameter may change its gradient."""
        for register in (
            lambda p: p.register_hook(lambda g: 2 * g),
            lambda p: p.register_hook(lambda g: None),
            lambda p: p.register_post_accumulate_grad_hook(lambda p: (p.grad.mul_(2), None)[1]),
        ):
            model = mlp()
            run, x = compiled(model), torch.randn(4, 10)
            taken = self.check(model, lambda: loss_of(run(x)), [[], [0, 1, 2, 3, 4, 5]])
            register(model[0].weight)
            self.assertEqual(taken.step(lambda: loss_of(run(x)).backward()), [1, 2, 3, 4, 5])

    def test_node_hook(self) -> None:
        """So may one on the node that accumulates it, which nobody can see but by its effect."""
        model = mlp()
        run, x = compiled(model), torch.randn(4, 10)
        node = model[0].weight.expand_as(model[0].weight).grad_fn.next_functions[0][0]
        node.register_prehook(lambda grads: (2 * grads[0],))
        self.check(model, lambda: loss_of(run(x)), [[], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]])

    def test_added(self) -> None:
        """What a gradient adds to is no gradient to hand over."""
        model = mlp()
        run, x = compiled(model), torch.randn(4, 10)
        taken = self.check(model, lambda: loss_of(run(x)), [[], [0, 1, 2, 3, 4, 5]])

        def twice() -> None:
            loss_of(run(x)).backward()
            taken.early.clear()
            taken.claimed.clear()
            loss_of(run(x)).backward()

        self.assertEqual(taken.step(twice), [])

    def test_kept_graph(self) -> None:
        """Autograd copies the gradients, and may run the graph again."""
        model = mlp()
        run, x = compiled(model), torch.randn(4, 10)
        taken = self.check(model, lambda: loss_of(run(x)), [[], [0, 1, 2, 3, 4, 5]])

        def twice() -> None:
            loss = loss_of(run(x))
            loss.backward(retain_graph=True)
            loss.backward()

        self.assertEqual(taken.step(twice), [])

    def test_grad(self) -> None:
        """autograd.grad accumulates nothing; nor does backward(inputs=...) but into its inputs."""
        model = mlp()
        run, x = compiled(model), torch.randn(4, 10)
        taken = self.check(model, lambda: loss_of(run(x)), [[], [0, 1, 2, 3, 4, 5]])
        self.assertEqual(taken.step(lambda: torch.autograd.grad(loss_of(run(x)), list(model.parameters()))), [])
        self.assertEqual(taken.step(lambda: loss_of(run(x)).backward()), [0, 1, 2, 3, 4, 5])
        self.assertEqual(taken.step(lambda: loss_of(run(x)).backward(inputs=[model[2].weight])), [2])

    def test_checkpoint(self) -> None:
        model = mlp()
        part, x = compiled(model[2:]), torch.randn(4, 10)
        self.check(
            model, lambda: loss_of(checkpoint(part, model[:2](x), use_reentrant=False)), [[], [2, 3, 4, 5], [2, 3, 4, 5]]
        )

    def test_layout(self) -> None:
        """Gradients that lie in memory as their parameters do not."""
        model = nn.Linear(4, 4, bias=False)
        run, x = compiled(lambda x: x @ model.weight), torch.randn(4, 4)
        model.weight.data = model.weight.data.t().contiguous().t()
        taken = self.check(model, lambda: loss_of(run(x)), [[], [0]])
        self.assertEqual(taken.parameters[0].grad.stride(), model.weight.stride())

    def test_shared_blocks(self) -> None:
        """Blocks of one class run the same compiled code: each run's parameters are its own."""
        model = nn.ModuleList(nn.Linear(10, 10) for _ in range(3))
        block = compiled(lambda layer, x: torch.tanh(layer(x)))
        x = torch.randn(4, 10)

        def run() -> torch.Tensor:
            y = x
            for layer in model:
                y = block(layer, y)
            return loss_of(y)

        self.check(model, run, [[], [0, 1, 2, 3, 4, 5]])


@unittest.skipUnless(COMPILES, "torch.compile with this backend needs torch 2.6")
class Ranks(unittest.TestCase):
    """Under an agent."""

    def setUp(self) -> None:
        fresh(self)
        # What notes the graphs of an iteration is one a process, and ranks are threads here.
        for patch in mock.patch.object(_graph, "watcher", _graph.Watcher()), mock.patch.object(_graph_job, "watch"):
            patch.start()
            self.addCleanup(patch.stop)

    def train(
        self,
        models: List[nn.Module],
        loss: Callable[[Any, Any, int, int], torch.Tensor],
        compile: Any,
        agent: Any = FakeAgent,
        **options: Any,
    ) -> List[Any]:
        def work(session: Any) -> nn.Module:
            model = models[session.client.rank]
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            session.wrap(model, optimizer, 64, 64)
            run = compile(model)
            for step in range(5):
                optimizer.zero_grad(**options)
                together.wait()
                with alone:
                    value = loss(run, model, step, session.client.rank)
                together.wait()
                value.backward()
                optimizer.step()
            return model

        # Threads cannot compile at the same time, nor call what is compiled while another compiles; that may be in any step, as
        # a parameter whose update waits is of another class.
        alone, together = threading.Lock(), threading.Barrier(len(models), timeout=LIMIT)
        results = ranks(len(models), work, agent)
        for r in results:
            if isinstance(r, Exception):
                raise r
        return results

    def test_same_weights(self) -> None:
        """Two ranks, compiled or not."""
        for name in MODELS:

            def loss(run: Any, model: nn.Module, step: int, rank: int) -> torch.Tensor:
                return loss_of(run(batch(name, step, rank)))

            for options in {}, {"set_to_none": False}:
                want = self.train([made(name, r) for r in range(2)], loss, lambda model: model, **options)
                got = self.train([made(name, r) for r in range(2)], loss, compiled_at_once, **options)
                for g, w in zip(got, want):
                    for (n, a), b in zip(g.state_dict().items(), w.state_dict().values()):
                        self.assertTrue(torch.equal(a, b), f"{name}: {n}")

    def test_crossing(self) -> None:
        """Across the barrier: nodes of the forward graph find their parameters updated."""
        run = _graph.Graph.run
        awaited: List[int] = []

        def noted(graph: Any, arguments: List[Any]) -> Any:
            if not graph.is_backward:
                awaited.append(sum(pending(a) is not None for a in arguments if isinstance(a, torch.Tensor)))
            return run(graph, arguments)

        for name in MODELS:

            def loss(run: Any, model: nn.Module, step: int, rank: int) -> torch.Tensor:
                return loss_of(run(batch(name, step, rank)))

            want = self.train([made(name, r) for r in range(2)], loss, lambda model: model)
            with mock.patch.object(_graph.Graph, "run", noted):
                got = self.train(
                    [made(name, r) for r in range(2)],
                    loss,
                    compiled_at_once,
                    lambda path, world: PlannedAgent(path, world, elements=500, after_step=True),
                )
            for g, w in zip(got, want):
                for (n, a), b in zip(g.state_dict().items(), w.state_dict().values()):
                    self.assertTrue(torch.equal(a, b), f"{name}: {n}")
        self.assertTrue(any(awaited))

    def test_parts(self) -> None:
        """Graph breaks, a block called twice, other uses of a parameter, in some iterations only: the weights of plain PyTorch."""

        def broken(run: Any, model: nn.Module, step: int, rank: int) -> torch.Tensor:
            return loss_of(run(batch("mlp", step, rank)))

        def twice(run: Any, model: nn.Module, step: int, rank: int) -> torch.Tensor:
            x = run(batch("mlp", step, rank))
            return loss_of(run(x) if step != 2 else x)

        def other(run: Any, model: nn.Module, step: int, rank: int) -> torch.Tensor:
            return loss_of(run(batch("mlp", step, rank))) + model.first.weight.norm()

        for loss in broken, twice, other:
            torch.manual_seed(0)
            start = Broken()
            want = self.train([copy.deepcopy(start) for _ in range(2)], loss, lambda model: model)
            got = self.train([copy.deepcopy(start) for _ in range(2)], loss, compiled_at_once)
            for g, w in zip(got, want):
                for (n, a), b in zip(g.state_dict().items(), w.state_dict().values()):
                    self.assertTrue(torch.equal(a, b), f"{loss.__name__}: {n}")

    def test_too_late(self) -> None:
        """The rest of a gradient comes when the others have a part: an error that says what to do."""

        def loss(run: Any, model: nn.Module, step: int, rank: int) -> torch.Tensor:
            x = run(batch("mlp", step, rank))
            return loss_of(x) + (model[0].weight.norm() if step == 3 and rank == 0 else 0)

        with self.assertRaisesRegex(weft.WeftError, "0.weight received a second gradient .* must be compiled too"):
            self.train([made("mlp") for _ in range(2)], loss, compiled_at_once)

    def test_early(self) -> None:
        """Buckets leave while the backward graph runs, not after it."""
        events: List[str] = []
        ready, run = Client.ready, _graph.Graph.run

        def noted_ready(client: Client, bucket: int, iteration: int) -> None:
            if client.rank == 0:
                events.append(f"bucket of {iteration}")
            ready(client, bucket, iteration)

        def noted_run(graph: Any, arguments: List[Any]) -> Any:
            out = run(graph, arguments)
            if graph.is_backward:
                events.append("graph ended")
            return out

        def loss(run: Any, model: nn.Module, step: int, rank: int) -> torch.Tensor:
            return loss_of(run(batch("mlp", step)))

        with mock.patch.object(Client, "ready", noted_ready), mock.patch.object(_graph.Graph, "run", noted_run):
            self.train([made("mlp")], loss, compiled_at_once)
        first, second = events.index("bucket of 0"), events.index("bucket of 1")
        self.assertEqual(events.index("graph ended"), first - 1)
        self.assertNotIn("graph ended", events[second : second + 5])  # five of the six buckets; weft.used is in the last


if __name__ == "__main__":
    unittest.main()
