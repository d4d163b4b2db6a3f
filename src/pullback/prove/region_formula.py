"""An expression as a sympy formula, in a region where it has no cases left; and its domain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]

from pullback.prove.regions import Region, Split, factors_of, normal_of, rational_of
from pullback.prove.scalars import DOMAINS, MEETS, NONNEGATIVE, NONZERO, POSITIVE, Scalar
from pullback.prove.signs import Expr, sign_of
from pullback.prove.zero_sets import is_thin

Need = tuple[Expr, str]
"""An expression, and what must hold of it."""


class Nowhere(Exception):
    """An expression is defined nowhere in a region; if `is_nearly`, on a set without volume."""

    def __init__(self, *, is_nearly: bool = False) -> None:
        Exception.__init__(self)
        self.is_nearly = is_nearly


class Unclear(Exception):
    """An expression may have a value in a region, but no formula is made for it there."""


class Infinite(Unclear):
    """An expression is infinite in a region, which PyTorch goes on computing with: 1 / inf is 0."""


class RegionFormula:
    """The value of an expression in a region, and what it needs to be defined there.

    A comparison with what is not defined is false in PyTorch, and not undefined: where the
    condition of a case is not defined, it is unclear which part is taken.
    """

    def __init__(self, scalar: Scalar, region: Region) -> None:
        """Raises `Split` if a sign must be known, `Nowhere`, or `Unclear`."""
        self.region = region
        self.needs: dict[Need, None] = {}
        self._known: dict[Scalar, Expr] = {}
        self.value = self._of(scalar)

    def _of(self, scalar: Scalar) -> Expr:
        found = self._known.get(scalar)
        if found is None:
            found = self._known[scalar] = self._computed(scalar)
        return found

    def _computed(self, scalar: Scalar) -> Expr:
        kind, parts = scalar.kind, scalar.parts
        if kind == "number":
            return rational_of(parts[0])
        if kind == "variable":
            return self.region.values[scalar]
        if kind == "pi":
            return sympy.pi
        if kind == "case":
            return self._case(*parts)
        values = self._factors(*parts) if kind == "mul" else self._values(parts)
        if kind == "add":
            return sympy.Add(*values)
        if kind == "mul":
            return values[0] * values[1]
        if kind == "div":
            if values[0] == 0 and self.region.sign_if_known(values[1]) == 0:
                raise Nowhere
            self._need(values[1], NONZERO)
            return values[0] / values[1]
        return self._power(*values) if kind == "pow" else self._function(kind, values[0])

    def _values(self, parts: Sequence[Scalar]) -> list[Expr]:
        """The values of all parts; `Nowhere` in one of them wins over `Unclear` in another."""
        values, unclear = [], None
        for part in parts:
            try:
                values.append(self._of(part))
            except Unclear as error:
                unclear = error
        if unclear is not None:
            raise unclear
        return values

    def _factors(self, *parts: Scalar) -> list[Expr]:
        """The values of two factors; zero times infinity is undefined."""
        try:
            return self._values(parts)
        except Infinite:
            if any(self._is_zero(part) for part in parts):
                raise Nowhere from None
            raise

    def _is_zero(self, scalar: Scalar) -> bool:
        try:
            return bool(self._of(scalar) == 0)
        except (Nowhere, Unclear):
            return False

    def _case(self, of: Scalar, *parts: Scalar) -> Expr:
        try:
            sign = self._condition(of)
        except Unclear:
            if all(self._is_nowhere(part) for part in parts):
                raise Nowhere from None
            raise
        return self._of(parts[1 + sign])

    def _condition(self, scalar: Scalar) -> int:
        """The sign of a condition; raises `Split` where it is not known whether it is defined.

        Only its poles, which have no volume, may stay open.
        """
        before = set(self.needs)
        try:
            value = self._of(scalar)
        except Nowhere:
            raise Unclear from None
        for of, rule in [need for need in self.needs if need not in before]:
            if rule != NONZERO or not is_thin(of):
                self.region.sign(of)
        return self.region.sign(value)

    def _is_nowhere(self, scalar: Scalar) -> bool:
        try:
            self._of(scalar)
        except Nowhere:
            return True
        except Unclear:
            return False
        return False

    def _power(self, base: Expr, exponent: Expr) -> Expr:
        if not exponent.is_Rational:
            return self._open_power(base, exponent)
        if not exponent.is_Integer:
            self._need(base, NONNEGATIVE if exponent > 0 else POSITIVE)
        elif exponent < 0:
            self._need(base, NONZERO)
        return base**exponent

    def _open_power(self, base: Expr, exponent: Expr) -> Expr:
        """A power with an unknown exponent: negative bases have integer powers only."""
        sign = self.region.sign(base)
        if sign > 0:
            return base**exponent
        if sign < 0:
            is_rarely_integer = is_thin(sympy.sin(sympy.pi * exponent))
            raise Nowhere(is_nearly=True) if is_rarely_integer else Unclear
        of = self.region.sign(exponent)
        if of < 0:
            raise Nowhere
        return sympy.S.Zero if of else sympy.S.One

    def _function(self, kind: str, x: Expr) -> Expr:
        if kind in ("lgamma", "digamma") and self.region.sign(x) < 1:
            raise Unclear  # both have values between their poles
        for of, rule in DOMAINS.get(kind, lambda x: ())(x):
            self._need(of, rule)
        function: Any = _FUNCTIONS.get(kind) or getattr(sympy, kind)
        return function(x)

    def _need(self, of: Expr, rule: str) -> None:
        if rule == NONNEGATIVE and of.is_nonnegative:
            return
        sign, undecided = self._signs(of)
        if undecided:
            self.needs |= dict.fromkeys(_needed(of, rule, sign, undecided))
        elif not MEETS[rule](sign):
            raise Nowhere if sign else Infinite

    def _signs(self, of: Expr) -> tuple[int, list[tuple[Expr, int]]]:
        """The sign of the factors that have one, and those whose sign varies."""
        whole = sign_of(of)
        if whole is not None:
            return whole, []
        sign, undecided = 1, []
        for base, count in factors_of(of):
            try:
                known = self.region.sign_of_factor(base)
            except Split:
                undecided.append((base, count))
                continue
            sign *= known if known == 0 or count % 2 else 1
        return sign, undecided if sign else []


def _needed(of: Expr, rule: str, sign: int, factors: list[tuple[Expr, int]]) -> Iterator[Need]:
    """What the factors of `of` whose signs vary must meet, for `of` to meet `rule`."""
    base, count = factors[0]
    key, flip = normal_of(base)
    if rule == NONZERO:
        yield from ((normal_of(each)[0], rule) for each, _ in factors)
    elif len(factors) == 1 and count % 2:
        yield flip * sign * key, rule
    elif len(factors) == 1 and sign > 0:
        yield key, NONZERO  # an even power: positive but for zero
    else:
        key, flip = normal_of(of)
        yield flip * key, rule


_FUNCTIONS: dict[str, Any] = {"lgamma": sympy.loggamma, "ceil": sympy.ceiling}
