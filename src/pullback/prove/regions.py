"""Parts of the space of the variables, in which the signs of conditions are known.

A region is made by assuming signs, one after the other. Where possible, an assumption becomes a new
symbol: x is `y + p` with a positive p where x > y. sympy then derives the signs that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import sympy  # type: ignore[import-untyped]

from pullback.prove.scalars import Scalar
from pullback.prove.signs import Expr, sign_of


class Split(Exception):
    """The sign of `of` is needed, and not known."""

    def __init__(self, of: Expr) -> None:
        Exception.__init__(self)
        self.of = of


@dataclass(frozen=True, slots=True)
class Region:
    """Values of the variables, in terms of free symbols that are real, or positive.

    `facts` are signs of expressions that symbols could not express; `meanings` gives each new
    symbol in terms of the old ones, `conditions` the definition of the region as text.
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
        """-1, 0 or 1; raises `Split` with the part of `e` whose sign decides."""
        product = sign_of(e)
        if product is not None:
            return product
        product = 1
        for base, exponent in factors_of(e):
            known = self.sign_of_factor(base)
            if known == 0:
                return 0
            product *= known if exponent % 2 else 1
        return product

    def sign_if_known(self, e: Expr) -> int | None:
        """-1, 0 or 1; None if it is not known."""
        try:
            return self.sign(e)
        except Split:
            return None

    def sign_of_factor(self, base: Expr) -> int:
        """The sign of what has no factors; raises `Split`."""
        known = sign_of(base)
        if known is None:
            key, flip = normal_of(base)
            if key not in self.facts:
                raise Split(key)
            known = flip * self.facts[key]
        return known

    def assume(self, e: Expr, sign: int) -> Region | None:
        """The part of the region where `e` has this sign; None if there is none."""
        excluded = {1: e.is_nonpositive, -1: e.is_nonnegative, 0: e.is_nonzero}
        if excluded[sign]:
            return None
        words = (*self.conditions, relation(self.meant(e), "=><"[sign]))
        for symbol in sorted(e.free_symbols, key=str):
            solved = _solved(e, symbol, sign)
            if solved is not None:
                return self._replaced(symbol, solved, sign * e, words)
        return Region(self.values, {**self.facts, e: sign}, self.meanings, words)

    def _replaced(
        self, symbol: Expr, solved: tuple[Expr, Expr | None], meaning: Expr, words: tuple[str, ...]
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
            key, flip = normal_of(now)
            if known is None and facts.setdefault(key, flip * sign) != flip * sign:
                return None
        return Region(values, facts, meanings, words)

    def meant(self, e: Expr) -> Expr:
        """`e` in the user's variables."""
        while e.free_symbols & set(self.meanings):
            e = e.xreplace(dict(self.meanings))
        return sympy.expand(e)

    def __str__(self) -> str:
        return " and ".join(self.conditions)

    def point(
        self, *, positive: Callable[[], Fraction], real: Callable[[], Fraction]
    ) -> dict[Scalar, Fraction]:
        """Values of the variables inside, but for `facts`, from values drawn for the symbols."""
        symbols = sorted({s for e in self.values.values() for s in e.free_symbols}, key=str)
        drawn = {s: rational_of(positive() if s.is_positive else real()) for s in symbols}
        values = {v: e.xreplace(drawn) for v, e in self.values.items()}
        return {v: Fraction(int(e.p), int(e.q)) for v, e in values.items() if e.is_Rational}


def rational_of(value: Fraction) -> Expr:
    """A fraction as a sympy number."""
    return sympy.Rational(value.numerator, value.denominator)


def factors_of(e: Expr) -> Iterator[tuple[Expr, int]]:
    """Factors whose signs make the sign of `e` where it is defined, and how often each counts."""
    parted = e if e.is_Symbol or e.is_Number else sympy.factor(sympy.together(e))
    for factor in sympy.Mul.make_args(parted):
        base, exponent = factor.as_base_exp()
        if isinstance(factor, sympy.exp) or not exponent.is_Rational:
            yield factor, 1
        else:
            yield base, int(exponent) if exponent.is_Integer else 1


def normal_of(e: Expr) -> tuple[Expr, int]:
    """`e` up to a factor, and the sign of that factor."""
    _, whole = sympy.expand(e).as_content_primitive()
    return (-whole, -1) if whole.could_extract_minus_sign() else (whole, 1)


def _solved(e: Expr, symbol: Expr, sign: int) -> tuple[Expr, Expr | None] | None:
    """What `symbol` is where `e`, linear in it, has this sign; and the positive symbol in that."""
    slope = sympy.diff(e, symbol)
    if not (slope.is_Rational and slope):
        return None
    rest = sympy.expand(e - slope * symbol)
    new: Expr = sympy.Dummy(symbol.name, positive=True) if sign else None
    value = (-rest if new is None else sign * new - rest) / slope
    if symbol.is_positive and not value.is_positive:
        return None
    return value, new


def relation(e: Expr, rule: str) -> str:
    """The relation of `e` to zero, with a positive left side: `x = y + 1` for `x - y - 1 = 0`."""
    terms = sympy.Add.make_args(e)
    right = [-term for term in terms if term.is_number or term.could_extract_minus_sign()]
    left = [term for term in terms if -term not in right]
    if not left:
        turned = str.maketrans("<>", "><")
        return relation(-e, rule.translate(turned))
    return f"{sympy.Add(*left)} {rule.removesuffix(' 0')} {sympy.Add(*right)}"
