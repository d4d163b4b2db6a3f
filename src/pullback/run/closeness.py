"""Whether two computations of the same thing agree: how far they may be apart is measured.

They differ by rounding, and how much that is depends on the numbers, so it is no constant:

- Equal to two units in the last place is equal.
- What is further apart is measured. The computation in double precision says how far the expected
  numbers themselves are from the truth; the others may be as far, and as much further as sums of so
  many terms may be when they are added up in another order.
- What is still further apart may be a step: a rounding that fell to the other side of a `floor` or
  of a comparison. The computation at inputs that are a few units away in the last place says
  where, and how much, the result depends on that.

Where double precision cannot be had, the third measure stands for the second one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ULPS = 2.0  # units in the last place: what one rounding, or another library's `exp`, may change
SIGMAS = 6.0  # times the usual error of the expected numbers: nothing is so far off by chance


@dataclass(frozen=True, slots=True)
class Measures:
    """What is known of a value besides the expected one; each is computed when it is asked for.

    `exact` gives it in double precision, or None; `near` at inputs nearby. `terms` is how many
    numbers the longest sum in it adds up, `steps` how many ops it takes.
    """

    exact: Callable[[], Any]
    near: Callable[[], Sequence[Any]]
    terms: int
    steps: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a value is seen to be another one than expected, and how far at the worst element."""

    value: str
    at: str
    expected: str
    got: str
    count: int = 1
    size: int = 1

    def __str__(self) -> str:
        place = f" at {self.at}" if self.at else ""
        some = f", {self.count} of {self.size} elements differ" if self.size > 1 else ""
        return f"{self.value}{place}: {self.got} instead of {self.expected}{some}"


def compared(name: str, got: Any, expected: Any, measures: Measures) -> Difference | None:
    """How `got` differs from `expected`, in more than rounding; None if it does not."""
    if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
        same = _is_nothing(got) and _is_nothing(expected)
        return None if same or _is_same(got, expected) else _whole(name, got, expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return _whole(name, got, expected)
    got, expected = real(got.detach()), real(expected.detach())
    wrong = _apart(got, expected, _rounding(expected))
    if wrong is None:
        return None
    allowed, exact = _summing(expected, measures.terms), measures.exact()
    if isinstance(exact, Tensor) and expected.dtype.is_floating_point:
        exact = real(exact)
        allowed = allowed + SIGMAS * _usual(exact - expected.double())
        rounded = exact.to(expected.dtype).double()  # what is too large for the dtype is infinite
        wrong = _apart(got, rounded, allowed, wrong)
    if wrong is not None:
        for near in measures.near():
            moved = (real(near).double() - expected.double()).abs()
            # What is finite on one side of a step and not on the other can be either.
            moved = moved.nan_to_num(math.inf, math.inf)
            middle = float(moved.median()) if moved.numel() else 0.0  # steps are few
            allowed = allowed + math.sqrt(measures.steps) * moved + SIGMAS * middle
        wrong = _apart(got, expected, allowed, wrong)
    return None if wrong is None else _described(name, got, expected, wrong)


def _apart(
    got: Tensor, expected: Tensor, allowed: Any, among: Tensor | None = None
) -> Tensor | None:
    """Where, `among` some elements, two tensors are further apart than allowed; None if nowhere."""
    a, b = got.double(), expected.double()
    far = ~((a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= allowed))
    far = far if among is None else far & among
    return far if bool(far.any()) else None


def _rounding(expected: Tensor) -> Any:
    """How far a number may be from one that is as good."""
    if not expected.dtype.is_floating_point:
        return 0.0
    known = torch.finfo(expected.dtype)
    return _size(expected) * (ULPS * known.eps) + known.tiny


def _summing(expected: Tensor, terms: int) -> Any:
    """The same for a sum of so many terms: its errors grow like a random walk.

    Sums of half precision are kept in single precision until their end.
    """
    if not expected.dtype.is_floating_point:
        return 0.0
    eps = min(torch.finfo(expected.dtype).eps, torch.finfo(torch.float32).eps)
    return _rounding(expected) + _size(expected) * (math.sqrt(terms) * eps)


def _size(expected: Tensor) -> Tensor:
    return expected.double().abs().nan_to_num(0.0, 0.0)


def _usual(errors: Tensor) -> float:
    """The root of the mean square of those that are finite."""
    finite = errors[errors.isfinite()]
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


# ---- in words ----


def _described(name: str, got: Tensor, expected: Tensor, wrong: Tensor) -> Difference:
    distance = torch.where(wrong, (got.double() - expected.double()).abs(), -1.0)
    worst = int(distance.nan_to_num(math.inf).argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(worst), got.shape)]
    mine, theirs = (f"{float(x.flatten()[worst]):.6g}" for x in (got, expected))
    if mine == theirs:  # they differ in later digits
        mine, theirs = (f"{float(x.flatten()[worst]):.17g}" for x in (got, expected))
    return Difference(
        name, str(index) if index else "", theirs, mine, int(wrong.sum()), got.numel()
    )


def _whole(name: str, got: Any, expected: Any) -> Difference:
    return Difference(name, "", _kind(expected), _kind(got))


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


# ---- values ----


def real(tensor: Any) -> Any:
    """A complex tensor as pairs of real numbers; any other value as it is."""
    if isinstance(tensor, Tensor) and tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor


def _is_nothing(value: Any) -> bool:
    """Whether a gradient is absent, or zero: a backward may give either."""
    return value is None or (isinstance(value, Tensor) and not bool(value.any()))


def _is_same(got: Any, expected: Any) -> bool:
    both_plain = not isinstance(got, Tensor) and not isinstance(expected, Tensor)
    return both_plain and bool(got == expected)
