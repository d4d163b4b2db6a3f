"""The graphs of a subject and its program, side by side, on inputs like those of the examples."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.closeness import all_close
from pullback.capture.modes import autocast_off
from pullback.capture.trees import flatten
from pullback.derive.agreement import LARGEST_TRIAL, pulled_twice, random_like
from pullback.derive.recipe import Parts
from pullback.derive.tensor_specs import drawn
from pullback.emit.cpp.runs import functions_of
from pullback.emit.subject import Subject
from pullback.function.isolation import seed_torch


@contextmanager
def apart() -> Iterator[None]:
    """Leave the random numbers of the caller as they are."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices), torch.inference_mode(False), torch.enable_grad():
        with autocast_off(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield


@dataclass(frozen=True, slots=True)
class Run:
    """What a call gave: its outputs, and a gradient for each input that needs one."""

    outputs: list[Any]
    gradients: list[Tensor | None]


class Beside:
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
            if any(size < 0 for size in shape) or math.prod(shape) > LARGEST_TRIAL:
                return None
            same = tuple(shape) == like.shape
            row.append(
                drawn(like if same else replace(like, shape=tuple(shape), values=None), seed)
            )
        return row

    def agrees(self, row: list[Tensor], parts: Parts) -> bool:
        """Whether graphs and program give the same, first order."""
        try:
            theirs = self.program(row)
        except Exception:  # where the program has no answer, there is none to agree with
            return False
        try:
            mine = self._graphs(row, parts)
        except Exception:
            return False
        return all_close(mine.outputs, theirs.outputs) and all_close(
            mine.gradients, theirs.gradients
        )

    def agrees_with(self, other: Beside, row: list[Tensor]) -> bool:
        """Whether the programs of two trials give the same, first order."""
        try:
            mine, theirs = self.program(row), other.program(row)
        except Exception:  # whatever it is: then it is not the same
            return False
        return all_close(mine.outputs, theirs.outputs) and all_close(
            mine.gradients, theirs.gradients
        )

    def program(self, row: list[Tensor]) -> Run:
        leaves = self.leaves(row)
        seed_torch(1)
        outputs = self.outputs(self.passed(leaves))
        smooth = [
            y for y, o in zip(outputs, self.captured.outputs, strict=False) if o.differentiable
        ]
        wanted = [x for x, one in zip(leaves, self.captured.inputs, strict=True) if one.needs]
        cotangents = [random_like(y, 2 + i) for i, y in enumerate(smooth)]
        gradients: Sequence[Tensor | None] = [None] * len(wanted)
        if smooth and wanted:
            gradients = torch.autograd.grad(smooth, wanted, cotangents, allow_unused=True)
        return Run(outputs, list(gradients))

    def outputs(self, row: list[Tensor]) -> list[Any]:
        own = [
            t for t, one in zip(row, self.captured.inputs, strict=True) if one.kind == "argument"
        ]
        return list(flatten(self.subject.run(own))[0])

    def leaves(self, row: list[Tensor], only: int | None = None) -> list[Tensor]:
        """The inputs, ready to be differentiated, all or one alone.

        Those from around the program are as they are.
        """
        return [
            t.detach().clone().requires_grad_(one.needs and only in (None, place))
            if one.tensor is None
            else one.tensor
            for place, (t, one) in enumerate(zip(row, self.captured.inputs, strict=True))
        ]

    def passed(self, leaves: list[Tensor]) -> list[Tensor]:
        """What the program is given: a leaf must not be changed in place."""
        changed = {place for place, _ in self.captured.mutated}
        return [x.clone() if place in changed else x for place, x in enumerate(leaves)]

    def _graphs(self, row: list[Tensor], parts: Parts) -> Run:
        forward, backward = functions_of(self.captured, parts)
        seed_torch(1)
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
        return Run(returned, fitted)

    def pulled_twice(
        self, call: Callable[[list[Tensor]], list[Any]], row: list[Tensor]
    ) -> list[Tensor | None]:
        leaves = self.leaves(row)
        given = self.passed(leaves)
        wanted = [x for x, one in zip(leaves, self.captured.inputs, strict=True) if one.needs]
        return pulled_twice(lambda: call(given), wanted)
