"""The dtypes that a text serves: found by running the program, and the text, with others.

A cast that does nothing for the example leaves no op in its capture (`x.float()` in single
precision), so a text may lack it, and be wrong for other dtypes. What a program gives, and which
casts it makes, is seen by running it with its inputs in other dtypes. Where the text does
otherwise, the program is captured in those: the text of such a capture has the casts. If none is
right for all, the text says with a check for which dtypes it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pullback.capture.joint import CaptureInput, capture
from pullback.capture.tracing import CLOSURE, CONSTANT
from pullback.derive.size_checks import InputCheck, Tests, chosen_checks
from pullback.function.modes import DispatchMode
from pullback.graph.values import CASTS
from pullback.judge.comparison import Comparison, aside, modes_of
from pullback.judge.example import can_differ
from pullback.judge.observed import Call, observed
from pullback.judge.tensor_specs import tensor_spec_of
from pullback.judge.trial_rows import TrialRow
from pullback.judge.unchecked_kernels import is_unchecked

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}
_APART = (torch.float64, torch.bfloat16, torch.float16)
_HALF = (torch.bfloat16, torch.float16)

Casts = frozenset[tuple[torch.dtype, torch.dtype]]


def dtype_rows(comparison: Comparison) -> list[TrialRow]:
    """The example with its arguments in other dtypes: all in one, all apart, and each one alone."""
    captured, example = comparison.captured, comparison.rows[0]
    count = captured.argument_count
    own = [t.dtype if can_differ(t) else None for t in example.tensors[:count]]
    patterns = [[_like(dtype, other) for dtype in own] for other in FLOATS]
    if is_unchecked(captured):  # a kernel may go by one dtype in the memory of another
        return [_in_dtypes(example, pattern) for pattern in patterns if pattern != own]
    turns = itertools.cycle(_APART)
    patterns.append([_like(dtype, next(turns)) if dtype else None for dtype in own])
    for place, dtype in enumerate(own):
        if dtype is None:
            continue
        other = next(other for other in FLOATS if dtype not in (other, COMPLEX.get(other)))
        patterns.append([*own[:place], _like(dtype, other), *own[place + 1 :]])
    different = dict.fromkeys(tuple(pattern) for pattern in patterns if pattern != own)
    return [_in_dtypes(example, pattern) for pattern in different]


def _like(dtype: torch.dtype | None, other: torch.dtype) -> torch.dtype | None:
    """The dtype in the place of one: `other`, or for a complex one that of its parts."""
    if dtype is None or not dtype.is_complex:
        return other if dtype is not None else None
    return COMPLEX.get(other, dtype)


def _in_dtypes(row: TrialRow, dtypes: Sequence[torch.dtype | None]) -> TrialRow:
    pairs = zip(row.tensors, dtypes, strict=False)
    given = [t if dtype is None else t.to(dtype) for t, dtype in pairs]
    shown = ", ".join(str(t.dtype) for t in given)
    return replace(
        row,
        tensors=(*given, *row.tensors[len(given) :]),
        what=f"inputs of dtype {shown}",
        is_usual=not any(dtype in _HALF for dtype in dtypes),
        is_served=False,
    )


# ---- whether a text does what the program does ----


class _Noting(DispatchMode):
    """Notes from which dtype to which the numbers inside are cast."""

    def __init__(self) -> None:
        DispatchMode.__init__(self)
        self.found: set[tuple[torch.dtype, torch.dtype]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in CASTS and can_differ(args[0]) and can_differ(made):
            self.found.add((args[0].dtype, made.dtype))
        return made


def casts_of(comparison: Comparison, call: Call, row: TrialRow) -> Casts:
    """The casts that a call makes, forward and backward, besides those that change no dtype."""
    with aside(), _Noting() as noted:
        observed(call, row.tensors, comparison.wanted)
    return frozenset((old, new) for old, new in noted.found if old != new)


def is_alike(comparison: Comparison, call: Call, row: TrialRow) -> bool:
    """Whether `call` gives what the program gives for inputs in other dtypes.

    By numbers alone, a cast to single precision between two to half precision is hardly seen. So
    where all inputs are of one precision, the casts must be the same, too; between several,
    autograd makes more of its own.
    """
    casts = casts_of(comparison, comparison.of_arguments(comparison.program), row)
    roundings = {torch.finfo(t.dtype).eps for t in row.tensors if can_differ(t)}
    if len(roundings) == 1 and casts != casts_of(comparison, call, row):
        return False
    coarsest = max((torch.finfo(made).eps for _, made in casts), default=0.0)
    return comparison.agrees(call, row, coarsest)


def misled_by_dtypes(comparison: Comparison, call: Call) -> tuple[list[TrialRow], list[TrialRow]]:
    """Of the rows in other dtypes on which the program runs: where `call` is wrong, and right."""
    wrong, right = list[TrialRow](), list[TrialRow]()
    for row in dtype_rows(comparison):
        if comparison.expected(row) is not None:
            is_right = is_alike(comparison, call, row) and _has_same_constants(comparison, row)
            (right if is_right else wrong).append(row)
    return wrong, right


def _has_same_constants(comparison: Comparison, row: TrialRow) -> bool:
    """Whether what the program makes of numbers is of the same dtypes for the tensors of a row.

    `torch.tensor([0.1], dtype=x.dtype)` in single precision is not the nearest number in double.
    """
    known = _constant_dtypes(comparison)
    count = comparison.captured.argument_count
    if known.isdisjoint(t.dtype for t in comparison.rows[0].tensors[:count] if can_differ(t)):
        return True
    other = recaptured(comparison, row)
    return other is None or _constant_dtypes(other) == known


def _constant_dtypes(comparison: Comparison) -> set[torch.dtype]:
    inputs = comparison.captured.inputs
    return {one.tensor.dtype for one in inputs if one.kind == CONSTANT and one.tensor is not None}


# ---- captures in other dtypes, and checks ----


def recaptured(comparison: Comparison, row: TrialRow) -> Comparison | None:
    """The program captured with the tensors of a row, to compare others with it; None if it cannot.

    Its inputs are those of the first capture, in other dtypes.
    """
    captured = comparison.captured
    count = captured.argument_count
    try:
        with aside(), modes_of(captured):
            given = captured.fill(row.tensors[:count])
            needs = [one.needs for one in captured.inputs[:count]]
            found = capture(comparison.program, given, needs=needs)
    except Exception:  # of any kind: there is no such capture
        return None
    if list(map(_origin, found.inputs)) != list(map(_origin, captured.inputs)):
        return None
    pairs = zip(found.inputs, captured.inputs, strict=True)
    named = replace(found, inputs=tuple(replace(one, name=own.name) for one, own in pairs))
    specs = [tensor_spec_of(tensor) for tensor in row.tensors]
    return Comparison(named, comparison.program, specs, needs=comparison.wanted.needs)


def _origin(one: CaptureInput) -> tuple[str, int | None]:
    """Where an input comes from: a tensor from outside the program is itself."""
    return one.kind, id(one.tensor) if one.kind == CLOSURE else one.position


def needed_dtypes(
    comparison: Comparison,
    names: Sequence[str],
    wrong: list[TrialRow],
    right: Sequence[TrialRow],
) -> list[InputCheck]:
    """The dtypes of inputs without which a text is wrong: those of the example, and what is right.

    `names` are those of the inputs.
    """
    count, example = comparison.captured.argument_count, comparison.rows[0]
    dtypes = [t.dtype for t in example.tensors[:count]]
    found = list[str]()
    for place, (name, own) in enumerate(zip(names, dtypes, strict=False)):
        if not (own.is_floating_point or own.is_complex):
            continue
        served = {row.tensors[place].dtype for row in right}
        served -= {row.tensors[place].dtype for row in wrong}
        also = [f"{dtype}" for dtype in (*FLOATS, *COMPLEX.values()) if dtype in served - {own}]
        found.append(f"{name}.dtype == {own}")
        found += [f"{name}.dtype in ({', '.join([f'{own}', *also])})"] if also else []
        found += [
            f"{name}.dtype == {other}.dtype"
            for other, another in zip(names, dtypes[:place], strict=False)
            if another == own
        ]
    tests: Tests = {text: partial(InputCheck(text).holds, names) for text in found}
    return chosen_checks(tests, wrong, right)[0]
