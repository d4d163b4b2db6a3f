"""Decisions on sizes that the user's own code made while it was captured.

Every decision on a symbolic size leaves a guard, and most are PyTorch's own, or of our rewrites:
which kernel, which memory format, whether shapes fit. Those change how a value is computed, not
which. A decision in the user's own file is another matter: the capture holds for one side of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from pullback.capture.joint import Capture

_QUOTIENTS = ("FloorDiv", "CleanDiv")
_NOT_THE_USERS = (str(Path(torch.__path__[0])), str(Path(__file__).parents[1]))


def decided(captured: Capture) -> Iterator[Any]:
    """The decisions of the user's code, as expressions in the symbols of the sizes."""
    sizes = captured.stage.sizes
    seen = set()
    for expression in _of_the_user(captured):
        condition = sizes.simplify(expression) if hasattr(sizes, "simplify") else expression
        if condition not in (True, False) and str(condition) not in seen:
            seen.add(str(condition))
            yield condition


def fixed(captured: Capture) -> frozenset[Any]:
    """The symbols that the user's code made numbers of: a loop over rows, `float(x.shape[0])`."""
    found = {symbol for one in _of_the_user(captured) for symbol in one.free_symbols}
    return frozenset(s for s in found if captured.stage.sizes.simplify(s).is_Integer)


def assumed(captured: Capture) -> Iterator[Any]:
    """What sizes are equal to and may not exceed. Where ends are cut off goes by that.

    That sizes are at least some number is left out: PyTorch assumes 2 of each, and means nothing.
    """
    sizes = captured.stage.sizes
    for symbol, bounds in sizes.var_to_range.items():
        if getattr(bounds.upper, "is_Integer", False) and bounds.upper < sys.maxsize - 1:
            yield sizes.simplify(symbol <= bounds.upper)
    for guard in list(sizes.guards):
        condition = sizes.simplify(guard.expr)
        if isinstance(condition, sympy.Eq):
            yield from _equality(*condition.args)
        elif isinstance(condition, sympy.Le | sympy.Lt | sympy.Ge | sympy.Gt):
            common = sympy.gcd(*condition.args)  # strides of one tensor are multiples of another
            condition = condition.func(*(sympy.cancel(side / common) for side in condition.args))
            if getattr(condition, "lts", sympy.S.One).free_symbols:
                yield condition


def _equality(one: Any, two: Any) -> Iterator[Any]:
    """An equality of sizes, or that a number divides one; none of strides, by the larger of two."""
    for side, rest in ((one, two), (two, one)):
        if type(side).__name__ in ("Mod", "PythonMod") and rest == 0:
            common = sympy.gcd(*side.args)
            whole, by = (sympy.cancel(part / common) for part in side.args)
            if by.is_Integer and _is_plain(whole):
                yield sympy.Eq(sympy.Mod(whole, by), 0, evaluate=False)
            return
    if _is_plain(one) and _is_plain(two):
        common = sympy.gcd(one, two)
        yield sympy.Eq(sympy.cancel(one / common), sympy.cancel(two / common), evaluate=False)


def _is_plain(size: Any) -> bool:
    """Whether a size is made of others by sums, products, and quotients by numbers alone."""
    sums = (sympy.Symbol, sympy.Number, sympy.Add, sympy.Mul, sympy.Pow)
    others = [part for part in sympy.preorder_traversal(size) if not isinstance(part, sums)]
    return all(type(p).__name__ in _QUOTIENTS and p.args[1].is_Integer for p in others)


def _of_the_user(captured: Capture) -> Iterator[Any]:
    for guard in captured.stage.sizes.guards:
        place = getattr(getattr(guard, "sloc", None), "framework_loc", None)
        if not str(getattr(place, "filename", "")).startswith(_NOT_THE_USERS):
            yield guard.expr
