"""The same thing should not be computed again and again.

What it checks
    The costly operators (products of matrices, convolutions, sorts, exponentials): in forward each
    runs once on the same tensors with the same arguments, in backward at most twice.

Why it matters
    A line that was copied, or a helper that is called for the output and again for what is saved,
    doubles the cost of a layer, and no test of numbers ever shows it.

Fails
    y = torch.softmax(x, -1); ctx.save_for_backward(torch.softmax(x, -1)); return y

Passes
    y = torch.softmax(x, -1); ctx.save_for_backward(y); return y

Cannot see
    Work that is repeated inside a kernel, and the repetition of cheap steps on the way. What
    backward computes twice, as formulas do that were written down as they stand in a book.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pullback.check.subject.subject import CallError, Finding, Rule, Severity, Skip, Subject
from pullback.function.modes import DispatchMode
from pullback.function.slots import version_of
from pullback.judge.example import tensors_in

RULE = Rule("C003", "repeated-work", "cost", Severity.WASTEFUL, "quick")

# Operators that cost far more than the memory they write.
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "linalg_inv_ex")
CURVES = ("exp", "log", "erf", "tanh", "sigmoid", "sin", "cos", "_softmax", "_log_softmax")
COSTLY = (*PRODUCTS, *CURVES, "sort", "topk", "cumsum")


class Repeats(DispatchMode):
    """Counts the calls of each costly operator on the same tensors, as they then were."""

    def __init__(self) -> None:
        DispatchMode.__init__(self)
        self.calls: Counter[tuple[Any, ...]] = Counter()
        self.kept: list[Tensor] = []  # so that no address is given out twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in COSTLY:
            given = [*args, *sorted((kwargs or {}).items())]
            key = (name, *map(self._key, given))
            self.calls[key] += 1
        self.kept += tensors_in(result)
        return result

    def _key(self, value: Any) -> str:
        if isinstance(value, Tensor):
            self.kept.append(value)
            place = (value.data_ptr(), version_of(value), value.stride(), value.dtype)
            return f"{place} {tuple(value.shape)}"
        return repr(value)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first costly operator that runs again."""
    if not subject.target.is_function:
        return
    try:
        with Repeats() as ahead, torch.no_grad():
            subject.run(subject.given)
        called = subject.run(subject.given)
        with Repeats() as back:
            called.pull(subject.cotangents(called))
    except CallError:
        return
    for phase, seen, most in (("forward", ahead, 1), ("backward", back, 2)):
        for (name, *_), count in seen.calls.items():
            if count > most:
                yield subject.finding(
                    RULE,
                    example=subject.given,
                    at=f"`{name.strip('_')}` in {phase}",
                    expected="one call on the same tensors",
                    got=f"{count} calls",
                    place=subject.target.place(phase, "vjp"),
                    fix="compute it once, and use the result in all places",
                )
                return
