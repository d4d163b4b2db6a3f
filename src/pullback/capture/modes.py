"""The modes of PyTorch that a call is made under, and the lock of all that switches global ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Modes:
    """Which modes are on: gradient recording, inference, and autocast with its dtypes by device."""

    grad: bool = True
    inference: bool = False
    autocast: tuple[tuple[str, torch.dtype], ...] = ()

    @contextmanager
    def entered(self, outside: Modes) -> Iterator[None]:
        """Switch to these modes where they differ from `outside`, those of the program's caller.

        What the program did not switch stays as it is now.
        """
        with ExitStack() as stack:
            if self.inference != outside.inference:
                stack.enter_context(torch.inference_mode(self.inference))
            if self.grad != outside.grad:
                stack.enter_context(torch.set_grad_enabled(self.grad))
            mine, theirs = dict(self.autocast), dict(outside.autocast)
            for device in sorted(mine.keys() | theirs.keys()):
                if mine.get(device) != theirs.get(device):
                    on = device in mine
                    stack.enter_context(torch.autocast(device, mine.get(device), enabled=on))
            yield


def autocast_now() -> tuple[tuple[str, torch.dtype], ...]:
    """The kinds of devices for which autocast is on in this thread, with their dtypes."""
    on = (device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device))
    return tuple((device, torch.get_autocast_dtype(device)) for device in on)


@contextmanager
def autocast_as(then: tuple[tuple[str, torch.dtype], ...]) -> Iterator[None]:
    """Autocast as `autocast_now` recorded it; off for the other devices."""
    with ExitStack() as stack:
        for device, dtype in then:
            stack.enter_context(torch.autocast(device, dtype))
        for device, _ in autocast_now():
            if device not in dict(then):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def autocast_off() -> AbstractContextManager[None]:
    """No autocast: a graph has its casts in it."""
    return autocast_as(()) if autocast_now() else nullcontext()


def modes_now(devices: frozenset[str]) -> Modes:
    """The modes of this thread, with autocast for these kinds of devices."""
    on = (device for device in sorted(devices) if torch.is_autocast_enabled(device))
    return Modes(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        tuple((device, torch.get_autocast_dtype(device)) for device in on),
    )


_LOCK = threading.RLock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the one lock of capture and compilation, which its thread may take again.

    PyTorch notes in a global that it traces: two threads at once would leave it set for ever. A
    backward meanwhile runs on the thread that holds the lock: on one of PyTorch's own, as for
    tensors on a GPU, it could want the lock to compile what it runs, and would wait for ever.
    """
    with _LOCK, torch.autograd.set_multithreading_enabled(False):
        yield
