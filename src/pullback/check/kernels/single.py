"""Kernels that compute in single precision whatever they are given: nobody asks them for more.

Most kernels load a tensor of any dtype and go on in float32. A check in float64 would then find
rounding where the author promised nothing else. So such a function is checked as one that refuses
float64: at the example's own dtype, with tolerances that follow from it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from pullback.check.subject.subject import Subject
from pullback.check.target.target import Target
from pullback.judge.example import Example, can_differ, tensors_in
from pullback.judge.reference import FINEST, PrecisionWatcher
from pullback.judge.run import BackwardFailedError, ForwardRefusedError, Run

NOTE = "its kernels know float32 and no float64, which was not demanded"
LITTLE, MUCH = 2.0**-30, 2.0**-16  # parts by which an input is moved: float32 sees the second
SHARE = 0.25  # of the numbers that follow an input: a step follows it nearly nowhere


def is_single(subject: Subject) -> bool:
    """Whether an input in float64 is read with the digits of float32, and no op is seen to round.

    On a GPU one may be seen: kernels give float32, which is converted after them. There, too, a
    backward that raises for float64 alone is one without a kernel for that.
    """
    given = subject.given
    dtypes = {given.args[i].dtype for i in given.differentiable}
    if not dtypes or torch.float64 in dtypes or torch.complex128 in dtypes:
        return False
    is_on_gpu = any(t.is_cuda for t in tensors_in(given.args))
    _ = subject.writes_inputs, subject.relations  # which call it in the example's own dtype
    exact = given.double()
    try:
        with PrecisionWatcher() as watcher:
            usual = subject.run(exact)
        if not is_on_gpu and watcher.of(usual.outputs) > FINEST:
            return False
        if any(_is_coarse(subject, exact, usual, i) for i in exact.differentiable):
            return True
    except ForwardRefusedError:
        return False
    return is_on_gpu and _raises(subject, exact) and not _raises(subject, given)


def _is_coarse(subject: Subject, exact: Example, usual: Run, position: int) -> bool:
    """Whether the outputs follow an input, and not its last digits."""
    little, much = (
        subject.run(exact.put(position, exact.args[position] * (1 + part), exact.label))
        for part in (LITTLE, MUCH)
    )
    return not _changed(little, usual) and _changed(much, usual) > SHARE


def _changed(one: Run, two: Run) -> float:
    """The share of the numbers that differ."""
    pairs = zip(one.outputs, two.outputs, strict=True)
    found = [(a != b) for a, b in pairs if can_differ(a) and a.shape == b.shape]
    total = sum(each.numel() for each in found)
    return sum(int(each.sum()) for each in found) / total if total else 0.0


def _raises(subject: Subject, example: Example) -> bool:
    try:
        subject.pull(example)
    except BackwardFailedError:
        return True
    return False


def without_double(target: Target) -> Target:
    """The target, refusing float64 as one that has no kernel for it."""

    def call(*args: Any) -> Any:
        if any(t.dtype in (torch.float64, torch.complex128) for t in tensors_in(args)):
            raise TypeError("it has no kernel for float64")
        return target.call(*args)

    return replace(target, call=call)
