"""What pullback made beside what it was given: whether both compute the same.

Outputs, which of them require grad, the gradients for each cotangent alone and for all together,
and second derivatives, on rows of inputs that `trial_rows` draws. Every text is compared by this
before anyone gets it. The program is run with the modes that it was captured under, and neither
side leaves a trace: random states, modes and hooks around the caller stay as they are.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.closeness import (
    SMALL,
    HalfTheDigits,
    all_close,
    compared,
    is_number,
    largest,
)
from pullback.capture.fake import apart
from pullback.capture.indices import try_indices
from pullback.capture.joint import Capture
from pullback.capture.modes import autocast_as, autocast_off
from pullback.capture.patch import watching
from pullback.capture.trees import flatten
from pullback.capture.watch import Watcher
from pullback.derive.tensor_specs import TensorSpec
from pullback.derive.trial_rows import Row, size_rows, value_rows
from pullback.function.isolation import RandomState, seed_torch

SEED = 1

ALL = "all outputs"
LARGEST_TRIAL = 1 << 22
"""Elements of an input beyond which nothing is tried at sizes of a caller's own choice."""

Call = Callable[[Sequence[Tensor]], list[Any]]
"""Takes the tensors of a row, and gives the leaves of what is returned."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that is not the same: what, for which inputs, and both sides of it."""

    where: str
    what: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run: outputs, which of them require grad, and rows of gradients."""

    outputs: list[Any]
    is_live: list[bool]
    gradients: list[tuple[str, list[Tensor | None]]]


class Agreement:
    """A program with rows of inputs, to compare others with it.

    Law: a comparison that finds nothing has run the program and the other side on every row on
    which the program itself runs.
    """

    def __init__(
        self, captured: Capture, program: Callable[..., Any], likes: Sequence[TensorSpec]
    ) -> None:
        self.captured, self.program, self.likes = captured, program, likes
        self._expected: dict[tuple[int, bool], Run | None] = {}

    @functools.cached_property
    def rows(self) -> list[Row]:
        """The values that are tried, at the sizes of the example."""
        return value_rows(self.captured, self.likes)

    @functools.cached_property
    def sizes(self) -> list[Row]:
        """The other sizes that are tried."""
        return size_rows(self.captured, self.likes)

    # ---- both sides ----

    def of_function(self, function: Callable[..., Any], held: Collection[str] = ()) -> Call:
        """A text: it takes the inputs of the capture but for constants and those that it has."""

        def call(row: Sequence[Tensor]) -> list[Any]:
            pairs = zip(row, self.captured.inputs, strict=True)
            given = [t for t, one in pairs if one.is_given and one.name not in held]
            with autocast_off(), _default_dtype(torch.float32):
                leaves, spec = flatten(function(*given))
            if spec.is_leaf() != self.captured.out_spec.is_leaf():
                raise TypeError(f"{'one value' if spec.is_leaf() else 'a row'} is returned")
            return leaves

        return call

    def of_arguments(self, function: Callable[..., Any]) -> Call:
        """The program, or another that takes its arguments: plain values besides the tensors."""
        captured = self.captured

        def call(row: Sequence[Tensor]) -> list[Any]:
            own = [t for t, one in zip(row, captured.inputs, strict=True) if one.tensor is None]
            with autocast_as(captured.autocast), _default_dtype(captured.default_dtype):
                leaves = flatten(function(*captured.fill(own)))[0]
            kept = [o.is_written for o in captured.outputs if o.returned]
            same = len(kept) == len(leaves)
            return (
                [leaf for leaf, flag in zip(leaves, kept, strict=False) if flag] if same else leaves
            )

        return call

    # ---- first order ----

    def difference(self, call: Call) -> Difference | None:
        """The first thing in which `call` differs from the program, or None.

        In double precision, where rounding hides less, if the program takes that. A program may
        read the dtype of its inputs, which is then a part of the text: so what differs there only
        is looked at in the example's own dtype.
        """
        rows = [*self.rows, *(row for row in self.sizes if row.is_served)]
        if all(self._expect(row, is_wide=False) is None for row in rows):
            return Difference("the program", "inputs like the examples", "a result", "errors alone")
        found = self._first(call, self.rows[:1] if self.is_wide else rows, is_wide=False)
        if found is None and self.is_wide and self._first(call, rows, is_wide=True) is not None:
            found = self._first(call, rows, is_wide=False)
        return found

    def misled(self, call: Call) -> tuple[list[Row], list[Row]]:
        """Rows of sizes that the capture does not serve: where `call` is wrong, and right.

        Wrong is another result than the program's, and for sizes that somebody may mean also an
        error where the program has none.
        """
        wrong, right = list[Row](), list[Row]()
        for row in self.sizes:
            expected = None if row.is_served else self._expect(row, is_wide=False)
            if expected is None:
                continue
            got = self._run(call, row)
            if got is not None:
                (right if self._apart(expected, got, row) is None else wrong).append(row)
            elif not row.is_odd or self._is_wrong_forward(call, expected, row):
                wrong.append(row)
        return wrong, right

    def _is_wrong_forward(self, call: Call, expected: Run, row: Row) -> bool:
        """Whether the outputs are wrong where backward raises."""
        with _aside(), torch.no_grad():
            try:
                outputs = call(_leaves(row.tensors, self.captured)[0])
            except Exception:
                return False
        return not all_close(outputs, expected.outputs)

    @functools.cached_property
    def _turned(self) -> Row:
        """The example with its dimensions in the other order in memory."""
        tensors = tuple(
            t if one.tensor is not None else _turned_round(t)
            for t, one in zip(self.rows[0].tensors, self.captured.inputs, strict=True)
        )
        return replace(self.rows[0], tensors=tensors, what="inputs with other strides")

    def is_same_strided(self, call: Call) -> bool:
        """Whether `call` is the program for inputs with other strides, too."""
        expected = self._expect(self._turned, is_wide=False)
        if expected is None:
            return True
        got = self._run(call, self._turned)
        return got is not None and self._apart(expected, got, self._turned) is None

    @functools.cached_property
    def links(self) -> list[frozenset[int]]:
        """For each output, the places of the inputs that give it a history, each by itself.

        By running the program with one input at a time that requires grad: ops alone do not tell,
        since a capture drops `detach`. Empty where a tensor from around brings a history along.
        """
        inputs = self.captured.inputs
        places = [place for place, one in enumerate(inputs) if one.needs]
        if any(inputs[place].tensor is not None for place in places):
            return []
        rows = [self._live(place) for place in places]
        columns = zip(*rows, strict=True) if all(row is not None for row in rows) else ()
        return [
            frozenset(place for place, is_live in zip(places, column, strict=True) if is_live)
            for column in columns
        ]

    def _live(self, place: int) -> list[bool] | None:
        """Which outputs require grad where one input alone does; None if the program raises."""
        changed = {position for position, _ in self.captured.mutated}
        row = enumerate(self.rows[0].tensors)
        with _aside():
            try:
                own = [t.detach().clone().requires_grad_(i == place) for i, t in row]
                given = [t.clone() if i in changed else t for i, t in enumerate(own)]
                outputs = self.of_arguments(self.program)(given)
            except Exception:
                return None
        return [isinstance(y, Tensor) and y.requires_grad for y in outputs]

    @functools.cached_property
    def is_wide(self) -> bool:
        """Whether the inputs have room for more digits, and the program takes them with those."""
        row = self.rows[0]
        pairs = zip(row.tensors, row.widened(self.captured).tensors, strict=True)
        is_narrow = any(a.dtype != b.dtype for a, b in pairs)
        return is_narrow and self._expect(row, is_wide=True) is not None

    def _first(self, call: Call, rows: Sequence[Row], *, is_wide: bool) -> Difference | None:
        for row in rows:
            expected = self._expect(row, is_wide=is_wide)
            if expected is None:
                continue
            given = row.widened(self.captured) if is_wide else row
            try:
                with _aside():
                    got = _run(call, given.tensors, self.captured)
            except Exception as error:
                said = (str(error).splitlines() or [""])[0]
                return Difference(
                    "the call", row.what, "a result", f"{type(error).__name__}: {said}"
                )
            found = self._apart(expected, got, row)
            if found is not None:
                return found
        return None

    def _expect(self, row: Row, *, is_wide: bool) -> Run | None:
        """What the program gives for a row; None where it raises."""
        key = id(row), is_wide
        if key not in self._expected:
            given = row.widened(self.captured) if is_wide else row
            self._expected[key] = self._run(self.of_arguments(self.program), given, is_program=True)
        return self._expected[key]

    def _run(self, call: Call, row: Row, *, is_program: bool = False) -> Run | None:
        """The run of one side, or None if it raises."""
        with _aside():
            try:
                if is_program and row not in self.rows:
                    pairs = zip(row.tensors, self.captured.inputs, strict=True)
                    own = [t for t, one in pairs if one.tensor is None]
                    try_indices(self.program, self.captured.fill(own))
                return _run(call, row.tensors, self.captured)
            except Exception:  # any: an op may refuse these inputs in any way
                return None

    def _apart(self, expected: Run, got: Run, row: Row) -> Difference | None:
        """The first difference of two runs."""
        if len(expected.outputs) != len(got.outputs):
            counts = (f"{len(one.outputs)} outputs" for one in (expected, got))
            return Difference("what is returned", row.what, *counts)
        if expected.is_live != got.is_live:
            place = [a == b for a, b in zip(expected.is_live, got.is_live, strict=True)].index(
                False
            )
            sides = (f"requires_grad={one.is_live[place]}" for one in (expected, got))
            return Difference(f"output {place}", row.what, *sides)
        names = [one.name for one in self.captured.inputs if one.needs]
        outputs = zip(expected.outputs, got.outputs, strict=True)
        pairs = [(f"output {i}", *p) for i, p in enumerate(outputs)]
        for (which, theirs), (_, mine) in zip(expected.gradients, got.gradients, strict=True):
            if row.has_nan or (which != ALL and not row.is_usual):
                continue
            rows = zip(names, theirs, mine, strict=True)
            pairs += [(f"the gradient of `{name}` by {which}", a, b) for name, a, b in rows]
        floor = SMALL * max([1.0, *(largest(a) for _, a, _ in pairs)])
        allowed = HalfTheDigits(floor, is_ignored=not row.is_usual)
        for where, a, b in pairs:
            found = compared(where, b, _spread(a, b) if row.has_nan else a, allowed)
            if found is not None:
                at = f" at {found.at}" if found.at else ""
                return Difference(where, row.what, f"{found.expected}{at}", f"{found.got}{at}")
        return None

    # ---- second order ----

    def is_same_twice(self, call: Call, *, may_raise: bool = False) -> bool:
        """Whether the second derivatives of `call` are those of the program, as far as it has any.

        Where the program has none, they are not the same if somebody wrote a part of its backward,
        who may have meant so; else it is an op that lacks a formula. Where `call` has none, they
        are the same only if it `may_raise` as the program does.
        """
        rows = [row for row in (*self.rows, *self.sizes[:3]) if row.is_usual and not row.has_nan]
        served = [row for row in rows if row.is_served]
        known = [row for row in served if self._expect(row, is_wide=self.is_wide) is not None]
        return all(self._is_same_twice(call, row, may_raise) for row in known)

    def _is_same_twice(self, call: Call, row: Row, may_raise: bool) -> bool:
        mine = self._twice(call, row)
        if mine is None and not may_raise:
            return False
        theirs = self._twice(self.of_arguments(self.program), row)
        if mine is None or theirs is None:
            return theirs is None and (mine is None or not self.captured.is_handwritten)
        floor = SMALL * max([1.0, *map(largest, theirs)])
        return all_close(mine, theirs, HalfTheDigits(floor, is_ignored=True))

    def _twice(self, call: Call, row: Row) -> list[Tensor | None] | None:
        """The second derivatives of one side, or None if it raises."""
        given = row.widened(self.captured) if self.is_wide else row
        with _aside():
            try:
                leaves, wanted = _leaves(given.tensors, self.captured)
                return pulled_twice(lambda: call(leaves), wanted)
            except Exception:  # of any kind: there is no second derivative
                return None


# ---- running ----


def _turned_round(tensor: Tensor) -> Tensor:
    """The same numbers, with the dimensions in memory in the other order."""
    order = list(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


@contextmanager
def _aside() -> Iterator[None]:
    """Gradients are recorded; nobody around is told, warned, or finds other random numbers."""
    before = RandomState(())
    try:
        with apart(Watcher), watching(None), torch.inference_mode(False), torch.enable_grad():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                before.seed(SEED)
                yield
    finally:
        before.restore()


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _leaves(row: Sequence[Tensor], captured: Capture) -> tuple[list[Tensor], list[Tensor]]:
    """What a call is given, and the tensors that it is differentiated by.

    A leaf cannot be changed in place; what is made of it can.
    """
    pairs = list(zip(row, captured.inputs, strict=True))
    own = [t.detach().clone().requires_grad_(i.needs) if i.tensor is None else t for t, i in pairs]
    wanted = [t for t, i in zip(own, captured.inputs, strict=True) if i.needs]
    changed = {place for place, _ in captured.mutated}
    return [t.clone() if place in changed else t for place, t in enumerate(own)], wanted


def _run(call: Call, row: Sequence[Tensor], captured: Capture) -> Run:
    given, wanted = _leaves(row, captured)
    seed_torch(SEED)
    outputs = call(given)
    live = [(i, y) for i, y in enumerate(outputs) if isinstance(y, Tensor) and y.requires_grad]
    values = [y.detach().clone() if isinstance(y, Tensor) else y for y in outputs]
    sets = [live, *([one] for one in live if len(live) > 1)] if wanted else []
    gradients = list[tuple[str, list[Tensor | None]]]()
    for some in (s for s in sets if s):
        cotangents = [random_like(y, 2 + i) for i, y in some]
        pulled = torch.autograd.grad(
            [y for _, y in some], wanted, cotangents, retain_graph=True, allow_unused=True
        )
        which = f"output {some[0][0]} alone" if len(some) < len(live) else ALL
        gradients.append((which, list(pulled)))
    return Run(values, [isinstance(y, Tensor) and y.requires_grad for y in outputs], gradients)


def pulled_twice(
    call: Callable[[], Sequence[Any]], wanted: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients of gradients, by the tensors `wanted` and by the cotangents."""
    seed_torch(SEED)
    outputs = [y for y in call() if isinstance(y, Tensor) and y.requires_grad]
    cotangents = [random_like(y, 2 + i).requires_grad_() for i, y in enumerate(outputs)]
    if not outputs or not wanted:
        return [None] * (len(wanted) + len(cotangents))
    first = torch.autograd.grad(outputs, wanted, cotangents, create_graph=True, allow_unused=True)
    total = [(g * random_like(g, 20 + i)).sum().real for i, g in enumerate(first) if g is not None]
    smooth = [part for part in total if part.requires_grad]
    if not smooth:
        return [None] * (len(wanted) + len(cotangents))
    return list(
        torch.autograd.grad(sum(smooth), [*wanted, *cotangents], allow_unused=True)  # type: ignore[arg-type]
    )


# ---- values ----


def random_like(like: Tensor, seed: int) -> Tensor:
    """A tensor of positive numbers of the kind of another."""
    generator = torch.Generator().manual_seed(seed)
    is_complex = like.is_complex()
    shape = (*like.shape, 2) if is_complex else like.shape
    row = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.25
    row = torch.view_as_complex(row) if is_complex else row
    return row.to(device=like.device, dtype=like.dtype)


def _spread(expected: Any, got: Any) -> Any:
    """`expected`, with what is not finite in `got` in its place: NaN may spread, not vanish."""
    if not is_number(got) or not is_number(expected):
        return expected
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return expected
    return torch.where(got.isfinite(), expected, got)
