"""Expressions of unknown numbers: what one element of a gradient is computed from.

A `Scalar` is a number, a variable, or an operation on scalars. Equal expressions are one object, so
an expression is a graph without repetition. Building one simplifies only what has the same value
and the same domain: `0 * (1 / x)` stays, which sympy would turn into 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any
from weakref import WeakValueDictionary

from pullback.judge.tolerances import LITERAL

Number = int | float | Fraction


class Outside(Exception):
    """Something that no expression can describe; the text completes "the gradient uses ..."."""


class Scalar:
    """One expression: its `kind`, and its parts.

    The kinds are "number" (a `Fraction`), "variable" (its name), "pi", "add", "mul", "div", "pow",
    "case" and the `FUNCTIONS`. A case has four parts: its value is the second, third or fourth
    where the first is negative, zero or positive, and only that one need be defined.
    """

    __slots__ = ("__weakref__", "kind", "parts")

    def __init__(self, kind: str, parts: tuple[Any, ...]) -> None:
        self.kind = kind
        self.parts = parts

    def __add__(self, other: Scalar | Number) -> Scalar:
        return sum_of([self, as_scalar(other)])

    __radd__ = __add__

    def __neg__(self) -> Scalar:
        return known_number(-1) * self

    def __sub__(self, other: Scalar | Number) -> Scalar:
        return self + -as_scalar(other)

    def __rsub__(self, other: Number) -> Scalar:
        return known_number(other) - self

    def __mul__(self, other: Scalar | Number) -> Scalar:
        return _product(self, as_scalar(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Scalar | Number) -> Scalar:
        return _quotient(self, as_scalar(other))

    def __rtruediv__(self, other: Number) -> Scalar:
        return known_number(other) / self

    def __pow__(self, other: Scalar | Number) -> Scalar:
        return _power(self, as_scalar(other))

    def __repr__(self) -> str:
        if self.kind in ("number", "variable"):
            return str(self.parts[0])
        return f"{self.kind}({', '.join(map(repr, self.parts))})"


_known: WeakValueDictionary[tuple[str, tuple[Any, ...]], Scalar] = WeakValueDictionary()


def _make(kind: str, *parts: Any) -> Scalar:
    found = _known.get((kind, parts))
    if found is None:
        found = _known[kind, parts] = Scalar(kind, parts)
    return found


def as_scalar(value: Scalar | Number) -> Scalar:
    """`value` as an expression."""
    return value if isinstance(value, Scalar) else known_number(value)


def constant_value(scalar: Scalar) -> Fraction | None:
    """The number that `scalar` is, or None."""
    return scalar.parts[0] if scalar.kind == "number" else None


# ---- numbers and variables ----


def variable(name: str) -> Scalar:
    """The unknown number `name`; the same name is the same number."""
    return _make("variable", name)


def known_number(value: Number) -> Scalar:
    """The number that `value` stands for.

    A float stands for the simplest number that rounds to it: 0.1 for 1/10, 0.7978845608028654 for
    the root of 2/pi. Otherwise no formula written with floats would ever be exactly right.
    """
    if isinstance(value, float):
        return _simplest(value)
    return _make("number", Fraction(value))


def _simplest(value: float) -> Scalar:
    if not math.isfinite(value):
        raise Outside(f"the number {value}")
    found = _fraction(value, 10**7)
    if found is not None:
        return _make("number", found)
    for scalar, size in _constants():
        found = _fraction(value / size, 1000)
        if found is not None:
            return _make("number", found) * scalar
    return _make("number", Fraction(repr(value)))


def _fraction(value: float, limit: int) -> Fraction | None:
    near = Fraction(value).limit_denominator(limit)
    return near if abs(near - Fraction(value)) <= LITERAL * abs(value) else None


def _constants() -> Iterator[tuple[Scalar, float]]:
    """The irrational numbers that formulas often contain."""
    pi, half = _make("pi"), Fraction(1, 2)
    bases = [(known_number(2), 2.0), (known_number(3), 3.0), (pi, math.pi), (2 * pi, 2 * math.pi)]
    roots = [(scalar**half, math.sqrt(size)) for scalar, size in bases]
    logs = [(log(known_number(n)), math.log(n)) for n in (2, 10)]
    for scalar, size in [(pi, math.pi), *roots, *logs]:
        yield from [(scalar, size), (1 / scalar, 1 / size)]
    yield (2 / pi) ** half, math.sqrt(2 / math.pi)


# ---- arithmetic ----


def sum_of(scalars: Sequence[Scalar]) -> Scalar:
    """The sum of `scalars`."""
    known = sum((s.parts[0] for s in scalars if s.kind == "number"), Fraction(0))
    parts = [s for s in scalars if s.kind != "number"]
    if known:
        parts.append(known_number(known))
    if not parts:
        return known_number(0)
    return parts[0] if len(parts) == 1 else _make("add", *parts)


def _product(a: Scalar, b: Scalar) -> Scalar:
    x, y = constant_value(a), constant_value(b)
    if x is not None and y is not None:
        return known_number(x * y)
    if y is not None:
        return _product(b, a)
    if x == 1:
        return b
    first = constant_value(b.parts[0]) if b.kind == "mul" else None
    if x is not None and first is not None:
        return _product(known_number(x * first), b.parts[1])
    return _make("mul", a, b)


def _quotient(a: Scalar, b: Scalar) -> Scalar:
    divisor = constant_value(b)
    if divisor:
        return known_number(1 / divisor) * a
    return _make("div", a, b)


def _power(a: Scalar, b: Scalar) -> Scalar:
    if constant_value(b) == 1:
        return a
    if constant_value(b) == 0:
        return known_number(1)  # also of zero, as in PyTorch
    return _make("pow", a, b)


# ---- cases ----


def case(of: Scalar, below: Scalar, at: Scalar, above: Scalar) -> Scalar:
    """`below`, `at` or `above`, where `of` is negative, zero or positive."""
    if below is at is above:
        return at
    known = constant_value(of)
    if known is not None:
        return above if known > 0 else below if known < 0 else at
    if of.kind == "case" and all(part.kind == "number" for part in of.parts[1:]):
        return case(of.parts[0], *(case(part, below, at, above) for part in of.parts[1:]))
    return _make("case", of, below, at, above)


def select(condition: Scalar, yes: Scalar, no: Scalar) -> Scalar:
    """`yes` where `condition`, which is 0 or 1, is 1, otherwise `no`."""
    return case(condition, no, no, yes)


def greater(a: Scalar, b: Scalar) -> Scalar:
    """1 where a > b, otherwise 0."""
    return case(a - b, known_number(0), known_number(0), known_number(1))


def equal_to(a: Scalar, b: Scalar) -> Scalar:
    """1 where a = b, otherwise 0."""
    return case(a - b, known_number(0), known_number(1), known_number(0))


def larger(a: Scalar, b: Scalar) -> Scalar:
    """The larger of two."""
    return case(a - b, b, a, a)


# ---- functions ----

FUNCTIONS = (
    *("exp", "log", "sin", "cos", "asin", "acos", "atan", "asinh", "acosh", "atanh"),
    *("erf", "lgamma", "digamma", "floor", "ceil"),
)


POSITIVE, NONNEGATIVE, NONZERO = "> 0", ">= 0", "!= 0"
MEETS: dict[str, Callable[[Any], bool]] = {
    POSITIVE: lambda x: x > 0,
    NONNEGATIVE: lambda x: x >= 0,
    NONZERO: lambda x: x != 0,
}

DOMAINS: dict[str, Callable[[Any], Sequence[tuple[Any, str]]]] = {
    "log": lambda x: [(x, POSITIVE)],
    "asin": lambda x: [(1 - x, NONNEGATIVE), (1 + x, NONNEGATIVE)],
    "acos": lambda x: [(1 - x, NONNEGATIVE), (1 + x, NONNEGATIVE)],
    "acosh": lambda x: [(x - 1, NONNEGATIVE)],
    "atanh": lambda x: [(1 - x, POSITIVE), (1 + x, POSITIVE)],
}
"""What must hold of the argument of a function, for numbers and for sympy expressions."""


def _function(kind: str) -> Callable[[Scalar], Scalar]:
    def function(a: Scalar) -> Scalar:
        return _make(kind, a)

    return function


exp, log, sin, cos, asin, acos, atan, asinh, acosh, atanh, erf, lgamma, digamma, floor, ceil = (
    _function(kind) for kind in FUNCTIONS
)


def replaced(roots: Sequence[Scalar], values: Mapping[Scalar, Scalar]) -> list[Scalar]:
    """`roots` with some variables replaced by other expressions."""
    known: dict[Scalar, Scalar] = {}
    for scalar in subexpressions(*roots):
        known[scalar] = values.get(scalar) or _rebuilt(scalar, [known[p] for p in children(scalar)])
    return [known[root] for root in roots]


_BUILDERS: dict[str, Callable[..., Scalar]] = {
    "add": lambda *parts: sum_of(parts),
    "mul": _product,
    "div": _quotient,
    "pow": _power,
    "case": case,
}


def _rebuilt(scalar: Scalar, parts: Sequence[Scalar]) -> Scalar:
    if not parts:
        return scalar
    build = _BUILDERS.get(scalar.kind)
    return _make(scalar.kind, *parts) if build is None else build(*parts)


# ---- reading expressions ----


def children(scalar: Scalar) -> tuple[Scalar, ...]:
    """The parts that are expressions themselves."""
    return () if scalar.kind in ("number", "variable") else scalar.parts


def subexpressions(*roots: Scalar) -> list[Scalar]:
    """Every expression inside `roots`, parts before what they are part of."""
    seen: dict[Scalar, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        scalar, is_ready = stack.pop()
        if is_ready:
            seen.setdefault(scalar)
        elif scalar not in seen:
            stack.append((scalar, True))
            stack += [(part, False) for part in reversed(children(scalar))]
    return list(seen)


def variables_of(*roots: Scalar) -> list[Scalar]:
    """The variables in `roots`, in the order in which they come."""
    return [scalar for scalar in subexpressions(*roots) if scalar.kind == "variable"]


def form_of(*roots: Scalar) -> tuple[Any, ...]:
    """The structure of `roots` without the names of the variables."""
    places: dict[Scalar, int] = {}
    form: list[Any] = []
    names = 0
    for scalar in subexpressions(*roots):
        places[scalar] = len(places)
        if scalar.kind == "variable":
            form.append(("variable", names))
            names += 1
        elif scalar.kind == "number":
            form.append(("number", scalar.parts[0]))
        else:
            form.append((scalar.kind, *(places[part] for part in scalar.parts)))
    return (*form, *(places[root] for root in roots))


def coefficients(root: Scalar, of: frozenset[Scalar]) -> dict[Scalar, Scalar] | None:
    """The coefficient of each variable in `of`, if `root` is by its form a linear sum of them."""
    found: dict[Scalar, dict[Scalar, Scalar] | None] = {}
    free: dict[Scalar, bool] = {}
    for scalar in subexpressions(root):
        free[scalar] = scalar not in of and all(free[part] for part in children(scalar))
        found[scalar] = _coefficients(scalar, found, free)
    return found[root]


def _coefficients(
    scalar: Scalar, found: dict[Scalar, dict[Scalar, Scalar] | None], free: dict[Scalar, bool]
) -> dict[Scalar, Scalar] | None:
    if free[scalar]:
        return {} if constant_value(scalar) == 0 else None
    if scalar.kind == "variable":
        return {scalar: known_number(1)}
    parts = [found[part] for part in scalar.parts]
    if scalar.kind == "add" and None not in parts:
        return _joined(parts, lambda each: sum_of(each))
    if scalar.kind == "mul":
        return _scaled(scalar.parts, parts, free)
    if scalar.kind == "div" and parts[0] is not None and free[scalar.parts[1]]:
        return {v: c / scalar.parts[1] for v, c in parts[0].items()}
    if scalar.kind == "case" and free[scalar.parts[0]] and None not in parts[1:]:
        return _joined(parts[1:], lambda each: case(scalar.parts[0], *each))
    return None


def _scaled(
    factors: Sequence[Scalar],
    parts: Sequence[dict[Scalar, Scalar] | None],
    free: dict[Scalar, bool],
) -> dict[Scalar, Scalar] | None:
    for other, linear in zip(factors[::-1], parts, strict=True):
        if free[other] and linear is not None:
            return {v: c * other for v, c in linear.items()}
    return None


def _joined(
    parts: Sequence[dict[Scalar, Scalar] | None], join: Callable[[list[Scalar]], Scalar]
) -> dict[Scalar, Scalar]:
    names = dict.fromkeys(v for part in parts for v in part or ())
    return {v: join([(part or {}).get(v, known_number(0)) for part in parts]) for v in names}
