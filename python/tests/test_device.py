"""When a device that copies later says that it has, and what it asks of its stream."""

from __future__ import annotations

import mmap
import unittest
from typing import Any, List
from unittest import mock

import torch

from weft import _session
from weft._client import WeftError
from weft._device import CUDAStream, Device, Streaming, place_of

from . import late, test_reducer


class Steps:
    """A stream that does nothing until it is told to; an event is passed when all before it has been done."""

    def __init__(self) -> None:
        self.given: List[Any] = []
        self.done = 0

    def copies(self, tensor: torch.Tensor) -> bool:
        return True

    def follow(self) -> None:
        self.given.append("follow")

    def lead(self) -> None:
        self.given.append("lead")

    def copy(self, to: torch.Tensor, tensor: torch.Tensor) -> None:
        self.given.append(lambda: to.copy_(tensor))

    def record(self) -> "Steps.Event":
        return self.Event(self, len(self.given))

    def close(self) -> None:
        self.step(len(self.given))

    def step(self, upto: int) -> None:
        for g in self.given[self.done : upto]:
            if callable(g):
                g()
        self.done = max(self.done, upto)

    class Event:
        def __init__(self, stream: "Steps", at: int) -> None:
            self.stream, self.at = stream, at

        def query(self) -> bool:
            return self.stream.done >= self.at

        def synchronize(self) -> None:
            self.stream.step(self.at)


class StreamingDevice(unittest.TestCase):
    def setUp(self) -> None:
        self.stream = Steps()
        self.device = Streaming(self.stream)
        self.region = torch.zeros(4)
        self.said: List[Any] = []

    def say(self, what: Any) -> None:
        self.said.append((what, self.region.tolist()))

    def test_declared_when_copied(self) -> None:
        """In a later hook, if the copies are done by then; never before."""
        self.device.copy_in(self.region[0], torch.tensor(1.0))
        self.device.when_copied(self.say, "first")
        self.device.copy_in(self.region[1], torch.tensor(2.0))
        self.device.when_copied(self.say, "second")
        self.assertEqual(self.said, [])
        self.stream.step(2)  # follow, copy
        self.device.copy_in(self.region[2], torch.tensor(3.0))
        self.assertEqual(self.said, [("first", [1, 0, 0, 0])])
        self.device.copy_in(self.region[3], torch.tensor(4.0))
        self.assertEqual(len(self.said), 1)

    def test_settle(self) -> None:
        """Each is declared as soon as its own copies are done, in order."""
        for k in range(3):
            self.device.copy_in(self.region[k], torch.tensor(k + 1.0))
            self.device.when_copied(self.say, k)
        self.device.settle()
        self.assertEqual(self.said, [(0, [1, 0, 0, 0]), (1, [1, 2, 0, 0]), (2, [1, 2, 3, 0])])

    def test_order_of_streams(self) -> None:
        """A copy comes after what made the tensor; what the caller does next comes after the copies to its tensors."""
        self.device.copy_in(self.region[0], torch.tensor(1.0))
        self.device.copy_out([torch.zeros(4), torch.zeros(4)], [self.region, self.region])
        self.assertEqual([g if isinstance(g, str) else "copy" for g in self.stream.given],
                         ["follow", "copy", "follow", "copy", "copy", "lead"])  # fmt: skip

    def test_output_is_not_given_back_early(self) -> None:
        """A bucket to which nothing was copied is not declared while the last average is still read from the output."""
        gradient = torch.zeros(4)
        self.region.fill_(5)
        self.device.copy_out([gradient], [self.region])
        self.device.when_copied(self.region.fill_, 6)  # as the agent may, once told
        self.device.settle()
        self.assertEqual(gradient.tolist(), [5, 5, 5, 5])

    def test_devices_differ(self) -> None:
        with self.assertRaisesRegex(ValueError, "parameter a is on cpu, b on meta"):
            place_of([("a", torch.zeros(1)), ("b", torch.zeros(1, device="meta"))])
        self.assertEqual(place_of([("a", torch.zeros(1))]), torch.device("cpu"))
        self.assertIs(type(_session.device_at(torch.device("cpu"), [])), Device)


class OnCUDA(unittest.TestCase):
    """What is asked of torch.cuda, by name: this has no GPU to try."""

    def setUp(self) -> None:
        self.cuda = mock.MagicMock()
        for name in "Event", "Stream", "cudart", "current_stream", "stream":
            self.assertTrue(hasattr(torch.cuda, name))
            patch = mock.patch.object(torch.cuda, name, getattr(self.cuda, name))
            patch.start()
            self.addCleanup(patch.stop)
        self.register = self.cuda.cudart().cudaHostRegister
        self.regions = [mmap.mmap(-1, 5000), mmap.mmap(-1, 100)]

    def at(self, region: mmap.mmap) -> int:
        return torch.frombuffer(region, dtype=torch.uint8).data_ptr()

    def test_regions_are_locked(self) -> None:
        self.register.return_value = 0
        device = _session.device_at(torch.device("cuda", 1), self.regions)
        self.assertEqual(self.register.mock_calls, [mock.call(self.at(r), len(r), 1) for r in self.regions])
        self.cuda.Stream.assert_called_once_with(torch.device("cuda", 1))
        device.close()
        device.close()
        self.cuda.Stream().synchronize.assert_called()
        unregister = self.cuda.cudart().cudaHostUnregister
        self.assertEqual(unregister.mock_calls, [mock.call(self.at(r)) for r in self.regions])

    def test_cannot_lock(self) -> None:
        self.register.side_effect = [0, 2]
        with self.assertRaisesRegex(WeftError, "cannot page-lock 100 bytes of shared memory for cuda:1: CUDA error 2"):
            _session.device_at(torch.device("cuda", 1), self.regions)
        self.cuda.cudart().cudaHostUnregister.assert_called_once_with(self.at(self.regions[0]))

    def test_streams(self) -> None:
        self.register.return_value = 0
        stream = CUDAStream(torch.device("cuda", 1), self.regions)
        side, caller = self.cuda.Stream(), self.cuda.current_stream()
        stream.follow()
        side.wait_stream.assert_called_once_with(caller)
        to, tensor = mock.Mock(), mock.Mock()
        stream.copy(to, tensor)
        self.cuda.stream.assert_called_once_with(side)
        to.copy_.assert_called_once_with(tensor, non_blocking=True)
        self.assertIs(stream.record(), self.cuda.Event())
        self.cuda.Event().record.assert_called_once_with(side)
        stream.lead()
        caller.wait_stream.assert_called_once_with(side)
        self.assertFalse(stream.copies(torch.zeros(1)))


class Late(test_reducer.Reducer):
    """All that holds of a model in main memory, on a device that copies late."""

    def setUp(self) -> None:
        patch = mock.patch.object(_session, "device_at", late.device_at)
        patch.start()
        self.addCleanup(patch.stop)

    test_ready_early = None  # when depends on the delays: StreamingDevice has it


if __name__ == "__main__":
    unittest.main()
