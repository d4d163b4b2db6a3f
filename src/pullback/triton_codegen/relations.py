"""Relations between sizes, as few and as short as an emitted file asks for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sympy  # type: ignore[import-untyped]

_QUOTIENTS = ("FloorDiv", "CleanDiv")


def least_conditions(conditions: Iterable[Any]) -> list[Any]:
    """Conditions on sizes without those that hold for all sizes, be they 0, or follow from others.

    That a division must leave a certain rest is said so, and a bound on one size is `8 <= n`.
    """
    ordered = sorted(conditions, key=str)
    equal: dict[Any, Any] = {}
    rests: dict[Any, Any] = {}
    for one in ordered:
        if isinstance(one, sympy.Eq):
            difference = _with_rests(one.args[0] - one.args[1])
            number, varying = difference.as_coeff_Add()
            factor, part = varying.as_coeff_Mul()
            if isinstance(part, sympy.Mod):
                rests[part] = -number / factor
            elif difference != 0:
                equal.setdefault(difference, one)
    equal = {d: one for d, one in equal.items() if sympy.expand(d.xreplace(rests)) != 0}
    bounds: list[tuple[Any, Any]] = []
    for one, over in ((one, _over(one)) for one in ordered):
        if over is None or _is_never_negative(over):
            continue
        over = sympy.expand(_with_rests(over).subs(rests))
        if not any(_is_never_negative(over - other) for other in (0, *dict(bounds))):
            bounds = [pair for pair in bounds if not _is_never_negative(pair[0] - over)]
            bounds.append((over, _bound(over, one)))
    relations = (sympy.Eq, sympy.Le, sympy.Lt, sympy.Ge, sympy.Gt)
    others = [x for x in ordered if x not in (True, False) and not isinstance(x, relations)]
    found = [_no_rest(rest, value) for rest, value in rests.items()]
    return [*found, *equal.values(), *(one for _, one in bounds), *others]


def _no_rest(rest: Any, value: Any) -> Any:
    """That a division leaves a rest, as one that leaves none: `n % 2 == 0`."""
    number, varying = (rest.args[0] - value).as_coeff_Add()
    by = rest.args[1]
    return sympy.Eq(sympy.Mod(varying + number % by, by), 0, evaluate=False)


def _over(condition: Any) -> Any:
    """What may not be negative by a condition that bounds; None for another one."""
    if isinstance(condition, sympy.Le | sympy.Lt):
        difference = condition.args[1] - condition.args[0]
    elif isinstance(condition, sympy.Ge | sympy.Gt):
        difference = condition.args[0] - condition.args[1]
    else:
        return None
    return difference - int(isinstance(condition, sympy.Lt | sympy.Gt))


def _bound(over: Any, condition: Any) -> Any:
    """A bound as `8 <= n`, where it is one on a single size."""
    number, varying = over.as_coeff_Add()
    factor, size = varying.as_coeff_Mul()
    if size.is_Symbol and factor > 0:
        return sympy.Le(sympy.ceiling(-number / factor), size, evaluate=False)
    if size.is_Symbol:
        return sympy.Le(size, sympy.floor(number / -factor), evaluate=False)
    return condition


def _is_never_negative(over: Any) -> bool:
    """Whether a whole number is seen to be 0 or more for all sizes: then it is more than -1."""
    for rest in over.atoms(sympy.Mod):
        over = over.subs(rest, 0 if over.coeff(rest) > 0 else rest.args[1] - 1)
    sizes = {s: sympy.Symbol(s.name, integer=True, nonnegative=True) for s in over.free_symbols}
    over = over.xreplace(sizes).replace(
        lambda part: type(part).__name__ in _QUOTIENTS and bool(part.args[0].is_nonnegative),
        lambda part: sympy.Symbol(str(part), integer=True, nonnegative=True),
    )
    return bool((sympy.expand(over) + 1).is_positive)


def _with_rests(sizes: Any) -> Any:
    """Sizes with `n // 2` as `(n - n % 2) / 2`."""
    return sympy.expand(
        sizes.replace(
            lambda part: type(part).__name__ in _QUOTIENTS and part.args[1].is_Integer,
            lambda part: (part.args[0] - sympy.Mod(*part.args)) / part.args[1],
        )
    )
