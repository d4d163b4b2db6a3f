"""How far the graphs of a subject reach beyond its examples, found by trying.

A capture holds for the dtypes of its examples, and takes sizes of 0 and 1 for special: it cannot
know what the program would have done there. Differentiating backward again is right only where
nothing that the capture dropped (`detach`, a hand-written rule inside another) matters to it. So
each of these is tried beside the program itself: what agrees is allowed, what does not is refused
by the emitted file in words.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.decided import decided
from pullback.capture.fake import numbers_of, size_with
from pullback.capture.modes import autocast_off
from pullback.capture.trees import flatten
from pullback.derive.agreement import LARGEST_TRIAL, all_close, pulled_twice, random_like
from pullback.derive.likes import drawn
from pullback.derive.recipe import Parts
from pullback.emit.runs import functions_of, twin_of, with_dtype
from pullback.emit.subject import Subject
from pullback.graph.cost import is_random
from pullback.graph.values import is_smooth

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
    why not.
    """

    least: dict[str, int]
    rank: int | None
    dtypes: tuple[torch.dtype, ...]
    is_twice: bool
    refusal: str


def reach_of(subject: Subject, parts: Parts) -> Reach:
    """Try what the graphs `parts` of `subject` can do."""
    with _apart():
        trial = _Trial(subject, parts)
        rank = trial.rank()
        least = {} if rank is not None else {s: trial.least(s) for s in trial.symbols}
        dtypes = tuple(trial.dtypes())
        again, refusal = trial.second()
    return Reach(least, rank, dtypes, again, refusal)


def is_twice(subject: Subject, parts: Parts) -> bool:
    """Whether a backward made of `parts` may be differentiated."""
    with _apart():
        return _Trial(subject, parts).second()[0]


def runs_alike(subject: Subject, other: Subject, parts: Parts) -> bool:
    """Whether the programs of two subjects run, and give the same for inputs like the examples."""
    with _apart():
        trials = [_Trial(each, parts) for each in (subject, other)]
        row = trials[0].row([numbers_of(node.meta["val"].shape) for node in trials[0].nodes])
        return row is not None and trials[1].agrees_with(trials[0], row)


@contextmanager
def _apart() -> Iterator[None]:
    """Leave the random numbers of the caller as they are."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices), torch.inference_mode(False), torch.enable_grad():
        with autocast_off(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield


@dataclass(frozen=True, slots=True)
class _Run:
    outputs: list[Any]
    gradients: list[Tensor | None]


class _Trial:
    """The graphs of one subject beside its program."""

    def __init__(self, subject: Subject, parts: Parts) -> None:
        self.subject = subject
        self.parts = parts
        self.captured = subject.captured
        self.nodes = self.captured.joint.inputs
        self.hints: dict[Any, int] = {}
        for node in self.nodes:
            for size in node.meta["val"].shape:
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    self.hints[size.node.expr] = int(size.node.hint)

    @property
    def symbols(self) -> list[str]:
        """The names of the sizes that may vary."""
        return [str(symbol) for symbol in self.hints]

    # ---- sizes ----

    def rank(self) -> int | None:
        """The least number of dimensions from which on every shape will do, if it is so."""
        given = [
            n.meta["val"].shape for n, one in zip(self.nodes, self.captured.inputs, strict=True)
        ]
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
        row = self.row([shape] * len(self.nodes))
        return row is not None and self.agrees(row, self.parts)

    def least(self, name: str) -> int:
        """The smallest size down to which the graphs are right, for the size `name`."""
        least = 2
        for size in (1, 0):
            if not self._holds_at(name, size):
                break
            least = size
        return least

    def _holds_at(self, name: str, size: int) -> bool:
        values = {s: size if str(s) == name else hint for s, hint in self.hints.items()}
        shapes = [
            tuple(size_with(n, values) for n in node.meta["val"].shape) for node in self.nodes
        ]
        row = self.row(shapes)
        if row is None:
            return False
        return self.agrees(row, self.parts) or self.agrees(self._zeroed(row), self.parts)

    def _zeroed(self, row: list[Tensor]) -> list[Tensor]:
        """`row` with zeros where no gradient goes: indices and boxes then stay inside of sizes."""
        gradients = iter(self.captured.joint.gradients)
        live = [one.needs and next(gradients) is not None for one in self.captured.inputs]
        return [t if is_live else torch.zeros_like(t) for t, is_live in zip(row, live, strict=True)]

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
        row = self.row([numbers_of(node.meta["val"].shape) for node in self.nodes])
        if row is None:
            return False
        row = [t.to(dtype) if t.dtype == own else t for t in row]
        parts = replace(
            self.parts,
            forward=with_dtype(self.parts.forward, own, dtype),
            backward=with_dtype(self.parts.backward, own, dtype),
        )
        return self.agrees(row, parts)

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
        row = self.row([numbers_of(node.meta["val"].shape) for node in self.nodes])
        if row is None or not self._agrees_twice(row):
            return False, DIFFERS
        return True, ""

    def _agrees_twice(self, row: list[Tensor]) -> bool:
        twin = twin_of(self.captured, self.parts)
        try:
            mine = self._pulled_twice(lambda given: list(twin.apply(*given)), row)
            theirs = self._pulled_twice(self._outputs, row)
        except Exception:  # whatever it is: no second derivative is seen to be right
            return False
        return all_close(mine, theirs)

    def _pulled_twice(
        self, call: Callable[[list[Tensor]], list[Any]], row: list[Tensor]
    ) -> list[Tensor | None]:
        leaves = self._leaves(row)
        given = self._passed(leaves)
        wanted = [x for x, one in zip(leaves, self.captured.inputs, strict=True) if one.needs]
        return pulled_twice(lambda: call(given), wanted)

    # ---- running both ----

    def row(self, shapes: Sequence[Sequence[int]]) -> list[Tensor] | None:
        """Inputs of these shapes; None where they cannot be had."""
        row: list[Tensor] = []
        pairs = zip(shapes, self.subject.likes, self.captured.inputs, strict=True)
        for seed, (shape, like, one) in enumerate(pairs):
            if one.tensor is not None:
                if tuple(one.tensor.shape) != tuple(shape):
                    return None
                row.append(one.tensor.detach())
                continue
            if any(size < 0 for size in shape) or _count(shape) > LARGEST_TRIAL:
                return None
            same = tuple(shape) == like.shape
            row.append(
                drawn(like if same else replace(like, shape=tuple(shape), values=None), seed)
            )
        return row

    def agrees(self, row: list[Tensor], parts: Parts) -> bool:
        """Whether graphs and program give the same, first order."""
        try:
            theirs = self._program(row)
        except Exception:  # where the program has no answer, there is none to agree with
            return False
        try:
            mine = self._graphs(row, parts)
        except Exception:
            return False
        return all_close(mine.outputs, theirs.outputs) and all_close(
            mine.gradients, theirs.gradients
        )

    def agrees_with(self, other: _Trial, row: list[Tensor]) -> bool:
        """Whether the programs of two trials give the same, first order."""
        try:
            mine, theirs = self._program(row), other._program(row)
        except Exception:  # whatever it is: then it is not the same
            return False
        return all_close(mine.outputs, theirs.outputs) and all_close(
            mine.gradients, theirs.gradients
        )

    def _program(self, row: list[Tensor]) -> _Run:
        leaves = self._leaves(row)
        torch.manual_seed(1)
        outputs = self._outputs(self._passed(leaves))
        smooth = [
            y for y, o in zip(outputs, self.captured.outputs, strict=False) if o.differentiable
        ]
        wanted = [x for x, one in zip(leaves, self.captured.inputs, strict=True) if one.needs]
        cotangents = [random_like(y, 2 + i) for i, y in enumerate(smooth)]
        gradients: Sequence[Tensor | None] = [None] * len(wanted)
        if smooth and wanted:
            gradients = torch.autograd.grad(smooth, wanted, cotangents, allow_unused=True)
        return _Run(outputs, list(gradients))

    def _outputs(self, row: list[Tensor]) -> list[Any]:
        own = [
            t for t, one in zip(row, self.captured.inputs, strict=True) if one.kind == "argument"
        ]
        return list(flatten(self.subject.program(*self.captured.fill(own)))[0])

    def _leaves(self, row: list[Tensor]) -> list[Tensor]:
        """The inputs, ready to be differentiated; those from around the program as they are."""
        pairs = zip(row, self.captured.inputs, strict=True)
        return [
            t.detach().clone().requires_grad_(one.needs) if one.tensor is None else one.tensor
            for t, one in pairs
        ]

    def _passed(self, leaves: list[Tensor]) -> list[Tensor]:
        """What the program is given: a leaf must not be changed in place."""
        changed = {place for place, _ in self.captured.mutated}
        return [x.clone() if place in changed else x for place, x in enumerate(leaves)]

    def _graphs(self, row: list[Tensor], parts: Parts) -> _Run:
        forward, backward = functions_of(self.captured, parts)
        torch.manual_seed(1)
        with torch.no_grad():
            values = forward(*[t.detach() for t in row])
            count = parts.joint.output_count
            smooth = [
                values[o.index]
                for o in self.captured.outputs
                if o.differentiable and o.used and o.index is not None
            ]
            cotangents = [random_like(y, 2 + i) for i, y in enumerate(smooth)]
            gradients = backward(*values[count:], *cotangents)
        returned = [
            values[o.index] if o.index is not None else o.value
            for o in self.captured.outputs
            if o.returned
        ]
        needs = [t for t, one in zip(row, self.captured.inputs, strict=True) if one.needs]
        fitted = [
            None if g is None else g.sum_to_size(t.shape).to(t.dtype)
            for g, t in zip(gradients, needs, strict=True)
        ]
        return _Run(returned, fitted)


def _count(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _has_history(node: fx.Node) -> bool:
    """Whether the value of `node` has a derivative by an input, as far as its dtypes tell.

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
