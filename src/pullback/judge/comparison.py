"""Whether a text that pullback wrote computes what the program computes.

Outputs, which of them require grad, the gradients for each cotangent alone and for all together,
and second derivatives (`observed`), on rows of inputs (`trial_rows`). Every text is compared by
this before anyone gets it, in Python and in C++: the caller says how the text is called. The
program is run with the modes that it was captured under, and neither side leaves a trace: random
states, modes and hooks around the caller stay as they are.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.indices import try_indices
from pullback.capture.joint import Capture
from pullback.capture.modes import autocast_as, autocast_off
from pullback.capture.trees import flatten
from pullback.capture.watch import shielded
from pullback.function.isolation import drawing_from, seed_torch
from pullback.graph.parts import calls
from pullback.judge.closeness import (
    HalfTheDigits,
    Measured,
    all_close,
    largest_number,
    roundings,
)
from pullback.judge.example import can_differ
from pullback.judge.observed import (
    SEED,
    Call,
    Observed,
    Wanted,
    live_alone,
    observed,
    second_derivatives,
)
from pullback.judge.sums import elements_in, longest_sum
from pullback.judge.tensor_specs import TensorSpec
from pullback.judge.text_difference import TextDifference, first_difference
from pullback.judge.tolerances import SMALL
from pullback.judge.trial_rows import TrialRow, rank_rows, size_rows, value_rows


class Comparison:
    """A program with rows of inputs, to compare others with it.

    `needs` says of the inputs whether their gradients are compared; by default all that exist are.

    Guarantee: a comparison that finds nothing has run the program and the other side on every row
    on which the program itself runs. Where it `is_narrow`, that is in the dtypes of the example.
    """

    def __init__(
        self,
        captured: Capture,
        program: Callable[..., Any],
        specs: Sequence[TensorSpec],
        *,
        is_narrow: bool = False,
        needs: Sequence[bool] | None = None,
    ) -> None:
        self.captured, self.program, self.specs = captured, program, specs
        self.is_narrow = is_narrow
        self.wanted = Wanted(
            needs=tuple(one.needs for one in captured.inputs) if needs is None else (*needs,),
            changed=tuple(place for place, _ in captured.mutated),
            held=tuple(i for i, one in enumerate(captured.inputs) if one.tensor is not None),
        )
        self._expected: dict[tuple[TrialRow, bool, Wanted], Observed] = {}

    @functools.cached_property
    def rows(self) -> list[TrialRow]:
        """The values that are tried, at the sizes of the example."""
        return value_rows(self.captured, self.specs)

    @functools.cached_property
    def sizes(self) -> list[TrialRow]:
        """The other sizes that are tried."""
        return size_rows(self.captured, self.specs)

    @functools.cached_property
    def ranks(self) -> list[TrialRow]:
        """The other numbers of dimensions that are tried."""
        return rank_rows(self.captured, self.specs)

    # ---- both sides ----

    def of_function(self, function: Callable[..., Any], held: Collection[str] = ()) -> Call:
        """A text: it takes the inputs of the capture but for constants and those that it has."""

        def call(row: Sequence[Tensor]) -> list[Any]:
            pairs = zip(row, self.captured.inputs, strict=True)
            given = [t for t, one in pairs if one.is_given and one.name not in held]
            seed_torch(SEED)
            with autocast_off(), _default_dtype(torch.float32):
                leaves, spec = flatten(function(*given))
            if spec.is_leaf() != self.captured.out_spec.is_leaf():
                raise TypeError(f"{'one value' if spec.is_leaf() else 'a row'} is returned")
            return leaves

        return call

    def of_arguments(
        self, function: Callable[..., Any], numbers: Mapping[int, Any] | None = None
    ) -> Call:
        """The program, or another that takes its arguments: plain values besides the tensors.

        `numbers` are other plain values, by their places.
        """
        captured = self.captured

        def call(row: Sequence[Tensor]) -> list[Any]:
            arguments = list(captured.fill(row[: captured.argument_count]))
            for place, value in (numbers or {}).items():
                arguments[place] = value
            seed_torch(SEED)
            with modes_of(captured):
                leaves = flatten(function(*arguments))[0]
            kept = [o.is_written for o in captured.outputs if o.returned]
            same = len(kept) == len(leaves)
            return (
                [leaf for leaf, flag in zip(leaves, kept, strict=False) if flag] if same else leaves
            )

        return call

    def expected(
        self, row: TrialRow, *, is_wide: bool = False, wanted: Wanted | None = None
    ) -> Observed | None:
        """What the program gives for a row, in double precision if `is_wide`; None if it raises."""
        key = row, is_wide, wanted or self.wanted
        if key not in self._expected:
            given = row.widened(self.captured) if is_wide else row
            self._expected[key] = self._program(given, key[2])
        found = self._expected[key]
        return None if found.error else found

    def repeated(self, row: TrialRow, wanted: Wanted) -> Observed | None:
        """What the program gives where that is the same twice.

        Without second derivatives, where it has none.
        """
        found = self.expected(row, wanted=wanted)
        if found is None:
            once = replace(wanted, is_twice=False)
            return self.repeated(row, once) if wanted.is_twice else None
        return None if self.apart(found, self._program(row, wanted), row) else found

    def _program(self, row: TrialRow, wanted: Wanted) -> Observed:
        call = self.of_arguments(self.program, row.numbers)

        def tried(given: list[Tensor]) -> Sequence[Any]:
            if row.is_resized:
                own = given[: self.captured.argument_count]
                try_indices(self.program, self.captured.fill(own))
            return call(given)

        return self.observe(tried, row, wanted)

    def observe(self, call: Call, row: TrialRow, wanted: Wanted | None = None) -> Observed:
        """What another side gives for a row."""
        with aside():
            return observed(call, row.tensors, wanted or self.wanted)

    def apart(
        self, expected: Observed, found: Observed, row: TrialRow, eps: float = 0.0
    ) -> TextDifference | None:
        """The first difference of what two sides gave for a row.

        `eps` is the rounding of a dtype that the program is known to cast to for this row.
        """
        return first_difference(
            expected, found, row, self._names, eps=max(eps, self._rounding(row))
        )

    def _rounding(self, row: TrialRow) -> float:
        """The coarsest rounding of a row, where numbers that are kept finer go through it.

        By the dtypes of its tensors, and those of the graph that the inputs do not bring along.
        """
        joint = self.captured.joint
        given = {torch.finfo(t.dtype).eps for t in row.tensors if can_differ(t)}
        found = given | (roundings(joint.graph.nodes) - roundings(joint.inputs))
        return max(found) if len(found) > 1 else 0.0

    def measurably_apart(
        self, expected: Observed, found: Observed, row: TrialRow
    ) -> TextDifference | None:
        """The same for a side that computes by the same formulas, in other steps (`Measured`)."""
        return first_difference(expected, found, row, self._names, RowMeasure(self, row))

    @property
    def _names(self) -> list[str]:
        """The names of the inputs whose gradients are compared."""
        pairs = zip(self.captured.inputs, self.wanted.needs, strict=True)
        return [one.name for one, need in pairs if need]

    # ---- first order ----

    def difference(self, call: Call) -> TextDifference | None:
        """The first thing in which `call` differs from the program, or None.

        In double precision, where rounding hides less, if the program takes that. A program may
        read the dtype of its inputs, which is then a part of the text: so what differs there only
        is looked at in the example's own dtype.
        """
        rows = [*self.rows, *(row for row in self.sizes if row.is_served)]
        if all(self.expected(row) is None for row in rows):
            return TextDifference(
                "the program", "inputs like the examples", "a result", "errors alone"
            )
        found = self._first(call, self.rows[:1] if self.is_wide else rows, is_wide=False)
        if found is None and self.is_wide and self._first(call, rows, is_wide=True) is not None:
            found = self._first(call, rows, is_wide=False)
        return found

    def _first(
        self, call: Call, rows: Sequence[TrialRow], *, is_wide: bool
    ) -> TextDifference | None:
        for row in rows:
            expected = self.expected(row, is_wide=is_wide)
            if expected is not None:
                given = row.widened(self.captured) if is_wide else row
                found = self.apart(expected, self.observe(call, given), row)
                if found is not None:
                    return found
        return None

    def agrees(self, call: Call, row: TrialRow, eps: float = 0.0) -> bool:
        """Whether the program runs on a row, and `call` gives the same; `eps` as in `apart`."""
        expected = self.expected(row)
        return expected is not None and not self.apart(expected, self.observe(call, row), row, eps)

    def misled(self, call: Call, rows: Sequence[TrialRow]) -> tuple[list[TrialRow], list[TrialRow]]:
        """Of rows that the capture does not serve, those where `call` is wrong, and right.

        Wrong is another result than the program's, and for likely sizes also an
        error where the program has none.
        """
        wrong, right = list[TrialRow](), list[TrialRow]()
        for row in rows:
            expected = None if row.is_served else self.expected(row)
            if expected is None:
                continue
            got = self.observe(call, row)
            if not got.error:
                (right if self.apart(expected, got, row) is None else wrong).append(row)
            elif not row.is_odd or (got.outputs and not all_close(got.outputs, expected.outputs)):
                wrong.append(row)  # also where forward is wrong before backward raises
        return wrong, right

    @functools.cached_property
    def _turned(self) -> TrialRow:
        """The example with its dimensions in the other order in memory."""
        tensors = tuple(
            t if one.tensor is not None else _turned_round(t)
            for t, one in zip(self.rows[0].tensors, self.captured.inputs, strict=True)
        )
        return replace(self.rows[0], tensors=tensors, what="inputs with other strides")

    def is_same_strided(self, call: Call) -> bool:
        """Whether `call` is the program for inputs with other strides, too."""
        return self.expected(self._turned) is None or self.agrees(call, self._turned)

    @functools.cached_property
    def links(self) -> list[frozenset[int]]:
        """For each output, the places of the inputs that give it a history, each by itself.

        By running the program with one input at a time that requires grad: ops do not show it,
        since a capture drops `detach`. Empty where a tensor from outside brings a history along.
        """
        places = [place for place, need in enumerate(self.wanted.needs) if need]
        rows = [self.live_alone(place) for place in places]
        columns = zip(*rows, strict=True) if all(row is not None for row in rows) else ()
        return [
            frozenset(place for place, is_live in zip(places, column, strict=True) if is_live)
            for column in columns
        ]

    def live_alone(self, place: int) -> list[bool] | None:
        """Which outputs require grad where one input alone does; None if that cannot be seen."""
        if any(self.wanted.needs[held] for held in self.wanted.held):
            return None
        call = self.of_arguments(self.program)
        with aside():
            try:
                return live_alone(call, self.rows[0].tensors, self.wanted, place)
            except Exception:  # it does not run with that one alone
                return None

    @functools.cached_property
    def is_wide(self) -> bool:
        """Whether the inputs have room for more digits, and the program takes them with those."""
        if self.is_narrow:
            return False
        row = self.rows[0]
        pairs = zip(row.tensors, row.widened(self.captured).tensors, strict=True)
        is_narrow = any(a.dtype != b.dtype for a, b in pairs)
        return is_narrow and self.expected(row, is_wide=True) is not None

    # ---- second order ----

    def is_same_twice(self, call: Call, *, may_raise: bool = False) -> bool:
        """Whether the second derivatives of `call` are those of the program, as far as it has any.

        Where the program has none, they are not the same if a part of its backward is hand-written,
        which may be intended; else it is an op that lacks a formula. Where `call` has none, they
        are the same only if it `may_raise` as the program does.
        """
        rows = [row for row in (*self.rows, *self.sizes[:3]) if row.is_usual and not row.has_nan]
        served = [row for row in rows if row.is_served]
        known = [row for row in served if self.expected(row, is_wide=self.is_wide) is not None]
        return all(self._is_same_twice(call, row, may_raise) for row in known)

    def _is_same_twice(self, call: Call, row: TrialRow, may_raise: bool) -> bool:
        given = row.widened(self.captured) if self.is_wide else row
        mine = self.twice(call, given)
        if mine is None and not may_raise:
            return False
        theirs = self.twice(self.of_arguments(self.program), given)
        if mine is None or theirs is None:
            return theirs is None and (mine is None or not self.captured.is_handwritten)
        floor = SMALL * max([1.0, *map(largest_number, theirs)])
        return all_close(
            mine, theirs, HalfTheDigits(floor, is_ignored=True, eps=self._rounding(row))
        )

    def twice(self, call: Call, row: TrialRow) -> list[Tensor | None] | None:
        """The second derivatives of one side, or None if it raises."""
        with aside():
            try:
                return second_derivatives(call, row.tensors, self.wanted)
            except Exception:  # of any kind: there is no second derivative
                return None


# ---- how far apart ----


class RowMeasure:
    """What is known of the results of a program on a row besides what it gives there."""

    def __init__(self, comparison: Comparison, row: TrialRow) -> None:
        self._comparison, self._row = comparison, row
        self._graph = comparison.captured.joint.graph

    def allowed(self, result: TextDifference) -> Measured:
        """How far another side may be from one of its results."""
        return Measured(
            lambda: None if self._exact is None else result.of(self._exact),
            lambda: [result.of(one) for one in self._near],
            self._terms,
            self._steps,
        )

    @functools.cached_property
    def _exact(self) -> Observed | None:
        return self._comparison.expected(self._row, is_wide=True)

    @functools.cached_property
    def _near(self) -> list[Observed]:
        rows = (self._row.nudged(self._comparison.captured, sign) for sign in (1, -1))
        found = (self._comparison.expected(row) for row in rows)
        return [one for one in found if one is not None]

    @functools.cached_property
    def _terms(self) -> int:
        return longest_sum(elements_in(self._graph, self._row.tensors))

    @functools.cached_property
    def _steps(self) -> int:
        return max(1, sum(1 for _ in calls(self._graph)))


# ---- running ----


def _turned_round(tensor: Tensor) -> Tensor:
    """The same numbers, with the dimensions in memory in the other order."""
    order = list(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


@contextmanager
def aside() -> Iterator[None]:
    """Record gradients without effect outside: no watcher, warning or random state sees it."""
    with drawing_from(SEED), shielded(), autocast_off(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def modes_of(captured: Capture) -> Iterator[None]:
    """The modes that a program was captured under."""
    with autocast_as(captured.autocast), _default_dtype(captured.default_dtype):
        yield


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
