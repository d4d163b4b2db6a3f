"""Replays the PyTorch ops of a call under autograd.

A C++ Function cannot be looked into from Python, and autograd stops at its node. But the ops that
its forward calls pass the dispatcher: they are recorded there, and run again on arguments that
require grad. What a custom kernel writes into memory is not recorded: the results then differ, and
the call is opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.function.isolation import seeded
from pullback.function.modes import DispatchMode
from pullback.judge.example import mapped, tensors_in
from pullback.judge.tolerances import REPLAYED, are_near

NATIVE = "torch::autograd::CppNode<"  # how the name of the node of a C++ Function begins
PLAIN = ("aten", "prims")  # ops whose derivatives are PyTorch's own


class OpaqueError(Exception):
    """The ops that a call ran do not determine what it computes."""


@dataclass(frozen=True, slots=True)
class _Step:
    op: Any
    args: Any
    kwargs: Any
    result: Any


class _Tape(DispatchMode):
    """Records each op that reaches the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[_Step] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.steps.append(_Step(func, args, kwargs, result))
        return result


def has_native_node(outputs: Iterable[Tensor]) -> bool:
    """Whether the backward of a C++ Function is in the graph of one of these."""
    ahead: list[Any] = [output.grad_fn for output in outputs]
    seen = set()
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        if node.name().startswith(NATIVE):
            return True
        seen.add(node)
        ahead += [after for after, _ in node.next_functions]
    return False


def replayed(call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What `call` gives, made by PyTorch's ops alone; raises `OpaqueError` where that differs."""
    plain = tuple(mapped(arg, Tensor.detach) for arg in args)
    known = {id(old): new for old, new in zip(tensors_in(plain), tensors_in(args), strict=True)}
    tape = _Tape()
    with torch.no_grad(), seeded(), tape:
        result = call(*plain)
    with torch.enable_grad(), seeded():
        for step in tape.steps:
            _run_again(step, known)
    again = mapped(result, lambda tensor: _of(tensor, known))
    for old, new in zip(tensors_in(result), tensors_in(again), strict=True):
        if not are_near(old, new, REPLAYED):
            raise OpaqueError("a kernel of its own computes an output")
    return again


def _run_again(step: _Step, known: dict[int, Tensor]) -> None:
    """Run one op on what its arguments have become, and note what its results have."""
    if getattr(step.op, "namespace", "") not in PLAIN:
        raise OpaqueError(f"`{step.op}` is no op of PyTorch")
    args, kwargs = mapped((step.args, step.kwargs), lambda t: known.get(id(t), t))
    result = step.op(*args, **kwargs)
    for old, new in zip(tensors_in(step.result), tensors_in(result), strict=True):
        known[id(old)] = new


def _of(tensor: Tensor, known: dict[int, Tensor]) -> Tensor:
    if id(tensor) not in known:
        raise OpaqueError("an output was made by no op")
    return known[id(tensor)]
