"""How far the graphs of a subject reach beyond its examples, found by trying.

A capture holds for the dtypes of its examples, and takes sizes of 0 and 1 for special: it cannot
know what the program would have done there. Differentiating backward again is right only where
nothing that the capture dropped (`detach`, a hand-written rule inside another) matters to it. So
each of these is tried beside the program itself: what agrees is allowed, what does not is refused
by the emitted file in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

from pullback.capture.closeness import all_close
from pullback.capture.decided import decided
from pullback.capture.fake import numbers_of, size_with
from pullback.derive.recipe import Parts
from pullback.emit.cpp.beside import Beside, apart
from pullback.emit.cpp.runs import twin_of, with_dtype
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
    why not. `sources` are for each output the places of the inputs that give it a history: it
    requires grad where one of these does.
    """

    least: dict[str, int]
    rank: int | None
    dtypes: tuple[torch.dtype, ...]
    is_twice: bool
    refusal: str
    sources: tuple[frozenset[int], ...]


def reach_of(subject: Subject, parts: Parts) -> Reach:
    """Try what the graphs `parts` of `subject` can do."""
    with apart():
        trial = _Trial(subject, parts)
        rank = trial.rank()
        least = {} if rank is not None else {s: trial.least(s) for s in trial.symbols}
        dtypes = tuple(trial.dtypes())
        again, refusal = trial.second()
        sources = tuple(trial.sources())
    return Reach(least, rank, dtypes, again, refusal, sources)


def is_twice(subject: Subject, parts: Parts) -> bool:
    """Whether a backward made of `parts` may be differentiated."""
    with apart():
        return _Trial(subject, parts).second()[0]


def runs_alike(subject: Subject, other: Subject, parts: Parts) -> bool:
    """Whether the programs of two subjects run, and give the same for inputs like the examples."""
    with apart():
        trials = [Beside(each, parts) for each in (subject, other)]
        row = trials[0].row([numbers_of(node.meta["val"].shape) for node in trials[0].nodes])
        return row is not None and trials[1].agrees_with(trials[0], row)


class _Trial(Beside):
    """What the graphs of one subject can do."""

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

    # ---- which outputs require grad ----

    def sources(self) -> Iterator[frozenset[int]]:
        """For each output, the inputs of which one must require grad for it to do so.

        The program is run once for each input, which alone requires grad. With a tensor from around
        it that requires grad this cannot be seen, and the graph tells on what an output depends.
        """
        needing = [place for place, one in enumerate(self.captured.inputs) if one.needs]
        row = self.row([numbers_of(node.meta["val"].shape) for node in self.nodes])
        is_alone = all(one.tensor is None for one in self.captured.inputs if one.needs)
        seen: dict[int, list[bool]] = {}
        for place in needing:
            if row is None or not is_alone:
                break
            try:
                outputs = self.outputs(self.passed(self.leaves(row, only=place)))
            except Exception:  # it does not run with that one alone
                continue
            seen[place] = [isinstance(y, Tensor) and y.requires_grad for y in outputs]
        returned = [o for o in self.captured.outputs if o.returned]
        for k, output in enumerate(returned):
            found = self._behind(output.index)
            yield frozenset(p for p in needing if (seen[p][k] if p in seen else p in found))

    def _behind(self, index: int | None) -> set[int]:
        """The places of the inputs that an output of the graph is made of."""
        if index is None:
            return set()
        pending = [self.captured.joint.outputs[index]]
        found = set(pending)
        while pending:
            fresh = set(pending.pop().all_input_nodes) - found
            found |= fresh
            pending += fresh
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
        row = self.row([numbers_of(node.meta["val"].shape) for node in self.nodes])
        if row is None or not self._agrees_twice(row):
            return False, DIFFERS
        return True, ""

    def _agrees_twice(self, row: list[Tensor]) -> bool:
        twin = twin_of(self.captured, self.parts)
        try:
            mine = self.pulled_twice(lambda given: list(twin.apply(*given)), row)
            theirs = self.pulled_twice(self.outputs, row)
        except Exception:  # whatever it is: no second derivative is seen to be right
            return False
        return all_close(mine, theirs)


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
