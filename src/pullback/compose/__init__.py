"""Compose: one program of Functions and ops as one node, as it is written, or in groups.

The law of every composition: the same outputs and the same gradients, first and second order, as
the program as written. The public functions stand here and import what they need when called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def combine(
    program: Callable[..., Any],
    *examples: Any,
    backend: str = "auto",
    save: str | int | None = None,
    verify: bool = True,
) -> Any:
    """A `Function` that computes `program` in one node: see `compose.combined`."""
    from pullback.compose.combined import combine as make  # heavy

    return make(program, *examples, backend=backend, save=save, verify=verify)


def nest(program: Callable[..., Any]) -> Any:
    """A `Function` that runs `program` as it is written: see `compose.nested`."""
    from pullback.compose.nested import nest as make

    return make(program)


def hybrid(
    program: Callable[..., Any],
    *examples: Any,
    groups: Iterable[Iterable[int]] = (),
    backend: str = "auto",
    save: str | int | None = None,
    verify: bool = True,
) -> Any:
    """A `Function` that runs `program` with some of its units combined: see `compose.grouped`."""
    from pullback.compose.grouped import hybrid as make  # heavy

    return make(program, *examples, groups=groups, backend=backend, save=save, verify=verify)
