"""Optional tensors: a Function for each set of them that is there, behind one op.

A capture is of one call, and with another set of tensors the program does other work. So a
parameter that is a tensor in the examples and `None` by default is captured both ways.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from pullback.derive.likes import drawn
from pullback.derive.plain import forward_of
from pullback.emit.subject import Subject, subject_of

MOST = 2
"""How many optional tensors are followed: each doubles the number of Functions."""


def variants_of(subject: Subject) -> Iterator[tuple[frozenset[str], Subject]]:
    """The subjects without some of the optional tensors, each with the names of those.

    A parameter without which the program cannot be captured is none.
    """
    arguments = _arguments(subject)
    optional = _optional(subject, arguments)[:MOST]
    thing = subject.function if subject.function is not None else subject.program
    working: set[str] = set()
    for count in range(1, len(optional) + 1):
        for absent in itertools.combinations(optional, count):
            names = frozenset(name for name, _ in absent)
            if count > 1 and not names <= working:
                continue
            given = list(arguments)
            for _, place in absent:
                given[place] = None
            variant = _captured(thing, tuple(given))
            if variant is None or _outputs(variant) != _outputs(subject):
                continue
            working |= names
            label = "".join(part.capitalize() for name in sorted(names) for part in name.split("_"))
            object.__setattr__(variant, "name", f"{subject.name}Without{label}")
            yield names, variant


def _arguments(subject: Subject) -> tuple[Any, ...]:
    pairs = zip(subject.likes, subject.captured.inputs, strict=True)
    tensors = [drawn(like, i) for i, (like, one) in enumerate(pairs) if one.kind == "argument"]
    return subject.captured.fill(tensors)


def _optional(subject: Subject, arguments: tuple[Any, ...]) -> list[tuple[str, int]]:
    """The parameters that are tensors here and `None` by default, with their places."""
    if subject.captured.mutated:
        return []
    program = subject.program
    if subject.function is not None:
        program = forward_of(subject.function)
    try:
        parameters = list(inspect.signature(program).parameters.values())
    except (TypeError, ValueError):
        return []
    known = {one.name for one in subject.captured.inputs}
    return [
        (parameter.name, place)
        for place, (parameter, value) in enumerate(zip(parameters, arguments, strict=False))
        if isinstance(value, Tensor) and parameter.default is None and parameter.name in known
    ]


def _captured(thing: Any, arguments: tuple[Any, ...]) -> Subject | None:
    try:
        return subject_of(thing, arguments)
    except Exception:  # whatever it is: the program does not do without
        return None


def _outputs(subject: Subject) -> list[tuple[str, bool]]:
    return [(o.kind, o.differentiable) for o in subject.captured.outputs if o.returned]
