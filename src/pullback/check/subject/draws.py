"""Whether a function takes random numbers."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
from torch import Tensor

from pullback.check.subject.subject import Subject
from pullback.function.isolation import RandomState, TorchState, seeded
from pullback.judge.run import BackwardFailedError
from pullback.judge.tolerances import is_close

SEEDS = range(987_654_321, 987_654_326)
DRAWS = range(64)  # so many draws are averaged: a bias of half the spread is then four errors
FAR = 3.0  # errors of the average, beyond which it is another number
ROUNDED = torch.finfo(torch.bfloat16).eps ** 0.5  # of a gradient: sums in another order spread less


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
        torch_before, others = TorchState(), foreign_states()
        subject.target.call(*subject.arguments(subject.base))
        return not torch_before.is_now() or foreign_states() != others


def foreign_states() -> tuple[Any, ...]:
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


def is_estimate(subject: Subject, name: str, want: Tensor) -> bool:
    """Whether a gradient spreads over many draws, and their average is `want`, but for chance.

    So it is with an estimate of the gradient, but not with noise beside it, with a part of it left
    out, or with a sum in low precision whose order is drawn.
    """
    called, state = subject.run(), RandomState()
    found = list[Tensor]()
    try:
        for seed in DRAWS:
            state.seed(seed)
            one = called.pull(subject.cotangents(called), retain_graph=True).get(name)
            found.append(torch.zeros_like(want) if one is None else one.detach().to(want))
    except BackwardFailedError:
        return False
    finally:
        state.restore()
    drawn = torch.stack(found)
    spread = drawn.var(0).sum().sqrt()
    error = spread / len(DRAWS) ** 0.5
    is_spread = bool(spread > ROUNDED * want.norm())
    return is_spread and bool((drawn.mean(0) - want).norm() <= FAR * error)
