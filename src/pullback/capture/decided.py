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


def bounded(captured: Capture) -> Iterator[Any]:
    """What sizes may not exceed: numbers, or others. Where ends are cut off goes by that.

    That sizes are at least some number is left out: PyTorch assumes 2 of each, and means nothing.
    """
    sizes = captured.stage.sizes
    for symbol, bounds in sizes.var_to_range.items():
        if getattr(bounds.upper, "is_Integer", False) and bounds.upper < sys.maxsize - 1:
            yield sizes.simplify(symbol <= bounds.upper)
    for guard in sizes.guards:
        condition = sizes.simplify(guard.expr)
        if isinstance(condition, sympy.Le | sympy.Lt | sympy.Ge | sympy.Gt):
            common = sympy.gcd(*condition.args)  # strides of one tensor are multiples of another
            condition = condition.func(*(sympy.cancel(side / common) for side in condition.args))
            if getattr(condition, "lts", sympy.S.One).free_symbols:
                yield condition


def _of_the_user(captured: Capture) -> Iterator[Any]:
    for guard in captured.stage.sizes.guards:
        place = getattr(getattr(guard, "sloc", None), "framework_loc", None)
        if not str(getattr(place, "filename", "")).startswith(_NOT_THE_USERS):
            yield guard.expr
