"""Bounds that the author has declared: `declares = {"domain": {"x": (0, 1)}}`.

Arguments outside of them are not tried, and those that the check is given must lie within.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isfinite
from typing import Any

from torch import Tensor

from pullback.check.facts import number
from pullback.check.inputs.relations import Relation, broken_by
from pullback.errors import ExamplesError
from pullback.judge.example import Example, can_differ

Bounds = tuple[tuple[str, float, float], ...]


def declared_of(domain: Bounds, names: Sequence[str]) -> tuple[Relation, ...]:
    """The bounds as relations, by the positions of the inputs that they are for."""
    places = {name: position for position, name in enumerate(names)}
    return tuple(
        Relation(
            f"declared to be from {number(low)} to {number(high)}",
            (places[name],),
            partial(_is_within, low=low, high=high),
            is_declared=True,
        )
        for name, low, high in domain
        if name in places
    )


def require_domain(
    name: str, domain: Bounds, examples: Sequence[Example], names: Sequence[str]
) -> None:
    """Raise unless the examples of the target `name` lie within its declared bounds."""
    bounds = declared_of(domain, names)
    for example in examples:
        broken = broken_by(example, bounds)
        if broken is not None:
            raise ExamplesError(
                f"the inputs of `{name}` must lie in the domain that is declared for it",
                expected=f"`{names[broken.positions[0]]}`, {broken.words}",
                got=_extent(example.args[broken.positions[0]]),
                fix="give inputs that do, or declare another domain",
            )


def fitted(args: tuple[Any, ...], domain: Bounds, names: Sequence[str]) -> tuple[Any, ...]:
    """Arguments that were guessed, brought within the declared bounds."""
    moved = list(args)
    for name, low, high in domain:
        place = names.index(name) if name in names else len(args)
        if place < len(args) and isinstance(args[place], Tensor) and can_differ(args[place]):
            moved[place] = _moved(args[place].detach(), low, high)
            moved[place].requires_grad_(args[place].requires_grad)
    return tuple(moved)


def _moved(x: Tensor, low: float, high: float) -> Tensor:
    if isfinite(low) and isfinite(high):
        return low + (high - low) * x.sigmoid()
    if isfinite(low):
        return low + x.abs()
    return high - x.abs() if isfinite(high) else x


def _is_within(x: Tensor, low: float, high: float) -> bool:
    return bool(((x >= low) & (x <= high)).all())


def _extent(value: Tensor | float) -> str:
    if not isinstance(value, Tensor):
        return number(value)
    return f"numbers from {number(value.min().item())} to {number(value.max().item())}"
