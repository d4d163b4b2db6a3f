"""Which inputs beyond the examples the graphs of a subject serve, found by trying.

A capture holds for the dtypes of its examples, and takes sizes of 0 and 1 for special: it cannot
know what the program would have done there. Differentiating backward again is right only where
nothing that the capture dropped (`detach`, a hand-written rule inside another) matters to it. So
each of these is tried beside the program itself: what agrees is allowed, what does not is refused
by the emitted file with an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from pullback.capture.decided import decided
from pullback.capture.fake import numbers_of, size_with
from pullback.derive.dtypes import is_alike
from pullback.derive.recipe import Parts
from pullback.emit.cpp.shadow import shadow_of, with_dtype
from pullback.emit.subject import EmitSubject
from pullback.graph.cost import is_random
from pullback.graph.cut_problem import ancestors
from pullback.graph.values import is_smooth
from pullback.judge.closeness import all_close
from pullback.judge.trial_rows import TrialRow, drawn_row

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTERMEDIATE = "backward reads intermediates, so there is no second derivative (create_graph=True)"
DIFFERS = "there is no second derivative (create_graph=True)"

SHAPES = (
    ((),),
    ((3,), (1,), (0,)),
    ((2, 3), (1, 3), (3, 1), (2, 0)),
    ((2, 3, 4), (1, 1, 2)),
    ((2, 1, 3, 2), (2, 3, 2, 4)),
)
"""Shapes of each rank that a program on tensors of one shape is tried with."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What the emitted file allows.

    `least` is for each symbol the smallest size that it may have. `rank` is the smallest number of
    dimensions, where any number from there on will do, and any sizes, the same for all inputs.
    `dtypes` are those that stand for the one floating dtype of the examples, itself included; empty
    where there is not one alone. `is_twice` says whether backward may be differentiated, `refusal`
    why not. `sources` are for each output the places of the inputs that give it a history: it
    requires grad where one of these does.
    """

    least: dict[str, int]
    rank: int | None
    dtypes: tuple[torch.dtype, ...]
    is_twice: bool
    refusal: str
    sources: tuple[frozenset[int], ...]


def reach_of(subject: EmitSubject, parts: Parts) -> Reach:
    """Try what the graphs `parts` of `subject` can do."""
    trial = _Trial(subject, parts)
    rank = trial.rank()
    least = {} if rank is not None else {str(s): trial.least(s) for s in trial.hints}
    dtypes = tuple(trial.dtypes())
    again, refusal = trial.second()
    return Reach(least, rank, dtypes, again, refusal, tuple(trial.sources()))


def is_twice(subject: EmitSubject, parts: Parts) -> bool:
    """Whether a backward made of `parts` may be differentiated."""
    return _Trial(subject, parts).second()[0]


def runs_alike(subject: EmitSubject, other: EmitSubject) -> bool:
    """Whether the programs of two subjects run, and give the same for inputs like the examples."""
    row = _example(subject)
    call = other.comparison.of_arguments(other.call)
    return row is not None and subject.comparison.agrees(call, row)


def _example(subject: EmitSubject) -> TrialRow | None:
    shapes = [numbers_of(node.meta["val"].shape) for node in subject.captured.joint.inputs]
    return drawn_row(subject.captured, subject.specs, shapes)


class _Trial:
    """What the graphs of one subject can do."""

    def __init__(self, subject: EmitSubject, parts: Parts) -> None:
        self.subject, self.parts = subject, parts
        self.comparison, self.captured = subject.comparison, subject.captured
        self.nodes = self.captured.joint.inputs
        self.shadow = shadow_of(self.captured, parts)
        self.hints: dict[Any, int] = {
            size.node.expr: int(size.node.hint)
            for node in self.nodes
            for size in node.meta["val"].shape
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol
        }

    def _row(self, shapes: Sequence[Sequence[int]]) -> TrialRow | None:
        return drawn_row(self.captured, self.subject.specs, shapes)

    # ---- sizes ----

    def rank(self) -> int | None:
        """The least number of dimensions from which on every shape will do, if it is so."""
        given = [node.meta["val"].shape for node in self.nodes]
        if any(one.tensor is not None for one in self.captured.inputs) or not given:
            return None
        if any(True for _ in decided(self.captured)):
            return None
        shapes = [[str(size) for size in shape] for shape in given]
        if any(shape != shapes[0] for shape in shapes) or any(s.isdigit() for s in shapes[0]):
            return None
        least = None
        for rank in reversed(range(len(SHAPES))):
            if not all(self._holds_for(shape) for shape in SHAPES[rank]):
                break
            least = rank
        return least if least is not None and least <= len(shapes[0]) else None

    def _holds_for(self, shape: tuple[int, ...]) -> bool:
        row = self._row([shape] * len(self.nodes))
        return row is not None and self.comparison.agrees(self.shadow, row)

    def least(self, symbol: Any) -> int:
        """The smallest size down to which the graphs are right, for a size."""
        least = 2
        for size in (1, 0):
            if not self._holds_at(symbol, size):
                break
            least = size
        return least

    def _holds_at(self, symbol: Any, size: int) -> bool:
        values = {**self.hints, symbol: size}
        row = self._row(
            [tuple(size_with(n, values) for n in node.meta["val"].shape) for node in self.nodes]
        )
        if row is None:
            return False
        return any(self.comparison.agrees(self.shadow, one) for one in (row, self._zeroed(row)))

    def _zeroed(self, row: TrialRow) -> TrialRow:
        """`row` with zeros where no gradient goes: indices and boxes then stay inside of sizes."""
        gradients = iter(self.captured.joint.gradients)
        live = [one.needs and next(gradients) is not None for one in self.captured.inputs]
        pairs = zip(row.tensors, live, strict=True)
        return replace(row, tensors=tuple(t if flag else torch.zeros_like(t) for t, flag in pairs))

    # ---- dtypes ----

    def dtypes(self) -> Iterator[torch.dtype]:
        """The dtypes that may stand for that of the examples."""
        found = {n.meta["val"].dtype for n in self.nodes if n.meta["val"].is_floating_point()}
        if len(found) != 1 or any(n.meta["val"].is_complex() for n in self.nodes):
            return
        (own,) = found
        for dtype in FLOATS:
            if dtype == own or self._holds_in(own, dtype):
                yield dtype

    def _holds_in(self, own: torch.dtype, dtype: torch.dtype) -> bool:
        row = _example(self.subject)
        if row is None:
            return False
        row = replace(row, tensors=tuple(t.to(dtype) if t.dtype == own else t for t in row.tensors))
        parts = replace(
            self.parts,
            forward=with_dtype(self.parts.forward, own, dtype),
            backward=with_dtype(self.parts.backward, own, dtype),
        )
        return is_alike(self.comparison, shadow_of(self.captured, parts), row)

    # ---- which outputs require grad ----

    def sources(self) -> Iterator[frozenset[int]]:
        """For each output, the inputs of which one must require grad for it to do so.

        The program is run once for each input, which alone requires grad. With a tensor from around
        it that requires grad this cannot be seen, and the graph decides on what an output depends.
        """
        needing = [place for place, one in enumerate(self.captured.inputs) if one.needs]
        seen = {place: self.comparison.live_alone(place) for place in needing}
        for k, output in enumerate(o for o in self.captured.outputs if o.returned):
            found = self._behind(output.index)
            flags = {p: p in found if (live := seen[p]) is None else live[k] for p in needing}
            yield frozenset(place for place, is_source in flags.items() if is_source)

    def _behind(self, index: int | None) -> set[int]:
        """The places of the inputs that an output of the graph is made of."""
        found = ancestors([] if index is None else [self.captured.joint.outputs[index]])
        return {place for place, node in enumerate(self.nodes) if node in found}

    # ---- second order ----

    def second(self) -> tuple[bool, str]:
        """Whether backward may be differentiated, and why not."""
        parts = self.parts
        known = {*parts.joint.inputs, *parts.joint.outputs}
        changed = {self.nodes[place] for place, _ in self.captured.mutated}
        lost = [n for n in parts.cut.saved if n not in known or n in changed]
        if any(_has_history(node) for node in lost):
            return False, INTERMEDIATE
        if not any(one.needs for one in self.captured.inputs):
            return True, ""
        row = _example(self.subject)
        if row is None or not self._agrees_twice(row):
            return False, DIFFERS
        return True, ""

    def _agrees_twice(self, row: TrialRow) -> bool:
        program = self.comparison.of_arguments(self.comparison.program)
        mine, theirs = (self.comparison.twice(call, row) for call in (self.shadow, program))
        return mine is not None and theirs is not None and all_close(mine, theirs)


def _has_history(node: fx.Node) -> bool:
    """Whether the value of `node` has a derivative by an input, as far as its dtypes show.

    A mask has none, nor has anything that is made of it.
    """
    pending, seen = [node], {node}
    while pending:
        one = pending.pop()
        if not is_smooth(one) or is_random(one):
            continue
        if one.op == "placeholder":
            return True
        pending += [arg for arg in one.all_input_nodes if arg not in seen]
        seen |= set(one.all_input_nodes)
    return False
