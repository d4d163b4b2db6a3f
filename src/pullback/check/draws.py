"""Whether a function takes random numbers."""

from __future__ import annotations

import random
import sys
from typing import Any

from torch import Tensor

from pullback.check.subject import Subject
from pullback.function.isolation import RandomState, TorchState, seeded
from pullback.judge.run import BackwardFailedError
from pullback.judge.tolerances import is_close

SEEDS = range(987_654_321, 987_654_326)


def draws_in_backward(subject: Subject) -> bool:
    """Whether backward moves the state of PyTorch's generator."""
    called = subject.run()
    with seeded():
        before = TorchState()
        called.pull(subject.cotangents(called))
        return not before.is_now()


def draws(subject: Subject) -> bool:
    """Whether forward moves the state of PyTorch's, Python's or NumPy's generator."""
    with seeded():
        torch_before, others = TorchState(), _others()
        args = subject.base.fresh()
        if subject.writes_inputs:
            args = tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in args)
        subject.target.call(*args)
        return not torch_before.is_now() or _others() != others


def _others() -> tuple[Any, ...]:
    """The states of the generators of Python and, where it is loaded, NumPy."""
    if "numpy" not in sys.modules:
        return (random.getstate(),)
    _, drawn, *rest = sys.modules["numpy"].random.get_state()
    return (random.getstate(), drawn.tobytes(), *rest)


def is_drawn(subject: Subject, name: str) -> bool:
    """Whether one gradient of one graph is another for other states of the generators."""
    called, state = subject.run(), RandomState()
    found = []
    try:
        for seed in (*SEEDS, SEEDS[0]):
            state.seed(seed)
            found.append(called.pull(subject.cotangents(called), retain_graph=True).get(name))
    except BackwardFailedError:
        return False
    finally:
        state.restore()
    first, *others, again = found
    return is_close(again, first, 100) and not all(is_close(one, first, 100) for one in others)
