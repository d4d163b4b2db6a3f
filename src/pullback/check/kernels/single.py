"""Kernels that compute in single precision whatever they are given: nobody asks them for more.

Most kernels load a tensor of any dtype and go on in float32. A check in float64 would then find
rounding where the author promised nothing else. So such a function is checked as one that refuses
float64: at the example's own dtype, with tolerances that follow from it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.check.subject import Subject
from pullback.check.target import Target
from pullback.judge.example import Example, can_differ, tensors_in
from pullback.judge.reference import FINEST, PrecisionWatcher
from pullback.judge.run import ForwardRefusedError, Run

NOTE = "its kernels compute in float32 also where the inputs are float64, which was not demanded"
LITTLE, MUCH = 2.0**-30, 2.0**-6  # parts by which the inputs are moved: float32 sees the second


def is_single(subject: Subject) -> bool:
    """Whether outputs for float64 have the digits of float32, and no op that is seen rounds.

    On a GPU one may be seen: kernels give float32, which is converted after them.
    """
    given = subject.given
    dtypes = {given.args[i].dtype for i in given.differentiable}
    if not dtypes or torch.float64 in dtypes or torch.complex128 in dtypes:
        return False
    _ = subject.writes_inputs, subject.relations  # which call it in the example's own dtype
    try:
        moved = _moved(given, LITTLE)
        with PrecisionWatcher() as watcher:
            little = subject.run(moved)
        is_on_gpu = any(t.is_cuda for t in tensors_in(given.args))
        if not is_on_gpu and watcher.of(little.outputs) > FINEST:
            return False
        if not _is_coarse(little):
            return False
        return _differ(little, subject.run(_moved(given, MUCH)))
    except ForwardRefusedError:
        return False


def without_double(target: Target) -> Target:
    """The target, refusing float64 as one that has no kernel for it."""

    def call(*args: Any) -> Any:
        if any(t.dtype in (torch.float64, torch.complex128) for t in tensors_in(args)):
            raise TypeError("it has no kernel for float64")
        return target.call(*args)

    return replace(target, call=call)


def _moved(example: Example, part: float) -> Example:
    exact = example.double()
    for i in exact.differentiable:
        exact = exact.put(i, exact.args[i] * (1 + part), exact.label)
    return exact


def _is_coarse(run: Run) -> bool:
    """Whether each number of the outputs is one of float32."""
    found = [y.detach() for y in run.outputs if can_differ(y)]
    return bool(found) and all(_is_single(y) for y in found)


def _is_single(tensor: Tensor) -> bool:
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return torch.equal(parts, parts.float().to(parts.dtype))


def _differ(one: Run, two: Run) -> bool:
    """Whether the outputs follow the inputs at all: a step gives round numbers, too."""
    pairs = zip(one.outputs, two.outputs, strict=True)
    return any(can_differ(a) and not torch.equal(a, b) for a, b in pairs if a.shape == b.shape)
