"""Are two expressions equal wherever both are defined? Case by case, with sympy.

Where an expression is made of cases, the variables are divided into regions by the signs of what
decides: in each region the expressions are plain formulas. The regions of all sign patterns cover
everything, so it does no harm that some of them are empty. A region with an equality in it (a tie)
has no volume: what cannot be shown there is said, and does not count against the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import sympy

from pullback.derive.algebra.bounds import sign_of
from pullback.derive.algebra.deadline import TimeLimitError, within
from pullback.derive.algebra.scalars import Scalar, variables_of
from pullback.derive.algebra.vanish import Expr, vanishes

MOST = 400  # regions


@dataclass(frozen=True, slots=True)
class Shown:
    """Both are equal wherever both are defined, but for what `provisos` say."""

    provisos: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """Nothing is shown: `reason`, and in which region it failed, if in one."""

    reason: str
    region: Region | None = None


def compare(hand: Scalar, derived: Scalar, deadline: float) -> Shown | Open:
    """Whether the hand-written expression is equal to the derived one, by `deadline`."""
    try:
        return Shown(_Comparison(hand, derived, deadline).run())
    except _Failed as failed:
        return Open(str(failed), failed.region)
    except TimeLimitError:
        return Open("time limit")
    except RecursionError:
        return Open("expression too deep")


class _Failed(Exception):
    def __init__(self, reason: str, region: Region | None = None) -> None:
        Exception.__init__(self, reason)
        self.region = region


class _Split(Exception):
    """The sign of `of` is needed, and not known."""

    def __init__(self, of: Expr) -> None:
        Exception.__init__(self)
        self.of = of


class _Nowhere(Exception):
    """An expression is defined nowhere in a region."""


# ---- regions ----


@dataclass(frozen=True, slots=True)
class Region:
    """Values of the variables, by symbols that are free: real, or positive where that is said.

    `facts` are signs of expressions which could not be said by the symbols; `meanings` says what
    each new symbol is in terms of the old ones, `conditions` what makes the region, in words.
    """

    values: Mapping[Scalar, Expr]
    facts: Mapping[Expr, int] = field(default_factory=dict)
    meanings: Mapping[Expr, Expr] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()

    @staticmethod
    def whole(variables: list[Scalar]) -> Region:
        """All real values."""
        return Region({v: sympy.Symbol(v.parts[0], real=True) for v in variables})

    def sign(self, e: Expr) -> int:
        """-1, 0 or 1; raises `_Split` with the part of `e` whose sign decides."""
        product = 1
        for base, exponent in _factors(e):
            known = self.sign_of_factor(base)
            if known == 0:
                return 0
            product *= known if exponent % 2 else 1
        return product

    def sign_of_factor(self, base: Expr) -> int:
        """The sign of what has no factors; raises `_Split`."""
        known = sign_of(base)
        if known is None:
            key, flip = _normal(base)
            if key not in self.facts:
                raise _Split(key)
            known = flip * self.facts[key]
        return known

    def assume(self, e: Expr, sign: int) -> Region | None:
        """The part of the region where `e` has this sign; None if there is none."""
        excluded = {1: e.is_nonpositive, -1: e.is_nonnegative, 0: e.is_nonzero}
        if excluded[sign]:
            return None
        words = (*self.conditions, f"{self.text(e)} {'=><'[sign]} 0")
        for symbol in sorted(e.free_symbols, key=str):
            solved = _solved(e, symbol, sign)
            if solved is not None:
                return self._replaced(symbol, solved, sign * e, words)
        return Region(self.values, {**self.facts, e: sign}, self.meanings, words)

    def _replaced(
        self, symbol: Expr, solved: tuple[Expr, Expr], meaning: Expr, words: tuple[str, ...]
    ) -> Region | None:
        value, new = solved
        values = {v: each.xreplace({symbol: value}) for v, each in self.values.items()}
        meanings = {**self.meanings, **({} if new is None else {new: meaning})}
        facts: dict[Expr, int] = {}
        for old, sign in self.facts.items():
            now = old.xreplace({symbol: value})
            known = sign_of(now)
            if known is not None and known != sign:
                return None
            key, flip = _normal(now)
            if known is None and facts.setdefault(key, flip * sign) != flip * sign:
                return None
        return Region(values, facts, meanings, words)

    def text(self, e: Expr) -> str:
        """`e` in the user's variables."""
        while e.free_symbols & set(self.meanings):
            e = e.xreplace(dict(self.meanings))
        return str(sympy.expand(e))

    def point(self, draw: Callable[[bool], Fraction]) -> dict[Scalar, Fraction]:
        """Values of the variables inside, but for `facts`; `draw` is told if positive ones."""
        symbols = sorted({s for e in self.values.values() for s in e.free_symbols}, key=str)
        drawn = {s: _rational(draw(bool(s.is_positive))) for s in symbols}
        values = {v: e.xreplace(drawn) for v, e in self.values.items()}
        return {v: Fraction(int(e.p), int(e.q)) for v, e in values.items() if e.is_Rational}


def _rational(value: Fraction) -> Expr:
    return sympy.Rational(value.numerator, value.denominator)


def _factors(e: Expr) -> Iterator[tuple[Expr, int]]:
    """Factors whose signs make the sign of `e`, and whether each counts odd times."""
    parted = e if e.is_Symbol or e.is_Number else sympy.factor(sympy.together(e))
    for factor in sympy.Mul.make_args(parted):
        base, exponent = factor.as_base_exp()
        if exponent.is_Integer and not isinstance(factor, sympy.exp):
            yield base, int(exponent)
        else:
            yield factor, 1


def _normal(e: Expr) -> tuple[Expr, int]:
    """`e` up to a factor, and the sign of that factor."""
    _, whole = sympy.expand(e).as_content_primitive()
    return (-whole, -1) if whole.could_extract_minus_sign() else (whole, 1)


def _solved(e: Expr, symbol: Expr, sign: int) -> tuple[Expr, Expr] | None:
    """What `symbol` is where `e`, linear in it, has this sign; and the positive symbol in that."""
    slope = sympy.diff(e, symbol)
    if not (slope.is_Rational and slope):
        return None
    rest = sympy.expand(e - slope * symbol)
    new = sympy.Dummy(positive=True) if sign else None
    value = ((sign * new if sign else 0) - rest) / slope
    if symbol.is_positive and not value.is_positive:
        return None
    return value, new


# ---- plain formulas ----

_POSITIVE, _NONNEGATIVE, _NONZERO = "> 0", ">= 0", "!= 0"
_MEETS = {_POSITIVE: (1,), _NONNEGATIVE: (0, 1), _NONZERO: (-1, 1)}


class _Formula:
    """An expression as sympy's in one region, and what it needs to be defined there."""

    def __init__(self, scalar: Scalar, region: Region) -> None:
        self.region = region
        self.known: dict[Scalar, Expr] = {}
        self.needs: dict[tuple[Expr, str], None] = {}
        self.value = self.of(scalar)

    def of(self, scalar: Scalar) -> Expr:
        found = self.known.get(scalar)
        if found is None:
            found = self.known[scalar] = self._of(scalar)
        return found

    def _of(self, scalar: Scalar) -> Expr:
        kind, parts = scalar.kind, scalar.parts
        if kind == "number":
            return _rational(parts[0])
        if kind == "variable":
            return self.region.values[scalar]
        if kind == "pi":
            return sympy.pi
        if kind == "case":
            return self.of(parts[2 + self.region.sign(self.of(parts[0]))])
        values = [self.of(part) for part in parts]
        if kind == "add":
            return sympy.Add(*values)
        if kind == "mul":
            return values[0] * values[1]
        if kind == "div":
            self._need(values[1], _NONZERO)
            return values[0] / values[1]
        return self._power(*values) if kind == "pow" else self._function(kind, values[0])

    def _power(self, base: Expr, exponent: Expr) -> Expr:
        if not exponent.is_Rational:
            self._need(base, _POSITIVE)
        elif not exponent.is_Integer:
            self._need(base, _NONNEGATIVE if exponent > 0 else _POSITIVE)
        elif exponent < 0:
            self._need(base, _NONZERO)
        return base**exponent

    def _function(self, kind: str, x: Expr) -> Expr:
        for of, rule in _DOMAINS.get(kind, _nothing)(x):
            self._need(of, rule)
        return _FUNCTIONS.get(kind, getattr(sympy, kind, None))(x)

    def _need(self, of: Expr, rule: str) -> None:
        sign, open_factors = 1, []
        for base, exponent in _factors(of):
            try:
                known = self.region.sign_of_factor(base)
            except _Split:
                open_factors.append((base, exponent))
                continue
            sign *= known if known == 0 or exponent % 2 else 1
        if (not open_factors or sign == 0) and sign not in _MEETS[rule]:
            raise _Nowhere
        if not open_factors or sign == 0:
            return
        self.needs |= dict.fromkeys(_needed(of, rule, sign, open_factors))


def _needed(
    of: Expr, rule: str, sign: int, factors: list[tuple[Expr, int]]
) -> Iterator[tuple[Expr, str]]:
    """What is needed of the factors of `of` whose signs are open, for `of` to keep to `rule`."""
    if rule == _NONZERO:
        for base, _ in factors:
            yield _normal(base)[0], rule
    elif len(factors) == 1 and factors[0][1] % 2:
        key, flip = _normal(factors[0][0])
        yield flip * sign * key, rule
    elif len(factors) == 1 and sign > 0:
        if rule == _POSITIVE:
            yield _normal(factors[0][0])[0], _NONZERO
    else:
        key, flip = _normal(of)
        yield flip * key, rule


def _nothing(x: Expr) -> list[tuple[Expr, str]]:
    return []


_DOMAINS: dict[str, Callable[[Expr], list[tuple[Expr, str]]]] = {
    "log": lambda x: [(x, _POSITIVE)],
    "asin": lambda x: [(1 - x, _NONNEGATIVE), (1 + x, _NONNEGATIVE)],
    "acos": lambda x: [(1 - x, _NONNEGATIVE), (1 + x, _NONNEGATIVE)],
    "acosh": lambda x: [(x - 1, _NONNEGATIVE)],
    "atanh": lambda x: [(1 - x, _POSITIVE), (1 + x, _POSITIVE)],
    "lgamma": lambda x: [(x, _POSITIVE)],
    "digamma": lambda x: [(x, _POSITIVE)],
}
_FUNCTIONS: dict[str, Any] = {"lgamma": sympy.loggamma, "ceil": sympy.ceiling}


# ---- the comparison ----


class _Comparison:
    """Two expressions, region by region."""

    def __init__(self, hand: Scalar, derived: Scalar, deadline: float) -> None:
        self.hand = hand
        self.derived = derived
        self.deadline = deadline
        self.count = 0
        self.ties: list[Region] = []
        self.provisos: list[str] = []

    def run(self) -> tuple[str, ...]:
        """The provisos; raises `_Failed` unless both are shown to be equal."""
        self.examine(Region.whole(variables_of(self.hand, self.derived)))
        provisos = list(self.provisos)
        for region in self.ties:
            try:
                self.examine(region, is_tied=True)
            except (_Failed, TimeLimitError, RecursionError):
                provisos.append(f"not shown where {region.conditions[-1]}")
        return tuple(dict.fromkeys(provisos))

    def examine(self, region: Region, is_tied: bool = False) -> None:
        """Compare both in `region`; raises `_Failed` unless they are shown to be equal there."""
        self.count += 1
        if self.count > MOST:
            raise _Failed("too many cases")
        try:
            hand, derived = self._formula(self.hand, region), self._formula(self.derived, region)
        except _Split as split:
            self._divide(region, split.of, is_tied)
            return
        place = " and ".join(region.conditions)
        if derived is None and hand is not None:
            self.provisos.append(f"the derived gradient is not defined where {place}")
        if derived is None:
            return
        if hand is None:
            raise _Failed(f"the hand-written gradient is not defined where {place}", region)
        self.provisos += _provisos(hand, derived)
        if not self._equal(hand, derived):
            where = f" where {place}" if place else ""
            raise _Failed(f"no way found to show that both are equal{where}", region)

    def _divide(self, region: Region, of: Expr, is_tied: bool) -> None:
        for sign in (1, -1, 0):
            part = self._limited(region.assume, of, sign)
            if part is None:
                continue
            if sign or is_tied:
                self.examine(part, is_tied)
            else:
                self.ties.append(part)

    def _equal(self, hand: _Formula, derived: _Formula) -> bool:
        if vanishes(hand.value - derived.value, self.deadline):
            return True
        # Where both are defined, more is known: that logarithms are taken of what is positive.
        for of, rule in {**hand.needs, **derived.needs}:
            part = self._limited(hand.region.assume, of, 1) if rule == _POSITIVE else None
            if part is not None and part.facts == hand.region.facts:
                again = [self._formula(each, part) for each in (self.hand, self.derived)]
                return None not in again and self._equal(*again)
        return False

    def _formula(self, scalar: Scalar, region: Region) -> _Formula | None:
        """The formula in a region; None where it is defined nowhere."""
        try:
            return self._limited(_Formula, scalar, region)
        except _Nowhere:
            return None

    def _limited(self, function: Callable[..., Any], *args: Any) -> Any:
        return within(self.deadline - time.monotonic(), function, *args)


def _provisos(hand: _Formula, derived: _Formula) -> Iterator[str]:
    """What both or one of the two need to be defined."""
    for of, rule in {**hand.needs, **derived.needs}:
        both = (of, rule) in hand.needs and (of, rule) in derived.needs
        one = "the hand-written gradient is" if (of, rule) in hand.needs else "the derived gradient is"
        who = "both are" if both else one
        yield f"{who} defined only where {hand.region.text(of)} {rule}"
