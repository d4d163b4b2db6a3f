"""Optional tensors: a Function for each set of them that may be passed, behind one op.

A capture is of one call, and with another set of tensors the program does other work. So a
parameter that is a tensor in the examples and `None` by default is captured both ways.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from pullback.emit.cpp.defaults import captured_with, parameters_of
from pullback.emit.subject import EmitSubject

MOST_OPTIONAL = 2
"""How many optional tensors are followed: each doubles the number of Functions."""


def variants_of(subject: EmitSubject) -> Iterator[tuple[frozenset[str], EmitSubject]]:
    """The subjects without some of the optional tensors, each with the names of those.

    A parameter without which the program cannot be captured is none.
    """
    arguments = subject.captured.fill(subject.tensors())
    optional = _optional(subject, arguments)[:MOST_OPTIONAL]
    working: set[str] = set()
    for count in range(1, len(optional) + 1):
        for absent in itertools.combinations(optional, count):
            names = frozenset(name for name, _ in absent)
            if count > 1 and not names <= working:
                continue
            given = list(arguments)
            for _, place in absent:
                given[place] = None
            variant = captured_with(subject, tuple(given))
            if variant is None or _outputs(variant) != _outputs(subject):
                continue
            working |= names
            label = "".join(part.capitalize() for name in sorted(names) for part in name.split("_"))
            yield names, replace(variant, name=f"{subject.name}Without{label}")


def _optional(subject: EmitSubject, arguments: tuple[Any, ...]) -> list[tuple[str, int]]:
    """The parameters that are tensors here and `None` by default, with their places."""
    if subject.captured.mutated:
        return []
    pairs = zip(parameters_of(subject), arguments, strict=True)
    known = {one.name for one in subject.captured.inputs}
    return [
        (parameter.name, place)
        for place, (parameter, value) in enumerate(pairs)
        if isinstance(value, Tensor)
        and parameter is not None
        and parameter.default is None
        and parameter.name in known
    ]


def _outputs(subject: EmitSubject) -> list[tuple[str, bool]]:
    return [(o.kind, o.differentiable) for o in subject.captured.outputs if o.returned]
