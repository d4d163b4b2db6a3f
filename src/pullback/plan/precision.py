"""How far gradients are from those of the program as written, in double precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.capture.trees import tensor_leaves
from pullback.capture.units import Program, Ref
from pullback.function.isolation import isolated

Gradients = tuple[Tensor | None, ...]


def exact_gradients(
    program: Program, args: Sequence[Any], cotangents: Sequence[Tensor]
) -> Gradients | None:
    """The gradients of the inputs, then of the tensors around, that need one: in float64.

    The units are those of the program as written; None if they do not run on doubles.
    """
    try:
        with isolated((), 0):
            values = {n: _double(t) for (n, _), t in _pairs(program, args)}
            values |= {c.number: _double(c.tensor) for c in program.closures}
            leaves = [tensor for tensor in values.values() if tensor.requires_grad]
            values = {n: _passed(tensor) for n, tensor in values.items()}
            for unit in program.units:
                unit.run(values)
            outputs = [values[o.number] for o in program.outputs if isinstance(o, Ref)]
            linked = [tensor for tensor in outputs if tensor.requires_grad]
            wide = [_wide(cotangent) for cotangent in cotangents]
            return torch.autograd.grad(linked, leaves, wide, allow_unused=True)
    except Exception:  # whatever a unit has against doubles
        return None


def _pairs(program: Program, args: Sequence[Any]) -> Any:
    return zip(program.inputs, tensor_leaves(tuple(args)), strict=True)


def _wide(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return tensor.detach().to(torch.complex128)
    return tensor.detach().double() if tensor.is_floating_point() else tensor.detach()


def _double(tensor: Tensor) -> Tensor:
    # A copy even of doubles, made here: only what is made here may be changed.
    return _wide(tensor).clone().requires_grad_(tensor.requires_grad)


def _passed(tensor: Tensor) -> Tensor:
    """What a program that changes its inputs may change: no leaf."""
    return tensor.clone() if tensor.requires_grad else tensor


def error_of(got: Gradients, exact: Gradients) -> float:
    """The largest distance of a gradient from the exact one, as a part of its length.

    Infinite where a number is not finite and the exact one is, or a gradient is not there.
    """
    return max((_distance(g, e) for g, e in zip(got, exact, strict=True)), default=0.0)


def _distance(got: Tensor | None, exact: Tensor | None) -> float:
    if exact is None:
        return 0.0 if got is None or not got.any() else math.inf
    if got is None:
        return math.inf if exact.any() else 0.0
    finite = exact.isfinite()
    difference = torch.where(finite, _wide(got) - exact, 0)
    length = torch.where(finite, exact, 0).norm().item()
    far = difference.norm().item()
    if math.isnan(far):
        return math.inf
    return far / length if length else (math.inf if far else 0.0)
