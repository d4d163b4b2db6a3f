"""Whether a function takes random numbers."""

from __future__ import annotations

import random

from torch import Tensor

from pullback.check.subject import Subject
from pullback.function.isolation import TorchState, seeded


def draws_in_backward(subject: Subject) -> bool:
    """Whether backward moves the state of PyTorch's generator."""
    called = subject.run()
    with seeded():
        before = TorchState()
        called.pull(subject.cotangents(called))
        return not before.is_now()


def draws(subject: Subject) -> bool:
    """Whether forward moves the state of PyTorch's or Python's generator."""
    with seeded():
        torch_before, python_before = TorchState(), random.getstate()
        args = subject.base.fresh()
        if subject.writes_inputs:
            args = tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in args)
        subject.target.call(*args)
        return not torch_before.is_now() or random.getstate() != python_before
