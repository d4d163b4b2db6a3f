"""Whether two computations of the same thing agree, and where they do not.

They differ by rounding. How far they may be apart is said in one of two ways:

- `Measured`, for the same ops run in another way: that depends on the numbers, so it is no
  constant. Equal to two units in the last place is equal. What is further apart is compared with
  the computation in double precision, which says how far the expected numbers themselves are from
  the truth; the others may be as far, and as much further as sums of so many terms may be when they
  are added up in another order. What is still further apart may be a step: a rounding that fell to
  the other side of a `floor` or of a comparison. The computation at inputs that are a few units
  away in the last place says where, and how much, the result depends on that. Where double
  precision cannot be had, this stands for the former: the largest of these moves is then the usual
  error, unless it is more than a rounding of the largest number that takes part.
- `HalfTheDigits`, for other formulas of the same thing: those round in places of their own, and a
  wrong one is off by far more. It runs nothing, and so suits programs that change between two runs,
  and inputs with ties, which no longer tie when they are moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from pullback.graph.values import held_value
from pullback.judge.example import can_differ, wide_of
from pullback.judge.mismatch import index_of
from pullback.judge.tolerances import BAD_LUCK, SIGMAS, SMALL, ULPS, largest_entry

Limits = Iterator[tuple[Tensor, Any]]
"""Numbers, and how far from them others may be; what is near enough once is near enough."""


class Allowance(Protocol):
    """How far two computations may be apart."""

    def limits(self, got: Tensor, expected: Tensor) -> Limits:
        """One limit after another, for numbers that are not equal."""


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """Where a value is seen to be another one than expected, and how far at the worst element."""

    value: str
    at: str
    expected: str
    got: str
    count: int = 1
    size: int = 1

    def __str__(self) -> str:
        place = f" at {self.at}" if self.at not in ("", "[]") else ""
        some = f", {self.count} of {self.size} elements differ" if self.size > 1 else ""
        return f"{self.value}{place}: {self.got} instead of {self.expected}{some}"


def value_difference(
    name: str, got: Any, expected: Any, allowed: Allowance
) -> ValueDifference | None:
    """How `got` differs from `expected`, in more than rounding; None if it does not.

    No gradient is as good as zeros.
    """
    if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
        is_same = _is_nothing(got) and _is_nothing(expected)
        return None if is_same or _is_same(got, expected) else _whole(name, got, expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return _whole(name, got, expected)
    got, expected = got.detach(), expected.detach()
    wrong = unequal(got, expected)
    if can_differ(expected):
        for reference, limit in allowed.limits(got, expected):
            if not bool(wrong.any()):
                break
            # What is not finite on one side only is infinitely far.
            distance = (wide_of(got) - wide_of(reference)).abs().nan_to_num(math.inf)
            wrong = wrong & ~(distance <= limit)
    return _described(name, got, expected, wrong) if bool(wrong.any()) else None


def unequal(one: Tensor, two: Tensor) -> Tensor:
    """Where two tensors hold other numbers; NaN and NaN are the same."""
    return (one != two) & ~(one.isnan() & two.isnan())


def equal_tensors(one: Tensor, two: Tensor) -> bool:
    """As `torch.equal`, which has no kernel for the complex numbers of half precision."""
    if one.dtype is torch.complex32 and two.dtype is torch.complex32:
        return one.shape == two.shape and bool((one == two).all())
    return torch.equal(one, two)


# ---- the same ops, run in another way ----


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a value besides the expected one; each is computed when it is asked for.

    `exact` gives it in double precision, or None; `near` at inputs nearby; `largest` the largest
    number that takes part. `terms` is how many numbers the longest sum in it adds up, `steps` how
    many ops it takes.
    """

    exact: Callable[[], Any]
    near: Callable[[], Sequence[Any]]
    terms: int
    steps: int
    largest: Callable[[], float] = lambda: 0.0

    def limits(self, got: Tensor, expected: Tensor) -> Limits:
        """A rounding, the error of the expected numbers, and what becomes of inputs nearby."""
        yield expected, _rounding(expected)
        limit, exact = _summing(expected, self.terms), self.exact()
        if isinstance(exact, Tensor):
            limit = limit + SIGMAS * _usual(wide_of(exact) - wide_of(expected))
            yield exact.to(expected.dtype), limit  # what is too large for the dtype is infinite
        for near in self.near():
            # What is finite on one side of a step and not on the other can be either.
            moved = (wide_of(near) - wide_of(expected)).abs().nan_to_num(math.inf, math.inf)
            middle = float(moved.median()) if moved.numel() else 0.0  # steps are few
            if exact is None and moved.numel():
                # What cancels leaves some roundings of its terms behind, and zeros elsewhere.
                middle = max(middle, min(float(moved.max()), self._term_rounding(expected)))
            limit = limit + math.sqrt(self.steps) * moved + SIGMAS * middle
        yield expected, limit

    def _term_rounding(self, expected: Tensor) -> float:
        """How far a sum of numbers as large as the largest may be off."""
        largest = expected.new_full((), self.largest()).detach()
        return float(_summing(largest, self.terms))


def _rounding(expected: Tensor) -> Tensor:
    """How far a number may be from one that is as good."""
    known = torch.finfo(expected.dtype)
    return _size(expected) * (ULPS * known.eps) + known.tiny


def _summing(expected: Tensor, terms: int) -> Tensor:
    """The same for a sum of so many terms: its errors grow like a random walk.

    Sums of half precision are kept in single precision until their end.
    """
    eps = min(torch.finfo(expected.dtype).eps, torch.finfo(torch.float32).eps)
    return _rounding(expected) + _size(expected) * (math.sqrt(terms) * eps)


def _size(expected: Tensor) -> Tensor:
    return wide_of(expected).abs().nan_to_num(0.0, 0.0)


def _usual(errors: Tensor) -> float:
    """The root of the mean square of those that are finite."""
    finite = errors[errors.isfinite()].abs()
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


# ---- other formulas of the same thing ----


@dataclass(frozen=True, slots=True)
class HalfTheDigits:
    """Half of the digits of the largest number, or of `floor` where that is larger.

    Numbers that cancel (the gradient of a softmax by equal cotangents) leave their rounding behind.

    What is not finite in the expected numbers must be the same in the others; if not `is_strict`,
    it may be anything that is not finite, and if it `is_ignored`, anything. `eps` is that of a
    coarser dtype in between, if there is one.
    """

    floor: float = SMALL
    is_strict: bool = False
    is_ignored: bool = False
    eps: float = 0.0

    def limits(self, got: Tensor, expected: Tensor) -> Limits:
        """One limit for all numbers."""
        scale = max(largest_number(expected) or 1.0, self.floor)
        limit = torch.full_like(wide_of(expected).abs(), scale * _half(expected, self.eps))
        if not self.is_strict:
            lost = ~expected.isfinite() & (self.is_ignored | ~got.isfinite())
            limit = limit.masked_fill(lost, math.inf)
        yield expected, limit


def roundings(nodes: Iterable[fx.Node]) -> set[float]:
    """The roundings of the dtypes of numbers that the nodes of a graph hold."""
    values = [held_value(node) for node in nodes if node.op != "output"]
    return {torch.finfo(value.dtype).eps for value in values if can_differ(value)}


def coarsest_rounding(graph: fx.Graph) -> float:
    """The largest rounding that a number in a graph may have gone through."""
    return max(roundings(graph.nodes), default=0.0)


def _half(expected: Tensor, eps: float) -> float:
    """Half of the digits, as a part of the largest number.

    What a program does with roundings (inverts, subtracts what is nearly equal) may cost some. A
    sum of many numbers adds their roundings.
    """
    eps = max(torch.finfo(expected.dtype).eps, eps)
    return max(math.sqrt(eps), BAD_LUCK * eps * math.sqrt(expected.numel()))


def all_close(
    got: Sequence[Any], expected: Sequence[Any], allowed: Allowance | None = None
) -> bool:
    """Whether two rows of values are equal but for rounding."""
    allowed = HalfTheDigits() if allowed is None else allowed
    same = (
        value_difference("", a, b, allowed) is None for a, b in zip(got, expected, strict=False)
    )
    return len(got) == len(expected) and all(same)


# ---- values ----


def largest_number(value: Any) -> float:
    """The largest finite number in a value, or 0."""
    return largest_entry(wide_of(value)) if can_differ(value) else 0.0


def _is_nothing(value: Any) -> bool:
    """Whether a gradient is absent, or zero: a backward may give either."""
    return value is None or (isinstance(value, Tensor) and not bool(value.any()))


def _is_same(got: Any, expected: Any) -> bool:
    both_plain = not isinstance(got, Tensor) and not isinstance(expected, Tensor)
    return both_plain and type(got) is type(expected) and bool(got == expected)


# ---- described ----


def _described(name: str, got: Tensor, expected: Tensor, wrong: Tensor) -> ValueDifference:
    distance = torch.where(wrong, (wide_of(got) - wide_of(expected)).abs(), -1.0)
    worst = int(distance.nan_to_num(math.inf).argmax())
    index = [*index_of(worst, got.shape)]
    mine, theirs = (_written(x.flatten()[worst].item(), 6) for x in (got, expected))
    if mine == theirs:  # they differ in later digits
        mine, theirs = (_written(x.flatten()[worst].item(), 17) for x in (got, expected))
    return ValueDifference(name, str(index), theirs, mine, int(wrong.sum()), got.numel())


def _written(number: Any, digits: int) -> str:
    return f"{number:.{digits}g}" if isinstance(number, (float, complex)) else f"{number}"


def _whole(name: str, got: Any, expected: Any) -> ValueDifference:
    return ValueDifference(name, "", value_text(expected), value_text(got))


def value_text(value: Any) -> str:
    """A value for a message, as a whole."""
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{value.dtype} of shape {list(value.shape)}"
