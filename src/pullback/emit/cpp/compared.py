"""Rows of inputs to compare with the program on, and what differs there, in words.

What is written is compared at inputs like those of the examples, at other sizes, at values of which
many are equal, and at zeros: outputs, which of them require grad, and gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.capture.closeness import all_close
from pullback.capture.fake import numbers_of, resized
from pullback.capture.trees import flatten
from pullback.emit.cpp.beside import Beside
from pullback.emit.cpp.observed import TOGETHER, Observed, Wanted, observed

SMALL = 16
"""Sizes beyond which the second size is a small one."""


@dataclass(frozen=True)
class Row:
    """Inputs for one comparison.

    `tensors` are those of the capture's inputs. `numbers` are other values of plain arguments, by
    their places. `may_refuse` says that what is written need not serve this row, if it says so.
    """

    label: str
    tensors: list[Tensor]
    numbers: dict[int, Any]
    may_refuse: bool


def rows_of(trial: Beside, *, is_double: bool, numbers: dict[int, Any]) -> Iterator[Row]:
    """The rows to compare on; in double precision but for the first one, if `is_double`."""
    shapes = [node.meta["val"].shape for node in trial.nodes]
    own = trial.row([numbers_of(shape) for shape in shapes])
    pairs = list(zip(shapes, trial.captured.inputs, strict=True))
    fixed = [shape for shape, one in pairs if one.tensor is not None]
    free = [shape for shape, one in pairs if one.tensor is None]
    grown = iter(resized(free, fixed, lambda n: n + 1 if n <= SMALL else 5))
    others = [next(grown) if o.tensor is None else numbers_of(s) for s, o in pairs]
    if own is not None:
        yield Row("inputs like the examples", own, {}, False)
    other = trial.row(others)
    if other is not None and others != [numbers_of(shape) for shape in shapes]:
        sizes = ", ".join(str(tuple(size)) for size in others)
        yield Row(f"inputs of the sizes {sizes}", _double(trial, other, is_double), {}, True)
    if own is None:
        return
    wide = _double(trial, own, is_double)
    yield Row("inputs of two values each", _moved(trial, wide, _tied), {}, False)
    yield Row("zeros", _moved(trial, wide, torch.zeros_like), {}, False)
    if numbers:
        yield Row("other numbers in the arguments", wide, numbers, True)


def _double(trial: Beside, row: list[Tensor], is_double: bool) -> list[Tensor]:
    return _moved(trial, row, lambda t: t.double()) if is_double else row


def _moved(trial: Beside, row: list[Tensor], move: Any) -> list[Tensor]:
    """`row` with each argument of a floating dtype made another."""
    return [
        move(t) if one.tensor is None and (t.is_floating_point() or t.is_complex()) else t
        for t, one in zip(row, trial.captured.inputs, strict=True)
    ]


def _tied(tensor: Tensor) -> Tensor:
    """A tensor with two of the values of another."""
    flat = tensor.flatten()
    if not flat.numel():
        return tensor
    numbers = flat.real if flat.is_complex() else flat
    low, high = flat[numbers.argmin()], flat[numbers.argmax()]
    return torch.where(torch.arange(len(flat), device=flat.device) % 3 == 0, low, high).reshape(
        tensor.shape
    )


# ---- the program ----


def wanted_of(trial: Beside, *, is_twice: bool) -> Wanted:
    """What is asked of every call."""
    inputs = trial.captured.inputs
    return Wanted(
        needs=tuple(one.needs for one in inputs),
        changed=tuple(place for place, _ in trial.captured.mutated),
        held=tuple(place for place, one in enumerate(inputs) if one.tensor is not None),
        is_twice=is_twice,
    )


def expected_of(trial: Beside, row: Row, wanted: Wanted) -> Observed | None:
    """What the program gives; None where it gives none, or not the same twice."""
    seen = [observed(lambda given: _program(trial, row, given), row.tensors, wanted)]
    if not seen[0].error:
        seen.append(observed(lambda given: _program(trial, row, given), row.tensors, wanted))
    elif wanted.is_twice:  # it may have no second derivative here
        return expected_of(trial, row, Wanted(wanted.needs, wanted.changed, wanted.held))
    if seen[0].error or difference(seen[1], seen[0]):
        return None
    return seen[0]


def _program(trial: Beside, row: Row, given: Sequence[Any]) -> list[Any]:
    pairs = zip(given, trial.captured.inputs, strict=True)
    own = [t for t, one in pairs if one.kind == "argument"]
    return list(flatten(trial.subject.run(own, row.numbers))[0])


# ---- what differs ----


def difference(found: Observed, expected: Observed) -> str:
    """The first thing in which two calls differ, in words; nothing where there is none."""
    if found.error:
        return f"it raises: {found.error}"
    if len(found.outputs) != len(expected.outputs):
        return f"{len(found.outputs)} outputs, where the program has {len(expected.outputs)}"
    for k, (a, b) in enumerate(zip(found.outputs, expected.outputs, strict=True)):
        if not all_close([a], [b]):
            return f"output {k}: {_told(a, b)}"
    for place in found.flags.keys() & expected.flags.keys():
        if found.flags[place] != expected.flags[place]:
            got, wanted = found.flags[place], expected.flags[place]
            return f"where input {place} alone requires grad, so do {got}, and not {wanted}"
    whole = expected.first.get(TOGETHER, [])
    for label, wanted_row in expected.first.items():
        for k, (a, b) in enumerate(zip(found.first.get(label, []), wanted_row, strict=False)):
            parts = (a, b) if label == TOGETHER else (_finite(a, whole[k]), _finite(b, whole[k]))
            if not all_close(parts[:1], parts[1:]):
                return f"gradient {k} of {label}: {_told(a, b)}"
    if expected.first.keys() != found.first.keys():
        return f"gradients of {list(found.first)}, and not of {list(expected.first)}"
    if expected.second is not None and found.second is not None:
        for k, (a, b) in enumerate(zip(found.second, expected.second, strict=True)):
            if not all_close([a], [b]):
                return f"second derivative {k}: {_told(a, b)}"
    return ""


def _finite(gradient: Any, whole: Any) -> Any:
    """The gradient of one output, but for where that of all outputs together is not finite.

    There one of them has an infinite slope. A node of several outputs multiplies that by the zeros
    of a cotangent that nobody gave; the ops of a program are not even run.
    """
    if not isinstance(gradient, Tensor) or not isinstance(whole, Tensor):
        return gradient
    if gradient.shape != whole.shape:
        return gradient
    return gradient.where(whole.isfinite(), torch.zeros_like(gradient))


def _told(a: Any, b: Any) -> str:
    """Two values that differ, where they do so most."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return f"{_kind(a)}, expected {_kind(b)}"
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{_kind(a)}, expected {_kind(b)}"
    apart = (a.detach() != b.detach()) & ~(a.isnan() & b.isnan())
    size = (
        (a.detach() - b.detach()).abs().nan_to_num(torch.inf, torch.inf) if apart.any() else apart
    )
    worst = int((size * apart).nan_to_num(torch.inf).flatten().argmax())
    got, wanted = a.detach().flatten()[worst].item(), b.detach().flatten()[worst].item()
    return f"{got!r} at flat index {worst}, expected {wanted!r}"


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{str(value.dtype).removeprefix('torch.')} of {tuple(value.shape)}"
