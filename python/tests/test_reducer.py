"""What a wrapped model does where DistributedDataParallel does something else, or nothing."""

from __future__ import annotations

import copy
import pickle
import unittest
from typing import Any, Callable, List, Sequence

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from weft._client import WeftError

from .ranks import ranks

BATCH = torch.arange(12.0).view(3, 4)


def model() -> nn.Sequential:
    """Its weights are all 1: the gradient of sum() by the first layer's weights is 2 * the inputs' sums, on both rows."""
    m = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 2))
    for p in m.parameters():
        nn.init.ones_(p)
    return m


def wrap(session: Any, m: nn.Module, bucket_bytes: int = 1 << 20, optimizer: Any = None) -> nn.Module:
    session.wrap(m, optimizer or torch.optim.SGD(m.parameters(), lr=0.1), bucket_bytes, bucket_bytes)
    return m


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def loss(m: nn.Module, rank: int, step: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(10 * step + rank)
    return m(torch.randn(5, 4, generator=g)).pow(2).mean()


def reference_step(m: nn.Module, optimizer: Any, step: int, trained: Sequence[int], world: int) -> None:
    """What a step of workers comes to, in one process: gradients of those that trained added in rank order."""
    gradients = [torch.autograd.grad(loss(m, rank, step), list(m.parameters())) for rank in trained]
    for p, of_ranks in zip(m.parameters(), zip(*gradients)):
        p.grad = sum(g / world for g in of_ranks)
    optimizer.step()


class Reducer(unittest.TestCase):
    def results(self, world: int, work: Callable[[Any], Any]) -> List[Any]:
        results = ranks(world, work)
        for r in results:
            if isinstance(r, Exception):
                raise r
        return results

    def same_parameters(self, got: List[nn.Module], want: nn.Module, what: str) -> None:
        for m in got:
            for g, w in zip(m.parameters(), want.parameters()):
                self.assertTrue(torch.equal(g, w), f"{what}: got {g}, want {w}")

    def refused(self, world: int, work: Callable[[Any], Any], message: str) -> None:
        for r in ranks(world, work):
            self.assertIsInstance(r, WeftError, r)
            self.assertRegex(str(r), message)

    def test_average(self) -> None:
        """Of three ranks, whose batches are 1, 2 and 3 times the same: twice it."""

        def work(session):
            m = wrap(session, model())
            m(BATCH * (session.client.rank + 1)).sum().backward()
            return m[0].weight.grad

        want = (2 * 2 * BATCH.sum(0)).expand(2, 4)
        for got in self.results(3, work):
            self.assertTrue(torch.equal(got, want), got)

    def test_one_process(self) -> None:
        """Three and four ranks train as one process does that adds their gradients in rank order, to the bit."""

        for world in 3, 4:
            networks = [network() for _ in range(world)]  # made here: the seed is one for all threads

            def work(session):
                m = wrap(session, networks[session.client.rank], 64)
                optimizer = torch.optim.AdamW(m.parameters(), lr=0.05)
                for step in range(5):
                    optimizer.zero_grad()
                    loss(m, session.client.rank, step).backward()
                    optimizer.step()
                return m

            want = network()
            optimizer = torch.optim.AdamW(want.parameters(), lr=0.05)
            for step in range(5):
                reference_step(want, optimizer, step, range(world), world)
            self.same_parameters(self.results(world, work), want, f"{world} ranks")

    def test_resumed(self) -> None:
        """Two ranks leave off, three go on from what one of them saved."""
        want = network()
        optimizer = torch.optim.AdamW(want.parameters(), lr=0.05)
        state: Any = None
        for world, steps in (2, range(3)), (3, range(3, 6)):
            networks = [network() for _ in range(world)]

            def work(session):
                m = networks[session.client.rank]
                optimizer = torch.optim.AdamW(m.parameters(), lr=0.05)
                if state and session.client.rank == 0:  # wrap gives both to all
                    m.load_state_dict(state[0])
                    optimizer.load_state_dict(copy.deepcopy(state[1]))  # torch 2 keeps the tensors of steps
                wrap(session, m, 64, optimizer)
                for step in steps:
                    optimizer.zero_grad()
                    loss(m, session.client.rank, step).backward()
                    optimizer.step()
                return m, copy.deepcopy((m.state_dict(), optimizer.state_dict()))

            results = self.results(world, work)
            state = results[-1][1]
            for step in steps:
                reference_step(want, optimizer, step, range(world), world)
            self.same_parameters([m for m, _ in results], want, f"{world} ranks")

    def test_shared_elements(self) -> None:
        """Refused on all ranks: only some would find that they cannot take what rank 0 has."""

        def work(session):
            m = nn.Linear(4, 2)
            m.register_buffer("places", torch.arange(4).expand(3, 4))
            wrap(session, m)

        for e in ranks(2, work):
            self.assertRegex(str(e), "elements of places share memory")

    def test_told_once(self) -> None:
        """Who has caught the error that another rank is lost ends in order."""

        def work(session):
            m = wrap(session, nn.Linear(4, 2))
            if session.client.rank == 1:
                raise ValueError("a bug")
            with self.assertRaisesRegex(WeftError, "rank 1"):
                m(torch.ones(1, 4)).sum().backward()

        self.assertIsNone(ranks(2, work)[0])

    def test_join(self) -> None:
        """Of three ranks, rank 1 has one batch an epoch, rank 0 three, rank 2 four: all end with the same, momentum too."""
        batches = (3, 1, 4)
        networks = [network() for _ in batches]

        def work(session):
            rank, m = session.client.rank, networks[session.client.rank]
            optimizer = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
            wrap(session, m, 64, optimizer)
            for epoch in 0, 1:
                for step in range(batches[rank]):
                    optimizer.zero_grad()
                    loss(m, rank, 10 * epoch + step).backward()
                    optimizer.step()
                session.reducer.join()
            return m, optimizer

        want = network()
        optimizer = torch.optim.SGD(want.parameters(), lr=0.1, momentum=0.9)
        for epoch in 0, 1:
            for step in range(max(batches)):
                trained = [rank for rank, n in enumerate(batches) if step < n]
                reference_step(want, optimizer, 10 * epoch + step, trained, 3)
        results = self.results(3, work)
        self.same_parameters([m for m, _ in results], want, "join")
        momenta = list(optimizer.state.values())
        for _, got in results:
            for g, w in zip(got.state.values(), momenta):
                self.assertTrue(torch.equal(g["momentum_buffer"], w["momentum_buffer"]))

    def test_join_unused(self) -> None:
        """What rank 0, which has left, used before counts no longer; buffers are those of rank 1, which trains."""

        def work(session):
            m = wrap(session, nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2), nn.Linear(2, 2)), 1)
            m(BATCH).sum().backward()
            m.zero_grad(set_to_none=True)
            if session.client.rank == 1:
                m[1](m[0](BATCH + 10)).sum().backward()
                self.assertIsNone(m[2].weight.grad)
                self.assertTrue(torch.equal(m[1].bias.grad, torch.full((2,), 1.5)), m[1].bias.grad)
            session.reducer.join()
            return m[0].running_mean

        once = 0.1 * BATCH.mean(0)  # BatchNorm's momentum
        for got in self.results(2, work):
            self.assertTrue(torch.allclose(got, 0.9 * once + 0.1 * (BATCH.mean(0) + 10)), got)

    def test_step_without_gradients(self) -> None:
        """Rank 1's loss does not reach the model, which would leave rank 0 waiting."""

        def work(session):
            m = model()
            optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
            wrap(session, m, 1, optimizer)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)  # it replaces optimizer.step
            for step in range(3):
                optimizer.zero_grad()
                out = m(BATCH.clone().requires_grad_())
                if (session.client.rank, step) == (1, 2):
                    out = out.detach().requires_grad_()
                out.sum().backward()
                optimizer.step()
                scheduler.step()

        self.refused(2, work, r"rank 1: optimizer\.step\(\) without gradients|rank 1 ended without goodbye")

    def test_steps_that_wait_for_nobody(self) -> None:
        """Steps without a backward pass that are harmless: before any, after no_sync, with gradients of one's own."""

        def work(session):
            m = model()
            optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
            wrap(session, m, 1, optimizer)
            optimizer.step()
            session.reducer.passes.paused = True
            m(BATCH).sum().backward()
            optimizer.step()
            session.reducer.passes.paused = False
            m(BATCH).sum().backward()
            optimizer.step()
            optimizer.step()
            for p, g in zip(m.parameters(), torch.autograd.grad(m(BATCH).sum(), list(m.parameters()))):
                p.grad = g
            optimizer.step()

        self.results(2, work)

    def test_gradients_are_the_users_own(self) -> None:
        """Writing into a gradient changes neither region, and one step's averages do not change the last one's."""

        def work(session):
            m = wrap(session, model())
            m(BATCH).sum().backward()
            kept = m[0].weight.grad
            value = kept.clone()
            m.zero_grad(set_to_none=True)
            m(BATCH * 5).sum().backward()
            self.assertTrue(torch.equal(kept, value))
            kept.fill_(9)
            self.assertTrue(torch.equal(m[0].weight.grad, value * 5))

        self.results(2, work)

    def test_used_only_without_reducing(self) -> None:
        """Within no_sync rank 0 uses both layers; the pass that reduces uses only the first. Both gradients are averages."""

        def work(session):
            m = wrap(session, model())
            session.reducer.passes.paused = True
            if session.client.rank == 0:
                m(BATCH).sum().backward()
            session.reducer.passes.paused = False
            m[0](BATCH).sum().backward()
            gradients = [p.grad for p in m.parameters()]
            m.zero_grad(set_to_none=True)
            m[0](BATCH).sum().backward()
            self.assertIsNone(m[1].weight.grad)  # that use was reduced
            return gradients

        for first, second, bias in self.results(2, work):
            s = BATCH.sum(0)
            self.assertTrue(torch.equal(first, (2 * s / 2 + s).expand(2, 4)), first)
            self.assertTrue(torch.equal(second, torch.full((2, 2), BATCH.sum().item() / 2)), second)
            self.assertTrue(torch.equal(bias, torch.full((2,), 1.5)), bias)

    def test_unused_everywhere(self) -> None:
        def work(session):
            m = wrap(session, model(), 1)
            m[0](BATCH).sum().backward()
            return [p.grad is None for p in m.parameters()]

        self.assertEqual(self.results(2, work), [[False, True, True]] * 2)

    def test_empty_parameter(self) -> None:
        def work(session):
            m = model()
            m.nothing = nn.Parameter(torch.ones(0, 3))
            wrap(session, m)
            (m[1](m[0](BATCH)).sum() + m.nothing.sum()).backward()
            self.assertEqual(m.nothing.grad.shape, (0, 3))

        self.results(2, work)

    def test_two_losses(self) -> None:
        """Two passes through one graph: the second adds to averages, after the buffers were broadcast."""

        def work(session):
            m = wrap(session, nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)))
            out = m(BATCH * (session.client.rank + 1))
            out.sum().backward(retain_graph=True)
            once = m[1].weight.grad.clone()
            out.sum().backward()
            self.assertTrue(torch.equal(m[1].weight.grad, 2 * once))
            return m[0].running_mean

        a, b = self.results(2, work)
        self.assertTrue(torch.equal(a, b))
        self.assertTrue(torch.equal(a, 0.1 * BATCH.mean(0)), a)  # rank 0's, with BatchNorm's momentum of 0.1

    def test_autograd_grad_reduces_nothing(self) -> None:
        def work(session):
            m = wrap(session, model())
            if session.client.rank == 0:
                x = BATCH.clone().requires_grad_()
                torch.autograd.grad(m(x).sum(), x, create_graph=True)
                torch.autograd.grad(m(x).sum(), list(m.parameters()))
            self.assertIsNone(m[0].weight.grad)
            m(BATCH).sum().backward(create_graph=True)
            self.assertTrue(torch.equal(m[0].weight.grad, (2 * BATCH.sum(0)).expand(2, 4)))

        self.results(2, work)

    def test_one_rank_evaluates(self) -> None:
        def work(session):
            m = wrap(session, nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)))
            m(BATCH).sum().backward()
            if session.client.rank == 0:
                m.eval()
                m(BATCH)
                m.train()
            m(BATCH).sum().backward()

        self.results(2, work)

    def test_copies_are_plain(self) -> None:
        """A copy of the model, in memory or pickled, trains on this rank alone."""

        def work(session):
            m = wrap(session, model())
            for c in copy.deepcopy(m), pickle.loads(pickle.dumps(m)):
                if session.client.rank == 0:
                    c(BATCH).sum().backward()
                    self.assertTrue(torch.equal(c[0].weight.grad, (2 * BATCH.sum(0)).expand(2, 4)))
                self.assertIsNone(m[0].weight.grad)
            m(BATCH).sum().backward()

        self.results(2, work)

    def test_plain_after_close(self) -> None:
        def work(session):
            m = wrap(session, model())
            session.close()
            m(BATCH).sum().backward()
            return m[0].weight.grad

        self.results(2, work)

    def test_hooks_lost(self) -> None:
        """A trip to another type and back replaces the graph's nodes, of all parameters or of some; it costs no step."""
        for part in (lambda m: m, lambda m: m[1]):

            def work(session):
                m = wrap(session, model(), 1)
                part(m).double().float()
                for step in 1, 2:
                    m.zero_grad(set_to_none=True)
                    m(BATCH * (2 * session.client.rank + step)).sum().backward()
                    want = (2 * (1 + step) * BATCH.sum(0)).expand(2, 4)
                    self.assertTrue(torch.equal(m[0].weight.grad, want), m[0].weight.grad)

            self.results(2, work)

    def test_parameter_replaced(self) -> None:
        def work(session):
            m = wrap(session, model())
            m[1].bias = nn.Parameter(torch.zeros(2))
            m(BATCH)

        self.refused(2, work, r"parameter 1\.bias was replaced")

    def test_type_changed(self) -> None:
        def work(session):
            m = wrap(session, model())
            m[1].double()
            m(BATCH)

        self.refused(2, work, r"parameter 1\.weight changed from torch\.float32 to torch\.float64")

    def test_unfrozen(self) -> None:
        def work(session):
            m = model()
            m[1].bias.requires_grad_(False)
            wrap(session, m)
            m[1].bias.requires_grad_(True)
            m(BATCH)

        self.refused(2, work, r"parameter 1\.bias requires a gradient now")

    def test_sparse(self) -> None:
        def work(session):
            m = wrap(session, nn.Sequential(nn.Embedding(5, 2, sparse=True), nn.Linear(2, 1)))
            m(torch.tensor([1, 2])).sum().backward()

        self.refused(2, work, r"rank \d.*parameter 0\.weight has a sparse gradient|rank \d ended without goodbye")

    def test_unsupported_type(self) -> None:
        def work(session):
            wrap(session, nn.Linear(2, 2, dtype=torch.complex64))

        for e in ranks(2, work):
            self.assertRegex(str(e), "parameter weight is of type torch.complex64")

    def test_models_differ(self) -> None:
        self.refused(2, lambda session: wrap(session, nn.Linear(2, 3 + session.client.rank)), "weight")

    def test_wrapped_again(self) -> None:
        """The same model, and one that holds it."""

        def work(session):
            m = wrap(session, model())
            for again in m, nn.Sequential(m, nn.Linear(2, 2)):
                wrap(session, again)
                again.zero_grad(set_to_none=True)
                again(BATCH * (session.client.rank + 1)).sum().backward()
            return m[0].weight.grad

        a, b = self.results(2, work)
        self.assertTrue(torch.equal(a, b))

    def test_another_model(self) -> None:
        def work(session):
            first, second = wrap(session, model()), wrap(session, nn.Linear(4, 2))
            second(BATCH).sum().backward()
            first(BATCH).sum().backward()

        self.refused(2, work, "wrap was called for another")

    def test_interrupted(self) -> None:
        """An exception in backward is forgiven as long as no bucket has gone to the other ranks."""

        class Fail(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, g):
                raise ZeroDivisionError

        for bucket_bytes, forgiven in (1 << 20, True), (1, False):

            def work(session):
                m = wrap(session, model(), bucket_bytes)
                with self.assertRaises(ZeroDivisionError):
                    m[1](Fail.apply(m[0](BATCH))).sum().backward()
                m.zero_grad(set_to_none=True)
                m[0](BATCH).sum().backward()
                self.assertIsNone(m[1].weight.grad)  # which the interrupted pass had reached
                return m[0].weight.grad

            if forgiven:
                for got in self.results(2, work):
                    self.assertTrue(torch.equal(got, BATCH.sum(0).expand(2, 4)))
            else:
                self.refused(2, work, "ended by an exception|ended without goodbye")

    def test_used_in_two_segments(self) -> None:
        """Reentrant checkpoints give a shared parameter two gradients in one pass; the second comes too late."""

        class Shared(nn.Linear):
            def forward(self, x):
                return checkpoint(super().forward, checkpoint(super().forward, x, use_reentrant=True), use_reentrant=True)

        def work(session):
            m = wrap(session, Shared(4, 4), 1)
            m(BATCH.clone().requires_grad_()).sum().backward()

        self.refused(2, work, "second gradient|ended without goodbye")

    def test_segments_outside(self) -> None:
        """A model that never runs as a whole has no output where the pass could begin: each segment is a pass of its own."""

        def work(session):
            m = wrap(session, model())
            x = BATCH.clone().requires_grad_() * (1 + session.client.rank)
            h = checkpoint(lambda h: m[0](h), x, use_reentrant=True)
            checkpoint(lambda h: m[1](h), h, use_reentrant=True).sum().backward()
            return m[0].weight.grad

        for got in self.results(2, work):
            self.assertTrue(torch.equal(got, (2 * 1.5 * BATCH.sum(0)).expand(2, 4)), got)

    def test_ready_early(self) -> None:
        """A bucket is declared while the backward pass still computes what lies before it."""

        def work(session):
            m = wrap(session, model(), 1)
            declared: List[int] = []
            ready = session.client.ready
            session.client.ready = lambda bucket, iteration: (declared.append(bucket), ready(bucket, iteration))
            h = m[0](BATCH)
            h.register_hook(lambda _: declared.append("first layer's backward begins"))
            m[1](h).sum().backward()
            return declared

        for declared in self.results(2, work):
            self.assertEqual(sorted(map(str, declared[:2])), ["0", "1"])
            self.assertEqual(declared[2:], ["first layer's backward begins", 2, 3])


if __name__ == "__main__":
    unittest.main()
