"""The source of the user's class with comments on what it saves, if it does what the class does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.trees import tensor_leaves
from pullback.derive.source import loaded
from pullback.emit.python.own_source import OwnSource, own_source
from pullback.emit.subject import EmitSubject
from pullback.function.isolation import keeping_random_state
from pullback.function.unwritten import listen

WHY = {
    "input": "an input, which costs nothing to keep",
    "output": "an output, which the caller keeps anyway",
    "other": "computed in forward",
}


def own_text(subject: EmitSubject) -> OwnSource | None:
    """The text of the user's class, what it saves explained; None where it does not stand alone.

    It is run beside the class: outputs, gradients and second derivatives must be the same, or be
    refused by both.
    """
    own = own_source(subject.function)
    if own is None:
        return None
    cls = _loaded(own, subject.name)
    if cls is None or not _agree(subject, cls):
        return None
    *before, last = own.statements
    return replace(own, statements=(*before, "\n".join([*_saved(subject, own), last])))


def _loaded(own: OwnSource, name: str) -> Any:
    """The class that the text makes, or None."""
    try:
        return loaded("\n\n".join([*own.imports, "import torch", *own.statements])).get(name)
    except Exception:  # it needs something that is not there
        return None


def _agree(subject: EmitSubject, cls: Any) -> bool:
    """Whether the class and that of its text give the same, up to second derivatives."""
    comparison = subject.comparison
    call = comparison.of_arguments(cls.apply)
    return comparison.difference(call) is None and comparison.is_same_twice(call, may_raise=True)


# ---- what is saved ----


def _saved(subject: EmitSubject, own: OwnSource) -> list[str]:
    """Comment lines that say what the class saves, and why that is cheap or not."""
    kinds = _kinds(subject)
    if kinds is None:
        return []
    names = (
        own.saved if len(own.saved) == len(kinds) else [f"tensor {i}" for i in range(len(kinds))]
    )
    width = max(map(len, names), default=0)
    rows = [f"#     {name:<{width}}  {WHY[kind]}" for name, kind in zip(names, kinds, strict=True)]
    return ["# Saved for backward:", *(rows or ["#     nothing"])]


def _kinds(subject: EmitSubject) -> list[str] | None:
    """For each tensor that the class saves, what it is; None where that cannot be seen."""
    inputs = [x.requires_grad_(x.is_floating_point()) for x in subject.tensors()]
    try:
        with torch.no_grad(), keeping_random_state():
            output, ctx = listen(subject.function, subject.captured.fill(inputs))
    except Exception:  # a class that looks closely at its context
        return None
    return [_kind(one, inputs, tensor_leaves(output)) for one in ctx._pb_saved if one is not None]


def _kind(tensor: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    if any(tensor is one for one in inputs):
        return "input"
    return "output" if any(tensor is one for one in outputs) else "other"
