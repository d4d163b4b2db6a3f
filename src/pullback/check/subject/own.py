"""Arguments that are there for backward alone.

A tolerance of a pseudo-inverse, the weight of a regulariser, a gradient that is attached to a
value: such an argument changes a gradient, and nothing that forward gives. The caller has decided
by it what the gradient is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pullback.check.subject.subject import Subject
from pullback.judge.example import Example, can_differ
from pullback.judge.run import CallError, Run
from pullback.judge.tolerances import is_close


def own_argument(subject: Subject, example: Example, name: str, *, times: float = 1.0) -> str:
    """The name of an argument that changes this gradient, and nothing that forward gives.

    Cotangents are `times` as large as usual.
    """
    call = subject.target.call  # at inputs that need not be such as the examples are
    for i, other in _others(example, subject.names.index(name)):
        try:
            # Without it, too: a mask is as good with a half of it.
            three = example, example.put(i, other, ""), example.put(i, 0 * other, "")
            usual, half, none = (subject.run_other(call, one) for one in three)
            one, two = (_pulled(subject, run, times)[name] for run in (usual, half))
        except CallError:
            continue
        outputs = zip(usual.outputs, half.outputs, none.outputs, strict=True)
        is_same = all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in outputs)
        if is_same and not is_close(one, two):
            return subject.names[i]
    return ""


def _others(example: Example, place: int) -> Iterator[tuple[int, Any]]:
    """Each number, and each tensor but the one at `place`, as half of it."""
    for i, arg in enumerate(example.args):
        is_number = isinstance(arg, float) and arg != 0
        if is_number or (can_differ(arg) and i != place):
            yield i, arg / 2


def _pulled(subject: Subject, run: Run, times: float) -> dict[str, Tensor | None]:
    given = [None if c is None else times * c for c in subject.cotangents(run)]
    return run.pull(given)
