"""The choice among candidates, where it changes with the size, and the call that follows it.

A choice must be right when measurements are noisy: what is within two hundredths of the best counts
as equal to it, and among equals the one that keeps the fewest bytes, then the simplest, is taken.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from pullback.capture.trees import tensor_leaves
from pullback.errors import PlanError
from pullback.plan.measurements import AS_WRITTEN, COMBINED, HYBRID, NESTED, Measurement

EQUAL_COST = 1.02  # as good, within noise
ALIKE = 1.05  # as many bytes, or a median as high
_SIMPLER = (NESTED, COMBINED, HYBRID)


def weight_of(objective: str | float) -> float:
    """How much bytes count against time: 0 for "time", 1 for "memory", or the number itself."""
    named = {"time": 0.0, "memory": 1.0}
    if isinstance(objective, str) and objective in named:
        return named[objective]
    if type(objective) in (int, float) and 0 <= float(objective) <= 1:
        return float(objective)
    raise PlanError(
        "`objective` must say what a plan is for",
        expected='"time", "memory", or a number from 0 (time alone) to 1 (memory alone)',
        got=repr(objective),
    )


def scores(rows: Sequence[Measurement], weight: float) -> dict[Measurement, float]:
    """What each row costs: 1 for the program as written, less for what is better."""
    base = next((row for row in rows if row.candidate == AS_WRITTEN), None)
    whole = (base.saved or 0) + 1 if base else 1

    def score(row: Measurement) -> float:
        bytes_kept = 1.0 if row.saved is None else (row.saved + 1) / whole
        return (1 - weight) * row.relative + weight * bytes_kept

    return {row: score(row) for row in rows}


def choose_measurement(rows: Sequence[Measurement], weight: float) -> Measurement:
    """The row to take."""
    cost = scores(rows, weight)
    exact = [row for row in rows if not row.is_inexact] or list(rows)
    leader = min(exact, key=cost.__getitem__)
    equal = [row for row in exact if cost[row] <= cost[leader] * EQUAL_COST]
    if weight < 1:  # noise of the program as written is in both costs, and not in the medians
        equal = [row for row in equal if row.seconds <= leader.seconds * ALIKE]
    least = min(row.saved or 0 for row in equal)
    light = [row for row in equal if (row.saved or 0) <= least * ALIKE]
    soonest = min(row.seconds for row in light)
    quick = [row for row in light if row.seconds <= soonest * ALIKE]
    return min(quick, key=lambda row: (_SIMPLER.index(row.candidate.how), cost[row]))


def crossover(sizes: tuple[int, int], gains: tuple[float, float]) -> int:
    """The size from which on the choice of the larger size is used.

    `gains` are the costs of the smaller size's choice as parts of those of the larger size's, at
    both sizes: below one at the first, above one at the second. In between, their logarithms are
    taken to be on a line over the logarithm of the size.
    """
    low, high = (math.log(max(size, 1)) for size in sizes)
    at_low, at_high = map(math.log, gains)
    part = 0.5
    if at_low < 0 < at_high:
        part = at_low / (at_low - at_high)
    return round(math.exp(low + part * (high - low)))


# ---- the call ----


def follow(
    program: Callable[..., Any],
    calls: Sequence[Callable[..., Any]],
    borders: Sequence[int],
    place: int | None,
    name: str,
) -> Callable[..., Any]:
    """A function that calls the one of `calls` that is for the size of its arguments.

    The size is that of the argument at `place`, called `name`; if there is none such, that of the
    largest tensor. `borders[n]` is the size from which on the call n + 1 is used. Dynamo sees the
    program itself.
    """

    def best(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return program(*args, **kwargs)
        try:
            size = args[place].numel()  # type: ignore[index]
        except (IndexError, TypeError, AttributeError):
            size = size_of(args, kwargs, name)
        return calls[bisect_right(borders, size)](*args, **kwargs)

    return best


def size_of(args: Any, kwargs: dict[str, Any], name: str) -> int:
    """The size of a call whose argument `name` is passed by keyword, or is no tensor."""
    given = kwargs.get(name)
    if isinstance(given, Tensor):
        return given.numel()
    return max((tensor.numel() for tensor in tensor_leaves((args, kwargs))), default=0)


def size_place(examples: Sequence[tuple[Any, ...]], first: int = 0) -> int | None:
    """The place of the tensor that grows most over the examples, else of the largest.

    Those before `first` do not count.
    """
    count = min(map(len, examples))
    places = [p for p in range(first, count) if all(isinstance(e[p], Tensor) for e in examples)]

    def growth(place: int) -> tuple[float, int]:
        counts = [max(example[place].numel(), 1) for example in examples]
        return max(counts) / min(counts), max(counts)

    return max(places, key=growth, default=None)
